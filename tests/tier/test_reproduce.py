"""Paper against here: verdicts, runs, cells and files."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.tier.test_paper import value
from tier import demo, experiment, paper, presets, reproduce
from tier.cli import app
from tier.paper import Place, Printed
from tier.reproduce import verdicts
from tier.reproduce.ours import Measured
from tier.store import Store

PLACE = Place("IV", "gtsrb", "test_top1", "tier_full")


def verdict(printed: float, ours: Measured, start: float | None = None, our_start: float | None = None) -> str:
    from_ = None if start is None else Printed(PLACE, start, 0.005)
    return verdicts.verdict(Printed(PLACE, printed, 0.005), ours, from_, our_start)


@pytest.mark.parametrize(
    ("printed", "ours", "start", "our_start", "expected"),
    [
        (0.74, Measured(), None, None, "not computed"),
        (0.74, Measured(0.75, (0.73, 0.77)), 0.9, 0.9, "agrees"),
        (0.74, Measured(0.75, (0.744, 0.77)), None, None, "agrees"),  # 0.744 rounds to 0.74
        (0.74, Measured(0.75, (0.746, 0.77)), None, None, "differs"),
        (0.74, Measured(0.742), None, None, "agrees"),  # without an interval: what rounds to it
        (0.74, Measured(0.60, (0.58, 0.62)), 0.80, 0.80, "same direction"),
        (0.74, Measured(0.90, (0.88, 0.92)), 0.80, 0.80, "contradicts"),
        (0.74, Measured(0.80, (0.78, 0.82)), 0.90, 0.79, "unclear"),
        (0.74, Measured(0.60, (0.58, 0.62)), 0.745, 0.80, "contradicts"),  # the paper's did not move
        (0.74, Measured(0.80, (0.78, 0.82)), 0.74, 0.79, "differs"),  # neither moved
        (0.74, Measured(0.60, (0.58, 0.62)), 0.80, None, "differs"),  # from where ours moved is not stored
    ],
)
def test_verdicts(printed: float, ours: Measured, start: float | None, our_start: float | None, expected: str) -> None:
    assert verdict(printed, ours, start, our_start) == expected
    assert expected in reproduce.VERDICTS


def test_from_where_numbers_move() -> None:
    start = verdicts.start
    assert start(PLACE) == Place("IV", "gtsrb", "test_top1", "none")
    assert start(Place("IV", "gtsrb", "test_top1", "none")) is None
    assert start(Place("V", "gtsrb", "balanced_accuracy", "none", "lime")) == 0.5
    assert start(Place("V", "gtsrb", "balanced_accuracy", "memguard", "lime")) == Place(
        "V", "gtsrb", "balanced_accuracy", "none", "lime"
    )
    assert start(Place("VIII", "gtsrb", "test_top1", "tier_full", lam=7.0, beta=0.3)) == Place(
        "VIII", "gtsrb", "test_top1", "tier_full", lam=0.0, beta=0.3
    )
    assert start(Place("IX", "gtsrb", "audit_accuracy", "tier_reg", lam=7.0, beta=0.0)) == 0.5
    assert start(Place("I", "cifar100", "kl_mean_member", "none", level=0.1)) == Place(
        "I", "cifar100", "kl_mean_nonmember", "none", level=0.1
    )


def test_every_number_moves_from_one_that_the_paper_prints() -> None:
    printed = {number.place for number in paper.printed()}
    starts = [verdicts.start(place) for place in printed]
    assert all(start in printed for start in starts if isinstance(start, Place))


@pytest.mark.parametrize("dataset", reproduce.PROTOCOLS)
def test_runs_answer_to_every_number(dataset: str) -> None:
    of = reproduce.protocol(dataset)
    by_stage: dict[str, set[str]] = {}
    for _, stage, e in reproduce.jobs(of):
        by_stage.setdefault(stage, set()).add(experiment.key(stage, e))
    main, sweeps = presets.get(of.main), presets.get(of.sweeps)
    for place in (number.place for number in paper.of(dataset)):
        if place.table in ("I", "III", "IV"):
            assert experiment.key("report", main.run(str(place.defense))) in by_stage["report"]
        elif place.table in ("VIII", "IX"):
            assert place.defense is not None and place.lam is not None and place.beta is not None
            assert experiment.key("report", sweeps.point(place.defense, place.lam, place.beta)) in by_stage["report"]
        elif place.table != "II":
            view = main.run(str(place.defense)).set({"explain.name": place.explainer})
            stage = {"V": "attack", "VI": "quality", "VII": "fidelity"}[place.table]
            wanted = view.set({"attack.shadow": "same"}) if stage == "attack" else view
            assert experiment.key(stage, wanted) in by_stage[stage]


def test_the_protocol_is_the_papers() -> None:
    e = presets.get("gtsrb_paper").run("tier_full")
    assert (e.train.epochs, e.train.batch_size, e.defense.tier.warmup) == (100, 128, 5)
    assert (e.defense.tier.lambda_, e.defense.tier.beta) == (7.0, 0.3)
    assert value(table="II", dataset="gtsrb", quantity="target_train") == e.split.target_train


def test_cells_say_what_is_not_there(tmp_path: Path) -> None:
    found = reproduce.cells(Store(str(tmp_path)), reproduce.protocol("gtsrb"))
    assert len(found) == len(paper.of("gtsrb"))
    assert {cell.verdict for cell in found} == {"not computed"}
    assert all(cell.ours.refused for cell in found)
    assert reproduce.counts(found)["not computed"] == len(found)


def test_cells_are_the_stored_figures() -> None:
    store = demo.open_store(None)
    by_place = {cell.number.place: cell for cell in reproduce.cells(store, reproduce.protocol("gtsrb"), ["VIII"])}
    cell = by_place[Place("VIII", "gtsrb", "audit_auc", "tier_full", lam=7.0, beta=0.3)]
    report = experiment.find(store, "report", presets.get("gtsrb").run("tier_full"))
    assert report is not None
    assert cell.ours.value == report.metrics["audit_auc"]
    assert cell.ours.interval is not None
    assert cell.ours.interval[0] < cell.ours.value < cell.ours.interval[1]
    assert cell.difference == pytest.approx(abs(report.metrics["audit_auc"] - 0.52))
    assert "40 epochs" in cell.conditions


def test_files_hold_what_the_cells_say(tmp_path: Path) -> None:
    store, of = demo.open_store(None), reproduce.protocol("gtsrb")
    found = reproduce.cells(store, of, ["VIII"])
    written = {path.name for path in reproduce.write(tmp_path, store, of, found)}
    assert {"cells.csv", "tableVIII.csv", "tableVIII.tex"} <= written
    lines = list(csv.DictReader((tmp_path / "tableVIII.csv").read_text().splitlines()))
    assert len(lines) == 5
    (seven,) = [line for line in lines if float(line["lambda"]) == 7]
    assert float(seven["audit_auc paper"]) == 0.52
    assert seven["audit_auc verdict"] in reproduce.VERDICTS
    text = (tmp_path / "tableVIII.tex").read_text()
    assert r"\toprule" in text
    assert r"audit\_auc" in text
    assert len(list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))) == 20


def test_the_command_prints_every_cell() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--dataset", "gtsrb", "--show", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert len(told["cells"]) == len(paper.of("gtsrb"))
    assert sum(told["counts"].values()) == len(told["cells"])
    for cell in told["cells"]:
        assert {"table", "dataset", "defense", "explainer", "quantity", "paper", "ours", "interval", "verdict"} <= set(
            cell
        )
        assert (cell["ours"] is None) == (cell["refused"] is not None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "mnist"], "'mnist' is not reproduced here; choose one of gtsrb"),
        (["--table", "X"], "no Table 'X'"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--show", *arguments])
    assert result.exit_code != 0
    assert said in str(result.exception)


# ---- what the paper leaves open


def test_each_choice_changes_only_what_it_says() -> None:
    of = reproduce.protocol("gtsrb")
    preset = presets.get(of.sweeps)
    for (label, stage, e), (choice, defense) in zip(
        reproduce.alternative_jobs(of), [(c, d) for c in reproduce.CHOICES for d in c.defenses], strict=True
    ):
        assert stage == "report"
        assert label == f"{choice.name}, {defense}"
        assert e == preset.run(defense, preset.seeds[0]).set(choice.settings)
        plain = preset.run(defense, preset.seeds[0])
        assert bool(choice.settings) == (experiment.key("train", e) != experiment.key("train", plain))


def test_alternatives_are_the_stored_figures() -> None:
    table = reproduce.alternatives(demo.open_store(None), reproduce.protocol("gtsrb"))
    row = table[(table["choice"] == "split by track") & (table["defense"] == "tier_full")].iloc[0]
    report = experiment.find(demo.open_store(None), "report", presets.get("gtsrb_tracks").run("tier_full"))
    assert report is not None
    assert row["test_accuracy"] == report.metrics["test_accuracy"]
    assert row["audit_auc_low"] < row["audit_auc"] < row["audit_auc_high"]
    lines = reproduce.alternative_rows(table)
    assert len(lines) == 1 + len(table)
    assert any(line[0] == "split by track" and line[1] == "tier_full" and "[" in line[2] for line in lines)


# ---- what ships


def test_published_numbers_answer_without_their_results(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    lines = list(reproduce.publish(shipped, target))
    assert any(line.endswith("numbers of gtsrb") for line in lines)
    assert list(reproduce.publish(shipped, target)) == []  # nothing is written again
    assert [result.stage for result in target.ls()] == ["reproduction"] * len(target.ls())
    for whole, told in zip(reproduce.cells(shipped, of), reproduce.cells(target, of), strict=True):
        assert told.row() == whole.row()
    pd.testing.assert_frame_equal(reproduce.alternatives(target, of), reproduce.alternatives(shipped, of))


def test_a_number_is_kept_when_its_results_are_gone(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    list(reproduce.publish(shipped, target))
    assert list(reproduce.publish(Store(str(tmp_path / "empty")), target)) == []
    assert reproduce.counts(reproduce.cells(target, of)) == reproduce.counts(reproduce.cells(shipped, of))


def test_a_number_of_results_that_would_differ_today_does_not_answer(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    list(reproduce.publish(shipped, target))
    stage, key = reproduce.place_of(of)
    found = target.find(stage, key)
    assert found is not None
    metrics = json.loads(json.dumps(found.metrics))
    for number in metrics["numbers"].values():
        number["sources"][0][1] = "0" * 64
    for row in metrics["alternatives"]:
        row["key"] = "0" * 64
    target.discard(stage, key)
    target.write(stage, key, {}, {"metrics": metrics})
    assert {cell.verdict for cell in reproduce.cells(target, of)} == {"not computed"}
    assert reproduce.alternatives(target, of)["test_accuracy"].isna().all()
