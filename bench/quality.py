"""Metrics of faithfulness: time over the forward passes they need and against Quantus, and how far they are from it.

    python bench/quality.py [NAME ...] [--threads 1] [--rounds 5]

Prints `NAME ratio R target T` for each part. Where a limit is an upper one (`<=1.3`) R is the time of ours over that of
the bare forward passes through the same model in the same arithmetic, `folded` being that of stored results; where it
is a lower one (`>=3`) R is the time of Quantus on the plain model over that of ours in the arithmetic that is the
fastest here, beside which that in `folded` stands without a bar of its own (`>=1`). Sides take turns in one process,
and the ratio is that of the medians. `difference_to_quantus` is the largest of any score, in fp32 on shared draws;
`KIND_difference_to_fp32` the largest of any score between ours in two arithmetics. A line whose target is missed ends
in `MISSED`, and the exit status is 1. Needs Quantus 0.6.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.attack import Benchmark, Result, measure, median_seconds, net, pictures
from tier import quality
from tier.config import InferenceKind, Quality
from tier.explainers.base import ROWS
from tier.inference import Forward, fast, images_per_second
from tier.runtime import as_pixels

FEATURES = 3 * 32 * 32
SETTINGS = Quality()


def subjects(count: int) -> tuple[nn.Module, Tensor, Tensor, NDArray[np.float32]]:
    """The small net of the signs, images, labels, and maps without ties."""
    x, y = pictures(count)
    return net(), x, y, np.random.default_rng(0).normal(size=(count, 32, 32)).astype(np.float32)


def as_quantus_takes_it(x: Tensor, y: Tensor, maps: NDArray[np.float32]) -> dict[str, Any]:
    """The arguments of its metrics."""
    pixels = as_pixels(x).contiguous().cpu().numpy()
    data = {"x_batch": pixels, "y_batch": y.cpu().numpy(), "a_batch": maps[:, None], "channel_first": True}
    return data | {"device": str(x.device), "batch_size": len(x)}


def passing(forward: Forward, rows: Tensor, passes: int) -> None:
    """A forward pass alone, `passes` times."""
    with torch.inference_mode():
        for _ in range(passes):
            forward(rows)


def against(
    name: str, passes: int, ours: Callable[..., object], theirs: Callable[..., object], rounds: int
) -> list[Result]:
    """What `ours(model, x, y, maps, forward)` takes for ROWS images against the bare passes and against Quantus."""
    model, x, y, maps = subjects(ROWS)
    data, rows = as_quantus_takes_it(x, y, maps), as_pixels(x).contiguous(memory_format=torch.channels_last)
    speed = images_per_second(model, rows)
    quick = max(speed, key=lambda each: speed[each])
    kinds: list[InferenceKind] = list(dict.fromkeys(("fp32", SETTINGS.inference, quick)))
    sides: dict[str, Callable[[], object]] = {"quantus": lambda: theirs(model=model, **data)}
    for kind in kinds:
        sides[f"ours {kind}"] = partial(ours, model, x, y, maps, quality.in_parts(model, kind))
        sides[f"bare {kind}"] = partial(passing, fast(model, kind), rows, passes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = median_seconds(sides, rounds, time.process_time)
    return [
        *(
            (f"{name}_{kind}_over_forward_passes", seconds[f"ours {kind}"] / seconds[f"bare {kind}"], "<=1.3")
            for kind in ("fp32", SETTINGS.inference)
        ),
        (f"{name}_{quick}_against_quantus", seconds["quantus"] / seconds[f"ours {quick}"], ">=3"),
        *(
            (f"{name}_{kind}_against_quantus", seconds["quantus"] / seconds[f"ours {kind}"], ">=1")
            for kind in (SETTINGS.inference,)
            if kind != quick
        ),
    ]


ESTIMATE_PASSES = -(-FEATURES // SETTINGS.features_in_step)


def correlation(rounds: int) -> list[Result]:
    """Faithfulness Correlation of one map per image, its draws included."""

    def ours(model: nn.Module, x: Tensor, y: Tensor, maps: NDArray[np.float32], forward: quality.Parts) -> object:
        sets = quality.subsets(range(len(x)), FEATURES, SETTINGS)
        return quality.correlation(maps, sets, quality.drops(model, x, y, sets, SETTINGS.baseline, forward))

    theirs = quality.quantus_metrics(SETTINGS)["faithfulness_correlation"]
    return against("faithfulness_correlation", SETTINGS.runs + 1, ours, theirs, rounds)


def estimate(rounds: int) -> list[Result]:
    """Faithfulness Estimate of one map per image, its sorting included."""

    def ours(model: nn.Module, x: Tensor, y: Tensor, maps: NDArray[np.float32], forward: quality.Parts) -> object:
        return quality.estimate(model, x, y, maps, SETTINGS, forward)

    theirs = quality.quantus_metrics(SETTINGS)["faithfulness_estimate"]
    return against("faithfulness_estimate", ESTIMATE_PASSES + 1, ours, theirs, rounds)


def judged(rounds: int) -> list[Result]:
    """All three metrics of a map and of both controls, as they are stored: random sets are asked about once for all."""

    def ours(model: nn.Module, x: Tensor, y: Tensor, maps: NDArray[np.float32], forward: quality.Parts) -> object:
        with torch.inference_mode():
            predicted = model(as_pixels(x)).argmax(1).cpu().numpy()
        sets = quality.subsets(range(len(x)), FEATURES, SETTINGS)
        fallen = quality.drops(model, x, y, sets, SETTINGS.baseline, forward)
        return [
            (
                quality.correlation(stack, sets, fallen),
                quality.estimate(model, x, y, stack, SETTINGS, forward),
                quality.sufficiency(stack, predicted, SETTINGS.threshold, SETTINGS.distance),
            )
            for stack in (maps, quality.noise_maps(range(len(x)), 32, 32, 0), quality.edge_maps(x))
        ]

    def theirs(**data: Any) -> object:
        return [of(**data) for of in quality.quantus_metrics(SETTINGS).values() for _ in range(3)]

    return against("map_and_controls", SETTINGS.runs + 1 + 3 * (ESTIMATE_PASSES + 1), ours, theirs, rounds)


@contextmanager
def same_draws(sets: NDArray[np.integer[Any]]) -> Iterator[None]:
    """Has NumPy's global `choice`, from which Quantus draws, give our subsets: run by run, image by image."""
    with mock.patch.object(np.random, "choice", side_effect=sets.transpose(1, 0, 2).reshape(-1, sets.shape[2])):
        yield


def difference(rounds: int) -> list[Result]:
    """The largest difference of any score of 64 images to Quantus, in fp32 on the same subsets."""
    model, x, y, maps = subjects(64)
    sets = quality.subsets(range(len(x)), FEATURES, SETTINGS)
    data = as_quantus_takes_it(x, y, maps)
    with same_draws(sets), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {name: np.array(of(model=model, **data)) for name, of in quality.quantus_metrics(SETTINGS).items()}
    with torch.inference_mode():
        predicted = model(as_pixels(x)).argmax(1).cpu().numpy()
    ours = {
        "faithfulness_correlation": quality.correlation(maps, sets, quality.drops(model, x, y, sets)),
        "faithfulness_estimate": quality.estimate(model, x, y, maps, SETTINGS),
        "sufficiency_quantus": quality.sufficiency(
            maps, predicted, SETTINGS.threshold, SETTINGS.distance
        ).quantus,
    }  # fmt: skip
    largest = [(f"{name}_difference_to_quantus", np.abs(ours[name] - theirs[name]).max()) for name in ours]
    return [(name, float(value), "<=1e-5") for name, value in largest]


def arithmetic(rounds: int) -> list[Result]:
    """The largest difference of any score of 64 images in `folded` and in `bf16` to fp32, on the same subsets."""
    model, x, y, maps = subjects(64)
    sets = quality.subsets(range(len(x)), FEATURES, SETTINGS)

    def scores(kind: InferenceKind) -> dict[str, NDArray[np.float64]]:
        forward = quality.in_parts(model, kind)
        return {
            "faithfulness_correlation": quality.correlation(
                maps, sets, quality.drops(model, x, y, sets, SETTINGS.baseline, forward)
            ),
            "faithfulness_estimate": quality.estimate(model, x, y, maps, SETTINGS, forward),
        }

    exact, kinds = scores("fp32"), {"folded": "<=1e-3", "bf16": "<=1"}
    found = {kind: scores(kind) for kind in get_args(InferenceKind) if kind in kinds}
    return [
        (f"{name}_{kind}_difference_to_fp32", float(np.abs(values - exact[name]).max()), kinds[kind])
        for kind, of in found.items()
        for name, values in of.items()
    ]


BENCHMARKS: dict[str, Benchmark] = {
    "correlation": correlation,
    "estimate": estimate,
    "judged": judged,
    "difference": difference,
    "arithmetic": arithmetic,
}


if __name__ == "__main__":
    sys.exit(measure(BENCHMARKS, __doc__))
