"""A Dask cluster on this machine as one would be set up elsewhere: a scheduler with TLS, and workers that are started
again when they end, each in a folder of its own. The certificates are made by the commands of docs/cluster.md.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.tier.s3 import free_port, python_path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
DASK = (sys.executable, "-m", "dask")
FOREVER = 'while true; do "$@"; sleep 0.5; done'


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a member's certificate as the guide says; returns what to set."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    block = re.search(r"```sh\n(umask 077\n.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    folder.mkdir(parents=True)
    subprocess.run(["sh", "-ec", block[1]], cwd=folder, check=True, capture_output=True)
    names = {"TIER_TLS_CA": "ca.pem", "TIER_TLS_CERT": "cert.pem", "TIER_TLS_KEY": "key.pem"}
    return {variable: str(folder / name) for variable, name in names.items()}


class Cluster:
    """A scheduler and its workers; `environ` is what their clients need to set."""

    def __init__(self, folder: Path, environ: dict[str, str], worker_options: tuple[str, ...] = ()) -> None:
        tls = certificates(folder / "tls")
        self.address = f"tls://127.0.0.1:{free_port()}"
        self.environ = {"TIER_SCHEDULER": self.address, **tls}
        self._folder = folder
        self._environ = os.environ | environ | python_path()
        self._tls = ("--tls-ca-file", tls["TIER_TLS_CA"], "--tls-cert", tls["TIER_TLS_CERT"],
                     "--tls-key", tls["TIER_TLS_KEY"])  # fmt: skip
        self._options = worker_options
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_scheduler(self) -> None:
        place = ("--host", "127.0.0.1", "--port", self.address.rpartition(":")[2], "--protocol", "tls")
        command = [*DASK, "scheduler", *place, "--no-dashboard", *self._tls]
        self._scheduler = self._start(command, self._folder / "scheduler")

    def kill_scheduler(self) -> None:
        assert self._scheduler is not None
        _end(self._scheduler)

    def start_worker(self) -> None:
        command = [
            *DASK,
            "worker",
            self.address,
            "--nthreads",
            "1",
            "--no-dashboard",
            "--local-directory",
            ".",
            *self._tls,
            *self._options,
        ]
        folder = self._folder / f"worker-{len(self._workers)}"
        self._workers.append(self._start(["bash", "-c", FOREVER, "bash", *command], folder))

    def close(self) -> None:
        for process in (*self._workers, *filter(None, [self._scheduler])):
            _end(process)

    def _start(self, command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=folder, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )


@contextmanager
def cluster(folder: Path, environ: dict[str, str], workers: int = 2) -> Iterator[Cluster]:
    """A running cluster; its workers may still be on their way."""
    made = Cluster(folder, environ)
    try:
        made.start_scheduler()
        for _ in range(workers):
            made.start_worker()
        yield made
    finally:
        made.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """kill -9 a process and all that it has started, which may have sessions of their own."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # it is not to start others meanwhile
    found = psutil.Process(process.pid).children(recursive=True)
    for each in [psutil.Process(process.pid), *found]:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    end = time.monotonic() + 20
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in found):
        assert time.monotonic() < end
        time.sleep(0.05)
