"""Lambda and beta under the reader's hand: train a point, and see accuracy against leak for all runs."""

import streamlit as st

from dashboard import components, listing, loaders, point, theme, words
from tier import figures, tables

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

runs, paths = loaders.runs(preset), loaders.paths(preset)
st.subheader("Accuracy against leak, all runs", anchor=False)
if not len(runs):
    components.empty(preset, "finished runs")
    st.stop()
rivals = tables.alternatives(runs, paths)
matched, frontier = tables.matched(runs, rivals), tables.frontier(runs, rivals)
note = words.gap(runs)
planned = "" if preset.experiment.train.schedule == "constant" else words.UNPLANNED
components.chart(
    figures.leak(runs, paths, frontier, runs[runs["key"] == loaders.key("report", one)]),
    runs,
    name="accuracy_against_leak",
    takeaway=" ".join(part for part in (words.leak(matched, len(rivals)), words.frontier(frontier)) if part),
    meaning=f"""Every point is a trained model: to the right it is better on new images, further down it gives less
    away. The coloured lines show plain training and augmentation stopped after each tenth of their epochs. A defense is
    worth its trouble only below these lines. {planned}""",
    settings=components.settings_line(
        preset, preset.experiment, runs=len(runs), seeds=runs["seed"].nunique(),
        leak="the stronger of gap attack and audit", audit=components.audit_text(preset),
        ring="the point chosen above" if len(runs[runs["key"] == loaders.key("report", one)]) else None,
    ),
)  # fmt: skip
st.subheader("At equal accuracy", anchor=False)
st.markdown(
    words.flat(f"""For each TIER run: the rivals without TIER, stopped early or not, that are at least as accurate to
    within 2 points. A positive advantage means that TIER leaks less than the best of them.
    {words.fairness(rivals)}"""),
    width=theme.TEXT_WIDTH,
)
if note:
    st.markdown(note, width=theme.TEXT_WIDTH)
listing.matched(matched)
