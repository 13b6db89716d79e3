"""Jobs: a client that asks for stages, and the engine, a process of its own that computes them with Dask workers.

Both sides talk only through small JSON files in the store, so a page needs neither Dask nor torch, several servers
share one engine, and either side may be killed at any time:

    requests/{key}/{requester}.json  a client: "I want this stage"; deleting it withdraws. A job lives on its requests,
                                     and a request in the queue on its client, which must be heard of within an hour
    jobs/{key}.json                  the engine: the job's state
    progress/{key}.json              the worker: events per epoch, current step, how often the run was started
    cancel/{run}.json                the engine: stop this run
    clients/{id}.json                a client's heartbeat; without any, the engine stops and its workers with it

The engine is found by its lease, so a second one on the same store exits at once. Only strings of JSON go to workers.
"""

import argparse
import atexit
import hashlib
import heapq
import importlib
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter

from tier import environment, scheduler
from tier.config import Experiment, stage_key
from tier.context import Cancelled, Context, Waiting
from tier.environment import DATA_ROOT
from tier.store import Lease, Store, StoreError, check

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Status = Literal["queued", "running", "done", "failed", "cancelled"]
Priority = Literal["interactive", "sweep"]

LEASE = "engine"
WRONG_SETTINGS = 2  # exit code of an engine that need not be started again as it was
RUNNER = "tier.experiment"  # the module whose `key`, `pin` and `ensure` define what a stage is
PRIORITIES: dict[str, int] = {"interactive": 0, "sweep": 1}

BEAT = 3.0  # seconds between a client's heartbeats
CLIENT_TIMEOUT = 15.0  # a client without a heartbeat for this long is gone
IDLE_TIMEOUT = 600.0  # an engine without jobs for this long exits
ENGINE_LEASE = 15.0
UNMANNED = 60.0  # an engine whose cluster has no worker for this long exits
ABANDONED = 30.0  # a worker of an outside cluster stops when no engine was alive for this long
SLOW = 2.0  # a store that takes so many seconds for an answer was away
ORPHANED = 3600.0  # what waits in the queue is dropped when its client was not heard of for this long ...
ORPHANS_EVERY = 60.0  # ... as is looked up so often
STARTS = 20  # a run is started at most so often ...
STALLS = 3  # ... and at most so often in a row without getting further
WAITING = "waiting for the same run elsewhere"  # the step of a job that another run has to make something for
TIDY_EVERY = 86_400.0  # seconds between two clean-ups of the store
RECONNECT = 2.0  # seconds between two attempts to reach a scheduler that went away
ANSWER = 5.0  # seconds in which a scheduler tells of its workers
ANOTHER_WORKER = "TIER_ANOTHER_WORKER"  # a resource that no worker offers
MOST_EXPECTED = 100  # jobs of which an outside scheduler is told that they wait
PATIENCE = 3600.0  # seconds for which a worker that has computed something waits for a store that is away
PROGRESS_EVERY = 0.3  # seconds between writes of progress to a local store
PROGRESS_EVERY_REMOTE = 2.0

# What the stages import, some seconds of work: a worker does it as it starts, while nobody waits yet.
PRELOADED: dict[str, tuple[str, ...]] = {
    RUNNER: ("tier.training", "tier.attacks.agp", "tier.explainers", "tier.trajectories", "tier.divergence")
}
PRELOAD = "TIER_ENGINE_PRELOAD"  # environment variable: the names, from the engine to its workers
PRELOAD_BYTES = 5e8  # a worker's own memory with all of it loaded


@dataclass
class Job:
    """One asked-for stage as a client sees it; times are seconds since 1970."""

    key: str
    stage: str
    experiment: dict[str, Any]
    status: Status = "queued"
    priority: Priority = "interactive"
    position: int | None = None  # 0: running; 1: next in the queue; None: not known yet, or over
    step: str = "waiting"  # what it is doing, in words
    fraction: float | None = None  # of the current step
    epoch: int | None = None
    epochs: int | None = None
    eta_seconds: float | None = None
    error: str | None = None  # a plain sentence
    details: str | None = None  # the traceback, without the paths of the machine it comes from
    need: list[str] = field(default_factory=list)  # files that the result must hold, for any who asked
    requesters: list[str] = field(default_factory=list)
    attempt: int = 0  # how often its run was started, over worker deaths
    submitted: float = 0.0
    started: float | None = None  # later by as long as it waited, in its midst, for what another run computed
    ended: float | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen: done, failed or cancelled."""
        return self.status in ("done", "failed", "cancelled")


_JOB = TypeAdapter(Job)
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \S+ \S+ [A-Z]+ ")  # what `main` has logged before a message
_UNABLE = (ImportError, AttributeError, TypeError, ValueError)  # of a worker with other code or packages


class _Request(BaseModel):
    """The content of a request; what another version adds is ignored."""

    model_config = ConfigDict(frozen=True)

    stage: str
    experiment: dict[str, Any]
    requester: str
    client: str = ""
    pinned: bool = True  # whether the job's key is the result's
    priority: Priority = "interactive"
    time: FiniteFloat
    need: tuple[str, ...] = ()
    data_root: str | None = None  # absolute; where the client keeps its data sets


class _Event(BaseModel):
    """One epoch as the worker tells it, with whatever figures it has."""

    model_config = ConfigDict(extra="allow")

    epoch: int


class _Progress(BaseModel):
    """The content of `progress/{key}.json`."""

    starts: list[int] = []  # `advance` at each start
    advance: int = 0  # grows with each new epoch and step
    top: int = 0  # the highest epoch reached
    steps: list[str] = []
    events: list[_Event] = []
    step: str | None = None
    fraction: FiniteFloat | None = None
    epoch: int | None = None
    epochs: int | None = None


# ---- client


class Client:
    """Asks for stages and watches them; starts the engine when none is alive. One per server process or command.

    Holds no Dask client, no torch and nothing awaitable. A daemon thread sends the heartbeat that keeps the engine
    alive, and starts a new engine when one has died with requests open. Thread-safe.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        requester: str | None = None,
        *,
        runner: str = RUNNER,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are further arguments of the engine's command line, used if this client starts it.

        Raises ValueError for a `memory://` store, which no other process can see.
        """
        self.store = store if isinstance(store, Store) else Store(store)
        if self.store.url.startswith("memory:"):
            raise ValueError("an engine is a process of its own and cannot see a memory:// store")
        self.id = secrets.token_hex(8)
        self.requester = requester or self.id
        self._runner = runner
        self._options = tuple(options)
        self._engine: subprocess.Popen[bytes] | None = None
        self._failures = 0  # engines in a row that ended with an error
        self._next_start = 0.0
        self._seen_alive = (0.0, False)
        self._jobs: dict[str, tuple[object, Job]] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._beats = 0
        self._beat()
        threading.Thread(target=self._keep_alive, name="engine client", daemon=True).start()
        atexit.register(self.close)

    def submit(
        self,
        stage: str,
        experiment: Experiment,
        requester: str | None = None,
        priority: Priority = "interactive",
        need: Sequence[str] = (),
    ) -> str:
        """Ask for a stage and return the job's key. Asking again, by anyone, joins the same run.

        The key is the result's, except for data that nobody has read yet: then it names the request, and the result is
        found through `experiment.find` once the job is done. A stored result makes no run, unless it lacks a file in
        `need` or has it damaged. A failed or cancelled job starts anew, from its last checkpoint. The data sets are
        those of this process's TIER_DATA, where it is set, else of the worker's. Keep the client open: what still waits
        in the queue an hour after its client has gone is dropped.
        """
        root = _data_root()
        experiment, key, pinned = self._identify(stage, experiment, root)
        if pinned and self.store.find(stage, key, need) is not None:
            self._note_stored(stage, key, experiment)
            return key
        path = _request_path(key, requester or self.requester)
        open_one = _read_request(self.store, path)  # e.g. from another page, which needs other files
        request = _Request(
            stage=stage,
            experiment=experiment.model_dump(mode="json", by_alias=True),
            requester=requester or self.requester,
            client=self.id,
            pinned=pinned,
            priority=priority,
            time=time.time(),
            need=tuple(sorted({*need, *(open_one.need if open_one else ())})),
            data_root=root,
        )
        self.store.put_json(path, request.model_dump(mode="json"))
        self.start_engine()
        return key

    def cancel(self, key: str, requester: str | None = None) -> None:
        """Withdraw one requester's wish; the run stops within a batch when nobody else wants it."""
        self._cancel([_request_path(key, requester or self.requester)])

    def cancel_all(self, key: str) -> None:
        """Withdraw everybody's wish, e.g. for a run whose requesters have gone for good."""
        self._cancel(self.store.list_json(f"requests/{key}"))

    def withdraw(self) -> None:
        """Withdraw whatever this client's requester still wants."""
        name = _request_path("", self.requester).rpartition("/")[2]
        self._cancel([path for path in self.store.list_json("requests") if path.endswith(f"/{name}")])

    def trouble(self) -> str | None:
        """Why the engine does not start, if it has ended with an error three times in a row or can never start so."""
        return self._last_words() if self._failures >= 3 else None

    def job(self, key: str) -> Job | None:
        """The job's state now; None when it was never asked for or is forgotten."""
        return self._view(key, _read_job(self.store, f"jobs/{key}.json"), self.store.list_json(f"requests/{key}"))

    def jobs(self) -> list[Job]:
        """All jobs: running, then queued in their order, then those that are over, the latest first."""
        stamps = self.store.stamps("jobs")
        open_requests: dict[str, list[str]] = {}
        for path in self.store.list_json("requests"):
            open_requests.setdefault(path.split("/")[1], []).append(path)
        states = {_stem(path): self._known_job(path, stamp) for path, stamp in stamps.items()}
        found = [self._view(key, states.get(key), open_requests.get(key, [])) for key in states | open_requests]
        return sorted((job for job in found if job is not None), key=_job_order)

    def history(self, key: str) -> "pd.DataFrame":
        """The per-epoch events so far, one row per epoch; empty before the first."""
        import pandas as pd

        progress = _read_progress(self.store, key) or _Progress()
        return pd.DataFrame([event.model_dump() for event in progress.events])

    def wait(self, key: str, timeout: float | None = None, poll: float | None = None) -> Job:
        """Block until the job is over and return it; looked up every `poll` seconds.

        Raises KeyError when there is no such job, TimeoutError after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = poll or (0.2 if self.store.local else 1.0)
        while True:
            job = self.job(key)
            if job is None:
                raise KeyError(f"no job {key}")
            if job.over:
                return job
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{job.stage} {key[:12]} is {job.status} after {timeout:g} seconds")
            time.sleep(pause)

    def engine(self) -> dict[str, Any] | None:
        """The engine at work: `pid, started, workers, threads, scheduler, environment`; None when none serves yet."""
        about = self.store.get_json("engine.json")
        holder = self.store.holder(LEASE)
        process = holder.get("process") if holder else None
        if not isinstance(about, dict) or not isinstance(process, dict):
            return None
        return about if about.get("pid") == process.get("pid") else None

    def start_engine(self) -> None:
        """Start the engine process unless one is alive or starting. After failures it waits longer each time."""
        with self._lock:
            if self.store.holder(LEASE) is not None:
                self._failures = 0
                return
            if self._engine is not None:
                if self._engine.poll() is None:
                    return
                hopeless = self._engine.returncode == WRONG_SETTINGS
                self._failures = max(self._failures + 1, 3 * hopeless) if self._engine.returncode else 0
                self._engine = None
                self._next_start = time.monotonic() + (min(60, 2**self._failures) if self._failures else 0)
            if time.monotonic() >= self._next_start:
                self._engine = self._launch()
                self._seen_alive = (0.0, False)

    def close(self) -> None:
        """Stop the heartbeat. The engine stops soon after its last client, and goes on when asked again."""
        if not self._closed.is_set():
            self._closed.set()
            atexit.unregister(self.close)
            with suppress(OSError, StoreError):
                self.store.delete(f"clients/{self.id}.json")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, requests: Sequence[str]) -> None:
        """Remove requests; a job that no engine has seen yet is marked as cancelled here."""
        for path in requests:
            key = path.split("/")[1]
            job = self.job(key)
            self.store.delete(path)
            known = self.store.has_file(f"jobs/{key}.json") or self.store.list_json(f"requests/{key}")
            if job is not None and not known:
                gone = replace(job, status="cancelled", step="cancelled", position=None, ended=time.time())
                self.store.put_json(f"jobs/{key}.json", asdict(gone))

    def _identify(self, stage: str, experiment: Experiment, root: str | None) -> tuple[Experiment, str, bool]:
        """The experiment, with the data's fingerprint if it is known; the job's key; whether that is the result's."""
        module = importlib.import_module(self._runner)
        experiment = module.pin(self.store, experiment)
        if experiment.data.fingerprint is None:
            wanted = {"stage": stage, "data_root": root, **experiment.changed()}  # elsewhere the data may be other data
            return experiment, stage_key("request", 1, wanted, [], None), False
        return experiment, module.key(stage, experiment), True

    def _note_stored(self, stage: str, key: str, experiment: Experiment) -> None:
        """Leave a job that says done, for whoever asks for its state."""
        known = _read_job(self.store, f"jobs/{key}.json")
        if known is None or known.status in ("failed", "cancelled"):
            now = time.time()
            content = experiment.model_dump(mode="json", by_alias=True)
            job = Job(key, stage, content, "done", step="found in the store", submitted=now, started=now, ended=now)
            self.store.put_json(f"jobs/{key}.json", asdict(job))

    def _known_job(self, path: str, stamp: object) -> Job | None:
        """A job's file, read again only when it has been written."""
        known = self._jobs.get(path)
        if known is None or known[0] != stamp:
            job = _read_job(self.store, path)
            if job is None:
                return None
            known = self._jobs[path] = (stamp, job)
        return known[1]

    def _view(self, key: str, state: Job | None, requests: Sequence[str]) -> Job | None:
        """The job as it is to be shown: what the engine wrote last, unless requests or the engine changed since."""
        job = None if state is None else replace(state)
        if requests and (job is None or job.over):  # asked for, or asked for again; the engine has not seen it yet
            request = _read_request(self.store, requests[0])
            if request is not None:
                job = Job(key, request.stage, request.experiment, submitted=request.time, need=list(request.need))
                job.priority, job.requesters = request.priority, [request.requester]
        if job is not None and not job.over and not self._alive():
            job = replace(job, status="queued", position=None, eta_seconds=None, step="waiting for the engine to start")
            if not requests:
                job = replace(job, status="cancelled", step="cancelled")
            elif self._failures:
                job.step = f"the engine does not start: {self._last_words()}"
        return job

    def _alive(self) -> bool:
        """Whether an engine holds the lease, looked up at most once a second."""
        when, alive = self._seen_alive
        if time.monotonic() - when > 1.0:
            alive = self.store.holder(LEASE) is not None
            self._seen_alive = (time.monotonic(), alive)
        return alive

    def _last_words(self) -> str:
        """The last line of the engine's log and where that is."""
        path = log_file(self.store)
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it left no message")
        return f"{_LOGGED.sub('', last)} (see {path})"

    def _keep_alive(self) -> None:
        while not self._closed.wait(BEAT):
            try:
                self._beat()
                if self.store.list_json("requests"):
                    self.start_engine()
            except (OSError, StoreError) as error:  # a store that cannot be reached for a moment
                log.warning("the heartbeat failed: %s", error)

    def _beat(self) -> None:
        self._beats += 1
        beat = {"beat": self._beats, "process": environment.this_process()}
        self.store.put_json(f"clients/{self.id}.json", beat)

    def _launch(self) -> "subprocess.Popen[bytes]":
        """Start the engine in a session of its own, importing tier from where this process has it."""
        command = [sys.executable, "-P", "-m", "tier.engine", "--store", self.store.url, "--runner", self._runner]
        if self.store.below is not None:
            command += ["--below", self.store.below.url]
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # The engine works for others too: each job brings the data root of whoever asked for it.
        environ = {name: value for name, value in os.environ.items() if name != DATA_ROOT}
        log_path = log_file(self.store)
        mode = "ab" if log_path.exists() and log_path.stat().st_size < 1_000_000 else "wb"
        with log_path.open(mode) as output:
            return subprocess.Popen(
                [*command, *self._options],
                env=environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the server's terminal is not for the engine
            )


def log_file(store: Store) -> Path:
    """Where the engine of a store logs on this machine; the folder is made."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"engine-{hashlib.sha256(store.url.encode()).hexdigest()[:12]}.log"
    for folder in (Path(base) / "tier", Path(tempfile.gettempdir()) / f"tier-{os.getuid()}"):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK):
                return folder / name
    raise StoreError("no folder for the engine's log: neither the cache folder nor the temporary one can be written")


# ---- worker


class Reporter:
    """A run's voice: merges its events into `progress/{key}.json`, and hears whether it is to stop."""

    def __init__(self, store: Store, key: str, run: str) -> None:
        self._store = store
        self._path = f"progress/{key}.json"
        self._flag = f"cancel/{run}.json"
        self._written = self._asked = self._engine_seen = time.monotonic()
        self._engine_asked = self._engine_seen
        self._dirty = self._cancelled = False
        self._every = PROGRESS_EVERY if store.local else PROGRESS_EVERY_REMOTE
        self.state: dict[str, Any] = (_read_progress(store, key) or _Progress()).model_dump()
        self.state["starts"] = [*self.state["starts"], self.state["advance"]]
        self.state["step"] = "starting" if len(self.state["starts"]) == 1 else "starting again after its worker died"
        self.state["fraction"] = None
        self._write()

    def progress(self, event: Mapping[str, Any]) -> None:
        """Take an event: one with `epoch` joins the history, any may carry `step`, `fraction`, `epochs`."""
        state = self.state
        former = state.get("step")
        if "epoch" in event:
            told_again = self._add_epoch(dict(event))
            if told_again and event["epoch"] < state["epoch"]:
                event = {"step": event.get("step", former), "fraction": state["fraction"]}
        for name in ("step", "epochs", "epoch"):
            if name in event:
                state[name] = event[name]
        state["fraction"] = event.get("fraction")
        step = state.get("step")
        if step is not None and step not in state["steps"]:
            state["steps"].append(step)
            state["advance"] += 1
        self._dirty = True
        if step != former:  # what follows may be long and silent
            self._write()
        self._write_if_due()

    def cancelled(self) -> bool:
        """Whether to stop; cheap enough to ask in every batch."""
        self._write_if_due()
        now = time.monotonic()
        if not self._cancelled and (self._store.local or now - self._asked > 1.0):
            self._asked = now
            try:
                self._cancelled = self._store.has_file(self._flag) or self._abandoned(now)
            except (OSError, StoreError) as error:
                self._engine_seen = time.monotonic()  # nobody can be heard of now
                log.warning("cannot ask whether to stop: %s", error)
        return self._cancelled

    def withdraw(self) -> None:
        """This start does not count: the run found that another is doing its work."""
        self.state["starts"].pop()
        self.state["fraction"] = None
        self._dirty = True

    def close(self) -> None:
        """Write what has not been written."""
        if self._dirty:
            self._write()

    def _add_epoch(self, event: dict[str, Any]) -> bool:
        """Put an epoch in its place; True when it is known. A resumed run tells its epochs again, and one that differs
        makes later ones stale.
        """
        events = self.state["events"]
        epoch = event["epoch"]
        if event in events:
            return True
        self.state["events"] = [known for known in events if known["epoch"] < epoch] + [event]
        if epoch > self.state["top"]:
            self.state["top"] = epoch
            self.state["advance"] += 1
        return False

    def _abandoned(self, now: float) -> bool:
        """Whether no engine was alive for a while: a worker of an outside cluster outlives the engine's death."""
        if now - self._engine_asked > 5.0:
            held = self._store.holder(LEASE) is not None
            slow = time.monotonic() - now > SLOW  # the store was away, for the engine too, which may be late
            self._engine_asked = time.monotonic()
            if held or slow:
                self._engine_seen = self._engine_asked
        return now - self._engine_seen > ABANDONED

    def _write_if_due(self) -> None:
        if self._dirty and time.monotonic() - self._written >= self._every:
            self._write()

    def _write(self) -> None:
        self._written, self._dirty = time.monotonic(), False
        try:
            self._store.put_json(self._path, self.state)
        except (OSError, StoreError) as error:  # a store that cannot be reached for a moment; training goes on
            self._dirty = True
            log.warning("cannot write progress: %s", error)


_one_job = threading.Lock()  # a process has one generator, one number of threads and one data root for torch and tier


def run_job(
    url: str,
    below: str | None,
    runner: str,
    stage: str,
    key: str,
    experiment: str,
    run: str,
    need: str = "[]",
    data_root: str | None = None,
) -> str:
    """What a worker does for a job; all arguments are plain text, `experiment` and `need` JSON. Returns JSON:
    `{"status": "done" | "cancelled" | "failed", "error": sentence, "details": traceback}`, or
    `{"status": "waiting", "for": lease}` when another process computes what it reads.

    A process does one job at a time; another one waits, or hears that it is cancelled.
    """
    store = _store(url, below)
    while not _one_job.acquire(timeout=1.0):
        if store.has_file(f"cancel/{run}.json"):
            return json.dumps({"status": "cancelled"})
    try:
        with _data_in(data_root):
            patient = _store(url, below, PATIENCE)
            return json.dumps(_compute(store, patient, runner, stage, key, experiment, run, need))
    finally:
        _one_job.release()


def _compute(
    store: Store, patient: Store, runner: str, stage: str, key: str, experiment: str, run: str, need: str
) -> dict[str, Any]:
    """`run_job` of this process's turn. Results wait for a `patient` store, what is only told does not."""
    reporter = Reporter(store, key, run)
    try:
        module = importlib.import_module(runner)
        settings = Experiment.model_validate_json(experiment)
        if settings.data.fingerprint is not None and module.key(stage, settings) != key:
            raise ValueError("this worker runs another version of the code than asked: stop the engine, then try again")
        context = Context(reporter.progress, reporter.cancelled, waits=False)
        module.ensure(patient, stage, settings, context, need=tuple(json.loads(need)))
    except Cancelled:
        return {"status": "cancelled"}
    except Waiting as wait:
        reporter.withdraw()
        return {"status": "waiting", "for": wait.lease}
    except Exception as error:  # whatever it is, the person who asked has to read it
        log.exception("%s %s failed", stage, key[:12])
        return {"status": "failed", "error": _sentence(error), "details": without_paths(traceback.format_exc())}
    finally:
        reporter.close()
    return {"status": "done"}


@contextmanager
def _data_in(root: str | None) -> Iterator[None]:
    """Let data sets be looked up in `root`; None leaves this process's own setting."""
    former = os.environ.get(DATA_ROOT)
    if root is not None:
        os.environ[DATA_ROOT] = root
    try:
        yield
    finally:
        if former is not None:
            os.environ[DATA_ROOT] = former
        elif root is not None:
            del os.environ[DATA_ROOT]


def _data_root() -> str | None:
    """This process's data root as an absolute path, which means the same to any process of the machine."""
    root = os.environ.get(DATA_ROOT)
    return os.path.abspath(os.path.expanduser(root)) if root else None


def _sentence(error: Exception) -> str:
    """An error in words that a person can act on."""
    if isinstance(error, MemoryError):
        return "The run needs more memory than there is; try fewer images or a smaller batch."
    text = str(error).strip() or "no message"
    return text if isinstance(error, ValueError) else without_paths(f"{type(error).__name__}: {text}")


# in quotes, where a path may hold blanks, or bare; not the slashes of an address such as https://x/y
_PATH = re.compile(r"""(?P<quote>["'])(?P<quoted>(?:/|[A-Za-z]:\\)[^"'\n]*)(?P=quote)|(?<![\w/:.~])/[\w.~+@=%/-]*\w""")


def without_paths(text: str) -> str:
    """A traceback that may be shown to anyone: an absolute path becomes what follows the folder that Python imported
    the file from, e.g. `tier/engine.py`, and any other path its last part.
    """
    entries = [Path(entry) for entry in sys.path if entry]
    roots = sorted({str(path) for entry in entries for path in (entry, entry.resolve())}, key=len, reverse=True)

    def short(path: str) -> str:
        root = next((root for root in roots if path.startswith(root + os.sep)), None)
        return path[len(root) + 1 :] if root else re.split(r"[/\\]", path.rstrip("/\\"))[-1]

    def replaced(match: re.Match[str]) -> str:
        quote = match["quote"] or ""
        return f"{quote}{short(match['quoted'] if quote else match[0])}{quote}"

    return _PATH.sub(replaced, text)


def dask_setup(worker: Any) -> None:
    """Called by Dask in every worker that the engine starts: no HTTP port, an end when the engine is killed, and what
    jobs import loaded ahead of the first one, in the background.
    """
    worker.http_server.stop()
    preload(os.environ.get(PRELOAD, "").split())
    parent = os.getppid()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=follow, name="follow the engine", daemon=True).start()


def preload(modules: Sequence[str]) -> None:
    """Import modules in the background. A job that comes meanwhile waits: two threads that import torch at a time can
    get it half-initialised. What cannot be imported is left to the job that needs it, which says why.
    """

    def load() -> None:
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception:
            log.warning("a worker could not load all modules ahead of its first job", exc_info=True)
        finally:
            _one_job.release()

    if modules and _one_job.acquire(blocking=False):
        threading.Thread(target=load, name="preload", daemon=True).start()


# ---- engine


class Pool(Protocol):
    """What computes: a Dask cluster, or a stand-in for tests."""

    def slots(self) -> int:
        """How many jobs may run at a time."""

    def start(self, name: str, *arguments: str | None) -> Any:
        """Begin `run_job(*arguments)` and return a handle."""

    def outcome(self, handle: Any) -> dict[str, Any] | None:
        """None while it runs, then what `run_job` returned, or `{"status": "died"}` when workers died under it."""

    def release(self, handle: Any) -> None:
        """Forget a handle, running or not."""

    def trouble(self) -> str | None:
        """Why nothing can be started now, and what was started is lost; None when all is well."""

    def lacking(self) -> str | None:
        """What a started job still waits for before a worker begins it; None when there are workers."""

    def expect(self, stages: Sequence[str]) -> None:
        """Told what else could start at once if there were more workers: a stage for each job."""


@dataclass
class _Run:
    """A job that is not over, with what only the engine knows of it."""

    job: Job
    run: str  # names this run's cancel flag
    requests: list[str]  # paths of the requests it serves
    pinned: bool
    data_root: str | None
    attempts_before: int = 0
    handle: Any = None
    asked: Sequence[str] = ()  # the job's `need` when it was started last
    cancelling: bool = False
    tries: int = 0  # times it was given to Dask
    begun: int = 0  # starts that its worker had told of when it was given away last
    losses: int = 0  # times Dask gave it up
    waits_for: str | None = None  # a lease under which another run computes what this one reads
    worked: float = 0.0  # seconds that it ran before it began to wait
    step_began: tuple[str, float, float] = ("", 0.0, 0.0)  # step, time, fraction at that time

    @property
    def order(self) -> tuple[int, float, str]:
        return PRIORITIES[self.job.priority], self.job.submitted, self.job.key


class Engine:
    """The queue: turns requests into runs, first come first served, what people wait for before sweeps."""

    def __init__(self, store: Store, pool: Pool, runner: str = RUNNER) -> None:
        self.store = store
        self.pool = pool
        self.runner = runner
        self.runs: dict[str, _Run] = {}
        self._requests: dict[str, _Request] = {}  # by path
        self._stamps: dict[str, object] = {}  # of these files
        self._heard: dict[str, tuple[object, float]] = {}  # client -> its last heartbeat's stamp, and when that was new
        self._orphans_sought = time.monotonic()
        self._published: dict[str, tuple[float, dict[str, Any]]] = {}
        self._durations: dict[str, list[float]] = {}  # kind of job -> seconds
        self._trouble: str | None = None
        self._take_stock()

    @property
    def idle(self) -> bool:
        """Whether there is no job."""
        return not self.runs

    def step(self) -> None:
        """Look at everything once: requests, ended runs, progress, free slots; then publish."""
        self._read_requests()
        trouble = self.pool.trouble()
        for run in [run for run in self.runs.values() if run.handle is not None]:
            if trouble is None:
                self._follow(run)
                self._collect(run)
            else:
                self._lose(run, trouble)
        self._tell(trouble)
        if trouble is None:
            self._fill_slots()
        self._estimate()
        for run in self.runs.values():
            self._publish(run.job)

    def _lose(self, run: _Run, trouble: str) -> None:
        """The cluster is away, and nobody will hear how this run ends: it is no fault of the run's."""
        self._release(run, trouble)
        if run.cancelling:
            self._end(run, "cancelled")

    def _tell(self, trouble: str | None) -> None:
        """Let those who wait know why nothing starts, and that it is over."""
        for run in self.runs.values():
            if run.handle is None and trouble is not None:
                run.job.step = trouble
            elif run.handle is None and run.job.step == self._trouble:
                run.job.step = "waiting"
        if trouble != self._trouble:
            log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "the cluster is back")
        self._trouble = trouble

    def _take_stock(self) -> None:
        """Learn durations from finished jobs, and close those that an earlier engine left and nobody wants."""
        for path in self.store.list_json("jobs"):
            job = _read_job(self.store, path, remove=True)
            if job is None:
                continue
            if job.status == "done":
                self._learn(job)
            elif not job.over and not self.store.list_json(f"requests/{job.key}"):
                stored = self.store.find(job.stage, job.key, job.need) is not None
                job.status = job.step = "done" if stored else "cancelled"
                job.ended, job.position, job.eta_seconds, job.fraction = time.time(), None, None, None
                self._publish(job)

    def _read_requests(self) -> None:
        """Bring the runs in line with the request files."""
        stamps = self.store.stamps("requests")
        known = {path: request for path, request in self._requests.items() if self._stamps[path] == stamps.get(path)}
        self._requests, self._stamps = {}, stamps
        for path in sorted(stamps):
            request = known.get(path) or _read_request(self.store, path, remove=True)
            if request is not None:
                self._requests[path] = request
        self._drop_orphans()
        wanted: dict[str, list[str]] = {}
        for path in self._requests:
            wanted.setdefault(path.split("/")[1], []).append(path)
        for key, run in list(self.runs.items()):
            if key not in wanted:
                self._withdraw(run)
        for key, paths in wanted.items():
            run = self.runs.get(key) or self._open(key, paths)
            if not run.cancelling:  # else they ask anew: once this run has stopped, they get their own
                requests = [self._requests[path] for path in paths]
                run.requests = paths
                run.job.requesters = [request.requester for request in requests]
                run.job.priority = min((request.priority for request in requests), key=PRIORITIES.__getitem__)
                run.job.need = sorted({name for request in requests for name in request.need})

    def _drop_orphans(self) -> None:
        """Remove what nobody can withdraw any more: requests of clients that are long gone, unless it is running."""
        now = time.monotonic()
        if now - self._orphans_sought < ORPHANS_EVERY:
            return
        self._orphans_sought = now
        beats = {_stem(path): stamp for path, stamp in self.store.stamps("clients").items()}
        heard, self._heard = self._heard, {}
        for client in {request.client for request in self._requests.values()}:
            stamp, when = heard.get(client, (None, now))
            new = beats.get(client, stamp)
            self._heard[client] = (new, when if new == stamp else now)
        for path, request in list(self._requests.items()):
            run = self.runs.get(path.split("/")[1])
            silent = now - self._heard[request.client][1] > ORPHANED and time.time() - request.time > ORPHANED
            if silent and (run is None or run.handle is None):
                log.info("dropped a request of %s, whose client has gone: %s", request.requester, path)
                self.store.delete(path)
                del self._requests[path]

    def _open(self, key: str, paths: Sequence[str]) -> _Run:
        """A run for a newly wanted job. An interrupted one keeps its count of attempts, and any its history."""
        requests = sorted((self._requests[path] for path in paths), key=lambda request: request.time)
        first = requests[0]
        root = next((request.data_root for request in requests if request.data_root is not None), None)
        job = Job(key, first.stage, first.experiment, submitted=first.time)
        run = _Run(job, secrets.token_hex(8), list(paths), first.pinned, root)
        former = _read_job(self.store, f"jobs/{key}.json")
        if former is not None and not former.over:
            run.attempts_before = job.attempt = former.attempt
        progress = _read_progress(self.store, key)
        if progress is not None:
            progress.starts = []
            self.store.put_json(f"progress/{key}.json", progress.model_dump())
        self.runs[key] = run
        return run

    def _withdraw(self, run: _Run) -> None:
        """Nobody wants it any more."""
        if run.handle is None:
            self._end(run, "cancelled")
        elif not run.cancelling:
            run.cancelling, run.requests = True, []
            run.job.step = "stopping"
            self.store.put_json(f"cancel/{run.run}.json", {"key": run.job.key})

    def _follow(self, run: _Run) -> None:
        """Take over what the worker has told; end a run that does not get further however often it starts."""
        progress = _read_progress(self.store, run.job.key)
        job = run.job
        begun = progress is not None and len(progress.starts) > run.begun
        if not begun and not run.cancelling:  # no worker has told anything yet
            job.step = self.pool.lacking() or "starting"
        if progress is None:
            return
        if begun and not run.cancelling:
            job.step = progress.step or job.step
        job.fraction, job.epoch, job.epochs = progress.fraction, progress.epoch, progress.epochs
        job.attempt = run.attempts_before + len(progress.starts)
        if job.step != run.step_began[0]:
            run.step_began = (job.step, time.time(), job.fraction or 0.0)
        reason = hopeless(progress.starts)
        if reason is not None:
            self.store.put_json(f"cancel/{run.run}.json", {"key": job.key})  # it has just been started once more
            self._end(run, "failed", reason)

    def _collect(self, run: _Run) -> None:
        """Deal with a run that has ended."""
        if run.handle is None:
            return
        outcome = self.pool.outcome(run.handle)
        if outcome is None:
            return
        status = outcome["status"]
        if status == "died" or (status == "cancelled" and not run.cancelling):
            self._again(run)
        elif status == "cancelled":
            self._end(run, "cancelled")
        elif status == "waiting":
            self._park(run, outcome["for"])
        elif status == "done" and not set(run.job.need) <= set(run.asked):
            self._release(run, "looking for what else was asked for")
        else:
            self._end(run, status, outcome.get("error"), outcome.get("details"))

    def _again(self, run: _Run) -> None:
        """Dask has given the run up, or its worker thought itself alone: submit it again, from its last checkpoint."""
        self._release(run, "starting again after its worker died")
        run.losses += 1
        if run.cancelling:
            self._end(run, "cancelled")
        elif run.losses >= STARTS:
            self._end(run, "failed", f"The cluster has lost this run {run.losses} times; see the engine's log.")

    def _park(self, run: _Run, lease: str) -> None:
        """Another run computes what this one reads: let others have the slot until that lease is free."""
        if run.cancelling:
            self._end(run, "cancelled")
            return
        job = run.job
        starts = (_read_progress(self.store, job.key) or _Progress()).starts
        job.attempt = run.attempts_before + len(starts)  # this one does not count
        run.worked, job.started, job.fraction = time.time() - (job.started or time.time()), None, None
        run.waits_for = lease
        self._release(run, WAITING)

    def _release(self, run: _Run, step: str) -> None:
        """Put a started run back into the queue."""
        self.pool.release(run.handle)
        run.handle = None
        run.job.status, run.job.step = "queued", step

    def _fill_slots(self) -> None:
        """Start queued runs, as many as can run, and let the pool know of those that could run beside them."""
        free = self.pool.slots() - sum(run.handle is not None for run in self.runs.values())
        awaited = {run.waits_for for run in self.runs.values() if run.waits_for is not None}
        held = {lease for lease in awaited if self.store.holder(lease) is not None}
        queued = sorted((run for run in self.runs.values() if run.handle is None), key=lambda run: run.order)
        for run in queued:
            if free <= 0:
                break
            if run.pinned and self.store.find(run.job.stage, run.job.key, run.job.need) is not None:  # meanwhile
                self._end(run, "done")
            elif run.waits_for not in held:
                free -= 1
                self._start(run)
        able = [run for run in queued if run.handle is None and run.waits_for not in held]
        self.pool.expect([run.job.stage for run in able if run.job.key in self.runs])

    def _start(self, run: _Run) -> None:
        job, below = run.job, self.store.below
        run.tries += 1
        run.begun = len((_read_progress(self.store, job.key) or _Progress()).starts)
        run.asked = job.need
        name = f"{job.stage}-{job.key[:12]}-{run.run}-{run.tries}"  # new for each try: Dask remembers old names
        where = (self.store.url, below.url if below is not None else None)
        what = (self.runner, job.stage, job.key, json.dumps(job.experiment), run.run, json.dumps(job.need))
        run.handle = self.pool.start(name, *where, *what, run.data_root)
        job.status, job.position, job.step = "running", 0, "starting"
        job.started = job.started or time.time() - run.worked
        run.waits_for = None
        log.info("started %s %s for %s", job.stage, job.key[:12], ", ".join(job.requesters))

    def _end(self, run: _Run, status: Status, error: str | None = None, details: str | None = None) -> None:
        """Close a job. Its requests go first: what is asked from now on is a new job."""
        job = run.job
        if run.handle is not None:
            self.pool.release(run.handle)
            run.handle = None
        for path in run.requests:
            self.store.delete(path)
            self._requests.pop(path, None)
        if status != "failed":
            self.store.delete(f"cancel/{run.run}.json")
        job.status, job.error, job.details, job.ended = status, error, details, time.time()
        job.position = job.eta_seconds = job.fraction = None
        job.step = {"failed": f"failed while {job.step}" if job.started else "failed"}.get(status, status)
        if status == "done":
            self._learn(job)
        self._publish(job)
        self._published.pop(job.key, None)
        del self.runs[job.key]
        log.info("%s %s %s%s", job.stage, job.key[:12], status, f": {error}" if error else "")

    def _learn(self, job: Job) -> None:
        """Remember how long an unbroken job took."""
        if job.started is not None and job.ended is not None and job.attempt == 1:
            self._durations.setdefault(kind(job), []).append(job.ended - job.started)

    def _estimate(self) -> None:
        """Positions in the queue, and seconds until each job is done."""
        now = time.time()
        usual = {key: self._usual(run.job) for key, run in self.runs.items()}
        ends: list[float] = []  # when the slots come free; infinite when nobody knows
        for key, run in self.runs.items():
            if run.handle is not None:
                run.job.eta_seconds = remaining(run.job, usual[key], run.step_began, now)
                ends.append(float("inf") if run.job.eta_seconds is None else run.job.eta_seconds)
        ends += [0.0] * (self.pool.slots() - len(ends))
        heapq.heapify(ends)
        queued = sorted((run for run in self.runs.values() if run.handle is None), key=lambda run: run.order)
        for position, run in enumerate(queued, start=1):
            run.job.position = position
            length = usual[run.job.key]
            end = (heapq.heappop(ends) if ends else float("inf")) + (float("inf") if length is None else length)
            heapq.heappush(ends, end)
            run.job.eta_seconds = None if end == float("inf") else round(end)

    def _usual(self, job: Job) -> float | None:
        """Median seconds of the last jobs of this kind."""
        past = self._durations.get(kind(job))
        return statistics.median(past[-5:]) if past else None

    def _publish(self, job: Job) -> None:
        """Write the job's state if it has changed; a new estimate alone at most once a second, of a job that waits (and
        many may) every five.
        """
        content = asdict(job)
        when, former = self._published.get(job.key, (0.0, {}))
        if content == former:
            return
        now = time.monotonic()
        still = 1.0 if job.position is None else 5.0
        if now - when < still and content == {**former, "eta_seconds": content["eta_seconds"]}:
            return
        self.store.put_json(f"jobs/{job.key}.json", content)
        self._published[job.key] = (now, content)


def hopeless(starts: Sequence[int]) -> str | None:
    """Why a run is given up, from how far it had come at each start (a count that grows with epochs and steps)."""
    stalls = 0
    for before, after in itertools.pairwise(starts):
        stalls = stalls + 1 if after == before else 0
    if stalls >= STALLS:
        return (
            f"The worker died {stalls} times in a row without getting further, probably for lack of memory; "
            "try fewer images, a smaller batch or a smaller model."
        )
    if len(starts) > STARTS:
        return f"The worker died {len(starts) - 1} times; see the engine's log."
    return None


def kind(job: Job) -> str:
    """What jobs must share for one's duration to say something about another's."""
    e = job.experiment
    data, train = e.get("data", {}), e.get("train", {})
    parts = [job.stage, data.get("source"), data.get("image_size"), e.get("split"), e.get("model")]
    parts += [train.get("epochs"), train.get("batch_size"), train.get("threads"), e.get("defense", {}).get("name")]
    return json.dumps(parts, sort_keys=True)


def remaining(job: Job, usual: float | None, step_began: tuple[str, float, float], now: float) -> float | None:
    """Seconds until a running job is done: what such jobs usually take, less what has passed. Failing that, what the
    current step still needs at its speed so far; None when that is not known either.
    """
    if usual is not None and job.started is not None and job.attempt <= 1 and now - job.started < usual:
        return round(usual - (now - job.started))
    _, began, first = step_began
    done = (job.fraction or 0.0) - first
    if done < 0.02 or job.fraction is None:
        return None
    return round((now - began) * (1.0 - job.fraction) / done)


class DaskPool:
    """A local cluster that this process owns, or, with TIER_SCHEDULER set, the cluster behind that address.

    The local one listens on 127.0.0.1 only, encrypts with keys of its own, and serves no HTTP. A worker, however many
    threads its cluster gives it, runs one job at a time; one that dies is replaced by Dask, which then starts its run
    again. `threads` is what numpy begins with; a run's own `train.threads` decides for torch.

    A scheduler that goes away is `trouble`, and connected to again as soon as it answers.

    A cluster that grows by itself (Dask's `adapt`) goes by the tasks that its scheduler knows of. An outside one is
    therefore told of the jobs that wait here: for each a task that no worker can take (`expect`). The jobs themselves
    stay in our queue until a worker is there, so that priorities, cancelling and waiting for another are as ever.
    """

    def __init__(self, threads: int = 1, workers: int | None = None, runner: str = RUNNER) -> None:
        """Raises what `scheduler.from_environment` and `Scheduler.connect` do."""
        import distributed

        logging.getLogger("distributed").setLevel(logging.WARNING)  # importing it has set INFO
        self.threads = threads
        self._outside = scheduler.from_environment()
        self._cluster: Any = None
        self._workers = workers or max(1, environment.cores() // threads)
        self._counted = float("-inf")
        self._present: dict[str, dict[str, Any]] = {}  # address -> what the scheduler tells of a worker
        self._places: dict[str, str] = {}  # task -> address of the outside worker chosen for it
        self._expected: dict[str, list[Any]] = {}  # stage -> what tells the scheduler of jobs that wait for a worker
        self._told = 0  # how many of those were made
        self._manned = time.monotonic()  # when a worker was seen last
        self._away: str | None = None  # why the scheduler is not connected
        self._reconnecting: threading.Thread | None = None
        self._closed = threading.Event()
        if self._outside is not None:
            self._client = self._outside.connect()
            return
        self._cluster = self._own_cluster(runner)
        self._client = distributed.Client(self._cluster, set_as_default=False)

    @property
    def scheduler(self) -> str | None:
        """The outside scheduler's address."""
        return None if self._outside is None else self._outside.address

    def _own_cluster(self, runner: str) -> Any:
        """A cluster on this machine, for this process only."""
        import dask
        import distributed
        import psutil

        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(self.threads)  # for the workers, which read it when they load numpy and torch
        # threads that spin while they wait made training 10 times slower when another process used a core
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
        roomy = 2 * self._workers * PRELOAD_BYTES < psutil.virtual_memory().available
        os.environ[PRELOAD] = " ".join(PRELOADED.get(runner, ())) if roomy else ""
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": STARTS,  # we count the starts ourselves and give up earlier
                # Default: 15 s after a worker's death Dask looks once, and if another death happens to be under repair
                # just then, it closes the supervisor for good and no worker ever comes back.
                "distributed.deploy.lost-worker-timeout": 1e9,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
                "distributed.worker.profile.enabled": False,  # it would interrupt training a hundred times a second
                # Dask has workers give freed memory back at once (MALLOC_TRIM_THRESHOLD_): torch then faults its pages
                # in anew for every batch, which halved the speed of training.
                "distributed.nanny.pre-spawn-environ": {},
            }
        )
        self._folder = tempfile.mkdtemp(prefix="tier-engine-")
        cluster: Any = distributed.LocalCluster(
            n_workers=self._workers,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tls://",
            security=distributed.Security.temporary(),
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # closed below; else it would be port 8787
            memory_limit=0,  # else Dask pauses a worker that is 80 % full, and the job with it
            local_directory=self._folder,
            preload=["tier.engine"],
        )
        cluster.loop.add_callback(cluster.scheduler.http_server.stop)
        return cluster

    def slots(self) -> int:
        """One per worker; at least one, so that a job waits where the scheduler sees it when there is no worker."""
        return self._workers if self._cluster is not None else max(1, len(self._able()))

    def healthy(self) -> bool:
        """False when a cluster of our own had no worker for a minute: it is beyond repair, a new engine is not."""
        now = time.monotonic()
        if self._cluster is None or self._able():
            self._manned = now
        if now - self._manned > UNMANNED:
            log.error("no worker has come back for %g seconds", UNMANNED)
            return False
        return True

    def trouble(self) -> str | None:
        if self._outside is None:
            return None
        if self._client.status == "running":
            self._away = None
            return None
        if self._away is None:
            self._away = f"the scheduler {self._outside.address} does not answer; trying again"
        if self._client.status == "closed" and self._reconnecting is None:  # Dask itself has given up
            self._reconnecting = threading.Thread(target=self._reconnect, name="reconnect", daemon=True)
            self._reconnecting.start()
        return self._away

    def lacking(self) -> str | None:
        if self._outside is None or self._able():
            return None
        wanted = ", ".join(f"{name}={amount:g}" for name, amount in self._outside.resources.items())
        return f"waiting for a worker{f' that offers {wanted}' if wanted else ''} of {self._outside.address}"

    def expect(self, stages: Sequence[str]) -> None:
        """Let an outside scheduler know of jobs that wait: named as they would be, so that it guesses their length."""
        if self._outside is None or self._client.status != "running":
            return
        wanted = Counter(stages[:MOST_EXPECTED])
        for stage in {*wanted, *self._expected}:
            told = [h for h in self._expected.get(stage, []) if h.client is self._client and h.status == "pending"]
            for handle in told[wanted[stage] :]:
                self.release(handle)
            more = [self._expectation(stage) for _ in range(wanted[stage] - len(told))]
            self._expected[stage] = told[: wanted[stage]] + more

    def _expectation(self, stage: str) -> Any:
        """A task that waits for a resource that no worker offers."""
        self._told += 1
        name = f"{stage}-0-expected-{os.getpid()}-{self._told}"
        return self._client.submit(int, key=name, pure=False, resources={ANOTHER_WORKER: 1})

    def _reconnect(self) -> None:
        """Try to connect until it works or the pool is closed; why it does not is told by `trouble`."""
        assert self._outside is not None
        while not self._closed.wait(RECONNECT):
            try:
                client = self._outside.connect()
            except (scheduler.SettingsError, scheduler.UnreachableError) as error:
                self._away = f"{error}; trying again"
                continue
            self._counted = float("-inf")
            self._client = client
            break
        self._reconnecting = None

    def _able(self) -> dict[str, dict[str, Any]]:
        """The workers that can take a job, looked up every few seconds; the last ones known while nobody answers."""
        if time.monotonic() - self._counted > 5.0 and self._client.status == "running":
            self._counted = time.monotonic()
            identity = self._ask("identity", n_workers=-1)
            if identity is not None:
                wanted = self._outside.resources if self._outside is not None else {}
                self._present = {
                    address: worker
                    for address, worker in identity["workers"].items()
                    if all(worker.get("resources", {}).get(name, 0) >= amount for name, amount in wanted.items())
                }
        return self._present

    def _ask(self, question: str, **more: Any) -> Any:
        """What the scheduler answers; None when it does not."""
        try:
            return self._client.sync(getattr(self._client.scheduler, question), callback_timeout=ANSWER, **more)
        except (OSError, TimeoutError, AttributeError) as error:  # the last: Dask has lost it just now
            log.warning("the scheduler does not answer: %s", error)
            return None

    def start(self, name: str, *arguments: str | None) -> Any:
        options: dict[str, Any] = {"key": name, "pure": False}
        if self._outside is not None:
            options |= {"resources": dict(self._outside.resources)} if self._outside.resources else {}
            if (place := self._free_worker()) is not None:
                self._places[name] = place
                # a wish, not a condition: should that worker end, the task goes to any other
                options |= {"workers": [place], "allow_other_workers": True}
        return self._client.submit(run_job, *arguments, **options)

    def _free_worker(self) -> str | None:
        """An outside worker without a job. Left to itself, Dask fills up the threads of one that has a job already."""
        processing = self._ask("processing", workers=None) or {}
        taken = {place for place, tasks in processing.items() if tasks} | {*self._places.values()}
        return next((place for place in self._able() if place not in taken), None)

    def outcome(self, handle: Any) -> dict[str, Any] | None:
        if handle.status == "pending":
            return None
        if handle.status == "finished":
            try:
                outcome: dict[str, Any] = json.loads(handle.result(timeout=10))
            except (TimeoutError, OSError):  # the worker died with the answer; Dask asks again
                return None
            return outcome
        if handle.status == "error":
            error = handle.exception(timeout=10)
            log.warning("%s: %s", handle.key, error)
            if isinstance(error, _UNABLE):
                return {"status": "failed", "error": f"The worker cannot run this job: {_sentence(error)}"}
        return {"status": "died"}

    def release(self, handle: Any) -> None:
        self._places.pop(handle.key, None)
        if handle.client is self._client and self._client.status == "running":
            handle.cancel()
            handle.release()

    def close(self) -> None:
        """Stop the workers, whatever they are doing."""
        self._closed.set()
        self._client.close(timeout=2)
        if self._cluster is None:
            return
        for nanny in self._cluster.workers.values():
            nanny.close_gracefully("the engine stops")  # else it would replace the worker that is killed now
            _kill(nanny.pid)
        try:
            self._cluster.close(timeout=5)
        except TimeoutError:
            log.warning("the cluster does not close in time")  # its processes end with this one
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill(pid: int | None) -> None:
    """Kill a process and what it has started."""
    import psutil

    if pid is None:
        return
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            each.kill()


class _Clients:
    """Which clients are alive, told by whether their heartbeat files still change: no two clocks are compared."""

    def __init__(self, store: Store, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._seen: dict[str, tuple[object, float]] = {}
        self._last = time.monotonic()

    def gone(self) -> bool:
        """Whether no client has been alive for the time-out."""
        now = time.monotonic()
        for path, stamp in self._store.stamps("clients").items():
            if path not in self._seen or self._seen[path][0] != stamp:
                self._seen[path] = (stamp, now)
                self._last = now
            elif now - self._seen[path][1] > 10 * self._timeout:
                self._store.delete(path)
                del self._seen[path]
        return now - self._last > self._timeout


def serve(
    engine: Engine,
    alive: Callable[[], bool],
    clients: _Clients | None,
    idle_timeout: float = IDLE_TIMEOUT,
    poll: float = 0.25,
) -> str:
    """Work until `alive` says no, no client is left (unless `clients` is None), or there was no job for `idle_timeout`
    seconds. Returns why.
    """
    busy = time.monotonic()
    while alive():
        began = time.monotonic()
        try:
            engine.step()
            if clients is not None and clients.gone():
                return "no client is left"
        except (OSError, StoreError) as error:  # a store that cannot be reached for a moment
            log.warning("the store does not answer: %s", error)
        if not engine.idle:
            busy = time.monotonic()
        elif time.monotonic() - busy > idle_timeout:
            return f"nothing to do for {idle_timeout:g} seconds"
        time.sleep(max(0.0, poll - (time.monotonic() - began)))
    return "told to stop, or the lease or the workers were lost"


def tidy(store: Store, stop: threading.Event, every: float = TIDY_EVERY) -> None:
    """Remove what nobody reads any more (`Store.gc`), now and every so many seconds until `stop`.

    Nobody waits for it, so whatever goes wrong is logged and tried again the next time. A read-only store is left as
    it is.
    """
    while not store.read_only:
        try:
            removed = store.gc()
            log.info("removed %d files that nobody reads any more", len(removed))
        except Exception:  # a file system may raise anything; the engine goes on
            log.warning("the store could not be tidied", exc_info=True)
        if stop.wait(every):
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine of a store; the command `python -m tier engine`. Returns at once when another serves it."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        store = _store(options.store, options.below)
        lease = store.lease(LEASE, ENGINE_LEASE)
        if lease is None:
            log.info("another engine serves %s", store.url)
            return 0
        with lease:
            _run_engine(store, lease, options)
    except scheduler.SettingsError as error:
        log.error("%s", error)
        return WRONG_SETTINGS
    except (scheduler.UnreachableError, StoreError) as error:
        log.error("%s", error)
        return 1
    log.info("stopped")
    return 0


def _run_engine(store: Store, lease: Lease, options: argparse.Namespace) -> None:
    """Serve until there is nothing to do or no client left, or until told to stop."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    pool = DaskPool(options.threads, options.workers, options.runner)
    try:
        about = {"pid": os.getpid(), "started": time.time(), "workers": pool.slots(), "threads": pool.threads}
        store.put_json("engine.json", about | {"scheduler": pool.scheduler, "environment": environment.snapshot()})
        log.info("serving %s with %d workers", store.url, pool.slots())
        threading.Thread(target=tidy, args=(store, stop), name="tidy", daemon=True).start()
        clients = None if options.stay else _Clients(store, options.clients)
        idle = float("inf") if options.stay else options.idle
        engine = Engine(store, pool, options.runner)
        why = serve(engine, lambda: _ours(lease, stop, pool), clients, idle, 0.25 if store.local else 1.0)
        log.info("stopping: %s", why)
    finally:
        stop.set()
        pool.close()


def _ours(lease: Lease, stop: threading.Event, pool: DaskPool) -> bool:
    """Whether to go on serving."""
    if stop.is_set() or not pool.healthy():
        return False
    try:
        # late after the machine was asleep, and then still ours if nobody has taken it
        return lease.held or lease.renew()
    except (OSError, StoreError) as error:  # where nobody can write, nobody can take it
        log.warning("the store does not answer: %s", error)
        return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tier engine", description="Compute what is asked for in a store.")
    parser.add_argument("--store", required=True, help="the store's path or URL")
    parser.add_argument("--below", help="a read-only store that is looked up first")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per job (1)")
    parser.add_argument("--workers", type=int, help="jobs at a time (cores / threads)")
    parser.add_argument("--stay", action="store_true", help="do not exit when idle or without clients")
    parser.add_argument("--idle", type=float, default=IDLE_TIMEOUT, help="exit after so many seconds without a job")
    parser.add_argument(
        "--clients", type=float, default=CLIENT_TIMEOUT, help="exit so many seconds after the last client"
    )
    parser.add_argument("--runner", default=RUNNER, help="module that defines the stages")
    return parser


def _store(url: str, below: str | None, patience: float = 0.0) -> Store:
    lower = None if below is None else Store(below, read_only=True, patience=patience)
    return Store(url, below=lower, patience=patience)


def _request_path(key: str, requester: str) -> str:
    """The path of a request; requesters may have any name."""
    return f"requests/{key}/{hashlib.sha256(requester.encode()).hexdigest()[:16]}.json"


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def _read_request(store: Store, path: str, remove: bool = False) -> _Request | None:
    """A request, or None when it is gone or cannot be understood; with `remove`, it is then gone for good."""
    raw = store.get_bytes(path)
    if raw is None:
        return None
    try:
        _, key, _ = path.split("/")
        request = _Request.model_validate_json(raw)
        check(request.stage, key)
        Experiment.model_validate(request.experiment)
    except ValueError as error:
        _complain(store, path, error, remove)
        return None
    return request


def _read_job(store: Store, path: str, remove: bool = False) -> Job | None:
    """A job from its file; None and `remove` as for a request. Fields of another version are ignored."""
    raw = store.get_bytes(path)
    if raw is None:
        return None
    try:
        job = _JOB.validate_json(raw)
        check(job.stage, job.key)
        if job.key != _stem(path):
            raise ValueError(f"it is the job {job.key}")
    except ValueError as error:
        _complain(store, path, error, remove)
        return None
    return job


def _read_progress(store: Store, key: str) -> _Progress | None:
    """What a worker has told, or None: nothing, or nothing that can be understood, which it will write over."""
    raw = store.get_bytes(f"progress/{key}.json")
    try:
        return None if raw is None else _Progress.model_validate_json(raw)
    except ValueError as error:
        _complain(store, f"progress/{key}.json", error, remove=False)
        return None


def _complain(store: Store, path: str, error: ValueError, remove: bool) -> None:
    log.warning("%s cannot be understood%s: %s", path, " and is removed" if remove else "", error)
    if remove:
        store.delete(path)


def _job_order(job: Job) -> tuple[int, float]:
    if job.over:
        return 2, -(job.ended or 0.0)
    if job.status == "running":
        return 0, job.started or 0.0
    return 1, job.position if job.position is not None else job.submitted


if __name__ == "__main__":
    # Functions must belong to the module that workers import, not to __main__.
    from tier.engine import main as _main

    sys.exit(_main())
