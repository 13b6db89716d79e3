"""The page Attack's threshold slider, with a hundred little figures whom it sorts into members and others."""

import math
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from dashboard import attack_words, attacking, components, state, words
from dashboard.attacking import View
from tier import figures, tables

WIDTH = 700  # pixels; little figures further apart are hard to count
KEY = "threshold"  # of the slider, here and in the address


@dataclass(frozen=True)
class Marks:
    """The thresholds that have a name: the attacker's own, and the best for the target's images (NaN: none)."""

    transferred: float
    calibrated: float

    def meant(self, chosen: float) -> float:
        """The threshold that a stop of the slider stands for: stops have two decimals, those with a name have more."""
        for exact in (self.transferred, self.calibrated):
            if math.isfinite(exact) and chosen == stop(exact):
                return exact
        return chosen


def stop(exact: float) -> float:
    """The slider's stop for a threshold, which is also how it is written."""
    return round(exact, 2) + 0.0


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
    leaf, scores, found = view.leaf(model, who), view.scores(model, who), view.found(model, who)
    if leaf is None or scores is None or found is None:
        return
    threshold = leaf.get("threshold")
    marks = Marks(0.0 if threshold is None else float(threshold), tables.calibrated(scores))
    options = tables.stops(scores, marks.transferred, marks.calibrated)
    _follow(found.key, options, stop(marks.transferred))
    slider(view, model, who, scores, marks, options)


def _follow(attack: str, options: list[float], usual: float) -> None:
    """Set the slider to another attack's own threshold, unless the reader has moved it; then to the nearest stop."""
    before, at = st.session_state.get("threshold_of"), st.session_state.get(KEY)
    st.session_state["threshold_of"] = attack, usual
    if before is None or at is None or before[0] == attack:
        return
    moved = at != before[1]
    st.session_state[KEY] = min(options, key=lambda value: abs(value - at)) if moved else usual


@st.fragment
def slider(view: View, model: str, who: str, scores: pd.DataFrame, marks: Marks, options: list[float]) -> None:
    """The threshold and all that follows from it; only this is drawn anew when it moves."""
    usual = stop(marks.transferred)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=420):
            chosen = state.stop(
                "Threshold (log odds)", options, key=KEY, default=usual,
                help="Above it the attack says 'member'. The arrow keys move it past half a percent of the images.",
            )  # fmt: skip
        st.button(
            f"Transferred: {usual:+.2f}", on_click=_set, args=(usual,), icon=":material/undo:",
            help="The threshold that the shadow model chose.",
        )  # fmt: skip
        if math.isfinite(marks.calibrated):
            best = stop(marks.calibrated)
            st.button(
                f"Calibrated: {best:+.2f}", on_click=_set, args=(best,), icon=":material/straighten:",
                help="The best threshold for these very images: no attacker knows it, and it flatters the attack.",
            )  # fmt: skip
    at = marks.meant(chosen)
    counts = tables.confusion(scores, at)
    with st.container(horizontal=True, gap="medium"):
        for label, name in (("Members found (TPR)", "tpr"), ("False alarms (FPR)", "fpr"),
                            ("Balanced accuracy", "balanced_accuracy")):  # fmt: skip
            value = counts[name]
            st.metric(label, "undefined" if math.isnan(value) else f"{100 * value:.1f} %", width="content")
    settings = view.settings(
        of=model, attack=f"{words.label(model)}, {who}", alpha=attacking.tuned(view, [(model, who)]),
        threshold=f"{chosen:+.2f} (transferred {usual:+.2f})",
    )  # fmt: skip
    with st.container(width=WIDTH):
        components.chart(
            figures.hundred(tables.hundred(counts), model), pd.DataFrame([counts | {"threshold": at, **vars(marks)}]),
            name=f"attack_threshold_{model}_{who}", takeaway=attack_words.threshold(counts),
            meaning="""Move the threshold: to the left the attack accuses more images and finds more members, at the
            price of more false alarms; to the right it names few and is seldom wrong. Each little figure stands for a
            fiftieth of its group; the large ones are called members.""",
            settings=settings,
        )  # fmt: skip
    components.chart(
        figures.attack_scores(scores, model, {f"transferred {usual:+.2f}": usual, f"chosen {chosen:+.2f}": at}),
        scores[["member", "score"]].sort_values("score"), name=f"attack_scores_{model}_{who}",
        takeaway=attack_words.spread(scores, counts, at),
        meaning="""Where the two lines lie on one another, no threshold can tell the groups apart. The outermost steps
        count all scores beyond them, too.""",
        settings=settings, key="spread",
    )  # fmt: skip


def _set(value: float) -> None:
    st.session_state[KEY] = value
