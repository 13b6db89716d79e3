"""What a stage is, the key of its result, and how a result is found or computed; `pipeline` says which stages exist."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from tier import checkpoints
from tier.config import Experiment, InferenceKind, Trajectory, stage_key
from tier.context import Cancelled, Context, Waiting
from tier.environment import data_root
from tier.experiment import inputs
from tier.store import Result, Store

LEASE_WAIT = 0.5
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


STAGES: dict[str, Stage] = {}  # by name; `pipeline` fills it


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
    return _key(stage, experiment.canonical(), _tables())


def _tables() -> tuple[int, ...]:
    return tuple(map(id, STAGES.values()))


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
    own = {parent: _key(parent, plain, _tables()) for parent in STAGES[stage].parents}
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
        fingerprint: Any = inputs.dataset(experiment.data, context).fingerprint
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
