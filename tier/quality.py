"""Is a map faithful to its model, and does it point at the object (SPEC 7)? Each score beside two controls.

Faithfulness Correlation (Bhatt et al. 2020), Faithfulness Estimate (Alvarez-Melis and Jaakkola 2018) and Sufficiency
(Dasgupta et al. 2022) as Quantus 0.6 defines them, which is the reference and a choice (`Quality.engine`); here whole
batches go through `tier.inference.fast`. A feature is one channel of one pixel, as in Quantus: a map has one value for
all channels of a pixel. What replaces a feature is one value per image.

The controls are a map of independent noise and the edges of the image, which know nothing of the model. What does not
depend on a map is worked out once per model and serves all explainers: the answers to random removals and the controls.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import cdist
from skimage.filters import sobel
from torch import Tensor, nn

from tier.config import (
    LOCALISATION,
    QUALITY_CONTROLS,
    QUALITY_METRICS,
    VARIANT_OF,
    Baseline,
    Distance,
    InferenceKind,
    Quality,
)
from tier.explainers.base import ROWS, inspecting
from tier.gallery import degenerate
from tier.inference import Forward, fast, usable
from tier.models.blocks import Classifier
from tier.perturbation import ranks
from tier.runtime import as_pixels
from tier.stats import Array

LOCALISED = (*LOCALISATION, *(name for name, of in VARIANT_OF.items() if of in LOCALISATION))
TWICE = tuple(f"{name}_{control}" for name in LOCALISED if name in VARIANT_OF for control in QUALITY_CONTROLS)
"""Controls that equal those of their metric, as no control has a negative value."""
PSEUDO = "_pseudo"  # ending of the columns that hold `pseudo_values`
STEPS = 3  # fewest that Faithfulness Estimate is taken over: through two points any correlation is 1 or -1
PERMUTATIONS = 999
NO_MASKS = "the data set has no masks, so that where the object lies is not known; the drawn signs have them"

Maps = NDArray[np.floating[Any]]  # (N, H, W)
Progress = Callable[[float], None]
Frame = dict[str, Array]  # column name -> (N,)


def _silent(fraction: float) -> None:
    """Tell nobody."""


def refuse_few_steps(features: int, settings: Quality) -> None:
    """Raises ValueError where a step of Faithfulness Estimate is too large for images of so many features."""
    if (count := -(-features // settings.features_in_step)) < STEPS:
        raise ValueError(
            f"quality.features_in_step ({settings.features_in_step}) makes {count} step{'s' * (count > 1)} of the "
            f"{features} features of an image, and a correlation over fewer than {STEPS} says nothing: set it to "
            f"{(features - 1) // (STEPS - 1)} at most"
        )


# ---- what random removals do to the model, whatever the map


def subsets(rows: Sequence[int] | NDArray[np.integer[Any]], features: int, settings: Quality) -> NDArray[np.int32]:
    """The features that each run replaces in each image, `(N, runs, subset_size)`, without repeats.

    They depend on the seed and on the image's row in the data set only, so that all models are asked the same.
    Raises ValueError unless there are more features than `subset_size`.
    """
    size = settings.subset_size
    if size >= features:
        raise ValueError(f"quality.subset_size ({size}) has to be below the {features} features of an image")
    drawn = np.empty((len(rows), settings.runs, size), np.int32)
    for place, row in enumerate(rows):
        rng = np.random.default_rng([settings.seed, int(row)])
        for run in range(settings.runs):
            drawn[place, run] = rng.choice(features, size, replace=False, shuffle=False)
    return drawn


class Parts(NamedTuple):
    """A forward pass in two: what is done to each pixel by itself, which need not be done anew, and the rest."""

    pixelwise: Forward
    rest: Forward


def in_parts(model: nn.Module, kind: InferenceKind) -> Parts:
    """A model's forward pass in an arithmetic, as `tier.inference.fast` has it. Raises ValueError as `fast`."""
    if isinstance(model, Classifier):
        return Parts(model.normalize, fast(model.body, kind))
    return Parts(lambda x: x, fast(model, kind))


def drops(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    sets: NDArray[np.integer[Any]],
    baseline: Baseline = "black",
    forward: Parts | None = None,
    progress: Progress = _silent,
) -> Array:
    """By how much the logit of class `y` falls when a set of features is replaced, `(N, K)`.

    `x` is `(N, C, H, W)`, uint8 or in [0, 1], `y` `(N,)`, `sets` `(N, K, S)` indices into an image laid out as
    `C * H * W`; an index may repeat within a set. `forward` is the model's forward pass as `in_parts` gives it; None:
    that of the model itself. The model is evaluated and left as found.
    """
    where = next(model.parameters()).device
    run, out = forward or in_parts(model, "fp32"), np.empty(sets.shape[:2])
    with inspecting(model), torch.inference_mode():
        for start in range(0, len(x), ROWS):
            part = slice(start, start + ROWS)
            asked = torch.from_numpy(sets[part]).to(where)
            out[part] = _fallen(run, as_pixels(x[part].to(where)), y[part].to(where), asked, baseline).cpu().numpy()
            progress(min(1.0, (start + ROWS) / len(x)))
    return out


def _fallen(forward: Parts, x: Tensor, y: Tensor, sets: Tensor, baseline: Baseline) -> Tensor:
    """`drops` of one batch, `(B, K)`: as many sets in a pass as make ROWS rows."""
    (batch, channels, height, width), pixels = x.shape, x[0, 0].numel()
    together = min(sets.shape[1], max(1, ROWS // batch))
    # channels last, as convolutions take it; what a pass has replaced is put back, which is less than a new copy
    ready = forward.pixelwise(x.contiguous(memory_format=torch.channels_last))
    rows = ready.permute(0, 2, 3, 1).flatten(1).repeat(together, 1)
    instead = baseline_value(x, baseline).view(-1, 1, 1, 1).expand(-1, channels, 1, 1)
    fill, labels = forward.pixelwise(instead).flatten(1).repeat(together, 1), y.repeat(together)
    whole = _logit(forward.rest(ready), y).repeat(together)
    places = torch.arange(pixels * channels, device=x.device).view(pixels, channels).T.flatten()  # in H * W * C
    fallen = []
    for asked in sets.split(together, 1):
        place = places.take(asked.transpose(0, 1).flatten(0, 1).long())  # (rows, S)
        used = slice(len(place))
        kept = rows[used].gather(1, place)
        rows[used].scatter_(1, place, fill[used].gather(1, place % channels))
        answer = _logit(forward.rest(rows[used].view(-1, height, width, channels).permute(0, 3, 1, 2)), labels[used])
        fallen.append((whole[used] - answer).view(-1, batch))
        rows[used].scatter_(1, place, kept)
    return torch.cat(fallen).T


def _logit(logits: Tensor, y: Tensor) -> Tensor:
    """`(B, K)`, `(B,)` -> `(B,)` float64."""
    return logits.double().gather(1, y.unsqueeze(1)).squeeze(1)


def baseline_value(x: Tensor, baseline: Baseline) -> Tensor:
    """What replaces a feature, one value per image `(B,)`: its least (black), greatest (white) or mean value."""
    flat = x.flatten(1)
    match baseline:
        case "black":
            return flat.amin(1)
        case "white":
            return flat.amax(1)
        case "mean":
            return flat.mean(1)


# ---- faithfulness


def correlation(maps: Maps, sets: NDArray[np.integer[Any]], fallen: Array) -> Array:
    """Faithfulness Correlation `(N,)`: Pearson's between the map summed over each set and the logit's fall.

    `maps` is `(N, H, W)`, `sets` `(N, runs, subset_size)`, `fallen` `(N, runs)` as `drops` gives it. NaN where the map
    is degenerate or either side does not vary.
    """
    flat = maps.reshape(len(maps), -1).astype(np.float64)
    sums = np.stack([one[index % flat.shape[1]].sum(1) for one, index in zip(flat, sets, strict=True)])
    return np.where(degenerate(maps), np.nan, pearson(sums, fallen))


def estimate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    maps: Maps,
    settings: Quality,
    forward: Parts | None = None,
    progress: Progress = _silent,
) -> Array:
    """Faithfulness Estimate `(N,)`: Pearson's between the map summed over each step and the logit's fall without it.

    A step is `features_in_step` features in the map's order, highest first; each is replaced alone, not on top of the
    former ones. Ties go by pixel index. NaN where the map is degenerate or either side does not vary.
    """
    sets, sums = steps(maps, x.shape[1], settings.features_in_step)
    fallen = drops(model, x, y, sets, settings.baseline, forward, progress)
    return np.where(degenerate(maps), np.nan, pearson(sums, fallen))


def steps(maps: Maps, channels: int, size: int) -> tuple[NDArray[np.int64], Array]:
    """The features of each step `(N, K, size)`, and what the map sums to over them `(N, K)`.

    All channels of a pixel follow one another. A last step that is not full repeats its last feature.
    """
    sound = np.where(degenerate(maps)[:, None, None], 0, maps)
    flat = sound.reshape(len(maps), -1)
    pixels = flat.shape[1]
    order = np.empty(flat.shape, np.int64)
    np.put_along_axis(order, ranks(torch.from_numpy(sound)).numpy(), np.arange(pixels)[None], 1)
    features = (order[:, :, None] + pixels * np.arange(channels)).reshape(len(flat), -1)
    values = np.repeat(np.take_along_axis(flat, order, 1).astype(np.float64), channels, axis=1)
    lacking = -features.shape[1] % size
    features, values = np.pad(features, ((0, 0), (0, lacking)), "edge"), np.pad(values, ((0, 0), (0, lacking)))
    return features.reshape(len(flat), -1, size), values.reshape(len(flat), -1, size).sum(2)


def pearson(a: Array, b: Array) -> Array:
    """Pearson's correlation row by row, `(N, K)` twice -> `(N,)`; NaN where a row is constant or not finite."""
    flat = degenerate(a[:, None]) | degenerate(b[:, None])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        u, v = (values - values.mean(1, keepdims=True) for values in (a, b))
        u, v = (values / np.linalg.norm(values, axis=1, keepdims=True) for values in (u, v))
        return np.where(flat, np.nan, np.clip((u * v).sum(1), -1.0, 1.0))


# ---- sufficiency


@dataclass(frozen=True)
class Sufficiency:
    """Of each image `(N,)`: the share of its neighbours that the model puts into the same class.

    Neighbours are the images of the set whose maps differ by no more than the threshold, a share of the largest
    distance in the set. `values` is NaN for an image without neighbours, whose share is not defined, and for degenerate
    maps; `quantus` is what Quantus gives: 0 in both cases, and 0 for all images (silently) when a single pixel is
    constant over the set, which has no variance to divide by. `constant` counts such pixels, which `values` leaves out.
    `near` says who is whose neighbour, `(N, N)`.
    """

    values: Array
    quantus: Array
    near: NDArray[np.bool_]
    constant: int

    @property
    def neighbours(self) -> NDArray[np.int64]:
        """How many each image has, `(N,)`."""
        return self.near.sum(1)


def sufficiency(maps: Maps, predicted: NDArray[np.integer[Any]], threshold: float, distance: Distance) -> Sufficiency:
    """Sufficiency of maps `(N, H, W)` of images whose predicted classes are `(N,)`, all N being the set."""
    flat = _magnitudes(maps)
    constant = int((flat.max(0) == flat.min(0)).sum())
    own, theirs = distances(maps, distance), _quantus_distances(flat, distance)
    values, _ = shares(own, predicted, threshold)
    literal, _ = shares(theirs, predicted, threshold)
    return Sufficiency(values, np.nan_to_num(literal), own <= threshold, constant)


def _magnitudes(maps: Maps) -> Maps:
    """|map| in one row, over the largest value of the whole set, as Quantus takes it; `(N, H * W)`."""
    flat = np.abs(maps).reshape(len(maps), -1)
    with np.errstate(invalid="ignore"):
        return flat / (flat.max() or 1.0)


def distances(maps: Maps, distance: Distance) -> Array:
    """Distances between maps over the largest one, `(N, N)`; NaN on the diagonal and for degenerate maps.

    `seuclidean` divides each pixel's squared difference by its variance over the set; pixels without any are left out.
    """
    sound = ~degenerate(maps)
    out = np.full((len(maps), len(maps)), np.nan)
    if sound.sum() < 2:
        return out
    flat = _magnitudes(maps[sound])
    flat = flat[:, flat.max(0) > flat.min(0)].astype(np.float64)
    apart = _between(flat, distance) if flat.shape[1] else np.zeros((len(flat), len(flat)))
    out[np.ix_(sound, sound)] = apart / (apart.max() or 1.0)
    np.fill_diagonal(out, np.nan)
    return out


def _quantus_distances(flat: Maps, distance: Distance) -> Array:
    """As Quantus has them: NaN everywhere if one is NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = _between(flat, distance)
        largest = np.abs(apart).max()
        apart = apart if largest == 0 else apart / largest
    np.fill_diagonal(apart, np.nan)
    return apart


def _between(flat: Maps, distance: Distance) -> Array:
    return np.asarray(cdist(flat, flat, distance))


def shares(apart: Array, predicted: NDArray[np.integer[Any]], threshold: float) -> tuple[Array, NDArray[np.int64]]:
    """Of each image the share of neighbours of its predicted class, NaN without any, and how many they are."""
    near = apart <= threshold  # never for NaN
    same = predicted[None] == predicted[:, None]
    neighbours = near.sum(1)
    with np.errstate(invalid="ignore"):
        return (near & same).sum(1) / neighbours, neighbours


def pseudo_values(near: NDArray[np.bool_], predicted: NDArray[np.integer[Any]]) -> Array:
    """What each image contributes to the mean of `shares`, as an image and as a neighbour of others, `(N,)`.

    The shares of two images that have a neighbour in common depend on each other, so that their own spread makes an
    interval that is too narrow. These values are the mean's first-order expansion in the images (its influence values
    plus the mean): they have the same mean, and resampling them gives an interval that holds. Where maps tell nothing
    it is wider than it need be by up to the square root of 2. NaN for images without neighbours.
    """
    same, neighbours = predicted[None] == predicted[:, None], near.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (near & same).sum(1) / neighbours
        lead = np.where(near, (same - values[:, None]) / neighbours[:, None], 0.0)  # of the row's image: NaN if alone
    return values + np.nan_to_num(lead).sum(0)


def permutation(
    near: NDArray[np.bool_],
    predicted: NDArray[np.integer[Any]],
    groups: Mapping[str, NDArray[np.bool_]],
    seed: int,
    times: int = PERMUTATIONS,
) -> dict[str, dict[str, float | None]]:
    """By group of images: what their mean share has over chance, and where that lies if maps tell nothing.

    The predicted classes are dealt anew to the images `times` times, while who is whose neighbour stays: that keeps
    how shares depend on each other. `over` is the mean lead over `chance`, `low` and `high` hold 95 % of the permuted
    ones, `above` and `below` are the p values of a lead so high or so low. None for a group without neighbours.
    """
    rng = np.random.default_rng([seed, 2])
    neighbours = near.sum(1)
    found = neighbours > 0
    leads = np.empty((times + 1, len(groups)))
    for place in range(times + 1):
        dealt = predicted if place == 0 else rng.permutation(predicted)
        same = (near & (dealt[None] == dealt[:, None])).sum(1)
        lead = same[found] / neighbours[found] - chance(dealt)[found]
        for column, group in enumerate(groups.values()):
            part = lead[group[found]]
            leads[place, column] = part.mean() if part.size else np.nan
    return {name: _against_permuted(values) for name, values in zip(groups, leads.T, strict=True)}


def _against_permuted(leads: Array) -> dict[str, float | None]:
    """`permutation` of one group: the observed lead first, then the permuted ones."""
    if np.isnan(leads[0]):
        return dict.fromkeys(("over", "low", "high", "above", "below"))
    own, dealt = leads[0], leads[1:]
    slack = 1e-12  # equal sums in another order
    low, high = np.quantile(dealt, [0.025, 0.975])
    return {
        "over": float(own), "low": float(low), "high": float(high),
        "above": float((1 + (dealt >= own - slack).sum()) / len(leads)),
        "below": float((1 + (dealt <= own + slack).sum()) / len(leads)),
    }  # fmt: skip


def chance(predicted: NDArray[np.integer[Any]]) -> Array:
    """The share of all other images with the same predicted class: what Sufficiency is when maps tell nothing."""
    same = predicted[None] == predicted[:, None]
    return (same.sum(1) - 1) / max(1, len(predicted) - 1)


def sweep(maps: Maps, predicted: NDArray[np.integer[Any]], settings: Quality) -> dict[str, list[float | None]]:
    """Mean Sufficiency, mean number of neighbours and share of images without any, at each of several thresholds."""
    apart = distances(maps, settings.distance)
    found: dict[str, list[float | None]] = {name: [] for name in ("threshold", "mean", "neighbours", "alone")}
    for threshold in sorted({*settings.thresholds, settings.threshold}):
        values, neighbours = shares(apart, predicted, threshold)
        found["threshold"].append(threshold)
        found["mean"].append(mean_or_none(values))
        found["neighbours"].append(float(neighbours.mean()))
        found["alone"].append(float((neighbours == 0).mean()))
    return found


# ---- localisation


def localisation(maps: Maps, masks: NDArray[np.bool_]) -> Frame:
    """How far maps point at the object, masks `(N, H, W)`: LOCALISED, `(N,)` each.

    - pointing_game (Zhang et al. 2016, without its tolerance): whether the highest pixel lies in the mask. Of a signed
      map that is the one that speaks most for the class, as in the paper, whose maps say where the evidence for a class
      is: a pixel that speaks most against it is not what the map points at
    - mask_mass: the share of sum |map| in the mask; mask_mass_positive: of the map's positive part
    - mask_iou: intersection over union of the mask and as many pixels of the highest |map|; mask_iou_signed: of the
      highest values, which a signed map that lies on the object alone cannot cover, as what speaks against the class
      ranks below all that is left at 0 beside the object

    Pixels that tie for a place count by the share of them in the mask. NaN for degenerate maps, for masks without a
    pixel or with all, and mask_mass_positive for maps without a positive value.
    """
    flat, inside = maps.reshape(len(maps), -1).astype(np.float64), masks.reshape(len(masks), -1)
    count = inside.sum(1)
    void = degenerate(maps) | (count == 0) | (count == inside.shape[1])
    size = count.clip(1)
    hits, signed = _top_inside(np.abs(flat), inside, size), _top_inside(flat, inside, size)
    found = {
        "pointing_game": _top_inside(flat, inside, np.ones_like(size)),
        "mask_mass": _mass(np.abs(flat), inside),
        "mask_iou": hits / (2 * size - hits),
        "mask_mass_positive": _mass(flat.clip(0), inside),
        "mask_iou_signed": signed / (2 * size - signed),
    }
    return {name: np.where(void, np.nan, values) for name, values in found.items()}


def _top_inside(flat: Array, inside: NDArray[np.bool_], size: NDArray[np.integer[Any]]) -> Array:
    """How many of the `size` highest pixels lie inside; those that tie for the last places by their share inside."""
    ordered = -np.sort(-flat, axis=1)
    last = np.take_along_axis(ordered, size[:, None] - 1, 1)
    above, tied = flat > last, flat == last
    with np.errstate(invalid="ignore"):  # of maps that are not finite
        share = (tied & inside).sum(1) / tied.sum(1)
    return (above & inside).sum(1) + (size - above.sum(1)) * share


def _mass(weights: Array, inside: NDArray[np.bool_]) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(inside, weights, 0.0).sum(1) / weights.sum(1)


def expected_localisation(masks: NDArray[np.bool_]) -> Frame:
    """What `localisation` is on average for a map of independent noise: the mask's share of the pixels.

    Of mask_iou it is the mean of h / (2m - h), h being how many of m pixels drawn from all lie in a mask of m pixels
    (hypergeometric).
    """
    inside = masks.reshape(len(masks), -1)
    count, pixels = inside.sum(1), inside.shape[1]
    share = np.where((count == 0) | (count == pixels), np.nan, count / pixels)
    overlap = np.array([_expected_iou(int(m), pixels) for m in count])
    return {
        "pointing_game": share,
        "mask_mass": share,
        "mask_iou": np.where(np.isnan(share), np.nan, overlap),
        "mask_mass_positive": share,
    }


def _expected_iou(size: int, pixels: int) -> float:
    hits = np.arange(size + 1)
    return float((stats.hypergeom(pixels, size, size).pmf(hits) * hits / np.maximum(2 * size - hits, 1)).sum())


# ---- controls


def noise_maps(
    rows: Sequence[int] | NDArray[np.integer[Any]], height: int, width: int, seed: int
) -> NDArray[np.float32]:
    """A map of independent uniform noise for each image, `(N, H, W)`, from the seed and the image's row alone."""
    made = [np.random.default_rng([seed, int(row), 1]).random((height, width), np.float32) for row in rows]
    return np.stack(made)


def edge_maps(x: Tensor) -> NDArray[np.float32]:
    """The Sobel magnitude of each image, mean over channels; `(N, C, H, W)`, uint8 or in [0, 1] -> `(N, H, W)`."""
    pixels = as_pixels(x).cpu().numpy()
    return np.stack([np.mean([sobel(channel) for channel in image], 0) for image in pixels]).astype(np.float32)


# ---- the whole of it


@dataclass(frozen=True)
class Subjects:
    """The images that a model is judged on, all `(N, ...)`.

    `y` is the class explained, `predicted` the model's own; `rows` those of the data set, from which all that is random
    depends; `masks` None where the data set has none.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    predicted: NDArray[np.int64]
    rows: NDArray[np.int64]
    masks: NDArray[np.bool_] | None


@dataclass(frozen=True)
class Probes:
    """What does not depend on the map: the logit's fall in each run `(N, runs)`, and the controls' scores.

    `controls` has a column for each metric and control, named `metric_random` and `metric_edges`; none for
    `mask_iou_signed`, whose controls are those of `mask_iou`, as no control has a negative value. `sweeps` is the sweep
    over thresholds of each control; `notes` what has to be known of them. Of noise, Sufficiency and localisation are
    the expected values: `chance`, since at most thresholds no noise has a neighbour, and `expected_localisation`.
    """

    fallen: Array
    controls: Frame
    sweeps: dict[str, dict[str, list[float | None]]]
    notes: list[str]


def probe(of: Subjects, settings: Quality, progress: Progress = _silent) -> Probes:
    """Answers to random removals, and the scores of the controls. Raises ValueError as `measure`."""
    refuse_few_steps(math.prod(of.x.shape[1:]), settings)
    fallen = np.zeros((len(of.rows), settings.runs))
    if settings.engine == "fast":
        sets = subsets(of.rows, math.prod(of.x.shape[1:]), settings)
        forward = in_parts(of.model, inference_of(of.model, settings))
        fallen = drops(of.model, of.x, of.y, sets, settings.baseline, forward, lambda done: progress(0.6 * done))
    maps = {"random": noise_maps(of.rows, of.x.shape[2], of.x.shape[3], settings.seed), "edges": edge_maps(of.x)}
    columns: Frame = {}
    sweeps: dict[str, dict[str, list[float | None]]] = {}
    notes: list[str] = []
    for place, (control, stack) in enumerate(maps.items()):
        found, told = measure(of, stack, fallen, settings)
        found.pop("mask_iou_signed", None)
        if control == "random":
            found["sufficiency"] = chance(of.predicted)
            found |= {} if of.masks is None else expected_localisation(of.masks)
        columns |= {f"{name}_{control}": values for name, values in found.items()}
        sweeps[control] = sweep(stack, of.predicted, settings)
        notes += [f"{control}: {note}" for note in told if control != "random"]
        progress(0.6 + 0.2 * (place + 1))
    return Probes(fallen, columns, sweeps, notes)


def measure(
    of: Subjects, maps: Maps, fallen: Array, settings: Quality, progress: Progress = _silent
) -> tuple[Frame, list[str]]:
    """Metrics and variants of maps `(N, H, W)`, `(N,)` each, NaN where not defined; and what has to be known of them.

    `fallen` is that of `probe`. Without masks the columns of localisation are left out. Raises ValueError as `subsets`
    and `refuse_few_steps`, and when Quantus is asked for but not installed.
    """
    refuse_few_steps(math.prod(of.x.shape[1:]), settings)
    found: Frame = {}
    if settings.engine == "fast":
        sets = subsets(of.rows, math.prod(of.x.shape[1:]), settings)
        found["faithfulness_correlation"] = correlation(maps, sets, fallen)
        forward = in_parts(of.model, inference_of(of.model, settings))
        found["faithfulness_estimate"] = estimate(of.model, of.x, of.y, maps, settings, forward, progress)
    near = sufficiency(maps, of.predicted, settings.threshold, settings.distance)
    found |= {"sufficiency": near.values, "sufficiency_quantus": near.quantus}
    if settings.engine == "quantus":
        found |= quantus_scores(of.model, of.x, of.y, maps, settings)
    if of.masks is not None:
        found |= localisation(maps, of.masks)
    return {name: found[name] for name in (*QUALITY_METRICS, *VARIANT_OF) if name in found}, _notes(near, maps)


def dependence(of: Subjects, maps: Maps, settings: Quality, member: NDArray[np.bool_]) -> tuple[Frame, dict[str, Any]]:
    """How the Sufficiency of maps depends on who is compared: `pseudo_values` of maps and of edges, and `permutation`.

    The columns are `sufficiency_pseudo` and `sufficiency_edges_pseudo`, `(N,)`; groups of the permutation are all
    images, members and non-members.
    """
    near = distances(maps, settings.distance) <= settings.threshold
    edges = distances(edge_maps(of.x), settings.distance) <= settings.threshold
    groups = {"all": np.ones(len(maps), bool), "members": member, "nonmembers": ~member}
    columns = {
        f"sufficiency{PSEUDO}": pseudo_values(near, of.predicted),
        f"sufficiency_edges{PSEUDO}": pseudo_values(edges, of.predicted),
    }
    return columns, permutation(near, of.predicted, groups, settings.seed)


def inference_of(model: nn.Module, settings: Quality) -> InferenceKind:
    """The arithmetic asked for, or fp32 for a model that cannot be folded."""
    return settings.inference if settings.inference in usable(model) else "fp32"


def _notes(near: Sufficiency, maps: Maps) -> list[str]:
    """What a reader of the scores has to know."""
    notes = []
    if flat := int(degenerate(maps).sum()):
        notes.append(f"{flat} of {len(maps)} maps are constant or not finite and have no score")
    if near.constant:
        pixels = f"{near.constant} pixel{'s are' if near.constant > 1 else ' is'}"
        notes.append(
            f"sufficiency: {pixels} constant over the {len(maps)} images; Quantus's standardised distance divides by "
            "their variance, which is 0, and gives 0 for every image; they are left out here"
        )
    if alone := int((near.neighbours == 0).sum()):
        notes.append(
            f"sufficiency: {alone} of {len(maps)} images have no map within the threshold; their share is not defined "
            "and left out here, Quantus counts it as 0"
        )
    return notes


def mean_or_none(values: Array) -> float | None:
    """The mean over the values that are defined; None when none is."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


# ---- the reference


def quantus_scores(model: nn.Module, x: Tensor, y: Tensor, maps: Maps, settings: Quality) -> Frame:
    """The three metrics of faithfulness by Quantus itself on the plain model, `(N,)` each.

    All images are one batch, since Sufficiency compares within a batch; its column is `sufficiency_quantus`. Runs are
    drawn from NumPy's global generator, seeded for the call and put back.
    Raises ValueError when Quantus is not installed.
    """
    made = quantus_metrics(settings)
    where = next(model.parameters()).device
    data = {
        "x_batch": as_pixels(x).contiguous().cpu().numpy(),
        "y_batch": y.cpu().numpy(),
        # a value that is not finite would reach every map through the common scale
        "a_batch": np.where(np.isfinite(maps).all((1, 2), keepdims=True), maps, 0).astype(np.float32)[:, None],
        "channel_first": True,
        "device": str(where),
        "batch_size": len(x),
    }
    with inspecting(model), _global_numpy(settings.seed):
        scores = {name: np.array(metric(model=model, **data), np.float64) for name, metric in made.items()}
    flat = degenerate(maps)
    return {
        name: values if name.startswith("suff") else np.where(flat, np.nan, values) for name, values in scores.items()
    }


def quantus_metrics(settings: Quality) -> Mapping[str, Any]:
    """Quantus's metrics with our settings. Raises ValueError when it is not installed."""
    try:
        import quantus
    except ImportError as error:
        raise ValueError(f"quality.engine=quantus needs Quantus ({error}): pip install 'quantus>=0.6,<0.7'") from error
    common: dict[str, Any] = {"disable_warnings": True, "display_progressbar": False, "return_aggregate": False}
    filled = common | {"perturb_baseline": settings.baseline, "abs": False}
    step = quantus.FaithfulnessEstimate(features_in_step=settings.features_in_step, **filled)
    # Quantus wants a step that divides H * W, not the number of features: of 32x32 pixels no whole RGB pixels do
    step.custom_preprocess = lambda **data: None  # type: ignore[method-assign]
    return {
        "faithfulness_correlation": quantus.FaithfulnessCorrelation(
            nr_runs=settings.runs, subset_size=settings.subset_size, **filled
        ),
        "faithfulness_estimate": step,
        "sufficiency_quantus": quantus.Sufficiency(
            threshold=settings.threshold, distance_func=settings.distance, abs=True, **common
        ),
    }


@contextmanager
def _global_numpy(seed: int) -> Iterator[None]:
    """NumPy's global generator, from which Quantus draws, seeded; its former state comes back."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
