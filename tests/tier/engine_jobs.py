"""Stages for the engine's tests: epochs that only sleep, with a checkpoint after each.

`data.source` names a behaviour: `ok`; `fail` raises ValueError; `bug` raises RuntimeError; `die` kills its worker in
every attempt, before the first epoch is done; `suffer` kills it after each epoch but the last two; `unread` has no
fingerprint; `shared` and `crossed` read what PARENTS names, of the same length and common to all seeds.
`train.learning_rate` is an epoch's length in seconds, `train.epochs` their number, and `train.seed` tells experiments
apart. The result says of each epoch which process computed it and where that looked for data.
"""

import json
import os
import signal
import time
from collections.abc import Sequence

import pandas as pd

from tier.config import Experiment, stage_key
from tier.context import Cancelled, Context, Waiting
from tier.environment import DATA_ROOT
from tier.store import Result, Store

PARENTS: dict[str, tuple[str, ...]] = {"shared": ("warmup",), "crossed": ("left", "right")}


def pin(store: Store, experiment: Experiment) -> Experiment:
    if experiment.data.source == "unread":
        return experiment
    return experiment.with_(data=experiment.data.model_copy(update={"fingerprint": "f"}))


def key(stage: str, experiment: Experiment) -> str:
    if stage != "report":
        experiment = Experiment(train=experiment.train.model_copy(update={"seed": 0}))
    return stage_key(stage, 1, experiment.changed(), [], "f")


def parents(experiment: Experiment) -> tuple[str, ...]:
    """What a report reads; every other of the crossed ones the other way round."""
    names = PARENTS.get(experiment.data.source, ())
    return names[::-1] if experiment.train.seed % 2 else names


def ensure(
    store: Store, stage: str, experiment: Experiment, context: Context = Context(), need: Sequence[str] = ()
) -> Result:
    name = key(stage, experiment)
    while (found := store.find(stage, name, need)) is None:
        lease = store.lease(f"{stage}-{name}")
        if lease is None and not context.waits:
            raise Waiting(f"{stage}-{name}")
        if lease is None:
            time.sleep(0.05)
            continue
        with lease:
            for parent in parents(experiment) if stage == "report" else ():
                ensure(store, parent, experiment, context)
            compute(store, stage, name, experiment, context)
    return found


def compute(store: Store, stage: str, name: str, experiment: Experiment, context: Context) -> None:
    context.progress({"step": "preparing", "fraction": 0.0})
    behaviour = experiment.data.source
    if behaviour == "fail":
        raise ValueError("the learning rate is too large; try 0.001")
    if behaviour == "bug":
        raise RuntimeError("shapes do not match")
    epochs = experiment.train.epochs
    done: list[tuple[int, str | None]] = store.get_json(f"checkpoints/{name}.json") or []
    for epoch in range(len(done) + 1, epochs + 1):
        end = time.monotonic() + experiment.train.learning_rate
        while time.monotonic() < end:
            if context.cancelled():
                raise Cancelled(f"stopped in epoch {epoch}")
            if behaviour == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        done.append((os.getpid(), os.environ.get(DATA_ROOT)))
        store.put_json(f"checkpoints/{name}.json", done)
        note(experiment.train.seed, epoch)
        context.progress(
            {"epoch": epoch, "epochs": epochs, "fraction": epoch / epochs, "step": "training", "loss": 1 / epoch}
        )
        if behaviour == "suffer" and epoch <= epochs - 2:
            time.sleep(0.4)  # the event is on its way
            context.cancelled()
            os.kill(os.getpid(), signal.SIGKILL)
    table = pd.DataFrame(done, columns=["pid", "root"]).assign(epoch=range(1, epochs + 1))
    environ = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    store.write(stage, name, {"events.parquet": table}, {"metrics": {"environ": json.dumps(environ)}})


def note(seed: int, epoch: int) -> None:
    """Write down, where the environment names a file for it, that an epoch is kept."""
    if journal := os.environ.get("TIER_TEST_JOURNAL"):
        with open(journal, "a") as file:
            file.write(json.dumps([seed, epoch]) + "\n")


def roots(store: Store, key: str) -> set[str | None]:
    """Where the epochs of a stored result looked for data."""
    found = store.find("report", key)
    return set() if found is None else set(found.frame("events.parquet")["root"])
