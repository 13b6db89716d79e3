"""The paper's figures from made-up results and cells, and the files that they are written to."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from tests.dashboard import synthetic
from tier import experiment, figures, paper, presets, reproduce
from tier.figures import of_paper
from tier.reproduce import Cell, files
from tier.reproduce.ours import QUALITY_CONTROLS, Measured
from tier.store import Store

CONTROLS = {QUALITY_CONTROLS["random"]: (0.0, (-0.01, 0.01)), QUALITY_CONTROLS["edges"]: (0.02, None)}


def table_vi(dataset: str, ours: Callable[[paper.Place], float | None]) -> list[Cell]:
    """The cells of Table VI with made-up numbers of ours."""
    made = []
    for number in paper.of(dataset, ["VI"]):
        value = ours(number.place)
        interval = None if value is None else (value - 0.02, value + 0.03)
        measured = Measured(value, interval, None, (0,), CONTROLS if value is not None else {})
        made.append(Cell(number, measured, "unclear" if value is not None else "not computed", None, "net, 3 epochs"))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The KL profiles of both models, on CIFAR-100 and on GTSRB."""
    store = Store(str(tmp_path / "store"))
    for dataset in ("cifar100", "gtsrb"):
        preset = presets.get(reproduce.protocol(dataset).main)
        for name in ("none", "tier_full"):
            synthetic.add(store, preset.run(name, preset.seeds[0]), ("divergence",))
    return store


def test_figures_2_and_4_show_the_means_that_the_paper_prints(store: Store) -> None:
    made = reproduce.charts(store, reproduce.protocol("cifar100"))
    assert list(made) == ["figure2", "figure4"]
    for name, table in (("figure2", "I"), ("figure4", "III")):
        printed = paper.of("cifar100", [table])
        assert len(made[name].data) == 6  # a band and a line of either group, and the paper's two
        for group, quantity in (("members", "kl_mean_member"), ("non-members", "kl_mean_nonmember")):
            (trace,) = [one for one in made[name].data if one.name == f"the paper, {group}"]
            known = {n.place.level: n.value for n in printed if n.place.quantity == quantity}
            assert dict(zip(trace.x, trace.y, strict=True)) == known
            assert trace.line.dash == "dot"
            assert trace.marker.symbol.endswith("-open")
            assert made[name].layout.yaxis.range[1] > max(trace.y)
        heading = of_paper.first_heading(made[name]).text
        assert f"the paper's Table {table}" in heading
    members, others = [one for one in made["figure2"].data if (one.name or "").startswith("the paper")]
    assert members.marker.symbol != others.marker.symbol


def test_a_data_set_without_printed_means_has_its_own_alone(store: Store) -> None:
    figure = reproduce.charts(store, reproduce.protocol("gtsrb"))["figure2"]
    assert len(figure.data) == 4
    assert not any("the paper" in (trace.name or "") for trace in figure.data)


def test_figure_5_is_table_vi(tmp_path: Path) -> None:
    def ours(place: paper.Place) -> float | None:
        return None if place.explainer == "shap" else 0.3 if place.defense == "none" else 0.1

    found = table_vi("cifar100", ours)
    (figure,) = reproduce.charts(Store(str(tmp_path)), reproduce.protocol("cifar100"), found).values()
    by_name: dict[str, list[go.Scatter]] = {}
    for trace in figure.data:
        by_name.setdefault(trace.name or "", []).append(trace)
    assert {name: len(traces) for name, traces in by_name.items() if name} == dict.fromkeys(
        ("Undefended", "TIER Full", "the paper, Undefended", "the paper, TIER Full", "Noise", "Edges"), 3
    )  # a panel for each column of the table
    for row, quantity in enumerate(("faithfulness_correlation", "faithfulness_estimate", "sufficiency")):
        for model in ("none", "tier_full"):
            cells = [c for c in found if (c.number.place.quantity, c.number.place.defense) == (quantity, model)]
            label = figures.style(model).label
            mine, theirs = by_name[label][row], by_name[f"the paper, {label}"][row]
            assert list(theirs.y) == [cell.number.value for cell in cells]
            assert theirs.marker.symbol == f"{figures.style(model).symbol}-open"
            known = [cell for cell in cells if cell.ours.value is not None]
            assert list(mine.y) == [cell.ours.value for cell in known]
            assert list(mine.error_y.array) == pytest.approx([0.03] * len(known))
            assert list(mine.error_y.arrayminus) == pytest.approx([0.02] * len(known))
            assert set(mine.x) < set(theirs.x)  # SHAP was not computed here
            low, high = figure.layout["yaxis" if row == 0 else f"yaxis{row + 1}"].range
            assert low < min([*mine.y, *theirs.y])
            assert high > max([*mine.y, *theirs.y])
            assert "customdata[5]" not in mine.hovertemplate  # how many images is not known
    assert "the paper's Table VI" in of_paper.first_heading(figure).text


def test_figure_5_is_read_from_the_store_where_no_cell_of_it_is_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cells(of: Store, protocol: reproduce.Protocol, tables: list[str]) -> list[Cell]:
        asked.append(tables)
        return table_vi(protocol.dataset, lambda place: 0.1)

    monkeypatch.setattr(files, "cells", cells)
    of = reproduce.protocol("gtsrb")
    assert "figure5" in reproduce.charts(store, of)
    assert "figure5" in reproduce.charts(store, of, reproduce.cells(store, of, ["IV"]))
    assert asked == [["VI"], ["VI"]]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    of = reproduce.protocol("cifar10")
    assert reproduce.charts(Store(str(tmp_path)), of, table_vi("cifar10", lambda place: None)) == {}


def test_tables_and_figures_are_written(store: Store, tmp_path: Path) -> None:
    found = table_vi("cifar100", lambda place: 0.2)
    folder = tmp_path / "written"
    written = list(reproduce.write(folder, store, reproduce.protocol("cifar100"), found))
    assert [path.name for path in written] == [
        "cells.csv", "tableVI.csv", "tableVI.tex", "figure2.html", "figure4.html", "figure5.html",
    ]  # fmt: skip
    assert all(path.stat().st_size for path in written)
    assert len(pd.read_csv(folder / "cells.csv")) == len(found)
    title = f"{reproduce.PAPER_FIGURES['figure5']}, CIFAR-100"
    assert title in (folder / "figure5.html").read_text(encoding="utf-8")
    faces = table_vi("openforensics", lambda place: 0.2)
    list(reproduce.write(folder, store, reproduce.protocol("openforensics"), faces))
    assert "(Fig. 5), OpenForensics (faces in its place)" in (folder / "figure5.html").read_text(encoding="utf-8")
    assert "the paper, non-members" in (folder / "figure4.html").read_text(encoding="utf-8")


# ---- what the paper leaves open


def test_all_models_augmented_is_the_protocol_under_other_names() -> None:
    of = reproduce.protocol("gtsrb")
    jobs = {label: experiment.key("train", e) for label, _, e in reproduce.alternative_jobs(of)}
    plain = presets.get(of.sweeps).run("augmentation", presets.get(of.sweeps).seeds[0])
    assert jobs["all models augmented, none"] == experiment.key("train", plain)
    assert jobs["all models augmented, tier_reg"] == jobs["as in the tables, tier_full"]
    (choice,) = [one for one in reproduce.CHOICES if one.name == "all models augmented"]
    assert "the same runs" in choice.why


def test_averaging_over_the_classes_weighs_both_terms_as_pytorch_would() -> None:
    (choice,) = [one for one in reproduce.CHOICES if one.name == "KL averaged over the classes"]
    tier = presets.get("gtsrb").defense("tier_full").tier
    assert choice.settings["defense.tier.lambda"] * 43 == pytest.approx(tier.lambda_)
    assert choice.settings["defense.tier.lambda"] * choice.settings["defense.tier.beta"] == pytest.approx(
        tier.lambda_ * tier.beta
    )
