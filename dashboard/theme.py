"""The look that pages share and Streamlit's theme cannot hold: chart settings, number formats, coloured names.

Colours of the surface are in `.streamlit/config.toml` beside `app.py`, colours of models in `tier/figures/`.
"""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tier import figures

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TEXT_WIDTH = 760  # pixels; longer lines are hard to read
IMAGE_FORMATS = ("SVG", "PNG")
INK = "#000037"  # Streamlit's Plotly theme puts the strong text colour of the light or dark theme in its place


def chart_config(name: str, image_format: str) -> dict[str, Any]:
    """Plotly's settings for one chart: a quiet toolbar, and a camera that saves `name` in the format chosen."""
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
        "toImageButtonOptions": {"format": image_format.lower(), "filename": name, "scale": 2},
    }


def ink(figure: go.Figure) -> go.Figure:
    """A figure with its words in the theme's strong text colour; the chart theme's own grey is too pale to read."""
    figure.update_layout(font_color=INK)
    figure.update_annotations(font_color=INK)
    figure.update_xaxes(tickfont_color=INK, title_font_color=INK)
    figure.update_yaxes(tickfont_color=INK, title_font_color=INK)
    return figure


def tag(model: str) -> str:
    """A model's name in Markdown behind its marker in its colour."""
    look = figures.style(model)
    return f':color[{figures.GLYPHS[look.symbol][0]}]{{foreground="{look.colour}"}} {look.label}'
