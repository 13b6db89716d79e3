"""Removal paths, KL profiles and the course of a training."""

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
    LABEL_PIXELS,
    TOP,
    End,
    Panel,
    Style,
    add_heading,
    axis_range,
    band_of,
    finished,
    glyph,
    label_ends,
    levels_range,
    line_of,
    member_text,
    style,
)


def trajectories(curves: pd.DataFrame, difference: pd.DataFrame, order: str) -> go.Figure:
    """Mean confidence along one removal order, and members minus non-members below it.

    `curves`: model, level, member, mean, low, high; `difference`: model, level, difference, low, high, null_low,
    null_high; one order (`morf` or `lerf`) in both, levels as fractions of the pixels removed.
    """
    height, shares, gap = 680, (0.62, 0.38), 0.16
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=gap, row_heights=list(shares))
    plot = (height - TOP - BOTTOM) * (1 - gap)
    low, high = axis_range(curves["low"], curves["high"])
    top = Panel(1, plot * shares[0], max(low, -0.03), min(high, 1.03))
    ends = []
    for (model, member), part in curves.sort_values("level").groupby(["model", "member"], sort=False):
        look, name = style(str(model)), f"{style(str(model)).label}, {member_text(bool(member))}"
        figure.add_trace(band_of(part["level"], part["low"], part["high"], look.colour), row=1, col=1)
        figure.add_trace(line_of(part["level"], part["mean"], name, look, bool(member)), row=1, col=1)
        ends.append(End(part["level"].iloc[-1], part["mean"].iloc[-1], name, look, bool(member)))
    label_ends(figure, top, ends)

    bounds = ("difference", "low", "high", "null_low", "null_high")
    low, high = axis_range(*(difference[name] for name in bounds), include=[0.0])
    bottom = Panel(2, plot * shares[1], low, high)
    null = difference.groupby("level", as_index=False).agg(low=("null_low", "min"), high=("null_high", "max"))
    figure.add_trace(band_of(null["level"], null["low"], null["high"], GREY, 0.3), row=2, col=1)
    figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=2, col=1)
    ends = []
    for model, part in difference.sort_values("level").groupby("model", sort=False):
        look = style(str(model))
        figure.add_trace(band_of(part["level"], part["low"], part["high"], look.colour), row=2, col=1)
        figure.add_trace(line_of(part["level"], part["difference"], look.label, look, form="+.3f"), row=2, col=1)
        ends.append(End(part["level"].iloc[-1], part["difference"].iloc[-1], look.label, look))
    label_ends(figure, bottom, ends)

    removed = "most important pixels first (MoRF)" if order == "morf" else "least important pixels first (LeRF)"
    add_heading(figure, "Confidence in the true class", "mean with its 95 % bootstrap interval", 1)
    add_heading(figure, "Members minus non-members", "95 % bootstrap interval; grey: 95 % of shuffled memberships", 2)
    figure.update_yaxes(range=[top.low, top.high], title="confidence", row=1, col=1)
    figure.update_yaxes(range=[bottom.low, bottom.high], title="difference", tickformat="+.2f", row=2, col=1)
    figure.update_xaxes(tickformat=".0%", range=levels_range(curves["level"]))
    figure.update_xaxes(title=f"pixels removed, {removed}", row=2, col=1)
    return finished(figure, height)


GRID_PIXELS = 205  # height of a panel of `trajectory_grid`
_ACROSS = 2  # numbers in a line above such a panel, which may be no wider than half a phone


def trajectory_grid(curves: pd.DataFrame, gaps: pd.DataFrame, order: str, columns: int = 2) -> go.Figure:
    """The mean confidence of `trajectories` under several explainers: a panel each, all on one scale.

    `curves`: explainer, model, level, member, mean, low, high, of one order; `gaps` as from `tables.gaps`, whose
    growth stands above the panels, in brackets where chance could make it. `columns`: panels in a row; two fit a
    phone as well as a wide window.
    """
    shown = [name for name in EXPLAINERS if name in set(curves["explainer"])]
    columns = min(columns, max(len(shown), 1))
    rows = max(-(-len(shown) // columns), 1)
    models = list(dict.fromkeys(curves["model"]))
    key = _grid_key(models, order, wide=columns > 2)
    more = LABEL_PIXELS * (-(-len(models) // _ACROSS) - 1)  # pixels of the growths' further lines
    head, between = 64 + more + LABEL_PIXELS * (key.count("<br>") + 1), 92 + more  # above the panels, between two rows
    height = head + rows * GRID_PIXELS + (rows - 1) * between + BOTTOM
    cells: list[list[dict[str, Any] | None]] = [
        [{} if row * columns + column < len(shown) else None for column in range(columns)] for row in range(rows)
    ]
    figure = make_subplots(
        rows=rows, cols=columns, specs=cells, shared_yaxes=True, horizontal_spacing=0.15 / columns,
        vertical_spacing=between / (height - head - BOTTOM),
    )  # fmt: skip
    for number, name in enumerate(shown):
        _grid_lines(figure, curves[curves["explainer"] == name], number // columns + 1, number % columns + 1)
        add_heading(figure, EXPLAINERS[name], _gap_text(gaps[gaps["explainer"] == name]), number + 1)
        figure.layout.annotations[-1].update(xref=f"x{number + 1 if number else ''} domain")
    low, high = axis_range(curves["low"], curves["high"])
    figure.update_yaxes(range=[max(low, -0.03), min(high, 1.03)], nticks=7)
    figure.update_xaxes(tickformat=".0%", tickvals=[0, 0.3, 0.6, 0.9], range=levels_range(curves["level"]))
    figure.add_annotation(
        text=key, x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=56 + more,
        showarrow=False, align="left", font={"size": FONT_PIXELS},
    )  # fmt: skip
    return finished(figure, height, right=16).update_layout(margin={"t": head, "l": 44})


def _grid_key(models: Sequence[str], order: str, wide: bool) -> str:
    """What the axes, colours, dashes and numbers of a grid mean."""
    names = [f"{glyph(style(model))} {style(model).label}" for model in models]
    across = len(names) if wide else 3
    lines = [
        "<b>Confidence in the true class</b>",
        f"as the {'most' if order == 'morf' else 'least'} important pixels are removed",
        "<br>".join("   ".join(names[start : start + across]) for start in range(0, len(names), across)),
        "solid: members, dashed: non-members",
        "bands: 95 % bootstrap intervals",
        "growth: of the gap since nothing was removed",
        "in brackets: none beyond chance",
    ]
    if wide:
        return f"{lines[0]} {lines[1]}   {lines[2]}<br>{', '.join(lines[3:])}"
    return "<br>".join(lines)


def _grid_lines(figure: go.Figure, curves: pd.DataFrame, row: int, column: int) -> None:
    """One panel's lines, thinner than those of a whole figure."""
    traces = []
    for (model, member), part in curves.sort_values("level", kind="stable").groupby(["model", "member"], sort=False):
        look, kind = style(str(model)), member_text(bool(member))
        traces.append(band_of(part["level"], part["low"], part["high"], look.colour))
        name = f"{look.label}, {kind}"
        traces.append(line_of(part["level"], part["mean"], name, look, bool(member), width=1.8, size=5))
    figure.add_traces(traces, rows=row, cols=column)


def _gap_text(gaps: pd.DataFrame) -> str:
    """How far each model's gap grows, behind its marker; in brackets where chance could make it."""
    texts = []
    for row in gaps.to_dict("records"):
        growth = round(row["growth"], 2) + 0.0  # no minus before 0.00
        number = "unknown" if np.isnan(growth) else f"{growth:+.2f}"
        texts.append(f"{glyph(style(str(row['model'])))} {number if row['grown'] else f'({number})'}")
    lines = ["  ".join(texts[start : start + _ACROSS]) for start in range(0, len(texts), _ACROSS)]
    return "growth " + "<br>".join(lines)


def divergence(profile: pd.DataFrame, band: str = "mean") -> go.Figure:
    """The KL profile: members and non-members of each model against the share of pixels removed.

    `profile`: model, level, member, mean, sd, low, high. `band` is `mean` (95 % of the mean) or `sd` (one standard
    deviation either side, as the paper draws it).
    """
    if band not in ("mean", "sd"):
        raise ValueError(f"unknown band '{band}'; choose mean or sd")
    part_low = profile["low"] if band == "mean" else profile["mean"] - profile["sd"]
    part_high = profile["high"] if band == "mean" else profile["mean"] + profile["sd"]
    drawn = profile.assign(band_low=part_low, band_high=part_high).sort_values("level")
    height = 460
    figure = make_subplots(rows=1, cols=1)
    low, high = axis_range(drawn["mean"], drawn["band_low"], drawn["band_high"], include=[0.0])
    panel = Panel(1, height - TOP - BOTTOM, low, high)
    ends = []
    for (model, member), part in drawn.groupby(["model", "member"], sort=False):
        look, name = style(str(model)), f"{style(str(model)).label}, {member_text(bool(member))}"
        alpha = 0.16 if band == "mean" else 0.10
        figure.add_trace(band_of(part["level"], part["band_low"], part["band_high"], look.colour, alpha))
        figure.add_trace(line_of(part["level"], part["mean"], name, look, bool(member)))
        ends.append(End(part["level"].iloc[-1], part["mean"].iloc[-1], name, look, bool(member)))
    label_ends(figure, panel, ends)
    meaning = "95 % interval of the mean" if band == "mean" else "one standard deviation either side"
    add_heading(figure, "KL divergence from the untouched prediction", f"mean; band: {meaning}", 1)
    figure.update_yaxes(range=[low, high], title="KL divergence (nats)")
    figure.update_xaxes(tickformat=".0%", title="most important pixels replaced by the image mean")
    figure.update_xaxes(range=levels_range(drawn["level"]))
    return finished(figure, height)


def training(events: pd.DataFrame, model: str, epochs: int | None = None) -> go.Figure:
    """Accuracy and the two simplest leaks, epoch by epoch.

    `events`: epoch, train_accuracy, test_accuracy, gap_balanced_accuracy, loss_auc; `epochs` fixes the axis while a run
    is still going.
    """
    look, height, gap = style(model), 540, 0.2
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=gap)
    plot = (height - TOP - BOTTOM) * (1 - gap) / 2
    panels = (
        (1, ("train_accuracy", "members (seen)", True), ("test_accuracy", "non-members (new)", False)),
        (2, ("gap_balanced_accuracy", "gap attack", True), ("loss_auc", "loss attack (AUC)", True)),
    )
    for row, *lines in panels:
        low, high = axis_range(*(events[column] for column, _, _ in lines), include=[0.5] if row == 2 else [0.0])
        panel, ends = Panel(row, plot, low, min(high, 1.03)), []
        for number, (column, name, member) in enumerate(lines):
            shape = look if row == 1 or number == 0 else Style(look.label, look.colour, "star")
            known = events[events[column].notna()]
            figure.add_trace(line_of(known["epoch"], known[column], name, shape, member), row=row, col=1)
            if len(known):
                ends.append(End(known["epoch"].iloc[-1], known[column].iloc[-1], name, shape, member))
        label_ends(figure, panel, ends)
        figure.update_yaxes(range=[panel.low, panel.high], row=row, col=1)
    figure.update_traces(marker={"size": 5})
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"}, row=2, col=1)
    add_heading(figure, f"{look.label}: accuracy", "after each epoch", 1)
    add_heading(figure, "Leak", "the two simplest attacks after each epoch; dotted: guessing", 2)
    last = epochs or int(events["epoch"].max() if len(events) else 1)
    figure.update_xaxes(range=[0, last + 0.5])
    figure.update_xaxes(title="epoch", row=2, col=1)
    return finished(figure, height, 165)
