"""Tables and figures in the paper's form as files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tier import experiment, figures, gallery, pictures, presets, sheets, tables
from tier.config import DefenseName, Experiment
from tier.gallery import ORDERS
from tier.reproduce.protocol import MODELS, Protocol, explainers
from tier.reproduce.verdicts import Cell, frame, latex, wide
from tier.store import Store

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIGURES = {
    "figure2": "KL divergence of members and non-members, undefended (Fig. 2)",
    "figure3_morf": "Confidence as the most important pixels go first (Fig. 3, MoRF)",
    "figure3_lerf": "Confidence as the least important pixels go first (Fig. 3, LeRF)",
    "figure4": "KL divergence of members and non-members, TIER (Fig. 4)",
    "figure5": "Faithfulness and Sufficiency, undefended and TIER (Fig. 5)",
    "figure6": "One image's maps, undefended and TIER (Fig. 6)",
}


def write(folder: Path, store: Store, of: Protocol, found: Sequence[Cell]) -> Iterator[Path]:
    """Write the tables of the cells as CSV and LaTeX and what is stored of FIGURES; yields each file's path.

    `cells.csv` has a line per cell with everything said of it, a `table*.csv` the paper's rows and columns, with ours,
    its interval and the verdict beside each number. Figures are HTML that opens without a network; Figure 6 is a PNG
    and needs the images on this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frame(found).to_csv(folder / "cells.csv", index=False)
    yield folder / "cells.csv"
    for table in dict.fromkeys(cell.number.place.table for cell in found):
        wide(found, table).to_csv(folder / f"table{table}.csv", index=False)
        yield folder / f"table{table}.csv"
        (folder / f"table{table}.tex").write_text(latex(found, table), encoding="utf-8")
        yield folder / f"table{table}.tex"
    for name, figure in charts(store, of).items():
        path = folder / f"{name}.html"
        figure.update_layout(title=FIGURES[name]).write_html(path, include_plotlyjs="directory")
        yield path
    if (sheet := triplets(store, of)) is not None:
        (folder / "figure6.png").write_bytes(sheets.render(sheet, "png"))
        yield folder / "figure6.png"


def charts(store: Store, of: Protocol, seed: int | None = None) -> dict[str, "go.Figure"]:
    """What is stored of the paper's Figures 2 to 5, by the names in FIGURES; of the preset's first seed by default."""
    preset = presets.get(of.main)
    runs = {name: preset.run(name, preset.seeds[0] if seed is None else seed) for name in MODELS}
    made = {"figure2": _profiles(store, runs, "none"), "figure4": _profiles(store, runs, "tier_full")}
    for order in ORDERS:
        made[f"figure3_{order}"] = _curves(store, runs, order)
    made["figure5"] = _scores(store, runs)
    return {name: made[name] for name in FIGURES if made.get(name) is not None}


def _profiles(store: Store, runs: dict[DefenseName, Experiment], name: DefenseName) -> "go.Figure | None":
    """The paper's band is one standard deviation."""
    result = experiment.find(store, "divergence", runs[name], ["profile.parquet"])
    if result is None:
        return None
    profile = tables.profile(result.frame("profile.parquet"), "sample")
    return figures.divergence(tables.stack({name: profile}), "sd")


def _curves(store: Store, runs: dict[DefenseName, Experiment], order: str) -> "go.Figure | None":
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


def _scores(store: Store, runs: dict[DefenseName, Experiment]) -> "go.Figure | None":
    found: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
    for explainer in explainers("VI"):
        for name, e in runs.items():
            result = experiment.find(store, "quality", e.set({"explain.name": explainer}), ["scores.parquet"])
            if result is not None:
                found[name, explainer] = {e.train.seed: result.frame("scores.parquet")}
    if not found:
        return None
    table = tables.quality(found)
    return figures.quality_curves(table[table["images"] == "all"], _QUALITY)


_QUALITY = ("faithfulness_correlation", "faithfulness_estimate", "sufficiency")  # the columns of Table VI


def triplets(store: Store, of: Protocol) -> "sheets.Sheet | None":
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
    return sheets.of_triplets(FIGURES["figure6"], rows)
