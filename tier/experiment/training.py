"""Stages `split`, `warmup` and `train`: the four sets and a model, with checkpoints in the store on the way."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import checkpoints
from tier.config import Experiment
from tier.context import Context
from tier.experiment import inputs
from tier.experiment.runs import WEIGHTS, blank, model_of, sources
from tier.experiment.stages import Files, ensure, key
from tier.store import Result, Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tier import defenses, training
    from tier.training import Problem, State

CHECKPOINT_SHARE = 20  # a checkpoint is written when training took this many times as long as writing the last one
STATE = ("state.safetensors", "events.parquet")  # of a checkpoint and of the warm-up


def compute_split(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Which image is in which of the four sets, by row of the data set."""
    source = inputs.dataset(e.data)
    sets = inputs.membership(source, e.split)
    table = pd.DataFrame({"set": sets.sets.astype(np.int8)})
    sizes = sets.sizes
    notes = [*source.notes, *sets.notes]
    return {"membership.parquet": table}, {"sizes": sizes, "class_names": list(source.class_names), "notes": notes}


def compute_warmup(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The training state after the first epochs, which runs of every lambda and beta share."""
    from tier import defenses, training

    problem, _ = inputs.model_sets(e.data, e.split)
    state = training.start(problem, e.net, e.train)
    plain = e.with_(defense=e.defense.plain)  # the same augmentation, no terms yet
    made = defenses.build(plain.defense)
    state = _fit(store, key("warmup", e), plain, problem, state, context, made, until=e.defense.tier.warmup)
    return _state_files(state), {"epochs": state.epoch}


def compute_train(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The served model, its epochs, and what it says of each member and non-member."""
    from tier import defenses, runtime, training

    problem, rows = inputs.model_sets(e.data, e.split)
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
    model = blank(e, problem.classes).to(runtime.device()).to(memory_format=torch.channels_last).eval()
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

    problem, rows = inputs.model_sets(e.data, e.split)
    own = rows[: len(problem.members)]
    models, seen = [], []
    for run in runs.values():
        models.append(model_of(store, run, context))
        theirs, known = inputs.model_sets(run.data, run.split)
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

    source = inputs.dataset(e.data)
    side = "target" if e.split.role == "shadow" else "shadow"
    rows = inputs.membership(source, e.split).indices(f"{side}_test")
    if not len(rows):
        raise splits.SplitError(f"this defense compares members with {side} images: set split.{side}_test above 0")
    return torch.from_numpy(np.ascontiguousarray(source.images[rows]))


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
    loop(problem, state, defense, e, hooks, until)
    return state


def loop(
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
