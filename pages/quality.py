"""Do the explanations survive a defense? Faithfulness and localisation of maps, each score beside two controls."""

import streamlit as st

from dashboard import components, quality

preset = components.chosen()
components.title(
    "Quality",
    """A defense that changes a model changes its explanations too. Are they still true to the model, and do they still
    point at the object? No score says anything by itself: each stands beside a map of noise and the edges of the image,
    which know nothing of the model, and what a defense changes beside what another training seed does.""",
)
view = quality.choose(preset)
if view is None:
    components.empty(preset, "scores of maps", f"quality {preset.name} --compute")
    quality.about(open_=True)
    st.stop()
quality.table(view)
quality.survival(view)
quality.thresholds(view)
quality.curves(view)
quality.localisation(view)
quality.profile(view)
quality.images(view)
quality.changes(view)
quality.unjudged(view)
quality.about()
