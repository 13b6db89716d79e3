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

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

from tier.imputation import blurred, linear
from tier.perturbation import ranks, removed
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


def direct(image: NDArray[np.float64], gone: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The peer of `linear`: one image's `(C, H, W)` removed pixels by a sparse direct solve of its own."""
    height, width = gone.shape
    unknown = np.flatnonzero(gone)
    place = np.full(gone.size, -1)
    place[unknown] = np.arange(len(unknown))
    flat, row, column = image.reshape(len(image), -1), unknown // width, unknown % width
    total, right = np.zeros(len(unknown)), np.zeros((len(unknown), len(image)))
    entries = []
    for down, across in ((d, a) for d in (-1, 0, 1) for a in (-1, 0, 1) if (d, a) != (0, 0)):
        weight = 1 / 12 if down and across else 1 / 6
        inside = (row + down >= 0) & (row + down < height) & (column + across >= 0) & (column + across < width)
        equations, there = np.flatnonzero(inside), (unknown + down * width + across)[inside]
        total[equations] += weight
        removed_too = place[there] >= 0
        right[equations[~removed_too]] += weight * flat[:, there[~removed_too]].T
        entries.append((equations[removed_too], place[there[removed_too]], np.full(removed_too.sum(), -weight)))
    entries.append((np.arange(len(unknown)), np.arange(len(unknown)), total))
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    matrix = csc_matrix((values, (rows, columns)), shape=(len(unknown), len(unknown)))
    made = flat.copy()
    made[:, unknown] = spsolve(matrix, right).reshape(len(unknown), -1).T
    return made.reshape(image.shape)


def road_imputation(rounds: int) -> list[Result]:
    """ROAD without noise: 64 images of 32x32 at 10..90 % along paths of smooth maps, against a solve per image."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(64, 3, 32, 32, generator=draw)
    places = ranks(blurred(torch.rand(64, 32, 32, generator=draw), 2.0)).view(64, 32, 32)
    masks = [places < removed(level / 10, 1024) for level in range(1, 10)]
    pixels = x.double().numpy()

    def ours() -> list[Tensor]:
        return [linear(x, gone) for gone in masks]

    def peers() -> list[NDArray[np.float64]]:
        return [np.stack([direct(*pair) for pair in zip(pixels, gone.numpy(), strict=True)]) for gone in masks]

    error = max(float(np.abs(a.numpy() - b).max()) for a, b in zip(ours(), peers(), strict=True))
    if error > 1e-4:
        raise AssertionError(f"imputed pixels differ from the direct solve's by {error:.1e}")
    seconds = median_seconds({"ours": ours, "peers": peers}, rounds)
    return [("road", seconds["peers"] / seconds["ours"], ">=3")]


BENCHMARKS: dict[str, Benchmark] = {"road": road_imputation}


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
