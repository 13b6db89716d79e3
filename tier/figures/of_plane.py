"""Accuracy against leak, training times, and accuracy as the strength of a defense rises."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from tier.figures.look import (
    BOTTOM,
    FONT_PIXELS,
    GREY,
    GUIDE,
    LABEL_PIXELS,
    TOP,
    End,
    Panel,
    Style,
    add_heading,
    axis_range,
    finished,
    glyph,
    label_ends,
    line_of,
    member_text,
    rgba,
    style,
)

FRONTIER = "frontier: least leak"
_NUMBERS = "<br>test accuracy %{x:.3f}<br>leak %{y:.3f}<extra></extra>"  # of a hover text
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
    low, high = axis_range(points["leak"], points["low"], points["high"], paths["leak"], include=[0.5])
    usual = points[points["headline"]]
    left, right = axis_range(points["test_accuracy"], paths["test_accuracy"], usual["test_low"], usual["test_high"])
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
    add_heading(figure, "Up: leaks more. Right: more accurate", below, 1)
    figure.update_yaxes(range=[low, high], title=AXES[axis])
    figure.update_xaxes(range=[left, right], title="test accuracy", showgrid=True)
    finished(figure, height, right=16).update_layout(margin={"t": top, "l": 56})
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
    low, high = axis_range(*(np.log10(rows[name].to_numpy(float)) for name in ("value", "low", "high")), include=[0.0])
    figure.add_vline(x=1, line={"color": GREY, "width": 1.2, "dash": "dot"})
    add_heading(figure, "Seconds per epoch over plain training", "dotted: as long; bars: 95 % over seeds", 1)
    figure.update_yaxes(tickvals=heights, ticktext=labels, range=[-0.6, len(rows) - 0.4], automargin=True)
    finished(figure, TOP + 28 * max(len(rows), 1) + BOTTOM, right=64).update_layout(hovermode="closest")
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
        panel, ends = Panel(row, plot, *axis_range(events[column], include=[0.0])), []
        for strength, colour in zip(strengths, strength_colours(len(strengths)), strict=True):
            part = events[(events["lambda"] == strength) & events[column].notna()].sort_values("epoch")
            look, name = Style("", colour, "circle"), f"lambda {strength:g}"
            line = line_of(part["epoch"], part[column], f"{name}, {member_text(member)}", look, member)
            figure.add_trace(line.update(mode="lines"), row=row, col=1)
            if len(part):
                swatch = f'<span style="color:{colour}">{"━" if member else "╍"}</span>'
                ends.append(End(part["epoch"].iloc[-1], part[column].iloc[-1], name, GUIDE, member, swatch))
        label_ends(figure, panel, ends)
        add_heading(figure, heading, below, row)
        figure.update_yaxes(range=[panel.low, min(panel.high, 1.03)], row=row, col=1)
    figure.update_xaxes(range=[0, float(events["epoch"].max() if len(events) else 1) + 0.5])
    figure.update_xaxes(title="epoch", row=2, col=1)
    return finished(figure, height, right=110).update_layout(margin={"l": 48})
