"""What the attack's parts cost beside a peer or a limit, each a ratio measured in one run on the same inputs.

Prints a line per ratio: `NAME ratio R target T`, where T is `<=1.3` (what the part costs over what it needs) or `>=3`
(how much faster it is than its peer). The two sides take turns, and the ratio is that of the medians.
`python bench/attack.py NAME ...` measures only those; a line whose target is missed ends in `MISSED`, and the exit
status is 1.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from tier.runtime import session

Result = tuple[str, float, str]
"""Name, ratio, target."""
Benchmark = Callable[[int], Sequence[Result]]
"""`rounds -> results`."""


def median_seconds(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each side over `rounds` turns, taken in turn after one turn that does not count."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, work in sides.items():
            began = time.perf_counter()
            work()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                times[side].append(time.perf_counter() - began)
    return {side: statistics.median(values) for side, values in times.items()}


def met(ratio: float, target: str) -> bool:
    """Whether a ratio meets its target, `<=1.3` or `>=3`."""
    limit = float(target[2:])
    return ratio <= limit if target.startswith("<=") else ratio >= limit


# ---- the benchmarks


BENCHMARKS: dict[str, Benchmark] = {}


def main() -> int:
    """Measure every part, or those named; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    missed = False
    with session(options.threads):
        for name in options.names or BENCHMARKS:
            for part, ratio, target in BENCHMARKS[name](options.rounds):
                fails = not met(ratio, target)
                missed = missed or fails
                print(f"{part} ratio {ratio:.2f} target {target}{' MISSED' if fails else ''}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
