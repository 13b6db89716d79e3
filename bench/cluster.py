"""What a second outside worker is worth: a sweep of 8 points on one Dask worker and on two, each pinned to one core.

Prints `sweep ratio R target >=1.7`, R being the seconds with one worker over those with two, medians over rounds, which
take turns. Counted from the first request to the last result, with engine and workers at hand, as a long sweep finds
them. And `sweep_differing ratio N target <=0`: in how many of these sweeps the figures were not equal to the embedded
engine's, digit by digit. A line whose target is missed ends in `MISSED`, and the exit status is 1. It needs two cores
that nobody else uses.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.attack import Benchmark, Result, measure
from tier import engine, experiment, presets
from tier.config import Experiment
from tier.store import Store

ROOT = Path(__file__).resolve().parent.parent
TARGET = ">=1.7"
ROUNDS = 2  # sweeps per number of workers
EPOCHS = 12  # length of a point
LAMBDAS, SEEDS = (2.0, 4.0, 6.0, 8.0), (0, 1)
DASK = (sys.executable, "-m", "dask")
# Dask would interrupt training a hundred times a second to see what it does
ENVIRON = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT),
           "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false"}  # fmt: skip


def points(epochs: int, seeds: tuple[int, ...] = SEEDS, lambdas: tuple[float, ...] = LAMBDAS) -> list[Experiment]:
    """The runs of the sweep, in its order."""
    preset = presets.get("signs")
    small = {"train.epochs": epochs, "train.threads": 1, "defense.tier.warmup": 1}
    small |= {f"split.{role}_{part}": 250 for role in ("target", "shadow") for part in ("train", "test")}
    return [preset.point("tier_reg", value, 0.3, seed).set(small) for seed in seeds for value in lambdas]


@contextmanager
def outside(folder: Path, workers: int) -> Iterator[str]:
    """The address of a scheduler on this machine with so many workers, each on a core of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    cores = sorted(os.sched_getaffinity(0))
    place = ("--host", "127.0.0.1", "--port", address.rpartition(":")[2])
    started = [start(folder / "scheduler", *DASK, "scheduler", *place, "--no-dashboard")]
    for core in cores[:workers]:
        pinned = ("taskset", "-c", str(core), *DASK, "worker", address, "--nthreads", "1", "--memory-limit", "0")
        started.append(start(folder / f"worker{core}", *pinned, "--no-dashboard", "--local-directory", "."))
    try:
        yield address
    finally:
        for process in started[::-1]:
            process.terminate()
        for process in started:
            process.wait(30)


def start(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Start a command in a folder of its own, where it logs."""
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRON, stdout=log, stderr=log)


def sweep(client: engine.Client, runs: list[Experiment]) -> float:
    """Seconds until all runs are stored."""
    began = time.perf_counter()
    for key in [client.submit("report", e, priority="sweep") for e in runs]:
        job = client.wait(key, timeout=3600, poll=0.1)
        if job.status != "done":
            raise RuntimeError(f"{job.status}: {job.error}")
    return time.perf_counter() - began


def timed(workers: int | None, epochs: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds and figures of the sweep on so many outside workers, or, without, on the embedded engine."""
    with tempfile.TemporaryDirectory() as name:
        folder, runs = Path(name), points(epochs)
        store = Store(folder / "store")
        if workers is None:
            os.environ.pop("TIER_SCHEDULER", None)
            return swept(store, runs, len(os.sched_getaffinity(0)))
        with outside(folder, workers) as address:
            os.environ["TIER_SCHEDULER"] = address
            return swept(store, runs, workers)


def swept(store: Store, runs: list[Experiment], workers: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds and figures of the sweep once every worker has been at work and has everything imported."""
    with engine.Client(store) as client:
        # two short ones for each, so that a worker that comes late gets one too
        sweep(client, points(1, tuple(range(100, 100 + 2 * workers)), LAMBDAS[:1]))
        seconds = sweep(client, runs)
    found = [experiment.find(store, "report", e) for e in runs]
    figures = [{k: v for k, v in r.metrics.items() if "seconds" not in k} for r in found if r is not None]
    stop(store)
    return seconds, figures


def stop(store: Store) -> None:
    """Wait until the engine has noticed that its client has gone."""
    while store.holder(engine.LEASE) is not None:
        time.sleep(0.5)


def sweeps(rounds: int) -> list[Result]:
    """The speed-up, and how many sweeps gave other figures than the embedded engine."""
    if len(os.sched_getaffinity(0)) < 2:
        print("sweep skipped: two cores are needed", file=sys.stderr)
        return []
    seconds: dict[int, list[float]] = {1: [], 2: []}
    _, embedded = timed(None, EPOCHS)
    differing = 0
    for _ in range(rounds):
        for workers, known in seconds.items():
            took, figures = timed(workers, EPOCHS)
            known.append(took)
            differing += figures != embedded
    one, two = (statistics.median(seconds[workers]) for workers in (1, 2))
    print(f"sweep: {one:.1f} seconds with one worker, {two:.1f} with two", file=sys.stderr)
    return [("sweep", one / two, TARGET), ("sweep_differing", float(differing), "<=0")]


BENCHMARKS: dict[str, Benchmark] = {"sweep": sweeps}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that scheduler and workers end too
    sys.exit(measure(BENCHMARKS, __doc__, ROUNDS))
