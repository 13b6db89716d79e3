"""The page Attack: sentences, table, curves, features, other attacks, the slider; what is missing or hostile."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import attack_words, attacking, battery, components, loaders
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import demo, experiment, figures, metrics, presets, summary, tables
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


def test_the_sentence_leads_with_the_attacker_who_knows_the_defense(
    show: Show, full_store: Path, preset: Preset
) -> None:
    said = texts(show(beside=["TIER Full", "TIER Reg-only"]))
    for model in ("none", "tier_reg", "tier_full"):
        leaf = attack(full_store, preset.run(model), "adaptive").metrics["target"]
        knows = "" if model == "none" else "knows the defense and "
        own = f"who {knows}sees explanations (Gradient) gets **{100 * leaf['balanced_accuracy']:.0f} of 100** right"
        assert f"{own} ({100 * leaf['interval'][0]:.0f} to {100 * leaf['interval'][1]:.0f})" in said
        if model != "none":
            naive = attack(full_store, preset.run(model)).metrics["target"]["balanced_accuracy"]
            assert f"; one who does not know it gets {100 * naive:.0f}." in said
    trained = experiment.find(Store(full_store), "train", preset.run("none"))
    assert trained is not None
    right = 100 * trained.metrics["gap_balanced_accuracy"]
    assert f"only sees whether the answer is correct gets **{right:.0f}**" in said
    assert said.count("Knowing the defense") == 2  # there is none to know for the undefended model
    assert "One training seed only" in said and "bootstrap" in said


def test_what_others_get_without_explanations_stands_beside_it(show: Show, full_store: Path, preset: Preset) -> None:
    test = show()
    said, one = texts(test), preset.run("none")
    found = experiment.find(Store(full_store), "battery", one)
    own = attack(full_store, one)
    assert found is not None
    told, frame, scores = found.metrics, found.frame("scores.parquet"), target(own)
    assert f"One who sees only the confidence gets **{100 * told['loss']['balanced_accuracy']:.0f}**" in said
    rates = {name: told[name]["balanced_accuracy"] for name in synthetic.BATTERY}
    rates["agp"] = own.metrics["target"]["balanced_accuracy"]
    best = max(rates, key=lambda name: rates[name])
    assert f"Of all attacks, {figures.ATTACKS[best]} gets most right: **{100 * rates[best]:.0f}**" in said
    both = frame.merge(scores, on="index", suffixes=("", "_own"))
    right = {
        "loss_mlp": (both["loss_mlp"] > told["loss_mlp"]["threshold"]) == both["member"],
        "agp": (both["score"] > own.metrics["target"]["threshold"]) == both["member"],
    }
    rate = {name: values.groupby(both["member"]).mean().mean() for name, values in right.items()}
    area = own.metrics["target"]["auc"] - told["loss_mlp"]["auc"]
    gain = f"({100 * (rate['agp'] - rate['loss_mlp']):+.1f} of 100, "
    assert gain in said and f"AUC {area:+.3f}, " in said


def test_without_a_battery_the_sentence_says_what_it_knows(show: Show, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "no_battery"
    shutil.copytree(full_store, root)
    shutil.rmtree(root / "battery")
    said = texts(show(root))
    assert "only sees whether the answer is correct gets" in said
    assert "only the confidence" not in said and "Of all attacks" not in said


def test_knowing_is_judged_on_the_same_images(show: Show, full_store: Path, preset: Preset) -> None:
    one, right, areas = preset.run("tier_full"), [], []
    for who in ("transfer", "adaptive"):
        result = attack(full_store, one, who)
        frame = target(result)
        said = frame["score"] > result.metrics["target"]["threshold"]
        rates = [(said == frame["member"])[frame["member"] == kind].mean() for kind in (True, False)]
        right.append(np.mean(rates))
        areas.append(result.metrics["target"]["auc"])
    said = texts(show())
    assert f"({100 * (right[1] - right[0]):+.1f} of 100, " in said
    assert f"AUC {areas[1] - areas[0]:+.3f}, " in said


def gain(*numbers: float) -> dict[str, float]:
    return dict(zip(("difference", "low", "high"), numbers, strict=True))


UNKNOWN = gain(*(float("nan"),) * 3)


@pytest.mark.parametrize(
    "right, ranks, said, short",
    [
        (gain(0.05, 0.01, 0.09), gain(0.04, 0.01, 0.07), "**ranks the images better** (AUC +0.040", "Yes"),
        (gain(0.038, 0.01, 0.06), gain(-0.002, -0.03, 0.03), "no better (AUC -0.002, -0.030 to +0.030)", "Only in"),
        (gain(0.038, 0.01, 0.06), gain(-0.05, -0.08, -0.01), "ranks the images worse", "Only in"),
        (gain(0.0, -0.02, 0.02), gain(0.04, 0.01, 0.07), "but does not clearly get more of them right", "Yes"),
        (gain(0.02, -0.02, 0.06), gain(0.01, -0.02, 0.03), "does not clearly help (+2.0 of 100, -2.0", "Not clearly"),
        (gain(-0.05, -0.09, -0.01), gain(0.0, -0.02, 0.02), "misleads", "No, it misleads"),
        (UNKNOWN, UNKNOWN, "is not known yet", "Not known yet"),
    ],
)
def test_a_gain_is_called_what_it_is_a_better_order_or_a_threshold_that_fits(
    right: dict[str, float], ranks: dict[str, float], said: str, short: str
) -> None:
    assert said in attack_words.knowing(right, ranks)
    assert attack_words.answer(right, ranks).startswith(short)


def known(value: float, low: float, high: float) -> dict[str, object]:
    return {"value": value, "low": low, "high": high, "refused": None}


@pytest.mark.parametrize(
    "gap, said", [(0.6, "gets **60**."), (0.75, "**75**, which is not clearly different"), (0.9, "which is more")]
)
def test_explanations_are_said_to_be_worth_no_more_than_the_gap_where_they_are_not(gap: float, said: str) -> None:
    found = attack_words.Found("Gradient", known(0.75, 0.7, 0.8), None, gap)
    assert said in attack_words.attacker(found)[-1]


def test_others_are_compared_image_by_image_where_the_battery_is_stored() -> None:
    more, same, less = gain(-0.02, -0.03, -0.01), gain(0.0, -0.01, 0.01), gain(0.2, 0.1, 0.3)
    rivals = attack_words.Rivals(0.89, more, less, gain(0.012, 0.002, 0.023), same, ("lira_online", 0.912))
    said = attack_words.attacker(attack_words.Found("Gradient", known(0.87, 0.86, 0.88), None, 0.69, rivals=rivals))[-1]
    assert said.startswith("One who sees only the confidence gets **89**, which is more; one who only sees whether")
    assert "**69**." in said and "add something (+1.2 of 100, +0.2 to +2.3; AUC +0.000" in said
    assert said.endswith("Of all attacks, LiRA, online gets most right: **91**.")


def test_the_naive_attacker_alone_is_called_that() -> None:
    missing = tables.attack_figure(None, "balanced_accuracy")
    said = attack_words.attacker(attack_words.Found("LIME", missing, known(0.6, 0.5, 0.7), None))
    assert (
        "and does not know the defense gets **60 of 100** right (50 to 70); the attack of one who knows it" in said[0]
    )
    assert "is not stored yet" in said[0]
    assert attack_words.attacker(attack_words.Found("LIME", missing, None, None)) == [
        "the attack with LIME maps is not stored yet."
    ]


# ---- tabs


TAKEAWAYS = {
    "Result": re.compile("Only in finding|Yes, it ranks|Not clearly|finds .* while accusing .* guessing finds"),
    "All explainers": re.compile(""),
    "What it looks at": re.compile(
        "The filter kept .* separates best|loses most right guesses|costs the attack nothing"
    ),
    "Other attacks": re.compile("leads"),
    "Threshold": re.compile("members .* are found .* wrongly called|middle member scores"),
}


@pytest.mark.parametrize("view", TABS)
def test_every_chart_owes_takeaway_meaning_settings_and_data(show: Show, view: str) -> None:
    test = show(view=view)
    assert not test.warning
    said = texts(test)
    for chart in charts(test):
        # what the picture shows, in the words that stand beside it
        parts = re.split(r"(?:^| )(?:Undefended|TIER Full): ", chart.alt)  # type: ignore[attr-defined]
        assert all(part.strip() in said for part in parts)
        assert TAKEAWAYS[view].search(chart.alt)  # type: ignore[attr-defined]
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    csv = [button for button in test.get("download_button") if "CSV" in button.proto.label]
    assert lines and len(lines) == len(csv) >= len(charts(test))
    assert all("members and" in line and "seed" in line for line in lines)
    assert texts(test).count(":material/lightbulb:") >= len(lines)


@pytest.mark.parametrize("metric", tables.ATTACK_METRICS)
def test_the_table_holds_every_explainer_and_model_with_intervals(
    show: Show, full_store: Path, preset: Preset, metric: str
) -> None:
    test = show(view="All explainers", metric=tables.ATTACK_METRICS[metric], beside=["TIER Full", "Augmentation"])
    table = test.dataframe[0].value
    assert json.loads(test.dataframe[0].proto.columns)["explainer"]["width"] >= 160  # of `Integrated Gradients`
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
    assert "a rate of 0.001 needs at least 1,000 non-members" in texts(test)
    assert len(charts(test)) == 1  # the ROC
    assert "cannot be judged at 0.1 % false alarms" in charts(test)[0].alt  # type: ignore[attr-defined]


def test_a_refusal_names_its_models(show: Show, full_store: Path, preset: Preset, tmp_path: Path) -> None:
    assert "is refused for Undefended, TIER Full: a rate of 0.001" in texts(show(metric="TPR at 0.1 % FPR"))

    def script() -> None:
        import pandas as pd

        from dashboard import attacking as attacks

        attacks.refusals(pd.DataFrame({"model": ["none", "tier_full"], "refused": ["why", "not stored"]}), "auc")

    (caption,) = AppTest.from_function(script).run().caption
    assert caption.value == ":material/block: AUC is refused for Undefended: why."


def test_the_roc_says_counts_with_their_interval_and_what_guessing_finds(show: Show) -> None:
    curves = pd.DataFrame({"model": "none", "setting": "transfer", "fpr": [0.001, 0.01, 1], "tpr": [0.001, 0.012, 1]})
    said = attack_words.roc(curves, {("none", "transfer"): (1000, 1000)})["none"]
    assert "12 of 1,000 members (0.6 to 2.1 %) while accusing 10 of 1,000 others, where guessing finds 10" in said
    assert "1 of 1,000 members (0.0 to 0.6 %) while accusing 1 of 1,000 others, where guessing finds 1" in said


def test_the_data_of_the_roc_holds_the_null_band(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, pd.DataFrame] = {}
    monkeypatch.setattr(
        components, "caption_with_data", lambda settings, data, name, key="": kept.setdefault(name, data)
    )
    show()
    band = kept["attack_roc_gradient"].query("model == 'shuffled memberships'")
    assert len(band) and (band["tpr_low"] <= band["tpr_high"]).all()


@pytest.mark.parametrize(
    "others, said", [(0.80, "not clearly more than with LIME (0.800)"), (0.70, "clearly more than with any other")]
)
def test_the_best_explainer_is_chosen_without_the_target_and_not_overpraised(others: float, said: str) -> None:
    part = pd.DataFrame({"explainer": ["gradient", "lime"], "value": [0.79, others], "low": [0.76, others - 0.03],
                         "high": [0.82, others + 0.03], "of": np.nan})  # fmt: skip
    text = attack_words.best_explainer(part, "gradient", defended=True)
    assert "Gradient does best on attack-test" in text and said in text and "an adaptive attacker gets 0.790" in text
    assert "the attacker gets" in attack_words.best_explainer(part, "gradient", defended=False)


def test_pages_and_command_line_choose_the_explainer_alike(
    full_store: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIER_STORE", str(full_store))
    monkeypatch.setenv("TIER_DEMO_STORE", str(full_store / "none"))  # not what ships
    st.cache_data.clear()
    made = summary.attacks(Store(full_store), preset, explainers=list(figures.EXPLAINERS))
    view = attacking.View(preset, "gradient", {name: preset.run(name) for name in ("none", "tier_reg", "tier_full")})
    for model in view.models:
        assert battery.explainer(view, model) == made[model]["battery"]["agp"]["explainer"]


def test_the_features_are_those_of_the_shadow_chosen(show: Show, full_store: Path, preset: Preset) -> None:
    for shadow, model, who in (
        ("Undefended shadow", "none", "transfer"),
        ("TIER Full shadow", "tier_full", "adaptive"),
    ):
        test = show(view="What it looks at", shadow=shadow)
        table = attack(full_store, preset.run(model), who).frame("features.parquet")
        kept = table[table["level"].notna() & table["kept"]]
        # the confidence before any removal begins both orders, and is one feature
        twice = int((kept["level"] == 0).sum() == 2)
        assert f"kept {len(kept) - twice} of {len(table) - 3} trajectory features" in texts(test)
        assert len(charts(test)) == 2
        lines = [caption.value for caption in test.caption if "filter: Welch" in caption.value]
        # only the strength of the model that the shadow is like
        assert len(lines) == 2 and all(("lambda:" in line) == (model != "none") for line in lines)


def test_no_feature_kept_is_said() -> None:
    table = pd.DataFrame({"level": [0.0, 0.1], "kept": False, "order": "morf", "t": 0.1})
    assert "kept none of 2" in attack_words.kept_features(table)
    worth = pd.DataFrame({"importance": [0.02, -0.01], "clear": False})
    assert "costs the attack nothing clear" in attack_words.importance(worth)


def test_only_features_that_are_clearly_worth_something_are_named() -> None:
    rows = [
        ("confidence", None, 0.0, 0.09, True),
        ("lerf_2", "lerf", 0.2, 0.02, True),
        ("loss", None, np.nan, 0.01, False),
    ]
    worth = pd.DataFrame(rows, columns=["feature", "order", "level", "importance", "clear"])
    said = attack_words.importance(worth)
    assert "Confidence, nothing removed (9.0), LeRF, 20 % removed (2.0)." in said and "Loss" not in said
    assert said.endswith("Confidence, nothing removed contains no explanation.")


def test_the_untouched_confidence_has_one_name_whatever_the_order() -> None:
    for order, feature in ((None, "confidence"), ("morf", "morf_0"), ("lerf", "lerf_0")):
        assert attack_words.feature({"feature": feature, "order": order, "level": 0.0}) == "Confidence, nothing removed"


def test_every_attack_is_ranked_with_agp_among_them(show: Show, full_store: Path, preset: Preset) -> None:
    said = texts(show(view="Other attacks", metric="AUC"))
    found = experiment.find(Store(full_store), "battery", preset.run("tier_full"))
    assert found is not None
    auc = {name: found.metrics[name]["auc"] for name in synthetic.BATTERY}
    own = {
        name: attack(full_store, preset.run("tier_full").set({"explain.name": name}), "adaptive").metrics
        for name in figures.EXPLAINERS
    }
    seen = max(own, key=lambda name: own[name]["attack_test"]["auc"])  # chosen without a look at the target
    assert seen != "gradient"
    auc["agp"] = own[seen]["target"]["auc"]
    best = max(auc, key=lambda name: auc[name])
    assert f"{figures.ATTACKS[best]} leads (AUC: {auc[best]:.3f}" in said
    place = sorted(auc, key=lambda name: -auc[name]).index("agp") + 1
    assert f"the explanation attack ({figures.EXPLAINERS[seen]}) is number {place} of 12" in said
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


def test_classes_of_the_explanation_attack_are_those_of_its_scores(
    show: Show, full_store: Path, preset: Preset
) -> None:
    test = show(view="Other attacks", of="TIER Full", attack="Explanations (AGP)")
    table = test.dataframe[-1].value
    one = preset.run("tier_full")
    made = {
        name: attack(full_store, one.set({"explain.name": name}), "adaptive").metrics for name in figures.EXPLAINERS
    }
    seen = max(made, key=lambda name: made[name]["attack_test"]["auc"])
    result = attack(full_store, one.set({"explain.name": seen}), "adaptive")
    rows = tables.class_leaks(target(result), result.metrics["target"]["threshold"])
    assert table["value"].tolist() == rows["value"].head(8).tolist()
    assert "By the attack Explanations (AGP)" in texts(test)


def test_a_tenth_without_errors_has_an_interval_that_holds() -> None:
    frame = pd.DataFrame({"member": np.arange(40) < 20, "exposure": -np.arange(40.0) % 4})
    frame = frame.assign(gap=np.where(frame["member"], 1.0, -1.0))
    leaf = metrics.vulnerable_decile(frame["gap"], frame["member"], frame["exposure"], 0.0)
    few = tables.exposed(frame).rename(columns={"gap": "score"})
    made = tables.attack_figure(tables.exact(leaf, few), "balanced_accuracy")
    assert leaf["interval"] == [1.0, 1.0] and made["low"] < 0.9


def test_image_counts_are_those_of_each_model() -> None:
    same = {("gap", "none"): {"members": 10, "nonmembers": 9}, ("gap", "tier_full"): {"members": 10, "nonmembers": 9}}
    assert battery._images(same) == "10 members and 9 non-members"
    other = same | {("gap", "tier_full"): {"members": 12, "nonmembers": 7}}
    assert battery._images(other) == "10 + 9 (Undefended), 12 + 7 (TIER Full)"


def test_the_other_direction_is_told_where_it_is_stored() -> None:
    def script() -> None:
        from dashboard import battery as sceptics
        from tier import metrics as merits

        turned = merits.report([1, 2, 3, 4], [0, 1, 1, 2], 0.5)
        sceptics._opposite({"none": {"attribution_l1": {"opposite": turned}, "gap": {}, "canaries": {}}}, "auc")

    (caption,) = AppTest.from_function(script).run().caption
    assert caption.value.startswith("Undefended, taken the other way round: Map L1 0.")


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
    assert "split.canaries=100" in "".join(str(code.value) for code in test.code)
    root = tmp_path / "canaries"
    shutil.copytree(full_store, root)
    synthetic.add_battery(Store(root), preset.run("none").set({"split.canaries": demo.CANARIES}))
    test = show(root, view="Other attacks")
    assert len(charts(test)) == 3
    assert "images: 100 members and 100 non-members" in texts(test)
    assert not [code for code in test.code if "canaries" in str(code.value)]


# ---- the threshold


def test_the_slider_begins_at_the_transferred_threshold_and_counts_follow_it(
    show: Show, full_store: Path, preset: Preset
) -> None:
    result = attack(full_store, preset.run("tier_full"), "adaptive")
    frame, leaf = target(result), result.metrics["target"]
    test = show(view="Threshold", on="TIER Full, adaptive")
    assert labels(test)[2] == f"{100 * leaf['balanced_accuracy']:.1f} %"
    slider = test.select_slider(key="threshold")
    at = next(value for value in tables.stops(frame, leaf["threshold"]) if value > 1.0)
    slider.set_value(at).run()
    whole(test)
    above = frame[frame["score"] > at]["member"]
    found, alarms = int(above.sum()), int((~above).sum())
    members, others = leaf["members"], leaf["nonmembers"]
    assert f"{found} of {members} members found, {alarms} of {others} non-members wrongly" in texts(test)
    assert labels(test)[:2] == [f"{100 * found / members:.1f} %", f"{100 * alarms / others:.1f} %"]
    assert f"Of 50 members {round(50 * found / members)} are found" in charts(test)[0].alt  # type: ignore[attr-defined]
    next(button for button in test.button if "Transferred" in button.label).click().run()
    assert labels(test)[2] == f"{100 * leaf['balanced_accuracy']:.1f} %"
    next(button for button in test.button if "Calibrated" in button.label).click().run()
    best = tables.confusion(frame, tables.calibrated(frame))["balanced_accuracy"]
    assert labels(test)[2] == f"{100 * best:.1f} %"


def test_slider_button_and_settings_name_one_value(
    show: Show, full_store: Path, preset: Preset, tmp_path: Path
) -> None:
    root = tmp_path / "exact"
    shutil.copytree(full_store, root)
    shutil.rmtree(root / "attack")
    made = synthetic.attack_leaf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "attack_leaf", lambda scores, threshold=0.0, **more: made(scores, -0.0685, **more))
        synthetic.add_attack(Store(root), preset.run("none"))
    test = show(root, view="Threshold")
    assert test.select_slider(key="threshold").value == -0.07
    assert [button.label for button in test.button if "Transferred" in button.label] == ["Transferred: -0.07"]
    assert "threshold: -0.07 (transferred -0.07)" in texts(test)
    result = attack(root, preset.run("none"))
    exact = tables.confusion(target(result), -0.0685)  # the stop stands for the threshold itself
    assert labels(test)[0] == f"{100 * exact['tpr']:.1f} %"


def test_the_slider_reaches_every_score(show: Show, full_store: Path, preset: Preset, tmp_path: Path) -> None:
    root = tmp_path / "far"
    shutil.copytree(full_store, root)
    shutil.rmtree(root / "attack")
    made = synthetic.attack_scores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "attack_scores", lambda d, seed: made(d, seed).eval("score = 10 * score - 20"))
        synthetic.add_attack(Store(root), preset.run("none"))
    options = [float(text) for text in show(root, view="Threshold").select_slider(key="threshold").options]
    scores = target(attack(root, preset.run("none")))["score"]
    assert options[0] == round(scores.min(), 2) < -30 and options[-1] >= round(scores.max(), 2)


def test_another_attack_begins_at_its_own_threshold_unless_the_slider_was_moved(
    show: Show, full_store: Path, preset: Preset, tmp_path: Path
) -> None:
    root = tmp_path / "other"
    shutil.copytree(full_store, root)
    made = synthetic.attack_leaf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "attack_leaf", lambda scores, threshold=0.0, **more: made(scores, 0.31, **more))
        shutil.rmtree(root / "attack" / attack(root, preset.run("tier_full"), "adaptive").key)
        synthetic.add_attack(Store(root), attacking.attacked(preset.run("tier_full"), "adaptive"))
    test = show(root, view="Threshold")
    slider = test.select_slider(key="threshold")
    assert slider.value == 0.05
    test.segmented_control(key="on").set_value("tier_full adaptive").run()
    assert test.select_slider(key="threshold").value == 0.31
    options = [float(text) for text in test.select_slider(key="threshold").options]
    test.select_slider(key="threshold").set_value(options[20]).run()
    test.segmented_control(key="on").set_value("none transfer").run()
    nearest = [float(text) for text in test.select_slider(key="threshold").options]
    assert test.select_slider(key="threshold").value == min(nearest, key=lambda value: abs(value - options[20]))


def test_a_link_reopens_the_threshold(show: Show, full_store: Path, preset: Preset) -> None:
    at = tables.stops(target(attack(full_store, preset.run("none"))))[30]
    assert show(view="Threshold", threshold=f"{at:g}").select_slider(key="threshold").value == at


# ---- one image, for the page Sample


def sampled(preset: Preset, rows: list[int]) -> AppTest:
    """The part that the page Sample shows of some images."""

    def script(rows: list[int]) -> None:
        from dashboard import attacking as attacks
        from dashboard import loaders as stored
        from tier import presets as named

        chosen = stored.pinned(named.get("signs"))
        attacks.show_reasons(chosen, {name: chosen.run(name) for name in ("none", "tier_full")}, rows[0], 17)

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
        score, threshold = frame.loc[frame["index"] == row, "score"].iloc[0], result.metrics["target"]["threshold"]
        assert attack_words.verdict(score, threshold) in texts(test)
        # of how many the same is said
        said = (frame["score"] > threshold) == (score > threshold)
        called = [f"{round(100 * said[frame['member'] == kind].mean())} of 100" for kind in (True, False)]
        assert f"This attacker calls {called[0]} members and {called[1]} non-members '" in texts(test)
        near, count = tables.alike(frame, score, row) or (0, 0)
        assert f"Of the {count} images scored most like it, {near} are members" in texts(test)
    first = charts(test)[0].alt  # type: ignore[attr-defined]
    assert re.search(r"Features that moved the score most: .*removed \([+-]\d", first)
    (line,) = [caption.value for caption in test.caption if "attacker: transfer" in caption.value]
    assert "image: 17" in line and "alpha: 0.1 (Undefended), 0.1 (TIER Full)" in line
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


def test_a_preset_without_attacks_says_what_to_run_and_what_it_costs(
    show: Show, full_store: Path, preset: Preset, tmp_path: Path
) -> None:
    root = tmp_path / "none"
    shutil.copytree(full_store, root)
    shutil.rmtree(root / "attack")
    shutil.rmtree(root / "battery")
    said = texts(test := show(root))
    assert [code.value for code in test.code] == ["python -m tier attack signs"]
    assert "No attack with Gradient maps" in said and "In brackets" not in said and "is not stored yet" not in said
    # an undefended shadow, which both attackers of TIER Full's can use once it is there, and one with the defense
    took = {name: loaders.metrics(preset.run(name)) or {} for name in ("none", "tier_full")}
    seconds = sum(of["seconds_per_epoch"] * preset.experiment.train.epochs for of in took.values())
    assert loaders.has_weights(preset.run("none")) and loaders.has_weights(preset.run("tier_full"))
    assert f"2 models are to be trained first, about {components.duration(seconds)} in all" in said


def test_a_run_without_weights_is_part_of_the_cost(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    one = attacking.attacked(preset.run("tier_full"), "adaptive")
    monkeypatch.setattr(loaders, "has_weights", lambda one: False)
    monkeypatch.setattr(loaders, "metrics", lambda one: {"seconds_per_epoch": 60.0})
    said = attacking.cost(preset, {"a": one, "b": one}, attacking._models_of)
    assert said.startswith(f"2 models are to be trained first, about {2 * one.train.epochs} min in all")
    monkeypatch.setattr(loaders, "has_weights", lambda one: True)
    assert "are stored" in attacking.cost(preset, {"a": one}, attacking._models_of)


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
