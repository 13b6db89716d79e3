"""Where and how tensors are computed: device, threads, precision, and generators that do not depend on history."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

_STREAMS = ("model", "order", "augmentation", "explain", "dropout", "imputation", "guard", "privacy", "queries")
_KEPT_FREE = 256 << 20  # bytes
_LARGEST_KEPT = 32 << 20  # bytes; the most that glibc takes


def device() -> torch.device:
    """The accelerator when there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def generator(stream: str, seed: int, *counters: int, on: torch.device | None = None) -> torch.Generator:
    """A generator that depends only on its arguments, e.g. `generator("augmentation", seed, epoch, batch)`.

    So a resumed run draws what an unbroken one does. Raises ValueError for an unknown stream.
    """
    words = np.random.SeedSequence([_STREAMS.index(stream), seed, *counters]).generate_state(2, np.uint32)
    value = (int(words[0]) << 31) ^ int(words[1])
    return torch.Generator(device=on or "cpu").manual_seed(value)


@contextmanager
def seeded(stream: str, seed: int, *counters: int, on: torch.device) -> Iterator[None]:
    """PyTorch's own generators, from which dropout draws, seeded as `generator` is; their former state comes back."""
    with torch.random.fork_rng(devices=[on] if on.type == "cuda" else []):
        torch.manual_seed(generator(stream, seed, *counters).initial_seed())
        yield


@contextmanager
def session(threads: int) -> Iterator[None]:
    """Fixed CPU threads and flushed denormals (1.4x when overfitted); both are as before when it ends.

    Denormals are a switch of the processor that each thread has for itself and that acts on all that the thread
    computes: left on, it would take NumPy's denormals too, in whatever comes later. Sessions may lie in one another.
    """
    _keep_freed_memory()
    before, flushing = torch.get_num_threads(), _flushing()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushing)


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Have the C library keep what a batch frees for the next one: up to 256 MB, and for as long as the process lives.

    By default glibc gives the memory back after each batch of a small net, and every page of it costs a fault in the
    next: up to 40 % of the time of a forward pass.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(-1, _KEPT_FREE)  # M_TRIM_THRESHOLD
        library.mallopt(-3, _LARGEST_KEPT)  # M_MMAP_THRESHOLD


def _flushing() -> bool:
    """Whether this thread's denormals become zero; PyTorch does not tell, but Python's own floats obey the switch."""
    return sys.float_info.min / 2 == 0.0


def autocast(precision: Literal["fp32", "bf16"], where: torch.device) -> torch.autocast:
    """Mixed precision for `bf16`, nothing for `fp32`."""
    return torch.autocast(where.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def as_pixels(x: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1]; floats pass through; channels last, which CPU and GPU convolve faster."""
    return (x.float() / 255 if x.dtype == torch.uint8 else x).contiguous(memory_format=torch.channels_last)
