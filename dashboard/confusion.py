"""The page Attack's threshold slider, with a hundred little figures whom it sorts into members and others."""

import math

import pandas as pd
import streamlit as st

from dashboard import attack_words, components, state, theme, words
from dashboard.attacking import View
from tier import figures, tables

REACH, STEP = 10.0, 0.05  # of the slider, in log odds
WIDTH = 700  # pixels; little figures further apart are hard to count


def show(view: View) -> None:
    """Which attack is looked at, then its slider."""
    there = [
        (model, who) for model, who in view.attackers
        if view.leaf(model, who) is not None and view.scores(model, who) is not None
    ]  # fmt: skip
    if not there:
        st.caption("No attack with this explainer is stored for these models.")
        return
    names = {f"{model} {who}": f"{figures.style(model).label}, {who}" for model, who in there}
    chosen = state.choose("Attack on", names, key="on", default=next(iter(names)))
    model, who = chosen.split(" ")
    leaf, scores = view.leaf(model, who), view.scores(model, who)
    if leaf is None or scores is None:
        return
    threshold = leaf.get("threshold")
    slider(view, model, who, scores, 0.0 if threshold is None else float(threshold))


@st.fragment
def slider(view: View, model: str, who: str, scores: pd.DataFrame, transferred: float) -> None:
    """The threshold and all that follows from it; only this is drawn anew when it moves."""
    usual = round(round(min(max(transferred, -REACH), REACH) / STEP) * STEP, 2)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=420):
            chosen = state.slide(
                "Threshold (log odds)", -REACH, REACH, key="threshold", default=usual, step=STEP,
                help="Above it the attack says 'member'. The arrow keys move it by one step.",
            )  # fmt: skip
        st.button(
            f"Transferred: {transferred:+.2f}", on_click=_back, args=(usual,), icon=":material/undo:",
            help="Back to the threshold that the shadow model chose.",
        )  # fmt: skip
    # at the slider's nearest step the transferred threshold itself is meant
    at = transferred if math.isclose(chosen, usual, abs_tol=STEP / 2) else chosen
    counts = tables.confusion(scores, at)
    with st.container(horizontal=True, gap="medium"):
        for label, name in (("Members found (TPR)", "tpr"), ("False alarms (FPR)", "fpr"),
                            ("Balanced accuracy", "balanced_accuracy")):  # fmt: skip
            value = counts[name]
            st.metric(label, "undefined" if math.isnan(value) else f"{100 * value:.1f} %", width="content")
    table = tables.hundred(counts)
    with st.container(width=WIDTH):
        components.chart(
            figures.hundred(table, model), pd.DataFrame([counts | {"threshold": at, "transferred": transferred}]),
            name=f"attack_threshold_{model}_{who}", takeaway=attack_words.threshold(counts),
            meaning="""Move the threshold: to the left the attack accuses more images and finds more members, at the
            price of more false alarms; to the right it names few and is seldom wrong. Each little figure stands for a
            fiftieth of its group.""",
            settings=view.settings(
                attack=f"{words.label(model)}, {who}", threshold=f"{at:+.2f} (transferred {transferred:+.2f})"
            ),
        )  # fmt: skip
    marks = {f"transferred {transferred:+.2f}": transferred, f"chosen {at:+.2f}": at}
    alt = f"Scores of {len(scores)} images, with the transferred threshold {transferred:+.2f} and the one chosen."
    components.plot(figures.attack_scores(scores, model, marks), f"attack_scores_{model}_{who}", alt, key="spread")
    st.markdown(
        ":material/lightbulb: Where the two lines lie on one another, no threshold can tell the groups apart. The "
        "outermost steps count all scores beyond them, too.",
        width=theme.TEXT_WIDTH,
    )


def _back(value: float) -> None:
    st.session_state["threshold"] = value
