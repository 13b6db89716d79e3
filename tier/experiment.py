"""The pipeline on one page: data -> split -> train -> maps -> trajectory -> audit, divergence, path -> report.

Beside it: fidelity compares two models' maps, quality judges one's, gallery and inspect keep what is shown of images.

A stage is a pure function of its config, its parents and the data's fingerprint; `key` names its result, `find` looks
it up, `ensure` computes what is missing. Importing this module loads no torch: pages use `key` and `find` only.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd

from tier import checkpoints, gallery, uploads
from tier.config import (
    EXPLAINER_SETTINGS,
    Attack,
    Audit,
    Data,
    Experiment,
    Explain,
    ExplainerName,
    InferenceKind,
    Split,
    Trajectory,
    stage_key,
)
from tier.context import Cancelled, Context, Waiting
from tier.environment import cpu_model, data_root
from tier.store import Result, Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tier import defenses, training
    from tier.attacks import agp, battery
    from tier.data import Dataset
    from tier.quality import Subjects
    from tier.splits import Membership
    from tier.training import Problem, State
    from tier.trajectories import Trajectories

KEPT_DATASETS = 2
GALLERY = 64  # members, and as many non-members, whose maps are kept for viewing
SHADOW_SEED = 2000  # added to the target's training seed
REFERENCE_SEED = 1000  # added to a reference model's number, away from the seeds of targets
CHEAP = ("gradient", "gradcam", "gradcampp")  # explainers of one pass, which most stages make anew
FAMILY_HEADS: tuple[ExplainerName, ...] = tuple(dict.fromkeys(Explain(name=n).family[0] for n in EXPLAINER_SETTINGS))
PATH_CHECKPOINTS = 10
MEASURED = 300  # members, and as many non-members, on which the kinds of inference are compared
CHECKPOINT_SHARE = 20  # a checkpoint is written when training took this many times as long as writing the last one
LEASE_WAIT = 0.5
WEIGHTS = "weights.safetensors"
MAPS = "maps.safetensors"
STATE = ("state.safetensors", "events.parquet")  # of a checkpoint and of the warm-up

Files = Mapping[str, Any]  # name -> DataFrame or arrays


@dataclass(frozen=True)
class Stage:
    """One step: which settings it depends on, which stages it reads, how it is computed.

    `parents` are stages of the same experiment; `others` names stages of other experiments that it reads too, such as
    those of an undefended model. Raise `version` when equal settings give other results than before. What has expired
    is removed by `Store.gc`.
    """

    version: int
    settings: Callable[[Experiment], dict[str, Any]]
    parents: tuple[str, ...]
    compute: Callable[[Store, Experiment, Context], tuple[Files, dict[str, Any]]]
    others: Callable[[Experiment], dict[str, tuple[str, Experiment]]] = lambda e: {}
    expires: Callable[[Store, Experiment], str | None] = lambda store, e: None  # ISO time in UTC; None: kept for good


# ---- keys


class Unmeasured(ValueError):
    """A stage's inference is `auto`, and which kind is the fastest on the run's model is not known."""


def key(stage: str, experiment: Experiment) -> str:
    """The key of a stage's result, 64 hex digits.

    Raises ValueError for an unknown stage, and for an experiment whose data fingerprint is not known yet (`pin` it);
    Unmeasured, a ValueError, where the stage depends on an inference `auto` (`pin` replaces it once it is measured).
    """
    if stage not in STAGES:
        raise ValueError(f"no stage named '{stage}'; there are {', '.join(STAGES)}")
    if experiment.data.fingerprint is None:
        raise ValueError("the data has not been read yet, so results have no key: run the experiment once")
    return _key(stage, experiment.canonical(), tuple(map(id, STAGES.values())))


@lru_cache(maxsize=4096)
def _key(stage: str, plain: Experiment, stages: tuple[int, ...]) -> str:
    """The key, remembered: many stages share their parents, and a page asks for hundreds. `stages` tells tables of
    stages apart.
    """
    settings = STAGES[stage].settings(plain)
    if _undecided(settings):
        raise Unmeasured(
            "inference is auto, and the kinds have not been measured on this model, so results have no key: compute "
            f"the run's stage 'inference' first, or set inference to {', '.join(get_args(InferenceKind))}"
        )
    parents = list(_parents(stage, plain).values())
    return stage_key(stage, STAGES[stage].version, settings, parents, plain.data.fingerprint)


def _undecided(settings: Mapping[str, Any]) -> bool:
    """Whether an inference that is to be measured is among a stage's settings."""
    return settings.get("inference") == "auto" or any(_undecided(v) for v in settings.values() if isinstance(v, dict))


def _parents(stage: str, plain: Experiment) -> dict[str, str]:
    """The keys of what a stage reads, by name."""
    own = {parent: key(parent, plain) for parent in STAGES[stage].parents}
    return own | {name: key(parent, e) for name, (parent, e) in STAGES[stage].others(plain).items()}


def pin(store: Store, experiment: Experiment, load: bool = False, context: Context = Context()) -> Experiment:
    """The experiment with all filled in that has to be known before its results have keys.

    The data's fingerprint: its own, else the one last seen, else (`load`) read now. And for each inference `auto` the
    kind that the stage `inference` chose for the run's model, which `load` computes where it is missing. Without
    `load`, an experiment of which something is not known yet comes back without a fingerprint.
    """
    pinned = _pinned(store, experiment, load, context)
    if _auto(pinned):
        return pinned.with_(data=pinned.data.model_copy(update={"fingerprint": None}))
    return pinned


def _pinned(store: Store, experiment: Experiment, load: bool, context: Context, stage: str | None = None) -> Experiment:
    """As `pin`, but what is known is filled in, and what a named stage does not depend on is not measured."""
    pinned = _with_fingerprint(store, experiment, load, context)
    if pinned.data.fingerprint is None or not _auto(pinned):
        return pinned
    measured = store.find("inference", key("inference", pinned))
    if measured is None and load and (stage is None or not _settled(stage, pinned)):
        measured = ensure(store, "inference", pinned, context)
    return pinned if measured is None else _with_inference(pinned, measured.metrics["chosen"])


def _auto(experiment: Experiment) -> bool:
    """Whether some inference is still to be chosen."""
    return "auto" in (experiment.trajectory.inference, experiment.attack.trajectory.inference)


def _settled(stage: str, experiment: Experiment) -> bool:
    """Whether a stage of pinned data has a key, no matter which kind of inference is the fastest."""
    try:
        key(stage, experiment)
    except Unmeasured:
        return False
    return True


def _with_inference(experiment: Experiment, chosen: InferenceKind) -> Experiment:
    """The experiment with the kind that was chosen for each `auto`."""

    def replaced(paths: Trajectory) -> Trajectory:
        return paths.model_copy(update={"inference": chosen}) if paths.inference == "auto" else paths

    attack = experiment.attack.model_copy(update={"trajectory": replaced(experiment.attack.trajectory)})
    return experiment.with_(trajectory=replaced(experiment.trajectory), attack=attack)


def _with_fingerprint(store: Store, experiment: Experiment, load: bool, context: Context) -> Experiment:
    """The experiment with its data's fingerprint, as far as `pin` can tell."""
    if experiment.data.fingerprint is not None:
        return experiment
    root = data_root()
    name = f"fingerprints/{stage_key('data', 1, {**experiment.data.changed(), 'root': root}, [], None)}.json"
    if load:
        fingerprint: Any = dataset(experiment.data, context).fingerprint
        store.put_json(name, {"data": experiment.data.changed(), "fingerprint": fingerprint})
    else:
        known = store.get_json(name)
        fingerprint = known.get("fingerprint") if isinstance(known, dict) else None
    if not isinstance(fingerprint, str):
        return experiment
    return experiment.with_(data=experiment.data.model_copy(update={"fingerprint": fingerprint}))


def find(store: Store, stage: str, experiment: Experiment, need: Sequence[str] = ()) -> Result | None:
    """The stored result holding every file in `need`, or None; nothing is computed."""
    pinned = _pinned(store, experiment, load=False, context=Context())
    if pinned.data.fingerprint is None or (_auto(pinned) and not _settled(stage, pinned)):
        return None
    return store.find(stage, key(stage, pinned), need)


def ensure(
    store: Store, stage: str, experiment: Experiment, context: Context = Context(), need: Sequence[str] = ()
) -> Result:
    """The result, computed if it is missing, its parents first; one computation per key in all processes.

    Raises what the stage raises (DataError, Diverged, ...), Cancelled, Waiting if the context does not wait, and
    ValueError when the stage makes no file of a name in `need`.
    """
    experiment = _pinned(store, experiment, load=True, context=context, stage=stage)
    name = key(stage, experiment)
    while True:
        if context.cancelled():
            raise Cancelled(f"stopped before {stage}")
        found = store.find(stage, name, need)
        if found is not None:
            return found
        if not context.waits:  # looked up before the stage begins, whose work so far would be lost
            plain = experiment.canonical()
            for parent, e in [*((own, plain) for own in STAGES[stage].parents), *STAGES[stage].others(plain).values()]:
                if store.holder(held := f"{parent}-{key(parent, e)}") and store.find(parent, key(parent, e)) is None:
                    raise Waiting(held)
        lease = store.lease(f"{stage}-{name}")
        if lease is None and not context.waits:
            raise Waiting(f"{stage}-{name}")
        if lease is None:
            context.progress({"step": "waiting for the same run elsewhere"})
            time.sleep(LEASE_WAIT)
            continue
        with lease:
            found = store.find(stage, name, need)
            if found is None:
                made = _compute(store, stage, name, experiment, context)
                if missing := [file for file in need if not made.has(file)]:
                    raise ValueError(f"stage '{stage}' makes no {', '.join(missing)}; it makes {', '.join(made.files)}")


def _compute(store: Store, stage: str, name: str, experiment: Experiment, context: Context) -> Result:
    plain = experiment.canonical()
    began = time.perf_counter()
    files, metrics = STAGES[stage].compute(store, plain, context)
    record = {
        "version": STAGES[stage].version,
        "config": STAGES[stage].settings(plain),
        "experiment": plain.changed(),
        "parents": _parents(stage, plain),
        "fingerprint": plain.data.fingerprint,
        "metrics": metrics,
        "device": _device(),
        "seconds": time.perf_counter() - began,
    }
    if (expires := STAGES[stage].expires(store, plain)) is not None:
        record["expires"] = expires
    made = store.write(stage, name, files, record)
    checkpoints.drop(store, name)
    return made


def _device() -> str:
    from tier import runtime

    return str(runtime.device())


# ---- data and models


_datasets: dict[tuple[Data, str | None], "Dataset"] = {}  # the last few read, for the next stage of the same process


def dataset(config: Data, context: Context = Context()) -> "Dataset":
    """The images of a config, read once per data root and process; verified against a pinned fingerprint."""
    from tier import data

    place = config.model_copy(update={"fingerprint": None}), data_root()
    if place not in _datasets:
        report = context.step("reading the images")
        found = data.load(place[0], place[1], lambda done, total: report(done / max(total, 1)))
        while len(_datasets) >= KEPT_DATASETS:
            del _datasets[next(iter(_datasets))]
        _datasets[place] = found
    data.verify(_datasets[place], config)
    return _datasets[place]


@lru_cache(maxsize=4)
def model_sets(data_config: Data, split_config: Split) -> tuple["Problem", np.ndarray]:
    """The members and non-members of the model that `split.role` names, in a seeded order; their rows, members first.

    Raises SplitError when the split has no such sets, or too few images for the canaries asked for.
    """
    import torch

    from tier import splits
    from tier.training import Problem

    source = dataset(data_config)
    sets = _membership(source, split_config)
    rows = _part(source, _model_rows(source, sets, split_config), split_config)
    labels = splits.with_canaries(source.labels, sets, split_config, len(source.class_names))
    images = [torch.from_numpy(np.ascontiguousarray(source.images[index])) for index in rows]
    classes = [torch.from_numpy(labels[index]) for index in rows]
    return Problem(images[0], classes[0], images[1], classes[1], len(source.class_names)), np.concatenate(rows)


def _model_rows(source: "Dataset", sets: "Membership", config: Split) -> list[np.ndarray]:
    """Rows of the members and of the non-members of one model, each in a seeded order."""
    from tier import splits

    if config.role == "reference":
        pool = np.sort(np.concatenate([sets.indices("target_train"), sets.indices("target_test")]))
        groups = source.groups[pool] if config.group_disjoint and source.groups is not None else None
        inside = splits.halves(source.labels[pool], config.seed, config.reference, groups)
        return [pool[inside], pool[~inside]]
    rng = np.random.default_rng(config.seed)
    rows = [rng.permutation(sets.indices(f"{config.role}_{part}")) for part in ("train", "test")]
    if not all(map(len, rows)):
        raise splits.SplitError(f"there are no {config.role} images: set split.{config.role}_train and _test above 0")
    return rows


def _part(source: "Dataset", rows: list[np.ndarray], config: Split) -> list[np.ndarray]:
    """Of a model's members one part, and everything else as non-members, of which the other members come first."""
    from tier import splits

    if config.parts == 1:
        return rows
    groups = source.groups[rows[0]] if config.group_disjoint and source.groups is not None else None
    inside = splits.partition(source.labels[rows[0]], config.seed, config.parts, groups) == config.part
    if config.left_out:
        inside = ~inside
    return [rows[0][inside], np.concatenate([rows[0][~inside], rows[1]])]


def _membership(source: "Dataset", config: Split) -> "Membership":
    from tier import splits

    return splits.make(source.labels, config, source.images, source.groups)


def model_of(store: Store, experiment: Experiment, context: Context = Context()) -> "nn.Module":
    """The served model with its exact weights, in evaluation mode; trained again where they are not stored."""
    import torch

    from tier import runtime

    trained = ensure(store, "train", experiment, context, [WEIGHTS])
    model = _blank(experiment, trained.metrics["classes"])
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in trained.arrays(WEIGHTS).items()})
    return model.to(runtime.device()).to(memory_format=torch.channels_last).eval()


def _blank(e: Experiment, classes: int) -> "nn.Module":
    """The served model of an experiment, its weights still to be loaded; pixels' mean and spread are among them."""
    import torch

    from tier import defenses, models

    defense = defenses.build(e.canonical().defense)
    return defense.serve(lambda: models.build(e.net, classes, torch.zeros(3), torch.ones(3)), classes)


def undefended(e: Experiment, seed: int | None = None) -> Experiment:
    """The same experiment without any defense, with the same training seed or another."""
    train = e.train if seed is None else e.train.model_copy(update={"seed": seed})
    return e.with_(defense=e.defense.bare, train=train)


def shadow(e: Experiment, adaptive: bool) -> Experiment:
    """The attacker's own model, trained on the shadow half: undefended, or (adaptive) with the target's defense.

    Its start weights and batch order are not the target's, which an attacker does not know.
    """
    train = e.train.model_copy(update={"seed": SHADOW_SEED + e.train.seed})
    split = e.split.model_copy(update={"role": "shadow"})
    return e.with_(split=split, defense=e.defense if adaptive else e.defense.bare, train=train)


def reference(e: Experiment, number: int) -> Experiment:
    """Reference model `number`, trained with the target's defense on a random half of the target's images.

    Its training seed depends on the number only, so that targets of every seed share their reference models.
    """
    split = e.split.model_copy(update={"role": "reference", "reference": number})
    return e.with_(split=split, train=e.train.model_copy(update={"seed": REFERENCE_SEED + number}))


def sources(e: Experiment) -> dict[str, Experiment]:
    """The models that a defense of several models is made from, by name; none for the others.

    MemGuard guards the plainly trained model, a student has it as teacher. With parts, an ensemble's models are trained
    on one each, a student's teachers on all but one each.
    """
    plain = e.with_(defense=e.defense.plain)
    made_of_many = e.defense.name in ("distillation", "ensemble_partition") and e.defense.acts()
    if made_of_many and e.split.parts > 1:
        raise ValueError(
            f"'{e.defense.name}' deals the members into parts itself: set split.parts back to 1, and the number of "
            f"parts with defense.{e.defense.name}.parts"
        )
    match e.defense.name:
        case "memguard":
            return {"guarded": plain}
        case "distillation":
            parts = e.defense.distillation.parts
        case "ensemble_partition":
            parts = e.defense.ensemble_partition.parts
        case _:
            return {}
    if parts == 1:
        return {"teacher": plain}
    own = {"parts": parts, "left_out": e.defense.name == "distillation"}
    split = {number: e.split.model_copy(update={**own, "part": number}) for number in range(parts)}
    return {f"part {number}": plain.with_(split=of) for number, of in split.items()}


@dataclass(frozen=True)
class _Evaluated:
    """A trained model with its members and non-members, in this order."""

    model: "nn.Module"
    images: "Tensor"
    labels: "Tensor"
    member: np.ndarray  # (N,) bool
    rows: np.ndarray  # (N,) rows of the data set

    def first(self, count: int | None) -> np.ndarray:
        """Places of the first `count` members and non-members, or of all."""
        if count is None:
            return np.arange(len(self.member))
        return np.concatenate([np.flatnonzero(self.member)[:count], np.flatnonzero(~self.member)[:count]])


def _evaluated(store: Store, e: Experiment, context: Context) -> _Evaluated:
    problem, rows = model_sets(e.data, e.split)
    images, labels, member = _joined(problem)
    return _Evaluated(model_of(store, e, context), images, labels, member, rows)


def _joined(problem: "Problem") -> tuple["Tensor", "Tensor", np.ndarray]:
    """A model's members and non-members in one: images, labels, and which are members."""
    import torch

    images = torch.cat([problem.members, problem.nonmembers])
    labels = torch.cat([problem.member_labels, problem.nonmember_labels])
    return images, labels, np.arange(len(labels)) < len(problem.members)


# ---- stages


def _split(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    source = dataset(e.data)
    sets = _membership(source, e.split)
    table = pd.DataFrame({"set": sets.sets.astype(np.int8)})
    sizes = sets.sizes
    notes = [*source.notes, *sets.notes]
    return {"membership.parquet": table}, {"sizes": sizes, "class_names": list(source.class_names), "notes": notes}


def _warmup(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import defenses, training

    problem, _ = model_sets(e.data, e.split)
    state = training.start(problem, e.net, e.train)
    plain = e.with_(defense=e.defense.plain)  # the same augmentation, no terms yet
    made = defenses.build(plain.defense)
    state = _fit(store, key("warmup", e), plain, problem, state, context, made, until=e.defense.tier.warmup)
    return _state_files(state), {"epochs": state.epoch}


def _train(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import defenses, runtime, training

    problem, rows = model_sets(e.data, e.split)
    defense = defenses.build(e.defense)
    made = _composed if defense.composed else _fitted
    model, events = made(store, e, problem, defense, context)
    with runtime.session(e.train.threads):
        table = pd.DataFrame({"index": rows, **training.sample_table(model, problem)})
        figures = training.evaluate(model, problem)
    weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
    acting = events[e.defense.tier.warmup if e.defense.regularizes else 0 :]
    seconds = float(np.median([event["seconds"] for event in acting]))
    if not defense.composed:  # else its models' seconds are in the events
        seconds += sum(ensure(store, "train", run).metrics["seconds_per_epoch"] for run in sources(e).values())
    metrics = figures | {
        "epochs": len(events),
        "seconds_per_epoch": seconds,
        "members": len(problem.members),
        "nonmembers": len(problem.nonmembers),
        "classes": problem.classes,
        "parameters": sum(value.size for value in weights.values()),
        **({"defense": told} if (told := defense.figures()) else {}),
    }
    files = {WEIGHTS: weights, "events.parquet": pd.DataFrame(events), "samples.parquet": table}
    return files, metrics


def _fitted(
    store: Store, e: Experiment, problem: "Problem", defense: "defenses.Defense", context: Context
) -> tuple["nn.Module", list[dict[str, Any]]]:
    """A model trained in the loop, and its epochs."""
    from tier import parallel, training

    parallel.refuse(e.defense, e.train.processes)
    if runs := sources(e):
        models, _, seen = _known(store, e, runs, context)
        defense.teach(models, seen)
    settings = e.with_(train=defense.settings(e.train))
    state = training.start(problem, e.net, settings.train)
    if e.defense.regularizes and e.defense.tier.warmup > 0 and checkpoints.last(store, key("train", e)) is None:
        shared = ensure(store, "warmup", e, context, list(STATE))  # the same computation for every lambda and beta
        _continue(state, shared, e, context)
    state = _fit(store, key("train", e), settings, problem, state, context, defense)
    return state.model, state.events


def _composed(
    store: Store, e: Experiment, problem: "Problem", defense: "defenses.Defense", context: Context
) -> tuple["nn.Module", list[dict[str, Any]]]:
    """A model put together from trained ones, and their epochs: seconds add up, all else is averaged."""
    import torch

    from tier import runtime

    runs = sources(e)
    models, members, _ = _known(store, e, runs, context)
    model = _blank(e, problem.classes).to(runtime.device()).to(memory_format=torch.channels_last).eval()
    context.step("putting the model together")(0.0)
    with runtime.session(e.train.threads):
        defense.compose(model, models, members, lambda: _outsiders(e))
    trained = [ensure(store, "train", run, context, ["events.parquet"]) for run in runs.values()]
    by_epoch = pd.concat([run.frame("events.parquet").astype(float) for run in trained]).groupby("epoch", sort=True)
    mean = by_epoch.mean().assign(seconds=by_epoch["seconds"].sum()).reset_index().astype({"epoch": int})
    return model, _records(mean)


def _known(
    store: Store, e: Experiment, runs: Mapping[str, Experiment], context: Context
) -> tuple[list["nn.Module"], "Tensor", "Tensor"]:
    """Trained models, the members of the experiment, and which of them each model was trained on, `(M, N)` bool."""
    import torch

    problem, rows = model_sets(e.data, e.split)
    own = rows[: len(problem.members)]
    models, seen = [], []
    for run in runs.values():
        models.append(model_of(store, run, context))
        theirs, known = model_sets(run.data, run.split)
        seen.append(np.isin(own, known[: len(theirs.members)]))
    return models, problem.members, torch.from_numpy(np.stack(seen))


def _outsiders(e: Experiment) -> "Tensor":
    """Images that the experiment's model is not trained on, for a defender to compare members with.

    The other side's non-members, as there is no fifth set: a shadow's guard is fitted on images that the target is
    judged by, which does not matter measurably to a small guard (AUC of the served loss on `signs`: 0.651, and 0.640
    and 0.647 when fitted on others). Raises SplitError when there are none.
    """
    import torch

    from tier import splits

    source = dataset(e.data)
    side = "target" if e.split.role == "shadow" else "shadow"
    rows = _membership(source, e.split).indices(f"{side}_test")
    if not len(rows):
        raise splits.SplitError(f"this defense compares members with {side} images: set split.{side}_test above 0")
    return torch.from_numpy(np.ascontiguousarray(source.images[rows]))


def _maps(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Maps of the explainer and of all that the same passes give."""
    from tier import explainers, runtime

    of = _evaluated(store, e, context)
    with runtime.session(e.train.threads):
        made = explainers.attributions(
            e.explain, of.model, of.images, of.labels, progress=context.step(f"explaining ({e.explain.name})")
        )
        gap = explainers.mean_gap(e.explain, of.model, of.images, made)
    place = {"index": of.rows, "member": of.member.astype(np.uint8), "target": made.target}
    flat = {name: int(gallery.degenerate(maps).sum()) for name, maps in made.maps.items()}
    metrics = {"degenerate_maps": flat, "images": len(of.rows)}
    return {MAPS: made.maps | place}, metrics | ({} if gap is None else {"completeness_gap": gap})


def _attributions(store: Store, e: Experiment, of: _Evaluated, context: Context) -> np.ndarray:
    """The maps `(N, H, W)` of the experiment's explainer: made anew where that is cheap, else read from `maps`."""
    from tier import explainers

    if e.explain.name in CHEAP:
        step = context.step("explaining")
        return explainers.attributions(e.explain, of.model, of.images, of.labels, progress=step).maps[e.explain.name]
    return ensure(store, "maps", e, context, [MAPS]).arrays(MAPS)[e.explain.name]


def _read_maps(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """The `maps` that a stage reads, if it does."""
    return {} if e.explain.name in CHEAP else {"maps": ("maps", e)}


def _cam_layer(e: Experiment, of: _Evaluated) -> str | None:
    """The layer that a class activation map comes from; None for other explainers."""
    from tier import explainers, runtime

    if "cam_layer" not in EXPLAINER_SETTINGS[e.explain.name]:
        return None
    first = runtime.as_pixels(of.images[:1].to(runtime.device()))
    return e.explain.cam_layer or explainers.default_layer(of.model, first)


def _trajectory(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import runtime, trajectories

    of = _evaluated(store, e, context)
    rows = of.first(e.trajectory.images)
    member = of.member[rows]
    with runtime.session(e.train.threads):
        maps = _attributions(store, e, of, context)[rows]
        step = context.step("following trajectories")
        paths = trajectories.trajectories(of.model, of.images[rows], of.labels[rows], maps, e.trajectory, progress=step)
        layer = _cam_layer(e, of)
    samples = {"index": of.rows[rows], "member": member}
    for order, names in gallery.columns(len(e.trajectory.levels)).items():
        samples |= dict(zip(names, getattr(paths, order).T.astype(np.float32), strict=True))
    files = {
        "samples.parquet": pd.DataFrame(samples),
        "curves.parquet": trajectories.curves(paths, member, e.trajectory.levels),
        "difference.parquet": trajectories.differences(paths, member, e.trajectory.levels),
    }
    flat = int(gallery.degenerate(maps).sum())
    return files, {"degenerate_maps": flat, "cam_layer": layer, "images": len(rows)}


def _inference(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Speed and error of each kind of inference on the run's own model, and the kind to be used.

    The errors are changes against fp32 of confidences along the gradient's paths under the mean operator, and of the
    cross-fitted audit that learns from these paths.
    """
    from tier import explainers, inference, runtime, trajectories

    of = _evaluated(store, e, context)
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    rows = of.first(MEASURED)
    images, labels, member = of.images[rows], of.labels[rows], of.member[rows]
    table = trained.frame("samples.parquet").iloc[rows]
    step, paths = context.step("measuring inference"), {}
    step(0.0)
    with runtime.session(e.train.threads):
        maps = explainers.attributions(Explain(), of.model, images, labels).maps["gradient"]
        batch = runtime.as_pixels(images[: inference.TIMED].to(runtime.device()))
        kinds = inference.usable(of.model)
        speed = inference.images_per_second(of.model, batch, kinds)
        for kind in kinds:
            paths[kind] = trajectories.trajectories(of.model, images, labels, maps, Trajectory(inference=kind))
            step(len(paths) / len(kinds))
    plain = paths["fp32"]
    change = {kind: _largest_change(made, plain) for kind, made in paths.items()}
    auc = {kind: _audit_auc(made, table, member, trained.metrics["classes"]) for kind, made in paths.items()}
    shift = {kind: value - auc["fp32"] for kind, value in auc.items()}
    return {}, {
        "chosen": inference.choose(speed, change, shift),
        "images_per_second": speed,
        "largest_confidence_change": change,
        "audit_auc_change": shift,
        "images": len(rows),
        "cpu": cpu_model(),
    }


def _largest_change(paths: "Trajectories", plain: "Trajectories") -> float:
    """The largest difference of a confidence, not of its logarithm, anywhere along the same paths."""
    both = ((getattr(paths, order), getattr(plain, order)) for order in gallery.ORDERS)
    return max(float(np.abs(np.exp(made) - np.exp(known)).max()) for made, known in both)


def _audit_auc(paths: "Trajectories", table: pd.DataFrame, member: np.ndarray, classes: int) -> float:
    """The AUC of a cross-fitted audit at its default settings, `table` being the images' rows of samples.parquet."""
    from tier.attacks import agp
    from tier.metrics import auc

    seen = agp.Features(
        paths.morf.astype(np.float32), paths.lerf.astype(np.float32),  # as they are stored
        table["loss"].to_numpy(np.float64), table["predicted"].to_numpy(np.int64), classes,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=agp.NOTHING_SEPARATES)  # the run's own audit says so
        scores = agp.audit(seen, member, Audit()).crossfit
    return auc(scores[member], scores[~member])


def _divergence(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import divergence, explainers, runtime

    of = _evaluated(store, e, context)
    with runtime.session(e.train.threads):
        if e.explain.name == "gradient":  # the paper's profile, with a reduction of its own
            plain = Explain(channel_reduction=e.divergence.channel_reduction)
            maps = explainers.attributions(plain, of.model, of.images, of.labels).maps["gradient"]
        else:
            maps = _attributions(store, e, of, context)
        values = divergence.divergences(of.model, of.images, maps, e.divergence, progress=context.step("measuring KL"))
    columns = {f"kl_{i}": column.astype(np.float32) for i, column in enumerate(values.T)}
    files = {
        "profile.parquet": divergence.profile(values, of.member, e.divergence),
        "samples.parquet": pd.DataFrame({"index": of.rows, "member": of.member, **columns}),
    }
    return files, {"images": len(of.rows), "profile_degenerate_maps": int(gallery.degenerate(maps).sum())}


def _audit(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier.attacks import agp

    context.step("auditing")(0.0)
    features, table = _features(store, e, context)
    member = table["member"].to_numpy(bool)
    scores = agp.audit(features, member, e.audit)
    frame = pd.DataFrame(
        {
            "index": table["index"],
            "member": member,
            "fold": scores.fold,
            "score": scores.crossfit,
            "holdout": scores.holdout,
        }
    )
    names = [name for of_order in gallery.columns(len(e.trajectory.levels)).values() for name in of_order]
    kept = [name for name, passed in zip(names, scores.kept, strict=True) if passed]
    metrics = agp.figures(scores, member) | {"features": kept}
    return {"scores.parquet": frame}, metrics


def _features(store: Store, e: Experiment, context: Context) -> tuple["agp.Features", pd.DataFrame]:
    """What an attacker sees of the images whose paths were followed, and their rows of train/samples.parquet."""
    from tier.attacks import agp

    paths = ensure(store, "trajectory", e, context, ["samples.parquet"]).frame("samples.parquet")
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    table = trained.frame("samples.parquet").set_index("index", drop=False).loc[paths["index"]].reset_index(drop=True)
    features = agp.Features(
        *_paths(paths, e),
        table["loss"].to_numpy(np.float64),
        table["predicted"].to_numpy(np.int64),
        trained.metrics["classes"],
        _groups(e, table["index"].to_numpy()),
    )
    return features, table


def _groups(e: Experiment, rows: np.ndarray) -> np.ndarray | None:
    """The groups of images that the audit keeps whole, by rows of the data set; None where it need not."""
    if not e.audit.whole_groups:
        return None
    groups = dataset(e.data).groups
    if groups is None:
        raise ValueError("audit.whole_groups is set, but these images have no groups: leave it false")
    return groups[rows]


def _paths(frame: pd.DataFrame, e: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """The log confidences along MoRF and along LeRF in a stage's table, `(N, L)` float64 each."""
    names = gallery.columns(len(e.trajectory.levels))
    return frame[names["morf"]].to_numpy(np.float64), frame[names["lerf"]].to_numpy(np.float64)


def _path(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The run replayed: what it would have been worth, and leaked, had it stopped at each epoch (SPEC 6)."""
    from tier import defenses, explainers, training, trajectories
    from tier.attacks import agp

    problem, places = model_sets(e.data, e.split)
    images, labels, member = _joined(problem)
    stops = {round(e.train.epochs * (i + 1) / PATH_CHECKPOINTS) for i in range(PATH_CHECKPOINTS)}
    rows: list[dict[str, Any]] = []

    def look(state: "State") -> None:
        row = {"epoch": state.epoch, **training.evaluate(state.model, problem)}
        if state.epoch in stops:
            state.model.eval()
            maps = explainers.attributions(e.explain, state.model, images, labels).maps[e.explain.name]
            paths = trajectories.trajectories(state.model, images, labels, maps, e.trajectory)
            table = training.sample_table(state.model, problem)
            features = agp.Features(
                paths.morf.astype(np.float32), paths.lerf.astype(np.float32), table["loss"], table["predicted"],
                problem.classes, _groups(e, places),
            )  # fmt: skip
            row |= agp.figures(agp.audit(features, member, e.audit), member)
        rows.append(row)
        context.step("replaying the run")(state.epoch / e.train.epochs)

    defense = defenses.build(e.defense)
    if defense.composed or sources(e):
        raise ValueError(f"'{e.defense.name}' is made from several models and has no early-stopping path")
    settings = defense.settings(e.train)
    hooks = training.Hooks(checkpoint=look, cancelled=context.cancelled)
    state = training.start(problem, e.net, settings)
    _loop(problem, state, defense, e.with_(train=settings), hooks)
    return {"path.parquet": pd.DataFrame(rows)}, {"epochs": state.epoch}


def _gallery(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What pages show of the first images of either group: maps, removal steps, curves."""
    from tier import runtime

    of = _evaluated(store, e, context)
    paths = ensure(store, "trajectory", e, context, ["samples.parquet"]).frame("samples.parquet")
    rows = of.first(GALLERY)
    with runtime.session(e.train.threads):
        maps = _attributions(store, e, of, context)[rows]
        frame, _ = _looks(e, of.model, of.images[rows], of.labels[rows], maps)
        layer = _cam_layer(e, of)
    curves = paths.iloc[rows].reset_index(drop=True)
    frame = pd.concat([curves[["index", "member"]], frame, curves.drop(columns=["index", "member"])], axis=1)
    metrics = {"height": maps.shape[1], "width": maps.shape[2], "cam_layer": layer}
    return {"gallery.parquet": frame}, metrics | {"degenerate_maps": int(gallery.degenerate(maps).sum())}


def _looks(
    e: Experiment, model: "nn.Module", images: "Tensor", labels: "Tensor", maps: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray]:
    """Predictions, maps and removal steps of a few images as columns, and the log probabilities `(N, K)`."""
    import torch

    from tier import explainers, runtime, trajectories

    where = runtime.device()
    x, y = runtime.as_pixels(images.to(where)), labels.to(where)
    target = explainers.explained_class(model, x, y, e.explain)
    steps = trajectories.removal_steps(torch.from_numpy(maps).to(where), x, e.trajectory)
    with torch.inference_mode():
        log_p = model(x).double().log_softmax(1).cpu().numpy()
    columns = {"label": labels.numpy(), "predicted": log_p.argmax(1), "confidence": np.exp(log_p.max(1))}
    columns |= {"target": target.cpu().numpy()}
    frame = pd.DataFrame(columns).astype({"confidence": np.float32})
    coded = gallery.encode(maps, {order: step.cpu().numpy() for order, step in steps.items()})
    return frame.assign(**coded), log_p


def _inspect(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """One image under every explainer at its default settings, with its curves."""
    import torch

    from tier import explainers, runtime, trajectories

    pixels, member, label = _inspected(store, e, context)
    model = model_of(store, e, context)
    image, y = torch.from_numpy(pixels[None]), torch.tensor([label])
    frames, gaps = [], {}
    step = context.step("explaining the image")
    with runtime.session(e.train.threads):
        for family in FAMILY_HEADS:
            view = e.with_(explain=Explain(name=family))
            found = explainers.attributions(view.explain, model, image, y)
            gaps[family] = explainers.mean_gap(view.explain, model, image, found)
            for name, maps in found.maps.items():
                frame, log_p = _looks(view, model, image, y, maps)
                paths = trajectories.trajectories(model, image, y, maps, e.trajectory)
                for order, names in gallery.columns(len(e.trajectory.levels)).items():
                    values = getattr(paths, order)[0].astype(np.float32)
                    frame = frame.assign(**dict(zip(names, values, strict=True)))
                frames.append(frame.assign(explainer=name))
            step(len(frames) / len(EXPLAINER_SETTINGS))
        layer = explainers.default_layer(model, runtime.as_pixels(image.to(runtime.device())))
    table = pd.concat(frames, ignore_index=True).assign(index=-1 if e.inspect.row is None else e.inspect.row)
    table["member"] = pd.array([member] * len(table), dtype="boolean")
    first = table.iloc[0]
    metrics = {
        "label": label,
        "predicted": int(first["predicted"]),
        "confidence": float(first["confidence"]),
        "probabilities": np.exp(log_p[0]).tolist(),
        "loss": float(-log_p[0, label]),
        "height": pixels.shape[1],
        "width": pixels.shape[2],
        "cam_layer": layer,
        "completeness_gap": gaps["integrated_gradients"],
    }
    return {"inspect.parquet": table}, metrics


def _inspected(store: Store, e: Experiment, context: Context) -> tuple[np.ndarray, bool | None, int]:
    """The image asked for: pixels `(3, H, W)` uint8, whether it is a member (None: neither), the class explained.

    Raises ValueError when the row is none of the target's, the upload is no longer kept or has another size than the
    model's images, and when there is no such class.
    """
    asked = e.inspect
    if (asked.row is None) == (asked.upload is None):
        raise ValueError("inspect one image: either a row of the data set or an upload")
    if asked.row is not None:
        problem, rows = model_sets(e.data, e.split)
        found = np.flatnonzero(rows == asked.row)
        if not len(found):
            raise ValueError(
                f"row {asked.row} is neither a member nor a non-member of the target; choose another image"
            )
        images, labels, member = _joined(problem)
        place = int(found[0])
        label = int(labels[place]) if asked.label is None else _known_class(asked.label, problem.classes)
        return images[place].numpy().copy(), bool(member[place]), label
    pixels, side = uploads.read(store, str(asked.upload)), e.data.image_size
    if pixels.shape[1:] != (side, side):
        size = f"{pixels.shape[1]} x {pixels.shape[2]}"
        raise ValueError(f"the uploaded image has {size} pixels, the model sees {side} x {side}: upload it again")
    if asked.label is None:
        return pixels, None, _predicted(store, undefended(e), pixels, context)
    classes = ensure(store, "train", e, context).metrics["classes"]
    return pixels, None, _known_class(asked.label, classes)


def _known_class(label: int, classes: int) -> int:
    if label >= classes:
        raise ValueError(f"inspect.label is {label}, but the model knows the classes 0 to {classes - 1} only")
    return label


def _predicted(store: Store, e: Experiment, pixels: np.ndarray, context: Context) -> int:
    """The class that a model sees in one image `(3, H, W)`."""
    import torch

    from tier import runtime

    model = model_of(store, e, context)
    with runtime.session(e.train.threads), torch.inference_mode():
        return int(model(runtime.as_pixels(torch.from_numpy(pixels[None]).to(runtime.device()))).argmax(1))


def _judged(e: Experiment) -> bool:
    """Whether the undefended model says which class of the image is explained."""
    return e.inspect.upload is not None and e.inspect.label is None


def _while_kept(store: Store, e: Experiment) -> str | None:
    """Until when a result of an uploaded image is kept: as long as the image."""
    return None if e.inspect.upload is None else uploads.expiry(store, e.inspect.upload)


def _verdict(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What the audit's classifiers think of an uploaded image, and which share of their own scores lies below.

    Raises ValueError for an image of the data set, which some of them have seen, and for settings of the explainer
    other than those at which `inspect` explains.
    """
    from tier.attacks import agp

    if e.inspect.upload is None:
        raise ValueError(
            "a verdict is for an uploaded image: classifiers of the audit were trained on those of the data set; their "
            "cross-fitted scores are in scores.parquet of the stage audit"
        )
    if e.explain != Explain(name=e.explain.name):
        raise ValueError(
            f"single images are explained at the default settings of {e.explain.name}, and this audit uses others: set "
            "all of explain but its name back to the defaults"
        )
    seen = ensure(store, "inspect", e, context)
    table = seen.frame("inspect.parquet")
    new = agp.Features(
        *_paths(table[table["explainer"] == e.explain.name], e),
        np.array([seen.metrics["loss"]]),
        np.array([seen.metrics["predicted"]]),
        ensure(store, "train", e, context).metrics["classes"],
    )
    context.step("asking the audit")(0.0)
    features, table = _features(store, e, context)
    scores = agp.score_new(features, table["member"].to_numpy(bool), e.audit, new)[0]
    own = ensure(store, "audit", e, context, ["scores.parquet"]).frame("scores.parquet")
    return {}, {"score": float(scores.mean()), "folds": scores.tolist(), **_below(own, scores)}


def _below(own: pd.DataFrame, scores: np.ndarray) -> dict[str, float]:
    """Shares of members and of non-members with a lower score than a new image, whose score per fold is given.

    Each classifier's score is compared with those that it gave itself, and the shares are averaged: among scores of
    single classifiers the mean of several would always stand nearer to the middle.
    """
    from tier.stats import share_below

    member, fold, known = (own[name].to_numpy() for name in ("member", "fold", "score"))
    groups = {"members_below": member.astype(bool), "nonmembers_below": ~member.astype(bool)}
    return {
        name: float(np.mean([share_below(known[group & (fold == i)], score) for i, score in enumerate(scores)]))
        for name, group in groups.items()
    }


# ---- attacks from outside


def _shadow_side(e: Experiment) -> dict[str, Any]:
    """The attack's settings but for whose shadow it is, which the model itself tells."""
    return e.attack.model_copy(update={"shadow": Attack().shadow}).changed()


def _tuned(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """The paths of a few images at every alpha, of which one is chosen."""
    few = {"images": e.attack.tuning}
    return {f"alpha {alpha:g}": ("trajectory", _at_alpha(e, alpha, few)) for alpha in e.attack.alphas}


def _alpha(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The weight of the total variation with which a shadow model's images are told apart best (SPEC 5).

    Only the shadow's attack-train part is looked at.
    """
    from tier.attacks import agp

    seen = {}
    for alpha in e.attack.alphas:
        features, table = _features(store, _at_alpha(e, alpha, {"images": e.attack.tuning}), context)
        train, _ = _attack_rows(e, table["index"].to_numpy())
        member = table["member"].to_numpy(bool)[train]
        seen[alpha] = features.take(train)
    context.step("choosing alpha")(0.0)
    chosen, validation = agp.best_features(seen, member, e.audit)
    return {}, {"alpha": chosen, "validation_auc": {f"{alpha:g}": value for alpha, value in validation.items()}}


def _attackers(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What the attack reads of other runs: the choice of alpha, and the paths at whichever is chosen."""
    own = _attacker(e)
    found = {"shadow": ("train", own), "alpha": ("alpha", own)}
    for alpha in e.attack.alphas:
        found[f"shadow, alpha {alpha:g}"] = ("trajectory", _at_alpha(own, alpha))
        found[f"target, alpha {alpha:g}"] = ("trajectory", _at_alpha(e, alpha))
    return found


def _attacker(e: Experiment) -> Experiment:
    return shadow(e, adaptive=e.attack.shadow == "same")


def _at_alpha(e: Experiment, alpha: float, more: Mapping[str, Any] = MappingProxyType({})) -> Experiment:
    """The run with the attack's paths (operator, levels) at one alpha."""
    return e.with_(trajectory=e.attack.trajectory.model_copy(update={"alpha": alpha, **more}))


def _attack(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The attack learnt on a shadow model, and what it is worth there and on the target (SPEC 5)."""
    from tier.attacks import agp
    from tier.metrics import best_threshold, report

    tuned = ensure(store, "alpha", _attacker(e), context).metrics
    seen, known = _features(store, _at_alpha(_attacker(e), tuned["alpha"]), context)
    member = known["member"].to_numpy(bool)
    train, test = _attack_rows(e, known["index"].to_numpy())
    context.step("learning the attack")(0.0)
    attack = agp.fit(seen.take(train), member[train], e.audit)
    guesses = agp.cross_fitted(seen.take(train), member[train], e.audit)
    threshold = best_threshold(guesses[member[train]], guesses[~member[train]])
    own, targets = _features(store, _at_alpha(e, tuned["alpha"]), context)
    inside, held = targets["member"].to_numpy(bool), seen.take(test)
    scores = {"attack_test": attack.score(held), "target": attack.score(own)}
    groups = {"attack_test": member[test], "target": inside}
    metrics = {name: report(scores[name][groups[name]], scores[name][~groups[name]], threshold) for name in scores}
    rows = {"attack_test": known.iloc[test], "target": targets}
    tables = [rows[name][["index", "member", "label"]].assign(set=name, score=scores[name]) for name in scores]
    tables = [table.assign(canary=_canaries(e, table["index"].to_numpy())) for table in tables]
    first = np.concatenate([np.flatnonzero(inside)[:GALLERY], np.flatnonzero(~inside)[:GALLERY]])
    reasons = pd.DataFrame(attack.contributions(own.take(first)).astype(np.float32), columns=list(attack.features))
    features = _feature_table(e, attack, attack.importance(held, member[test], threshold))
    files = {
        "scores.parquet": pd.concat(tables, ignore_index=True),
        "features.parquet": features,
        "contributions.parquet": reasons.assign(index=targets["index"].to_numpy()[first]),
    }
    paths = ensure(store, "trajectory", _at_alpha(e, tuned["alpha"]), context).metrics
    told = {name: paths[name] for name in ("cam_layer", "degenerate_maps")}
    kept = int(features["kept"].sum()) - 2  # loss and class are never filtered
    told |= {"operator": e.attack.trajectory.operator, "features_kept": kept}
    return files, metrics | tuned | told


def _attack_rows(e: Experiment, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places among the shadow's rows that the attack learns from, and that it is tested on."""
    from tier import splits

    source = dataset(e.data)
    groups = source.groups if e.split.group_disjoint else None
    parts = splits.attack_split(_membership(source, e.split), source.labels, e.attack.seed, e.attack.holdout, groups)
    place = {int(row): number for number, row in enumerate(rows)}
    there = [[place[row] for row in part.tolist() if row in place] for part in (parts.train, parts.test)]
    return np.array(there[0], np.int64), np.array(there[1], np.int64)


def _feature_table(e: Experiment, attack: "agp.Attack", importance: np.ndarray) -> pd.DataFrame:
    """What the filter saw of each trajectory feature, and what each feature is worth to the attack."""
    seen = {"kept": attack.kept, "member_mean": attack.member_mean, "nonmember_mean": attack.nonmember_mean}
    seen |= {"t": attack.t, "p": attack.p}
    rows = []
    for name, places in attack.features.items():
        order, _, level = name.partition("_")
        row: dict[str, Any] = {"feature": name, "order": order if level else None}
        if places[0] < len(attack.kept):
            row["level"] = e.attack.trajectory.levels[int(level) if level else 0]
            row |= {column: values[places[0]] for column, values in seen.items()}
        else:  # loss and class are never filtered
            row |= {"level": np.nan, "kept": True, **dict.fromkeys(("member_mean", "nonmember_mean", "t", "p"), np.nan)}
        rows.append(row)
    frame = pd.DataFrame(rows).astype({"kept": bool})
    return frame.assign(**dict(zip(("importance", "importance_low", "importance_high"), importance.T, strict=True)))


def _referees(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What the battery reads of other runs: a shadow with the same defense, its maps, and the reference models."""
    own = shadow(e, adaptive=True)
    found = {"shadow": ("train", own), **_read_maps(e)}
    found |= {f"shadow {name}": of for name, of in _read_maps(own).items()}
    return found | {f"reference {r}": ("train", reference(e, r)) for r in range(e.battery.references)}


def _battery(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Every attack of a sceptic on the target, with signs, classifiers and thresholds found elsewhere (SPEC 8)."""
    from tier.attacks import ATTACKS, battery, lira
    from tier.metrics import report, vulnerable_decile

    (target, rows), (theirs, known) = (_signals(store, run, context) for run in (e, shadow(e, adaptive=True)))
    member, shadow_member = rows["member"].to_numpy(bool), known["member"].to_numpy(bool)
    target, theirs = _with_references(store, e, target, theirs, rows["index"].to_numpy(), ~shadow_member, context)
    train, test = _attack_rows(e, known["index"].to_numpy())  # those of the attack with trajectories
    of = e.battery
    settings = battery.Settings(e.audit, of.variance, of.enough, of.mode, of.gamma, of.a)
    exposure = lira.exposure(*target.need("reference_phi", "reference_in"))
    frame = rows[["index", "member", "label"]].assign(exposure=exposure)
    output = of.output if e.explain.name == "gradient" else None
    metrics: dict[str, Any] = {"vulnerable_decile": {}, "canaries": {}, "output": output, "queries": _queries(e)}
    metrics["notes"] = _size_notes(member, shadow_member, target.need("reference_in")[0])
    canary = _canaries(e, rows["index"].to_numpy())
    for name in (name for name in ATTACKS if name != "agp"):
        context.step(f"attacking ({name})")(0.0)
        found = battery.score(name, target, theirs, shadow_member, train, settings)
        frame[name] = found.scores
        metrics[name] = battery.leaf(found, member, shadow_member, test)
        if name.startswith("attribution"):
            metrics[name]["output"] = output
        metrics["vulnerable_decile"][name] = vulnerable_decile(found.scores, member, exposure, found.threshold)
        if canary.any():
            groups = found.scores[canary & member], found.scores[canary & ~member]
            metrics["canaries"][name] = report(*groups, found.threshold)
    return {"scores.parquet": frame}, metrics


def _size_notes(member: np.ndarray, shadow_member: np.ndarray, reference_in: np.ndarray) -> list[str]:
    """What is unlike between the target's training set and those of the models that attackers compare it with."""
    own = int(member.sum())
    others = {"the shadow": int(shadow_member.sum()), "each reference model": int(reference_in[0].sum())}
    cures = {
        "the shadow": "split.shadow_train equal to split.target_train",
        "each reference model": "split.target_test equal to split.target_train",
    }
    return [
        f"{who} is trained on {size:,} images and the target on {own:,}: confidences differ for that reason too, and "
        f"attacks that compare them lose; set {cures[who]}"
        for who, size in others.items()
        if abs(size - own) > 1
    ]


def _signals(store: Store, e: Experiment, context: Context) -> tuple["battery.Signals", pd.DataFrame]:
    """What can be measured on a model's own members and non-members, and their rows of train/samples.parquet.

    Raises ValueError when the model's outputs are not finite.
    """
    from tier import runtime, signals
    from tier.attacks import attribution, battery

    of = _evaluated(store, e, context)
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    rows = trained.frame("samples.parquet")
    data = of.model, of.images, of.labels
    with runtime.session(e.train.threads):
        said = _finite(signals.log_probabilities(of.model, of.images))
        if e.explain.name == "gradient":
            step = context.step("measuring the output's gradient")
            explained = signals.gradient_statistics(*data, e.battery.output, e.explain, progress=step)
        else:
            explained = attribution.log_statistics(_attributions(store, e, of, context))
        step = context.step("measuring the loss's gradient")
        measured = battery.Signals(
            label=rows["label"].to_numpy(np.int64),
            predicted=rows["predicted"].to_numpy(np.int64),
            classes=trained.metrics["classes"],
            loss=np.logaddexp(0.0, -signals.log_odds(*data)),  # the stored one is rounded to 0 for certain predictions
            log_probabilities=said,
            explanation=explained,
            log_gradient_norm=signals.gradient_statistics(*data, "loss", progress=step)["l2"],
        )
    return measured, rows


def _finite(outputs: np.ndarray) -> np.ndarray:
    """What a model says, as it is. Raises ValueError where that is not finite."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model's outputs are not finite; did its training diverge? train it again with a smaller learning rate"
        )
    return outputs


def _with_references(
    store: Store,
    e: Experiment,
    target: "battery.Signals",
    theirs: "battery.Signals",
    rows: np.ndarray,
    outside: np.ndarray,
    context: Context,
) -> tuple["battery.Signals", "battery.Signals"]:
    """The signals of target and shadow with what they and the reference models say of both their images.

    `outside` `(M,)`: the shadow's non-members, which no model has seen. Of either image of the target half of the
    references have seen it, of the shadow's none; so the shadow is compared with one of each complementary pair.
    Raises ValueError when a model's outputs are not finite.
    """
    from tier import runtime, signals

    own = shadow(e, adaptive=True)
    runs = [reference(e, number) for number in range(e.battery.references)]
    asked = [_joined(model_sets(run.data, run.split)[0])[:2] for run in (e, own)]
    said: list[list[np.ndarray]] = [[], []]
    step = context.step("asking the reference models")
    with runtime.session(e.train.threads):
        for run in (e, own, *runs):
            model = model_of(store, run, context)
            for kept, images in zip(said, asked, strict=True):
                kept.append(_finite(signals.log_odds(model, *images, _queries(e), _view(e))))
            step(len(said[0]) / (len(runs) + 2))
    tables = [ensure(store, "train", run, context, ["samples.parquet"]).frame("samples.parquet") for run in runs]
    inside = np.stack([table.set_index("index").loc[rows, "member"].to_numpy(bool) for table in tables])
    models, others = np.stack(said[0]), np.stack(said[1])  # (2 + R, N) and (2 + R, M): target, shadow, references
    half = others[2::2]
    return (
        replace(
            target, phi=models[0], reference_phi=models[2:], reference_in=inside, population_phi=others[0, outside],
            population_reference_phi=others[2:, outside],
        ),
        replace(
            theirs, phi=others[1], reference_phi=half, reference_in=np.zeros(half.shape, bool),
            population_phi=others[1, outside], population_reference_phi=half[:, outside],
        ),
    )  # fmt: skip


def _queries(e: Experiment) -> int:
    """How many views of an image are asked about: models trained without T do not remember any but the image."""
    return e.battery.queries if e.defense.augments else 1


def _view(e: Experiment) -> Callable[["Tensor", int, int], "Tensor"]:
    """A view under T of a batch of images, the same for every model: it depends on query, batch and seed only."""
    from tier import runtime
    from tier.defenses.augmentation import augment

    def view(pixels: "Tensor", query: int, batch: int) -> "Tensor":
        return augment(pixels, e.defense.augmentation, runtime.generator("queries", e.battery.seed, query, batch))

    return view


def _canaries(e: Experiment, rows: np.ndarray) -> np.ndarray:
    """Which of the target's rows are mislabelled on purpose, `(N,)` bool."""
    from tier import splits

    return np.isin(rows, splits.canaries(_membership(dataset(e.data), e.split), e.split))


# ---- likeness of maps


def _fidelity(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The defended model's maps beside the undefended one's, and beside what chance would give (SPEC 7)."""
    from tier import fidelity

    name, runs = e.explain.name, {"own": e, **{n: other for n, (_, other) in _compared(e).items() if n in _MODELS}}
    held = {n: ensure(store, "maps", run, context, [MAPS]).arrays(MAPS) for n, run in runs.items()}
    samples = {n: ensure(store, "train", runs[n], context, ["samples.parquet"]) for n in ("own", "reference")}
    tables = {n: result.frame("samples.parquet") for n, result in samples.items()}
    member = held["own"]["member"].astype(bool)
    kept = e.fidelity.images
    rows = np.concatenate([np.flatnonzero(member)[:kept], np.flatnonzero(~member)[:kept]])
    agree = {n: (held[n]["target"] == held["reference"]["target"])[rows] for n in ("own", "second_seed")}
    maps = {n: arrays[name][rows] for n, arrays in held.items()}
    context.step("comparing maps")(0.0)
    scores = fidelity.table(
        maps["own"], maps["reference"], maps["second_seed"], agree["own"], e.fidelity.shuffle, agree["second_seed"]
    )
    right = [(table["predicted"] == table["label"]).to_numpy()[rows] for table in tables.values()]
    frame = tables["own"].iloc[rows][["index", "member", "label"]].reset_index(drop=True)
    frame = frame.assign(correct=right[0] & right[1], agree=agree["own"])
    frame = pd.concat([frame, scores], axis=1)
    flat = {n: int(gallery.degenerate(values).sum()) for n, values in maps.items()}
    means = {str(column): _mean_or_none(frame[column]) for column in scores}
    return {"scores.parquet": frame}, means | {"degenerate_maps": flat, "images": len(rows)}


def _mean_or_none(values: pd.Series) -> float | None:
    return float(values.mean()) if values.notna().any() else None


_MODELS = ("reference", "second_seed")


def _compared(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What fidelity reads of other runs: two undefended models of different seeds. Raises ValueError for equal ones."""
    second = e.fidelity.second_seed
    if second == e.train.seed:
        raise ValueError(
            f"fidelity.second_seed is {second}, the training seed: the control would be the reference itself; choose "
            "another, or none for the one after it"
        )
    reference = undefended(e)
    control = undefended(e, e.train.seed + 1 if second is None else second)
    return {
        "reference": ("maps", reference),
        "second_seed": ("maps", control),
        "reference train": ("train", reference),
    }


# ---- quality of maps


def _probes(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What `quality` needs of a model whatever the explainer: answers to random removals, the controls' scores."""
    from tier import quality, runtime

    of, frame, _ = _subjects(store, e, context)
    with runtime.session(e.train.threads):
        made = quality.probe(of, e.quality, context.step("removing pixels at random"))
        kind = quality.inference_of(of.model, e.quality)
    means = {name: quality.mean_or_none(values) for name, values in made.controls.items()}
    scores = pd.concat([frame, pd.DataFrame(made.controls, dtype=np.float32)], axis=1)
    files = {"fallen.safetensors": {"fallen": made.fallen.astype(np.float32)}, "scores.parquet": scores}
    return files, means | {"sweeps": made.sweeps, "notes": made.notes, "inference": kind, "images": len(frame)}


def _quality(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """How faithful maps are to the model and whether they point at the object, beside the controls (SPEC 7)."""
    from tier import quality, runtime

    of, frame, places = _subjects(store, e, context)
    probes = ensure(store, "probes", e, context, ["fallen.safetensors", "scores.parquet"])
    maps = ensure(store, "maps", e, context, [MAPS]).arrays(MAPS)[e.explain.name][places]
    fallen = probes.arrays("fallen.safetensors")["fallen"]
    with runtime.session(e.train.threads):
        found, notes = quality.measure(of, maps, fallen, e.quality, context.step("removing pixels by the map"))
    controls = probes.frame("scores.parquet").drop(columns=[*frame, *quality.TWICE], errors="ignore")
    beside, permuted = quality.dependence(of, maps, e.quality, frame["member"].to_numpy(bool))
    metrics: dict[str, Any] = {name: quality.mean_or_none(values) for name, values in found.items()}
    metrics |= {str(name): probes.metrics[str(name)] for name in controls} | {
        "sweeps": {"map": quality.sweep(maps, of.predicted, e.quality), **probes.metrics["sweeps"]},
        "chance": float(quality.chance(of.predicted).mean()),
        "notes": notes + probes.metrics["notes"],
        "permutation": permuted,
        "refused": {} if of.masks is not None else dict.fromkeys(quality.LOCALISED, quality.NO_MASKS),
        "degenerate_maps": int(gallery.degenerate(maps).sum()),
        "images": len(frame),
        "inference": probes.metrics["inference"],
    }
    own = pd.DataFrame(found | beside, dtype=np.float32)
    return {"scores.parquet": pd.concat([frame, own, controls], axis=1)}, metrics


def _subjects(store: Store, e: Experiment, context: Context) -> tuple["Subjects", pd.DataFrame, np.ndarray]:
    """The images that maps are judged on, their rows as a table, and their places among the model's images."""
    import torch

    from tier import quality

    of, masks = _evaluated(store, e, context), dataset(e.data).masks
    places = of.first(e.quality.images)
    table = ensure(store, "train", e, context, ["samples.parquet"]).frame("samples.parquet").iloc[places]
    explained = torch.from_numpy(table[e.explain.target].to_numpy(np.int64, copy=True))
    rows = of.rows[places]
    subjects = quality.Subjects(
        of.model, of.images[places], explained, table["predicted"].to_numpy(np.int64), rows,
        None if masks is None else masks[rows],
    )  # fmt: skip
    frame = table[["index", "member", "label"]].reset_index(drop=True)
    return subjects, frame.assign(correct=(table["predicted"] == table["label"]).to_numpy()), places


def _report(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    figures: dict[str, Any] = {}
    for stage in ("split", "train", "trajectory", "divergence", "audit"):
        figures |= ensure(store, stage, e, context).record["metrics"]
    return {}, figures


STAGES: dict[str, Stage] = {
    "split": Stage(1, lambda e: {"split": e.split.sets().changed()}, (), _split),
    "warmup": Stage(
        1,
        lambda e: {
            "model": e.model.changed(),
            "train": e.train.changed(),
            "augmentation": e.defense.augmentation.changed() if e.defense.augments else None,
            "epochs": e.defense.tier.warmup,
            **e.split.own(),
        },
        ("split",),
        _warmup,
    ),
    "train": Stage(
        1,
        lambda e: {
            "model": e.model.changed(),
            "train": e.train.changed(),
            "defense": e.defense.trained.changed(),
            **e.split.own(),
        },
        ("split",),
        _train,
        lambda e: {name: ("train", run) for name, run in sources(e).items()},
    ),
    "maps": Stage(
        2,
        lambda e: {"explain": e.explain.model_copy(update={"name": e.explain.family[0]}).changed()},
        ("train",),
        _maps,
    ),
    "trajectory": Stage(
        1,
        lambda e: {"explain": e.explain.changed(), "trajectory": e.trajectory.changed()},
        ("train",),
        _trajectory,
        _read_maps,
    ),
    "inference": Stage(1, lambda e: {}, ("train",), _inference),
    "divergence": Stage(
        1,
        lambda e: (
            {"divergence": e.divergence.changed()}
            | ({} if e.explain.name == "gradient" else {"explain": e.explain.changed()})
        ),
        ("train",),
        _divergence,
        _read_maps,
    ),
    "audit": Stage(1, lambda e: {"audit": e.audit.changed()}, ("trajectory",), _audit),
    "path": Stage(1, lambda e: {}, ("audit",), _path),
    "report": Stage(2, lambda e: {}, ("divergence", "audit"), _report),
    "gallery": Stage(1, lambda e: {}, ("trajectory",), _gallery),
    "inspect": Stage(
        1,
        lambda e: {"inspect": e.inspect.changed(), "trajectory": e.trajectory.changed()},
        ("train",),
        _inspect,
        lambda e: {"judge": ("train", undefended(e))} if _judged(e) else {},
        _while_kept,
    ),
    "verdict": Stage(1, lambda e: {}, ("inspect", "audit"), _verdict, expires=_while_kept),
    "alpha": Stage(
        1,
        lambda e: {"attack": _shadow_side(e), "audit": e.audit.changed(), "explain": e.explain.changed()},
        ("train",),
        _alpha,
        _tuned,
    ),
    "attack": Stage(
        1,
        lambda e: {"attack": e.attack.changed(), "audit": e.audit.changed(), "explain": e.explain.changed()},
        ("train",),
        _attack,
        _attackers,
    ),
    "battery": Stage(
        2,
        lambda e: {
            "battery": e.battery.canonical(e.explain.name, e.defense.augments).changed(),
            "attack": Attack(seed=e.attack.seed, holdout=e.attack.holdout).changed(),  # which rows teach
            "audit": e.audit.changed(),
            "explain": e.explain.changed(),
        },
        ("train",),
        _battery,
        _referees,
    ),
    "fidelity": Stage(
        1,
        # which control is compared shows in the parents
        lambda e: {"fidelity": e.fidelity.model_copy(update={"second_seed": None}).changed(), "name": e.explain.name},
        ("maps", "train"),
        _fidelity,
        _compared,
    ),
    "probes": Stage(1, lambda e: {"quality": e.quality.changed(), "target": e.explain.target}, ("train",), _probes),
    "quality": Stage(2, lambda e: {"name": e.explain.name}, ("maps", "train", "probes"), _quality),
}


# ---- training with checkpoints in the store


def _fit(
    store: Store,
    name: str,
    e: Experiment,
    problem: "Problem",
    state: "State",
    context: Context,
    defense: "defenses.Defense",
    until: int | None = None,
) -> "State":
    """Train from the run's last checkpoint in the store, if it has one, leaving checkpoints on the way."""
    from tier import training

    last = checkpoints.last(store, name)
    if last is not None:
        _continue(state, last, e, context)
    saved, cost = time.monotonic(), 0.0

    def keep(current: "State") -> None:
        nonlocal saved, cost
        if (began := time.monotonic()) - saved >= CHECKPOINT_SHARE * cost:
            checkpoints.save(store, name, current.epoch, _state_files(current))
            saved = time.monotonic()
            cost = saved - began

    def tell(event: dict[str, Any]) -> None:
        context.progress({**event, "step": "training", "epochs": e.epochs, "fraction": event["epoch"] / e.epochs})

    hooks = training.Hooks(event=tell, checkpoint=keep, cancelled=context.cancelled)
    _loop(problem, state, defense, e, hooks, until)
    return state


def _loop(
    problem: "Problem",
    state: "State",
    defense: "defenses.Defense",
    e: Experiment,
    hooks: "training.Hooks",
    until: int | None = None,
) -> None:
    """Train in this process, or in as many as the experiment asks for; `defense` is the experiment's."""
    from tier import parallel, training

    if e.train.processes == 1:
        training.fit(problem, state, defense, e.train, hooks, until)
    else:  # the others make the defense for themselves
        parallel.fit(problem, state, e.defense, e.net, e.train, hooks, until)


def _continue(state: "State", checkpoint: Result, e: Experiment, context: Context) -> None:
    """Load a checkpoint into a fresh state and tell its epochs again, for whoever watches."""
    state.load(checkpoint.arrays("state.safetensors"), _records(checkpoint.frame("events.parquet")))
    for event in state.events:
        context.progress({**event, "step": "training", "epochs": e.epochs, "fraction": event["epoch"] / e.epochs})


def _records(events: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as events; None for what is missing."""
    there = events.astype(object)
    return [{str(k): v for k, v in row.items()} for row in there.where(there.notna(), None).to_dict("records")]


def _state_files(state: "State") -> Files:
    return {"state.safetensors": state.tensors(), "events.parquet": pd.DataFrame(state.events)}
