"""What speaks for the image looked at: its maps, its nearest training image, its removal path, the attack's belief."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from dashboard import components, loaders, state, theme, triplets, words
from dashboard.inspector import MOST_MODELS, Subject
from dashboard.seen import Seen
from tier import figures, pictures, tables
from tier.presets import Preset

ORDERS = {"morf": "MoRF", "lerf": "LeRF"}
SIZE = 256  # pixels that an image takes on the screen


# ---- the image and its maps


def show_maps(what: Subject, seen: Sequence[Seen], known: bool) -> None:
    """The image, and beside it each model's prediction and map."""
    signed = any(pictures.has_sign(one.one.explain) for one in seen)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        shared = state.choose("Scale", triplets.SCALES, key="scale", default="own") == "shared"
        absolute = False
        if signed:
            absolute = state.choose("Values", triplets.SIGNS, key="sign", default="signed") == "absolute"
        else:
            state.absent("sign")
    limit = pictures.limit_of([one.look.map for one in seen if one.look is not None]) if shared else None
    first, *others = st.columns(1 + len(seen), gap="medium")
    with first:
        _show_image(what, known)
    for column, one in zip(others, seen, strict=True):
        with column:
            _show_map(what, one, limit, absolute)
    st.caption(pictures.legend_text(signed, shared, absolute))
    if what.assumed:
        _say_assumed(what, seen)


def _show_image(what: Subject, known: bool) -> None:
    st.markdown(f"**{what.title}**")
    name = None if what.label is None else words.class_name(what.names, what.label)
    if what.pixels is None:
        st.info("The image itself is not on this machine.", icon=":material/hide_image:")
    else:
        text = "an uploaded image" if what.number is None else f"true class {name}"
        _picture(pictures.image_rgb(what.pixels), f"{what.title}: {text}.")
    if what.number is None:
        st.markdown(f"{words.TWINS[what.twin]} Its true class is not known.")
        if done := st.session_state.get("upload_done"):
            st.caption(f"What was done to it: {', '.join(done)}.")
    elif name is not None:
        st.markdown(f"True class: **{name}**")
    if known and what.row is not None:
        st.caption(f"Row {what.row} of the data set.")


def _show_map(what: Subject, one: Seen, limit: float | None, absolute: bool) -> None:
    st.markdown(f"**{theme.tag(one.model)}**")
    explainer = figures.EXPLAINERS[one.one.explain.name]
    if one.look is not None:
        sign = pictures.has_sign(one.one.explain)
        drawn = pictures.heat(one.look.map, limit, sign, absolute)
        target = words.class_name(what.names, one.look.target)
        _picture(drawn, f"{words.label(one.model)}: {explainer} map of {what.title.lower()} for the class {target}.")
        flaw = pictures.flaw(one.look.map)
        parts = [f"{explainer} for the class {target}", one.layer and f"layer {one.layer}", flaw and f"**{flaw}**"]
        st.caption(" · ".join(part for part in parts if part))
    else:
        st.caption(f"No {explainer} map is stored for this image yet.")
    if one.predicted is None:
        return
    name = words.class_name(what.names, one.predicted)
    st.markdown(words.prediction(name, one.confidence, None if what.label is None else one.predicted == what.label))
    if one.probabilities:
        st.caption(f"Likeliest: {words.top_classes(one.probabilities, what.names)}")
    elif one.look is not None:
        st.caption(f"Likeliest: {name} {words.percent(one.confidence)}; what it gives other classes is not kept.")


def _say_assumed(what: Subject, seen: Sequence[Seen]) -> None:
    """That a class nobody has chosen stands in for the true one, and for what."""
    named = {words.class_name(what.names, one.look.target) for one in seen if one.look is not None}
    st.markdown(
        f":material/help: No class was chosen, so what the undefended model predicts{_in_brackets(named)} stands in "
        "for the true class: maps and curves are for it, and so is the loss that the attack looks at. That loss is "
        "small then, which speaks for a member.",
        width=theme.TEXT_WIDTH,
    )


def _in_brackets(names: set[str]) -> str:
    return f" ({', '.join(sorted(names))})" if names else ""


def _picture(picture: NDArray[np.uint8], alt: str, size: int = SIZE) -> None:
    """A small picture enlarged by a whole factor, so that its pixels stay square."""
    factor = max(1, size // picture.shape[1])
    st.image(
        pictures.png(pictures.enlarge(picture, factor)), width=picture.shape[1] * factor, alt=alt, output_format="PNG"
    )


def show_nearest(preset: Preset, what: Subject, known: bool) -> None:
    """The training image that looks most like this one.

    While membership is hidden, images of the same track do not compete: where tracks are kept whole, only a member can
    have one of its own among the training images.
    """
    found = loaders.images(preset)
    if found is None or what.pixels is None:
        return
    rows, track = what.members, None
    if found.groups is not None and what.row is not None:
        track = found.groups[rows] == found.groups[what.row]
        rows = rows if known else rows[~track]
    near = loaders.nearest(preset, what.pixels, rows, what.row)
    if near is None:
        return
    same = None if what.label is None else bool(found.labels[near.row] == what.label)
    frame = track is not None and known and bool(track[what.members == near.row].any())
    name = words.class_name(what.names, int(found.labels[near.row]))
    text = words.nearest(near.distance, name, same, frame, what.member if known else None)
    if track is not None and not known:
        text += " Frames of its own track are left out until its membership is told."
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        _picture(pictures.image_rgb(found.pixels[near.row]), f"The nearest training image, class {name}.", SIZE // 2)
        st.markdown(text, width=theme.TEXT_WIDTH // 2)


# ---- the walk along the removal path


@st.fragment
def walk(preset: Preset, what: Subject, seen: Sequence[Seen], told: bool | None) -> None:
    """Level slider, strip, big masked images and curves with their cursor; only this is drawn anew when it moves.

    `told` is the image's membership where the reader knows it.
    """
    st.subheader("Pixels removed, step by step", anchor=False)
    levels = seen[0].one.trajectory.levels
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        order = state.choose(
            "Removal order", ORDERS, key="order", default="morf",
            help="MoRF removes the most important pixels first, LeRF the least important.",
        )  # fmt: skip
        level = state.stop(
            "Share of pixels removed", levels, key="level", default=levels[len(levels) // 3],
            help="The arrow keys move it; click beside it before you use the page's other keys.",
        )  # fmt: skip
    place, narrow = levels.index(level), len(seen) == MOST_MODELS
    for column, one in zip(st.columns(len(seen), gap="medium"), seen, strict=True):
        with column:
            st.markdown(f"**{theme.tag(one.model)}**")
            _masked(what, one, order, place, 2 if narrow else 1)
            if one.path is None:
                st.caption("No curve is stored for this image yet.")
                continue
            alt = words.along(one.model, one.path, one.means, level)
            figure = figures.image_curves(one.path, one.means, one.model, level, told, narrow)
            components.plot(figure, f"sample_{one.model}", alt, key=f"curves_{one.model}")
            st.markdown(alt)
    _say_curves(preset, what, seen, order, told)


def _masked(what: Subject, one: Seen, order: str, place: int, rows: int) -> None:
    """The image at one level, large, and all levels in a strip, in `rows` lines, with that one outlined."""
    if one.look is None or what.pixels is None:
        return
    steps, levels = (one.look.morf if order == "morf" else one.look.lerf), one.one.trajectory.levels
    fill = one.one.trajectory.operator
    gone = f"{words.percent(levels[place])} of the pixels removed, {ORDERS[order]}"
    current = pictures.image_rgb(pictures.masked(what.pixels, steps, place, fill))
    _picture(current, f"{words.label(one.model)}: {what.title.lower()} with {gone}.")
    strip = pictures.strip(what.pixels, steps, levels, fill, max(1, 64 // what.pixels.shape[1]), place)
    strip = pictures.folded(strip, len(levels), rows)
    st.image(
        pictures.png(strip),
        alt=f"{words.label(one.model)}: the image at {len(levels)} levels, {ORDERS[order]}; outlined: {gone}.",
        output_format="PNG",
    )


def _say_curves(preset: Preset, what: Subject, seen: Sequence[Seen], order: str, told: bool | None) -> None:
    """What the curves mean, their settings and their data."""
    drawn = [one for one in seen if one.path is not None]
    if not drawn:
        return
    first = drawn[0].one
    bare = [words.label(one.model) for one in drawn if one.means is None]
    missing = f" The means of {' and '.join(bare)} are not stored for this explainer." if bare else ""
    st.markdown(
        f":material/lightbulb: The thick line is this image, {words.dash(told, what.number is not None)}; the thin "
        "lines are the means of members (solid) and non-members (dashed), with the 95 % bootstrap interval of the mean "
        f"as a band. Single images spread far more than their mean, so one curve near the members' is a hint, not a "
        f"proof.{missing}",
        width=theme.TEXT_WIDTH,
    )
    parts = {one.model: tables.with_means(one.path, one.means) for one in drawn if one.path is not None}
    number = "uploaded" if what.number is None else what.number
    settings = components.settings_line(
        preset, first, image=number, order=ORDERS[order], explainer=components.explainer_text(first),
        layer=next((one.layer for one in drawn if one.layer), None), target=_target(what, first.explain.target),
        fill=first.trajectory.operator, alpha=first.trajectory.alpha,
        **components.strength({one.model: one.one for one in drawn}),
    )  # fmt: skip
    components.caption_with_data(settings, tables.stack(parts), f"sample_{number}", key="sample_curves")


def _target(what: Subject, usual: str) -> str:
    """Which class is explained, for a settings line."""
    if what.number is not None:
        return usual
    if what.inspect.label is None:
        return "predicted by the undefended model"
    return f"{words.class_name(what.names, what.inspect.label)}, chosen"


# ---- the attack


def show_belief(preset: Preset, what: Subject, seen: Sequence[Seen]) -> None:
    """What the attack believes of the image under each model, and where its score stands among all."""
    st.subheader("What the attack believes", anchor=False)
    scored = [one for one in seen if one.scores is not None]
    for column, one in zip(st.columns(len(seen), gap="medium"), seen, strict=True):
        with column:
            st.markdown(f"**{theme.tag(one.model)}**")
            if one.scores is None:
                continue
            text = "The attack has not scored this image yet."
            if one.score is not None:
                text = words.belief(one.score, one.standing, tables.alike(one.scores, one.score, what.row))
            st.markdown(text)
            figure = figures.belief(one.scores, one.score, one.model, len(seen) == MOST_MODELS)
            alt = f"{words.label(one.model)}: audit scores of {len(one.scores)} images. {text.replace('**', '')}"
            components.plot(figure, f"score_{one.model}", alt, key=f"belief_{one.model}")
    components.offer("audit", {one.model: one.one for one in seen if one.scores is None}, "scores.parquet")
    if not scored:
        return
    st.markdown(
        ":material/lightbulb: The score is the log odds that the image is a member: "
        f"{words.scored_by(what.number is not None, what.twin)}. What the attack says in percent is its own claim; how "
        "many of the images scored most like this one are members stands beside it. Where the two lines lie on one "
        "another, no score can tell the groups apart. The outermost steps count all scores beyond them, too.",
        width=theme.TEXT_WIDTH,
    )
    made = f"{preset.experiment.audit.folds} fold classifiers, mean" if what.number is None else None
    settings = components.settings_line(
        preset, scored[0].one, image="uploaded" if what.number is None else what.number,
        audit=made or components.audit_text(preset), explainer=components.explainer_text(scored[0].one),
        target=_target(what, scored[0].one.explain.target),
        **components.strength({one.model: one.one for one in scored}),
    )  # fmt: skip
    rows = pd.DataFrame([_scored(one, what.row) for one in scored])
    components.caption_with_data(settings, rows, "sample_scores", key="sample_scores")


def _scored(one: Seen, row: int | None) -> dict[str, object]:
    """One model's score of the image and where it stands, as a line of a table."""
    line: dict[str, object] = {"model": one.model, "score": one.score}
    like = None if one.scores is None or one.score is None else tables.alike(one.scores, one.score, row)
    line |= {f"above_{name}": share for name, share in one.standing.items()}
    return line if like is None else line | {"most_alike": like[1], "members_most_alike": like[0]}
