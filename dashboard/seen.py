"""What each model makes of the image looked at: what is stored of it, and what the engine is asked for."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, loaders, state
from dashboard.inspector import Subject
from tier import experiment, tables
from tier.config import EXPLAINER_SETTINGS, Experiment
from tier.engine import Job
from tier.gallery import Look

POLL = 0.5  # seconds between two looks at a run that takes about one
PATIENCE = 30.0  # seconds for which a run that the engine does not know is waited for

Wanted = Sequence[tuple[str, Experiment]]  # stage and view


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
    """Have the engine make what is missing for this image, and say how far it is.

    Without a click only where it takes about a second: where a model's weights are not stored it would be trained
    first, which is offered.
    """
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
    slow = {name: view for name, view in blind.items() if not _quick(what, view)}
    try:
        wanted = [
            *_ask("inspect", {name: view for name, view in blind.items() if name not in slow}),
            *_ask("verdict", {name: view for name, view in unheard.items() if name not in slow and _audited(view)}),
        ]
        _let_go(wanted)
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)
        return
    ended = [(stage, view) for stage, view, over in wanted if over]
    for stage, view in ended:
        components.watch(stage, view)
    if ended and st.button("Try again", key="again", icon=":material/refresh:"):
        _submit(ended)
        st.rerun()
    if going := tuple((stage, view) for stage, view, over in wanted if not over):
        st.fragment(_wait, run_every=POLL)(going)
    components.offer("inspect", slow, "inspect.parquet")
    if slow:
        st.caption(
            "The weights of a model named here are not stored, so it would first be trained once more, which takes "
            "minutes; from then on each image takes about a second."
        )


def _quick(what: Subject, view: Experiment) -> bool:
    """Whether an image can be looked at without training a model, the one included that judges an upload's class."""
    return loaders.has_weights(view) and (not what.assumed or loaders.has_weights(experiment.undefended(view)))


def _audited(view: Experiment) -> bool:
    """Whether an upload can be scored without tracing the curves of all images first."""
    found = loaders.find("audit", view, ["scores.parquet"]), loaders.find("trajectory", view, ["samples.parquet"])
    return None not in found


def _submit(wanted: Wanted) -> None:
    """Ask in this session's own name; `state.requester` is for what a reader asks for with a click, and may cancel."""
    for stage, view in wanted:
        loaders.engine().submit(stage, view, state.visitor())


def _ask(stage: str, views: Mapping[str, Experiment]) -> list[tuple[str, Experiment, bool]]:
    """Submit what nobody has asked for yet; says for each whether its run is over without a result.

    A run that was cancelled because its reader went on to another image is asked for anew, once per visit.
    """
    asked, before = [], st.session_state.get("inspecting", ())
    for view in {loaders.key(stage, view) or name: view for name, view in views.items()}.values():
        job = loaders.job(stage, view)
        left = job is not None and job.status == "cancelled" and job.key not in before
        if job is None or job.status == "done" or left:
            _submit([(stage, view)])
        asked.append((stage, view, job is not None and not left and job.status in ("failed", "cancelled")))
    return asked


def _let_go(wanted: Sequence[tuple[str, Experiment, bool]]) -> None:
    """Withdraw what this session asked for on an image that it has left, so that nobody waits for it."""
    now = {name for stage, view, _ in wanted if (name := loaders.key(stage, view))}
    for name in set(st.session_state.get("inspecting", ())) - now:
        job = loaders.engine().job(name)
        if job is not None:
            _withdraw([job])
    st.session_state["inspecting"] = tuple(now)


def _withdraw(jobs: Sequence[Job]) -> None:
    """Take back this session's own wish for runs; those that others wait for go on."""
    for job in jobs:
        if not job.over and state.visitor() in job.requesters:
            loaders.engine().cancel(job.key, state.visitor())


def _wait(wanted: Wanted) -> None:
    """How far the runs are, with Cancel; drawn anew twice a second until one of them is over."""
    try:
        found = [loaders.job(stage, view) for stage, view in wanted]
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)
        return
    jobs = [job for job in found if job is not None]
    if any(job.over for job in jobs):
        st.rerun()
    if _unanswered(len(jobs) < len(wanted)):
        st.warning(
            f"The engine has not answered for {PATIENCE:.0f} seconds. What is stored can still be looked at.",
            icon=":material/hourglass_disabled:",
        )
        if st.button("Ask again", key="ask_again", icon=":material/refresh:"):
            del st.session_state["unanswered"]
            st.rerun()
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        with st.container(width="stretch"):
            _show_progress(jobs, len(wanted))
        own = [job for job in jobs if state.visitor() in job.requesters]
        if own and st.button("Cancel", key="cancel_inspecting", icon=":material/close:"):
            _withdraw(own)
            st.rerun()


def _unanswered(silent: bool) -> bool:
    """Whether the engine has known nothing of a run for too long."""
    if not silent:
        st.session_state.pop("unanswered", None)
        return False
    since: float = st.session_state.setdefault("unanswered", time.monotonic())
    return time.monotonic() - since >= PATIENCE


def _show_progress(jobs: Sequence[Job], count: int) -> None:
    """How far `count` runs are, of which the engine knows `jobs`."""
    shares = [min(max(job.fraction or 0.0, 0.0), 1.0) for job in jobs]
    busy = next((job for job in jobs if job.status == "running"), jobs[0] if jobs else None)
    step = "waiting for the engine" if busy is None else state.plain(busy.step, 120)
    runs = "1 run" if count == 1 else f"{count} runs"
    st.progress(sum(shares) / max(count, 1), f"Explaining this image with {runs}: {step}")
