"""The KL profile of members and non-members, and its tests in the form of the paper's Tables I and III."""

import streamlit as st

from dashboard import components, listing, loaders, state, theme, words
from tier import figures, tables

UNITS = {"sample": "Single images", "batch": "Batch means"}
BANDS = {"mean": "95 % of the mean", "sd": "Standard deviation"}


preset = components.chosen()
components.title(
    "KL divergence",
    """Replace the pixels that an explanation calls most important by the image's mean colour, and measure how far the
    whole answer of the model moves (KL divergence). The paper ranks the pixels by the plain gradient and compares
    members and non-members at each share removed.""",
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    explainer = state.select(
        "Explainer", figures.EXPLAINERS, key="explainer",
        help="What ranks the pixels: the plain gradient, as in the paper, or another explainer's own map.",
    )  # fmt: skip
    unit = state.choose(
        "Unit of the tests", UNITS, key="unit", default="sample",
        help=f"Batch means: of {preset.experiment.divergence.batch} images each. The paper's p-values fit means of "
        "batches, not single images; they can be compared in that mode only.",
    )  # fmt: skip
    band = state.choose("Band", BANDS, key="band", default="mean", help="The paper draws one standard deviation.")
    at = components.choose_strength(preset)
chosen = components.choose_models(preset, at, usual=("none", "tier_full"))
models = {name: loaders.explained(one, explainer) for name, one in chosen.items()}
paper = explainer == "gradient"  # the paper's profile, with a channel reduction of its own

profiles = {name: loaders.frame("divergence", one, "profile.parquet") for name, one in models.items()}
found = {name: frame for name, frame in profiles.items() if frame is not None}
missing = {name: models[name] for name, frame in profiles.items() if frame is None}
if not found and not loaders.any_result(preset):
    components.empty(preset, "KL profiles")
    st.stop()
if found:
    one = models[next(iter(found))]
    drawn = tables.stack({name: tables.profile(frame, unit) for name, frame in found.items()})
    tests = {name: tables.tests(frame, unit) for name, frame in found.items()}
    units = "single images" if unit == "sample" else f"means of {one.divergence.batch} images"
    flat = {name: loaders.flat_maps("divergence", models[name]) for name in found}
    shares = ", ".join(f"{words.label(name)} {count} of {images}" for name, (count, images) in flat.items() if count)
    ranking = f"Gradient (channel reduction {one.divergence.channel_reduction}), as in the paper"
    settings = components.settings_line(
        preset, one, unit=units, explainer=ranking if paper else components.explainer_text(one),
        layer=loaders.layer(one), target="label" if paper else one.explain.target, fill=one.divergence.fill,
        degenerate_maps=shares or None, **components.strength({name: models[name] for name in found}),
    )  # fmt: skip
    components.chart(
        figures.divergence(drawn, band),
        drawn,
        name=f"divergence_{unit}_{explainer}",
        takeaway=words.divergence(tests),
        meaning=f"""If removing the same share of pixels moves the answer more for one group than for the other, the
        movement itself gives membership away. A defense works when solid and dashed lie together, not when they change
        places. {words.flat_maps(flat) or ""}""",
        settings=settings,
    )
    st.subheader("Tests at each share removed", anchor=False)
    note = words.inversions(tests)
    if note:
        st.warning(note, icon=":material/swap_vert:")
    for name, table in tests.items():
        listing.tests(name, table, unit, one.divergence.batch)
    if paper:
        with st.expander("The paper's Tables I and III", icon=":material/article:"):
            listing.papers()
    else:
        st.caption(words.flat(words.PAPER_GRADIENT), width=theme.TEXT_WIDTH)
components.offer("divergence", missing, "profile.parquet")
