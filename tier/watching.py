"""Computing many runs, by the engine or in this process, with a terminal that tells how far each is."""

import time
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tier import demo, engine, experiment
from tier.context import Context
from tier.store import Store, StoreError, Unreachable

err = Console(stderr=True)
Work = demo.Job
Failure = tuple[str, str]  # which run, and why
NAMED = 3  # runs that failed for one reason and are told by name
POLL, POLL_REMOTE = 0.5, 2.0  # seconds between two looks at the jobs
FORGOTTEN = 60.0  # a job that nobody has known of for so long is asked for again


def compute(store: Store, work: Sequence[Work], here: bool = False) -> None:
    """Compute what is not stored yet, by the engine or, with `here`, in this process; shows progress.

    Raises ValueError listing what failed once the rest is stored, and Exit(130) on Ctrl-C.
    """
    todo, stored = missing(store, work)
    if not todo:
        return
    here = here or store.url.startswith("memory:")  # which no other process can see
    with Board(stored, len(todo)) as board:
        try:
            failures = _in_process(store, todo, board) if here else _by_engine(store, todo, board)
        except KeyboardInterrupt:
            board.say(
                f"Stopped. {board.done} of {board.total} are finished and stored; run the same command again to go on: "
                "a training under way goes on from its last checkpoint."
            )
            raise typer.Exit(130) from None
    if failures:
        lines = "\n".join(f"  {line}" for line in _by_reason(failures))
        raise ValueError(f"{len(failures)} of {board.total} runs failed; the rest is stored.\n{lines}")


def _by_reason(failures: Sequence[Failure]) -> list[str]:
    """A line for each reason, with the first runs that failed for it."""
    runs: dict[str, list[str]] = {}
    for label, why in failures:
        runs.setdefault(why, []).append(label)
    lines = []
    for why, labels in runs.items():
        more = len(labels) - NAMED
        lines.append(f"{', '.join(labels[:NAMED])}{f' and {more} more' if more > 0 else ''}: {why}")
    return lines


def missing(store: Store, work: Sequence[Work]) -> tuple[list[Work], int]:
    """What is not stored yet, each computation once, in the order given; and how many computations are stored.

    Raises ValueError for settings that no result can have.
    """
    asked: dict[Any, Work] = {}
    for label, stage, e in work:
        pinned = experiment.pin(store, e)
        unread = pinned.data.fingerprint is None
        name = pinned.canonical() if unread else experiment.key(stage, pinned)
        asked.setdefault((stage, name), (label, stage, e))
    todo = [job for job in asked.values() if experiment.find(store, *job[1:]) is None]
    return todo, len(asked) - len(todo)


class Board:
    """A bar for all runs, one for each that is at work, and a line for each that is over."""

    def __init__(self, stored: int, missing: int) -> None:
        self.total, self.done = stored + missing, stored
        self._stored, self._began = stored, time.monotonic()
        columns = "{task.description}", BarColumn(), "{task.percentage:>3.0f} %", "{task.fields[left]}"
        self._bars = Progress(*(TextColumn(c) if isinstance(c, str) else c for c in columns), console=err)
        self._all = self._bars.add_task("all", total=self.total, completed=stored, left="")
        self._rows: dict[str, TaskID] = {}
        self._left = ""

    def __enter__(self) -> "Board":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def overall(self, note: str = "", left: float | None = None) -> None:
        """What is to be said of all runs; without an estimate of the seconds left, the speed so far makes one."""
        made = self.done - self._stored
        if left is None and made:
            left = (time.monotonic() - self._began) / made * (self.total - self.done)
        self._left = duration(left)
        self._bars.update(self._all, description=f"all{escape(note)}", completed=self.done, left=self._left)

    def at_work(self, run: str, told: str, fraction: float | None, left: float | None = None) -> None:
        """How far a run is; `run` tells it from all others."""
        if run not in self._rows:
            self._rows[run] = self._bars.add_task("", total=1.0, left="")
        done, words = fraction or 0.0, escape(told)
        self._bars.update(self._rows[run], description=words, completed=done, left=duration(left))

    def leave(self, run: str) -> None:
        """The run is not at work any more."""
        if run in self._rows:
            self._bars.remove_task(self._rows.pop(run))

    def over(self, run: str, told: str) -> None:
        """The run is over."""
        self.leave(run)
        self.done += 1
        self.overall()
        self.say(f"{told} ({self.done} of {self.total}{self._left and ', '}{self._left})")


def duration(seconds: float | None) -> str:
    """Seconds that are left, in words; nothing when they are not known, or none."""
    if not seconds:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"{minutes} min left" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min left"


def _in_process(store: Store, todo: Sequence[Work], board: Board) -> list[Failure]:
    """Compute one after the other; returns what failed and why."""
    failures: list[Failure] = []
    for label, stage, e in todo:
        began = time.perf_counter()

        def tell(event: dict[str, Any], label: str = label) -> None:
            board.at_work("", f"{label}: {event.get('step', '')}", event.get("fraction"))

        try:
            experiment.ensure(store, stage, e, Context(progress=tell))
            board.over("", f"{label} {stage}: {time.perf_counter() - began:.1f} s")
        except (ValueError, RuntimeError) as mistake:  # a point that diverged or lacks memory must not cost the others
            failures.append((label, str(mistake)))
            board.over("", f"{label} {stage} failed: {mistake}")
    return failures


def _by_engine(store: Store, todo: Sequence[Work], board: Board) -> list[Failure]:
    """Ask the engine for all of it and watch; returns what failed and why. What is still open in the end, e.g. on
    Ctrl-C, is withdrawn, so that runs that nobody else wants stop.
    """
    with engine.Client(store) as client:
        try:
            asked: dict[str, Work] = {}
            for job in todo:
                asked.setdefault(_ask(client, job, board), job)
            board.total -= len(todo) - len(asked)
            return _watch(client, asked, board)
        finally:
            _withdraw(client, board)


def _ask(client: engine.Client, job: Work, board: Board) -> str:
    """Submit a job, also to a store that does not answer for a moment; returns its key."""
    while True:
        try:
            return client.submit(*job[1:], priority="sweep")
        except Unreachable as error:
            board.overall(f": {error}")
            time.sleep(POLL_REMOTE)


def _withdraw(client: engine.Client, board: Board) -> None:
    """Withdraw what is still wanted; what cannot be is told."""
    try:
        client.withdraw()
    except (OSError, StoreError) as error:
        board.say(f"What is still open could not be withdrawn and may be computed: {error}")


def _watch(client: engine.Client, asked: dict[str, Work], board: Board) -> list[Failure]:
    """Show the jobs until all are over; returns what failed and why. Raises ValueError when no engine starts."""
    failures: list[Failure] = []
    left, known = dict(asked), dict.fromkeys(asked, time.monotonic())
    while left:
        try:
            _look(client, left, known, failures, board)
        except (OSError, StoreError) as error:  # a store that cannot be reached for a moment
            board.overall(f": {error}")
            time.sleep(POLL_REMOTE)
            known = dict.fromkeys(left, time.monotonic())
        else:
            if left:
                time.sleep(POLL if client.store.local else POLL_REMOTE)
    return failures


def _look(
    client: engine.Client, left: dict[str, Work], known: dict[str, float], failures: list[Failure], board: Board
) -> None:
    """Look at the jobs that are left once; takes those that are over out of `left`. `known` is when each was seen."""
    jobs = {job.key: job for job in client.jobs() if job.key in left}
    for key, job in jobs.items():
        known[key] = time.monotonic()
        label, stage, _ = left[key]
        if job.over:
            why = _why_failed(client.store, left[key], job)
            del left[key]
            failures += [(label, why)] if why else []
            board.over(key, f"{label} {stage} failed: {why}" if why else f"{label} {stage}: {_seconds(job):.1f} s")
        elif job.status == "running":
            board.at_work(key, f"{label}: {job.step}", job.fraction, job.eta_seconds)
        else:
            board.leave(key)
    _report(client, [jobs[key] for key in left if key in jobs], len(left), board)
    for key in left:
        if time.monotonic() - known[key] > FORGOTTEN:
            client.submit(*left[key][1:], priority="sweep")


def _report(client: engine.Client, jobs: Sequence[engine.Job], left: int, board: Board) -> None:
    """Tell of all jobs that are not over; raises ValueError when the engine fails again and again."""
    if (trouble := client.trouble()) is not None:
        raise ValueError(f"the engine does not start: {trouble}; --here computes without it")
    working = any(job.status == "running" for job in jobs)
    etas = [job.eta_seconds for job in jobs if job.eta_seconds is not None]
    note = "" if working or not jobs else f": {jobs[0].step}"
    board.overall(note, max(etas) if etas and len(etas) == left else None)


def _why_failed(store: Store, asked: Work, job: engine.Job) -> str | None:
    """Why a job that is over has no result; None when it has one."""
    if job.status == "failed":
        return job.error or "no reason given"
    if job.status == "cancelled":
        return "cancelled by somebody else"
    if experiment.find(store, *asked[1:]) is None:
        return f"done, but not in {store.url}: its engine looks results up in another store first; use --here"
    return None


def _seconds(job: engine.Job) -> float:
    return (job.ended or 0.0) - (job.started or job.ended or 0.0)
