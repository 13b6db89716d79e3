"""Checkpoints: one per run, sound or none, and gone once nobody can go on from it."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.tier.test_experiment import assert_same, tiny, weights
from tier import checkpoints, experiment
from tier.config import Defense
from tier.context import Cancelled, Context
from tier.store import CHECKPOINT, Content, Store

RUN, OTHER = "ab" * 32, "cd" * 32
DAY = 86400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def save(store: Store, epoch: int, run: str = RUN) -> Path:
    """A checkpoint; returns its folder."""
    files: dict[str, Content] = {
        "state.safetensors": {"weight": np.full(1000, epoch, np.float32)},
        "events.parquet": pd.DataFrame({"epoch": range(1, epoch + 1)}),
    }
    checkpoints.save(store, run, epoch, files)
    found = checkpoints.last(store, run)
    assert found is not None
    return Path(store.url) / CHECKPOINT / found.key


def pointer(store: Store, run: str = RUN) -> Path:
    return Path(store.url) / "bus" / "checkpoints" / f"{run}.json"


def age(path: Path, seconds: float) -> None:
    for each in [path, *path.rglob("*")]:
        os.utime(each, (time.time() - seconds,) * 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def epoch(store: Store, run: str = RUN) -> int | None:
    found = checkpoints.last(store, run)
    return None if found is None else found.record["epoch"]


def test_the_last_one_counts_and_is_the_only_one(store: Store) -> None:
    assert epoch(store) is None
    save(store, 1)
    save(store, 2)
    save(store, 7, OTHER)
    assert (epoch(store), epoch(store, OTHER)) == (2, 7)
    assert len(store.ls(CHECKPOINT)) == 2
    checkpoints.drop(store, RUN)
    checkpoints.drop(store, RUN)
    assert (epoch(store), epoch(store, OTHER)) == (None, 7)
    assert len(store.ls()) == 1
    assert store.gc() == []


def test_saved_again_after_the_same_epoch(store: Store) -> None:
    """By a run that began anew, because its pointer was written but its result not yet."""
    save(store, 3)
    save(store, 3)
    assert epoch(store) == 3


@pytest.mark.parametrize("name", checkpoints.FILES)
def test_damaged_to_the_bit_counts_as_none(store: Store, name: str) -> None:
    flip(save(store, 2) / name)
    assert epoch(store) is None
    assert [problem.stage for problem in store.damaged()] == [CHECKPOINT]
    save(store, 2)
    assert epoch(store) == 2


def test_one_without_all_its_files_counts_as_none(store: Store) -> None:
    checkpoints.save(store, RUN, 1, {"state.safetensors": {"weight": np.zeros(3)}})
    assert epoch(store) is None


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"key": 3}', '{"key": "../../etc"}', "{"])
def test_pointer_that_makes_no_sense(store: Store, content: str) -> None:
    save(store, 1)
    pointer(store).write_text(content)
    assert epoch(store) is None
    save(store, 2)
    assert epoch(store) == 2
    pointer(store).write_text(content)
    checkpoints.drop(store, RUN)
    assert not pointer(store).exists()
    age(Path(store.url) / CHECKPOINT, 2 * 3600)
    store.gc()
    assert store.ls() == []


def test_gc_keeps_what_an_interrupted_run_goes_on_from(store: Store) -> None:
    save(store, 3)
    age(Path(store.url), 29 * DAY)
    assert store.gc() == []
    assert epoch(store) == 3


def test_gc_removes_what_no_pointer_names(store: Store) -> None:
    """As after a kill between the pointer and the removal of the former one."""
    former = save(store, 3)
    pointer(store).write_text(json.dumps({"key": "ef" * 32}))
    assert store.gc() == []  # its pointer may be written in a moment
    age(former, 2 * 3600)
    with store.lease(f"train-{RUN}") or pytest.fail("the lease is not free"):
        assert store.gc() == []  # the run may save this one again
    assert {item.path for item in store.gc(dry_run=True)} == {item.path for item in store.gc()}
    assert not former.exists()


def test_gc_removes_old_ones_with_their_pointers(store: Store) -> None:
    save(store, 3)
    age(Path(store.url), 31 * DAY)
    with store.lease(f"train-{RUN}") or pytest.fail("the lease is not free"):
        assert store.gc() == []
    assert len(store.gc()) == 4  # pointer, record, two files
    assert epoch(store) is None
    assert store.ls() == []


def test_gc_removes_those_of_stored_runs(store: Store) -> None:
    save(store, 3)
    save(store, 4, OTHER)
    store.write("train", RUN, {}, {})
    assert len(store.gc(dry_run=True)) == 4
    assert epoch(store) == 3
    assert len(store.gc()) == 4
    assert (epoch(store), epoch(store, OTHER)) == (None, 4)
    assert [result.stage for result in store.ls()] == [CHECKPOINT, "train"]
    assert store.gc() == []


def test_gc_keeps_those_of_runs_of_which_only_a_part_is_stored(store: Store, tmp_path: Path) -> None:
    """A light copy, e.g. from the demo store: someone trains it again for the rest."""
    full = Store(tmp_path / "full")
    full.write("train", RUN, {"events.parquet": pd.DataFrame({"epoch": [1]})}, {})
    full.export("train", RUN, store, omit=["events.parquet"])
    save(store, 3)
    assert store.gc() == []
    assert epoch(store) == 3


def stopped(store: Store) -> Path:
    """A real training that was cancelled in its fourth epoch; returns its checkpoint's folder."""
    told: list[dict[str, Any]] = []
    stop = Context(progress=told.append, cancelled=lambda: any(event.get("epoch") == 3 for event in told))
    with pytest.raises(Cancelled):
        experiment.ensure(store, "train", tiny(Defense(name="augmentation")), stop)
    (kept,) = store.ls(CHECKPOINT)
    return Path(store.url) / CHECKPOINT / kept.key


def test_training_with_a_damaged_checkpoint_begins_anew(store: Store, tmp_path: Path) -> None:
    flip(stopped(store) / "state.safetensors")
    e, told = tiny(Defense(name="augmentation")), list[dict[str, Any]]()
    experiment.ensure(store, "train", e, Context(progress=told.append))
    other = Store(tmp_path / "other")
    experiment.ensure(other, "train", e)
    assert_same(weights(store, e), weights(other, e))
    assert [problem.stage for problem in store.damaged()] == [CHECKPOINT]


def test_gc_after_a_kill_between_result_and_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`experiment.ensure` stores the result, then drops the checkpoint."""
    monkeypatch.setattr(checkpoints, "drop", lambda *_: None)
    experiment.ensure(store, "train", tiny(Defense(name="augmentation")))
    assert store.ls(CHECKPOINT) != []
    store.gc()
    assert store.ls(CHECKPOINT) == []
    assert store.list_json("checkpoints") == []
    assert store.verify() == []
    assert store.ls("train") != []
