"""Paper against here: verdicts, runs, cells and files."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scipy import optimize, stats
from typer.testing import CliRunner

from tests.tier.test_paper import value
from tier import cli, demo, experiment, paper, presets, reproduce, summary
from tier.cli import app
from tier.paper import Place, Printed
from tier.reproduce import forms, ours, verdicts
from tier.reproduce.ours import Measured, Reader
from tier.store import Store

PLACE = Place("IV", "gtsrb", "test_top1", "tier_full")


def verdict(printed: float, ours: Measured, start: float | None = None, our_start: Measured | None = None) -> str:
    from_ = None if start is None else Printed(PLACE, start, 0.005)
    return verdicts.verdict(Printed(PLACE, printed, 0.005), ours, from_, our_start or Measured())


def around(value: float, half: float = 0.02) -> Measured:
    return Measured(value, (value - half, value + half))


@pytest.mark.parametrize(
    ("printed", "ours", "start", "our_start", "expected"),
    [
        (0.74, Measured(refused="not in this store"), None, None, "not computed"),
        (0.74, Measured(refused="a rate of 0.001 needs at least 1,000 non-members"), None, None, "refused"),
        (0.74, around(0.75), 0.9, Measured(0.9), "agrees"),
        (0.74, Measured(0.75, (0.744, 0.77)), None, None, "agrees"),  # 0.744 rounds to 0.74
        (0.74, Measured(0.75, (0.746, 0.77)), None, None, "differs"),
        (0.74, Measured(0.742), None, None, "agrees"),  # without an interval: what rounds to it
        (0.74, around(0.60), 0.80, around(0.80), "same direction"),
        (0.74, around(0.90), 0.80, Measured(0.80), "contradicts"),
        (0.74, around(0.90), 0.80, around(0.80), "contradicts"),
        (0.74, around(0.84, 0.1), 0.80, around(0.81), "agrees"),
        (0.74, around(0.84, 0.09), 0.80, around(0.81), "unclear"),  # the intervals overlap
        (0.74, around(0.84), 0.80, around(0.81), "does not move"),  # ours by -0.01 to 0.07
        (
            0.74,
            around(0.80),
            0.90,
            Measured(0.79),
            "does not move",
        ),  # ours moves by -0.01 to 0.03, the paper's by -0.16
        (0.74, around(0.80), 0.75, Measured(0.79), "differs"),  # 0.75 may be 0.745, as 0.74 may
        (0.74, around(0.80), 0.76, Measured(0.80), "unclear"),  # the paper's -0.02 is as ours may be
        (0.74, around(0.60), 0.745, around(0.80), "contradicts"),  # the paper's did not move
        (0.74, around(0.80), 0.74, around(0.79), "differs"),  # neither moved
        (0.74, around(0.60), 0.75, around(0.80), "contradicts"),  # both may be 0.745: the paper's did not move
        (0.74, Measured(0.76, (0.745, 0.78)), None, None, "agrees"),  # 0.745 rounds to 0.74
        (0.74, around(0.60), 0.80, None, "differs"),  # from where ours moved is not stored
    ],
)
def test_verdicts(
    printed: float, ours: Measured, start: float | None, our_start: Measured | None, expected: str
) -> None:
    assert verdict(printed, ours, start, our_start) == expected
    assert expected in reproduce.VERDICTS


@pytest.mark.parametrize(
    ("printed", "ours", "opposed", "expected"),
    [
        (1.1e-12, 3.95e-26, True, "contradicts"),
        (1.1e-12, 3.95e-26, False, "same direction"),
        (0.0023, 1.65e-7, True, "contradicts"),
        (0.0023, 0.0023, False, "same direction"),  # its size is the sample's
        (2.9e-6, 0.802, True, "unclear"),
        (0.3, 0.01, False, "contradicts"),
        (0.3, 0.3, False, "differs"),
    ],
)
def test_of_a_p_value_the_side_of_the_threshold_counts(
    printed: float, ours: float, opposed: bool, expected: str
) -> None:
    number = Printed(Place("I", "cifar100", "t_p_value", "none", level=0.1), printed, printed / 100)
    assert verdicts.verdict_of_p(number, Measured(ours), opposed) == expected
    assert verdicts.verdict_of_p(number, Measured(refused=Reader.absent), opposed) == "not computed"


def test_a_p_value_of_an_opposite_difference_contradicts() -> None:
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("cifar100"), ["I", "III"])
    by_place = {cell.number.place: cell for cell in found}
    told = [
        (cell, by_place[replace(p, quantity="t_statistic")])
        for p, cell in by_place.items()
        if p.quantity == "t_p_value"
    ]
    assert len(told) == 10
    for cell, t in told:
        assert cell.ours.value is not None
        assert t.ours.value is not None
        opposed = (t.number.value < 0) != (t.ours.value < 0)
        wanted = ("contradicts" if opposed else "same direction") if cell.ours.value <= 0.05 else "unclear"
        assert cell.verdict == wanted


@pytest.mark.parametrize(("t", "df"), [(-28.2, 36), (-7.5, 36), (0.3, 36), (4.0, 160)])
def test_the_interval_of_t_is_that_of_a_noncentral_t(t: float, df: float) -> None:
    """Against the quantiles of the distribution itself, at sizes of difference where its spread is not 1."""
    value, interval = ours._profile_value(pd.Series({"t": t, "t_df": df}), "t_statistic")
    assert value == t
    assert interval is not None

    def end(share: float) -> float:
        return float(optimize.brentq(lambda nc: stats.nct.cdf(t, df, nc) - share, t - 12, t + 12))

    assert interval == pytest.approx((end(0.975), end(0.025)), abs=0.06 * abs(t) + 0.05)


def test_t_is_told_at_the_papers_size_too() -> None:
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("cifar100"), ["I"])
    cell = next(cell for cell in found if cell.number.place.quantity == "t_statistic")
    assert cell.ours.value is not None
    ((value, _),) = [v for name, v in cell.ours.beside.items() if name.endswith("78 batches")]  # 10,000 images in 128s
    assert value == pytest.approx(cell.ours.value * (78 / 19) ** 0.5)  # 2,500 of them
    assert "19 in each group" in cell.conditions


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
    assert start(Place("IX", "gtsrb", "audit_accuracy", "tier_reg", lam=7.0, beta=0.0)) is None
    assert start(Place("IX", "gtsrb", "audit_accuracy", "tier_reg", lam=7.0, beta=0.5)) == Place(
        "IX", "gtsrb", "audit_accuracy", "tier_reg", lam=7.0, beta=0.0
    )
    for beta in (0.0, 0.5):
        assert start(Place("IX", "gtsrb", "audit_accuracy", "tier_full", lam=7.0, beta=beta)) == Place(
            "VIII", "gtsrb", "audit_accuracy", "tier_full", lam=0.0, beta=0.3
        )
    assert start(Place("VIII", "gtsrb", "audit_accuracy", "tier_full", lam=0.0, beta=0.3)) == 0.5
    assert start(Place("I", "cifar100", "kl_mean_member", "none", level=0.1)) == Place(
        "I", "cifar100", "kl_mean_nonmember", "none", level=0.1
    )


def test_tables_viii_and_ix_say_the_same_of_the_same_run() -> None:
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("gtsrb"), ["VIII", "IX"])
    by_place = {cell.number.place: cell for cell in found}
    same = [
        (cell, by_place[replace(place, table="IX")])
        for place, cell in by_place.items()
        if place.table == "VIII" and replace(place, table="IX") in by_place
    ]
    assert len(same) >= 3  # lambda 7, beta 0.3
    for one, other in same:
        assert one.ours.value == other.ours.value
        assert one.compared_with == other.compared_with == "lambda 0"


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
    assert reproduce.counts(found)["not computed"] == len(found) - 6  # Table II does not count


def test_a_tables_verdicts_are_the_same_alone() -> None:
    """Though what its numbers move from is in another table."""
    store, of = demo.open_store(None), reproduce.protocol("gtsrb")
    whole = [cell.row() for cell in reproduce.cells(store, of) if cell.number.place.table == "IX"]
    assert [cell.row() for cell in reproduce.cells(store, of, ["IX"])] == whole
    assert any(row["compared_with"] == "lambda 0" for row in whole)


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
    assert all(f"audit_auc {name}" in lines[0] for name in forms.WIDE)
    (seven,) = [line for line in lines if float(line["lambda"]) == 7]
    assert float(seven["audit_auc paper"]) == 0.52
    assert seven["audit_auc verdict"] in reproduce.VERDICTS
    text = (tmp_path / "tableVIII.tex").read_text()
    assert r"\toprule" in text
    assert r"audit\_auc" in text
    assert r"\label{tab:paper-viii}" in text
    assert len(list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))) == 20


def test_latex_says_what_a_cell_holds_and_what_its_marks_mean() -> None:
    number = Printed(Place("IV", "gtsrb", "audit_auc", "none"), 0.75, 0.005)
    cells = [
        reproduce.Cell(number, Measured(0.75, (0.7, 0.8)), "agrees", None, "net"),
        reproduce.Cell(
            replace(number, place=replace(PLACE, defense="tier_reg")), Measured(0.9), "same direction", None, "net"
        ),
        reproduce.Cell(replace(number, place=replace(PLACE, table="V")), Measured(0.9), "contradicts", None, "net"),
    ]
    text = reproduce.latex(cells, "IV")
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption{"))
    assert r"the paper's Table IV" in caption
    assert r"[95 \% interval]" in caption
    for name in ("agrees", "same direction"):
        assert reproduce.VERDICTS[name].meaning.replace("%", r"\%") in caption
    assert r"\textasciitilde{} another value" in caption
    assert reproduce.VERDICTS["contradicts"].meaning not in caption  # of another table
    assert not re.search(r"(?<!\\)[%&#_$]", caption)
    assert text.count("{") == text.count("}")


def test_the_command_prints_every_cell() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--dataset", "gtsrb", "--show", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert len(told["cells"]) == len(paper.of("gtsrb"))
    assert sum(told["counts"].values()) == sum(cell["table"] != "II" for cell in told["cells"])
    for cell in told["cells"]:
        assert {"table", "dataset", "defense", "explainer", "quantity", "paper", "ours", "interval", "verdict"} <= set(
            cell
        )
        assert (cell["ours"] is None) == (cell["refused"] is not None)


@pytest.mark.parametrize("arguments", [[], ["--markdown"], ["--table", "VIII"], ["--alternatives"]])
def test_the_command_prints_tables(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.out, "width", 400)
    result = CliRunner().invoke(app, ["reproduce", "--show", *arguments])
    assert result.exit_code == 0, result.output
    assert "0.732 [0.698, 0.767]" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "mnist"], "'mnist' is not reproduced here; choose one of gtsrb"),
        (["--table", "X"], "no Table 'X'"),
        (["--table", "I"], "Table I is not about gtsrb, but about cifar100"),
        (["--alternatives", "--table", "IV"], "leave --table, --seeds, --output and others of its kind out"),
        (["--profiles", "--seeds", "2"], "--profiles prints its own table"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", "--show", *arguments])
    assert result.exit_code != 0
    assert said in str(result.exception)


def test_what_stands_beside_has_rows_of_its_own() -> None:
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("gtsrb"), ["IV"])
    header, first, below, *_ = reproduce.in_paper_form(found, "IV")
    ((name, (value, _)),) = next(c for c in found if c.number.place.quantity == "test_top1").ours.beside.items()
    assert first[0] == "none"
    assert below[0] == f"- {name}"
    assert below[header.index("test_top1")].startswith(f"{value:.3g} [")
    wide = reproduce.wide(found, "IV")
    assert wide[f"test_top1 {name}"].iloc[0] == value
    assert wide["test_top1 difference"].iloc[0] == pytest.approx(
        abs(wide["test_top1 ours"] - wide["test_top1 paper"]).iloc[0]
    )


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


@pytest.mark.parametrize("arguments", [[], ["--markdown"], ["--json"]])
def test_profiles_are_those_stored(arguments: list[str]) -> None:
    store, preset = demo.open_store(None), presets.get("cifar100_paper")
    header, *lines = reproduce.profile_rows(reproduce.profiles(store, reproduce.protocol("cifar100")))
    found = experiment.find(store, "divergence", preset.run("tier_full"), ["profile.parquet"])
    assert found is not None
    table = found.frame("profile.parquet")
    row = table[(table["unit"] == "sample") & (table["level"] == 0.1)].iloc[0]
    (line,) = [line for line in lines if line[:3] == ["tier_full", "0.1", "sample"]]
    assert header[3:] == ["member", "nonmember", "t", "cohen_d"]
    assert line[3:] == [f"{row[n]:.3g}" for n in ("member_mean", "nonmember_mean", "t", "cohen_d")]
    result = CliRunner().invoke(app, ["reproduce", "--dataset", "cifar100", "--profiles", *arguments])
    assert result.exit_code == 0, result.output
    if arguments == ["--json"]:
        (told,) = [
            one for one in json.loads(result.stdout)["profiles"]
            if (one["defense"], one["removed"], one["unit"]) == ("tier_full", 0.1, "sample")
        ]  # fmt: skip
        assert (told["member"], told["t"], told["refused"]) == (row["member_mean"], row["t"], None)
    else:
        assert all(number in result.stdout for number in line[3:])


def test_a_profile_of_too_few_batches_says_why_it_has_no_t() -> None:
    told = reproduce.profiles(demo.open_store(None), reproduce.protocol("openforensics"))
    without = [row for row in told if row["t"] is None]
    assert without
    assert all(row["unit"] == "batch" and "too few batches" in row["refused"] for row in without)
    assert all(row["member"] > 0 for row in without)


def test_verdicts_are_counted_table_by_table() -> None:
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("gtsrb"))
    counted = reproduce.counts_by_table(found)
    assert list(counted) == ["IV", "V", "VI", "VII", "VIII", "IX"]  # II has settings and no findings
    whole = reproduce.counts(found)
    assert {name: sum(of[name] for of in counted.values()) for name in whole} == whole
    assert counted["VIII"]["contradicts"] == sum(
        cell.verdict == "contradicts" for cell in found if cell.number.place.table == "VIII"
    )


def test_refused_numbers_say_why() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--table", "V", "--show"])
    assert "! tpr_percent_at_0.1_percent_fpr: a rate of 0.001 needs at least 1,000 non-members" in result.stdout
    found = reproduce.cells(demo.open_store(None), reproduce.protocol("gtsrb"), ["V"])
    assert "needs at least 1,000 non-members" in reproduce.latex(found, "V")
    assert reproduce.refusals(found, "IV") == []


def test_the_command_that_computes_the_rest_asks_for_what_was_asked(tmp_path: Path) -> None:
    arguments = ["--dataset", "cifar10", "--table", "IV", "--table", "V", "--seeds", "2", "--store", str(tmp_path)]
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--show"])
    command = "tier reproduce --dataset cifar10 --table=IV --table=V --seeds=2 --store"
    assert f"{command} {tmp_path}" in result.stdout


# ---- what ships


def test_published_numbers_answer_without_their_results(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    lines = list(reproduce.publish(shipped, target))
    assert len(lines) == len(reproduce.PROTOCOLS)
    assert any(line.endswith("numbers of gtsrb") for line in lines)
    assert list(reproduce.publish(shipped, target, ["gtsrb"])) == []  # nothing is written again
    assert [result.stage for result in target.ls()] == ["reproduction"] * len(target.ls())
    for whole, told in zip(reproduce.cells(shipped, of), reproduce.cells(target, of), strict=True):
        assert told.row() == whole.row()
    pd.testing.assert_frame_equal(reproduce.alternatives(target, of), reproduce.alternatives(shipped, of))


def test_a_number_is_kept_when_its_results_are_gone(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    list(reproduce.publish(shipped, target, ["gtsrb"]))
    assert list(reproduce.publish(Store(str(tmp_path / "empty")), target, ["gtsrb"])) == []
    assert reproduce.counts(reproduce.cells(target, of)) == reproduce.counts(reproduce.cells(shipped, of))


def test_a_run_without_its_images_does_not_replace_its_published_interval(tmp_path: Path) -> None:
    """As the demo store holds a grid point: the report alone."""
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target, bare = Store(str(tmp_path / "published")), Store(str(tmp_path / "bare"))
    list(reproduce.publish(shipped, target, ["gtsrb"]))
    e = presets.get("gtsrb").run("tier_full")
    shipped.export("report", experiment.key("report", e), bare)
    place = Place("VIII", "gtsrb", "audit_auc", "tier_full", lam=7.0, beta=0.3)

    def cell(store: Store) -> reproduce.Cell:
        return next(cell for cell in reproduce.cells(store, of, ["VIII"]) if cell.number.place == place)

    assert cell(bare).ours.interval is None
    list(reproduce.publish(bare, target, ["gtsrb"]))
    assert cell(target).row() == cell(shipped).row()
    both = Store(str(tmp_path / "bare"), below=target)
    assert cell(both).ours.interval == cell(shipped).ours.interval
    table = reproduce.alternatives(both, of)
    assert table.loc[table["choice"] == "as in the tables", "audit_auc_low"].notna().all()


def test_what_stands_beside_goes_stale_too(tmp_path: Path) -> None:
    reader, main = Reader(Store(str(tmp_path)), reproduce.protocol("gtsrb"), None), presets.get("gtsrb_paper")
    both = [main.run(name) for name in ("none", "augmentation")]
    sources = reader.sources(Place("IV", "gtsrb", "test_top1", "none"))
    assert [key for _, key in sources] == [experiment.key("report", e) for e in both]
    sources = reader.sources(Place("V", "gtsrb", "balanced_accuracy", "none", "lime"))
    same = {"explain.name": "lime", "attack.shadow": "same"}
    assert [key for _, key in sources] == [experiment.key("attack", e.set(same)) for e in both]


# ---- which of our figures answers


def test_a_cell_of_table_v_is_attack_test_with_a_shadow_of_the_same_defense(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaf(value: float) -> dict[str, object]:
        return {"balanced_accuracy": value, "interval": [value - 0.1, value + 0.1], "tpr_at_0.001": value / 10,
                "tpr_interval_at_0.001": [0.0, value / 5], "refused": {}}  # fmt: skip

    views = {"attack_test": leaf(0.7), "adaptive": leaf(0.6), "transfer": leaf(0.5), "transfer_attack_test": leaf(0.4)}
    made = {name: {"explainers": {"lime": views}} for name in ("none", "tier_full", "augmentation")}
    monkeypatch.setattr(summary, "attacks", lambda *given, **named: made)
    reader = Reader(Store("memory://v"), reproduce.protocol("gtsrb"), None)
    told = reader.measured(Place("V", "gtsrb", "balanced_accuracy", "tier_full", "lime"))
    assert (told.value, told.interval) == (0.7, pytest.approx((0.6, 0.8)))
    assert told.beside == {"on the target, threshold transferred": (0.6, pytest.approx((0.5, 0.7)))}
    rate = reader.measured(Place("V", "gtsrb", "tpr_percent_at_0.1_percent_fpr", "tier_full", "lime"))
    assert (rate.value, rate.interval) == (pytest.approx(7.0), pytest.approx((0.0, 14.0)))
    none = reader.measured(Place("V", "gtsrb", "balanced_accuracy", "none", "lime"))
    assert none.beside["trained with augmentation"][0] == 0.7
    few = leaf(0.7) | {"tpr_at_0.001": None, "refused": {"tpr_at_0.001": "too few"}}
    made["tier_full"] = {"explainers": {"lime": {**views, "attack_test": few}}}
    refused = Reader(Store("memory://v"), reproduce.protocol("gtsrb"), None).measured(rate_place())
    assert (refused.value, refused.refused) == (None, "too few")


def rate_place() -> Place:
    return Place("V", "gtsrb", "tpr_percent_at_0.1_percent_fpr", "tier_full", "lime")


def test_cells_of_tables_vi_and_vii_stand_beside_their_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(mean: float, **controls: float) -> dict[str, object]:
        made: dict[str, object] = {"mean": mean, "interval": [mean - 0.1, mean + 0.1]}
        for name, mark in controls.items():
            made |= {name: mark, f"{name}_interval": [mark, mark]}
        return made

    entry = {"sufficiency": of(0.3, random=0.1, edges=0.2), "seeds": [0], "refused": {}}
    monkeypatch.setattr(summary, "quality", lambda *given, **named: {"none": {"lime": entry}})
    alike = {name: of(0.9, shuffled=0.8, second_seed=0.7) for name in ("ssim", "mse", "cosine")}
    alike |= {"cosine_unscaled": of(0.4), "seeds": [0], "refused": {}}
    monkeypatch.setattr(summary, "fidelity", lambda *given, **named: {"tier_full": {"shap": alike}})
    reader = Reader(Store("memory://vi"), reproduce.protocol("gtsrb"), None)
    told = reader.measured(Place("VI", "gtsrb", "sufficiency", "none", "lime"))
    assert (told.value, {name: mark for name, (mark, _) in told.beside.items()}) == (
        0.3, {"of noise": 0.1, "of the image's edges": 0.2}
    )  # fmt: skip
    told = reader.measured(Place("VII", "gtsrb", "cosine", "tier_full", "shap"))
    assert (told.value, {name: mark for name, (mark, _) in told.beside.items()}) == (
        0.9,
        {
            "of maps of different images": 0.8,
            "of two undefended models of different seeds": 0.7,
            "of the maps as they are, not scaled": 0.4,
        },
    )


def test_cells_of_tables_i_and_iii_are_means_of_batches(tmp_path: Path) -> None:
    store, main = Store(str(tmp_path)), presets.get("cifar100_paper")
    columns = ("member_mean", "member_low", "member_high", "nonmember_mean", "nonmember_low", "nonmember_high", "t",
               "t_p", "ks", "ks_p")  # fmt: skip
    rows = [
        {"unit": unit, "level": level, "t_df": 36.0, "member_n": 19,
         **{name: scale + i / 100 for i, name in enumerate(columns)}}
        for unit, scale in (("sample", 5.0), ("batch", 7.0)) for level in (0.1, 0.2)
    ]  # fmt: skip
    key = experiment.key("divergence", main.run("tier_full"))
    store.write("divergence", key, {"profile.parquet": pd.DataFrame(rows)}, {"metrics": {}})
    reader = Reader(store, reproduce.protocol("cifar100"), None)

    def told(quantity: str) -> Measured:
        return reader.measured(Place("III", "cifar100", quantity, "tier_full", level=0.1))

    assert (told("kl_mean_member").value, told("kl_mean_member").interval) == (7.0, (7.01, 7.02))
    assert told("kl_mean_nonmember").value == 7.03
    t, margin = told("t_statistic"), 1.96 * (1 + 7.06**2 / 72) ** 0.5
    assert (t.value, t.interval) == (7.06, pytest.approx((7.06 - margin, 7.06 + margin), abs=1e-3))
    assert [told(name).value for name in ("t_p_value", "ks_statistic", "ks_p_value")] == [7.07, 7.08, 7.09]
    assert reader.measured(Place("I", "cifar100", "t_statistic", "none", level=0.1)).refused == Reader.absent


def test_a_number_of_results_that_would_differ_today_does_not_answer(tmp_path: Path) -> None:
    shipped, of = demo.open_store(None), reproduce.protocol("gtsrb")
    target = Store(str(tmp_path / "published"))
    list(reproduce.publish(shipped, target, ["gtsrb"]))
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
