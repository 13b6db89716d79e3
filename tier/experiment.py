"""The pipeline on one page: data -> split -> train -> trajectory -> audit, divergence, path -> report.

A stage is a pure function of its config, its parents and the data's fingerprint; `key` names its result, `find` looks
it up, `ensure` computes what is missing. Importing this module loads no torch: pages use `key` and `find` only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import checkpoints
from tier.config import Data, Defense, Experiment, Split, stage_key
from tier.context import Cancelled, Context
from tier.environment import data_root
from tier.store import Result, Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tier.data import Dataset
    from tier.splits import Membership
    from tier.training import Problem, State

KEPT_DATASETS = 2
GALLERY = 32  # members and non-members whose maps are kept
PATH_CHECKPOINTS = 10
CHECKPOINT_SHARE = 20  # a checkpoint is written when training took this many times as long as writing the last one
LEASE_WAIT = 0.5
WEIGHTS = "weights.safetensors"
STATE = ("state.safetensors", "events.parquet")  # of a checkpoint and of the warm-up

Files = Mapping[str, Any]  # name -> DataFrame or arrays


@dataclass(frozen=True)
class Stage:
    """One step: which settings it depends on, which stages it reads, how it is computed.

    Raise `version` when equal settings give other results than before.
    """

    version: int
    settings: Callable[[Experiment], dict[str, Any]]
    parents: tuple[str, ...]
    compute: Callable[[Store, Experiment, Context], tuple[Files, dict[str, Any]]]


# ---- keys


def key(stage: str, experiment: Experiment) -> str:
    """The key of a stage's result, 64 hex digits.

    Raises ValueError for an unknown stage, and for an experiment whose data fingerprint is not known yet (`pin` it).
    """
    if stage not in STAGES:
        raise ValueError(f"no stage named '{stage}'; there are {', '.join(STAGES)}")
    if experiment.data.fingerprint is None:
        raise ValueError("the data has not been read yet, so results have no key: run the experiment once")
    plain = experiment.canonical()
    parents = [key(parent, plain) for parent in STAGES[stage].parents]
    return stage_key(stage, STAGES[stage].version, STAGES[stage].settings(plain), parents, plain.data.fingerprint)


def pin(store: Store, experiment: Experiment, load: bool = False, context: Context = Context()) -> Experiment:
    """The experiment with its data's fingerprint filled in: its own, else the one last seen, else (`load`) read now.

    Without `load`, data never seen leaves the experiment as it is.
    """
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
    pinned = pin(store, experiment)
    if pinned.data.fingerprint is None:
        return None
    return store.find(stage, key(stage, pinned), need)


def ensure(
    store: Store, stage: str, experiment: Experiment, context: Context = Context(), need: Sequence[str] = ()
) -> Result:
    """The result, computed if it is missing, its parents first; one computation per key in all processes.

    Raises what the stage raises (DataError, Diverged, ...), Cancelled, and ValueError when the stage makes no file of
    a name in `need`.
    """
    experiment = pin(store, experiment, load=True, context=context)
    name = key(stage, experiment)
    while True:
        if context.cancelled():
            raise Cancelled(f"stopped before {stage}")
        found = store.find(stage, name, need)
        if found is not None:
            return found
        lease = store.lease(f"{stage}-{name}")
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
        "parents": {parent: key(parent, plain) for parent in STAGES[stage].parents},
        "fingerprint": plain.data.fingerprint,
        "metrics": metrics,
        "device": _device(),
        "seconds": time.perf_counter() - began,
    }
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


@lru_cache(maxsize=2)
def target_sets(data_config: Data, split_config: Split) -> tuple["Problem", np.ndarray]:
    """Target members and non-members in a seeded order, and their rows in the data set, members first."""
    import torch

    from tier.training import Problem

    source = dataset(data_config)
    sets = _membership(source, split_config)
    rng = np.random.default_rng(split_config.seed)
    rows = [rng.permutation(sets.indices(name)) for name in ("target_train", "target_test")]
    images = [torch.from_numpy(np.ascontiguousarray(source.images[index])) for index in rows]
    labels = [torch.from_numpy(source.labels[index]) for index in rows]
    return Problem(images[0], labels[0], images[1], labels[1], len(source.class_names)), np.concatenate(rows)


def _membership(source: "Dataset", config: Split) -> "Membership":
    from tier import splits

    return splits.make(source.labels, config, source.images, source.groups)


def model_of(store: Store, experiment: Experiment, context: Context = Context()) -> "nn.Module":
    """The trained model with its exact weights, in evaluation mode; trained again where only 16-bit ones are stored."""
    import torch

    from tier import training

    arrays = ensure(store, "train", experiment, context, [WEIGHTS]).arrays(WEIGHTS)
    problem, _ = target_sets(experiment.data, experiment.split)
    model = training.start(problem, experiment.model, experiment.train).model
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    return model.eval()


@dataclass(frozen=True)
class _Evaluated:
    """A trained model with its members and non-members, in this order."""

    model: "nn.Module"
    images: "Tensor"
    labels: "Tensor"
    member: np.ndarray  # (N,) bool
    rows: np.ndarray  # (N,) rows of the data set


def _evaluated(store: Store, e: Experiment, context: Context) -> _Evaluated:
    import torch

    problem, rows = target_sets(e.data, e.split)
    images = torch.cat([problem.members, problem.nonmembers])
    labels = torch.cat([problem.member_labels, problem.nonmember_labels])
    member = np.arange(len(rows)) < len(problem.members)
    return _Evaluated(model_of(store, e, context), images, labels, member, rows)


# ---- stages


def _split(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    source = dataset(e.data)
    sets = _membership(source, e.split)
    table = pd.DataFrame({"set": sets.sets.astype(np.int8)})
    sizes = sets.sizes
    notes = [*source.notes, *sets.notes]
    return {"membership.parquet": table}, {"sizes": sizes, "class_names": list(source.class_names), "notes": notes}


def _warmup(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import training

    problem, _ = target_sets(e.data, e.split)
    state = training.start(problem, e.model, e.train)
    state = _fit(store, key("warmup", e), e, problem, state, context, until=e.defense.tier.warmup)
    return _state_files(state), {"epochs": state.epoch}


def _train(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import runtime, training

    problem, rows = target_sets(e.data, e.split)
    state = training.start(problem, e.model, e.train)
    if e.defense.regularizes and e.defense.tier.warmup > 0 and checkpoints.last(store, key("train", e)) is None:
        shared = ensure(store, "warmup", e, context, list(STATE))  # the same computation for every lambda and beta
        _continue(state, shared, e, context)
    state = _fit(store, key("train", e), e, problem, state, context)
    with runtime.session(e.train.threads):
        table = pd.DataFrame({"index": rows, **training.sample_table(state.model, problem)})
        figures = training.evaluate(state.model, problem)
    weights = {name: value.cpu().numpy() for name, value in state.model.state_dict().items()}
    acting = state.events[e.defense.tier.warmup if e.defense.regularizes else 0 :]
    metrics = figures | {
        "epochs": state.epoch,
        "seconds_per_epoch": float(np.median([event["seconds"] for event in acting])),
        "members": len(problem.members),
        "nonmembers": len(problem.nonmembers),
        "classes": problem.classes,
        "parameters": sum(value.size for value in weights.values()),
    }
    files = {WEIGHTS: weights, "events.parquet": pd.DataFrame(state.events), "samples.parquet": table}
    return files, metrics


def _trajectory(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import explainers, runtime, trajectories

    of = _evaluated(store, e, context)
    with runtime.session(e.train.threads):
        paths = trajectories.trajectories(
            of.model, of.images, of.labels, e.trajectory, e.explain, progress=context.step("following trajectories")
        )
    samples = {"index": of.rows, "member": of.member}
    for order in trajectories.ORDERS:
        samples |= {f"{order}_{i}": column.astype(np.float32) for i, column in enumerate(getattr(paths, order).T)}
    layer = None
    if e.explain.name == "gradcam":
        first = runtime.as_pixels(of.images[:1].to(runtime.device()))
        layer = e.explain.cam_layer or explainers.default_layer(of.model, first)
    files = {
        "samples.parquet": pd.DataFrame(samples),
        "curves.parquet": trajectories.curves(paths, of.member, e.trajectory.levels),
        "difference.parquet": trajectories.differences(paths, of.member, e.trajectory.levels),
    }
    return files, {"degenerate_maps": int(paths.degenerate.sum()), "cam_layer": layer, "images": len(of.rows)}


def _divergence(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import divergence, runtime

    of = _evaluated(store, e, context)
    with runtime.session(e.train.threads):
        values = divergence.divergences(
            of.model, of.images, of.labels, e.divergence, progress=context.step("measuring KL")
        )
    columns = {f"kl_{i}": column.astype(np.float32) for i, column in enumerate(values.T)}
    files = {
        "profile.parquet": divergence.profile(values, of.member, e.divergence),
        "samples.parquet": pd.DataFrame({"index": of.rows, "member": of.member, **columns}),
    }
    return files, {"images": len(of.rows)}


def _audit(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier.attacks import agp

    context.step("auditing")(0.0)
    paths = ensure(store, "trajectory", e, context, ["samples.parquet"]).frame("samples.parquet")
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    table, classes = trained.frame("samples.parquet"), trained.record["metrics"]["classes"]
    levels = range(len(e.trajectory.levels))
    features = agp.Features(
        paths[[f"morf_{i}" for i in levels]].to_numpy(np.float64),
        paths[[f"lerf_{i}" for i in levels]].to_numpy(np.float64),
        table["loss"].to_numpy(np.float64),
        table["predicted"].to_numpy(np.int64),
        classes,
    )
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
    kept = [f"{order}_{i}" for order in ("morf", "lerf") for i in levels]
    metrics = agp.figures(scores, member) | {"features": [name for name, k in zip(kept, scores.kept, strict=True) if k]}
    return {"scores.parquet": frame}, metrics


def _path(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The run replayed: what it would have been worth, and leaked, had it stopped at each epoch (SPEC 6)."""
    import torch

    from tier import defenses, training, trajectories
    from tier.attacks import agp

    problem, _ = target_sets(e.data, e.split)
    images = torch.cat([problem.members, problem.nonmembers])
    labels = torch.cat([problem.member_labels, problem.nonmember_labels])
    member = np.arange(len(labels)) < len(problem.members)
    stops = {round(e.train.epochs * (i + 1) / PATH_CHECKPOINTS) for i in range(PATH_CHECKPOINTS)}
    rows: list[dict[str, Any]] = []

    def look(state: "State") -> None:
        row = {"epoch": state.epoch, **training.evaluate(state.model, problem)}
        if state.epoch in stops:
            state.model.eval()
            paths = trajectories.trajectories(state.model, images, labels, e.trajectory, e.explain)
            table = training.sample_table(state.model, problem)
            features = agp.Features(
                paths.morf.astype(np.float32), paths.lerf.astype(np.float32), table["loss"], table["predicted"],
                problem.classes,
            )  # fmt: skip
            row |= agp.figures(agp.audit(features, member, e.audit), member)
        rows.append(row)
        context.step("replaying the run")(state.epoch / e.train.epochs)

    hooks = training.Hooks(checkpoint=look, cancelled=context.cancelled)
    state = training.start(problem, e.model, e.train)
    training.fit(problem, state, defenses.build(e.defense), e.train, hooks)
    return {"path.parquet": pd.DataFrame(rows)}, {"epochs": state.epoch}


def _maps(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    from tier import explainers, runtime, trajectories

    of = _evaluated(store, e, context)
    members, nonmembers = np.flatnonzero(of.member)[:GALLERY], np.flatnonzero(~of.member)[:GALLERY]
    chosen = np.concatenate([members, nonmembers])
    images = runtime.as_pixels(of.images[chosen].to(runtime.device()))
    labels = of.labels[chosen].to(runtime.device())
    with runtime.session(e.train.threads):
        target = trajectories.explained_class(of.model, images, labels, e.explain)
        maps = explainers.explain(e.explain, of.model, images, target)
    arrays = {
        "maps": maps.cpu().numpy().astype(np.float16),
        "index": of.rows[chosen],
        "member": of.member[chosen].astype(np.uint8),
    }
    return {"maps.safetensors": arrays}, {"degenerate_maps": int(explainers.degenerate(maps).sum())}


def _report(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    figures: dict[str, Any] = {}
    for stage in ("split", "train", "trajectory", "divergence", "audit"):
        figures |= ensure(store, stage, e, context).record["metrics"]
    return {}, figures


STAGES: dict[str, Stage] = {
    "split": Stage(1, lambda e: {"split": e.split.changed()}, (), _split),
    "warmup": Stage(
        1,
        lambda e: {
            "model": e.model.changed(),
            "train": e.train.changed(),
            "augmentation": e.defense.augmentation.changed() if e.defense.augments else None,
            "epochs": e.defense.tier.warmup,
        },
        ("split",),
        _warmup,
    ),
    "train": Stage(
        1,
        lambda e: {"model": e.model.changed(), "train": e.train.changed(), "defense": e.defense.changed()},
        ("split",),
        _train,
    ),
    "maps": Stage(1, lambda e: {"explain": e.explain.changed()}, ("train",), _maps),
    "trajectory": Stage(
        1, lambda e: {"explain": e.explain.changed(), "trajectory": e.trajectory.changed()}, ("train",), _trajectory
    ),
    "divergence": Stage(1, lambda e: {"divergence": e.divergence.changed()}, ("train",), _divergence),
    "audit": Stage(1, lambda e: {"audit": e.audit.changed()}, ("trajectory",), _audit),
    "path": Stage(1, lambda e: {}, ("audit",), _path),
    "report": Stage(2, lambda e: {}, ("divergence", "audit"), _report),
}


# ---- training with checkpoints in the store


def _fit(
    store: Store,
    name: str,
    e: Experiment,
    problem: "Problem",
    state: "State",
    context: Context,
    until: int | None = None,
) -> "State":
    """Train from the run's last checkpoint in the store, if it has one, leaving checkpoints on the way."""
    from tier import defenses, training

    defense = e.defense
    if until is not None:  # the warm-up: the same augmentation, no terms yet
        defense = Defense(name="augmentation" if e.defense.augments else "none", augmentation=e.defense.augmentation)
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
        done = event["epoch"] / e.train.epochs
        context.progress({**event, "step": "training", "epochs": e.train.epochs, "fraction": done})

    hooks = training.Hooks(event=tell, checkpoint=keep, cancelled=context.cancelled)
    training.fit(problem, state, defenses.build(defense), e.train, hooks, until)
    return state


def _continue(state: "State", checkpoint: Result, e: Experiment, context: Context) -> None:
    """Load a checkpoint into a fresh state and tell its epochs again, for whoever watches."""
    events = checkpoint.frame("events.parquet").astype(object)
    rows = events.where(events.notna(), None).to_dict("records")
    state.load(checkpoint.arrays("state.safetensors"), [{str(k): v for k, v in row.items()} for row in rows])
    for event in state.events:
        context.progress(
            {**event, "step": "training", "epochs": e.train.epochs, "fraction": event["epoch"] / e.train.epochs}
        )


def _state_files(state: "State") -> Files:
    return {"state.safetensors": state.tensors(), "events.parquet": pd.DataFrame(state.events)}
