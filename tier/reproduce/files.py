"""Tables and figures in the paper's form as files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tier import experiment, figures, gallery, paper, pictures, presets, sheets, tables
from tier.config import DefenseName, Experiment
from tier.gallery import ORDERS
from tier.reproduce.forms import frame, latex, wide
from tier.reproduce.ours import QUALITY_CONTROLS
from tier.reproduce.protocol import MODELS, SOURCES, Protocol, explainers
from tier.reproduce.verdicts import Cell, cells
from tier.store import Store

PAPER_FIGURES = {
    "figure2": "KL divergence of members and non-members, undefended (Fig. 2)",
    "figure3_morf": "Confidence as the most important pixels go first (Fig. 3, MoRF)",
    "figure3_lerf": "Confidence as the least important pixels go first (Fig. 3, LeRF)",
    "figure4": "KL divergence of members and non-members, TIER (Fig. 4)",
    "figure5": "Faithfulness and Sufficiency, undefended and TIER (Fig. 5)",
    "figure6": "One image's maps, undefended and TIER (Fig. 6)",
}


def write(folder: Path, store: Store, of: Protocol, found: Sequence[Cell]) -> Iterator[Path]:
    """Write the tables of the cells as CSV and LaTeX and what is stored of PAPER_FIGURES; yields each file's path.

    `cells.csv` has a line per cell with everything said of it, a `table*.csv` the paper's rows and columns, with ours,
    its interval and the verdict beside each number. Figures are HTML that opens without a network; Figure 6 is a PNG
    and needs the images on this machine. Figure 5 is drawn from the cells of Table VI: those of `found`, or where
    `found` is of other tables, what the store has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frame(found).to_csv(folder / "cells.csv", index=False)
    yield folder / "cells.csv"
    for table in dict.fromkeys(cell.number.place.table for cell in found):
        wide(found, table).to_csv(folder / f"table{table}.csv", index=False)
        yield folder / f"table{table}.csv"
        (folder / f"table{table}.tex").write_text(latex(found, table), encoding="utf-8")
        yield folder / f"table{table}.tex"
    for name, figure in charts(store, of, found).items():
        path = folder / f"{name}.html"
        figures.titled(figure, f"{PAPER_FIGURES[name]}, {_images(of)}").write_html(path, include_plotlyjs="directory")
        yield path
    if (sheet := triplets(store, of)) is not None:
        (folder / "figure6.png").write_bytes(sheets.render(sheet, "png"))
        yield folder / "figure6.png"


def _images(of: Protocol) -> str:
    """The data set's name, and what stands in for it."""
    name, stand_in = paper.NAMES[of.dataset], SOURCES.get(of.dataset)
    return f"{name} ({stand_in} in its place)" if stand_in else name


def charts(store: Store, of: Protocol, found: Sequence[Cell] = (), seed: int | None = None) -> dict[str, go.Figure]:
    """What there is of the paper's Figures 2 to 5, by the names in PAPER_FIGURES.

    Figures 2 to 4 are drawn from stored results, by default of the preset's first seed; beside 2 and 4 stand the means
    that the paper prints of the data set, if it does. Figure 5 is Table VI as `found` has it; where no cell of it is
    in `found`, as the store has it.
    """
    preset = presets.get(of.main)
    runs = {name: preset.run(name, preset.seeds[0] if seed is None else seed) for name in MODELS}
    made = {
        "figure2": _profiles(store, runs, "none", of.dataset, "I"),
        "figure4": _profiles(store, runs, "tier_full", of.dataset, "III"),
    }
    for order in ORDERS:
        made[f"figure3_{order}"] = _curves(store, runs, order)
    of_table = [cell for cell in found if cell.number.place.table == "VI"]
    made["figure5"] = _scores(of_table or cells(store, of, ["VI"]))
    return {name: figure for name in PAPER_FIGURES if (figure := made.get(name)) is not None}


def _profiles(
    store: Store, runs: dict[DefenseName, Experiment], name: DefenseName, dataset: str, table: str
) -> go.Figure | None:
    """The paper's band is one standard deviation; `table` has the means that it prints."""
    result = experiment.find(store, "divergence", runs[name], ["profile.parquet"])
    if result is None:
        return None
    profile = tables.profile(result.frame("profile.parquet"), "sample")
    figure = figures.divergence(tables.stack({name: profile}), "sd")
    printed = pd.DataFrame(
        [
            {"member": n.place.quantity == "kl_mean_member", "level": n.place.level, "value": n.value}
            for n in paper.of(dataset)
            if n.place.table == table and n.place.quantity in ("kl_mean_member", "kl_mean_nonmember")
        ]
    )
    return figure if printed.empty else figures.with_printed_means(figure, name, printed, f"Table {table}")


def _curves(store: Store, runs: dict[DefenseName, Experiment], order: str) -> go.Figure | None:
    curves: dict[str, dict[str, pd.DataFrame]] = {}
    gaps: dict[str, dict[str, pd.DataFrame]] = {}
    for explainer in explainers("V"):
        for name, e in runs.items():
            result = experiment.find(store, "trajectory", e.set({"explain.name": explainer}), ["curves.parquet"])
            if result is not None:
                curves.setdefault(explainer, {})[name] = result.frame("curves.parquet")
                gaps.setdefault(explainer, {})[name] = result.frame("difference.parquet")
    if not curves:
        return None
    stacked, apart = tables.by_explainer(curves, order), tables.by_explainer(gaps, order)
    return figures.trajectory_grid(stacked, tables.gaps(apart), order)


def _scores(found: Sequence[Cell]) -> go.Figure | None:
    """Table VI: ours with intervals and both controls, and the paper's numbers as open markers on dotted lines.

    Explainers that were not computed here have the paper's markers alone.
    """
    if all(cell.ours.value is None for cell in found):
        return None
    table = pd.DataFrame([_score(cell) for cell in found])
    figure = figures.quality_curves(table, _QUALITY)
    return figures.with_printed_scores(figure, table, _QUALITY, "paper", "Table VI")


_QUALITY = ("faithfulness_correlation", "faithfulness_estimate", "sufficiency")  # the columns of Table VI


def _score(cell: Cell) -> dict[str, object]:
    """A row for `figures.quality_curves`, and the paper's number; the cells do not say of how many images a mean is."""
    place = cell.number.place
    row: dict[str, object] = {"model": place.defense, "explainer": place.explainer, "metric": place.quantity}
    row |= {"n": None, "paper": cell.number.value}
    marks = {name: cell.ours.beside.get(words, (None, None)) for name, words in QUALITY_CONTROLS.items()}
    for name, (value, interval) in {"mean": (cell.ours.value, cell.ours.interval), **marks}.items():
        low, high = interval or (value, value)
        row |= {
            f"{name}{end}": np.nan if of is None else of for end, of in (("", value), ("_low", low), ("_high", high))
        }
    return row


def triplets(store: Store, of: Protocol) -> sheets.Sheet | None:
    """Figure 6: a member and its maps by both models, a row per explainer; None without maps or without the images."""
    preset = presets.get(of.main)
    runs = {name: preset.run(name, preset.seeds[0]) for name in MODELS}
    looks: dict[str, dict[str, gallery.Look]] = {}
    for explainer in explainers("VII"):
        for name, e in runs.items():
            result = experiment.find(store, "gallery", e.set({"explain.name": explainer}), ["gallery.parquet"])
            if result is not None:
                stored = result.frame("gallery.parquet")
                row = stored[stored["member"].astype(bool)].iloc[0].to_dict()
                looks.setdefault(explainer, {})[name] = gallery.look(
                    row, int(result.metrics["height"]), int(result.metrics["width"])
                )
    whole = {explainer: of_models for explainer, of_models in looks.items() if len(of_models) == len(MODELS)}
    if not whole:
        return None
    try:
        images = experiment.dataset(preset.experiment.data).images
    except (OSError, ValueError):  # the data are not on this machine
        return None
    rows = [
        sheets.Triplet(
            label=figures.EXPLAINERS[explainer],
            image=np.asarray(images[of_models["none"].index]),
            maps={name: one.map for name, one in of_models.items()},
            signed=pictures.has_sign(runs["none"].set({"explain.name": explainer}).explain),
        )
        for explainer, of_models in whole.items()
    ]
    return sheets.of_triplets(PAPER_FIGURES["figure6"], rows)
