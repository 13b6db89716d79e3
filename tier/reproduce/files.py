"""Tables and figures in the paper's form as files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tier import experiment, figures, gallery, paper, pictures, presets, sheets, tables
from tier.config import DefenseName, Experiment
from tier.gallery import ORDERS
from tier.reproduce.ours import QUALITY_CONTROLS
from tier.reproduce.protocol import MODELS, Protocol, explainers
from tier.reproduce.verdicts import Cell, cells, frame, latex, wide
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
        figure.update_layout(title=PAPER_FIGURES[name]).write_html(path, include_plotlyjs="directory")
        yield path
    if (sheet := triplets(store, of)) is not None:
        (folder / "figure6.png").write_bytes(sheets.render(sheet, "png"))
        yield folder / "figure6.png"


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
    printed = [n for n in paper.of(dataset) if n.place.table == table]
    return _with_printed_means(figure, figures.style(name), printed, table) if printed else figure


def _with_printed_means(
    figure: go.Figure, look: figures.Style, printed: Sequence[paper.Printed], table: str
) -> go.Figure:
    """The same with the means that the paper prints: larger open markers on dotted lines."""
    values = []
    for member, quantity in ((True, "kl_mean_member"), (False, "kl_mean_nonmember")):
        points = sorted((n.place.level, n.value) for n in printed if n.place.quantity == quantity and n.place.level)
        group = "members" if member else "non-members"
        values += [value for _, value in points]
        figure.add_trace(
            go.Scatter(
                x=[level for level, _ in points], y=[value for _, value in points], mode="lines+markers",
                name=f"the paper, {group}", showlegend=False, line={"color": look.colour, "width": 1.2, "dash": "dot"},
                marker={
                    "size": 12, "color": look.colour, "symbol": "square-open" if member else "triangle-up-open",
                },
                hovertemplate="%{y:g}",
            )
        )  # fmt: skip
    low, high = figure.layout.yaxis.range
    figure.update_yaxes(range=[low, max(high, 1.06 * max(values, default=high))])
    return _with_a_line_more(figure, f"dotted: the paper's Table {table}, □ members, △ non-members")


def _with_a_line_more(figure: go.Figure, text: str) -> go.Figure:
    """The same with a line more in the first heading, and the room for it."""
    figure.layout.annotations[_first_heading(figure)].text += f"<br>{text}"
    more = figures.LABEL_PIXELS
    return figure.update_layout(height=figure.layout.height + more, margin_t=figure.layout.margin.t + more)


def _first_heading(figure: go.Figure) -> int:
    return next(place for place, note in enumerate(figure.layout.annotations) if note.text.startswith("<b>"))


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
    for trace in figure.data:
        if trace.customdata is not None:  # a model's: the cells do not say of how many images a mean is
            trace.hovertemplate = (
                f"{trace.name}, %{{customdata[0]}}<br>%{{y:.3f}} (%{{customdata[1]:.3f}} to %{{customdata[2]:.3f}})"
                "<extra></extra>"
            )
    names, models = (list(dict.fromkeys(table[name])) for name in ("explainer", "model"))
    for row, quantity in enumerate(_QUALITY, 1):
        of_row = [cell for cell in found if cell.number.place.quantity == quantity]
        for place, model in enumerate(models):
            shift = 0.5 * ((place + 0.5) / len(models) - 0.5)  # where `quality_curves` has the model
            of_model = [cell for cell in of_row if cell.number.place.defense == model]
            figure.add_trace(_printed_scores(of_model, figures.style(model), names, shift), row=row, col=1)
        low, high = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].range
        values = [cell.number.value for cell in of_row]
        pad = 0.06 * (high - low)
        span = [min([low, *(v - pad for v in values)]), max([high, *(v + pad for v in values)])]
        figure.update_yaxes(range=span, row=row, col=1)
    return _with_a_line_more(figure, "open markers, dotted: the paper's Table VI")


_QUALITY = ("faithfulness_correlation", "faithfulness_estimate", "sufficiency")  # the columns of Table VI


def _score(cell: Cell) -> dict[str, object]:
    """A row for `figures.quality_curves`."""
    place = cell.number.place
    row: dict[str, object] = {"model": place.defense, "explainer": place.explainer, "metric": place.quantity, "n": None}
    marks = {name: cell.ours.beside.get(words, (None, None)) for name, words in QUALITY_CONTROLS.items()}
    for name, (value, interval) in {"mean": (cell.ours.value, cell.ours.interval), **marks}.items():
        low, high = interval or (value, value)
        row |= {
            f"{name}{end}": np.nan if of is None else of for end, of in (("", value), ("_low", low), ("_high", high))
        }
    return row


def _printed_scores(
    found: Sequence[Cell], look: figures.Style, of_explainers: Sequence[str], shift: float
) -> go.Scatter:
    """What the paper prints of one model over the explainers."""
    names = [str(cell.number.place.explainer) for cell in found]
    return go.Scatter(
        x=[of_explainers.index(name) + shift for name in names], y=[cell.number.value for cell in found],
        name=f"the paper, {look.label}", mode="lines+markers", showlegend=False,
        line={"color": look.colour, "width": 1, "dash": "dot"},
        marker={"symbol": f"{look.symbol}-open", "size": 9, "color": look.colour},
        text=[figures.EXPLAINERS[name] for name in names],
        hovertemplate=f"the paper, {look.label}, %{{text}}<br>%{{y:g}}<extra></extra>",
    )  # fmt: skip


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
