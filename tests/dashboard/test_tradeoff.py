"""The Trade-off page: all runs in one plane, one of them in figures, equal accuracy, time, lambda by epochs."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import loaders, tradeoff, words
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tier import experiment, figures, presets, tables
from tier.presets import Preset
from tier.store import Store


@pytest.fixture(scope="module")
def compared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    synthetic.fill(Store(root), presets.get("signs"))
    synthetic.add_rivals(Store(root), presets.get("signs"))
    return root


def plane(test: AppTest) -> dict[str, Any]:
    """The first chart's traces by name; those of other settings under the same name come first."""
    return {trace["name"]: trace for trace in json.loads(charts(test)[0].spec)["data"]}


def numbers(values: Any) -> list[float]:
    """A trace's values, which Plotly sends as a list, or as a type and base64."""
    if isinstance(values, dict):
        values = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()
    return list(values)


def drawn(test: AppTest) -> set[str]:
    """The names of all points in the plane."""
    found = set()
    for trace in json.loads(charts(test)[0].spec)["data"]:
        found |= {row[0] for row in trace.get("customdata", [])}
    return found


def test_every_stored_run_and_checkpoint_is_in_the_plane(open_page: Open, compared_store: Path, preset: Preset) -> None:
    test = open_page("tradeoff", compared_store)
    assert not test.exception
    held = {result.key for result in Store(compared_store).ls("report")}
    wanted = {
        experiment.key("report", one): one
        for one in [
            *(preset.run(defense, seed) for defense in preset.compared for seed in preset.seeds),
            *(one for _, _, one in preset.grid("tier_full")),
            *(one for _, one in preset.sweep("relaxloss", preset.strengths.get("relaxloss"))),
        ]
        if experiment.key("report", one) in held
    }
    names = {tables.describe(tables.run(key, one, synthetic.metrics(one)["report"])) for key, one in wanted.items()}
    checkpoints = {text for text in drawn(test) if "stopped after" in text}
    assert drawn(test) - checkpoints == names
    assert len(checkpoints) == 20  # ten of each path
    traces = plane(test)
    lengths = {"TIER Full over lambda, beta 0.3": 7, "TIER Full over beta, lambda 3": 5, "RelaxLoss over alpha": 3}
    assert {name: len(numbers(traces[name]["x"])) for name in lengths} == lengths


def test_every_defense_has_a_label_a_sentence_and_a_marker(preset: Preset) -> None:
    for defense in preset.compared:
        assert tables.NAMES[defense.name] == figures.STYLES[defense.name].label
        assert len(words.DEFENSES[defense.name]) > 30


def test_the_best_attack_replaces_the_audit_where_it_is_stored(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store, leak="Best attack, AUC")
    shown = drawn(test)
    assert len(shown) == 6  # four defenses of the preset, two rivals
    assert all("seed 0" in text for text in shown)
    assert "By the best attack on each (AUC)" in charts(test)[0].alt
    assert "python -m tier attack signs --defense dpsgd_eps100" in "".join(str(code.value) for code in test.code)
    assert "of the attack with the highest AUC" in texts(test)


def test_defenses_can_be_left_out(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store, shown=["TIER Full", "RelaxLoss"])
    assert {text.split(",")[0] for text in drawn(test)} == {"TIER Full", "RelaxLoss"}


def test_a_click_shows_the_run_and_its_address_reopens_it(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store)
    assert test.selectbox(key="run").value.startswith("TIER Full, lambda 3, beta 0.3")
    one = presets.get("signs").run("dpsgd_tuned", 1)
    wanted = tables.describe(tables.run("", one, {}))
    test.selectbox(key="run").set_value(wanted).run()
    said = texts(test)
    assert "Guarantees epsilon 4,321 at delta 1e-05, which in practice promises nothing" in said
    assert "GroupNorm" in said and "the seed is" in said
    assert f"ring: {wanted}" in texts(test)
    again = open_page("tradeoff", compared_store, run=wanted)
    assert again.selectbox(key="run").value == wanted
    assert not again.warning
    assert [link.proto.page for link in again.get("page_link")] == []  # no other page shows a rival


def test_clicked_points_are_copied_to_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    session: dict[str, Any] = {}
    monkeypatch.setattr(tradeoff.st, "session_state", session)
    tradeoff._clicked()  # nothing is selected
    session["chart_tradeoff"] = {"selection": {"points": [{"customdata": ["RelaxLoss, alpha 1", 0.5]}]}}
    tradeoff._clicked()
    assert session["run"] == "RelaxLoss, alpha 1"


def test_a_run_links_to_the_views_that_show_it(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store, run="TIER Full, lambda 7, beta 0.1, 30 epochs, seed 0")
    links = {link.proto.page: link.proto.query_string for link in test.get("page_link")}
    assert set(links) == {"trajectories", "attack", "train"}
    assert all("lambda=7" in query and "beta=0.1" in query for query in links.values())
    assert "models=Undefended&models=TIER+Full" in links["trajectories"]
    assert "variant=Full" in links["train"]
    plain = open_page("tradeoff", compared_store, run="Undefended, 30 epochs, seed 2")
    links = {link.proto.page: link.proto.query_string for link in plain.get("page_link")}
    assert set(links) == {"trajectories", "attack"}
    assert "seed=2" in links["trajectories"]


def test_a_checkpoint_can_be_looked_at(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store, run="Undefended, stopped after epoch 15, seed 0")
    assert "A checkpoint of a longer run" in texts(test)
    assert "ring: Undefended, stopped after epoch 15, seed 0" in texts(test)


def test_the_table_at_equal_accuracy_follows_the_accuracy(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store)
    first = test.dataframe[0].value
    assert "TIER Full" in set(first["defense"])
    several = first[~first["defense"].str.endswith(": one seed, not counted")]
    assert several["leak"].is_monotonic_increasing and (several["seeds"] > 1).all()
    assert (first.drop(several.index)["seeds"] == 1).all()
    assert "DP-SGD, paper" not in set(first["defense"])  # at 0.25 it is not as accurate as TIER Full
    low = open_page("tradeoff", compared_store, **{"as": "another accuracy", "accuracy": "0.2"})
    table = low.dataframe[0].value
    assert len(table) == 14  # all thirteen, and augmentation stopped early
    by_name = table.set_index("defense")
    assert by_name["epsilon"]["DP-SGD, paper"] == 100
    assert by_name["seeds"]["Augmentation, stopped early: one seed, not counted"] == 1  # its path has one seed
    assert by_name["clear"].drop(["TIER Full", "Augmentation, stopped early: one seed, not counted"]).notna().all()
    assert by_name["clear"].isna().sum() == 2  # TIER itself, and what rests on one seed
    assert "at a test accuracy of 0.20, to within 2 points, or more" in texts(low)


def test_without_tier_full_the_others_are_held_against_reg_only(open_page: Open, shipped_store: Path) -> None:
    test = open_page("tradeoff", shipped_store, **{"as": "another accuracy", "accuracy": "0.64"})
    table = test.dataframe[0].value.set_index("defense")
    assert "TIER Full" not in table.index
    assert len(table) > 1
    assert table["difference"].drop("TIER Reg-only").notna().all()
    assert "with TIER Reg-only" in texts(test)


def test_the_training_time_is_over_plain_training(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store)
    chart = charts(test)[1]
    assert "TIER Full costs most, 4.8 times" in chart.alt
    assert "DP-SGD, paper" in chart.spec
    assert "MemGuard" not in chart.spec  # it would be noise: the seconds are those of the plain model
    assert "MemGuard: its training is the plain model's" in texts(test)


def test_accuracy_over_epochs_has_a_line_for_each_lambda(open_page: Open, compared_store: Path) -> None:
    test = open_page("tradeoff", compared_store)
    chart = charts(test)[2]
    assert "n: 500 members and 500 non-members, the first of each, after every epoch" in texts(test)
    assert "Most accurate on new images in this one run is lambda 0" in texts(test)
    for lam in presets.get("signs").lambdas:
        assert f"lambda {lam:g}, non-members" in chart.spec
    few = open_page("tradeoff", compared_store, curves_of="Reg-only", curves_seed="1")
    assert "lambda 0, members" in charts(few)[2].spec  # undefended training
    assert "Not stored: lambda 5, 7, 9, 11, 15." in texts(few)
    assert (
        "python -m tier sweep signs --defense tier_reg --seed 1 --over lambda=5,7,9,11,15 --over beta=0.3"
        in "".join(str(code.value) for code in few.code)
    )


def test_the_rivals_of_each_tier_run_are_still_listed(open_page: Open, full_store: Path, preset: Preset) -> None:
    table = open_page("tradeoff", full_store).dataframe[-1].value
    assert {"advantage", "best", "worst", "clear", "leak", "audit", "gap", "best_gap"} <= set(table.columns)
    runs = [preset.run(name, preset.seeds[0]) for name in ("tier_full", "tier_reg")]
    runs += [one for lam, _, one in preset.grid("tier_full") if lam > 0]
    assert len(table) == len({experiment.key("report", one) for one in runs})  # each setting once
    assert sorted(table["seeds"].unique()) == [1, 3]
    assert table.loc[table["seeds"] == 1, "clear"].isin(["unknown"]).all()


def test_the_tilts_of_the_comparison_are_told(open_page: Open, full_store: Path) -> None:
    said = texts(open_page("tradeoff", full_store))
    assert "audit: 5-fold cross-fitted" in said
    assert "The checkpoints lie in the middle of one learning-rate cycle" in said
    assert "The frontier, the least mean leak at each accuracy, is held by" in said
    assert "the best of many of them is the luckiest" in said
    assert "seeds: 3 (of 4 settings), 1 (of " in said
    assert "corrected for the number of rows (Holm)" in said


def test_both_sentences_above_the_plane_are_of_what_it_shows(open_page: Open, compared_store: Path) -> None:
    every = charts(open_page("tradeoff", compared_store))[0].alt
    few = charts(open_page("tradeoff", compared_store, shown=["TIER Full", "Label smoothing"]))[0].alt
    assert "1 leaks less" not in few
    assert few != every and "finished setting" in few
    none = charts(open_page("tradeoff", compared_store, shown=["RelaxLoss"]))[0].alt
    assert none.startswith("No TIER run is stored and shown.")


def test_who_trains_on_augmented_images_is_told_of_those_shown(open_page: Open, compared_store: Path) -> None:
    said = texts(open_page("tradeoff", compared_store))
    assert "Augmentation, TIER Full and DP-SGD, tuned train on augmented images" in said
    said = texts(open_page("tradeoff", compared_store, shown=["RelaxLoss"]))
    assert "None of these defenses trains on augmented images." in said


def test_what_memguard_did_to_the_answers_is_told_of_its_run(
    open_page: Open, compared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = presets.get("signs").run("memguard", 0)
    plain = pd.DataFrame({"index": [1, 2, 3, 4], "log_confidence": np.log([0.9, 0.8, 0.5, 0.4])})
    served = plain.assign(log_confidence=np.log([0.9, 0.6, 0.5, 0.2]))
    frame = loaders.frame

    def samples(stage: str, e: Any, name: str, columns: Any = None) -> pd.DataFrame | None:
        if name != "samples.parquet" or stage != "train":
            return frame(stage, e, name, columns)
        return served if e.defense.name == "memguard" else plain

    monkeypatch.setattr(loaders, "frame", samples)
    said = texts(open_page("tradeoff", compared_store, run=tables.describe(tables.run("", one, {}))))
    assert "It changed 50 of 100 answers; confidence in the true class moved by 0.10 on average" in said


def test_an_empty_store_says_how_to_compute_it(open_page: Open, empty_store: Path) -> None:
    test = open_page("tradeoff", empty_store)
    said = "".join(str(code.value) for code in test.code)
    assert "python -m tier run signs" in said
    assert "python -m tier sweep signs" in said
