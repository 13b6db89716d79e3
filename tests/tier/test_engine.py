"""The engine: one run per key however many ask, and nothing lost or left behind whoever is killed.

The first half drives the queue with a pool that computes nothing; the second starts real engines, workers and clients.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tier import engine_jobs
from tests.tier.test_experiment import assert_same, tiny, weights
from tier import checkpoints, engine, environment, scheduler
from tier import experiment as stages
from tier.config import Data, Defense, Experiment, Tier, Train
from tier.context import Cancelled, Context, Waiting
from tier.engine import Client, Engine, Job, Reporter, hopeless, kind, remaining, run_job, without_paths
from tier.environment import DATA_ROOT
from tier.experiment import stages as computing
from tier.store import Store

ROOT = Path(__file__).resolve().parents[2]
RUNNER = "tests.tier.engine_jobs"


def experiment(source: str = "ok", seed: int = 0, epochs: int = 3, seconds: float = 0.05) -> Experiment:
    return Experiment(data=Data(source=source), train=Train(seed=seed, epochs=epochs, learning_rate=seconds))


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen within {seconds} seconds")


# ---- the queue, with a pool that computes nothing


class StillPool:
    """Runs nothing: the test says when a run ends, and how."""

    def __init__(self, slots: int = 1) -> None:
        self.count = slots
        self.started: list[tuple[str, ...]] = []
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.released: list[str] = []
        self.away: str | None = None
        self.wanting: str | None = None
        self.expected: list[str] = []

    def slots(self) -> int:
        return self.count

    def expect(self, stages: Sequence[str]) -> None:
        self.expected = list(stages)

    def start(self, name: str, *arguments: str | None) -> str:
        self.started.append((name, *map(str, arguments)))
        return name

    def outcome(self, handle: str) -> dict[str, Any] | None:
        return self.outcomes.get(handle)

    def release(self, handle: str) -> None:
        self.released.append(handle)

    def trouble(self) -> str | None:
        return self.away

    def lacking(self) -> str | None:
        return self.wanting

    @property
    def last(self) -> str:
        return self.started[-1][0]

    def end(self, status: str = "done", **more: str) -> None:
        self.outcomes[self.last] = {"status": status, **more}


class Desk:
    """A client without an engine process, a queue and a still pool on one store."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, slots: int = 1) -> None:
        monkeypatch.setattr(Client, "start_engine", lambda self: None)
        monkeypatch.setattr(Client, "_alive", lambda self: True)
        self.store = Store(path)
        self.client = Client(self.store, "me", runner=RUNNER)
        self.pool = StillPool(slots)
        self.engine = Engine(self.store, self.pool, RUNNER)

    def submit(self, seed: int, **more: Any) -> str:
        key = self.client.submit("report", experiment(seed=seed), **more)
        time.sleep(0.002)  # times that tell first from second
        return key

    def job(self, key: str) -> Job:
        job = self.client.job(key)
        assert job is not None
        return job


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(tmp_path / "store", monkeypatch)
    yield desk
    desk.client.close()


def serve(desk: Desk, served: Engine | None = None) -> None:
    """Three steps of the loop that an engine process runs, which no error may leave."""
    left = iter(range(3))
    engine.serve(served or desk.engine, lambda: next(left, None) is not None, None, poll=0.001)


def run_started(desk: Desk) -> str:
    """Do here what the pool was asked for last, and tell it; returns the outcome's status."""
    name, *arguments = desk.pool.started[-1]
    outcome = json.loads(run_job(*[None if text == "None" else text for text in arguments]))  # type: ignore[arg-type]
    desk.pool.outcomes[name] = outcome
    status: str = outcome["status"]
    return status


def test_first_come_first_served_and_sweeps_wait(desk: Desk) -> None:
    sweep = desk.submit(0, priority="sweep")
    first, second, third = (desk.submit(seed) for seed in (1, 2, 3))
    assert desk.job(second).status == "queued"
    assert desk.job(second).position is None
    desk.engine.step()
    assert desk.job(first).status == "running"
    assert [desk.job(key).position for key in (first, second, third, sweep)] == [0, 1, 2, 3]
    assert [job.key for job in desk.client.jobs()] == [first, second, third, sweep]
    desk.client.submit("report", experiment(seed=0), requester="you")  # someone waits for the sweep's point
    desk.engine.step()
    assert desk.job(sweep).priority == "interactive"
    assert [desk.job(key).position for key in (first, sweep, second, third)] == [0, 1, 2, 3]
    desk.pool.end()
    desk.engine.step()
    assert desk.job(first).status == "done"
    assert desk.job(sweep).status == "running"
    assert [job.key for job in desk.client.jobs()] == [sweep, second, third, first]


def test_as_many_run_as_there_are_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch, slots=2)
    keys = [desk.submit(seed) for seed in range(3)]
    desk.engine.step()
    assert [desk.job(key).status for key in keys] == ["running", "running", "queued"]
    assert desk.pool.expected == ["report"]
    desk.client.cancel(keys[2])
    desk.engine.step()
    assert desk.pool.expected == []
    desk.client.close()


def test_only_jobs_that_could_start_ask_for_more_workers(desk: Desk) -> None:
    """One that waits for what another run computes would find nothing to do, until that is done."""
    first, second, _ = (desk.submit(seed) for seed in range(3))
    desk.engine.step()
    assert len(desk.pool.expected) == 2
    lease = desk.store.lease("split-x")
    assert lease is not None
    with lease:
        desk.pool.outcomes[desk.pool.last] = {"status": "waiting", "for": "split-x"}
        desk.engine.step()
        assert desk.job(first).step == engine.WAITING and desk.job(second).status == "running"
        assert len(desk.pool.expected) == 1
    desk.engine.step()
    assert desk.job(first).status == "queued" and len(desk.pool.expected) == 2


def test_thirty_requests_are_one_run(desk: Desk) -> None:
    keys = {desk.submit(1, requester=f"student {number}") for number in range(30)}
    assert len(keys) == 1
    desk.engine.step()
    desk.engine.step()
    assert len(desk.pool.started) == 1
    key = keys.pop()
    assert len(desk.job(key).requesters) == 30
    for number in range(29):
        desk.client.cancel(key, f"student {number}")
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert desk.job(key).requesters == ["student 29"]
    assert not desk.store.list_json("cancel")
    desk.client.cancel(key, "student 29")
    desk.engine.step()
    assert desk.job(key).step == "stopping"
    assert len(desk.store.list_json("cancel")) == 1
    desk.pool.end("cancelled")
    desk.engine.step()
    assert desk.job(key).status == "cancelled"
    assert not desk.store.list_json("cancel")
    assert desk.engine.idle


def test_cancelled_in_the_queue_never_starts(desk: Desk) -> None:
    first, second = desk.submit(1), desk.submit(2)
    desk.engine.step()
    desk.client.cancel_all(second)
    desk.engine.step()
    assert desk.job(second).status == "cancelled"
    desk.pool.end()
    desk.engine.step()
    assert len(desk.pool.started) == 1
    assert desk.job(first).status == "done"


def test_asked_again_while_it_stops(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    desk.client.cancel(key)
    desk.engine.step()
    desk.submit(1, requester="you")
    desk.engine.step()
    assert len(desk.pool.started) == 1
    desk.pool.end("cancelled")
    desk.engine.step()
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert desk.job(key).requesters == ["you"]
    assert len(desk.pool.started) == 2


def test_failure_is_told_and_can_be_tried_again(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    desk.pool.end("failed", error="the batch is too large", details="Traceback")
    desk.engine.step()
    job = desk.job(key)
    assert (job.status, job.error, job.details) == ("failed", "the batch is too large", "Traceback")
    assert not desk.store.list_json("requests")
    desk.submit(1)
    assert desk.job(key).status == "queued"  # at once, before the engine has looked
    assert desk.job(key).error is None
    desk.engine.step()
    assert desk.job(key).status == "running"


def test_stored_results_make_no_run(desk: Desk) -> None:
    done = experiment(seed=1)
    desk.store.write("report", engine_jobs.key("report", engine_jobs.pin(desk.store, done)), {}, {})
    key = desk.client.submit("report", done)
    assert desk.job(key).status == "done"
    assert not desk.store.list_json("requests")
    late = desk.submit(2)
    desk.store.write("report", late, {}, {})  # by someone else meanwhile
    desk.engine.step()
    assert desk.job(late).status == "done"
    assert desk.pool.started == []


def light(desk: Desk, wanted: Experiment, omit: list[str]) -> str:
    """A result in a read-only store below the desk's, without the files in `omit`; returns its key."""
    full, below = Store(f"{desk.store.url}-full"), Store(f"{desk.store.url}-below")
    found = engine_jobs.ensure(full, "report", engine_jobs.pin(full, wanted))
    full.export("report", found.key, below, omit=omit)
    desk.store.below = Store(below.url, read_only=True)
    return found.key


NEED = ["events.parquet"]
WANTED = experiment(seconds=0.001)


def test_light_copy_counts_only_for_those_who_need_no_more(desk: Desk) -> None:
    key = light(desk, WANTED, omit=NEED)
    assert desk.client.submit("report", WANTED) == key
    assert desk.job(key).step == "found in the store"
    assert desk.client.submit("report", WANTED, need=NEED) == key
    assert desk.job(key).status == "queued"
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert run_started(desk) == "done"
    desk.engine.step()
    assert desk.job(key).status == "done"
    assert desk.store.find("report", key, NEED) is not None


def test_damaged_file_below_is_computed_again(desk: Desk) -> None:
    key = light(desk, WANTED, omit=[])
    assert desk.client.submit("report", WANTED, need=NEED) == key
    assert desk.job(key).status == "done"
    below = desk.store.below
    assert below is not None
    path = Path(below.url) / "report" / key / "events.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    desk.client.submit("report", WANTED, need=NEED)
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert run_started(desk) == "done"
    desk.engine.step()
    assert desk.job(key).status == "done"
    found = desk.store.find("report", key, NEED)
    assert found is not None
    assert found.store is desk.store


def test_what_is_needed_is_merged_over_requests(desk: Desk) -> None:
    key = light(desk, WANTED, omit=NEED)
    desk.submit(9)
    desk.engine.step()
    desk.client.submit("report", WANTED, "one", need=["absent.parquet"])
    desk.engine.step()
    assert desk.job(key).need == ["absent.parquet"]
    desk.client.submit("report", WANTED, "one", need=NEED)  # the same person on another page
    desk.client.submit("report", WANTED, "two", need=["other.parquet"])
    desk.engine.step()
    assert desk.job(key).need == ["absent.parquet", "events.parquet", "other.parquet"]
    desk.pool.end()
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert json.loads(desk.pool.started[-1][-2]) == desk.job(key).need


def test_what_is_needed_while_the_run_goes_on_makes_another_try(desk: Desk) -> None:
    key = desk.client.submit("report", WANTED, "one")
    desk.engine.step()
    light(desk, WANTED, omit=NEED)
    desk.client.submit("report", WANTED, "two", need=NEED)
    desk.engine.step()
    assert len(desk.pool.started) == 1
    desk.pool.end()  # finds the light copy
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert len(desk.pool.started) == 2
    assert run_started(desk) == "done"
    desk.engine.step()
    assert desk.job(key).status == "done"
    assert desk.store.find("report", key, NEED) is not None


def test_data_that_nobody_has_read_gets_a_key_of_its_own(desk: Desk) -> None:
    key = desk.client.submit("report", experiment("unread"))
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert len(desk.pool.started) == 1
    desk.pool.end()
    desk.engine.step()
    assert desk.job(key).status == "done"


def test_the_data_root_travels_with_the_request(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    roots = {"a": "relative/data", "b": str(tmp_path / "b"), "c": ""}
    keys = []
    for seed, root in enumerate(roots.values()):
        monkeypatch.setenv(DATA_ROOT, root)
        keys.append(desk.submit(seed))
    monkeypatch.setenv(DATA_ROOT, "/engine")
    for key in keys:
        desk.engine.step()
        assert run_started(desk) == "done"
        desk.engine.step()
        assert desk.job(key).status == "done"
    found = [engine_jobs.roots(desk.store, key) for key in keys]
    assert found == [{str(tmp_path / "relative" / "data")}, {str(tmp_path / "b")}, {"/engine"}]
    assert os.environ[DATA_ROOT] == "/engine"  # as before


def test_unread_data_of_two_roots_are_two_jobs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for root in ("/a", "/b", "/a"):
        monkeypatch.setenv(DATA_ROOT, root)
        keys.append(desk.client.submit("report", experiment("unread")))
    assert keys[0] == keys[2] != keys[1]


def test_lost_run_is_submitted_again_under_a_new_name(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    first = desk.pool.last
    desk.pool.end("died")
    desk.engine.step()
    assert desk.pool.last != first
    assert first in desk.pool.released
    assert desk.job(key).status == "running"
    for _ in range(engine.STARTS):
        desk.pool.end("died")
        desk.engine.step()
    assert desk.job(key).status == "failed"
    assert "lost this run" in (desk.job(key).error or "")


def test_a_cluster_that_is_away_is_told_and_blames_no_run(desk: Desk) -> None:
    desk.pool.count = 1
    first, second = desk.submit(1), desk.submit(2)
    desk.engine.step()
    Reporter(desk.store, first, "run").progress({"epoch": 1, "epochs": 3, "step": "training"})
    for _ in range(2 * engine.STARTS):
        desk.pool.away = "the scheduler does not answer"
        desk.engine.step()
        for key in (first, second):
            assert (desk.job(key).status, desk.job(key).step) == ("queued", "the scheduler does not answer")
        assert len(desk.pool.released) == len(desk.pool.started)
        desk.pool.away = None
        desk.engine.step()
        assert (desk.job(first).status, desk.job(second).step) == ("running", "waiting")
    desk.pool.end()
    desk.engine.step()
    assert desk.job(first).status == "done"


def test_a_run_cancelled_while_the_cluster_is_away_ends(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    desk.client.cancel(key)
    desk.pool.away = "the scheduler does not answer"
    desk.engine.step()
    assert desk.job(key).status == "cancelled"
    assert desk.engine.idle


def test_a_started_job_says_what_it_waits_for(desk: Desk) -> None:
    key = desk.submit(1)
    desk.pool.wanting = "waiting for a worker"
    desk.engine.step()
    desk.engine.step()
    assert (desk.job(key).status, desk.job(key).step) == ("running", "waiting for a worker")
    desk.pool.wanting = None
    desk.engine.step()
    assert desk.job(key).step == "starting"
    Reporter(desk.store, key, "run").progress({"step": "training"})
    desk.engine.step()
    assert desk.job(key).step == "training"


def test_worker_that_dies_without_progress_ends_the_job(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    for start in range(4):
        Reporter(desk.store, key, "run")
        desk.engine.step()
        assert desk.job(key).attempt == start + 1
        assert desk.job(key).status == ("failed" if start == 3 else "running")
    assert "died 3 times in a row without getting further" in (desk.job(key).error or "")
    assert len(desk.store.list_json("cancel")) == 1  # for the start that is under way
    assert desk.engine.idle
    desk.submit(1)
    desk.engine.step()
    assert desk.job(key).status == "running"  # a new try counts from the beginning


def test_hopeless() -> None:
    assert hopeless([]) is None
    assert hopeless([0, 0, 0]) is None
    assert hopeless([0, 0, 0, 0]) is not None
    assert hopeless([0, 0, 0, 2, 2, 3]) is None
    assert hopeless(list(range(20))) is None
    assert "died 20 times" in (hopeless(list(range(21))) or "")


def request(**changes: Any) -> dict[str, Any]:
    content = {"stage": "report", "experiment": WANTED.model_dump(mode="json", by_alias=True), "requester": "x"}
    return {**content, "priority": "sweep", "time": 1.0, **changes}


@pytest.mark.parametrize(
    "content",
    [
        {"stage": "report"},
        [],
        None,
        request(experiment={"nonsense": 1}),
        request(experiment=[]),
        request(stage="../../etc"),
        request(priority="now"),
        request(time="early"),
        request(time=[]),
        request(need=3),
        request(requester=None),
        request(data_root=1),
    ],
)
def test_garbage_requests_are_removed(desk: Desk, content: Any) -> None:
    fine = desk.submit(1)
    bad = "ab" * 32
    desk.store.put_json(f"requests/{bad}/a.json", content)
    serve(desk)
    assert desk.job(fine).status == "running"
    assert [path.split("/")[1] for path in desk.store.list_json("requests")] == [fine]
    assert desk.client.job(bad) is None


@pytest.mark.parametrize("path", ["nonsense/a.json", "a.json", "ABCD/b.json", "abababab/c/d.json"])
def test_requests_without_a_key_are_removed(desk: Desk, path: str) -> None:
    fine = desk.submit(1)
    desk.store.put_json(f"requests/{path}", request())
    desk.store.put_bytes("requests/abababab/x.json", b"{")
    assert [job.key for job in desk.client.jobs()] == [fine]  # before any engine has looked
    serve(desk)
    assert desk.job(fine).status == "running"
    assert [path.split("/")[1] for path in desk.store.list_json("requests")] == [fine]


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "cd" * 32},
        {"key": "nonsense"},
        {"stage": 7},
        {"stage": "bus"},
        {"status": "lost"},
        {"started": "yesterday"},
        {"attempt": None},
        {"experiment": None},
        {"need": 4},
        None,
    ],
)
def test_garbage_jobs_are_removed(desk: Desk, changes: dict[str, Any] | None) -> None:
    key = "ab" * 32
    content = engine.asdict(Job(key, "report", {}, "running", started=1.0, attempt=1))
    desk.store.put_json(f"jobs/{key}.json", changes and content | changes)
    assert desk.client.job(key) is None
    assert desk.client.jobs() == []
    successor = Engine(desk.store, desk.pool, RUNNER)
    assert not desk.store.list_json("jobs")
    fine = desk.submit(1)
    serve(desk, successor)
    assert desk.job(fine).status == "running"


@pytest.mark.parametrize(
    "content", [[], {"starts": None}, {"starts": ["x"]}, {"events": [{"loss": 1.0}]}, {"fraction": "half"}, b"{"]
)
def test_garbage_progress_is_written_over(desk: Desk, content: Any) -> None:
    key = desk.submit(1)
    desk.store.put_bytes(
        f"progress/{key}.json", content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    assert desk.client.history(key).empty
    serve(desk)
    assert desk.job(key).status == "running"
    Reporter(desk.store, key, "run").progress({"step": "training", "epoch": 1})
    serve(desk)
    assert desk.job(key).attempt == 1
    assert desk.client.history(key)["epoch"].tolist() == [1]


def test_garbage_about_the_engine(desk: Desk) -> None:
    with desk.store.lease(engine.LEASE) or pytest.fail("the lease is not free"):
        for content in ([], {}, {"pid": "x"}):
            desk.store.put_json("engine.json", content)
            assert desk.client.engine() is None


def test_requests_of_vanished_clients_leave_the_queue(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    wall, began = time.time, time.monotonic()
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(engine.time, "time", lambda: wall() + now[0] - began)
    gone, there = Client(desk.store, "gone", runner=RUNNER), desk.client
    running, orphan = (gone.submit("report", experiment(seed=seed)) for seed in (1, 2))
    shared, mine = experiment(seed=3), desk.submit(4)
    both = gone.submit("report", shared)
    there.submit("report", shared)
    sweep = gone.submit("report", experiment(seed=5), priority="sweep")
    gone.close()

    def later(seconds: float) -> None:
        for _ in range(int(seconds / 600)):
            now[0] += 600
            there._beat()
            desk.engine.step()

    desk.engine.step()
    later(3000)
    assert [desk.job(key).status for key in (running, orphan, both, mine, sweep)] == ["running", *["queued"] * 4]
    assert len(desk.job(both).requesters) == 2
    later(1800)
    assert [desk.job(key).status for key in (orphan, sweep)] == ["cancelled"] * 2
    assert [desk.job(key).status for key in (running, both, mine)] == ["running", "queued", "queued"]
    assert desk.job(both).requesters == ["me"]
    later(36000)
    assert [desk.job(key).status for key in (running, both, mine)] == ["running", "queued", "queued"]
    assert not desk.store.list_json("cancel")


def test_orphaned_run_can_be_cancelled_by_anyone(desk: Desk) -> None:
    gone = Client(desk.store, "gone", runner=RUNNER)
    key = gone.submit("report", experiment(seed=1))
    gone.submit("report", experiment(seed=1), requester="another")
    gone.close()
    desk.engine.step()
    desk.client.cancel(key)  # not one of its requesters
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert desk.job(key).step != "stopping"
    desk.client.cancel_all(key)
    desk.engine.step()
    assert desk.job(key).step == "stopping"
    desk.pool.end("cancelled")
    desk.engine.step()
    assert desk.job(key).status == "cancelled"
    desk.client.cancel_all(key)  # over: nothing to do
    desk.engine.step()
    assert desk.job(key).status == "cancelled"
    assert desk.engine.idle


def test_new_engine_takes_over_and_closes_what_nobody_wants(desk: Desk) -> None:
    wanted, unwanted = desk.submit(1), desk.submit(2)
    desk.engine.step()
    desk.client.cancel_all(unwanted)
    Reporter(desk.store, wanted, "run").progress({"step": "training", "epoch": 1, "loss": 1.0})
    desk.engine.step()
    successor = Engine(desk.store, desk.pool, RUNNER)
    assert desk.job(unwanted).status == "cancelled"
    successor.step()
    successor.step()
    job = desk.job(wanted)
    assert (job.status, job.attempt, job.epoch) == ("running", 1, 1)
    assert len(desk.client.history(wanted)) == 1


def test_estimates(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [desk.submit(seed) for seed in range(3)]
    desk.engine.step()
    assert [desk.job(key).eta_seconds for key in keys] == [None, None, None]
    for key in keys:
        done = Job(key, "report", experiment(seed=9).model_dump(mode="json", by_alias=True), "done", attempt=1)
        done.started, done.ended = 100.0, 140.0
        desk.engine._learn(done)
    monkeypatch.setattr(engine.time, "monotonic", lambda: 1e6)  # let the next estimate be written
    desk.engine.step()
    assert [desk.job(key).eta_seconds for key in keys] == [40, 80, 120]


def test_remaining() -> None:
    job = Job("k", "report", {}, "running", started=1000.0, attempt=1, fraction=0.5, step="training")
    assert remaining(job, 60.0, ("training", 1000.0, 0.0), 1010.0) == 50
    assert remaining(job, None, ("training", 1000.0, 0.0), 1010.0) == 10
    assert remaining(job, None, ("training", 1000.0, 0.3), 1010.0) == 25  # a resumed run's speed
    assert remaining(job, 5.0, ("training", 1000.0, 0.0), 1010.0) == 10  # longer than usual
    job.fraction = None
    assert remaining(job, None, ("training", 1000.0, 0.0), 1010.0) is None


def test_kind_ignores_lambda_and_seed() -> None:
    settings: list[dict[str, Any]] = [
        {"train.seed": 1},
        {"defense.tier.lambda": 3},
        {"train.epochs": 7},
        {"defense.name": "tier_full"},
    ]
    kinds = [kind(Job("k", "report", Experiment().set(s).model_dump(mode="json", by_alias=True))) for s in settings]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 3


def test_result_of_a_dead_engine_counts_as_done(desk: Desk) -> None:
    key = desk.submit(1)
    desk.engine.step()
    desk.store.write("report", key, {}, {})
    desk.client.cancel_all(key)
    Engine(desk.store, desk.pool, RUNNER)
    assert desk.job(key).status == "done"


def test_serve_says_why_it_ends(desk: Desk) -> None:
    assert engine.serve(desk.engine, lambda: False, None) == "told to stop, or the lease or the workers were lost"
    assert (
        engine.serve(desk.engine, lambda: True, None, idle_timeout=0.05, poll=0.01) == "nothing to do for 0.05 seconds"
    )
    key = desk.submit(1)
    clients = engine._Clients(desk.store, timeout=0.05)
    assert engine.serve(desk.engine, lambda: True, clients, idle_timeout=0.0, poll=0.01) == "no client is left"
    assert desk.job(key).status == "running"  # abandoned; its requests stay for the next engine


def test_clients_that_stay_silent_are_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    clients = engine._Clients(desk.store, timeout=15)
    assert not clients.gone()
    now[0] = 14.0
    desk.client._beat()
    assert not clients.gone()
    now[0] = 28.0
    assert not clients.gone()
    now[0] = 30.0
    assert clients.gone()
    now[0] = 1000.0
    clients.gone()
    assert not desk.store.list_json("clients")


def test_store_that_does_not_answer_for_a_moment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    key = desk.submit(1)
    listing, calls = desk.store.stamps, [0]

    def failing(prefix: str = "") -> dict[str, object]:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError("no route to host")
        return listing(prefix)

    monkeypatch.setattr(desk.store, "stamps", failing)
    engine.serve(desk.engine, lambda: calls[0] < 3, None, poll=0.01)
    assert desk.job(key).status == "running"
    reporter = Reporter(desk.store, "aa", "run")

    def refuse(path: str, content: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(desk.store, "put_json", refuse)
    reporter.progress({"step": "training", "fraction": 0.1})  # does not end the run
    monkeypatch.undo()
    reporter.close()
    assert desk.store.get_json("progress/aa.json")["fraction"] == 0.1


# ---- the store is tidied


class OncePool(StillPool):
    """What `engine.main` needs of a pool that computes nothing."""

    threads, scheduler = 1, None

    def close(self) -> None:
        pass


def expired(store: Store, key: str) -> Path:
    """A result whose time is over, as a file."""
    store.write("inspect", key, {}, {"expires": "2026-01-01T00:00:00+00:00"})
    return Path(store.url) / "inspect" / key / "record.json"


def test_the_engine_removes_what_has_expired_as_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = expired(Store(tmp_path), "a" * 64)

    def served(*_: Any) -> str:
        until(lambda: not path.exists(), 30, "the clean-up")
        return "seen"

    monkeypatch.setattr(engine, "DaskPool", lambda *_: OncePool())
    monkeypatch.setattr(engine, "serve", served)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(engine.main(["--store", str(tmp_path)])))  # leaves signals be
    thread.start()
    thread.join(60)
    assert codes == [0]
    until(lambda: all(thread.name != "tidy" for thread in threading.enumerate()), 30, "the end of the clean-up")


def test_tidying_goes_on_after_a_failure_and_ends_when_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, stop = Store(tmp_path), threading.Event()
    real, calls = store.gc, [0]

    def failing() -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("the network is down")
        return real()

    store.gc = failing  # type: ignore[method-assign]
    thread = threading.Thread(target=engine.tidy, args=(store, stop, 0.05))
    thread.start()
    until(lambda: calls[0] >= 2, 30, "the second try")
    path = expired(store, "b" * 64)
    until(lambda: not path.exists(), 30, "the next clean-up")
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert "could not be tidied" in caplog.text and "the network is down" in caplog.text


def test_a_read_only_store_is_left_as_it_is(tmp_path: Path) -> None:
    path = expired(Store(tmp_path), "c" * 64)
    engine.tidy(Store(tmp_path, read_only=True), threading.Event())
    assert path.exists()


# ---- jobs that wait for what another run computes


def toy_lease(stage: str, wanted: Experiment) -> str:
    return f"{stage}-{engine_jobs.key(stage, wanted)}"


def test_a_job_that_waits_gives_its_slot_to_another(desk: Desk) -> None:
    wanted, other = experiment("shared", seed=1), experiment(seed=2)
    lease = toy_lease("warmup", wanted)
    with desk.store.lease(lease) or pytest.fail("the lease is not free"):
        key = desk.client.submit("report", wanted)
        time.sleep(0.002)
        second = desk.client.submit("report", other)
        desk.engine.step()
        assert desk.job(key).status == "running"
        assert run_started(desk) == "waiting"
        assert desk.pool.outcomes[desk.pool.last] == {"status": "waiting", "for": lease}
        desk.engine.step()
        job = desk.job(key)
        assert (job.status, job.step, job.started) == ("queued", engine.WAITING, None)
        assert desk.job(second).status == "running"
        assert run_started(desk) == "done"
        for _ in range(3):
            desk.engine.step()
        assert desk.job(second).status == "done"
        assert len(desk.pool.started) == 2  # a slot is free, and still it is not tried
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert run_started(desk) == "done"
    desk.engine.step()
    assert (desk.job(key).status, desk.job(key).attempt) == ("done", 1)
    assert desk.client.history(key)["epoch"].tolist() == [1, 2, 3]


def test_waiting_is_no_start_no_stall_and_no_loss(desk: Desk) -> None:
    wanted = experiment("shared", seed=1, seconds=0.001)
    key = desk.client.submit("report", wanted)
    for _ in range(engine.STARTS + 5):
        with desk.store.lease(toy_lease("warmup", wanted)) or pytest.fail("the lease is not free"):
            desk.engine.step()
            assert run_started(desk) == "waiting"
            desk.engine.step()
            assert (desk.job(key).status, desk.job(key).attempt) == ("queued", 0)
            assert desk.store.get_json(f"progress/{key}.json")["starts"] == []
    desk.engine.step()
    assert run_started(desk) == "done"
    desk.engine.step()
    assert (desk.job(key).status, desk.job(key).attempt) == ("done", 1)


def test_a_real_start_counts_however_often_it_waited(desk: Desk) -> None:
    wanted = experiment("shared", seed=1)
    key = desk.client.submit("report", wanted)
    desk.engine.step()
    Reporter(desk.store, key, "run")  # a start whose worker dies
    with desk.store.lease(toy_lease("warmup", wanted)) or pytest.fail("the lease is not free"):
        assert run_started(desk) == "waiting"
        desk.engine.step()
    assert desk.job(key).attempt == 1
    assert len(desk.store.get_json(f"progress/{key}.json")["starts"]) == 1


def test_the_time_spent_waiting_is_not_learnt_as_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    wanted = experiment("shared", seed=1)
    key = desk.client.submit("report", wanted)
    monkeypatch.setattr(engine.time, "time", lambda: now[0])
    lease = toy_lease("warmup", wanted)
    holder = {lease: True}
    monkeypatch.setattr(desk.store, "holder", lambda name: {} if holder.get(name) else None)
    desk.engine.step()
    now[0] += 30
    desk.pool.end("waiting", **{"for": lease})
    desk.engine.step()
    now[0] += 500
    desk.engine.step()
    assert desk.job(key).status == "queued"
    holder[lease] = False
    desk.engine.step()
    Reporter(desk.store, key, "run")
    now[0] += 20
    desk.pool.end()
    desk.engine.step()
    job = desk.job(key)
    assert job.started is not None and job.ended is not None
    assert job.ended - job.started == pytest.approx(50)
    assert desk.engine._durations[kind(job)] == [pytest.approx(50)]


def test_whoever_waits_in_person_is_next_once_the_lease_is_free(desk: Desk) -> None:
    person, points = experiment("shared", seed=1), [desk.submit(seed, priority="sweep") for seed in (2, 3, 4)]
    with desk.store.lease(toy_lease("warmup", person)) or pytest.fail("the lease is not free"):
        key = desk.client.submit("report", person)
        desk.engine.step()
        assert desk.job(key).status == "running"  # ahead of the sweep
        assert run_started(desk) == "waiting"
        desk.engine.step()
        assert desk.job(points[0]).status == "running"
    desk.engine.step()
    assert len(desk.pool.started) == 2  # no run is broken off for it
    desk.pool.end()
    desk.engine.step()
    assert desk.job(key).status == "running"
    assert [desk.job(point).status for point in points] == ["done", "queued", "queued"]


def test_a_job_cancelled_while_it_waits(desk: Desk) -> None:
    wanted = experiment("shared", seed=1)
    with desk.store.lease(toy_lease("warmup", wanted)) or pytest.fail("the lease is not free"):
        key = desk.client.submit("report", wanted)
        desk.engine.step()
        run_started(desk)
        desk.engine.step()
        desk.client.cancel(key)
        desk.engine.step()
        assert desk.job(key).status == "cancelled"
        assert desk.engine.idle
        again = desk.client.submit("report", wanted)  # and one that is cancelled before the engine hears that it waits
        desk.engine.step()
        assert run_started(desk) == "waiting"
        desk.client.cancel(again)
        desk.engine.step()
        assert desk.job(again).status == "cancelled"
        assert desk.engine.idle
    assert not desk.store.list_json("cancel")


def test_the_lease_of_a_dead_process_is_not_waited_for(desk: Desk) -> None:
    wanted = experiment("shared", seed=1)
    code = (
        "import os, sys; from tier.store import Store; assert Store(sys.argv[1]).lease(sys.argv[2]); "
        "sys.stdin.readline(); os._exit(0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, desk.store.url, toy_lease("warmup", wanted)],
        stdin=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    until(lambda: desk.store.holder(toy_lease("warmup", wanted)), 30, "the lease")
    key = desk.client.submit("report", wanted)
    desk.engine.step()
    assert run_started(desk) == "waiting"
    desk.engine.step()
    assert desk.job(key).status == "queued"
    process.communicate("\n", timeout=30)
    desk.engine.step()
    assert run_started(desk) == "done"


def test_real_stages_do_not_wait_when_told_so(tmp_path: Path) -> None:
    """A point of a sweep whose warm-up another process computes, and a report whose training runs elsewhere."""
    store = Store(tmp_path)
    point = stages.pin(store, tiny(Defense(name="tier_reg", tier=Tier(warmup=1))), load=True)
    stages.ensure(store, "split", point)
    impatient = Context(waits=False)
    for stage in ("warmup", "train", "report"):
        lease = f"{stage}-{stages.key(stage, point)}"
        with store.lease(lease) or pytest.fail("the lease is not free"):
            with pytest.raises(Waiting) as told:
                stages.ensure(store, "report", point, impatient)
            assert told.value.lease == lease
        assert [result.stage for result in store.ls()] == ["split"]
        assert all(store.holder(f"{name}-{stages.key(name, point)}") is None for name in ("report", "train", "audit"))
    assert stages.ensure(store, "train", point, impatient).metrics["epochs"] == 6


def test_what_is_read_is_looked_up_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a battery's twenty models the last may be the one that another run trains."""
    store = Store(tmp_path)
    e = stages.pin(store, tiny(**{"battery.references": 6}), load=True)
    computed: list[str] = []
    real = computing._compute
    monkeypatch.setattr(computing, "_compute", lambda *a: computed.append(a[1]) or real(*a))
    lease = f"train-{stages.key('train', stages.reference(e, 5))}"
    with store.lease(lease) or pytest.fail("the lease is not free"), pytest.raises(Waiting, match=lease):
        stages.ensure(store, "battery", e, Context(waits=False))
    assert computed == []


# ---- the worker's side


def test_reporter_merges_events(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reporter = Reporter(store, "aa", "run")
    reporter.progress({"step": "training", "epoch": 1, "epochs": 3, "loss": 2.0, "fraction": 1 / 3})
    reporter.progress({"step": "training", "epoch": 2, "epochs": 3, "loss": float("nan"), "fraction": 2 / 3})
    reporter.progress({"step": "measuring", "fraction": 0.5})
    reporter.close()
    state = store.get_json("progress/aa.json")
    assert [event["loss"] for event in state["events"]] == [2.0, None]
    assert (state["step"], state["fraction"], state["epoch"], state["epochs"]) == ("measuring", 0.5, 2, 3)
    assert state["starts"] == [0]
    assert state["advance"] == 4  # two epochs, two steps
    resumed = Reporter(store, "aa", "run")
    assert resumed.state["starts"] == [0, 4]
    assert resumed.state["step"] == "starting again after its worker died"
    resumed.progress(state["events"][0])  # told again by a resumed run
    assert (resumed.state["step"], resumed.state["epoch"], resumed.state["fraction"]) == ("training", 2, None)
    resumed.progress(state["events"][1])
    assert (resumed.state["epoch"], resumed.state["fraction"]) == (2, 2 / 3)
    assert len(resumed.state["events"]) == 2
    resumed.progress({"epoch": 1, "loss": 9.0})  # begun anew
    assert [event["loss"] for event in resumed.state["events"]] == [9.0]
    assert resumed.state["advance"] == 4


def test_reporter_hears_cancel(tmp_path: Path) -> None:
    store = Store(tmp_path)
    reporter = Reporter(store, "aa", "run")
    assert not reporter.cancelled()
    store.put_json("cancel/other.json", {})
    assert not reporter.cancelled()
    store.put_json("cancel/run.json", {})
    assert reporter.cancelled()


def test_reporter_stops_when_no_engine_was_alive_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    store = Store(tmp_path)
    reporter = Reporter(store, "aa", "run")
    lease = store.lease(engine.LEASE)
    assert lease is not None
    now[0] += 100
    assert not reporter.cancelled()
    lease.release()
    now[0] += 29
    assert not reporter.cancelled()
    now[0] += 10
    assert reporter.cancelled()


def run(store: Store, wanted: Experiment, key: str | None = None) -> dict[str, Any]:
    pinned = engine_jobs.pin(store, wanted)
    key = key or engine_jobs.key("report", pinned)
    outcome: dict[str, Any] = json.loads(
        run_job(store.url, None, RUNNER, "report", key, pinned.model_dump_json(by_alias=True), "run")
    )
    return outcome


def test_run_job_outcomes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert run(store, experiment()) == {"status": "done"}
    failed = run(store, experiment("fail"))
    assert failed["error"] == "the learning rate is too large; try 0.001"
    assert "Traceback" in failed["details"]
    assert run(store, experiment("bug"))["error"] == "RuntimeError: shapes do not match"
    assert "another version of the code" in run(store, experiment(seed=5), key="ab" * 32)["error"]
    store.put_json("cancel/run.json", {})
    assert run(store, experiment(seed=6)) == {"status": "cancelled"}
    assert issubclass(Cancelled, Exception)


def test_jobs_of_one_process_take_turns_and_do_not_mix_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a worker with several threads in a cluster that is not ours: torch and TIER_DATA belong to the process."""
    monkeypatch.delenv(DATA_ROOT, raising=False)
    store, outcomes, ready = Store(tmp_path), dict[str, str](), threading.Barrier(3)

    def work(root: str, seed: int) -> None:
        pinned = engine_jobs.pin(store, experiment(seed=seed, epochs=3, seconds=0.1))
        what = ("report", engine_jobs.key("report", pinned), pinned.model_dump_json(by_alias=True))
        ready.wait()
        outcomes[root] = run_job(store.url, None, RUNNER, *what, f"run{seed}", "[]", root)

    threads = [threading.Thread(target=work, args=item) for item in (("/a", 1), ("/b", 2), ("/c", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes.values()) == {'{"status": "done"}'}
    assert [engine_jobs.roots(store, result.key) for result in store.ls("report")].count({"/a"}) == 1
    assert {root for result in store.ls("report") for root in engine_jobs.roots(store, result.key)} == {
        "/a",
        "/b",
        "/c",
    }
    assert all(len(engine_jobs.roots(store, result.key)) == 1 for result in store.ls("report"))
    assert DATA_ROOT not in os.environ


def test_job_that_waits_for_its_turn_can_be_cancelled(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_json("cancel/run.json", {})
    with engine._one_job:
        assert run(store, experiment()) == {"status": "cancelled"}


def test_a_job_waits_for_what_is_loaded_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that the worker loads as it starts is the one that the job needs, so it must not run beside it."""
    (tmp_path / "slow_stages.py").write_text(
        "import time\nloaded = False\ntime.sleep(1.5)\nfrom tests.tier.engine_jobs import *\nloaded = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    store, wanted = Store(tmp_path / "store"), experiment(epochs=1)
    key = engine_jobs.key("report", wanted)
    engine.preload(["slow_stages"])
    began = time.monotonic()
    arguments = (store.url, None, "slow_stages", "report", key, wanted.model_dump_json(by_alias=True), key)
    assert json.loads(run_job(*arguments))["status"] == "done"
    assert time.monotonic() - began > 1.0
    assert sys.modules.pop("slow_stages").loaded  # type: ignore[attr-defined]


def test_what_cannot_be_loaded_ahead_is_left_to_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine.preload(["tier.no_such_module"])
    store, wanted = Store(tmp_path / "store"), experiment(epochs=1)
    key = engine_jobs.key("report", wanted)
    arguments = (store.url, None, RUNNER, "report", key, wanted.model_dump_json(by_alias=True), key)
    assert json.loads(run_job(*arguments))["status"] == "done"
    assert "no_such_module" in caplog.text


def test_a_job_that_comes_first_is_not_held_up(tmp_path: Path) -> None:
    with engine._one_job:
        engine.preload(["tier.no_such_module"])
        assert not [thread for thread in threading.enumerate() if thread.name == "preload"]
    engine.preload([])
    assert engine._one_job.acquire(timeout=1.0)
    engine._one_job.release()


def test_the_first_job_finds_loaded_what_it_imports(tmp_path: Path) -> None:
    """Whatever a report and an inspected image import slowly comes with the modules that workers load as they start."""
    code = """
import importlib, sys
from tests.tier.test_experiment import tiny
from tier import engine, experiment
from tier.store import Store
for name in engine.PRELOADED[engine.RUNNER]:
    importlib.import_module(name)
before = set(sys.modules)
store = Store(sys.argv[1])
one = experiment.pin(store, tiny(**{"train.epochs": 2}), load=True)
experiment.ensure(store, "report", one)
row = int(experiment.model_sets(one.data, one.split)[1][0])
experiment.ensure(store, "inspect", one.set({"inspect.row": row}))
print(*sorted(set(sys.modules) - before))
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    late = done.stdout.split()
    slow = ("torch", "torchvision", "scipy", "sklearn", "captum", "skimage", "matplotlib")
    assert [name for name in late if name.split(".")[0] in slow] == []


def test_real_data_of_two_roots_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from tier import data

    monkeypatch.delenv(DATA_ROOT, raising=False)
    store = Store(tmp_path / "store")
    wanted = Experiment().set({"data.source": "zoo", "data.image_size": 16} | {
        f"split.{name}": 4 for name in ("target_train", "target_test", "shadow_train", "shadow_test")
    })  # fmt: skip
    found, expected = [], []
    for root, names in {"a": ("ant", "bee"), "b": ("cat", "dog", "emu")}.items():
        for shade, name in enumerate(names):
            folder = tmp_path / root / "zoo" / name
            folder.mkdir(parents=True)
            for number in range(16):
                Image.new("RGB", (16, 16), (number, 60 * shade, ord(root))).save(folder / f"{number}.png")
        text = wanted.model_dump_json(by_alias=True)
        outcome = run_job(store.url, None, engine.RUNNER, "split", "ab" * 32, text, "run", "[]", str(tmp_path / root))
        assert json.loads(outcome) == {"status": "done"}
        monkeypatch.setenv(DATA_ROOT, str(tmp_path / root))
        newest = stages.find(store, "split", wanted)
        monkeypatch.delenv(DATA_ROOT)
        assert newest is not None
        found.append(newest.record["fingerprint"])
        expected.append(data.load(wanted.data, str(tmp_path / root)).fingerprint)
    assert found == expected
    assert found[0] != found[1]


def test_tracebacks_hold_no_paths_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    details = run(Store(tmp_path), experiment("bug"))["details"]
    assert 'File "tier/engine.py", line' in details
    assert 'File "tests/tier/engine_jobs.py", line' in details
    assert "RuntimeError: shapes do not match" in details
    assert str(ROOT) not in details
    monkeypatch.syspath_prepend("/opt/env/site-packages")
    assert without_paths('File "/opt/env/site-packages/torch/nn/a.py", line 3, in f\n  a / b') == (
        'File "torch/nn/a.py", line 3, in f\n  a / b'
    )
    assert without_paths("no such file: '/home/jane doe/my data/x.png'") == "no such file: 'x.png'"
    assert without_paths("cannot write /srv/store/train/ab: see https://host/a/b") == (
        "cannot write ab: see https://host/a/b"
    )
    assert without_paths("C: 'C:\\Users\\jane\\x.png', 3/4 and/or ~/x") == "C: 'x.png', 3/4 and/or ~/x"


def test_unforeseen_errors_are_told_without_paths() -> None:
    told = engine._sentence(FileNotFoundError(2, "No such file or directory", "/srv/secret/x.png"))
    assert told == "FileNotFoundError: [Errno 2] No such file or directory: 'x.png'"
    assert (
        engine._sentence(ValueError("no data set under /data/zoo")) == "no data set under /data/zoo"
    )  # meant to be read


class Answers:
    """A Dask client whose scheduler only tells of its workers and what they do."""

    def __init__(self, workers: dict[str, dict[str, Any]]) -> None:
        self.status = "running"
        self.workers = workers
        self.tasks: dict[str, tuple[str, ...]] = {}
        self.submitted: list[dict[str, Any]] = []
        self.scheduler = self

    def identity(self, n_workers: int) -> dict[str, Any]:
        return {"workers": self.workers}

    def processing(self, workers: None) -> dict[str, tuple[str, ...]]:
        return self.tasks

    def sync(self, question: Callable[..., Any], callback_timeout: float, **more: Any) -> Any:
        return question(**more)

    def submit(self, job: Any, *arguments: Any, **options: Any) -> Any:
        self.submitted.append(options)


def outside_pool(monkeypatch: pytest.MonkeyPatch, client: Any) -> engine.DaskPool:
    monkeypatch.setenv("TIER_SCHEDULER", "tcp://127.0.0.1:8786")
    monkeypatch.setattr(scheduler.Scheduler, "connect", lambda self: client)
    return engine.DaskPool()


def test_outside_workers_get_one_job_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answers({name: {"nthreads": 4, "resources": {}} for name in "abc"})
    pool = outside_pool(monkeypatch, cluster)
    pool._places = {"mine": "a"}  # just given away; the scheduler may not know yet
    cluster.tasks = {"a": (), "b": ("somebody's",), "c": ()}
    assert pool._free_worker() == "c"
    pool._places["another"] = "c"
    assert pool._free_worker() is None  # Dask decides
    assert pool.slots() == 3


def test_jobs_ask_for_the_resources_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIER_WORKER_RESOURCES", "GPU=1")
    cluster = Answers({"a": {"resources": {}}})
    pool = outside_pool(monkeypatch, cluster)
    assert pool.slots() == 1  # a cluster that grows must be asked
    assert pool.lacking() == "waiting for a worker that offers GPU=1 of tcp://127.0.0.1:8786"
    pool.start("first")
    assert cluster.submitted[-1]["resources"] == {"GPU": 1.0} and "workers" not in cluster.submitted[-1]
    cluster.workers |= {name: {"resources": {"GPU": 1}} for name in "bc"}
    pool._counted = float("-inf")
    assert pool.slots() == 2
    assert pool.lacking() is None
    pool.start("second")
    assert cluster.submitted[-1]["workers"] == ["b"] and cluster.submitted[-1]["resources"] == {"GPU": 1.0}


class Waits:
    """A task that nobody takes."""

    def __init__(self, client: Any, key: str) -> None:
        self.client, self.key, self.status = client, key, "pending"

    def cancel(self) -> None:
        self.status = "cancelled"

    def release(self) -> None: ...


class Remembers(Answers):
    """A Dask client that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__({"a": {}})
        self.made: list[Waits] = []

    def submit(self, job: Any, *arguments: Any, **options: Any) -> Waits:
        assert options["resources"] == {engine.ANOTHER_WORKER: 1}
        self.made.append(Waits(self, options["key"]))
        return self.made[-1]

    def pending(self) -> list[str]:
        from distributed.utils import key_split

        return sorted(key_split(each.key) for each in self.made if each.status == "pending")


def test_an_outside_scheduler_is_told_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Remembers(), Remembers()
    pool = outside_pool(monkeypatch, first)
    pool.expect(["report", "report", "path"])
    pool.expect(["report", "report", "path"])
    assert first.pending() == ["path", "report", "report"] and len(first.made) == 3
    pool.expect(["report"])
    assert first.pending() == ["report"]
    pool.expect(["report"] * 1000)
    assert len(first.pending()) == engine.MOST_EXPECTED
    pool._client = second  # the scheduler went away and has forgotten them
    pool.expect(["report"] * 2)
    assert second.pending() == ["report", "report"]
    pool.expect([])
    assert second.pending() == []


def test_a_scheduler_that_went_away_is_connected_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Answers({"a": {}}), Answers({"b": {}})
    tried = []

    def connect(self: scheduler.Scheduler) -> Answers:
        tried.append(self.address)
        if len(tried) == 2:
            raise scheduler.UnreachableError("the scheduler does not answer: refused")
        return second

    monkeypatch.setattr(engine, "RECONNECT", 0.05)
    pool = outside_pool(monkeypatch, first)
    assert pool.trouble() is None and pool.slots() == 1
    monkeypatch.setattr(scheduler.Scheduler, "connect", connect)
    first.status = "connecting"
    assert pool.trouble() == "the scheduler tcp://127.0.0.1:8786 does not answer; trying again"
    assert not tried  # Dask tries itself
    tried.append("")
    first.status = "closed"
    until(lambda: pool.trouble() == "the scheduler does not answer: refused; trying again", 5, "the reason")
    until(lambda: pool.trouble() is None, 5, "the connection")
    assert pool._client is second
    assert pool._able() == {"b": {}}


# ---- the client alone


def test_memory_store_is_refused() -> None:
    with pytest.raises(ValueError, match="process of its own"):
        Client("memory://x")


def test_unknown_job(desk: Desk) -> None:
    assert desk.client.job("ab" * 32) is None
    assert desk.client.history("ab" * 32).empty
    assert desk.client.jobs() == []
    with pytest.raises(KeyError):
        desk.client.wait("ab" * 32)
    with pytest.raises(TimeoutError, match="is queued after"):
        desk.client.wait(desk.submit(1), timeout=0.1)


def test_client_needs_neither_torch_nor_dask() -> None:
    code = "import sys, tier.engine; assert not {'torch', 'dask', 'distributed'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


# ---- real engines


class House:
    """A store, its clients, and the processes that were seen at work for it."""

    def __init__(self, path: Path, options: list[str], runner: str = RUNNER) -> None:
        self.store = Store(path)
        self.options = options
        self.client = Client(self.store, "me", runner=runner, options=options)
        self.seen: dict[int, psutil.Process] = {}

    def engine(self) -> psutil.Process:
        """The living engine, once it serves."""

        def serving() -> psutil.Process | None:
            about = self.client.engine()
            return psutil.Process(about["pid"]) if about else None

        found: psutil.Process = until(serving, 60, "an engine")
        for process in [found, *found.children(recursive=True)]:
            self.seen[process.pid] = process
        return found

    def left(self) -> list[psutil.Process]:
        """Those of the processes seen that still run."""
        return [p for p in self.seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def running(self, key: str, epoch: int = 1) -> Job:
        def reached() -> Job | None:
            job = self.client.job(key)
            assert job is not None
            assert not job.over, job.error or job.status
            return job if job.status == "running" and (job.epoch or 0) >= epoch else None

        job: Job = until(reached, 60, f"epoch {epoch}")
        return job

    def close(self) -> None:
        with_engine = self.store.holder(engine.LEASE) is not None
        if with_engine:
            self.engine().terminate()
        self.client.close()
        until(lambda: not self.left(), 30, "the end of the engine and its workers")


@pytest.fixture(scope="module", autouse=True)
def _logs_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One engine that several tests share."""
    house = House(tmp_path_factory.mktemp("house"), [])
    yield house
    house.close()


@pytest.fixture
def own_house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    """An engine for one test; its options come with the mark `parametrize(..., indirect=True)`."""
    house = House(tmp_path / "house", list(getattr(request, "param", [])))
    yield house
    house.close()


@pytest.mark.engine
def test_job_from_submit_to_result(house: House) -> None:
    key = house.client.submit("report", experiment(epochs=4, seconds=0.3))
    house.running(key)
    job = house.client.wait(key, timeout=60)
    assert (job.status, job.attempt, job.epoch, job.epochs) == ("done", 1, 4, 4)
    result = house.store.find("report", key)
    assert result is not None
    assert json.loads(result.metrics["environ"]) == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert house.client.engine()["workers"] == environment.cores()  # type: ignore[index]
    assert house.client.history(key)["epoch"].tolist() == [1, 2, 3, 4]
    assert house.client.history(key)["loss"].tolist() == [1.0, 0.5, 1 / 3, 0.25]


@pytest.mark.engine
def test_ports_are_loopback_and_serve_no_http(house: House) -> None:
    serving = house.engine()
    ports = [
        connection.laddr
        for process in [serving, *serving.children(recursive=True)]
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in ports} == {"127.0.0.1"}
    # scheduler, and per worker a nanny and the worker itself
    assert len(ports) == 1 + 2 * house.client.engine()["workers"]  # type: ignore[index]
    assert 8787 not in {address.port for address in ports}


@pytest.mark.engine
def test_thirty_clients_one_run_and_one_engine(house: House) -> None:
    serving = house.engine().pid
    wanted = experiment(seed=30, epochs=4, seconds=0.2)
    second_server = Client(house.store.url, runner=RUNNER)
    clients = [house.client, second_server]
    keys = {clients[number % 2].submit("report", wanted, f"student {number}") for number in range(30)}
    assert len(keys) == 1
    key = keys.pop()
    assert house.client.wait(key, timeout=60).status == "done"
    assert second_server.wait(key, timeout=30).attempt == 1
    assert house.engine().pid == serving
    assert len(house.store.get_json(f"progress/{key}.json")["starts"]) == 1
    second_server.close()


@pytest.mark.timed
@pytest.mark.engine
def test_cancel_counts_requesters_and_resumes(house: House) -> None:
    wanted = experiment(seed=40, epochs=1000, seconds=0.1)  # to its end it would take longer than anyone waits here
    key = house.client.submit("report", wanted, "one")
    house.client.submit("report", wanted, "two")
    house.running(key)
    house.client.cancel(key, "one")
    until(lambda: house.client.job(key).requesters == ["two"], 30, "the withdrawal")  # type: ignore[union-attr]
    assert house.running(key, epoch=4).status == "running"
    house.client.cancel(key, "two")
    assert house.client.wait(key, timeout=60).status == "cancelled"
    done = len(house.store.get_json(f"checkpoints/{key}.json"))
    assert done >= 4
    house.client.submit("report", wanted, "three")
    assert house.running(key, epoch=done + 1).attempt == 1
    assert len(house.store.get_json(f"checkpoints/{key}.json")) < 3 * done  # went on, did not begin anew
    assert house.client.history(key)["epoch"].tolist()[: done + 1] == list(range(1, done + 2))
    house.client.cancel(key, "three")
    assert house.client.wait(key, timeout=60).status == "cancelled"


@pytest.mark.engine
def test_failing_job_tells_why(house: House) -> None:
    job = house.client.wait(house.client.submit("report", experiment("fail")), timeout=60)
    assert (job.status, job.error) == ("failed", "the learning rate is too large; try 0.001")
    assert "engine_jobs.py" in (job.details or "")
    again = house.client.wait(house.client.submit("report", experiment("fail")), timeout=60)
    assert again.status == "failed"
    assert again.submitted > job.submitted


@pytest.mark.engine
def test_second_engine_exits_at_once(house: House) -> None:
    house.engine()
    command = [sys.executable, "-m", "tier.engine", "--store", house.store.url]
    done = subprocess.run(
        command, timeout=60, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0
    assert "another engine serves" in done.stderr


@pytest.mark.timed
@pytest.mark.engine
def test_five_worker_deaths(house: House) -> None:
    key = house.client.submit("report", experiment("suffer", epochs=7))
    job = house.client.wait(key, timeout=90)
    assert (job.status, job.attempt) == ("done", 6)
    result = house.store.find("report", key)
    assert result is not None
    assert result.frame("events.parquet")["pid"].nunique() == 6  # each worker computed its epochs, none was done twice
    assert house.client.history(key)["epoch"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert house.store.verify() == []


@pytest.mark.engine
@pytest.mark.slow
def test_deaths_over_a_long_time(house: House) -> None:
    """Dask closes a worker's supervisor 15 s after a death if the worker happens to be under repair again just then."""
    key = house.client.submit("report", experiment("suffer", epochs=17))
    job = house.client.wait(key, timeout=180)
    assert (job.status, job.attempt) == ("done", 16)


@pytest.mark.timed
@pytest.mark.engine
def test_worker_that_always_dies_ends_in_words(house: House) -> None:
    job = house.client.wait(house.client.submit("report", experiment("die")), timeout=60)
    assert job.status == "failed"
    deaths = re.search(r"The worker died (\d) times in a row", job.error or "")
    assert deaths and 3 <= int(deaths[1]) <= 5, job.error  # Dask may have begun once more before the engine looked
    fine = house.client.submit("report", experiment(seed=50))
    assert house.client.wait(fine, timeout=60).status == "done"  # the next one is not harmed


@pytest.mark.timed
@pytest.mark.engine
def test_points_that_share_a_warm_up_compute_it_once_and_leave_the_other_worker_free(house: House) -> None:
    if environment.cores() < 2:
        pytest.skip("one worker has nobody to wait for")
    wanted = [experiment("shared", seed=seed, epochs=20, seconds=0.1) for seed in range(80, 84)]
    points = [house.client.submit("report", e) for e in wanted]
    other = house.client.submit("report", experiment(seed=90, epochs=2, seconds=0.1))
    lease = toy_lease("warmup", wanted[0])
    until(lambda: house.store.holder(lease), 60, "the warm-up")
    assert house.client.wait(other, timeout=30).status == "done"  # the last in the queue
    assert house.store.holder(lease) is not None
    assert [house.client.wait(key, timeout=90).status for key in points] == ["done"] * 4
    assert [house.client.job(key).attempt for key in points] == [1] * 4  # type: ignore[union-attr]
    assert len(house.store.ls("warmup")) == 1


@pytest.mark.engine
def test_two_jobs_that_read_the_same_in_opposite_order(house: House) -> None:
    wanted = [experiment("crossed", seed=seed, epochs=4, seconds=0.1) for seed in range(6)]
    keys = [house.client.submit("report", e) for e in wanted]
    assert [house.client.wait(key, timeout=90).status for key in keys] == ["done"] * 6
    assert [len(house.store.ls(stage)) for stage in ("left", "right")] == [1, 1]


@pytest.mark.engine
def test_killed_engine_leaves_no_worker_and_its_job_goes_on(own_house: House) -> None:
    house = own_house
    key = house.client.submit("report", experiment(epochs=15, seconds=0.2))
    first = house.engine()
    house.running(key, epoch=2)
    house.engine()
    first.kill()
    until(lambda: not house.left(), 30, "the end of the workers")
    job = house.client.wait(key, timeout=90)
    assert (job.status, job.attempt) == ("done", 2)
    result = house.store.find("report", key)
    assert result is not None
    assert result.frame("events.parquet")["pid"].nunique() == 2
    assert house.engine().pid != first.pid


ASKER = """
import json, sys
from tests.tier.test_engine import RUNNER, experiment
from tier.engine import Client
with Client(sys.argv[1], runner=RUNNER) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    key = client.submit("report", experiment(seed=70, epochs=5, seconds=0.4), requester=sys.argv[2])
    job = client.wait(key, timeout=120)
    print(json.dumps([key, job.status, job.attempt, client.engine()["pid"]]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.engine
def test_two_servers_share_an_engine_and_a_computation(own_house: House) -> None:
    house = own_house
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, house.store.url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        for name in ("one", "two")
    ]
    try:
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        for server in servers:
            tell(server)
        answers = []
        for server in servers:
            assert server.stdout is not None
            answers.append(json.loads(server.stdout.readline()))
        key, status, attempt, serving = answers[0]
        assert answers[1] == answers[0]
        assert (status, attempt) == ("done", 1)
        assert house.engine().pid == serving
        found = house.store.find("report", key)
        assert found is not None
        assert found.frame("events.parquet")["pid"].nunique() == 1
        assert len(house.store.get_json(f"progress/{key}.json")["starts"]) == 1
        until(lambda: engines_of(house.store) == [serving], 60, "the end of an engine that found another at work")
    finally:
        for server in servers:
            tell(server)
            server.communicate(timeout=60)


def tell(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.write("\n")
    server.stdin.flush()


def engines_of(store: Store) -> list[int]:
    """The engine processes that were started for a store and still run."""
    found = psutil.process_iter(["pid", "cmdline", "status"])
    alive = [process.info for process in found if process.info["status"] != psutil.STATUS_ZOMBIE]
    return [info["pid"] for info in alive if {"tier.engine", store.url} <= set(info["cmdline"] or ())]


EPOCHS = 100  # long enough to be killed half-way, on a fast machine too


@pytest.mark.engine
def test_killed_worker_in_a_real_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    house = House(tmp_path / "house", [], runner=engine.RUNNER)
    wanted = tiny(Defense(name="tier_reg", tier=Tier(warmup=1)), **{"train.epochs": EPOCHS})
    stages.pin(house.store, wanted, load=True)
    key = house.client.submit("train", wanted)
    house.engine()

    def kept() -> dict[str, Any] | None:
        found = checkpoints.last(house.store, key)
        return found.frame("events.parquet").to_dict("list") if found and found.record["epoch"] >= 3 else None

    before = until(kept, 90, "the third epoch's checkpoint")
    holder = house.store.holder(f"train-{key}")
    assert holder is not None
    os.kill(holder["process"]["pid"], signal.SIGKILL)
    assert house.store.find("train", key) is None
    job = house.client.wait(key, timeout=180)
    assert (job.status, job.attempt) == ("done", 2), job.error
    found = house.store.find("train", key, ["weights.safetensors", "events.parquet"])
    assert found is not None
    seconds = found.frame("events.parquet")["seconds"].tolist()
    assert len(seconds) == EPOCHS
    assert seconds[: len(before["seconds"])] == before["seconds"]  # it went on, and did not begin anew
    assert checkpoints.last(house.store, key) is None
    house.close()
    unbroken = Store(tmp_path / "unbroken")
    stages.ensure(unbroken, "train", wanted)
    assert_same(weights(house.store, wanted), weights(unbroken, wanted))


SERVER = """
import sys, time
from tests.tier.test_engine import RUNNER, experiment
from tier.engine import Client
client = Client(sys.argv[1], runner=RUNNER, options=sys.argv[2:])
print(client.submit("report", experiment(epochs=1000, seconds=0.2)), flush=True)
time.sleep(600)
"""


def kill_server(house: House, options: list[str], seconds: float) -> None:
    """kill -9 a server in mid-training: engine and workers end by themselves, and a new server's job goes on."""
    house.client.close()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SERVER, house.store.url, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert server.stdout is not None
    key = server.stdout.readline().strip()
    house.running(key, epoch=2)
    house.engine()
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    until(lambda: not house.left(), seconds, "the end of the engine and its workers")
    assert house.store.holder(engine.LEASE) is None
    job = house.client.job(key)
    assert job is not None
    assert (job.status, job.step) == ("queued", "waiting for the engine to start")


@pytest.mark.engine
def test_killed_server_leaves_nothing_behind(own_house: House) -> None:
    kill_server(own_house, ["--clients", "5"], seconds=30)


@pytest.mark.engine
@pytest.mark.slow
def test_killed_server_leaves_nothing_behind_with_the_usual_times(own_house: House) -> None:
    kill_server(own_house, [], seconds=30)


@pytest.mark.engine
@pytest.mark.parametrize("own_house", [["--idle", "1"]], indirect=True)
def test_idle_engine_exits(own_house: House) -> None:
    house = own_house
    key = house.client.submit("report", experiment())
    house.engine()
    assert house.client.wait(key, timeout=60).status == "done"
    until(lambda: not house.left(), 30, "the end of the idle engine")
    again = house.client.submit("report", experiment(seed=1))
    assert house.client.wait(again, timeout=60).status == "done"


@pytest.mark.engine
@pytest.mark.parametrize("own_house", [["--nonsense"]], indirect=True)
def test_engine_that_does_not_start_is_reported(own_house: House) -> None:
    house = own_house
    key = house.client.submit("report", experiment())
    job = until(lambda: (j := house.client.job(key)) and "does not start" in j.step and j, 60, "the report")
    assert "unrecognized arguments: --nonsense" in job.step
    assert str(engine.log_file(house.store)) in job.step
    house.client.cancel(key)
    assert house.client.wait(key, timeout=30).status == "cancelled"


@pytest.mark.engine
def test_outside_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine on a Dask scheduler that was there before, found through TIER_SCHEDULER.

    Its workers have threads for several jobs, and get one each all the same.
    """
    import distributed

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    dask = [sys.executable, "-m", "dask"]
    where = tmp_path / "scheduler.json"
    common = {"env": os.environ | {"PYTHONPATH": path}, "cwd": tmp_path}
    scheduler = subprocess.Popen(
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(where)],
        **common,  # type: ignore[call-overload]
    )
    start = [*dask, "worker", "--nthreads", "4", "--no-nanny", "--no-dashboard", "--scheduler-file", str(where)]
    workers = [subprocess.Popen(start, **common) for _ in range(2)]  # type: ignore[call-overload]
    try:
        until(where.exists, 60, "the scheduler")
        address = json.loads(where.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as watch:
            watch.wait_for_workers(2, timeout=60)
        monkeypatch.setenv("TIER_SCHEDULER", address)
        house = House(tmp_path / "house", [])
        lengths = (60, 60, 2)
        keys = [
            house.client.submit("report", experiment(seed=seed, epochs=epochs, seconds=0.1))
            for seed, epochs in enumerate(lengths)
        ]
        for key in keys[:2]:
            house.running(key, epoch=2)
        third = house.client.job(keys[2])
        assert third is not None
        assert third.status == "queued"
        for key in keys:
            assert house.client.wait(key, timeout=60).status == "done"
        found = [house.store.find("report", key) for key in keys]
        pids = [set(result.frame("events.parquet")["pid"]) for result in found if result is not None]
        assert pids[0] | pids[1] == {worker.pid for worker in workers}
        about = house.client.engine()
        assert about is not None
        assert about["scheduler"] == os.environ["TIER_SCHEDULER"]
        assert house.engine().children() == []
        house.close()
        assert [worker.poll() for worker in workers] == [None, None]  # the cluster is not ours to stop
    finally:
        for process in (*workers, scheduler):
            process.terminate()
            process.wait(20)
