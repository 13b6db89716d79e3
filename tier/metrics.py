"""Figures of merit of classifiers and of membership scores; a higher score always means member.

Everywhere an image is called a member when its score lies above the threshold, not at it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv
from scipy.stats import rankdata

from tier.stats import Interval

Array = NDArray[np.float64]
RESAMPLES = 500
CELLS = 2_000_000  # counts that a bootstrap holds at a time, 16 MB per array


class AtFpr(NamedTuple):
    """True-positive rate at a largest allowed false-positive rate; None throughout when `refused` gives a reason."""

    value: float | None
    true_positives: int | None
    false_positives: int | None
    threshold: float | None
    refused: str | None


class AtFnr(NamedTuple):
    """True-negative rate at a largest allowed false-negative rate; None throughout when `refused` gives a reason."""

    value: float | None
    true_negatives: int | None
    false_negatives: int | None
    threshold: float | None
    refused: str | None


def auc(members: ArrayLike, nonmembers: ArrayLike) -> float:
    """Probability that a member scores above a non-member, ties counting half (Mann-Whitney).

    Raises ValueError when a group is empty: the area is undefined with one class.
    """
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    _need_both(a, b)
    ranks = rankdata(np.concatenate([a, b]))
    return float((ranks[: a.size].sum() - a.size * (a.size + 1) / 2) / (a.size * b.size))


def balanced_accuracy(members: ArrayLike, nonmembers: ArrayLike, threshold: float = 0.0) -> float:
    """Mean of the rates of members scoring above the threshold and of non-members not above it."""
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    _need_both(a, b)
    return float(((a > threshold).mean() + (b <= threshold).mean()) / 2)


def top_k_accuracy(logits: ArrayLike, labels: ArrayLike, k: int = 5) -> float | None:
    """Share of rows of `(N, K)` whose label is among the k largest logits; None below k + 1 classes (SPEC 7)."""
    values, index = np.asarray(logits), np.asarray(labels)
    if values.shape[1] <= k:
        return None
    own = values[np.arange(len(index)), index][:, None]
    return float(((values > own).sum(1) < k).mean())


# ---- the whole curve


def roc(members: ArrayLike, nonmembers: ArrayLike) -> tuple[Array, Array, Array]:
    """Every point of the ROC: false-positive rates, true-positive rates, thresholds (falling), `(G + 1,)` each.

    G is the number of distinct scores; equal scores give one point. The first point calls nobody a member, the last
    (threshold minus infinity) everybody. Raises ValueError when a group is empty or a score is NaN.
    """
    a, b = _groups(members, nonmembers)
    values, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values))[::-1].cumsum() for part in np.split(place, [a.size])]
    tpr, fpr = (np.concatenate([[0.0], count / count[-1]]) for count in counts)
    return fpr, tpr, np.append(values[::-1], -np.inf)


def best_threshold(members: ArrayLike, nonmembers: ArrayLike) -> float:
    """The threshold of the largest balanced accuracy: the middle between the two scores that it parts.

    Of equally good ones the highest, which calls the fewest images members. It is finite when the scores are, and
    when it parts two of them.
    Raises ValueError when a group is empty or a score is NaN.
    """
    fpr, tpr, thresholds = roc(members, nonmembers)
    gain = tpr - fpr
    best = int(np.argmax(gain > gain.max() - 1e-12))  # rates are ratios of counts: equal ones may differ by rounding
    if best == 0:
        return float(thresholds[0])
    above = thresholds[best - 1]  # the lowest score that is still called a member
    below = thresholds[best] if best < len(thresholds) - 1 else np.nextafter(above, -np.inf)
    most = np.finfo(np.float64).max  # of infinite scores
    middle = max(min(above, most), -most) / 2 + max(min(below, most), -most) / 2
    return float(middle if below <= middle < above else below)


def cross_fitted_balanced_accuracy(
    members: ArrayLike, nonmembers: ArrayLike, repeats: int = 10, seed: int = 0
) -> float:
    """Balanced accuracy with the threshold calibrated on one random half of each group and applied to the other half.

    Both halves take both parts, and the mean is over `repeats` seeded splits: nothing is scored with a threshold that
    saw it. Raises ValueError when a group has fewer than two scores or a score is NaN.
    """
    groups = _groups(members, nonmembers)
    if min(group.size for group in groups) < 2:
        raise ValueError("a threshold can only be calibrated with at least two members and two non-members")
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        halves = list(zip(*(np.array_split(rng.permutation(group), 2) for group in groups), strict=True))
        for fit, test in (halves, halves[::-1]):
            found.append(balanced_accuracy(test[0], test[1], best_threshold(fit[0], fit[1])))
    return float(np.mean(found))


# ---- rates at a fixed error, from raw counts


def tpr_at_fpr(members: ArrayLike, nonmembers: ArrayLike, level: float) -> AtFpr:
    """Share of members found when at most `level` of the non-members are taken for members (SPEC 5), from counts.

    The threshold is the lowest that keeps within the level; equal scores are never split, so ties cost the attacker.
    Refused when there are fewer than 1 / level non-members, since not one false alarm can then be allowed.
    Raises ValueError when a group is empty, a score is NaN or the level is not in (0, 1).
    """
    a, b = _groups(members, nonmembers)
    if reason := _too_few(b.size, level, "non-members"):
        return AtFpr(None, None, None, None, reason)
    threshold = float(np.partition(b, b.size - 1 - _allowed(b.size, level))[b.size - 1 - _allowed(b.size, level)])
    found, alarms = int((a > threshold).sum()), int((b > threshold).sum())
    return AtFpr(found / a.size, found, alarms, threshold, None)


def tnr_at_fnr(members: ArrayLike, nonmembers: ArrayLike, level: float) -> AtFnr:
    """Share of non-members cleared when at most `level` of the members are cleared too (SPEC 5), from counts.

    The mirror image of `tpr_at_fpr`; refused when there are fewer than 1 / level members.
    """
    a, b = _groups(members, nonmembers)
    mirrored = tpr_at_fpr(-b, -a, level)
    if mirrored.threshold is None:
        return AtFnr(None, None, None, None, _too_few(a.size, level, "members"))
    threshold = float(np.nextafter(-mirrored.threshold, -np.inf))  # cleared means strictly below the mirrored one
    return AtFnr(mirrored.value, mirrored.true_positives, mirrored.false_positives, threshold, None)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Exact binomial interval of a rate (Clopper and Pearson 1934).

    Raises ValueError unless 0 <= successes <= trials and there is a trial.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"a rate needs successes between 0 and a positive number of trials: {successes} of {trials}")
    tail, failures = (1 - confidence) / 2, trials - successes
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1 - tail) if failures else 1.0
    return Interval(float(low), float(high))


# ---- bootstrap


def balanced_accuracy_interval(
    members: ArrayLike, nonmembers: ArrayLike, threshold: float, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """95 % bootstrap interval of the balanced accuracy at a fixed threshold; the groups' sizes stay.

    How many of n resampled images lie above the threshold is binomial, so the counts are drawn, not the images.
    """
    return _central(_balanced_accuracies(*_groups(members, nonmembers), threshold, resamples, seed))


def auc_interval(
    members: ArrayLike, nonmembers: ArrayLike, resamples: int = RESAMPLES, seed: int = 0, cells: int = CELLS
) -> Interval:
    """95 % bootstrap interval of the AUC; the groups' sizes stay.

    Resamples are counts over the G distinct scores, and the area follows from their running sums; as many resamples at
    a time as fit into `cells` counts, so memory does not grow with the data.
    """
    return _central(_areas(*_groups(members, nonmembers), resamples, seed, cells))


def _balanced_accuracies(a: Array, b: Array, threshold: float, resamples: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    found = rng.binomial(a.size, (a > threshold).mean(), resamples) / a.size
    cleared = rng.binomial(b.size, (b <= threshold).mean(), resamples) / b.size
    return (found + cleared) / 2


def _areas(a: Array, b: Array, resamples: int, seed: int, cells: int = CELLS) -> Array:
    values, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    parts, width = np.split(place, [a.size]), len(values)
    rng = np.random.default_rng(seed)
    areas: list[Array] = []
    step = max(1, cells // max(width, a.size, b.size))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        inside, outside = (_resampled_counts(part, width, rows, rng) for part in parts)  # (rows, G)
        won = (inside * (np.cumsum(outside, 1) - outside / 2)).sum(1)  # ties count half
        areas.append(won / (a.size * b.size))
    return np.concatenate(areas)


def _resampled_counts(place: NDArray[np.int64], width: int, rows: int, rng: np.random.Generator) -> Array:
    drawn = place[rng.integers(place.size, size=(rows, place.size))] + width * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * width).reshape(rows, width).astype(np.float64)


def _central(values: Array) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))


# ---- the report


def report(members: ArrayLike, nonmembers: ArrayLike, threshold: float | None, seed: int = 0) -> dict[str, Any]:
    """What one attack is worth against one model, JSON-ready (SPEC 5 "Report").

    `threshold` was found elsewhere, on a shadow model, and is only applied here (`balanced_accuracy`); None refuses
    that figure. A figure that cannot be given is None, with its reason under `refused`. Scores that are NaN are left
    out and counted under `refused["scores"]`; without a member or a non-member, every figure is refused as undefined.
    """
    a, b = (np.asarray(group, np.float64).ravel() for group in (members, nonmembers))
    missing = int(np.isnan(a).sum() + np.isnan(b).sum())
    refused = {"scores": f"{missing} of {a.size + b.size} scores are missing and left out"} if missing else {}
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    if a.size == 0 or b.size == 0:
        which = "non-members" if a.size else "members" if b.size else "images"
        refused |= dict.fromkeys(FIGURES, f"undefined: there are no {which}")
    else:
        figures |= _figures(a, b, threshold, seed, refused)
    kept = None if threshold is None or not math.isfinite(threshold) else float(threshold)
    return {**figures, "threshold": kept, "members": a.size, "nonmembers": b.size, "refused": refused}


FIGURES = (
    "balanced_accuracy", "balanced_accuracy_calibrated", "auc", "interval", "auc_interval", "tpr_at_0.001",
    "tpr_at_0.01", "tpr_interval_at_0.01", "counts_at_0.01", "tnr_at_0.001",
)  # fmt: skip
"""The figures of a report, in its order; each may be None, with its reason under `refused`."""


def _figures(a: Array, b: Array, threshold: float | None, seed: int, refused: dict[str, str]) -> dict[str, Any]:
    """The figures of two groups that are not empty; adds to `refused` why one is not there."""
    found: dict[str, Any] = {"auc": auc(a, b), "auc_interval": list(auc_interval(a, b, seed=seed))}
    if threshold is None or math.isnan(threshold):
        refused |= dict.fromkeys(("balanced_accuracy", "interval"), "no threshold was transferred")
    else:
        found["balanced_accuracy"] = balanced_accuracy(a, b, threshold)
        found["interval"] = list(balanced_accuracy_interval(a, b, threshold, seed=seed))
    if min(a.size, b.size) < 2:
        refused["balanced_accuracy_calibrated"] = "calibrating needs at least two members and two non-members"
    else:
        found["balanced_accuracy_calibrated"] = cross_fitted_balanced_accuracy(a, b, seed=seed)
    strict, loose, cleared = tpr_at_fpr(a, b, 0.001), tpr_at_fpr(a, b, 0.01), tnr_at_fnr(a, b, 0.001)
    for name, rate in (("tpr_at_0.001", strict), ("tpr_at_0.01", loose), ("tnr_at_0.001", cleared)):
        found[name] = rate.value
        if rate.refused:
            refused[name] = rate.refused
    if loose.true_positives is None:
        refused |= dict.fromkeys(("tpr_interval_at_0.01", "counts_at_0.01"), str(loose.refused))
    else:
        found["tpr_interval_at_0.01"] = list(clopper_pearson(loose.true_positives, a.size))
        found["counts_at_0.01"] = {
            "true_positives": loose.true_positives, "false_positives": loose.false_positives
        }  # fmt: skip
    return found


def report_seeds(
    runs: Sequence[tuple[ArrayLike, ArrayLike, float | None]], seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """The report of one attack on models of several training seeds, each (members, non-members, threshold).

    Figures are means over seeds; `interval` and `auc_interval` resample seeds, then images (SPEC 0); counts, and the
    interval from them, are sums over seeds. A figure that one seed refuses is refused, with that reason. The threshold
    is None unless all seeds share it. One seed gives `report` itself. Raises ValueError without a run.
    """
    leaves = [report(*run, seed=seed) for run in runs]
    if not leaves:
        raise ValueError("there are no runs to report on")
    if len(leaves) == 1:
        return leaves[0]
    refused = {name: reason for leaf in reversed(leaves) for name, reason in leaf["refused"].items()}
    given = [name for name in FIGURES if name not in refused]
    totals = {name: sum(leaf[name] for leaf in leaves) for name in ("members", "nonmembers")}
    made: dict[str, Any] = dict.fromkeys(FIGURES)
    for name in given:
        if isinstance(leaves[0][name], float):
            made[name] = float(np.mean([leaf[name] for leaf in leaves]))
    if "counts_at_0.01" in given:
        counts = [leaf["counts_at_0.01"] for leaf in leaves]
        made["counts_at_0.01"] = {name: sum(count[name] for count in counts) for name in counts[0]}
        found = made["counts_at_0.01"]["true_positives"]
        made["tpr_interval_at_0.01"] = list(clopper_pearson(found, totals["members"]))
    made |= _seed_intervals(runs, given, resamples, seed)
    shared = {leaf["threshold"] for leaf in leaves}
    return {**made, "threshold": shared.pop() if len(shared) == 1 else None, **totals, "refused": refused}


def _seed_intervals(
    runs: Sequence[tuple[ArrayLike, ArrayLike, float | None]], given: Sequence[str], resamples: int, seed: int
) -> dict[str, list[float]]:
    """Those of `interval` and `auc_interval` that are given, over seeds and images."""
    rng = np.random.default_rng(seed)
    areas, accuracies = [], []
    for place, (members, nonmembers, threshold) in enumerate(runs):
        a, b = (np.asarray(group, np.float64) for group in (members, nonmembers))
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if "auc_interval" in given:
            areas.append(_areas(a, b, resamples, seed + place))
        if "interval" in given and threshold is not None:
            accuracies.append(_balanced_accuracies(a, b, threshold, resamples, seed + place))
    found = {"auc_interval": areas, "interval": accuracies}
    return {name: list(_central(_drawn_seeds(values, rng))) for name, values in found.items() if values}


def _drawn_seeds(values: Sequence[Array], rng: np.random.Generator) -> Array:
    """Means over seeds drawn with replacement, each time with a resample of that seed's own, `(R,)`."""
    table = np.stack(values)  # (S, R)
    seeds, resamples = table.shape
    drawn = rng.integers(seeds, size=(resamples, seeds)), rng.integers(resamples, size=(resamples, seeds))
    means: Array = table[drawn].mean(1)
    return means


def vulnerable_decile(
    scores: ArrayLike, member: ArrayLike, exposure: ArrayLike, threshold: float | None, share: float = 0.1
) -> dict[str, Any]:
    """The report of the most exposed tenth of the images alone: `(N,)` scores, membership and exposure.

    `exposure` ranks images without a look at the target's membership, as `tier.attacks.lira.exposure` does: how much
    reference models change by having trained on the image. Images where it is NaN are not ranked. `round(share * n)`
    images of the n ranked, at least one; equal exposures are taken in the images' order.
    """
    values, inside, exposed = np.asarray(scores, np.float64), np.asarray(member, bool), np.asarray(exposure, np.float64)
    _same_length(values, inside, exposed)
    order = np.argsort(-exposed, kind="stable")[: int((~np.isnan(exposed)).sum())]  # NaN sorts last
    chosen = np.sort(order[: max(1, round(share * len(order)))])  # in the order of the images again
    return report(values[chosen][inside[chosen]], values[chosen][~inside[chosen]], threshold)


# ---- checks


def _groups(members: ArrayLike, nonmembers: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(members, np.float64), np.asarray(nonmembers, np.float64)
    _need_both(a, b)
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("membership scores hold NaN: leave those images out, or let `report` count them")
    return a, b


def _allowed(trials: int, level: float) -> int:
    """How many errors a level allows; a level such as 0.001 of 3,000 is three in spite of rounding."""
    return math.floor(level * trials * (1 + 1e-12))


def _too_few(trials: int, level: float, who: str) -> str | None:
    if not 0 < level < 1:
        raise ValueError(f"a rate is fixed at a level between 0 and 1, not at {level}")
    needed = math.ceil(1 / level * (1 - 1e-12))
    return f"a rate of {level:g} needs at least {needed:,} {who}; there are {trials:,}" if trials < needed else None


def _same_length(*arrays: NDArray[Any]) -> None:
    if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1:
        raise ValueError(f"one value per image is needed in each array, got shapes {[array.shape for array in arrays]}")


def _need_both(members: Array, nonmembers: Array) -> None:
    if members.size == 0 or nonmembers.size == 0:
        raise ValueError("membership figures need members and non-members; one of the two groups is empty")
