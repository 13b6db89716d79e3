"""One image under the lens: which one, what two models make of it, what the attack believes, and who guesses right.

The guesses belong to a preset, not to a model: all its models share their members, so that an image that has been
told for one is told for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from dashboard import components, loaders, state, theme, uploads, words
from tier import experiment, figures, neighbours, pictures, tables
from tier.config import EXPLAINER_SETTINGS, Experiment, Inspect
from tier.gallery import Look
from tier.presets import Preset

ORDERS = {"morf": "MoRF", "lerf": "LeRF"}
MOST_MODELS = 3  # that fit side by side
SIZE = 256  # pixels that an image takes on the screen
CATALOGUES = (("train", "samples.parquet"), ("audit", "scores.parquet"), ("trajectory", "samples.parquet"))
POLL = 0.5  # seconds between two looks at a run that takes about one


@dataclass(frozen=True)
class Subject:
    """The image looked at: a numbered one of the data set, or (without `number` and `row`) an uploaded one.

    `pixels` (3, H, W) uint8 are None where the data is not on this machine. `members` are the rows of the target's
    training images, `member` is None for an upload.
    """

    inspect: Inspect
    members: NDArray[np.int64]
    names: tuple[str, ...]
    pixels: NDArray[np.uint8] | None
    number: int | None = None
    row: int | None = None
    label: int | None = None
    member: bool | None = None

    @property
    def title(self) -> str:
        """What the page calls it."""
        return "Your image" if self.number is None else f"Image {self.number}"


@dataclass(frozen=True)
class Seen:
    """What one model and explainer make of the image; each part is None where it is not stored.

    `standing`: which share of members and of non-members the audit gives a lower score, empty where there is no score.
    """

    model: str
    one: Experiment
    look: Look | None
    layer: str | None
    probabilities: tuple[float, ...]
    path: pd.DataFrame | None
    means: pd.DataFrame | None
    scores: pd.DataFrame | None
    score: float | None
    standing: Mapping[str, float]
    predicted: int | None
    confidence: float


# ---- which image


def catalogue(models: Mapping[str, Experiment]) -> pd.DataFrame | None:
    """Row and membership of the target's images: index, member; from any stored result, since the models share them."""
    for one in models.values():
        for stage, name in (
            ("train", "samples.parquet"),
            ("audit", "scores.parquet"),
            ("trajectory", "samples.parquet"),
        ):
            found = loaders.frame(stage, one, name, ["index", "member"])
            if found is not None:
                return found
    return None


def number_of(cards: NDArray[np.int64], hardest: Sequence[int]) -> int:
    """The number of the image to show, with the buttons that move on; it is in the address."""
    _heed_row(cards)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _step("Previous", "P", "arrow_back", _go, (-1, len(cards)))
        with st.container(width=200):
            number = state.whole(f"Image, 1 to {len(cards)}", 1, len(cards), key="sample", default=1)
        _step("Next", "N", "arrow_forward", _go, (1, len(cards)))
        _step("Random", "X", "shuffle", _random, (len(cards),))
        _step(
            "Hardest", "H", "psychology_alt", _hardest, (tuple(hardest),), disabled=not hardest,
            help="The image on which the attack on the undefended model is nearest to undecided; again: the next one.",
        )  # fmt: skip
    return number


def _step(
    label: str, key: str, icon: str, act: Any, args: tuple[Any, ...], help: str = "", disabled: bool = False
) -> None:
    st.button(
        label, key=f"step_{label.lower()}", on_click=act, args=args, icon=f":material/{icon}:", shortcut=key,
        help=f"{help} Key: {key}.".strip(), disabled=disabled,
    )  # fmt: skip


def _heed_row(cards: NDArray[np.int64]) -> None:
    """Turn `row=` of a link, a row of the data set, into the image's number."""
    asked = st.query_params.get("row")
    if asked is None:
        return
    del st.query_params["row"]
    number = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 12 else -1
    if (place := np.flatnonzero(cards == number)).size:
        st.session_state["sample"] = int(place[0]) + 1
    else:
        state.note(f"The link asks for row '{state.plain(asked)}', which is none of the target's images.")


def _current(count: int) -> int:
    return min(max(int(st.session_state.get("sample") or 1), 1), count)


def _go(by: int, count: int) -> None:
    st.session_state["sample"] = (_current(count) - 1 + by) % count + 1


def _random(count: int) -> None:
    now = _current(count)
    st.session_state["sample"] = (now - 1 + int(np.random.default_rng().integers(1, max(count, 2)))) % count + 1


def _hardest(order: Sequence[int]) -> None:
    """The first of the order, or the one after the image at which the last press ended."""
    place = st.session_state.get("hardest_place", -1)
    stayed = 0 <= place < len(order) and st.session_state.get("sample") == order[place]
    place = (place + 1) % len(order) if stayed else 0
    st.session_state["hardest_place"] = place
    st.session_state["sample"] = order[place]


def _deck(images: pd.DataFrame) -> np.ndarray:
    """The images in the order of their numbers; those whose maps are kept come first and show at once."""
    return tables.deck(images, kept=experiment.GALLERY)


def subject(preset: Preset, images: pd.DataFrame, bare: pd.DataFrame | None) -> Subject:
    """The image of the data set that the address names; `bare` are the undefended model's audit scores."""
    cards = _deck(images)
    number = number_of(cards, [] if bare is None else tables.undecided(bare, cards))
    row = int(cards[number - 1])
    member = images["member"].to_numpy(bool)
    rows = images["index"].to_numpy(np.int64)
    found = loaders.images(preset)
    known = found is not None and row < len(found.pixels)
    return Subject(
        Inspect(row=row), rows[member], class_names(preset, found),
        found.pixels[row] if found is not None and known else None, number, row,
        int(found.labels[row]) if found is not None and known else None, bool(member[rows == row][0]),
    )  # fmt: skip


def own_image(preset: Preset, images: pd.DataFrame) -> Subject | None:
    """An uploaded image and the class to explain, or None while there is none; the engine starts meanwhile."""
    _warm_up()
    names = class_names(preset, loaders.images(preset))
    upload = uploads.choose(preset.experiment.data.image_size)
    if upload is None:
        return None
    offered = {-1: "what the undefended model predicts"} | dict(enumerate(names))
    label = state.select("Class to explain", offered, key="label")
    wanted = Inspect(upload=upload.name, label=None if label < 0 else label)
    return Subject(wanted, images["index"][images["member"].astype(bool)].to_numpy(np.int64), names, upload.pixels)


def _warm_up() -> None:
    """Start the engine as soon as somebody is about to upload: its first answer takes some seconds less."""
    if st.session_state.get("warmed_up"):
        return
    st.session_state["warmed_up"] = True
    try:
        loaders.engine().start_engine()
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)


def class_names(preset: Preset, images: loaders.Images | None) -> tuple[str, ...]:
    """The names of the classes, harmless for Markdown; none when neither images nor a split are there."""
    if images is not None:
        names: Sequence[str] = images.class_names
    else:
        split = loaders.find("split", preset.run("none", preset.seeds[0]))
        names = () if split is None else split.metrics.get("class_names") or ()
    return tuple(state.plain(str(name).replace("_", " "), 60) for name in names)


# ---- what the models see


def see(model: str, one: Experiment, explainer: str, what: Subject) -> Seen:
    """Everything that is stored about the image under one model and explainer."""
    view = loaders.explained(one, explainer).with_(inspect=what.inspect)
    look, layer, told = _look(view, explainer, what)
    scores = loaders.frame("audit", view, "scores.parquet", ["index", "member", "score"])
    score, standing = _score(view, scores, what.row)
    predicted, confidence = (look.predicted, look.confidence) if look is not None else _prediction(view, what.row)
    return Seen(
        model, view, look, layer, tuple(told.get("probabilities") or ()), _path(view, look, what.row),
        loaders.frame("trajectory", view, "curves.parquet"), scores, score, standing, predicted, confidence,
    )  # fmt: skip


def _look(view: Experiment, explainer: str, what: Subject) -> tuple[Look | None, str | None, dict[str, Any]]:
    """The image's map and removal steps, the layer of a class activation map, and what inspecting it told."""
    told: dict[str, Any] = {}
    made = loaders.inspected(view, what.inspect)
    if made is not None:
        told = made.metrics
    row = what.row
    gallery = None if row is None else loaders.gallery(view, explainer)
    cam = "cam_layer" in EXPLAINER_SETTINGS[view.explain.name]
    if gallery is not None and row is not None and row in gallery.frame.index:
        return gallery.look(row), gallery.layer if cam else None, told
    look = None if made is None else made.looks.get(explainer)
    return look, told.get("cam_layer") if cam else None, told


def _prediction(view: Experiment, row: int | None) -> tuple[int | None, float]:
    """What the model says as its training noted it: the class, and its confidence where the class is the true one."""
    table = loaders.frame("train", view, "samples.parquet", ["index", "label", "predicted", "log_confidence"])
    found = None if table is None or row is None else table[table["index"] == row]
    if found is None or not len(found):
        return None, float("nan")
    line = found.iloc[0]
    right = line["predicted"] == line["label"]
    return int(line["predicted"]), float(np.exp(line["log_confidence"])) if right else float("nan")


def _path(view: Experiment, look: Look | None, row: int | None) -> pd.DataFrame | None:
    """The curves: those of the very masks shown where there is a map, else the stored trajectory's."""
    levels = view.trajectory.levels
    if look is not None and look.paths:
        return tables.image_path(look.paths, levels)
    samples = None if row is None else loaders.frame("trajectory", view, "samples.parquet")
    return None if samples is None or row is None else tables.stored_path(samples, row, levels)


def _score(view: Experiment, scores: pd.DataFrame | None, row: int | None) -> tuple[float | None, dict[str, float]]:
    """The audit's score of an image, and which shares of members and of non-members have a lower one.

    An image of the data set has its cross-fitted score; an upload the mean over the folds' classifiers, and so its
    shares, for each of which one classifier compares its score with its own others.
    """
    if row is None:
        verdict = loaders.find("verdict", view)
        if verdict is None:
            return None, {}
        shares = {name: verdict.metrics[f"{name}_below"] for name in ("members", "nonmembers")}
        standing = {name: float("nan") if share is None else float(share) for name, share in shares.items()}
        return float(verdict.metrics["score"]), standing
    found = None if scores is None else scores["score"][scores["index"] == row]
    if scores is None or found is None or not len(found):
        return None, {}
    score = float(found.iloc[0])
    return score, tables.standing(scores, score)


# ---- what is missing


def complete(what: Subject, seen: Sequence[Seen]) -> None:
    """Have the engine make what is missing for this image, without a click, and say how far it is."""
    blind = {one.model: one.one for one in seen if one.look is None}
    unheard = {one.model: one.one for one in seen if what.row is None and one.score is None}
    if what.pixels is None:
        if blind:
            st.info(
                "The images of this preset are not on this machine, so maps that are not stored cannot be made. "
                "Curves and scores are shown where they are stored; images 1 and following may have maps.",
                icon=":material/hide_image:",
            )
        return
    try:
        wanted = [*_ask("inspect", blind), *_ask("verdict", unheard)]
        _let_go(wanted)
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)
        return
    ended = [(stage, view) for stage, view, over in wanted if over]
    for stage, view in ended:
        components.watch(stage, view)
    if ended and st.button("Try again", key="again", icon=":material/refresh:"):
        for stage, view in ended:
            components.submit(stage, view)
        st.rerun()
    if going := tuple((stage, view) for stage, view, over in wanted if not over):
        st.fragment(_wait, run_every=POLL)(going)


def _ask(stage: str, views: Mapping[str, Experiment]) -> list[tuple[str, Experiment, bool]]:
    """Submit what nobody has asked for yet; says for each whether its run is over without a result.

    A run that was cancelled because its reader went on to another image is asked for anew, once per visit.
    """
    asked, before = [], st.session_state.get("inspecting", ())
    for view in {loaders.key(stage, view) or name: view for name, view in views.items()}.values():
        job = loaders.job(stage, view)
        left = job is not None and job.status == "cancelled" and job.key not in before
        if job is None or job.status == "done" or left:
            loaders.engine().submit(stage, view, state.requester())
            state.remember_requester(True)
        asked.append((stage, view, job is not None and not left and job.status in ("failed", "cancelled")))
    return asked


def _let_go(wanted: Sequence[tuple[str, Experiment, bool]]) -> None:
    """Withdraw what this session asked for on an image that it has left, so that nobody waits for it."""
    now = {name for stage, view, _ in wanted if (name := loaders.key(stage, view))}
    for name in set(st.session_state.get("inspecting", ())) - now:
        job = loaders.engine().job(name)
        if job is not None and not job.over and state.requester() in job.requesters:
            loaders.engine().cancel(name, state.requester())
    st.session_state["inspecting"] = tuple(now)


def _wait(wanted: Sequence[tuple[str, Experiment]]) -> None:
    """How far the runs are; drawn anew twice a second until one of them is over."""
    jobs = [loaders.job(stage, view) for stage, view in wanted]
    if any(job is None or job.over for job in jobs):
        st.rerun()
    shares = [min(max(job.fraction or 0.0, 0.0), 1.0) for job in jobs if job is not None]
    busy = next((job for job in jobs if job is not None and job.status == "running"), jobs[0])
    step = "waiting for the engine" if busy is None else state.plain(busy.step, 120)
    if busy is not None and busy.step == "training":
        step = f"first its model is trained once more, epoch {busy.epoch or 0} of {busy.epochs or '?'}"
    st.progress(sum(shares) / max(len(shares), 1), f"Explaining this image with {len(jobs)} runs: {step}")
    if busy is not None and busy.step == "training":
        st.caption("Its weights are not stored. From then on each image takes about a second.")


# ---- the image and its maps


def show_maps(what: Subject, seen: Sequence[Seen], known: bool) -> None:
    """The image, and beside it each model's prediction and map."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        shared = state.choose("Scale", {"own": "Own", "shared": "Shared"}, key="scale", default="own") == "shared"
        absolute = (
            state.choose("Values", {"signed": "Signed", "absolute": "Absolute"}, key="values", default="signed")
            == "absolute"
        )
    limit = pictures.limit_of([one.look.map for one in seen if one.look is not None]) if shared else None
    first, *others = st.columns(1 + len(seen), gap="medium")
    with first:
        _show_image(what, known)
    for column, one in zip(others, seen, strict=True):
        with column:
            _show_map(what, one, limit, absolute)
    signed = any(pictures.has_sign(one.one.explain) for one in seen)
    st.caption(pictures.legend_text(signed, shared, absolute))


def _show_image(what: Subject, known: bool) -> None:
    st.markdown(f"**{what.title}**")
    name = None if what.label is None else words.class_name(what.names, what.label)
    if what.pixels is None:
        st.info("The image itself is not on this machine.", icon=":material/hide_image:")
    else:
        text = "an uploaded image, not in the data set" if what.number is None else f"true class {name}"
        _picture(pictures.image_rgb(what.pixels), f"{what.title}: {text}.")
    if what.number is None:
        st.markdown("**Not in the data set**: no model was trained on this file; its true class is not known.")
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
    if one.predicted is not None:
        right = None if what.label is None else one.predicted == what.label
        st.markdown(words.prediction(words.class_name(what.names, one.predicted), one.confidence, right))
    if one.probabilities:
        st.caption(f"Likeliest: {words.top_classes(one.probabilities, what.names)}")


def _picture(picture: NDArray[np.uint8], alt: str, size: int = SIZE) -> None:
    """A small picture enlarged by a whole factor, so that its pixels stay square."""
    factor = max(1, size // picture.shape[1])
    st.image(
        pictures.png(pictures.enlarge(picture, factor)), width=picture.shape[1] * factor, alt=alt, output_format="PNG"
    )


def show_nearest(preset: Preset, what: Subject, known: bool) -> None:
    """The training image that looks most like this one."""
    found = loaders.images(preset)
    if found is None or what.pixels is None:
        return
    near = neighbours.nearest(what.pixels, found.pixels, what.members, but=what.row)
    if near is None:
        return
    same = None if what.label is None else bool(found.labels[near.row] == what.label)
    grouped = found.groups is not None and what.row is not None
    frame = grouped and bool(found.groups[near.row] == found.groups[what.row])  # type: ignore[index]
    name = words.class_name(what.names, int(found.labels[near.row]))
    text = words.nearest(near.distance, name, same, frame, what.member if known else None)
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
    place = levels.index(level)
    for column, one in zip(st.columns(len(seen), gap="medium"), seen, strict=True):
        with column:
            st.markdown(f"**{theme.tag(one.model)}**")
            _masked(what, one, order, place)
            if one.path is None:
                st.caption("No curve is stored for this image yet.")
                continue
            alt = words.along(one.model, one.path, one.means, level)
            figure = figures.image_curves(one.path, one.means, one.model, level, told)
            components.plot(figure, f"sample_{one.model}", alt, key=f"curves_{one.model}")
            st.markdown(alt)
    _say_curves(preset, what, seen, order)


def _masked(what: Subject, one: Seen, order: str, place: int) -> None:
    """The image at one level, large, and all levels in a strip with that one outlined."""
    if one.look is None or what.pixels is None:
        return
    steps, levels = (one.look.morf if order == "morf" else one.look.lerf), one.one.trajectory.levels
    fill = one.one.trajectory.operator
    gone = f"{words.percent(levels[place])} of the pixels removed, {ORDERS[order]}"
    current = pictures.image_rgb(pictures.masked(what.pixels, steps, place, fill))
    _picture(current, f"{words.label(one.model)}: {what.title.lower()} with {gone}.")
    strip = pictures.strip(what.pixels, steps, levels, fill, max(1, 64 // what.pixels.shape[1]), place)
    st.image(
        pictures.png(strip),
        alt=f"{words.label(one.model)}: the image at {len(levels)} levels, {ORDERS[order]}; outlined: {gone}.",
        output_format="PNG",
    )


def _say_curves(preset: Preset, what: Subject, seen: Sequence[Seen], order: str) -> None:
    """What the curves mean, their settings and their data."""
    drawn = [one for one in seen if one.path is not None]
    if not drawn:
        return
    first = drawn[0].one
    bare = [words.label(one.model) for one in drawn if one.means is None]
    dotted = "dotted until its membership is told" if what.number is not None else "dotted, since it is neither"
    missing = f" The means of {' and '.join(bare)} are not stored for this explainer." if bare else ""
    st.markdown(
        f":material/lightbulb: The thick line is this image, {dotted}; the thin lines are the means of members "
        "(solid) and non-members (dashed), with the 95 % bootstrap interval of the mean as a band. Single "
        f"images spread far more than their mean, so one curve near the members' is a hint, not a proof.{missing}",
        width=theme.TEXT_WIDTH,
    )
    parts = {one.model: tables.with_means(one.path, one.means) for one in drawn if one.path is not None}
    number = "uploaded" if what.number is None else what.number
    settings = components.settings_line(
        preset, first, image=number, order=ORDERS[order], explainer=figures.EXPLAINERS[first.explain.name],
        layer=next((one.layer for one in drawn if one.layer), None), target=first.explain.target,
        fill=first.trajectory.operator, alpha=first.trajectory.alpha,
        **components.strength({one.model: one.one for one in drawn}),
    )  # fmt: skip
    components.caption_with_data(settings, tables.stack(parts), f"sample_{number}", key="sample_curves")


# ---- the attack and the reader


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
                text = words.belief(one.score, one.standing)
            st.markdown(text)
            figure = figures.belief(one.scores, one.score, one.model)
            alt = f"{words.label(one.model)}: audit scores of {len(one.scores)} images. {text}"
            components.plot(figure, f"score_{one.model}", alt, key=f"belief_{one.model}")
    components.offer("audit", {one.model: one.one for one in seen if one.scores is None}, "scores.parquet")
    if not scored:
        return
    made = (
        "each image is scored by a classifier that did not see it"
        if what.number is not None
        else "the mean of the fold classifiers, none of which has seen the image; so are the shares, for which each "
        "compares its score of the image with those that it gave the images it had not seen"
    )
    st.markdown(
        f":material/lightbulb: The score is the log odds that the image is a member: {made}. Where the two lines lie "
        "on one another, no score can tell the groups apart. The outermost steps count all scores beyond them, too.",
        width=theme.TEXT_WIDTH,
    )
    rows = [
        {"model": one.model, "score": one.score, **{f"above_{k}": v for k, v in one.standing.items()}} for one in scored
    ]
    settings = components.settings_line(
        preset, scored[0].one, audit=components.audit_text(preset),
        explainer=figures.EXPLAINERS[scored[0].one.explain.name],
        **components.strength({one.model: one.one for one in scored}),
    )  # fmt: skip
    components.caption_with_data(settings, pd.DataFrame(rows), "sample_scores", key="sample_scores")


def guesses(preset: Preset) -> dict[int, bool]:
    """The session's guesses, by image number."""
    made: dict[int, bool] = st.session_state.setdefault(f"sample_guesses_{preset.name}", {})
    return made


def _guess(preset: Preset, number: int, member: bool) -> None:
    guesses(preset)[number] = member


def show_contest(preset: Preset, what: Subject, seen: Sequence[Seen], images: pd.DataFrame, known: bool) -> None:
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
                st.markdown(words.answer(what.member, made[what.number], None), width="content")
            else:
                st.markdown(words.truth(what.member), width="content")
        st.markdown(_score_text(made, seen, images))


def _score_text(made: Mapping[int, bool], seen: Sequence[Seen], images: pd.DataFrame) -> str:
    """How reader and attack did on the images guessed so far."""
    cards = _deck(images)
    truth = dict(zip(images["index"], images["member"].astype(bool), strict=True))
    rows = {number: int(cards[number - 1]) for number in made if number <= len(cards)}
    attacks = {}
    for one in seen:
        if one.scores is not None:
            scores = dict(zip(one.scores["index"], one.scores["score"], strict=True))
            known = [row for row in rows.values() if np.isfinite(scores.get(row, np.nan))]
            attacks[one.model] = sum((scores[row] > 0) == truth[row] for row in known), len(known)
    return words.contest(sum(truth[row] == made[number] for number, row in rows.items()), len(rows), attacks)


def labelled(what: Subject, seen: Sequence[Seen]) -> Subject:
    """The subject with its class from a map where the data itself is not on this machine."""
    look = next((one.look for one in seen if one.look is not None), None)
    if what.label is not None or look is None or what.row is None:
        return what
    return replace(what, label=look.label)
