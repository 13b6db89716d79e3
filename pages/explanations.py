"""Maps of undefended and defended models side by side, judged by eye and by scores with honest controls."""

import streamlit as st

from dashboard import averages, components, gallery, loaders, sheet, triplets

PARTS = {triplets.TRIPLETS: gallery.show, triplets.AVERAGES: averages.show, triplets.SHEET: sheet.show}

preset = components.chosen()
components.title(
    "Explanations",
    """Does a defended model still look at the same pixels as the undefended one? Judge triplets by eye: the image, the
    undefended model's map, the defended model's. Scores say how alike two maps are, and mean something only beside
    their controls: maps of two different images, and two undefended models that differ in nothing but their seed
    (which the models of a triplet share).""",
)
view = triplets.choose(preset)
if not view.galleries and not view.scores and not loaders.any_result(preset):
    components.empty(preset, "explanations")
    st.stop()
tabs = triplets.tabs(view)
for name, show in PARTS.items():
    if tabs[name].open:
        with tabs[name]:
            show(view)
