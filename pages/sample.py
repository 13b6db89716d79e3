"""One image under the lens: models, their maps, the removal path level by level, the attack's belief, a guess."""

import streamlit as st

from dashboard import attacking, components, contest, evidence, inspector, loaders, seen, state
from tier import figures

SOURCES = {"data": "From the data set", "own": "My own"}

preset = components.chosen()
components.title(
    "Sample",
    """One image, as one, two or three models see it. Remove its pixels level by level, compare its curves with those of
    all members and non-members, see what the attack believes, and guess yourself: was the model trained on this
    image?""",
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

bare = loaders.explained(preset.run("none", at.seed), explainer)
images = inspector.catalogue({**models, "none": bare})
if images is None:
    components.empty(preset, "images")
    st.stop()
if source == "own":
    what = inspector.own_image(preset, images)
else:
    inspector.forget_upload()
    scores = loaders.frame("audit", bare, "scores.parquet", ["index", "member", "score"])
    what = inspector.subject(preset, images, scores, figures.EXPLAINERS[explainer])
if what is None:
    st.stop()

known = contest.reveal(preset, what)
views = [seen.see(name, one, explainer, what) for name, one in models.items()]
what = inspector.labelled(what, [view.look for view in views])
seen.complete(what, views)
contest.show(preset, what, views, images, known)
evidence.show_maps(what, views, known)
evidence.show_nearest(preset, what, known)
evidence.walk(preset, what, views, what.member if known else None)
evidence.show_belief(preset, what, views)
if what.row is not None:
    runs = {name: loaders.explained(one, explainer) for name, one in models.items()}
    attacking.show_reasons(preset, runs, what.row, what.number)
st.caption(
    ":material/link: The address of this page reopens this view: copy it from the browser to share it."
    if "me" not in st.query_params
    else ":material/link: While a run that you asked for goes on, the address carries your right to cancel it "
    "(me=...). Wait until it is done before you share it."
)
