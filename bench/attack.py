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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch.nn.functional as F
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import Lime
from captum.attr._core.lime import get_exp_kernel_similarity_function
from numpy.typing import NDArray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor, nn

from tier.config import Explain, Model, OperatorName, Trajectory
from tier.explainers import attributions, default_layer, explain_family
from tier.explainers.base import ROWS, passes, stacked_gradients
from tier.explainers.cam import layer_pass
from tier.explainers.lime import keep_draws, lime, superpixels
from tier.imputation import blurred, linear
from tier.models import build
from tier.perturbation import ranks, removal_importance, removed
from tier.runtime import as_pixels, device, generator, session
from tier.trajectories import trajectories

Result = tuple[str, float, str]
"""Name, ratio, target."""
Benchmark = Callable[[int], Sequence[Result]]
"""`rounds -> results`."""


def median_seconds(
    sides: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median time of each side over `rounds` turns, taken in turn after one turn that does not count.

    On a busy machine `time.process_time` is the better clock for work on one thread.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, work in sides.items():
            began = clock()
            work()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                times[side].append(clock() - began)
    return {side: statistics.median(values) for side, values in times.items()}


def met(ratio: float, target: str) -> bool:
    """Whether a ratio meets its target, `<=1.3` or `>=3`."""
    limit = float(target[2:])
    return ratio <= limit if target.startswith("<=") else ratio >= limit


def line(name: str, ratio: float, target: str) -> str:
    """`NAME ratio R target T`, with `MISSED` behind it where R misses T."""
    shown = f"{ratio:.2f}" if ratio >= 0.005 else f"{ratio:.1e}"  # differences are far below 1
    return f"{name} ratio {shown} target {target}{'' if met(ratio, target) else ' MISSED'}"


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


def net() -> nn.Module:
    """The small net of the signs, untrained: the cheapest forward pass, beside which anything else weighs most."""
    model = build(Model(width=16), 24, torch.full((3,), 0.5), torch.full((3,), 0.25)).to(device())
    return model.to(memory_format=torch.channels_last).eval()


def pictures(count: int) -> tuple[Tensor, Tensor]:
    """Smooth random images, uint8 `(count, 3, 32, 32)`, in which superpixels find regions, and labels `(count,)`."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=draw)
    x = F.interpolate(coarse, (32, 32), mode="bilinear").mul(255).to(torch.uint8)
    return x.to(device()), torch.randint(24, (count,), generator=draw).to(device())


def agree(what: str, ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Raise AssertionError unless the two differ by less than `tolerance` of the largest value."""
    error = float((ours - theirs).abs().max() / theirs.abs().max())
    if not error < tolerance:
        raise AssertionError(f"{what}: results differ by {error:.1e} of the largest, more than {tolerance:.0e}")


def forward_passes(model: nn.Module, x: Tensor, passes: int) -> None:
    """The model alone, `passes` times on `x`."""
    with torch.inference_mode():
        for _ in range(passes):
            model(x)


def captum_lime(model: nn.Module, x: Tensor, y: Tensor, segments: Tensor, config: Explain, together: int = 1) -> Tensor:
    """The peer of `lime`: `captum.attr.Lime` image by image, `together` altered images in a pass (1 is its default)."""
    near = get_exp_kernel_similarity_function("cosine", config.kernel_width)
    kept = keep_draws(config.perturbations, int(segments.max()) + 1, config.seed)

    def draws(original: Tensor, **settings: Any) -> Iterator[Tensor]:
        yield from kept[:, : settings["num_interp_features"]].long().split(1)

    def similar(original: Tensor, altered: Tensor, vector: Tensor, **settings: Any) -> float:
        return near(torch.ones_like(vector), vector, None)

    explainer = Lime(model, SkLearnRidge(alpha=config.ridge), similarity_func=similar, perturb_func=draws)
    maps = [
        explainer.attribute(
            x[b : b + 1], target=int(y[b]), feature_mask=segments[b].expand(1, 3, -1, -1),
            n_samples=config.perturbations, perturbations_per_eval=together,
        )[0, 0]
        for b in range(len(x))
    ]  # fmt: skip
    return torch.stack(maps)


def lime_maps(rounds: int) -> list[Result]:
    """LIME of 64 images with default settings, its superpixels included, against captum's and against bare passes.

    Captum is given the superpixels. It is measured as it comes, and with as many altered images in a pass as ours,
    where 3 cannot be reached: what is left of captum's time is then 2.5 to 3 times the bare passes.
    """
    config, model = Explain(name="lime"), net()
    pixels, y = pictures(64)
    x = as_pixels(pixels)
    segments = superpixels(x, config.segments, config.compactness).to(x.device)
    rows = x.repeat(ROWS // len(x), 1, 1, 1).contiguous(memory_format=torch.channels_last)
    agree("lime", lime(model, x, y, config), captum_lime(model, x, y, segments, config, ROWS), 1e-4)
    sides = {
        "ours": lambda: lime(model, x, y, config),
        "captum": lambda: captum_lime(model, x, y, segments, config),
        "captum in batches": lambda: captum_lime(model, x, y, segments, config, ROWS),
        "bare": lambda: forward_passes(model, rows, config.perturbations * len(x) // len(rows)),
    }
    seconds = median_seconds(sides, min(rounds, 3), time.process_time)
    return [
        ("lime_against_captum", seconds["captum"] / seconds["ours"], ">=3"),
        ("lime_against_captum_in_batches", seconds["captum in batches"] / seconds["ours"], ">=2"),
        ("lime_over_forward_passes", seconds["ours"] / seconds["bare"], "<=1.3"),
    ]


def noise_maps(rounds: int) -> list[Result]:
    """SmoothGrad and VarGrad of 64 images together, against the mean of the same gradients alone."""
    config, model = Explain(name="smoothgrad"), net()
    pixels, y = pictures(64)
    x = as_pixels(pixels)
    draws = config.noise * torch.randn(config.samples, *x.shape[1:], generator=generator("explain", config.seed))
    draws = draws.to(x).unsqueeze(1)

    def smoothgrad() -> Tensor:
        total = torch.zeros_like(x)
        for part in passes(config.samples, len(x)):
            total += stacked_gradients(model, x + draws[part], y).sum(0)
        return (total / config.samples).sum(1)

    agree("smoothgrad", explain_family(config, model, x, y)["smoothgrad"], smoothgrad(), 1e-4)
    sides = {"both": lambda: explain_family(config, model, x, y), "one": smoothgrad}
    seconds = median_seconds(sides, rounds, time.process_time)
    return [("smoothgrad_and_vargrad_over_one", seconds["both"] / seconds["one"], "<=1.1")]


def cam_maps(rounds: int) -> list[Result]:
    """Grad-CAM and Grad-CAM++ of 256 images together, against Grad-CAM alone."""
    config, model = Explain(name="gradcam"), net()
    pixels, y = pictures(256)
    x = as_pixels(pixels)

    def gradcam() -> Tensor:
        activations, gradients = layer_pass(model, x, y, default_layer(model, x))
        coarse = (gradients.mean((2, 3), keepdim=True) * activations).sum(1, keepdim=True).relu()
        return F.interpolate(coarse, (32, 32), mode="bilinear").squeeze(1)

    agree("gradcam", explain_family(config, model, x, y)["gradcam"], gradcam(), 1e-5)
    sides = {"both": lambda: explain_family(config, model, x, y), "one": gradcam}
    seconds = median_seconds(sides, 5 * rounds, time.process_time)
    return [("gradcam_and_gradcampp_over_one", seconds["both"] / seconds["one"], "<=1.1")]


def removal_paths(rounds: int) -> list[Result]:
    """MoRF and LeRF trajectories of 1,000 images with ready maps, against the 19 passes of each image alone."""
    settings, imputed, model, batch = Trajectory(), Trajectory(operator="road"), net(), 250
    x, y = pictures(1000)
    maps = torch.randn(1000, 32, 32, generator=torch.Generator().manual_seed(1)).numpy()
    needed = 2 * len(settings.levels) - 1  # both paths begin with the image as it is

    def by_the_book(order: str, operator: OperatorName, few: int) -> Tensor:
        images = as_pixels(x[:few])
        importance = removal_importance(torch.from_numpy(maps[:few]).to(x.device), images, settings.alpha, "signed")
        places = importance.flatten(1).sort(dim=1, descending=order == "morf", stable=True).indices.argsort(1)
        columns = []
        with torch.inference_mode():
            for level in settings.levels:
                gone = (places < removed(level, 1024)).view(few, 32, 32)
                altered = torch.where(gone.unsqueeze(1), images.mean((2, 3), keepdim=True), images)
                if operator == "road" and level:
                    solved = [
                        direct(*pair) for pair in zip(images.double().cpu().numpy(), gone.cpu().numpy(), strict=True)
                    ]
                    altered = torch.from_numpy(np.stack(solved)).to(images)
                columns.append(model(altered).double().log_softmax(1)[torch.arange(few), y[:few]])
        return torch.stack(columns, 1).cpu()

    for each, few, tolerance in ((settings, batch, 1e-5), (imputed, 8, 1e-4)):
        made = trajectories(model, x[:few], y[:few], maps[:few], each.model_copy(update={"noise": 0.0}))
        for order in ("morf", "lerf"):
            agree(order, torch.from_numpy(getattr(made, order)), by_the_book(order, each.operator, few), tolerance)

    def bare() -> None:
        for start in range(0, len(x), batch):
            forward_passes(model, as_pixels(x[start : start + batch]), needed)

    sides = {
        "ours": lambda: trajectories(model, x, y, maps, settings),
        "road": lambda: trajectories(model, x, y, maps, imputed),
        "bare": bare,
    }
    seconds = median_seconds(sides, rounds, time.process_time)
    return [
        ("trajectories_over_forward_passes", seconds["ours"] / seconds["bare"], "<=1.3"),
        ("trajectories_road_over_forward_passes", seconds["road"] / seconds["bare"], "<=1.3"),
    ]


@dataclass(frozen=True)
class Held:
    """Memory in MB that a process held before a piece of work, the most up to its end, and what the results take."""

    before: float
    peak: float
    results: float

    @property
    def added(self) -> float:
        """What the work added besides its results."""
        return self.peak - self.before - self.results


def peak_memory(count: int) -> Held:
    """What maps (LIME, too) and trajectories (ROAD, too) of `count` images take; for a process of its own."""
    model = net()
    x, y = pictures(count)
    with session(1):
        work(model, x[:2], y[:2])  # what does not depend on the number of images is there before: code, buffers
        before = resident("VmRSS")
        results = work(model, x, y)
    return Held(before, resident("VmHWM"), results)


def work(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Maps of four families and trajectories under mean and ROAD, all of them kept; their size in MB."""
    lime_of = Explain(name="lime", perturbations=20)  # few, for time; how many are held at once does not depend on it
    maps: dict[str, NDArray[Any]] = {}
    for config in (Explain(), Explain(name="gradcam"), Explain(name="smoothgrad", samples=3), lime_of):
        maps |= attributions(config, model, x, y).maps
    for operator in ("mean", "road"):
        settings = Trajectory().model_copy(update={"operator": operator, "levels": (0.0, 0.1, 0.5, 0.9)})
        made = trajectories(model, x, y, maps["smoothgrad"], settings)
        maps |= {f"{operator} morf": made.morf, f"{operator} lerf": made.lerf}
    return sum(values.nbytes for values in maps.values()) / 1e6


def resident(field: str) -> float:
    """Memory of this process in MB: VmRSS what it holds, VmHWM the most so far. Only where there is /proc."""
    # not getrusage, whose peak a new process inherits from the one that started it
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1000


def memory(rounds: int) -> list[Result]:
    """What work on 4,000 images adds to a process's memory, against 1,000 images in another; the peaks go to stderr.

    Maps and scores, the results, grow with the number of images; the rest is bounded by the batch budgets.
    """
    held: dict[int, Held] = {}
    for count in (1000, 4000):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            held[count] = pool.submit(peak_memory, count).result()
        sys.stderr.write(memory_line(count, held[count]) + "\n")
    return [("memory_added_4000_over_1000", held[4000].added / held[1000].added, "<=1.3")]


def memory_line(count: int, held: Held) -> str:
    """`memory of 1,000 images: peak 500 MB, 25 MB of it results, 95 MB added by the work besides`."""
    told = (
        f"peak {held.peak:.0f} MB, {held.results:.0f} MB of it results, {held.added:.0f} MB added by the work besides"
    )
    return f"memory of {count:,} images: {told}"


BENCHMARKS: dict[str, Benchmark] = {
    "road": road_imputation,
    "lime": lime_maps,
    "noise": noise_maps,
    "cam": cam_maps,
    "trajectories": removal_paths,
    "memory": memory,
}


def measure(benchmarks: Mapping[str, Benchmark], about: str | None, rounds: int = 5) -> int:
    """Measure every part, or those named on the command line; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(benchmarks)}; all without one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(benchmarks))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    missed = False
    with session(options.threads):
        for name in options.names or benchmarks:
            for part, ratio, target in benchmarks[name](options.rounds):
                fails = not met(ratio, target)
                missed = missed or fails
                print(line(part, ratio, target), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(measure(BENCHMARKS, __doc__))
