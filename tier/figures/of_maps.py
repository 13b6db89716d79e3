"""Likeness of maps beside their controls."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tier.figures.look import BOTTOM, GREY, TOP, Style, add_heading, axis_range, finished, glyph, rgba, style

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
        add_heading(figure, SCORES.get(str(metric), str(metric)), f"{better}: more alike", number)
        figure.update_xaxes(range=axis_range(part["mean"], part["low"], part["high"]), row=number, col=1)
    figure.update_yaxes(
        tickvals=list(range(len(lines)))[::-1], ticktext=[f"{look.label} {glyph(look)}" for _, _, look in lines],
        range=[-0.6, len(lines) - 0.4], showgrid=False, automargin=True,
    )  # fmt: skip
    finished(figure, height, right=24).update_layout(hovermode="closest")
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
    low, high = axis_range(*values)
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
        add_heading(figure, text, below, number)
    figure.update_yaxes(nticks=3)
    figure.update_xaxes(range=[low, high])
    figure.update_xaxes(title=f"{name} of one image ({'smaller' if metric == 'mse' else 'larger'}: more alike)", row=3)
    return finished(figure, height, right=24).update_layout(hovermode="closest", bargap=0.04)
