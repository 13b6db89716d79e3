"""An S3 server on this machine's loopback: moto's, in a process of its own that can be stopped and started again.

What it holds lies in its memory: `pause` makes it unreachable for a while, `close` ends it and what it held.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import fsspec
import pytest

ACCESS = {"key": "test", "secret": "test"}
_numbers = itertools.count()


class Server:
    """A server process; a context manager."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Server":
        end = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < end, "the S3 server does not answer"
            time.sleep(0.1)
        fsspec.filesystem("s3", **self._settings()).mkdir("bucket")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Answer nothing until `go_on`; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def environ(self) -> dict[str, str]:
        """What a process's environment needs so that `s3://` means this server."""
        return {f"FSSPEC_S3_{name.upper()}": value for name, value in self._settings().items()}

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Let `s3://` mean this server, in this process and in those that it starts."""
        patch.setitem(fsspec.config.conf, "s3", self._settings())
        for name, value in self.environ.items():
            patch.setenv(name, value)

    def place(self) -> str:
        """The URL of a new store in the server's bucket."""
        return f"s3://bucket/store-{next(_numbers)}"

    def _settings(self) -> dict[str, str]:
        return {"endpoint_url": self.url, **ACCESS}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python_path() -> dict[str, str]:
    """The environment in which another process, in whatever folder, imports this code."""
    root = str(Path(__file__).resolve().parents[2])
    return {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
