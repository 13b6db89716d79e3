"""What all figures share: the look of a model, bands and lines, direct labels, headings, margins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

GREY = "#808080"  # 3.9:1 on white and 4.6:1 on the dark ground
LABEL_PIXELS = 17  # smallest distance between two direct labels
FONT_PIXELS = 13
TITLE_PIXELS = 18  # of a figure that stands alone
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


def axis_range(*parts: Any, include: Sequence[float] = ()) -> tuple[float, float]:
    """The smallest range that holds every finite number of `parts` and `include`, with a margin of 6 %."""
    values = np.concatenate([np.ravel(np.asarray(p, dtype=float)) for p in (*parts, include)])
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    pad = 0.06 * (high - low) or 0.05
    return low - pad, high + pad


def levels_range(levels: pd.Series) -> list[float]:
    """The x range of removal levels; set by hand because labels beside the lines would stretch an automatic one."""
    return [float(levels.min()) - 0.015, float(levels.max()) + 0.015]


def band_of(x: pd.Series, low: pd.Series, high: pd.Series, colour: str, alpha: float = 0.16) -> go.Scatter:
    """A shaded band between two curves; rows without both bounds are left out."""
    known = low.notna() & high.notna()
    x, low, high = x[known], low[known], high[known]
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]),
        fill="toself", fillcolor=rgba(colour, alpha), line={"width": 0}, mode="lines",
        hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def line_of(
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
class End:
    """The last point of a line, and what to write beside it."""

    x: float
    y: float
    text: str
    look: Style
    member: bool = True
    swatch: str = ""  # a piece of the line, instead of the marker


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: its place in the subplot grid, its height and its y range."""

    row: int
    pixels: float
    low: float
    high: float


def label_ends(figure: go.Figure, panel: Panel, ends: Sequence[End]) -> None:
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


def add_heading(figure: go.Figure, text: str, below: str, row: int) -> None:
    """A panel's title at its upper left, where it is read before the curves, and below it what is drawn."""
    axis = "y" if row == 1 else f"y{row}"
    figure.add_annotation(
        text=f"<b>{text}</b><br>{below}", x=0, y=1, xref="paper", yref=f"{axis} domain", xanchor="left",
        yanchor="bottom", yshift=6, showarrow=False, align="left", font={"size": FONT_PIXELS},
    )  # fmt: skip


def finished(figure: go.Figure, height: int, right: int = 210) -> go.Figure:
    """The layout that all figures share."""
    figure.update_layout(
        height=height, margin={"l": 64, "r": right, "t": TOP, "b": BOTTOM}, hovermode="x unified", showlegend=False,
        dragmode=False, separators=".,",
    )  # fmt: skip
    figure.update_xaxes(showgrid=False, ticks="outside", title_standoff=8)
    figure.update_yaxes(zeroline=False, title_standoff=8)
    return figure


def titled(figure: go.Figure, title: str) -> go.Figure:
    """The same with a title above all headings, for a figure that stands alone."""
    room = 2 * TITLE_PIXELS
    return figure.update_layout(
        title={
            "text": title, "x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": TITLE_PIXELS // 2}, "font": {"size": TITLE_PIXELS},
        },
        height=figure.layout.height + room, margin_t=figure.layout.margin.t + room,
    )  # fmt: skip


def member_text(member: bool) -> str:
    """A group's name."""
    return "members" if member else "non-members"
