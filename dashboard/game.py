"""The guessing game of the Overview: one image's curve, two buttons, a running score."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, loaders, state, theme, words
from tier import figures, tables
from tier.config import Experiment
from tier.presets import Preset

ROUNDS = 20
DEAL = 0  # the seed that picks the images, the same for a whole class


def play(preset: Preset) -> None:
    """Draw the game; what was guessed is kept for the session, per model and image."""
    names = {d.name: figures.style(d.name).label for d in preset.defenses}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        model = state.choose("Model", names, key="game", default=next(iter(names)))
        reveal = state.switch("Reveal membership", key="reveal", help="Shows the answer without counting a guess.")
        hint = state.switch("Show the averages", key="hint", help="The mean curves of all members and non-members.")
    one = preset.run(model, preset.seeds[0])
    samples = loaders.frame("trajectory", one, "samples.parquet")
    if samples is None:
        components.offer("trajectory", {model: one}, "samples.parquet")
        return
    rounds = tables.game(samples, loaders.frame("audit", one, "scores.parquet"), DEAL, ROUNDS)
    image = st.pagination(len(rounds), key="image_number", bind=state.BIND)
    _round(preset, one, model, rounds, min(max(image, 1), len(rounds)) - 1, reveal, hint)


def _round(
    preset: Preset, one: Experiment, model: str, rounds: pd.DataFrame, number: int, reveal: bool, hint: bool
) -> None:
    guesses = _guesses(preset.name, model)
    row: dict[Any, Any] = rounds.to_dict("records")[number]
    attack = None if pd.isna(row["attack"]) else bool(row["attack"])
    known = reveal or number in guesses
    curves = loaders.frame("trajectory", one, "curves.parquet") if hint else None
    means = None if curves is None else curves[curves["order"] == "morf"]
    line = tables.curve(row, one.trajectory.levels)
    member = bool(row["member"]) if known else None
    figure = figures.guess(line, means, model if known else None, member)
    chart, side = st.columns([3, 1], gap="medium", vertical_alignment="center")
    with chart:
        alt = words.one_curve(number + 1, line)
        components.plot(figure, f"image_{number + 1}", alt, key="game_chart")
    with side:
        st.markdown(f"**Image {number + 1} of {len(rounds)}**")
        if known:
            if number in guesses:
                st.markdown(words.answer(bool(row["member"]), guesses[number], attack))
            else:
                st.markdown(words.truth(bool(row["member"])))
            st.button(
                "Next image",
                key="next",
                on_click=_next,
                args=(len(rounds),),
                icon=":material/arrow_forward:",
                width="stretch",
                wrap=True,
            )
        else:
            st.button(
                "Member",
                key="guess_member",
                on_click=_guess,
                args=(preset.name, model, number, True),
                width="stretch",
                wrap=True,
                icon=":material/school:",
            )
            st.button(
                "Not a member",
                key="guess_other",
                on_click=_guess,
                args=(preset.name, model, number, False),
                width="stretch",
                wrap=True,
                icon=":material/visibility_off:",
            )
        _score(rounds, guesses)
    st.markdown(
        ":material/lightbulb: A curve that stays high for long hints at an image the model knows. Against a good "
        "defense the game becomes a coin toss.",
        width=theme.TEXT_WIDTH,
    )
    settings = components.settings_line(
        preset,
        one,
        order="MoRF",
        explainer=one.explain.name,
        fill=one.trajectory.operator,
        target=one.explain.target,
        seed=one.train.seed,
    )
    components.caption_with_data(settings, line, f"image_{number + 1}", key="game")


def _score(rounds: pd.DataFrame, guesses: dict[int, bool]) -> None:
    """How the reader and the audit did on the images guessed so far."""
    right = sum(bool(rounds["member"][i]) == guess for i, guess in guesses.items())
    known = all(pd.notna(rounds["attack"][i]) for i in guesses)
    attack = sum(bool(rounds["attack"][i]) == bool(rounds["member"][i]) for i in guesses) if known else None
    st.markdown(words.score(right, attack, len(guesses)))


def _guesses(preset: str, model: str) -> dict[int, bool]:
    """The session's guesses for one model, by image number."""
    made: dict[int, bool] = st.session_state.setdefault(f"guesses_{preset}_{model}", {})
    return made


def _guess(preset: str, model: str, number: int, member: bool) -> None:
    _guesses(preset, model)[number] = member


def _next(rounds: int) -> None:
    st.session_state["image_number"] = st.session_state["image_number"] % rounds + 1
