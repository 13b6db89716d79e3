"""What a result was computed with (machine, packages, code version), and who a process is. Never imports torch."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

DATA_ROOT = "TIER_DATA"  # the environment variable that names the folder of data sets

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "scikit-image",
    "captum",
    "pandas",
    "pyarrow",
    "pillow",
    "safetensors",
    "pydantic",
    "dask",
    "distributed",
)
# the families of CPU instructions that numpy and torch choose their kernels by
_KERNEL_FLAGS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "neon", "sve", "bf16", "i8mm")


def data_root() -> str | None:
    """The folder of data sets that TIER_DATA names, absolute; None when it is not set."""
    root = os.environ.get(DATA_ROOT)
    return str(Path(root).expanduser().absolute()) if root else None


def snapshot() -> dict[str, Any]:
    """Machine, packages and code version, JSON-ready. Holds no host name, user name or path.

    `commit` is None outside a git checkout; `code_changed` says whether tracked files differ from it. Two runs are
    expected to agree bit for bit only where `cpu_flags`, the package versions and the thread count agree.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_flags": list(cpu_flags()),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": dict(package_versions()),
        **_code(),
    }


@functools.cache
def package_versions() -> Mapping[str, str]:
    """Installed version of every package in PACKAGES that is installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cores() -> int:
    """Number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def cpu_model() -> str:
    """The CPU's model name as the system gives it, e.g. `AMD EPYC 7B13`."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


@functools.cache
def cpu_flags() -> tuple[str, ...]:
    """The CPU's vector instruction flags, sorted; empty where the system does not list them."""
    words = (_cpu_info("flags") or _cpu_info("Features") or "").split()  # x86 or ARM
    return tuple(sorted({word for word in words if word.startswith(_KERNEL_FLAGS) or "bf16" in word}))


def _cpu_info(field: str) -> str | None:
    """One field of the first CPU in /proc/cpuinfo; None where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return None


@functools.cache
def _code() -> dict[str, Any]:
    """The checkout's commit and whether tracked files differ from it."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return {"commit": None, "code_changed": None}
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "code_changed": None if changes is None else bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    """The output of a git command in `root`; None when git is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def this_process() -> dict[str, Any]:
    """Who this process is: `host` (an opaque mark of machine, boot and pid namespace), `pid`, `born` (start time)."""
    return {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_gone(process: Mapping[str, Any]) -> bool:
    """Whether a process as `this_process` described it has certainly ended.

    False for a process of another machine or container, of which nothing can be said from here.
    """
    pid = process.get("pid")
    if process.get("host") != _host() or not isinstance(pid, int):
        return False
    return _born(pid) != process.get("born")  # another start time: the pid was given to a new process


@functools.cache
def _host() -> str:
    """A mark that two processes share only if they see each other's pids."""
    parts = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if path.endswith("pid") else Path(path).read_text(encoding="ascii").strip())
        except OSError:
            continue  # not Linux: the host's name has to do
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _born(pid: int) -> float | None:
    """A running process's start time in the system's own unit; None when there is no such process or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _born_elsewhere(pid)
    except OSError:
        return _born_elsewhere(pid)
    fields = text.rpartition(")")[2].split()  # the command's name, in brackets, may hold spaces
    return None if fields[0] in "ZX" else float(fields[19])


def _born_elsewhere(pid: int) -> float | None:
    """`_born` without /proc."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time())
    except psutil.Error:
        return None
