"""Generators depend on their arguments only, settings come back, progress reports stop when asked."""

import itertools
import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from tier.context import Cancelled, Context
from tier.runtime import as_pixels, autocast, generator, seeded, session


def _draw(*arguments: object) -> list[float]:
    return torch.rand(4, generator=generator(*arguments)).tolist()  # type: ignore[arg-type]


def test_a_generator_depends_on_its_arguments_only() -> None:
    first = _draw("augmentation", 3, 5)
    torch.manual_seed(123)
    torch.rand(7)
    assert _draw("augmentation", 3, 5) == first


def test_every_stream_seed_and_counter_draws_its_own_numbers() -> None:
    arguments = list(
        itertools.product(("model", "order", "augmentation", "explain"), (0, 1, 2, 99), (0, 1, 2), (0, 1, 2))
    )
    draws = {tuple(_draw(*one)) for one in arguments}
    assert len(draws) == len(arguments)


def test_a_generator_leaves_the_global_ones_alone() -> None:
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    _draw("model", 0)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # type: ignore[index]  # noqa: NPY002


def test_an_unknown_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        generator("colour", 0)


def test_seeded_decides_what_dropout_draws_and_gives_the_former_state_back() -> None:
    before, draws = torch.get_rng_state(), []
    for arguments in [("dropout", 0, 1), ("dropout", 0, 1), ("dropout", 0, 2), ("dropout", 1, 1)]:
        with seeded(*arguments, on=torch.device("cpu")):  # type: ignore[arg-type]
            draws.append(torch.dropout(torch.ones(64), 0.5, True).tolist())
    assert torch.equal(torch.get_rng_state(), before)
    assert draws[0] == draws[1]
    assert draws[0] != draws[2] != draws[3] != draws[0]
    with pytest.raises(RuntimeError, match="inside"), seeded("dropout", 0, on=torch.device("cpu")):
        raise RuntimeError("inside")
    assert torch.equal(torch.get_rng_state(), before)


def test_pixels_are_255ths_channels_last() -> None:
    raw = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    made = as_pixels(raw)
    assert torch.equal(made, raw.float() / 255)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(as_pixels(made), made)


def _denormals() -> tuple[bool, bool]:
    """Whether PyTorch and NumPy keep denormals in this thread."""
    return bool((torch.full((8,), 1e-39) * 0.5).any()), bool((np.full(8, 1e-39, np.float32) * np.float32(0.5)).any())


def test_a_session_sets_threads_and_flushes_denormals_and_puts_both_back() -> None:
    before = torch.get_num_threads()
    assert _denormals() == (True, True)
    with session(before + 1):
        assert torch.get_num_threads() == before + 1
        assert _denormals() == (False, False)
    assert torch.get_num_threads() == before
    assert _denormals() == (True, True)
    with pytest.raises(RuntimeError, match="inside"), session(before + 1):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
    assert _denormals() == (True, True)


def test_denormals_come_back_with_the_outermost_session_only() -> None:
    with session(1):
        with session(1):
            assert _denormals() == (False, False)
        assert _denormals() == (False, False)
    assert _denormals() == (True, True)
    try:  # whoever flushed before goes on flushing
        torch.set_flush_denormal(True)
        with session(1):
            pass
        assert _denormals() == (False, False)
    finally:
        torch.set_flush_denormal(False)


def test_a_session_of_one_thread_leaves_the_denormals_of_another_alone() -> None:
    seen: list[tuple[bool, bool]] = []
    other = threading.Thread(target=lambda: seen.append(_denormals()))
    other.start()
    other.join()
    ready, over = threading.Event(), threading.Event()

    def flush() -> None:
        with session(1):
            ready.set()
            over.wait(30)

    worker = threading.Thread(target=flush)
    worker.start()
    assert ready.wait(30)
    seen.append(_denormals())
    over.set()
    worker.join()
    assert seen == [(True, True)] * 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_in_a_session_what_a_batch_frees_is_kept_for_the_next() -> None:
    script = """
import resource, torch
from tier.runtime import session
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(1_000_000) for _ in range(8)]  # 32 MB, that is about 8,000 pages
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
outside = faults()
with session(1):
    faults()
    print(outside, faults())
"""
    fixed = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}  # glibc's own, not adapting itself
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ | fixed
    )
    outside, inside = map(int, done.stdout.split())
    assert inside < 1_000 < outside  # nothing is given back between batches, or much of it each time


def test_autocast_is_bf16_or_nothing() -> None:
    a = torch.rand(3, 3)
    with autocast("bf16", torch.device("cpu")):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", torch.device("cpu")):
        assert (a @ a).dtype == torch.float32


def test_a_step_reports_its_fraction_and_raises_when_asked_to_stop() -> None:
    events: list[dict[str, object]] = []
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 2

    report = Context(events.append, cancelled).step("measuring")
    report(0.25)
    report(0.5)
    with pytest.raises(Cancelled, match="measuring"):
        report(0.75)
    assert events == [{"step": "measuring", "fraction": 0.25}, {"step": "measuring", "fraction": 0.5}]
