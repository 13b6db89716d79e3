"""The benchmarks' own arithmetic and output; what they measure is not for a test on a busy machine."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """A script of bench/ as a module."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load("attack")


@pytest.mark.parametrize(
    ("two", "figures", "status", "said"),
    [
        (10.0, 7, 0, ["sweep ratio 2.00 target >=1.7", "sweep_differing ratio 0.0e+00 target <=0"]),
        (12.0, 7, 1, ["sweep ratio 1.67 target >=1.7 MISSED", "sweep_differing ratio 0.0e+00 target <=0"]),
        (10.0, 8, 1, ["sweep ratio 2.00 target >=1.7", "sweep_differing ratio 2.00 target <=0 MISSED"]),
    ],
)
def test_the_sweep_fails_when_it_is_slow_or_gives_other_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], two: float, figures: int, status: int,
    said: list[str],
) -> None:  # fmt: skip
    """`figures`: what two workers compute, where the embedded engine and one worker have 7."""
    cluster = load("cluster")
    found = {None: (30.0, 7), 1: (20.0, 7), 2: (two, figures)}
    monkeypatch.setattr(cluster, "timed", lambda workers, epochs: found[workers])
    monkeypatch.setattr(cluster.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(sys, "argv", ["cluster.py"])
    assert cluster.measure(cluster.BENCHMARKS, None, cluster.ROUNDS) == status
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize(
    ("ratio", "target", "expected"),
    [
        (1.3, "<=1.3", True), (1.31, "<=1.3", False), (0.1, "<=1.3", True), (3.0, ">=3", True), (2.99, ">=3", False),
        (9.0, ">=3", True), (float("nan"), "<=1.3", False), (float("nan"), ">=3", False),
    ],
)  # fmt: skip
def test_met(bench: ModuleType, ratio: float, target: str, expected: bool) -> None:
    assert bench.met(ratio, target) is expected


def test_a_line_per_ratio_and_the_status_of_the_run(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "good": lambda rounds: [("a", 3.456, ">=3"), ("b", 1.0, "<=1.1")],
        "bad": lambda rounds: [("c", 2, "<=1.3")],
    }
    monkeypatch.setattr(sys, "argv", ["attack.py", "good"])
    assert bench.measure(made, None) == 0
    assert capsys.readouterr().out.splitlines() == ["a ratio 3.46 target >=3", "b ratio 1.00 target <=1.1"]
    monkeypatch.setattr(sys, "argv", ["attack.py"])
    assert bench.measure(made, None) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "c ratio 2.00 target <=1.3 MISSED"
    assert all(re.fullmatch(r"\w+ ratio \d+\.\d\d target [<>]=[\d.]+( MISSED)?", text) for text in lines)
    monkeypatch.setattr(sys, "argv", ["attack.py", "ugly"])
    with pytest.raises(SystemExit):
        bench.measure(made, None)
    assert "unknown: ugly; there are good, bad" in capsys.readouterr().err


def test_memory_is_what_the_work_adds_and_its_peaks_are_told(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {1000: bench.Held(400.0, 525.0, 25.0), 4000: bench.Held(410.0, 640.0, 100.0)}

    class Here:
        """A pool whose processes are this one."""

        def __init__(self, *arguments: object, **options: object) -> None: ...

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *error: object) -> None: ...

        def submit(self, function: object, count: int) -> "Here":
            self.count = count
            return self

        def result(self) -> object:
            return held[self.count]

    monkeypatch.setattr(bench, "ProcessPoolExecutor", Here)
    assert bench.memory(1) == [("memory_added_4000_over_1000", pytest.approx(1.3), "<=1.3")]
    assert capsys.readouterr().err.splitlines() == [
        "memory of 1,000 images: peak 525 MB, 25 MB of it results, 100 MB added by the work besides",
        "memory of 4,000 images: peak 640 MB, 100 MB of it results, 130 MB added by the work besides",
    ]


def test_memory_of_a_process_is_read(bench: ModuleType) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    assert 10 < bench.resident("VmRSS") <= bench.resident("VmHWM") + 1
