"""Computing many runs: each once, no failure costs another run, and what is away is told."""

from pathlib import Path
from typing import Any

import pytest

from tests.tier.test_experiment import tiny
from tier import engine, experiment, watching
from tier.config import Experiment
from tier.store import Store, Unreachable
from tier.watching import Work


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wanted(store: Store) -> Experiment:
    """A run whose images have been read."""
    return experiment.pin(store, tiny(), load=True)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.Client, "start_engine", lambda self: None)


def work(e: Experiment) -> list[Work]:
    return [("one", "split", e)]


def test_the_same_work_twice_and_stored_work_are_not_computed(store: Store, wanted: Experiment) -> None:
    experiment.ensure(store, "split", wanted)
    fresh = wanted.set({"audit.folds": 3})
    todo, stored = watching.missing(store, [("a", "split", wanted), ("b", "audit", fresh), ("c", "audit", fresh)])
    assert [job[0] for job in todo] == ["b"] and stored == 1
    other = wanted.set({"data.fingerprint": None, "data.signs.seed": 99})  # images that nobody has read
    todo, stored = watching.missing(store, [("a", "report", other), ("b", "report", other), ("c", "audit", other)])
    assert [job[0] for job in todo] == ["a", "c"] and stored == 0


def test_a_store_that_no_other_process_sees_is_computed_here(wanted: Experiment) -> None:
    where = Store("memory://watching")
    watching.compute(where, work(wanted))
    assert experiment.find(where, "split", wanted) is not None


@pytest.mark.usefixtures("no_engine")
def test_an_engine_that_does_not_start_ends_the_command(
    store: Store, wanted: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Client, "trouble", lambda self: "no module named dask")
    with pytest.raises(ValueError, match="does not start: no module named dask; --here"):
        watching.compute(store, work(wanted))
    assert store.list_json("requests") == []


@pytest.mark.usefixtures("no_engine")
def test_a_job_that_everybody_has_forgotten_is_asked_for_again(
    store: Store, wanted: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FORGOTTEN", 0.0)
    asked = []

    def submit(self: engine.Client, stage: str, e: Experiment, **more: object) -> str:
        asked.append(stage)
        if len(asked) == 2:
            finish(store, self, stage, e)
        return experiment.key(stage, e)

    monkeypatch.setattr(engine.Client, "submit", submit)
    watching.compute(store, work(wanted))
    assert asked == ["split", "split"]


def test_what_somebody_else_cancels_is_told(store: Store, wanted: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.Client, "start_engine", lambda self: self.store.delete("x.json"))
    real = engine.Client.submit

    def submit(self: engine.Client, *arguments: Any, **more: Any) -> str:
        key = real(self, *arguments, **more)
        self.cancel_all(key)
        return key

    monkeypatch.setattr(engine.Client, "submit", submit)
    with pytest.raises(ValueError, match=r"1 of 1 runs failed.*\n  one: cancelled by somebody else"):
        watching.compute(store, work(wanted))


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("method", ["stamps", "list_json", "find"])
def test_a_store_that_is_away_for_a_while_costs_no_run(
    store: Store, wanted: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """It goes away when the job is done, whichever request is the first to hear of it."""
    real, times = getattr(Store, method), []
    monkeypatch.setattr(watching, "POLL_REMOTE", 0.01)

    def answer(self: Store, *arguments: Any) -> Any:
        if times and len(times) < 4:
            times.append(method)
            raise Unreachable("the store does not answer")
        return real(self, *arguments)

    def submit(self: engine.Client, stage: str, e: Experiment, **more: object) -> str:
        finish(store, self, stage, e)
        times.append("done")
        return experiment.key(stage, e)

    monkeypatch.setattr(Store, method, answer)
    monkeypatch.setattr(engine.Client, "submit", submit)
    watching.compute(store, work(wanted))
    assert len(times) == 4
    assert "one split: " in capsys.readouterr().err


def finish(store: Store, client: engine.Client, stage: str, e: Experiment) -> None:
    experiment.ensure(store, stage, e)
    client._note_stored(stage, experiment.key(stage, e), e)


def test_requests_that_cannot_be_withdrawn_are_told(
    store: Store, wanted: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def away(self: engine.Client) -> None:
        raise Unreachable("the store does not answer")

    monkeypatch.setattr(engine.Client, "start_engine", lambda self: None)
    monkeypatch.setattr(engine.Client, "withdraw", away)
    monkeypatch.setattr(watching.time, "sleep", interrupt)
    with pytest.raises(watching.typer.Exit):
        watching.compute(store, work(wanted))
    told = " ".join(capsys.readouterr().err.split())
    assert "could not be withdrawn" in told and "Stopped. 0 of 1 are finished" in told


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0, ""), (42.4, "42 s left"), (100, "2 min left"), (5940, "99 min left"), (9300, "2 h 35 min left")],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert watching.duration(seconds) == words


def test_a_reason_that_many_runs_share_is_told_once() -> None:
    failures = [(f"run {number}", "no shadow images") for number in range(5)] + [("other", "no memory")]
    assert watching._by_reason(failures) == ["run 0, run 1, run 2 and 2 more: no shadow images", "other: no memory"]
    assert watching._by_reason(failures[:2]) == ["run 0, run 1: no shadow images"]
