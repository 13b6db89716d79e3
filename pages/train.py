"""Lambda and beta under the reader's hand: train a point, and see where it lies among the preset's defenses."""

import streamlit as st

from dashboard import components, point

preset = components.chosen()
components.title(
    "Train",
    """Choose how strongly TIER acts (lambda) and how much of it goes into making the losses of confidence equal (beta).
    Points on the grid are stored: press Train and they appear at once. Any other point is trained in the background
    while you watch.""",
)
if not point.trainable(preset):
    components.empty(preset, "settings of TIER")
    st.stop()
grid = st.grid(5, min_column_width=120, gap="large")  # on a narrow screen the two parts stand one below the other
with grid.cell(column_span=2):
    one, asked = point.choose(preset)
with grid.cell(column_span=3):
    point.show(preset, one, asked)
point.among(preset, one)
