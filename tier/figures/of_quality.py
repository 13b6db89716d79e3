"""Quality of maps beside controls, what a defense changes, profiles, thresholds, single images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tier.figures.look import (
    BOTTOM,
    EXPLAINERS,
    FONT_PIXELS,
    GREY,
    GUIDE,
    LABEL_PIXELS,
    TOP,
    Style,
    add_heading,
    axis_range,
    band_of,
    finished,
    glyph,
    member_text,
    rgba,
    style,
)
from tier.figures.of_maps import SCORES

QUALITY: dict[str, str] = {
    "faithfulness_correlation": "Faithfulness Correlation", "faithfulness_estimate": "Faithfulness Estimate",
    "sufficiency": "Sufficiency", "pointing_game": "Pointing game", "mask_mass": "Mass on the object",
    "mask_iou": "IoU with the object", "sufficiency_quantus": "Sufficiency, as Quantus has it",
    "mask_mass_positive": "Positive mass on the object", "mask_iou_signed": "IoU of the highest values",
}  # fmt: skip
UNITS: dict[str, str] = {
    "faithfulness_correlation": "Pearson's r", "faithfulness_estimate": "Pearson's r",
    "sufficiency": "share of neighbours", "pointing_game": "share of images", "mask_mass": "share of |map|",
    "mask_iou": "intersection over union", "sufficiency_quantus": "share of neighbours",
    "mask_iou_signed": "intersection over union",
    "mask_mass_positive": "share of the positive part", "ssim": "likeness, 1: equal",
    "mse": "squared error, axis turned", "cosine": "cosine", "cosine_unscaled": "cosine",
}  # fmt: skip
NOISE, EDGES = Style("Noise", GREY, "x"), Style("Edges", GREY, "cross")
_DASHES = {"map": "solid", "random": "dot", "edges": "dashdot"}  # a dashed line is non-members
CONTROL_KEY = f"{glyph(NOISE)} noise, {glyph(EDGES)} edges of the image"


def _models_key(models: Sequence[str], across: int = 2) -> list[str]:
    """Lines of a heading that name the models' markers, so few in a line that it fits a phone."""
    texts = [f"{glyph(style(model))} {style(model).label}" for model in models]
    return [" &nbsp; ".join(texts[start : start + across]) for start in range(0, len(texts), across)]


def _error(rows: pd.DataFrame, value: str, colour: str) -> dict[str, Any]:
    """The error bars of `value` with its `_low` and `_high`."""
    return {
        "type": "data", "array": rows[f"{value}_high"] - rows[value],
        "arrayminus": rows[value] - rows[f"{value}_low"], "color": colour, "thickness": 1.2, "width": 2,
    }  # fmt: skip


def quality_curves(table: pd.DataFrame, metrics: Sequence[str]) -> go.Figure:
    """Each metric over the explainers, a line per model as in the paper's Fig. 5, above the ranges of both controls.

    `table`: of `tables.quality` the rows of one kind of images. A control does not depend on the explainer; its band
    holds the intervals of all models shown. Where `n`, of how many images a mean is, is not known, nothing says it.
    """
    models, explainers = (list(dict.fromkeys(table[name])) for name in ("model", "explainer"))
    figure = _over_explainers(metrics, explainers, [CONTROL_KEY, *_models_key(models)], "up is better")
    for row, metric in enumerate(metrics, 1):
        part = table[table["metric"] == metric]
        for control in ("random", "edges"):
            _control_band(figure, part, control, len(explainers), row)
        for place, model in enumerate(models):
            shift = model_shift(place, len(models))
            figure.add_trace(_quality_line(part[part["model"] == model], explainers, shift), row=row, col=1)
        bounds = [part[f"{of}{end}"] for of in ("mean", "random", "edges") for end in ("", "_low", "_high")]
        figure.update_yaxes(range=axis_range(*bounds), title=UNITS[metric], row=row, col=1)
    return figure


def model_shift(place: int, models: int) -> float:
    """How far from an explainer's tick `quality_curves` has the model at a place, of so many models."""
    return 0.5 * ((place + 0.5) / models - 0.5)


def quality_changes(table: pd.DataFrame, metrics: Sequence[str]) -> go.Figure:
    """What each defense adds to each metric over the explainers, beside what another seed of the undefended model adds.

    `table`: of `tables.quality` the rows of one kind of images. Differences are of the same images; error bars are 95 %
    intervals.
    """
    models = [str(name) for name in dict.fromkeys(table["model"]) if name != "none"]
    explainers = list(dict.fromkeys(table["explainer"]))
    key = [f"{glyph(NOISE)} another seed of the undefended model", *_models_key(models)]
    figure = _over_explainers(metrics, explainers, key, "above 0: the defended map scores higher")
    for row, metric in enumerate(metrics, 1):
        part = table[table["metric"] == metric]
        figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=row, col=1)
        seeds = part[part["other"].notna()].drop_duplicates("explainer")
        lines = [(seeds, NOISE, "other"), *((part[part["model"] == name], style(name), "change") for name in models)]
        for place, (rows, look, value) in enumerate(lines):
            shift = 0.6 * ((place + 0.5) / len(lines) - 0.5)
            figure.add_trace(_change_points(rows, explainers, shift, look, value), row=row, col=1)
        bounds = [part[f"{of}{end}"] for of in ("change", "other") for end in ("", "_low", "_high")]
        figure.update_yaxes(range=axis_range(*bounds, include=[0.0]), title="change", row=row, col=1)
    return figure


def _over_explainers(metrics: Sequence[str], explainers: Sequence[str], key: Sequence[str], below: str) -> go.Figure:
    """An empty panel for each metric, the explainers across; the key stands in the first heading, `below` in others."""
    head, plot, gap = TOP + LABEL_PIXELS * len(key), 210, TOP + 12
    height = head + BOTTOM + 60 + len(metrics) * plot + (len(metrics) - 1) * gap
    figure = make_subplots(
        rows=len(metrics), cols=1, shared_xaxes=True, vertical_spacing=gap / (height - head - BOTTOM - 60)
    )
    for row, metric in enumerate(metrics, 1):
        add_heading(figure, QUALITY[metric], "<br>".join(key) if row == 1 else below, row)
    figure.update_xaxes(
        tickvals=list(range(len(explainers))), ticktext=[EXPLAINERS[str(name)] for name in explainers], tickangle=-45,
        range=[-0.5, len(explainers) - 0.5],
    )  # fmt: skip
    finished(figure, height, right=16)
    return figure.update_layout(hovermode="closest", margin={"t": head, "b": BOTTOM + 60, "l": 80})


def _change_points(rows: pd.DataFrame, explainers: Sequence[str], shift: float, look: Style, value: str) -> go.Scatter:
    """The changes of one model, or of another seed, as points with intervals."""
    rows = rows[rows[value].notna()]
    name = "Another seed, undefended" if value == "other" else look.label
    return go.Scatter(
        x=[explainers.index(name) + shift for name in rows["explainer"]], y=rows[value], name=name, mode="markers",
        marker={"symbol": look.symbol, "size": 9, "color": look.colour}, showlegend=False,
        error_y=_error(rows, value, look.colour),
        customdata=[
            [EXPLAINERS[str(row["explainer"])], row[f"{value}_low"], row[f"{value}_high"], row["change_n"]]
            for row in rows.to_dict("records")
        ],
        hovertemplate=f"{name}, %{{customdata[0]}}<br>%{{y:+.3f}} (%{{customdata[1]:+.3f}} to %{{customdata[2]:+.3f}})"
        + ("" if value == "other" else "<br>on %{customdata[3]:.0f} images") + "<extra></extra>",
    )  # fmt: skip


def _control_band(figure: go.Figure, part: pd.DataFrame, control: str, explainers: int, row: int) -> None:
    """A control's range over the models, and its marker at the left end; nothing where it is unknown."""
    known = part[part[control].notna()]
    if not len(known):
        return
    look, x = (NOISE if control == "random" else EDGES), pd.Series([-0.48, explainers - 0.52])
    low, high, mean = known[f"{control}_low"].min(), known[f"{control}_high"].max(), known[control].mean()
    figure.add_trace(band_of(x, pd.Series([low] * 2), pd.Series([high] * 2), GREY, 0.22), row=row, col=1)
    figure.add_trace(
        go.Scatter(
            x=x, y=[mean] * 2, name=look.label, mode="lines+markers", showlegend=False,
            line={"color": GREY, "width": 1.4, "dash": _DASHES[control]},
            marker={"symbol": look.symbol, "size": 9, "color": GREY},
            hovertemplate=f"{look.label}: mean %{{y:.3f}}, all intervals {low:.3f} to {high:.3f}<extra></extra>",
        ),
        row=row, col=1,
    )  # fmt: skip


def _quality_line(part: pd.DataFrame, explainers: Sequence[str], shift: float) -> go.Scatter:
    """One model's means over the explainers, with intervals."""
    part = part[part["mean"].notna()]
    look = style(str(part["model"].iloc[0])) if len(part) else GUIDE
    return go.Scatter(
        x=[explainers.index(name) + shift for name in part["explainer"]], y=part["mean"], name=look.label,
        mode="lines+markers", line={"color": look.colour, "width": 1.6}, showlegend=False,
        marker={"symbol": look.symbol, "size": 9, "color": look.colour}, error_y=_error(part, "mean", look.colour),
        customdata=[
            [EXPLAINERS[str(row["explainer"])], *(row[of] for of in ("mean_low", "mean_high", "random", "edges", "n"))]
            for row in part.to_dict("records")
        ],
        hovertemplate=f"{look.label}, %{{customdata[0]}}<br>%{{y:.3f}} (%{{customdata[1]:.3f}} to "
        f"%{{customdata[2]:.3f}}){', n %{customdata[5]}' if part['n'].notna().all() else ''}"
        "<br>noise %{customdata[3]:.3f}, edges %{customdata[4]:.3f}<extra></extra>",
    )  # fmt: skip


def quality_profile(table: pd.DataFrame) -> go.Figure:
    """One line per model through an axis per score, each axis from its worst to its best value shown, best at the top.

    `table`: model (`random` is the control's line), metric, mean, mean_low, mean_high, less (bool: less is better).
    A score that a model does not have leaves a gap.
    """
    metrics, models = (list(dict.fromkeys(table[name])) for name in ("metric", "model"))
    compared = [name for name in models if name != "random"]
    key = [f"{glyph(NOISE)} noise; for likeness, maps of other images", *_models_key(compared)]
    head, plot, foot = TOP + LABEL_PIXELS * (len(key) - 1), 350, 185
    figure = make_subplots(rows=1, cols=1)
    names = {**QUALITY, **SCORES}
    ends = {}
    for place, metric in enumerate(metrics):
        part = table[table["metric"] == metric]
        low, high = axis_range(part["mean"], part["mean_low"], part["mean_high"])
        ends[metric] = (high, low) if part["less"].any() else (low, high)
        figure.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, line={"color": GREY, "width": 1}, layer="below")
        digits, font = 2 if high - low > 0.05 else 3, {"size": FONT_PIXELS - 2}
        for value, y, anchor in ((ends[metric][1], 1, "bottom"), (ends[metric][0], 0, "top")):
            figure.add_annotation(x=place, y=y, text=f"{value:.{digits}f}", yanchor=anchor, showarrow=False, font=font)
        figure.add_annotation(
            x=place, y=0, yshift=-20, yanchor="top", textangle=-90, showarrow=False, align="right",
            text=f"{names[str(metric)]}<br>{UNITS[str(metric)]}", font={"size": FONT_PIXELS - 1},
        )  # fmt: skip
    for place, model in enumerate(models):
        shift = 0.3 * ((place + 0.5) / len(models) - 0.5)
        figure.add_trace(_profile_line(table[table["model"] == model], str(model), metrics, ends, shift))
    add_heading(figure, "Up is better on every axis", "<br>".join(key), 1)
    figure.update_yaxes(range=[-0.02, 1.07], visible=False)
    figure.update_xaxes(range=[-0.5, len(metrics) - 0.5], visible=False)
    finished(figure, head + 16 + plot + foot, right=12)
    return figure.update_layout(hovermode="closest", margin={"l": 12, "t": head + 16, "b": foot})


def _profile_line(
    part: pd.DataFrame, model: str, metrics: Sequence[str], ends: dict[Any, tuple[float, float]], shift: float
) -> go.Scatter:
    """One model's line in `quality_profile`; `ends`: by metric the values at the bottom and at the top."""
    control, rows = model == "random", part.set_index("metric").reindex(list(metrics))
    look = NOISE if control else style(model)
    bottom, top = (np.array([ends[metric][i] for metric in metrics]) for i in (0, 1))
    at = {name: (rows[name].to_numpy(float) - bottom) / (top - bottom) for name in ("mean", "mean_low", "mean_high")}
    upper, lower = (choice(at["mean_low"], at["mean_high"]) for choice in (np.maximum, np.minimum))
    return go.Scatter(
        x=np.arange(len(metrics)) + shift, y=at["mean"], mode="lines+markers", name=look.label, showlegend=False,
        line={"color": look.colour, "width": 1.4 if control else 2.2, "dash": "dot" if control else "solid"},
        marker={"symbol": look.symbol, "size": 9, "color": look.colour},
        error_y={
            "type": "data", "array": upper - at["mean"], "arrayminus": at["mean"] - lower, "color": look.colour,
            "thickness": 1.2, "width": 2,
        },
        customdata=[
            [{**QUALITY, **SCORES}[str(name)], rows["mean"][name], rows["mean_low"][name], rows["mean_high"][name]]
            for name in metrics
        ],
        hovertemplate=f"{look.label}<br>%{{customdata[0]}} %{{customdata[1]:.3f}} (%{{customdata[2]:.3f}} to "
        "%{customdata[3]:.3f})<extra></extra>",
    )  # fmt: skip


def quality_sweep(sweeps: pd.DataFrame, chances: dict[str, float], threshold: float) -> go.Figure:
    """Sufficiency over its threshold: each model's maps, its edges, and what it is if maps tell nothing.

    `sweeps` as from `tables.quality_sweeps`; `chances` by model. Below: of how many images no other one is a neighbour.
    """
    models = list(dict.fromkeys(sweeps["model"]))
    key = ["solid: maps; dots and dashes: edges; dots: chance", *_models_key(models)]
    head, gap = TOP + LABEL_PIXELS * (len(key) - 1), TOP + 8
    height = head + BOTTOM + 240 + 130 + gap
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[240, 130], vertical_spacing=gap / (height - head - BOTTOM)
    )
    for model in models:
        look = style(str(model))
        for of in ("map", "edges"):
            part = sweeps[(sweeps["model"] == model) & (sweeps["of"] == of)].sort_values("threshold")
            for row, column in ((1, "mean"), (2, "alone")):
                line = _sweep_line(part, column, f"{look.label}, {'edges' if of == 'edges' else 'maps'}", look, of)
                figure.add_trace(line, row=row, col=1)
        figure.add_hline(y=chances[str(model)], line={"color": look.colour, "width": 1.4, "dash": "dot"}, row=1, col=1)
    figure.add_vline(x=threshold, line={"color": GREY, "width": 1.2})
    add_heading(figure, "Sufficiency", "<br>".join(key), 1)
    add_heading(figure, "Images without any neighbour", "not defined for these", 2)
    known = sweeps[sweeps["of"] != "random"]["mean"]
    figure.update_yaxes(range=axis_range(known, list(chances.values())), title=UNITS["sufficiency"], row=1, col=1)
    figure.update_yaxes(range=[-0.05, 1.05], title="share", nticks=4, row=2, col=1)
    figure.update_xaxes(title="threshold, share of the largest distance between two maps", row=2, col=1)
    return finished(figure, height, right=16).update_layout(hovermode="closest", margin={"t": head, "l": 80})


def _sweep_line(part: pd.DataFrame, column: str, name: str, look: Style, of: str) -> go.Scatter:
    known = part[part[column].notna()]
    return go.Scatter(
        x=known["threshold"], y=known[column], name=name, showlegend=False,
        mode="lines+markers" if of == "map" else "lines",
        line={"color": look.colour, "width": 2.2 if of == "map" else 1.4, "dash": _DASHES[of]},
        marker={"symbol": look.symbol, "size": 8, "color": look.colour}, customdata=known[["neighbours", "alone"]],
        hovertemplate=f"{name}, threshold %{{x}}<br>%{{y:.3f}}; neighbours on average %{{customdata[0]:.1f}}, none for "
        "%{customdata[1]:.0%} of the images<extra></extra>",
    )  # fmt: skip


def quality_images(frame: pd.DataFrame, metric: str, model: str) -> go.Figure:
    """Single images behind a mean, members (solid) and non-members (dashed): the map, noise and edges on one axis.

    `frame`: `quality/scores.parquet`.
    """
    panels = (("", style(model), f"Maps of {style(model).label}"), ("_random", NOISE, "Noise"),
              ("_edges", EDGES, "Edges of the image"))  # fmt: skip
    low, high = axis_range(*(frame[f"{metric}{ending}"] for ending, _, _ in panels))
    bins, plot, gap = np.linspace(low, high, 31), 104, TOP + 10
    height = TOP + BOTTOM + 3 * plot + 2 * gap
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=gap / (height - TOP - BOTTOM))
    for row, (ending, look, text) in enumerate(panels, 1):
        told = []
        for member in (True, False):
            values = frame.loc[frame["member"].astype(bool) == member, f"{metric}{ending}"].dropna().to_numpy(float)
            dash, name = "solid" if member else "dash", member_text(member)
            if not values.size:
                told.append(f"{name} none")
                continue
            count, mean = np.histogram(values, bins)[0] / values.size, float(values.mean())
            told.append(f"{name} {'━' if member else '╍'} {mean:.3f} (n {values.size})")
            figure.add_trace(
                go.Scatter(
                    x=bins, y=[*count, 0.0], mode="lines",
                    line={"color": look.colour, "width": 2, "dash": dash, "shape": "hv"},
                    fill="tozeroy" if member else None, fillcolor=rgba(look.colour, 0.18), name=f"{text}, {name}",
                    hovertemplate=f"{text}, {name}<br>from %{{x:.3f}}: %{{y:.0%}} of the images<extra></extra>",
                    showlegend=False,
                ),
                row=row, col=1,
            )  # fmt: skip
            figure.add_vline(x=mean, line={"color": look.colour, "width": 1.6, "dash": dash}, row=row, col=1)
        add_heading(figure, text, ", ".join(told), row)
    figure.update_yaxes(nticks=3, tickformat=".0%", rangemode="tozero")
    figure.update_xaxes(range=[low, high])
    figure.update_xaxes(title=f"{QUALITY[metric]} of one image ({UNITS[metric]})", row=3, col=1)
    return finished(figure, height, right=16).update_layout(hovermode="closest")
