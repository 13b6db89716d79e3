"""What the paper prints, drawn into figures of ours: open markers on dotted lines."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from tier.figures.look import EXPLAINERS, LABEL_PIXELS, member_text, style
from tier.figures.of_quality import model_shift


def with_printed_means(figure: go.Figure, model: str, printed: pd.DataFrame, source: str) -> go.Figure:
    """A figure of `divergence` with the means that the paper prints of that model, and where it prints them.

    `printed`: member, level, value.
    """
    look = style(model)
    for member, part in printed.sort_values("level").groupby("member", sort=False):
        figure.add_trace(
            go.Scatter(
                x=part["level"], y=part["value"], mode="lines+markers", name=f"the paper, {member_text(bool(member))}",
                showlegend=False, line={"color": look.colour, "width": 1.2, "dash": "dot"},
                marker={
                    "size": 12, "color": look.colour, "symbol": "square-open" if member else "triangle-up-open",
                },
                hovertemplate="%{y:g}",
            )
        )  # fmt: skip
    low, high = figure.layout.yaxis.range
    figure.update_yaxes(range=[low, max(high, 1.06 * printed["value"].max())])
    members, others = member_text(True), member_text(False)
    return _with_a_line_more(figure, f"dotted: the paper's {source}, □ {members}, △ {others}")


def with_printed_scores(
    figure: go.Figure, table: pd.DataFrame, metrics: Sequence[str], printed: str, source: str
) -> go.Figure:
    """A figure of `quality_curves` of that table and those metrics with the paper's numbers, and where it prints them.

    `printed`: the table's column that has them. Explainers of which ours are not known have the paper's marker alone.
    """
    models, explainers = (list(dict.fromkeys(table[name])) for name in ("model", "explainer"))
    for row, metric in enumerate(metrics, 1):
        part = table[table["metric"] == metric]
        for place, model in enumerate(models):
            look, of_model = style(str(model)), part[part["model"] == model]
            shift = model_shift(place, len(models))
            figure.add_trace(
                go.Scatter(
                    x=[explainers.index(name) + shift for name in of_model["explainer"]], y=of_model[printed],
                    name=f"the paper, {look.label}", mode="lines+markers", showlegend=False,
                    line={"color": look.colour, "width": 1, "dash": "dot"},
                    marker={"symbol": f"{look.symbol}-open", "size": 9, "color": look.colour},
                    text=[EXPLAINERS[str(name)] for name in of_model["explainer"]],
                    hovertemplate=f"the paper, {look.label}, %{{text}}<br>%{{y:g}}<extra></extra>",
                ),
                row=row, col=1,
            )  # fmt: skip
        low, high = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].range
        pad = 0.06 * (high - low)
        span = [min(low, part[printed].min() - pad), max(high, part[printed].max() + pad)]
        figure.update_yaxes(range=span, row=row, col=1)
    return _with_a_line_more(figure, f"open markers, dotted: the paper's {source}")


def _with_a_line_more(figure: go.Figure, text: str) -> go.Figure:
    """The same with a line more in the first heading, and the room for it."""
    first_heading(figure).text += f"<br>{text}"
    return figure.update_layout(
        height=figure.layout.height + LABEL_PIXELS, margin_t=figure.layout.margin.t + LABEL_PIXELS
    )


def first_heading(figure: go.Figure) -> go.layout.Annotation:
    """The title of a figure's first panel."""
    return next(note for note in figure.layout.annotations if note.text.startswith("<b>"))
