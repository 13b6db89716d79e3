"""The model's confidence along the removal of an explanation's pixels, for members and non-members."""

import pandas as pd
import streamlit as st

from dashboard import components, loaders, state, words
from tier import figures, tables
from tier.config import Experiment
from tier.presets import Preset

ORDERS = {"morf": "MoRF", "lerf": "LeRF"}
VIEWS = {"one": "One explainer", "all": "All explainers"}
ADDED = """The distance between solid and dashed with nothing removed is the model's surer answer on images that it
    has seen: it gives membership away without any explanation. What an explanation adds is a distance that grows on the
    way; growth counts as more than chance where it exceeds half the width of the null band."""


def one_explainer(preset: Preset, explainer: str, order: str, models: dict[str, Experiment]) -> None:
    """The curves of one explainer with their differences, and an offer to compute what is missing."""
    views = {name: loaders.explained(one, explainer) for name, one in models.items()}
    curves = {name: loaders.frame("trajectory", one, "curves.parquet") for name, one in views.items()}
    found = {name: frame for name, frame in curves.items() if frame is not None}
    missing = {name: views[name] for name, frame in curves.items() if frame is None}
    if not found and not loaders.any_result(preset):
        components.empty(preset, "trajectories")
        return
    if found:
        gaps = {name: loaders.frame("trajectory", views[name], "difference.parquet") for name in found}
        stacked = tables.stack(found, order)
        difference = tables.stack({name: frame for name, frame in gaps.items() if frame is not None}, order)
        first = views[next(iter(found))]
        flat = {name: loaders.flat_maps("trajectory", views[name]) for name in found}
        shares = ", ".join(f"{words.label(name)} {count} of {n}" for name, (count, n) in flat.items() if count)
        components.chart(
            figures.trajectories(stacked, difference, order),
            stacked.merge(difference, on=["model", "order", "level"], how="left", suffixes=("", "_difference")),
            name=f"trajectories_{order}_{explainer}",
            takeaway=words.trajectories(tables.gaps(difference.assign(explainer=explainer))),
            meaning=f"""{ADDED} The lower panel shows the distance between the solid and the dashed line of a colour:
            one inside the grey band is no evidence. The second seed is a model trained in the same way from other
            random numbers, so it shows what mere chance changes. {words.flat_maps(flat) or ""}""",
            settings=components.settings_line(
                preset, first, order=ORDERS[order], explainer=components.explainer_text(first),
                layer=loaders.layer(first), target=first.explain.target, fill=first.trajectory.operator,
                alpha=first.trajectory.alpha, degenerate_maps=shares or None,
                **components.strength({name: models[name] for name in found}),
            ),
        )  # fmt: skip
    components.offer("trajectory", missing, "curves.parquet")


def all_explainers(preset: Preset, order: str, models: dict[str, Experiment]) -> None:
    """The curves of every explainer in small panels of one scale, and an offer to compute what is missing."""
    curves: dict[str, dict[str, pd.DataFrame]] = {name: {} for name in figures.EXPLAINERS}
    gaps: dict[str, dict[str, pd.DataFrame]] = {name: {} for name in figures.EXPLAINERS}
    missing: dict[str, Experiment] = {}
    for explainer, label in figures.EXPLAINERS.items():
        for model, one in models.items():
            view = loaders.explained(one, explainer)
            frame = loaders.frame("trajectory", view, "curves.parquet")
            gap = loaders.frame("trajectory", view, "difference.parquet")
            if frame is None:
                missing[f"{label}, {words.label(model)}"] = view
            else:
                curves[explainer][model] = frame
            if gap is not None:
                gaps[explainer][model] = gap
    stacked, difference = tables.by_explainer(curves, order), tables.by_explainer(gaps, order)
    if not len(stacked) and not loaders.any_result(preset):
        components.empty(preset, "trajectories")
        return
    if len(stacked):
        gathered = tables.gaps(difference)
        first = next(iter(models.values()))
        components.chart(
            figures.trajectory_grid(stacked, gathered, order),
            stacked.merge(
                difference, on=["explainer", "model", "order", "level"], how="left", suffixes=("", "_difference")
            ),
            name=f"trajectories_{order}_all",
            takeaway=words.trajectory_grid(gathered),
            meaning=f"""Each panel is one way of ranking the pixels. All begin at the same height, because nothing has
            been removed yet. {ADDED}""",
            settings=components.settings_line(
                preset, first, order=ORDERS[order], explainers="each with its own settings, named under One explainer",
                target=first.explain.target, fill=first.trajectory.operator, alpha=first.trajectory.alpha,
                **components.strength(models),
            ),
        )  # fmt: skip
    components.offer("trajectory", missing, "curves.parquet")


preset = components.chosen()
components.title(
    "Trajectories",
    """An explanation ranks the pixels of an image. Remove them in that order, one tenth after the other, and follow the
    model's confidence in the true class. Members (solid) and non-members (dashed) may lie apart from the start, which
    is the model's own doing; where the distance grows on the way, the explanation adds to it.""",
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    view = state.choose("View", VIEWS, key="view", default="one")
    if view == "one":
        first = preset.explainers[0]  # the default
        offered = {first: figures.EXPLAINERS[first], **figures.EXPLAINERS}
        explainer = state.select("Explainer", offered, key="explainer", help="What ranks the pixels of an image.")
    order = state.choose(
        "Removal order", ORDERS, key="order", default="morf",
        help="MoRF removes the most relevant pixels first, LeRF the least relevant.",
    )  # fmt: skip
    at = components.choose_strength(preset)
usual = ("none", "tier_full", "control") if view == "one" else ("none", "tier_full")
models = components.choose_models(preset, at, usual=usual, control=True)
if view == "one":
    one_explainer(preset, explainer, order, models)
else:
    all_explainers(preset, order, models)
