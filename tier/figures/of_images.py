"""One image: its curve, the guess, and what the audit believes."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tier.figures.look import (
    BOTTOM,
    GREY,
    TOP,
    End,
    Panel,
    Style,
    add_heading,
    band_of,
    finished,
    label_ends,
    levels_range,
    line_of,
    member_text,
    style,
)


def guess(
    curve: pd.DataFrame, means: pd.DataFrame | None = None, model: str | None = None, member: bool | None = None
) -> go.Figure:
    """One image's confidence while its most important pixels vanish, for the guessing game.

    `curve`: level, confidence; `means`: level, member, mean, low, high (the averages, as a hint). Until `model` and
    `member` are given, the curve has a look of its own that gives nothing away.
    """
    height = 380
    figure = make_subplots(rows=1, cols=1)
    panel = Panel(1, height - TOP - BOTTOM, -0.03, 1.03)
    ends = []
    if means is not None:
        for group, part in means.sort_values("level").groupby("member", sort=False):
            look = Style("", GREY, "circle")
            figure.add_trace(band_of(part["level"], part["low"], part["high"], GREY, 0.25))
            text = f"average of {member_text(bool(group))}"
            figure.add_trace(line_of(part["level"], part["mean"], text, look, bool(group)))
            ends.append(End(part["level"].iloc[-1], part["mean"].iloc[-1], text, look, bool(group)))
    look = Style("", "#56B4E9" if model is None else style(model).colour, "circle")
    text = "this image" if member is None else f"this image: {'member' if member else 'non-member'}"
    figure.add_trace(line_of(curve["level"], curve["confidence"], text, look, member is not False))
    figure.data[-1].update(line={"width": 3.5}, marker={"size": 10})
    ends.append(End(curve["level"].iloc[-1], curve["confidence"].iloc[-1], text, look, member is not False))
    label_ends(figure, panel, ends)
    add_heading(figure, "Confidence in the true class", "of one image", 1)
    figure.update_yaxes(range=[panel.low, panel.high], title="confidence")
    figure.update_xaxes(tickformat=".0%", title="pixels removed, most important first")
    figure.update_xaxes(range=levels_range(curve["level"]))
    return finished(figure, height, 190)


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
        panel, ends = Panel(row, pixels, -0.03, 1.03), []
        for group, part in () if means is None else means[means["order"] == order].groupby("member", sort=False):
            part = part.sort_values("level")
            figure.add_trace(band_of(part["level"], part["low"], part["high"], look.colour, 0.22), row=row, col=1)
            line = line_of(part["level"], part["mean"], member_text(bool(group)), look, bool(group))
            figure.add_trace(line.update(mode="lines", line={"width": 1.4}), row=row, col=1)
            ends.append(End(part["level"].iloc[-1], part["mean"].iloc[-1], line.name, look, bool(group)))
        own = path[path["order"] == order].sort_values("level")
        line = line_of(own["level"], own["confidence"], "this image", look, member is not False)
        shape = "dot" if member is None else line.line.dash
        figure.add_trace(line.update(line={"width": 3.5, "dash": shape}, marker={"size": 9}), row=row, col=1)
        ends.append(
            End(own["level"].iloc[-1], own["confidence"].iloc[-1], "<b>this image</b>", look, member is not False)
        )
        if narrow:
            add_heading(figure, ORDER_SHORT[order], _key(look, means is not None), row)
        else:
            label_ends(figure, panel, ends)
            add_heading(figure, ORDER_TEXTS[order], "confidence in the class; line: the pixels removed above", row)
        figure.update_yaxes(range=[panel.low, panel.high], title=None if narrow else "confidence", row=row, col=1)
        figure.add_vline(x=level, line={"color": GREY, "width": 2}, row=row, col=1)
    figure.update_xaxes(tickformat=".0%", range=levels_range(path["level"]))
    figure.update_xaxes(title="pixels removed", row=len(orders), col=1)
    return _narrow(finished(figure, height, 130)) if narrow else finished(figure, height, 130)


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
        line = line_of(middles, pd.Series(counts), member_text(bool(group)), look, bool(group), ".1%")
        figure.add_trace(line.update(mode="lines", line={"shape": "hvh"}))
        top = max(top, float(counts.max()))
        ends.append(End(float(middles.iloc[-1]), float(counts[-1]), line.name, look, bool(group)))
    panel = Panel(1, height - TOP - BOTTOM, 0.0, 1.15 * top or 1.0)
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
        add_heading(figure, "Audit scores", _key(look, True), 1)
    else:
        label_ends(figure, panel, ends)
        add_heading(
            figure, "Audit score of all images", "share of each group; marked: this image; dotted: undecided", 1
        )
    figure.update_yaxes(range=[panel.low, panel.high], title=None if narrow else "share", tickformat=".0%")
    pad = 0.03 * (high - low)
    title = "score: right member" if narrow else "score: left non-member, right member"
    figure.update_xaxes(range=[low - pad, high + pad], title=title)
    finished(figure, height, 130).update_layout(hovermode="closest")
    return _narrow(figure) if narrow else figure
