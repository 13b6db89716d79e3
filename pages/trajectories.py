"""The model's confidence along the removal of an explanation's pixels, for members and non-members."""

import streamlit as st

from dashboard import components, loaders, state, words
from tier import figures, tables

ORDERS = {"morf": "MoRF", "lerf": "LeRF"}
EXPLAINERS = {"gradient": "Gradient", "gradcam": "Grad-CAM"}

preset = components.chosen()
components.title(
    "Trajectories",
    """An explanation ranks the pixels of an image. Remove them in that order, one tenth after the other, and follow the
    model's confidence in the true class. Where members (solid) and non-members (dashed) take different paths, the
    explanation gives membership away.""",
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    order = state.choose(
        "Removal order", ORDERS, key="order", default="morf",
        help="MoRF removes the most relevant pixels first, LeRF the least relevant.",
    )  # fmt: skip
    offered = {name: EXPLAINERS.get(name, name) for name in preset.explainers}
    explainer = state.choose("Explainer", offered, key="explainer", default=preset.explainers[0])
    at = components.choose_strength(preset)
models = components.choose_models(preset, at, usual=("none", "tier_full", "control"), control=True)

views = {name: loaders.explained(one, explainer) for name, one in models.items()}
curves = {name: loaders.frame("trajectory", one, "curves.parquet") for name, one in views.items()}
found = {name: frame for name, frame in curves.items() if frame is not None}
missing = {name: views[name] for name, frame in curves.items() if frame is None}
if not found and not loaders.any_result(preset):
    components.empty(preset, "trajectories")
    st.stop()
if found:
    gaps = {name: loaders.frame("trajectory", views[name], "difference.parquet") for name in found}
    stacked = tables.stack(found, order)
    difference = tables.stack({name: frame for name, frame in gaps.items() if frame is not None}, order)
    first = next(name for name in found)
    flat = {name: loaders.flat_maps(views[name]) for name in found}
    flat_text = words.flat_maps(flat)
    shares = ", ".join(f"{words.label(name)} {count} of {images}" for name, (count, images) in flat.items() if count)
    components.chart(
        figures.trajectories(stacked, difference, order),
        stacked.merge(difference, on=["model", "order", "level"], how="left", suffixes=("", "_difference")),
        name=f"trajectories_{order}_{explainer}",
        takeaway=words.trajectories(difference),
        meaning=f"""If the solid and the dashed line of a colour lie apart, someone with the explanation can tell which
        images the model was trained on. The lower panel shows how far apart: a line inside the grey band is no
        evidence. The second seed is a model trained in the same way from other random numbers, so it shows what mere
        chance changes. {flat_text or ""}""",
        settings=components.settings_line(
            preset, views[first], order=ORDERS[order], explainer=EXPLAINERS.get(explainer, explainer),
            layer=loaders.layer(views[first]), target=views[first].explain.target,
            fill=views[first].trajectory.operator, alpha=views[first].trajectory.alpha, degenerate_maps=shares or None,
            **components.strength({name: models[name] for name in found}),
        ),
    )  # fmt: skip
components.offer("trajectory", missing, "curves.parquet")
