"""What pages load, cached: the only place of the dashboard that knows where the store is. Never imports torch.

Results never change under their key, so frames are cached by key. What is in the store changes, so listings are cached
for two seconds only.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from tier import data, demo, experiment, neighbours, presets, reproduce, summary, tables
from tier.config import EXPLAINER_SETTINGS, DefenseName, Experiment, Inspect
from tier.engine import Client, Job, kind
from tier.gallery import Look, look
from tier.presets import Preset
from tier.store import Result, Store

log = logging.getLogger(__name__)

FRESH = 2.0  # seconds for which a listing of the store is taken for current

Place = tuple[str, str]  # what decides which results are seen: the store's address, the demo store's


def _place() -> Place:
    return demo.store_url(), os.environ.get("TIER_DEMO_STORE", "")


@st.cache_resource(max_entries=4, show_spinner=False)
def _open(place: Place) -> Store:
    return demo.open_store(place[0])


def store() -> Store:
    """The store, with the demo store below it (`tier.demo`)."""
    return _open(_place())


@st.cache_resource(max_entries=4, show_spinner=False)
def _connect(place: Place) -> Client:
    return Client(_open(place))


def engine() -> Client:
    """This server's connection to the engine; it starts no engine before something is submitted.

    Raises OSError or StoreError when the store cannot be written.
    """
    return _connect(_place())


def job(stage: str, one: Experiment) -> Job | None:
    """The job that computes a result, or None when nobody has asked for it."""
    name = key(stage, one)
    if name is not None:
        return engine().job(name)
    wanted = one.model_dump(mode="json", by_alias=True)  # data never read: its key is not known before the job has run
    return next((job for job in engine().jobs() if job.stage == stage and job.experiment == wanted), None)


def timed(job: Job) -> bool:
    """Whether a run of the same kind has ended before, so that a time left is the whole run's, not the step's."""
    return any(known.status == "done" and known.attempt == 1 and kind(known) == kind(job) for known in engine().jobs())


# ---- presets


@st.cache_data(ttl=30.0, max_entries=4, show_spinner=False)
def _available(place: Place, root: str | None) -> list[str]:
    shelf = _open(place)
    return [
        name
        for name, preset in presets.known().items()
        if data.present(preset.experiment.data.source) or _has_results(shelf, preset)
    ]


def available() -> list[str]:
    """The presets whose results or data are present."""
    return _available(_place(), os.environ.get(data.ROOT_VARIABLE))


def _has_results(shelf: Store, preset: Preset) -> bool:
    wanted = (preset.run(defense, preset.seeds[0]) for defense in preset.defenses)
    return any(experiment.find(shelf, "report", one) for one in wanted)


def pinned(preset: Preset) -> Preset:
    """The preset with its data's fingerprint filled in where it is known."""
    return preset.model_copy(update={"experiment": experiment.pin(store(), preset.experiment)})


# ---- results


def key(stage: str, one: Experiment) -> str | None:
    """The key of a result, or None while the data has never been read."""
    return None if one.data.fingerprint is None else experiment.key(stage, one)


def find(stage: str, one: Experiment, need: Sequence[str] = ()) -> Result | None:
    """The stored result of a stage, or None."""
    return experiment.find(store(), stage, one, need)


class _GoneError(Exception):
    """A result was set aside between two looks at it."""


@st.cache_data(max_entries=400, show_spinner=False)
def _frame(place: Place, stage: str, key: str, name: str, columns: tuple[str, ...] | None) -> pd.DataFrame:
    result = _open(place).find(stage, key, [name])
    if result is None:  # raised, so that it is not cached
        raise _GoneError(f"{stage} {key[:12]} went out of the store while it was read")
    return result.frame(name, list(columns) if columns else None)


def frame(stage: str, one: Experiment, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """One table of a stored result, only the columns asked for; None when it is not stored."""
    result = find(stage, one, [name])
    if result is None:
        return None
    try:
        return _frame(_place(), stage, result.key, name, tuple(columns) if columns else None)
    except _GoneError:
        return None


@st.cache_data(ttl=FRESH, max_entries=16, show_spinner="Reading the stored results …")
def _runs(place: Place, preset: str) -> pd.DataFrame:
    return _collect(_open(place), pinned(presets.get(preset)))


def _collect(shelf: Store, preset: Preset) -> pd.DataFrame:
    """Every report in the store that differs from the preset in defense, seed and epochs only."""
    rows = []
    for result in shelf.ls("report"):
        try:
            one = Experiment.model_validate(result.record["experiment"])
        except (KeyError, ValueError):  # written by another version of the code
            continue
        train = preset.experiment.train.model_copy(update={"seed": one.train.seed, "epochs": one.train.epochs})
        plain = preset.experiment.with_(train=train)
        # compared by key, so that only what a report depends on counts
        if key("report", one.with_(defense=plain.defense)) == key("report", plain) is not None:
            rows.append(tables.run(result.key, one, result.record["metrics"]))
    wanted = [preset.run(defense, seed) for defense in preset.compared for seed in preset.seeds]
    known = [experiment.key("report", one) for one in wanted if one.data.fingerprint is not None]
    return tables.runs(rows, headline=known)


def runs(preset: Preset) -> pd.DataFrame:
    """All finished runs of a preset, as `tables.runs` gives them."""
    return _runs(_place(), preset.name)


def refresh() -> None:
    """Look into the store anew at the next listing, because something has just been finished."""
    _runs.clear()


def paths(preset: Preset) -> pd.DataFrame:
    """The early-stopping paths of the defenses without TIER, as `tables.paths` gives them."""
    parts = []
    names: tuple[DefenseName, ...] = ("none", "augmentation")
    for name in names:
        if name not in {defense.name for defense in preset.defenses}:
            continue
        for seed in preset.seeds:
            made = frame("path", preset.run(name, seed), "path.parquet")
            if made is not None:
                parts.append(tables.path(name, seed, made, *sizes(preset.run(name, seed))))
    return tables.paths(parts)


@st.cache_data(max_entries=8, show_spinner="Comparing the training times …")
def _overheads(place: Place, preset: str, held: tuple[str, ...]) -> pd.DataFrame:
    found = summary.overheads(_open(place), pinned(presets.get(preset)))
    columns = ["value", "low", "high", "seconds", "seeds", "refused", "note"]
    frame = pd.DataFrame.from_dict(found, orient="index", columns=columns).rename_axis("model").reset_index()
    return frame.astype(dict.fromkeys(columns[:4], float))


def overheads(preset: Preset) -> pd.DataFrame:
    """Seconds per epoch over plain training by `model`: value, low, high, seconds, seeds, refused (why no value), note
    (why the value is not a measured one).
    """
    return _overheads(_place(), preset.name, _held("report"))


@st.cache_data(max_entries=8, show_spinner="Looking for the best attacks …")
def _best_attacks(place: Place, preset: str, held: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return summary.best_attacks(_open(place), pinned(presets.get(preset)))


def best_attacks(preset: Preset) -> dict[str, dict[str, Any]]:
    """The report of the best attack on each defense's first seed, named under `attack`, where one is stored."""
    return _best_attacks(_place(), preset.name, _held("attack") + _held("battery"))


@st.cache_data(ttl=FRESH, max_entries=16, show_spinner=False)
def _listed(place: Place, stage: str) -> tuple[str, ...]:
    return tuple(sorted(result.key for result in _open(place).ls(stage)))


def _held(stage: str) -> tuple[str, ...]:
    """The keys of a stage's stored results: what is derived from them stays the same as long as these do."""
    return _listed(_place(), stage)


def metrics(one: Experiment) -> dict[str, Any] | None:
    """The report of a run, or None."""
    result = find("report", one)
    return None if result is None else dict(result.record["metrics"])


def sizes(one: Experiment) -> tuple[int, int]:
    """Members and non-members of a run: as counted when it is stored (a set may have shrunk), else as configured."""
    trained = find("train", one)
    counted = {} if trained is None else trained.metrics
    wanted = one.split.target_train, one.split.target_test
    return int(counted.get("members") or wanted[0]), int(counted.get("nonmembers") or wanted[1])


def about_data(preset: Preset) -> tuple[dict[str, int], list[str]]:
    """The sizes of the sets that were made, and what was converted, dropped or refused on the way, as reports tell."""
    for defense in preset.defenses:
        for seed in preset.seeds:
            told = metrics(preset.run(defense, seed)) or {}
            if told.get("sizes") or told.get("notes"):
                return dict(told.get("sizes") or {}), [str(note) for note in told.get("notes") or []]
    return {}, []


FLAT = {"trajectory": "degenerate_maps", "divergence": "profile_degenerate_maps"}


def flat_maps(stage: str, one: Experiment) -> tuple[int, int]:
    """How many maps behind a stored trajectory or profile rank no pixel above another, and of how many images."""
    found = find(stage, one)
    counted = {} if found is None else found.metrics
    return int(counted.get(FLAT[stage]) or 0), int(counted.get("images") or sum(sizes(one)))


def explained(one: Experiment, name: str) -> Experiment:
    """The experiment with another explainer."""
    return one.set({"explain.name": name})


def layer(one: Experiment) -> str | None:
    """The layer that Grad-CAM's maps of a run come from, or None for other explainers."""
    result = find("trajectory", one)
    found = None if result is None else result.metrics.get("cam_layer")
    return None if found is None else str(found)


def any_result(preset: Preset) -> bool:
    """Whether anything of the preset has been computed."""
    return bool(len(runs(preset)))


def run_text(raw: Mapping[str, Any]) -> str:
    """A run in words, from its stored experiment; a plain word for one that cannot be read any more."""
    try:
        one = Experiment.model_validate(raw)
    except ValueError:
        return "a run of another version"
    return f"{one.data.source}, {tables.describe(tables.run('', one, {}))}"


def has_weights(one: Experiment) -> bool:
    """Whether a run's weights are stored."""
    return find("train", one, [experiment.WEIGHTS]) is not None


def weights(one: Experiment) -> bytes:
    """The file itself."""
    result = find("train", one, [experiment.WEIGHTS])
    if result is None:
        raise LookupError("these weights are no longer stored")
    return result.read(experiment.WEIGHTS)


# ---- single images


@dataclass(frozen=True)
class Images:
    """The images of a preset's data: `pixels` (N, 3, H, W) uint8, `labels` (N,), and where known masks and groups."""

    pixels: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    masks: np.ndarray | None
    groups: np.ndarray | None


_reading = threading.Lock()  # the pipeline's cache of data sets is one per process; two sessions must not read twice


def images(preset: Preset) -> Images | None:
    """The preset's images, or None when they are not on this machine (nothing is downloaded for a page)."""
    if not data.present(preset.experiment.data.source):
        return None
    try:
        with _reading:
            found = experiment.dataset(preset.experiment.data)
    except (data.DataError, OSError) as error:
        log.warning("the images of %s cannot be shown: %s", preset.name, error)
        return None
    return Images(found.images, found.labels, found.class_names, found.masks, found.groups)


@st.cache_resource(max_entries=8, show_spinner=False)
def _warmed(name: str, root: str | None) -> threading.Thread:
    preset = presets.get(name)
    thread = threading.Thread(target=lambda: images(preset), name=f"read {name}", daemon=True)
    thread.start()
    return thread


def warm(preset: Preset) -> None:
    """Read the preset's images in the background, once, so that the first page with images need not wait for them."""
    _warmed(preset.name, os.environ.get(data.ROOT_VARIABLE))


@st.cache_data(max_entries=500, show_spinner=False)
def _nearest(
    name: str, fingerprint: str | None, pixels: np.ndarray, rows: np.ndarray, but: int | None, _pool: np.ndarray
) -> neighbours.Neighbour | None:
    return neighbours.nearest(pixels, _pool, rows, but)


def nearest(
    preset: Preset, pixels: np.ndarray, rows: np.ndarray, but: int | None = None
) -> neighbours.Neighbour | None:
    """The image among `rows` of the preset's data that is nearest to `pixels`, or None when there is none."""
    found = images(preset)
    if found is None or found.pixels.shape[1:] != pixels.shape:
        return None
    return _nearest(preset.name, preset.experiment.data.fingerprint, pixels, rows, but, found.pixels)


@dataclass(frozen=True)
class Gallery:
    """The images whose maps are kept for one model and explainer.

    `frame` holds what is known of them but the pictures, by row of the data set; `layer` is a class activation map's.
    """

    stored: pd.DataFrame
    height: int
    width: int
    layer: str | None

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One line per image, indexed by its row of the data set."""
        return self.stored.drop(columns=["map", "morf", "lerf"]).set_index("index")

    @cached_property
    def _rows(self) -> dict[int, dict[Any, Any]]:
        return {int(row["index"]): row for row in self.stored.to_dict("records")}

    def look(self, index: int) -> Look:
        """One image's map and steps. Raises KeyError when its map is not kept."""
        return look(self._rows[index], self.height, self.width)


def gallery(one: Experiment, explainer: str) -> Gallery | None:
    """The kept maps of a model and explainer, or None when they are not stored."""
    view = explained(one, explainer)
    stored, found = frame("gallery", view, "gallery.parquet"), find("gallery", view)
    if stored is None or found is None:
        return None
    made = found.metrics
    return Gallery(stored, int(made["height"]), int(made["width"]), made.get("cam_layer"))


@dataclass(frozen=True)
class Inspected:
    """One image under every explainer: `looks` by explainer, and the stage's figures (`predicted`, `probabilities`)."""

    looks: dict[str, Look]
    metrics: dict[str, Any]


def inspected(one: Experiment, wanted: Inspect) -> Inspected | None:
    """What one model makes of one image, or None when it is not stored."""
    view = one.with_(inspect=wanted)
    stored, found = frame("inspect", view, "inspect.parquet"), find("inspect", view)
    if stored is None or found is None:
        return None
    made = dict(found.metrics)
    rows = stored.to_dict("records")
    looks = {str(row["explainer"]): look(row, int(made["height"]), int(made["width"])) for row in rows}
    return Inspected(looks, made)


def fidelity(one: Experiment, explainer: str) -> pd.DataFrame | None:
    """Each image's scores of a defended model's map against the undefended one's, or None when not stored.

    `one` carries the control's seed in `fidelity.second_seed`.
    """
    return frame("fidelity", explained(one, explainer), "scores.parquet")


# ---- the store itself


@st.cache_data(ttl=FRESH, max_entries=4, show_spinner="Reading the stored results …")
def _contents(place: Place) -> pd.DataFrame:
    rows = [
        {
            "stage": result.stage,
            "results": 1,
            "bytes": result.size,
            "seconds": result.record.get("seconds") or 0.0,
            "newest": result.record["created"],
            "versions": str(result.record.get("version", "")),
        }
        for result in _open(place).ls()
    ]
    if not rows:
        return pd.DataFrame()
    frame = pd.DataFrame(rows)
    made = frame.groupby("stage", as_index=False).agg(
        {"results": "sum", "bytes": "sum", "seconds": "sum", "newest": "max"}
    )
    versions = {stage: ", ".join(sorted(set(part["versions"]))) for stage, part in frame.groupby("stage")}
    return made.assign(newest=pd.to_datetime(made["newest"]), versions=made["stage"].map(versions))


def contents() -> pd.DataFrame:
    """Results in the store by stage: how many, bytes, seconds of computing, newest, versions."""
    return _contents(_place())


def damaged() -> list[str]:
    """What was set aside because it failed a check, when and why."""
    return [f"{p.stage} {p.key[:12]}, set aside {p.when}: {p.reason}" for p in store().damaged()]


def verify() -> list[str]:
    """What a full check of every file finds wrong, and sets nothing aside."""
    return [f"{problem.stage} {problem.key[:12]}: {problem.reason}" for problem in store().verify()]


# ---- quality of maps

JUDGED = "scores.parquet"  # of the stage `quality`


def judged(one: Experiment, explainer: str) -> pd.DataFrame | None:
    """Each image's scores of a model's maps beside both controls, or None when not stored."""
    return frame("quality", explained(one, explainer), JUDGED)


def judgement(one: Experiment, explainer: str) -> dict[str, Any] | None:
    """What the stage `quality` says beside the scores (`sweeps`, `chance`, `notes`, `refused`), or None."""
    result = find("quality", explained(one, explainer), [JUDGED])
    return None if result is None else dict(result.metrics)


@st.cache_data(max_entries=8, show_spinner="Reading the scores of maps …")
def _quality(place: Place, preset: str, held: tuple[str, ...]) -> pd.DataFrame:
    known, shelf = pinned(presets.get(preset)), set(held)
    scores: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
    permuted: dict[tuple[str, str], dict[int, tables.Permuted]] = {}
    for defense, explainer, seed, one in summary.quality_runs(
        known, [d.name for d in known.compared], list(EXPLAINER_SETTINGS), known.seeds
    ):
        result = find("quality", one, [JUDGED]) if key("quality", one) in shelf else None
        found = None if result is None else frame("quality", one, JUDGED)
        if result is not None and found is not None:
            scores.setdefault((defense, explainer), {})[seed] = found
            permuted.setdefault((defense, explainer), {})[seed] = result.metrics["permutation"]
    undefended = {explainer: of for (defense, explainer), of in scores.items() if defense == "none"}
    shown = {place: tables.seeds_judged(place, scores) for place in scores}
    return tables.quality(
        {place: {seed: scores[place][seed] for seed in seeds} for place, seeds in shown.items()},
        undefended,
        {place: {seed: permuted[place][seed] for seed in seeds} for place, seeds in shown.items()},
    )


def quality(preset: Preset) -> pd.DataFrame:
    """The scores of all stored maps of a preset at its usual strengths, as `tables.quality` gives them."""
    return _quality(_place(), preset.name, _held("quality"))


# ---- paper against here


_ANSWERING = ("split", "report", "attack", "quality", "fidelity", "divergence", "trajectory", "reproduction")


@st.cache_data(max_entries=8, show_spinner="Comparing with the paper …")
def _cells(place: Place, dataset: str, held: tuple[str, ...]) -> list[reproduce.Cell]:
    return reproduce.cells(_open(place), reproduce.protocol(dataset))


def cells(of: reproduce.Protocol) -> list[reproduce.Cell]:
    """The paper's numbers on a data set beside ours."""
    return _cells(_place(), of.dataset, tuple(key for stage in _ANSWERING for key in _held(stage)))


@st.cache_data(max_entries=8, show_spinner="Comparing the open choices …")
def _alternatives(place: Place, dataset: str, held: tuple[str, ...]) -> pd.DataFrame:
    return reproduce.alternatives(_open(place), reproduce.protocol(dataset))


def alternatives(of: reproduce.Protocol) -> pd.DataFrame:
    """What the paper leaves open, one choice at a time, as `reproduce.alternatives`."""
    return _alternatives(_place(), of.dataset, _held("report") + _held("reproduction"))


@st.cache_data(max_entries=8, show_spinner="Drawing the paper's figures …")
def _paper_charts(place: Place, dataset: str, held: tuple[str, ...]) -> dict[str, go.Figure]:
    return reproduce.charts(_open(place), reproduce.protocol(dataset))


def paper_charts(of: reproduce.Protocol) -> dict[str, go.Figure]:
    """What is stored of the paper's Figures 2 to 5 on a data set."""
    return _paper_charts(_place(), of.dataset, tuple(key for stage in _ANSWERING for key in _held(stage)))
