"""What is at stake, the key figures, and a game: can you tell members from their curves?"""

import streamlit as st

from dashboard import components, game, loaders, sitemap, theme, words
from tier import tables

SHOWN = ("none", "augmentation", "tier_full")

preset = components.chosen()
components.title("Can an explanation give away who was in the training data?", " ".join(words.STAKES))

runs = loaders.runs(preset)
summary = tables.summary(runs)
if not len(summary):
    components.empty(preset, "results")
    st.stop()

st.subheader("Key figures", anchor=False)
st.markdown(words.overview(summary), width=theme.TEXT_WIDTH)
note = words.gap(runs[runs["headline"] & runs["model"].isin(SHOWN)])
if note:
    st.markdown(note, width=theme.TEXT_WIDTH)
rows = tables.by_model(summary)
with st.grid(len(SHOWN), min_column_width=160):
    for model in SHOWN:
        components.key_figure(model, rows.get(model))
components.caption_with_data(
    components.settings_line(
        preset, preset.experiment, seeds=summary["seeds"].max(), attack="the stronger of audit and gap attack",
        audit=components.audit_text(preset),
    ),
    summary, "key_figures",
)  # fmt: skip
components.about_data(preset)

st.subheader("Guess: was this image in the training data?", anchor=False)
game.play(preset)

st.subheader("Where to go next", anchor=False)
with st.grid(3):
    sitemap.card(
        "trajectories",
        "See the fingerprint",
        "The curves of members and non-members, and whether they differ by more than chance.",
    )
    sitemap.card(
        "train", "Turn the dials", "Train a model with your own lambda and beta and watch what it learns and leaks."
    )
    sitemap.card(
        "tradeoff",
        "Choose a defense",
        "Accuracy against leak for TIER and nine rivals: which leaks least at the accuracy you need?",
    )
    sitemap.card(
        "paper",
        "Check the paper",
        "Every number of its tables beside ours: what agrees, what does not, and where it contradicts itself.",
    )
    sitemap.card(
        "explanations",
        "Judge by eye",
        "What the undefended and the defended model look at, image by image, with scores beside honest controls.",
    )
    sitemap.card(
        "quality",
        "Ask whether the maps are any good",
        "Faithfulness and localisation of every explainer with and without TIER, beside noise and the image's edges.",
    )
    sitemap.card(
        "sample",
        "Take one image apart",
        "Its maps, its removal path and the attack's belief; guess yourself, or bring an image of your own.",
    )
    sitemap.card(
        "attack",
        "Attack from outside",
        "What an attacker finds who has other images only, whether knowing the defense helps, and other attacks.",
    )
    sitemap.card(
        "divergence",
        "Watch the answer move",
        "How far it moves when pixels are removed, with the tests of the paper's Tables I and III.",
    )
