"""Who guesses right: the reader or the attack.

The guesses belong to a preset, not to a model: all its models share their members, so that an image that has been
told for one is told for all. They last as long as the visit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import inspector, state, theme, words
from dashboard.inspector import Subject
from dashboard.seen import Seen
from tier import figures
from tier.presets import Preset


@dataclass(frozen=True)
class Guess:
    """What the reader said of an image, and whether it counts: not after it was told, nor where Hardest led."""

    member: bool
    counts: bool


def guesses(preset: Preset) -> dict[int, Guess]:
    """The visit's guesses, by image number."""
    made: dict[int, Guess] = st.session_state.setdefault(f"sample_guesses_{preset.name}", {})
    return made


def reveal(preset: Preset, what: Subject) -> bool:
    """The switch that tells an image's membership without a guess; whether this image's is told."""
    if what.number is None:
        return False
    shown = state.switch("Reveal membership", key="reveal", help="Shows the answer; a guess no longer counts then.")
    if shown and what.number not in guesses(preset):
        _told(preset).add(what.number)
    return shown or what.number in guesses(preset)


def _told(preset: Preset) -> set[int]:
    """The numbers of the images whose membership was revealed before a guess."""
    told: set[int] = st.session_state.setdefault(f"sample_told_{preset.name}", set())
    return told


def _guess(preset: Preset, number: int, member: bool) -> None:
    counts = number not in _told(preset) and number not in inspector.picked()
    guesses(preset)[number] = Guess(member, counts)


def show(preset: Preset, what: Subject, seen: Sequence[Seen], images: pd.DataFrame, known: bool) -> None:
    """Guess buttons, or the answer; and how reader and attack have done so far."""
    if what.number is None or what.member is None:
        return
    made = guesses(preset)
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if not known:
                st.markdown("**Was the model trained on this image?**", width="content")
                for label, key, icon, member in (
                    ("Member", "M", "school", True), ("Not a member", "O", "visibility_off", False),
                ):  # fmt: skip
                    st.button(
                        label, key=f"sample_{key}", on_click=_guess, args=(preset, what.number, member), shortcut=key,
                        icon=f":material/{icon}:", help=f"Key: {key}.",
                    )  # fmt: skip
            elif what.number in made:
                st.markdown(words.answer(what.member, made[what.number].member, None), width="content")
            else:
                st.markdown(words.truth(what.member), width="content")
        counted = {number: guess.member for number, guess in made.items() if guess.counts}
        st.markdown(_score_text(counted, seen, images))
        explainer = figures.EXPLAINERS[seen[0].one.explain.name]
        st.caption(words.contest_rules(explainer, len(made) - len(counted)), width=theme.TEXT_WIDTH)


def _score_text(made: Mapping[int, bool], seen: Sequence[Seen], images: pd.DataFrame) -> str:
    """How reader and attack did on the images whose guesses count; an attack that cannot decide is half right."""
    cards = inspector.deck(images)
    truth = dict(zip(images["index"], images["member"].astype(bool), strict=True))
    rows = {number: int(cards[number - 1]) for number in made if number <= len(cards)}
    attacks = {}
    for one in seen:
        if one.scores is not None:
            scores = dict(zip(one.scores["index"], one.scores["score"], strict=True))
            views = {row: words.decided(scores[row]) for row in rows.values() if np.isfinite(scores.get(row, np.nan))}
            points = [0.5 if view is None else float(view == truth[row]) for row, view in views.items()]
            attacks[one.model] = sum(points), len(points)
    return words.contest(sum(truth[row] == made[number] for number, row in rows.items()), len(rows), attacks)
