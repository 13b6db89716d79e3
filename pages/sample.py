"""One image under the lens: two models, their maps, the removal path level by level, the attack's belief, a guess."""

import streamlit as st

from dashboard import components, inspector, loaders, state
from tier import figures

SOURCES = {"data": "From the data set", "own": "My own"}

preset = components.chosen()
components.title(
    "Sample",
    """One image, as two models see it. Remove its pixels level by level, compare its curves with those of all members
    and non-members, see what the attack believes, and guess yourself: was the model trained on this image?""",
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    source = state.choose("Image", SOURCES, key="source", default="data")
    with st.container(width=260):
        explainer = state.select("Explainer", figures.EXPLAINERS, key="explainer")
    at = components.choose_strength(preset)
models = components.choose_models(preset, at, usual=("none", "tier_full"), control=True)
if len(models) > inspector.MOST_MODELS:
    state.note(f"Only {inspector.MOST_MODELS} models fit side by side; the first ones are shown.")
    models = dict(list(models.items())[: inspector.MOST_MODELS])

bare = preset.run("none", at.seed)
images = inspector.catalogue({**models, "none": bare})
if images is None:
    components.empty(preset, "images")
    st.stop()
if source == "own":
    what = inspector.own_image(preset, images)
else:
    scores = loaders.frame("audit", bare, "scores.parquet", ["index", "member", "score"])
    what = inspector.subject(preset, images, scores)
if what is None:
    st.stop()

reveal = what.number is not None and state.switch(
    "Reveal membership", key="reveal", help="Shows the answer without counting a guess."
)
known = reveal or what.number in inspector.guesses(preset)
seen = [inspector.see(name, one, explainer, what) for name, one in models.items()]
what = inspector.labelled(what, seen)
inspector.complete(what, seen)
inspector.show_contest(preset, what, seen, images, known)
inspector.show_maps(what, seen, known)
inspector.show_nearest(preset, what, known)
inspector.walk(preset, what, seen, what.member if known else None)
inspector.show_belief(preset, what, seen)
st.caption(":material/link: The address of this page reopens this view: copy it from the browser to share it.")
