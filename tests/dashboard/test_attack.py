"""The page Attack: sentences, table, curves, features, other attacks, the slider; what is missing or hostile."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import attack_words, attacking, battery, loaders
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, figures, metrics, presets, tables
from tier.attacks import ATTACKS
from tier.config import Experiment
from tier.presets import Preset
from tier.store import Result, Store

Show = Callable[..., AppTest]
TABS = ("Result", "All explainers", "What it looks at", "Other attacks", "Threshold")


@pytest.fixture(autouse=True)
def drawn_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class names at once, so that no test waits until the data set is drawn."""
    names = tuple(f"sign_{k}" for k in range(24))
    made = loaders.Images(np.zeros((1000, 3, 32, 32), np.uint8), np.arange(1000) % 24, names, None, None)
    monkeypatch.setattr(loaders, "images", lambda preset: made)


@pytest.fixture
def show(open_page: Open, full_store: Path) -> Show:
    """The page on the full store, checked to be drawn whole."""

    def start(store: Path = full_store, **query: str | list[str]) -> AppTest:
        return whole(open_page("attack", store, **query))

    return start


def whole(test: AppTest) -> AppTest:
    assert not test.exception
    assert not [e.value for e in test.error if "could not be drawn" in str(e.proto)]
    return test


def attack(store: Path, one: Experiment, who: str = "transfer") -> Result:
    found = experiment.find(Store(store), "attack", attacking.attacked(one, who))
    assert found is not None
    return found


def target(result: Result) -> pd.DataFrame:
    return result.frame("scores.parquet").query("set == 'target'")


def labels(test: AppTest) -> list[str]:
    return [str(metric.value) for metric in test.metric]


# ---- the result in sentences


def test_one_sentence_per_model_with_the_stored_figures(show: Show, full_store: Path, preset: Preset) -> None:
    said = texts(show(beside=["TIER Full", "TIER Reg-only"]))
    for model in ("none", "tier_reg", "tier_full"):
        leaf = attack(full_store, preset.run(model)).metrics["target"]
        assert f"sees explanations gets **{100 * leaf['balanced_accuracy']:.0f} of 100** right" in said
        assert f"({100 * leaf['interval'][0]:.0f} to {100 * leaf['interval'][1]:.0f})" in said
    trained = experiment.find(Store(full_store), "train", preset.run("none"))
    assert trained is not None
    right = 100 * trained.metrics["gap_balanced_accuracy"]
    assert f"only sees whether the answer is correct gets **{right:.0f}**" in said
    assert said.count("One who knows the defense") == 2  # there is none to know for the undefended model


def test_knowing_is_judged_on_the_same_images(show: Show, full_store: Path, preset: Preset) -> None:
    one, right = preset.run("tier_full"), []
    for who in ("transfer", "adaptive"):
        result = attack(full_store, one, who)
        frame = target(result)
        said = frame["score"] > result.metrics["target"]["threshold"]
        rates = [(said == frame["member"])[frame["member"] == kind].mean() for kind in (True, False)]
        right.append(np.mean(rates))
    assert f"({100 * (right[1] - right[0]):+.1f} of 100, interval" in texts(show())


@pytest.mark.parametrize(
    "gain, said",
    [
        ((0.05, 0.01, 0.09), "does **better** (+5.0 of 100, interval +1.0 to +9.0)"),
        ((0.02, -0.02, 0.06), "does not clearly do better"),
        ((-0.05, -0.09, -0.01), "does worse"),
        ((float("nan"),) * 3, "is not known yet"),
    ],
)
def test_a_gain_is_called_what_its_interval_shows(gain: tuple[float, float, float], said: str) -> None:
    figure = tables.attack_figure(metrics.report([1, 2, 3, 4], [-1, -2, -3, 0], 0.5), "balanced_accuracy")
    assert said in attack_words.attacker(figure, 0.6, dict(zip(("difference", "low", "high"), gain, strict=True)))


@pytest.mark.parametrize("gap, said", [(0.6, "gets **60**."), (0.75, "not clearly different"), (0.9, "no less")])
def test_explanations_are_said_to_be_worth_no_more_than_the_gap_where_they_are_not(gap: float, said: str) -> None:
    figure = {"value": 0.75, "low": 0.7, "high": 0.8, "refused": None}
    assert said in attack_words.attacker(figure, gap, None)


# ---- tabs


@pytest.mark.parametrize("view", TABS)
def test_every_chart_owes_takeaway_meaning_settings_and_data(show: Show, view: str) -> None:
    test = show(view=view)
    assert not test.warning
    for chart in charts(test):
        assert any(digit in chart.alt for digit in "0123456789")  # type: ignore[attr-defined]
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    csv = [button for button in test.get("download_button") if "CSV" in button.proto.label]
    assert lines and len(lines) == len(csv)
    assert all("members and" in line and "seed" in line for line in lines)
    assert texts(test).count(":material/lightbulb:") >= len(lines)


@pytest.mark.parametrize("metric", tables.ATTACK_METRICS)
def test_the_table_holds_every_explainer_and_model_with_intervals(
    show: Show, full_store: Path, preset: Preset, metric: str
) -> None:
    test = show(view="All explainers", metric=tables.ATTACK_METRICS[metric], beside=["TIER Full", "Augmentation"])
    table = test.dataframe[0].value
    assert len(table) == 3 * len(figures.EXPLAINERS)
    row = table[(table["explainer"] == "LIME") & (table["model"] == "TIER Full")].iloc[0]
    one = preset.run("tier_full").set({"explain.name": "lime"})
    for setting, (who, part, _) in attacking.SETTINGS.items():
        leaf = attack(full_store, one, who).metrics[part]
        if leaf[metric] is None:
            assert row[setting] == "refused"
            assert leaf["refused"][metric].split(";")[0] in texts(test)
        else:
            assert row[setting].startswith(f"{leaf[metric]:.3f}")
            assert (" to " in row[setting]) == (metric != "balanced_accuracy_calibrated")


def test_rates_show_their_raw_counts(show: Show, full_store: Path, preset: Preset) -> None:
    table = show(view="All explainers", metric="TPR at 1 % FPR").dataframe[0].value
    leaf = attack(full_store, preset.run("none")).metrics["target"]
    counts = leaf["counts_at_0.01"]
    cell = f"{counts['true_positives']} of {leaf['members']} at {counts['false_positives']} of {leaf['nonmembers']}"
    assert table["transfer"].iloc[0].endswith(cell)
    assert table["transfer"].iloc[0] == table["adaptive"].iloc[0]  # nothing to know about the undefended model


def test_what_is_refused_is_said_instead_of_drawn(show: Show) -> None:
    test = show(metric="TPR at 0.1 % FPR")
    assert "TPR at 0.1 % FPR is refused: a rate of 0.001 needs at least 1,000 non-members" in texts(test)
    assert len(charts(test)) == 1  # the ROC
    assert "cannot resolve 0.1 %" in charts(test)[0].alt  # type: ignore[attr-defined]


def test_the_features_are_those_of_the_shadow_chosen(show: Show, full_store: Path, preset: Preset) -> None:
    for shadow, model, who in (
        ("Undefended shadow", "none", "transfer"),
        ("TIER Full shadow", "tier_full", "adaptive"),
    ):
        test = show(view="What it looks at", shadow=shadow)
        table = attack(full_store, preset.run(model), who).frame("features.parquet")
        kept = table[table["level"].notna() & table["kept"]]
        assert f"kept {len(kept)} of {len(table) - 2} trajectory features" in texts(test)
        assert len(charts(test)) == 2


def test_no_feature_kept_is_said() -> None:
    table = pd.DataFrame({"level": [0.0, 0.1], "kept": False, "order": "morf", "t": 0.1})
    assert "kept none of 2" in attack_words.kept_features(table)
    assert "costs the attack nothing" in attack_words.importance(pd.DataFrame({"importance": [0.0, -0.01]}))


def test_every_attack_is_ranked_with_agp_among_them(show: Show, full_store: Path, preset: Preset) -> None:
    said = texts(show(view="Other attacks", metric="AUC"))
    found = experiment.find(Store(full_store), "battery", preset.run("tier_full"))
    assert found is not None
    auc = {name: found.metrics[name]["auc"] for name in synthetic.BATTERY}
    auc["agp"] = attack(full_store, preset.run("tier_full"), "adaptive").metrics["target"]["auc"]
    best = max(auc, key=lambda name: auc[name])
    assert f"{figures.ATTACKS[best]} leads (AUC: {auc[best]:.3f}" in said
    place = sorted(auc, key=lambda name: -auc[name]).index("agp") + 1
    assert f"number {place} of 12" in said
    assert set(auc) == set(ATTACKS) == set(figures.ATTACKS)


def test_agp_on_the_most_exposed_tenth_is_that_of_the_same_images(
    full_store: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIER_STORE", str(full_store))
    monkeypatch.setenv("TIER_DEMO_STORE", str(full_store / "none"))  # not what ships
    st.cache_data.clear()
    view = attacking.View(preset, "gradient", {"none": preset.run("none")})
    made = battery._agp_decile(view, preset.run("none"), "none")
    found = experiment.find(Store(full_store), "battery", preset.run("none"))
    assert made is not None and found is not None
    decile = found.metrics["vulnerable_decile"]["gap"]
    assert (made["members"], made["nonmembers"]) == (decile["members"], decile["nonmembers"])


def test_classes_are_listed_from_the_most_leaking(show: Show) -> None:
    test = show(view="Other attacks", of="TIER Full", attack="RMIA")
    table = test.dataframe[-1].value
    assert len(table) == 8
    assert table["value"].is_monotonic_decreasing
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
    assert set(table["label"]) <= {f"sign {k}" for k in range(24)}
    assert "By the attack RMIA" in texts(test)


def test_canaries_show_once_there_are_some(show: Show, full_store: Path, preset: Preset, tmp_path: Path) -> None:
    test = show(view="Other attacks")
    assert "split.canaries=50" in "".join(str(code.value) for code in test.code)
    root = tmp_path / "canaries"
    shutil.copytree(full_store, root)
    synthetic.add_battery(Store(root), preset.run("none").set({"split.canaries": battery.CANARIES}))
    test = show(root, view="Other attacks")
    assert len(charts(test)) == 3
    assert "images: 50 members and 50 non-members" in texts(test)
    assert not [code for code in test.code if "canaries" in str(code.value)]


# ---- the threshold


def test_the_slider_begins_at_the_transferred_threshold_and_counts_follow_it(
    show: Show, full_store: Path, preset: Preset
) -> None:
    result = attack(full_store, preset.run("tier_full"), "adaptive")
    frame, leaf = target(result), result.metrics["target"]
    test = show(view="Threshold", on="TIER Full, adaptive")
    assert labels(test)[2] == f"{100 * leaf['balanced_accuracy']:.1f} %"
    test.slider(key="threshold").set_value(1.0).run()
    whole(test)
    above = frame[frame["score"] > 1.0]["member"]
    found, alarms = int(above.sum()), int((~above).sum())
    members, others = leaf["members"], leaf["nonmembers"]
    assert f"{found} of {members} members found, {alarms} of {others} non-members wrongly" in texts(test)
    assert labels(test)[:2] == [f"{100 * found / members:.1f} %", f"{100 * alarms / others:.1f} %"]
    assert f"Of 50 members {round(50 * found / members)} are found" in charts(test)[0].alt  # type: ignore[attr-defined]
    next(button for button in test.button if "Transferred" in button.label).click().run()
    assert labels(test)[2] == f"{100 * leaf['balanced_accuracy']:.1f} %"


def test_a_link_reopens_the_threshold(show: Show) -> None:
    assert show(view="Threshold", threshold="-1.5").slider(key="threshold").value == -1.5


# ---- one image, for the page Sample


def sampled(preset: Preset, rows: list[int]) -> AppTest:
    """The part that the page Sample shows of some images."""

    def script(rows: list[int]) -> None:
        from dashboard import attacking as attacks
        from dashboard import loaders as stored
        from tier import presets as named

        chosen = stored.pinned(named.get("signs"))
        attacks.show_reasons(chosen, {name: chosen.run(name) for name in ("none", "tier_full")}, rows[0])

    test = AppTest.from_function(script, args=(rows,), default_timeout=30)
    return whole(test.run())


@pytest.fixture
def on_full_store(full_store: Path, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    monkeypatch.setenv("TIER_STORE", str(full_store))
    monkeypatch.setenv("TIER_DEMO_STORE", str(full_store / "none"))  # not what ships
    st.cache_data.clear()


@pytest.mark.usefixtures("on_full_store")
def test_an_image_shows_its_score_and_the_features_that_drove_it(full_store: Path, preset: Preset) -> None:
    row = int(synthetic.ROWS[3])
    test = sampled(preset, [row])
    assert len(charts(test)) == 2
    for model in ("none", "tier_full"):
        result = attack(full_store, preset.run(model))
        frame = target(result)
        score = frame.loc[frame["index"] == row, "score"].iloc[0]
        assert attack_words.verdict(score, result.metrics["target"]["threshold"]) in texts(test)
    assert not [word for word in ("trained on it", "never saw it") if word in texts(test)]


@pytest.mark.usefixtures("on_full_store")
def test_an_image_without_kept_reasons_still_has_its_score(preset: Preset) -> None:
    test = sampled(preset, [int(synthetic.ATTACKED[-1])])
    assert not charts(test)
    assert "The attack says" in texts(test)
    assert "lowest numbers only" in texts(test)


# ---- what is missing


def test_missing_attacks_are_computed_on_request(show: Show, engine: FakeEngine, preset: Preset) -> None:
    test = show(seed="1", explainer="LIME")
    assert not charts(test)
    test.button(key="compute_attack").click().run()
    one = {name: preset.run(name, 1).set({"explain.name": "lime"}) for name in ("none", "tier_full")}
    asked = (("none", "transfer"), ("tier_full", "transfer"), ("tier_full", "adaptive"))
    wanted = {experiment.key("attack", attacking.attacked(one[name], who)) for name, who in asked}
    assert set(engine.known) == wanted
    assert set(engine.needed.values()) == {("scores.parquet",)}


def test_a_missing_battery_is_computed_on_request(show: Show, engine: FakeEngine, preset: Preset) -> None:
    test = show(seed="1", view="Other attacks", explainer="LIME")
    test.button(key="compute_battery").click().run()
    assert {experiment.key("battery", preset.run(name, 1)) for name in ("none", "tier_full")} <= set(engine.known)


@pytest.mark.parametrize("view", TABS)
def test_a_damaged_store_offers_what_is_gone(show: Show, full_store: Path, tmp_path: Path, view: str) -> None:
    root = tmp_path / "broken"
    shutil.copytree(full_store, root)
    for path in [*root.glob("attack/*/scores.parquet"), *root.glob("battery/*/scores.parquet")]:
        raw = bytearray(path.read_bytes())
        raw[40] ^= 0xFF  # the size stays, the checksum does not
        path.write_bytes(raw)
    test = show(root, view=view)
    assert [button for button in test.button if str(button.key).startswith("compute_attack")]


def test_an_empty_store_says_what_to_run(show: Show, empty_store: Path) -> None:
    test = show(empty_store)
    assert "python -m tier run signs" in test.code[0].value
    assert not charts(test)


@pytest.mark.parametrize(
    "query",
    [
        {"threshold": "nan", "view": "Threshold"},
        {"threshold": "1e9", "view": "Threshold"},
        {"on": "Nobody, adaptive", "view": "Threshold"},
        {"metric": "<script>alert(1)</script>"},
        {"shadow": "[x](javascript:alert(1))", "view": "What it looks at"},
        {"attack": "../../etc/passwd", "view": "Other attacks"},
        {"explainer": "gradient; rm -rf"},
    ],
)
def test_a_hostile_link_falls_back_and_says_so(show: Show, query: dict[str, str]) -> None:
    test = show(**query)
    assert len(test.warning) == 1
    assert "does not exist here" in test.warning[0].value
    assert "<" not in test.warning[0].value


def test_one_membership_class_is_no_error(
    open_page: Open, full_store: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "members_only"
    shutil.copytree(full_store, root)
    shutil.rmtree(root / "attack")
    made = synthetic.attack_scores
    monkeypatch.setattr(synthetic, "attack_scores", lambda d, seed: made(d, seed).query("member"))
    pinned = synthetic.pinned(Store(root), presets.get("signs"))
    synthetic.add_attack(Store(root), pinned.run("none"))
    for view in TABS:
        test = whole(open_page("attack", root, view=view))
        assert "undefined: there are no non-members" in texts(test) or view in ("What it looks at", "Threshold")
