"""Tidy DataFrames -> Plotly figures: no files, no Streamlit, no torch.

One language throughout: colour is the model (Okabe-Ito, safe for colour-blind readers and on light and dark ground), a
solid line is members and a dashed line non-members, and each model also has its own marker. Lines carry their names at
their ends, so that no figure depends on a legend. Shaded bands are 95 % bootstrap intervals unless the panel title says
otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

GREY = "#808080"  # 3.9:1 on white and 4.6:1 on the dark ground
LABEL_PIXELS = 17  # smallest distance between two direct labels
FONT_PIXELS = 13
FRONTIER = "frontier: least leak"
_NUMBERS = "<br>test accuracy %{x:.3f}<br>leak %{y:.3f}<extra></extra>"  # of a hover text
TOP, BOTTOM = 60, 52  # margins in pixels: two lines of heading above, ticks and title below


@dataclass(frozen=True)
class Style:
    """How a model looks in every figure."""

    label: str
    colour: str
    symbol: str


GLYPHS = {  # a marker as text: filled for members, open for non-members
    "circle": "●○", "square": "■□", "triangle-up": "▲△", "diamond": "◆◇", "cross": "✚✛", "star": "★☆", "x": "✖✕",
    "triangle-down": "▼▽", "triangle-left": "◀◁", "triangle-right": "▶▷", "pentagon": "⬟⬠", "hexagon": "⬢⬡",
    "star-diamond": "✦✧", "triangle-ne": "◥◹", "bowtie": "⧓⋈", "hexagram": "✶✡",
}  # fmt: skip

STYLES: dict[str, Style] = {
    "none": Style("Undefended", "#D55E00", "circle"),
    "augmentation": Style("Augmentation", "#009E73", "square"),
    "tier_reg": Style("TIER Reg-only", "#CC79A7", "triangle-up"),
    "tier_full": Style("TIER Full", "#0072B2", "diamond"),
    "control": Style("Second seed", "#E69F00", "cross"),
    # the rivals share what is left of the palette and are told apart by marker and name: orange for noise and for
    # several models in one, sky blue for other ways to train a single one
    "dpsgd_eps100": Style("DP-SGD, paper", "#E69F00", "triangle-down"),
    "dpsgd_tuned": Style("DP-SGD, tuned", "#E69F00", "triangle-left"),
    "memguard": Style("MemGuard", "#E69F00", "pentagon"),
    "ensemble_partition": Style("Ensemble partition", "#E69F00", "hexagon"),
    "distillation": Style("Distillation", "#E69F00", "star-diamond"),
    "early_stopping": Style("Early stopping", "#56B4E9", "triangle-right"),
    "label_smoothing": Style("Label smoothing", "#56B4E9", "triangle-ne"),
    "relaxloss": Style("RelaxLoss", "#56B4E9", "bowtie"),
    "confidence_penalty": Style("Confidence penalty", "#56B4E9", "hexagram"),
}

GUIDE = Style("", GREY, "circle")

EXPLAINERS: dict[str, str] = {
    "gradient": "Gradient", "smoothgrad": "SmoothGrad", "vargrad": "VarGrad", "gradcam": "Grad-CAM",
    "gradcampp": "Grad-CAM++", "integrated_gradients": "Integrated Gradients", "shap": "SHAP", "lime": "LIME",
}  # fmt: skip


def style(model: str) -> Style:
    """The look of a model; an unknown one is grey under its own name."""
    return STYLES.get(model, Style(model, GREY, "x"))


def rgba(colour: str, alpha: float) -> str:
    """`#RRGGBB` as a CSS colour of that opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Positions as near as a pass allows to `wanted`, at least `gap` apart, inside [low, high] when they fit.

    Keeps the order of `wanted`; used to keep direct labels from covering each other.
    """
    wanted_array = np.asarray(wanted, dtype=float)
    if not wanted_array.size:
        return wanted_array
    order = np.argsort(wanted_array, kind="stable")
    placed = np.clip(wanted_array[order], low, high)
    gap = min(gap, (high - low) / max(len(placed) - 1, 1))
    # Pool neighbours that would touch and centre each pool on its members, as isotonic regression does.
    pools: list[list[float]] = []  # [sum of (wanted - rank * gap), count]
    for rank, value in enumerate(placed):
        pools.append([value - rank * gap, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    base = np.concatenate([np.full(int(count), total / count) for total, count in pools])
    placed = np.clip(base, low, high - gap * (len(placed) - 1)) + gap * np.arange(len(placed))
    result = np.empty_like(placed)
    result[order] = placed
    return result


def _axis_range(*parts: Any, include: Sequence[float] = ()) -> tuple[float, float]:
    """The smallest range that holds every finite number of `parts` and `include`, with a margin of 6 %."""
    values = np.concatenate([np.ravel(np.asarray(p, dtype=float)) for p in (*parts, include)])
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    pad = 0.06 * (high - low) or 0.05
    return low - pad, high + pad


def _levels_range(levels: pd.Series) -> list[float]:
    """The x range of removal levels; set by hand because labels beside the lines would stretch an automatic one."""
    return [float(levels.min()) - 0.015, float(levels.max()) + 0.015]


def _band(x: pd.Series, low: pd.Series, high: pd.Series, colour: str, alpha: float = 0.16) -> go.Scatter:
    """A shaded band between two curves; rows without both bounds are left out."""
    known = low.notna() & high.notna()
    x, low, high = x[known], low[known], high[known]
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]),
        fill="toself", fillcolor=rgba(colour, alpha), line={"width": 0}, mode="lines",
        hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def _line(
    x: pd.Series, y: pd.Series, name: str, look: Style, member: bool = True, form: str = ".3f", width: float = 2.5,
    size: float = 8,
) -> go.Scatter:  # fmt: skip
    """A named line with markers: solid and filled for members, dashed and open for non-members."""
    return go.Scatter(
        x=x, y=y, name=name, mode="lines+markers",
        line={"color": look.colour, "width": width, "dash": "solid" if member else "dash"},
        marker={"color": look.colour, "size": size, "symbol": look.symbol if member else f"{look.symbol}-open"},
        hovertemplate=f"%{{y:{form}}}", showlegend=False,
    )  # fmt: skip


def glyph(look: Style, member: bool = True) -> str:
    """The coloured marker that stands before a model's name in a figure."""
    return f'<span style="color:{look.colour}">{GLYPHS[look.symbol][0 if member else 1]}</span>'


@dataclass(frozen=True)
class _End:
    """The last point of a line, and what to write beside it."""

    x: float
    y: float
    text: str
    look: Style
    member: bool = True
    swatch: str = ""  # a piece of the line, instead of the marker


@dataclass(frozen=True)
class _Panel:
    """One panel of a figure: its place in the subplot grid, its height and its y range."""

    row: int
    pixels: float
    low: float
    high: float


def _label_ends(figure: go.Figure, panel: _Panel, ends: Sequence[_End]) -> None:
    """Write each text beside its line's end, moved apart where two would touch."""
    ends = [end for end in ends if np.isfinite(end.y)]
    unit = panel.pixels / (panel.high - panel.low)
    places = spread([end.y for end in ends], LABEL_PIXELS / unit, panel.low, panel.high)
    for end, place in zip(ends, places, strict=True):
        figure.add_annotation(
            x=end.x, y=end.y, ax=22, ay=-(place - end.y) * unit, axref="pixel", ayref="pixel",
            text=f"{end.swatch or glyph(end.look, end.member)} {end.text}", xanchor="left", align="left",
            showarrow=True, arrowhead=0, arrowwidth=1, arrowcolor=rgba(end.look.colour, 0.6), standoff=6,
            font={"size": FONT_PIXELS}, row=panel.row, col=1,
        )  # fmt: skip


def _heading(figure: go.Figure, text: str, below: str, row: int) -> None:
    """A panel's title at its upper left, where it is read before the curves, and below it what is drawn."""
    axis = "y" if row == 1 else f"y{row}"
    figure.add_annotation(
        text=f"<b>{text}</b><br>{below}", x=0, y=1, xref="paper", yref=f"{axis} domain", xanchor="left",
        yanchor="bottom", yshift=6, showarrow=False, align="left", font={"size": FONT_PIXELS},
    )  # fmt: skip


def _finish(figure: go.Figure, height: int, right: int = 210) -> go.Figure:
    """The layout that all figures share."""
    figure.update_layout(
        height=height, margin={"l": 64, "r": right, "t": TOP, "b": BOTTOM}, hovermode="x unified", showlegend=False,
        dragmode=False, separators=".,",
    )  # fmt: skip
    figure.update_xaxes(showgrid=False, ticks="outside", title_standoff=8)
    figure.update_yaxes(zeroline=False, title_standoff=8)
    return figure


def _member_text(member: bool) -> str:
    return "members" if member else "non-members"


def trajectories(curves: pd.DataFrame, difference: pd.DataFrame, order: str) -> go.Figure:
    """Mean confidence along one removal order, and members minus non-members below it.

    `curves`: model, level, member, mean, low, high; `difference`: model, level, difference, low, high, null_low,
    null_high; one order (`morf` or `lerf`) in both, levels as fractions of the pixels removed.
    """
    height, shares, gap = 680, (0.62, 0.38), 0.16
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=gap, row_heights=list(shares))
    plot = (height - TOP - BOTTOM) * (1 - gap)
    low, high = _axis_range(curves["low"], curves["high"])
    top = _Panel(1, plot * shares[0], max(low, -0.03), min(high, 1.03))
    ends = []
    for (model, member), part in curves.sort_values("level").groupby(["model", "member"], sort=False):
        look, name = style(str(model)), f"{style(str(model)).label}, {_member_text(bool(member))}"
        figure.add_trace(_band(part["level"], part["low"], part["high"], look.colour), row=1, col=1)
        figure.add_trace(_line(part["level"], part["mean"], name, look, bool(member)), row=1, col=1)
        ends.append(_End(part["level"].iloc[-1], part["mean"].iloc[-1], name, look, bool(member)))
    _label_ends(figure, top, ends)

    bounds = ("difference", "low", "high", "null_low", "null_high")
    low, high = _axis_range(*(difference[name] for name in bounds), include=[0.0])
    bottom = _Panel(2, plot * shares[1], low, high)
    null = difference.groupby("level", as_index=False).agg(low=("null_low", "min"), high=("null_high", "max"))
    figure.add_trace(_band(null["level"], null["low"], null["high"], GREY, 0.3), row=2, col=1)
    figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=2, col=1)
    ends = []
    for model, part in difference.sort_values("level").groupby("model", sort=False):
        look = style(str(model))
        figure.add_trace(_band(part["level"], part["low"], part["high"], look.colour), row=2, col=1)
        figure.add_trace(_line(part["level"], part["difference"], look.label, look, form="+.3f"), row=2, col=1)
        ends.append(_End(part["level"].iloc[-1], part["difference"].iloc[-1], look.label, look))
    _label_ends(figure, bottom, ends)

    removed = "most important pixels first (MoRF)" if order == "morf" else "least important pixels first (LeRF)"
    _heading(figure, "Confidence in the true class", "mean with its 95 % bootstrap interval", 1)
    _heading(figure, "Members minus non-members", "95 % bootstrap interval; grey: 95 % of shuffled memberships", 2)
    figure.update_yaxes(range=[top.low, top.high], title="confidence", row=1, col=1)
    figure.update_yaxes(range=[bottom.low, bottom.high], title="difference", tickformat="+.2f", row=2, col=1)
    figure.update_xaxes(tickformat=".0%", range=_levels_range(curves["level"]))
    figure.update_xaxes(title=f"pixels removed, {removed}", row=2, col=1)
    return _finish(figure, height)


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
        _heading(figure, EXPLAINERS[name], _gap_text(gaps[gaps["explainer"] == name]), number + 1)
        figure.layout.annotations[-1].update(xref=f"x{number + 1 if number else ''} domain")
    low, high = _axis_range(curves["low"], curves["high"])
    figure.update_yaxes(range=[max(low, -0.03), min(high, 1.03)], nticks=7)
    figure.update_xaxes(tickformat=".0%", tickvals=[0, 0.3, 0.6, 0.9], range=_levels_range(curves["level"]))
    figure.add_annotation(
        text=key, x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=56 + more,
        showarrow=False, align="left", font={"size": FONT_PIXELS},
    )  # fmt: skip
    return _finish(figure, height, right=16).update_layout(margin={"t": head, "l": 44})


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
        look, kind = style(str(model)), _member_text(bool(member))
        traces.append(_band(part["level"], part["low"], part["high"], look.colour))
        name = f"{look.label}, {kind}"
        traces.append(_line(part["level"], part["mean"], name, look, bool(member), width=1.8, size=5))
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
    low, high = _axis_range(drawn["mean"], drawn["band_low"], drawn["band_high"], include=[0.0])
    panel = _Panel(1, height - TOP - BOTTOM, low, high)
    ends = []
    for (model, member), part in drawn.groupby(["model", "member"], sort=False):
        look, name = style(str(model)), f"{style(str(model)).label}, {_member_text(bool(member))}"
        alpha = 0.16 if band == "mean" else 0.10
        figure.add_trace(_band(part["level"], part["band_low"], part["band_high"], look.colour, alpha))
        figure.add_trace(_line(part["level"], part["mean"], name, look, bool(member)))
        ends.append(_End(part["level"].iloc[-1], part["mean"].iloc[-1], name, look, bool(member)))
    _label_ends(figure, panel, ends)
    meaning = "95 % interval of the mean" if band == "mean" else "one standard deviation either side"
    _heading(figure, "KL divergence from the untouched prediction", f"mean; band: {meaning}", 1)
    figure.update_yaxes(range=[low, high], title="KL divergence (nats)")
    figure.update_xaxes(tickformat=".0%", title="most important pixels replaced by the image mean")
    figure.update_xaxes(range=_levels_range(drawn["level"]))
    return _finish(figure, height)


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
        low, high = _axis_range(*(events[column] for column, _, _ in lines), include=[0.5] if row == 2 else [0.0])
        panel, ends = _Panel(row, plot, low, min(high, 1.03)), []
        for number, (column, name, member) in enumerate(lines):
            shape = look if row == 1 or number == 0 else Style(look.label, look.colour, "star")
            known = events[events[column].notna()]
            figure.add_trace(_line(known["epoch"], known[column], name, shape, member), row=row, col=1)
            if len(known):
                ends.append(_End(known["epoch"].iloc[-1], known[column].iloc[-1], name, shape, member))
        _label_ends(figure, panel, ends)
        figure.update_yaxes(range=[panel.low, panel.high], row=row, col=1)
    figure.update_traces(marker={"size": 5})
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"}, row=2, col=1)
    _heading(figure, f"{look.label}: accuracy", "after each epoch", 1)
    _heading(figure, "Leak", "the two simplest attacks after each epoch; dotted: guessing", 2)
    last = epochs or int(events["epoch"].max() if len(events) else 1)
    figure.update_xaxes(range=[0, last + 0.5])
    figure.update_xaxes(title="epoch", row=2, col=1)
    return _finish(figure, height, 165)


AXES = {
    "audit": "leak: balanced accuracy of the stronger attack",
    "balanced_accuracy": "leak: balanced accuracy of the best attack",
    "auc": "leak: AUC of the best attack",
}
"""What the leak on the upright axis of `leak` is."""


def leak(
    points: pd.DataFrame, paths: pd.DataFrame, frontier: pd.DataFrame, chosen: pd.DataFrame | None = None,
    trails: pd.DataFrame | None = None, axis: str = "audit", height: int = 620,
) -> go.Figure:  # fmt: skip
    """Test accuracy against leak: every run, the early-stopping paths, and the least mean leak at each accuracy.

    `points`: model, text (for the hover), headline (bool), test_accuracy, leak, and their intervals test_low,
    test_high, low, high (null where unknown); `paths`: model, seed, epoch, text, test_accuracy, leak, in order of
    epochs; `frontier`: test_accuracy, leak, both rising; `chosen`: rows like `points`, ringed; `trails` as from
    `tables.trails`; `axis`: one of AXES. Custom data of points and checkpoints begin with their text.
    """
    figure = make_subplots(rows=1, cols=1)
    low, high = _axis_range(points["leak"], points["low"], points["high"], paths["leak"], include=[0.5])
    usual = points[points["headline"]]
    left, right = _axis_range(points["test_accuracy"], paths["test_accuracy"], usual["test_low"], usual["test_high"])
    if len(frontier):
        figure.add_trace(_frontier(frontier, left))
    for trail, part in () if trails is None else trails.groupby("trail", sort=False):
        figure.add_trace(_trail(part, str(trail)))
    for (model, seed), part in paths.groupby(["model", "seed"], sort=False):  # a line per training run
        figure.add_trace(_stopped(part, style(str(model)), seed))
    for headline in (False, True):  # the headline runs above all others
        for model, part in points[points["headline"] == headline].groupby("model", sort=False):
            figure.add_trace(_finished(part, style(str(model)), headline))
    if chosen is not None and len(chosen):
        figure.add_trace(
            go.Scatter(
                x=chosen["test_accuracy"], y=chosen["leak"], mode="markers", name="chosen", hoverinfo="skip",
                marker={"symbol": "circle-open", "size": 24, "color": GREY, "line": {"width": 3, "color": GREY}},
            )
        )  # fmt: skip
    key = [f'<span style="color:{GREY}">━</span> {FRONTIER}', "bars: 95 % intervals"]
    key += ["small: other settings"] if not points["headline"].all() else []
    key += ["thin lines: one setting varied"] if trails is not None and len(trails) else []
    key += ["lines with dots: early stopping"] if len(paths) else []
    below = "<br>".join(", ".join(key[start : start + 2]) for start in range(0, len(key), 2))
    top = TOP + LABEL_PIXELS * below.count("<br>")
    plane = _Plane(left, right, low, high, height - top - BOTTOM)
    _name_groups(figure, points, paths, plane)
    figure.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "dot"})
    _heading(figure, "Up: leaks more. Right: more accurate", below, 1)
    figure.update_yaxes(range=[low, high], title=AXES[axis])
    figure.update_xaxes(range=[left, right], title="test accuracy", showgrid=True)
    _finish(figure, height, right=16).update_layout(margin={"t": top, "l": 56})
    return figure.update_layout(hovermode="closest", dragmode="zoom").update_traces(selected={}, unselected={})


def _frontier(frontier: pd.DataFrame, left: float) -> go.Scatter:
    """The least leak to be had at each accuracy or better, as steps from the axis at `left`."""
    x, y = frontier["test_accuracy"].to_numpy(), frontier["leak"].to_numpy()
    return go.Scatter(
        x=np.concatenate([[left], x]), y=np.concatenate([y[:1], y]), mode="lines", name=FRONTIER, hoverinfo="skip",
        line={"color": GREY, "width": 1.2, "shape": "vh"},
    )  # fmt: skip


def _trail(part: pd.DataFrame, name: str) -> go.Scatter:
    """One defense's way through the plane as one setting varies; the points on it are drawn by themselves."""
    return go.Scatter(
        x=part["test_accuracy"], y=part["leak"], mode="lines", name=name, hoverinfo="skip",
        line={"color": rgba(style(str(part["model"].iloc[0])).colour, 0.7), "width": 1},
    )  # fmt: skip


def _stopped(part: pd.DataFrame, look: Style, seed: object) -> go.Scatter:
    """One training run's accuracy and leak, checkpoint by checkpoint."""
    return go.Scatter(
        x=part["test_accuracy"], y=part["leak"], mode="lines+markers", name=f"{look.label}, stopped early",
        line={"color": look.colour, "width": 1.5, "shape": "linear"},
        marker={"size": 5, "symbol": "circle", "color": look.colour}, customdata=part[["text", "epoch"]],
        hovertemplate=f"{look.label}, stopped after epoch %{{customdata[1]}}, seed {seed}{_NUMBERS}",
    )  # fmt: skip


def _finished(part: pd.DataFrame, look: Style, headline: bool) -> go.Scatter:
    """Finished runs of one model; the headline ones larger and with their intervals."""
    bars = {"type": "data", "color": rgba(look.colour, 0.5), "thickness": 1.2, "width": 3, "visible": headline}
    wide = (part["test_high"] - part["test_accuracy"], part["test_accuracy"] - part["test_low"])
    return go.Scatter(
        x=part["test_accuracy"], y=part["leak"], mode="markers", name=look.label,
        error_y=bars | {"array": part["high"] - part["leak"], "arrayminus": part["leak"] - part["low"]},
        error_x=bars | {"array": wide[0], "arrayminus": wide[1]},
        marker={
            "symbol": look.symbol, "size": 13 if headline else 8, "color": look.colour,
            "opacity": 0.95 if headline else 0.75, "line": {"width": 1 if headline else 0, "color": "white"},
        },
        customdata=part[["text", "low", "high", "test_low", "test_high"]],
        hovertemplate="%{customdata[0]}<br>test accuracy %{x:.3f} (%{customdata[3]:.3f} to %{customdata[4]:.3f})<br>"
        "leak %{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f})<extra></extra>",
    )  # fmt: skip


@dataclass(frozen=True)
class _Plane:
    """The ranges of a plane and the height of its plot in pixels; its width is the window's."""

    left: float
    right: float
    low: float
    high: float
    pixels: float

    def at(self, x: float, y: float, width: float) -> tuple[float, float]:
        """A point in pixels from the upper left corner, in a plot of that width."""
        across, up = (x - self.left) / (self.right - self.left), (y - self.low) / (self.high - self.low)
        return across * width, (1 - up) * self.pixels


def _name_groups(figure: go.Figure, points: pd.DataFrame, paths: pd.DataFrame, plane: _Plane) -> None:
    """Write each group's name beside its headline runs, behind its own marker, where it covers no other name."""
    names = []
    for model, part in points.groupby("model", sort=False):
        shown = part[part["headline"]] if part["headline"].any() else part
        look, middle = style(str(model)), shown[["test_accuracy", "leak"]].mean()
        names.append((float(middle["test_accuracy"]), float(middle["leak"]), look, look.label))
    for model, part in paths[~paths["model"].isin(points["model"])].groupby("model", sort=False):
        look, last = style(str(model)), part.iloc[-1]
        names.append((float(last["test_accuracy"]), float(last["leak"]), look, f"{look.label}, stopped early"))
    names = [name for name in names if np.isfinite(name[0] + name[1])]
    for (x, y, look, text), (across, down) in zip(
        names, _free_places(names, _spots(points, paths), plane), strict=True
    ):
        figure.add_annotation(
            x=x, y=y, ax=across, ay=down, axref="pixel", ayref="pixel", text=f"{glyph(look)} {text}", showarrow=True,
            arrowhead=0, arrowwidth=1, arrowcolor=rgba(look.colour, 0.8), standoff=6, font={"size": FONT_PIXELS},
        )  # fmt: skip
    figure.add_annotation(
        x=0, xref="x domain", y=0.5, text="guessing", xanchor="left", yanchor="top", showarrow=False,
        font={"size": FONT_PIXELS},
    )  # fmt: skip


def _spots(points: pd.DataFrame, paths: pd.DataFrame) -> np.ndarray:
    """Places `(N, 2)` that names had better leave free: points, checkpoints and, in steps, the headline runs' bars."""
    found = [part[["test_accuracy", "leak"]].to_numpy(float) for part in (points, paths)]
    for row in points[points["headline"]][["test_accuracy", "test_low", "test_high", "leak"]].to_numpy(float):
        found.append(np.column_stack([np.linspace(row[1], row[2], 7), np.full(7, row[3])]))
    every = np.concatenate(found)
    return every[np.isfinite(every).all(axis=1)]


WIDTHS = (290.0, 620.0, 1000.0)  # of the plot, on a phone, in a small and a large window
_LETTER_PIXELS, _LINE_PIXELS = 7.2, 10  # mean width of a letter, half the height of a line


def _free_places(
    names: Sequence[tuple[float, float, Style, str]], spots: np.ndarray, plane: _Plane
) -> list[tuple[float, float]]:
    """For each name at (x, y) the middle of its text, in pixels from its point; `spots` `(N, 2)`: all points drawn.

    Of places around the point it takes the one at which, in plots of each of WIDTHS, it covers the fewest names and
    points and leaves the plot least, the nearest first.
    """
    at = [np.array([plane.at(x, y, width) for x, y, _, _ in names]) for width in WIDTHS]
    dots = [_boxes(np.array([plane.at(x, y, width) for x, y in spots]), 5, 5) for width in WIDTHS]
    taken = [_boxes(places, 8, 8) for places in at]
    found = []
    for i, (_, _, _, text) in enumerate(names):
        half = (len(text) + 2.5) * _LETTER_PIXELS / 2
        around = np.array(list(_around(half)))  # (M, 3)
        cost = 0.5 * around[:, 2]
        for width, places, points, boxes in zip(WIDTHS, at, dots, taken, strict=True):
            tried = _boxes(places[i] + around[:, :2], half, _LINE_PIXELS)
            cost += _outside(tried, width, plane.pixels) + _covered(tried, boxes) + 0.2 * _covered(tried, points)
        across, down, _ = around[int(cost.argmin())]
        found.append((float(across), float(down)))
        for k, places in enumerate(at):
            own = _boxes(places[i] + around[int(cost.argmin()), :2], half, _LINE_PIXELS)
            taken[k] = np.vstack([taken[k], own])
    return found


def _around(half: float) -> Iterator[tuple[float, float, float]]:
    """Places for a text of width 2 `half` around a point: across, down, and how far away, in pixels."""
    for reach in (22, 36, 52, 70, 92, 118, 150):
        for sign in (1, -1):
            for down in (0, -reach / 2, reach / 2):
                yield sign * (half + reach - 8), down, reach
            for shift in (0, 0.7, -0.7):
                yield shift * half, -sign * reach, reach


def _boxes(middles: np.ndarray, half: float, tall: float) -> np.ndarray:
    """Left, top, right, bottom `(N, 4)` of boxes around points `(N, 2)`."""
    middles, size = middles.reshape(-1, 2), np.array([half, tall])
    return np.column_stack([middles - size, middles + size])


def _covered(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The area that each box `(M, 4)` shares with all of the others `(N, 4)`."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray((high - low).clip(0).prod(-1).sum(-1))


def _outside(boxes: np.ndarray, width: float, height: float) -> np.ndarray:
    """By how much each box leaves a plot, so weighted that it does so only where it must."""
    over = np.column_stack([-boxes[:, :2], boxes[:, 2:] - [width, height]])
    return np.asarray(50.0 * over.clip(0).sum(-1))


def overhead(rows: pd.DataFrame) -> go.Figure:
    """Seconds per epoch over those of plain training, a line of text per defense, on a logarithmic axis.

    `rows`: model, value, low, high (null where unknown), text (for the hover); the first at the top.
    """
    figure = make_subplots(rows=1, cols=1)
    heights = np.arange(len(rows))[::-1]
    for (_, row), place in zip(rows.iterrows(), heights, strict=True):
        look = style(str(row["model"]))
        figure.add_trace(
            go.Scatter(
                x=[row["value"]], y=[place], mode="markers", name=look.label, showlegend=False,
                error_x={
                    "type": "data", "array": [row["high"] - row["value"]], "arrayminus": [row["value"] - row["low"]],
                    "color": look.colour, "thickness": 1.5, "width": 4,
                },
                marker={"color": look.colour, "symbol": look.symbol, "size": 11}, customdata=[[row["text"]]],
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )  # fmt: skip
        figure.add_annotation(
            x=1, xref="x domain", xanchor="left", y=place, text=f"{row['value']:.3g} ×", showarrow=False, xshift=6,
            font={"size": FONT_PIXELS},
        )  # fmt: skip
    labels = [f"{style(str(model)).label} {glyph(style(str(model)))}" for model in rows["model"]]
    low, high = _axis_range(*(np.log10(rows[name].to_numpy(float)) for name in ("value", "low", "high")), include=[0.0])
    figure.add_vline(x=1, line={"color": GREY, "width": 1.2, "dash": "dot"})
    _heading(figure, "Seconds per epoch over plain training", "dotted: as long; bars: 95 % over seeds", 1)
    figure.update_yaxes(tickvals=heights, ticktext=labels, range=[-0.6, len(rows) - 0.4], automargin=True)
    _finish(figure, TOP + 28 * max(len(rows), 1) + BOTTOM, right=64).update_layout(hovermode="closest")
    ticks = [value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= np.log10(value) <= high]
    return figure.update_xaxes(
        type="log", range=[low, high], showgrid=True, title="times the epoch of plain training", tickvals=ticks
    )


def strength_colours(count: int) -> list[str]:
    """`count` colours from weak to strong: viridis without its ends, which one of the themes would swallow."""
    places = [0.25 + 0.5 * i / max(count - 1, 1) for i in range(count)]
    return list(sample_colorscale("Viridis", places, colortype="rgb"))


def strength_curves(events: pd.DataFrame) -> go.Figure:
    """Accuracy over epochs at each lambda (the paper's Fig. S1): new images above, training images below.

    `events`: lambda, epoch, train_accuracy, test_accuracy. Colour is lambda, dashes are non-members as everywhere.
    """
    height, gap = 640, 0.17
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=gap)
    strengths = sorted(events["lambda"].unique())
    plot = (height - TOP - BOTTOM) * (1 - gap) / 2
    panels = (
        ("test_accuracy", "Accuracy on new images", "dashed: non-members", False),
        ("train_accuracy", "Accuracy on training images", "solid: members", True),
    )
    for row, (column, heading, below, member) in enumerate(panels, start=1):
        panel, ends = _Panel(row, plot, *_axis_range(events[column], include=[0.0])), []
        for strength, colour in zip(strengths, strength_colours(len(strengths)), strict=True):
            part = events[(events["lambda"] == strength) & events[column].notna()].sort_values("epoch")
            look, name = Style("", colour, "circle"), f"lambda {strength:g}"
            line = _line(part["epoch"], part[column], f"{name}, {_member_text(member)}", look, member)
            figure.add_trace(line.update(mode="lines"), row=row, col=1)
            if len(part):
                swatch = f'<span style="color:{colour}">{"━" if member else "╍"}</span>'
                ends.append(_End(part["epoch"].iloc[-1], part[column].iloc[-1], name, GUIDE, member, swatch))
        _label_ends(figure, panel, ends)
        _heading(figure, heading, below, row)
        figure.update_yaxes(range=[panel.low, min(panel.high, 1.03)], row=row, col=1)
    figure.update_xaxes(range=[0, float(events["epoch"].max() if len(events) else 1) + 0.5])
    figure.update_xaxes(title="epoch", row=2, col=1)
    return _finish(figure, height, right=110).update_layout(margin={"l": 48})


def guess(
    curve: pd.DataFrame, means: pd.DataFrame | None = None, model: str | None = None, member: bool | None = None
) -> go.Figure:
    """One image's confidence while its most important pixels vanish, for the guessing game.

    `curve`: level, confidence; `means`: level, member, mean, low, high (the averages, as a hint). Until `model` and
    `member` are given, the curve has a look of its own that gives nothing away.
    """
    height = 380
    figure = make_subplots(rows=1, cols=1)
    panel = _Panel(1, height - TOP - BOTTOM, -0.03, 1.03)
    ends = []
    if means is not None:
        for group, part in means.sort_values("level").groupby("member", sort=False):
            look = Style("", GREY, "circle")
            figure.add_trace(_band(part["level"], part["low"], part["high"], GREY, 0.25))
            text = f"average of {_member_text(bool(group))}"
            figure.add_trace(_line(part["level"], part["mean"], text, look, bool(group)))
            ends.append(_End(part["level"].iloc[-1], part["mean"].iloc[-1], text, look, bool(group)))
    look = Style("", "#56B4E9" if model is None else style(model).colour, "circle")
    text = "this image" if member is None else f"this image: {'member' if member else 'non-member'}"
    figure.add_trace(_line(curve["level"], curve["confidence"], text, look, member is not False))
    figure.data[-1].update(line={"width": 3.5}, marker={"size": 10})
    ends.append(_End(curve["level"].iloc[-1], curve["confidence"].iloc[-1], text, look, member is not False))
    _label_ends(figure, panel, ends)
    _heading(figure, "Confidence in the true class", "of one image", 1)
    figure.update_yaxes(range=[panel.low, panel.high], title="confidence")
    figure.update_xaxes(tickformat=".0%", title="pixels removed, most important first")
    figure.update_xaxes(range=_levels_range(curve["level"]))
    return _finish(figure, height, 190)


ORDER_TEXTS = {"morf": "MoRF: most important pixels first", "lerf": "LeRF: least important pixels first"}
ORDER_SHORT = {"morf": "Confidence, MoRF", "lerf": "Confidence, LeRF"}


def image_curves(
    path: pd.DataFrame, means: pd.DataFrame | None, model: str, level: float, member: bool | None = None,
    narrow: bool = False,
) -> go.Figure:  # fmt: skip
    """One image's confidence along both removal orders over the means of members and non-members, with a cursor.

    `path`: order, level, confidence; `means`: order, level, member, mean, low, high; `level`: where the cursor stands.
    The image's line is dotted while its membership (`member`) is not told. `narrow`: for a third of the page, with a
    key below the headings instead of labels beside the lines.
    """
    height, gap, look = 500, 0.26, style(model)
    orders = [order for order in ORDER_TEXTS if order in set(path["order"])]
    figure = make_subplots(rows=max(len(orders), 1), cols=1, shared_xaxes=True, vertical_spacing=gap)
    pixels = (height - TOP - BOTTOM) * (1 - gap) / 2
    for row, order in enumerate(orders, start=1):
        panel, ends = _Panel(row, pixels, -0.03, 1.03), []
        for group, part in () if means is None else means[means["order"] == order].groupby("member", sort=False):
            part = part.sort_values("level")
            figure.add_trace(_band(part["level"], part["low"], part["high"], look.colour, 0.22), row=row, col=1)
            line = _line(part["level"], part["mean"], _member_text(bool(group)), look, bool(group))
            figure.add_trace(line.update(mode="lines", line={"width": 1.4}), row=row, col=1)
            ends.append(_End(part["level"].iloc[-1], part["mean"].iloc[-1], line.name, look, bool(group)))
        own = path[path["order"] == order].sort_values("level")
        line = _line(own["level"], own["confidence"], "this image", look, member is not False)
        shape = "dot" if member is None else line.line.dash
        figure.add_trace(line.update(line={"width": 3.5, "dash": shape}, marker={"size": 9}), row=row, col=1)
        ends.append(
            _End(own["level"].iloc[-1], own["confidence"].iloc[-1], "<b>this image</b>", look, member is not False)
        )
        if narrow:
            _heading(figure, ORDER_SHORT[order], _key(look, means is not None), row)
        else:
            _label_ends(figure, panel, ends)
            _heading(figure, ORDER_TEXTS[order], "confidence in the class; line: the pixels removed above", row)
        figure.update_yaxes(range=[panel.low, panel.high], title=None if narrow else "confidence", row=row, col=1)
        figure.add_vline(x=level, line={"color": GREY, "width": 2}, row=row, col=1)
    figure.update_xaxes(tickformat=".0%", range=_levels_range(path["level"]))
    figure.update_xaxes(title="pixels removed", row=len(orders), col=1)
    return _narrow(_finish(figure, height, 130)) if narrow else _finish(figure, height, 130)


def _key(look: Style, groups: bool) -> str:
    """What the lines are, where there is no room for labels beside them."""
    colour = f'<span style="color:{look.colour}">'
    means = f"{colour}─</span> members {colour}╌</span> others" if groups else ""
    return f"{colour}<b>━</b></span> this image {means}".strip()


def _narrow(figure: go.Figure) -> go.Figure:
    """A figure for a third of the page: little room at its sides, and few ticks, so that they stay upright."""
    return figure.update_layout(margin={"l": 48, "r": 12}).update_xaxes(nticks=5, tickangle=0)


BINS = 30  # of an audit score's distribution
SHOWN = (0.01, 0.99)  # quantiles between which scores are drawn; those beyond are counted in the outermost bins


def belief(scores: pd.DataFrame, score: float | None, model: str, narrow: bool = False) -> go.Figure:
    """How the audit's scores spread over members and non-members, and where one image stands among them.

    `scores`: member, score (log odds of membership); `score`: the image's own, None where it is not known; `narrow`:
    for a third of the page, with a key below the heading instead of labels beside the lines.
    """
    height, look = 300, style(model)
    figure = make_subplots(rows=1, cols=1)
    known = scores[np.isfinite(scores["score"])]
    low, high = np.quantile(known["score"], SHOWN) if len(known) else (-1.0, 1.0)
    low, high = (low, high) if high > low else (low - 1.0, low + 1.0)
    edges, top, ends = np.linspace(low, high, BINS + 1), 0.0, []
    middles = pd.Series((edges[1:] + edges[:-1]) / 2)
    for group, part in known.groupby("member", sort=False):
        counts = np.histogram(np.clip(part["score"], low, high), edges)[0] / len(part)
        line = _line(middles, pd.Series(counts), _member_text(bool(group)), look, bool(group), ".1%")
        figure.add_trace(line.update(mode="lines", line={"shape": "hvh"}))
        top = max(top, float(counts.max()))
        ends.append(_End(float(middles.iloc[-1]), float(counts[-1]), line.name, look, bool(group)))
    panel = _Panel(1, height - TOP - BOTTOM, 0.0, 1.15 * top or 1.0)
    figure.add_vline(x=0, line={"color": GREY, "width": 1, "dash": "dot"})
    if score is not None and np.isfinite(score):
        x = float(np.clip(score, low, high))
        mark = {"color": look.colour, "size": 14, "symbol": look.symbol, "line": {"width": 1, "color": "white"}}
        figure.add_trace(
            go.Scatter(
                x=[x, x], y=[0.0, 1.04 * top], mode="lines+markers", line={"color": look.colour, "width": 2.5},
                marker=mark | {"opacity": [0.0, 1.0]}, name="this image", hovertemplate=f"score {score:+.2f}",
                showlegend=False,
            )
        )  # fmt: skip
    if narrow:
        _heading(figure, "Audit scores", _key(look, True), 1)
    else:
        _label_ends(figure, panel, ends)
        _heading(figure, "Audit score of all images", "share of each group; marked: this image; dotted: undecided", 1)
    figure.update_yaxes(range=[panel.low, panel.high], title=None if narrow else "share", tickformat=".0%")
    pad = 0.03 * (high - low)
    title = "score: right member" if narrow else "score: left non-member, right member"
    figure.update_xaxes(range=[low - pad, high + pad], title=title)
    _finish(figure, height, 130).update_layout(hovermode="closest")
    return _narrow(figure) if narrow else figure


# ---- fidelity

SCORES: dict[str, str] = {"ssim": "SSIM", "mse": "MSE", "cosine": "Cosine", "cosine_unscaled": "Cosine, unscaled"}
SHUFFLED = Style("Shuffled pairs", GREY, "x")
_ROW = 30  # pixels of one line of dots


def fidelity(means: pd.DataFrame) -> go.Figure:
    """How alike the maps of defended and undefended models are, beside both controls: one panel per score.

    `means`: model, images (`all`, `correct`), metric, pair (`pair`, `shuffled`, `second_seed`), mean, low, high, n, as
    `tables.fidelity` gives them. Filled markers: all images; open ones: those that both models of a pair get right. The
    second seed has nothing to do with the defense, so that one line of it is drawn; which of its images a pair gets
    right does depend on the pair, so that it has an open marker beside a single defended model only.
    """
    models = list(dict.fromkeys(means["model"]))
    lines = [(model, "pair", style(str(model))) for model in models]
    lines += [
        (model, "shuffled", SHUFFLED if len(models) == 1 else Style(f"Shuffled, {style(str(model)).label}", GREY, "x"))
        for model in models
    ]
    lines.append((models[0], "second_seed", style("control")))
    metrics = list(dict.fromkeys(means["metric"]))
    plot, gap = _ROW * len(lines), TOP + 34
    height = TOP + BOTTOM + len(metrics) * plot + (len(metrics) - 1) * gap
    figure = make_subplots(rows=len(metrics), cols=1, vertical_spacing=gap / (height - TOP - BOTTOM))
    for number, metric in enumerate(metrics, 1):
        part = means[means["metric"] == metric]
        for place, (model, pair, look) in enumerate(lines):
            rows = part[(part["model"] == model) & (part["pair"] == pair)]
            for images, shift in (("all", 0.13), ("correct", -0.2)):
                if pair == "second_seed" and images == "correct" and len(models) > 1:
                    continue
                known = rows[(rows["images"] == images) & rows["mean"].notna()]
                figure.add_trace(_dot(known, len(lines) - 1 - place + shift, look, images), row=number, col=1)
        better = "smaller" if metric == "mse" else "larger"
        _heading(figure, SCORES.get(str(metric), str(metric)), f"{better}: more alike", number)
        figure.update_xaxes(range=_axis_range(part["mean"], part["low"], part["high"]), row=number, col=1)
    figure.update_yaxes(
        tickvals=list(range(len(lines)))[::-1], ticktext=[f"{look.label} {glyph(look)}" for _, _, look in lines],
        range=[-0.6, len(lines) - 0.4], showgrid=False, automargin=True,
    )  # fmt: skip
    _finish(figure, height, right=24).update_layout(hovermode="closest")
    return figure.update_xaxes(showgrid=True, nticks=6)


def _dot(rows: pd.DataFrame, place: float, look: Style, images: str) -> go.Scatter:
    """A mean with its interval; `rows` holds one row, or none where there is no mean."""
    of = "all images" if images == "all" else "images that both models get right"
    return go.Scatter(
        x=rows["mean"], y=[place] * len(rows), mode="markers", name=look.label, showlegend=False,
        error_x={
            "type": "data", "array": rows["high"] - rows["mean"], "arrayminus": rows["mean"] - rows["low"],
            "color": look.colour, "thickness": 1.5, "width": 4,
        },
        marker={
            "symbol": look.symbol if images == "all" else f"{look.symbol}-open", "color": look.colour,
            "size": 10 if images == "all" else 8,
        },
        customdata=rows[["low", "high", "n"]],
        hovertemplate=f"{look.label}, {of}<br>%{{x:.3f}} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}}), "
        "n %{customdata[2]}<extra></extra>",
    )  # fmt: skip


def scores(frame: pd.DataFrame, metric: str, model: str) -> go.Figure:
    """The scores of single images behind a mean: the pair, the second seed and the shuffled pairs, on one axis.

    `frame`: `fidelity/scores.parquet`. Solid line: mean; dotted line: median.
    """
    name = SCORES.get(metric, metric)
    panels = (
        ("", style(model), f"{style(model).label} and undefended"),
        ("_second_seed", style("control"), "Two undefended seeds"),
        ("_shuffled", SHUFFLED, "Shuffled pairs"),
    )
    values = [frame[f"{metric}{ending}"].dropna().to_numpy(float) for ending, _, _ in panels]
    low, high = _axis_range(*values)
    bins = {"start": low, "end": high, "size": (high - low) / 50}
    plot, gap = 84, TOP + 8
    height = TOP + BOTTOM + 3 * plot + 2 * gap
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=gap / (height - TOP - BOTTOM))
    for number, ((_, look, text), part) in enumerate(zip(panels, values, strict=True), 1):
        figure.add_trace(
            go.Histogram(
                x=part, xbins=bins, marker={"color": rgba(look.colour, 0.45)}, name=text, showlegend=False,
                hovertemplate=f"{text}<br>{name} %{{x}}: %{{y}} images<extra></extra>",
            ),
            row=number, col=1,
        )  # fmt: skip
        below = "no image has this score"
        if part.size:
            mean, median = float(part.mean()), float(np.median(part))
            below = f"{part.size:,} images: mean {mean:.3f} ━, median {median:.3f} ┈"
            for value, dash in ((mean, "solid"), (median, "dot")):
                figure.add_vline(x=value, line={"color": look.colour, "width": 2.5, "dash": dash}, row=number, col=1)
        _heading(figure, text, below, number)
    figure.update_yaxes(nticks=3)
    figure.update_xaxes(range=[low, high])
    figure.update_xaxes(title=f"{name} of one image ({'smaller' if metric == 'mse' else 'larger'}: more alike)", row=3)
    return _finish(figure, height, right=24).update_layout(hovermode="closest", bargap=0.04)


# ---- attacks from outside

ATTACKS: dict[str, str] = {
    "agp": "Explanations (AGP)", "gap": "Gap", "loss": "Loss", "modified_entropy": "Modified entropy",
    "attribution_variance": "Map variance", "attribution_l1": "Map L1", "attribution_l2": "Map L2",
    "input_gradient_norm": "Gradient norm", "loss_mlp": "Loss MLP", "lira_offline": "LiRA, offline",
    "lira_online": "LiRA, online", "rmia": "RMIA",
}  # fmt: skip
STRICT = (0.001, 0.01)  # false-positive rates at which attacks are compared; the first has the line
_WIDTHS = {"transfer": 1.3, "adaptive": 3.2}  # of a curve by who attacks; dashes mean membership everywhere
_LINES = {"transfer": "thin: transfer", "adaptive": "<b>thick</b>: adaptive"}


def roc(curves: pd.DataFrame, null: pd.DataFrame) -> go.Figure:
    """Members found against false alarms on log-log axes, with the diagonal, the null band and the 0.1 % line.

    `curves`: model, setting (`transfer`, `adaptive`), fpr, tpr, all above 0; `null`: fpr, low, high. A model's marker
    stands at 0.1 % and 1 % where its curve reaches so far: filled on the thin line of who does not know the defense,
    open on the thick one of who does.
    """
    models = list(dict.fromkeys(curves["model"]))
    head, plot = TOP + (LABEL_PIXELS + 2) * len(models), 430
    figure = make_subplots(rows=1, cols=1)
    least = min([STRICT[0] / 1.3, *curves["fpr"]])
    floor = min([STRICT[0] / 1.3, *curves["tpr"]])
    figure.add_trace(_band(null["fpr"], null["low"].clip(lower=floor), null["high"], GREY, 0.25))
    for x, y, dash in (([floor, 1], [floor, 1], "dot"), ([STRICT[0]] * 2, [floor, 1], "solid")):
        line = {"color": GREY, "width": 1.2, "dash": dash}
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False))
    for (model, setting), part in curves.groupby(["model", "setting"], sort=False):
        _roc_line(figure, part, style(str(model)), str(setting))
    key = [
        f"{glyph(style(model))} {style(model).label}: "
        + ", ".join(_LINES[name] for name in dict.fromkeys(part["setting"]))
        for model, part in ((model, curves[curves["model"] == model]) for model in models)
    ]
    _heading(
        figure,
        "Members found against false alarms",
        "<br>".join(["dotted: guessing; grey: 95 % of shuffled memberships", *key]),
        1,
    )
    figure.add_annotation(
        x=np.log10(STRICT[0]), y=0, text="0.1 %", xanchor="left", yanchor="top", showarrow=False, xshift=3,
        font={"size": FONT_PIXELS},
    )  # fmt: skip
    log = {"type": "log", "showgrid": True, "dtick": 1, "minor": {"ticks": ""}}
    figure.update_xaxes(range=[np.log10(least), 0.02], tickformat=".3~%", **log)
    figure.update_yaxes(range=[np.log10(floor), 0.05], tickformat=".3~%", title="members found (TPR)", **log)
    _finish(figure, head + plot + BOTTOM, right=24).update_layout(hovermode="closest", margin={"t": head})
    return figure.update_xaxes(showgrid=True, title="non-members taken for members (FPR)")


def _roc_line(figure: go.Figure, part: pd.DataFrame, look: Style, setting: str) -> None:
    """One attack's curve in steps, with markers at the strict rates that it resolves."""
    part, name = part.sort_values("fpr"), f"{look.label}, {setting}"
    hover = f"{name}<br>false alarms %{{x:.2%}}<br>members found %{{y:.2%}}<extra></extra>"
    common = {"name": name, "showlegend": False, "hovertemplate": hover}
    line = {"color": look.colour, "width": _WIDTHS[setting], "shape": "hv"}
    figure.add_trace(go.Scatter(x=part["fpr"], y=part["tpr"], mode="lines", line=line, **common))
    places = [(rate, part["tpr"][part["fpr"] <= rate * (1 + 1e-9)]) for rate in STRICT]
    marks = [(rate, float(found.iloc[-1])) for rate, found in places if len(found)]
    symbol = look.symbol if setting == "transfer" else f"{look.symbol}-open"
    figure.add_trace(
        go.Scatter(
            x=[rate for rate, _ in marks], y=[value for _, value in marks], mode="markers",
            marker={"color": look.colour, "symbol": symbol, "size": 11}, **common,
        )
    )  # fmt: skip


def attack_dots(rows: pd.DataFrame, heading: str, below: str, axis: str, neutral: float | None) -> go.Figure:
    """Figures of attacks as dots with intervals, a line of text per `name`, the first at the top.

    `rows`: name, model, open (bool: an open marker), value, low, high (null where unknown), text (for the hover).
    `neutral` gets a dotted line: guessing, or no effect; None where nothing of the kind exists.
    """
    names = list(dict.fromkeys(rows["name"]))
    order, several = rows.groupby("name").cumcount(), rows.groupby("name")["name"].transform("size")
    most = int(several.max()) if len(rows) else 1
    line = max(26, 15 * most + 8)  # pixels of a name
    shift = ((several - 1) / 2 - order) / (most + 0.8)
    heights = pd.Series([len(names) - 1 - names.index(name) for name in rows["name"]], rows.index) + shift
    figure = make_subplots(rows=1, cols=1)
    for (model, hollow), part in rows[rows["value"].notna()].groupby(["model", "open"], sort=False):
        look, places = style(str(model)), heights[part.index]
        figure.add_trace(
            go.Scatter(
                x=part["value"], y=places, mode="markers", name=look.label, showlegend=False, customdata=part[["text"]],
                error_x={
                    "type": "data", "array": part["high"] - part["value"], "arrayminus": part["value"] - part["low"],
                    "color": look.colour, "thickness": 1.5, "width": 3,
                },
                marker={"color": look.colour, "size": 10, "symbol": f"{look.symbol}-open" if hollow else look.symbol},
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )  # fmt: skip
    marked = [] if neutral is None else [neutral]
    low, high = _axis_range(rows["value"], rows["low"], rows["high"], include=marked)
    for place in marked:
        figure.add_vline(x=place, line={"color": GREY, "width": 1.2, "dash": "dot"})
    _heading(figure, heading, below, 1)
    figure.update_yaxes(
        tickvals=list(range(len(names)))[::-1], ticktext=names, range=[-0.6, len(names) - 0.4], automargin=True
    )
    figure.update_xaxes(range=[low, high], title=axis, nticks=7)
    head = TOP + LABEL_PIXELS * below.count("<br>")
    _finish(figure, head + line * max(len(names), 1) + BOTTOM, right=24)
    figure.update_layout(hovermode="closest", margin={"t": head})
    return figure.update_xaxes(showgrid=True)


def attack_features(table: pd.DataFrame, model: str) -> go.Figure:
    """Mean confidences of members and non-members of a shadow along both orders, and Welch's t below them.

    `table` as from `tables.attack_features`: order, level, kept, member_mean, nonmember_mean, t. The confidence with
    nothing removed begins both orders. A cross is a feature that the filter dropped.
    """
    look, height, gap = style(model), 780, 0.13
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=gap)
    pixels = (height - TOP - BOTTOM) * (1 - 2 * gap) / 3
    low, high = _axis_range(table["member_mean"], table["nonmember_mean"])
    parts = {order: _of_order(table, order) for order in ORDER_TEXTS}
    for row, (order, part) in enumerate(parts.items(), 1):
        ends = []
        for member, column in ((True, "member_mean"), (False, "nonmember_mean")):
            name = _member_text(member)
            figure.add_trace(_kept_line(part, column, look, name, member), row=row, col=1)
            if len(part):
                swatch = _swatch(look, member)
                ends.append(_End(part["level"].iloc[-1], part[column].iloc[-1], name, look, member, swatch))
        _label_ends(figure, _Panel(row, pixels, low, high), ends)
        _heading(figure, ORDER_TEXTS[order], "mean confidence; crosses: dropped by the filter", row)
        figure.update_yaxes(range=[low, high], title="confidence", row=row, col=1)
    low, high = _axis_range(table["t"], include=[0.0])
    ends = []
    for part, name, width in zip(parts.values(), ("MoRF", "LeRF"), (3.0, 1.3), strict=True):
        known = part[part["t"].notna()]
        figure.add_trace(_kept_line(known, "t", look, name, width=width), row=3, col=1)
        if len(known):
            ends.append(_End(known["level"].iloc[-1], known["t"].iloc[-1], name, look, swatch=_swatch(look)))
    figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=3, col=1)
    _label_ends(figure, _Panel(3, pixels, low, high), ends)
    _heading(figure, "How they separate: Welch's t", "above 0: members are surer; thick MoRF, thin LeRF", 3)
    figure.update_yaxes(range=[low, high], title="t", row=3, col=1)
    levels = table["level"].dropna()
    figure.update_xaxes(tickformat=".0%", range=_levels_range(levels) if len(levels) else None)
    figure.update_xaxes(title="pixels removed", row=3, col=1)
    return _finish(figure, height, 125)


def _of_order(table: pd.DataFrame, order: str) -> pd.DataFrame:
    """The features along one removal order, from the untouched confidence on, which belongs to both."""
    untouched = table["order"].isna() & table["level"].notna()
    return table[untouched | (table["order"] == order)].sort_values("level")


def _swatch(look: Style, member: bool = True) -> str:
    """A piece of a line as text."""
    return f'<span style="color:{look.colour}">{"━" if member else "╍"}</span>'


def _kept_line(
    part: pd.DataFrame, column: str, look: Style, name: str, member: bool = True, width: float = 2.0
) -> go.Scatter:
    """A line with crosses at features that the filter dropped; kept ones have the model's marker."""
    own = look.symbol if member else f"{look.symbol}-open"
    return go.Scatter(
        x=part["level"], y=part[column], mode="lines+markers", name=name, showlegend=False,
        line={"color": look.colour, "width": width, "dash": "solid" if member else "dash"},
        marker={"color": look.colour, "size": [9 if kept else 10 for kept in part["kept"]],
                "symbol": [own if kept else "x-thin" for kept in part["kept"]],
                "line": {"color": look.colour, "width": 2}},
        hovertemplate="%{y:.3f}",
    )  # fmt: skip


ACROSS = 25  # little figures in a row of a hundred
_PAWN = 30  # pixels of such a row


def hundred(table: pd.DataFrame, model: str) -> go.Figure:
    """A hundred little figures, 50 members and 50 non-members: whom the attack calls a member at its threshold.

    `table`: member, said, figures, images, as `tables.hundred` gives it. Filled figures are members, open ones are not;
    large ones in the model's colour are called members, small grey ones are not.
    """
    look, groups = style(model), [group for group in (True, False) if (table["member"] == group).any()]
    count = max(len(groups), 1)
    deep = -(-int(table.groupby("member")["figures"].sum().max()) // ACROSS) if len(table) else 1
    plot, gap = _PAWN * deep * count, TOP * (count - 1)
    spacing = TOP / (plot + gap) if count > 1 else 0.0
    figure = make_subplots(rows=count, cols=1, vertical_spacing=spacing)
    for number, group in enumerate(groups, 1):
        part, texts, start = table[table["member"] == group], [], 0
        for row in part.sort_values("said", ascending=False).to_dict("records"):
            places = np.arange(start, start + row["figures"])
            start += row["figures"]
            colour, verdict = look.colour if row["said"] else GREY, _verdict_text(group, bool(row["said"]))
            scale = 1.0 if row["said"] else PALE
            figure.add_traces(_pawns(places, colour, group, f"{row['figures']} {verdict}", scale), rows=number, cols=1)
            shape = ("▲" if group else "△") if row["said"] else ("▴" if group else "▵")
            texts.append(f'<span style="color:{colour}">{shape}</span> {row["figures"]} {verdict}')
        _heading(figure, f"{start} {_member_text(group)}", "   ".join(texts), number)
    axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "fixedrange": True}
    _finish(figure, TOP + plot + gap + 8, right=8).update_layout(hovermode="closest", margin={"l": 8, "b": 8})
    figure.update_xaxes(range=[-0.7, ACROSS - 0.3], ticks="", **axis)
    return figure.update_yaxes(range=[0.55 - deep, 0.55], ticks="", **axis)


def _verdict_text(member: bool, said: bool) -> str:
    """What it is called when the attack says this of such an image."""
    if member:
        return "found (true positives)" if said else "missed (false negatives)"
    return "accused (false positives)" if said else "cleared (true negatives)"


PALE = 0.6  # size of a little figure that is not called a member, against one that is


def _pawns(places: np.ndarray, colour: str, filled: bool, text: str, scale: float) -> list[go.Scatter]:
    """Little figures, each a head over a body, at numbered places row by row; `scale`: their size."""
    x, y = places % ACROSS, -(places // ACROSS).astype(float)
    return [
        go.Scatter(
            x=x, y=y + shift, mode="markers", showlegend=False, name=text, hovertemplate=f"{text}<extra></extra>",
            marker={"symbol": symbol if filled else f"{symbol}-open", "size": scale * size, "color": colour,
                    "line": {"width": 1.6 * scale, "color": colour}},
        )
        for symbol, size, shift in (("triangle-up", 10, -0.16 * scale), ("circle", 6.5, 0.16 * scale))
    ]  # fmt: skip


def attack_scores(scores: pd.DataFrame, model: str, thresholds: dict[str, float]) -> go.Figure:
    """How an attack's scores spread over members and non-members, with named thresholds as upright lines.

    `scores`: member, score (log odds of membership).
    """
    figure = belief(scores, None, model)
    low, high = figure.layout.xaxis.range
    figure.layout.shapes = ()
    for number, value in enumerate(thresholds.values()):
        if not np.isfinite(value):
            continue
        x = float(np.clip(value, low, high))
        figure.add_vline(x=x, line={"color": GREY, "width": 1.5 + number, "dash": "dot" if number == 0 else "solid"})
    texts = [f"{'dotted' if number == 0 else 'line'}: {name}" for number, name in enumerate(thresholds)]
    figure.layout.annotations[-1].text = f"<b>Scores of the attack</b><br>{', '.join(texts)}"
    return figure


_WRAPPED = 20  # letters of a feature's name from which on it takes two lines


def reasons(table: pd.DataFrame, model: str) -> go.Figure:
    """What moved one image's attack score, and which way: a bar per feature, the largest at the top.

    `table`: text, contribution (of log odds).
    """
    look = style(model)
    figure = make_subplots(rows=1, cols=1)
    values = table["contribution"].astype(float)[::-1]
    names = [text.replace(", ", ",<br>") if len(text) > _WRAPPED else text for text in table["text"]]
    figure.add_trace(
        go.Bar(
            x=values, y=names[::-1], orientation="h", showlegend=False, width=0.6,
            marker={"color": [look.colour if value > 0 else rgba(look.colour, 0.35) for value in values],
                    "line": {"color": look.colour, "width": 1}},
            hovertemplate="%{y}: %{x:+.2f}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(  # of the whole figure: beside long names the panel is narrower than its heading
        title={
            "text": "<b>What moved the score</b><br>right: towards member, left: away", "x": 0, "xref": "container",
            "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}, "font": {"size": FONT_PIXELS},
        }
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    low, high = _axis_range(values, include=[0.0])
    figure.update_xaxes(range=[low, high], title="log odds", nticks=4)
    figure.update_yaxes(automargin=True)
    return _finish(figure, TOP + 30 * max(len(table), 1) + BOTTOM, right=24).update_layout(hovermode="closest")


# ---- quality of maps

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
    holds the intervals of all models shown.
    """
    models, explainers = (list(dict.fromkeys(table[name])) for name in ("model", "explainer"))
    figure = _over_explainers(metrics, explainers, [CONTROL_KEY, *_models_key(models)], "up is better")
    for row, metric in enumerate(metrics, 1):
        part = table[table["metric"] == metric]
        for control in ("random", "edges"):
            _control_band(figure, part, control, len(explainers), row)
        for place, model in enumerate(models):
            shift = 0.5 * ((place + 0.5) / len(models) - 0.5)
            figure.add_trace(_quality_line(part[part["model"] == model], explainers, shift), row=row, col=1)
        bounds = [part[f"{of}{end}"] for of in ("mean", "random", "edges") for end in ("", "_low", "_high")]
        figure.update_yaxes(range=_axis_range(*bounds), title=UNITS[metric], row=row, col=1)
    return figure


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
        figure.update_yaxes(range=_axis_range(*bounds, include=[0.0]), title="change", row=row, col=1)
    return figure


def _over_explainers(metrics: Sequence[str], explainers: Sequence[str], key: Sequence[str], below: str) -> go.Figure:
    """An empty panel for each metric, the explainers across; the key stands in the first heading, `below` in others."""
    head, plot, gap = TOP + LABEL_PIXELS * len(key), 210, TOP + 12
    height = head + BOTTOM + 60 + len(metrics) * plot + (len(metrics) - 1) * gap
    figure = make_subplots(
        rows=len(metrics), cols=1, shared_xaxes=True, vertical_spacing=gap / (height - head - BOTTOM - 60)
    )
    for row, metric in enumerate(metrics, 1):
        _heading(figure, QUALITY[metric], "<br>".join(key) if row == 1 else below, row)
    figure.update_xaxes(
        tickvals=list(range(len(explainers))), ticktext=[EXPLAINERS[str(name)] for name in explainers], tickangle=-45,
        range=[-0.5, len(explainers) - 0.5],
    )  # fmt: skip
    _finish(figure, height, right=16)
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
    figure.add_trace(_band(x, pd.Series([low] * 2), pd.Series([high] * 2), GREY, 0.22), row=row, col=1)
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
        "%{customdata[2]:.3f}), n %{customdata[5]}<br>noise %{customdata[3]:.3f}, edges %{customdata[4]:.3f}"
        "<extra></extra>",
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
        low, high = _axis_range(part["mean"], part["mean_low"], part["mean_high"])
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
    _heading(figure, "Up is better on every axis", "<br>".join(key), 1)
    figure.update_yaxes(range=[-0.02, 1.07], visible=False)
    figure.update_xaxes(range=[-0.5, len(metrics) - 0.5], visible=False)
    _finish(figure, head + 16 + plot + foot, right=12)
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
    _heading(figure, "Sufficiency", "<br>".join(key), 1)
    _heading(figure, "Images without any neighbour", "not defined for these", 2)
    known = sweeps[sweeps["of"] != "random"]["mean"]
    figure.update_yaxes(range=_axis_range(known, list(chances.values())), title=UNITS["sufficiency"], row=1, col=1)
    figure.update_yaxes(range=[-0.05, 1.05], title="share", nticks=4, row=2, col=1)
    figure.update_xaxes(title="threshold, share of the largest distance between two maps", row=2, col=1)
    return _finish(figure, height, right=16).update_layout(hovermode="closest", margin={"t": head, "l": 80})


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
    low, high = _axis_range(*(frame[f"{metric}{ending}"] for ending, _, _ in panels))
    bins, plot, gap = np.linspace(low, high, 31), 104, TOP + 10
    height = TOP + BOTTOM + 3 * plot + 2 * gap
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=gap / (height - TOP - BOTTOM))
    for row, (ending, look, text) in enumerate(panels, 1):
        told = []
        for member in (True, False):
            values = frame.loc[frame["member"].astype(bool) == member, f"{metric}{ending}"].dropna().to_numpy(float)
            dash, name = "solid" if member else "dash", _member_text(member)
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
        _heading(figure, text, ", ".join(told), row)
    figure.update_yaxes(nticks=3, tickformat=".0%", rangemode="tozero")
    figure.update_xaxes(range=[low, high])
    figure.update_xaxes(title=f"{QUALITY[metric]} of one image ({UNITS[metric]})", row=3, col=1)
    return _finish(figure, height, right=16).update_layout(hovermode="closest")
