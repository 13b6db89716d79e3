"""Figures of merit of classifiers and of membership scores; a higher score always means member.

Everywhere an image is called a member when its score lies above the threshold, not at it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv
from scipy.stats import rankdata

from tier.stats import Interval, gap_interval

Array = NDArray[np.float64]
RESAMPLES = 500
CELLS = 2_000_000  # counts that a bootstrap holds at a time, 16 MB per array
# Images that are looked at as the most exposed, at least: of as many members as non-members 125 non-members on average,
# and fewer than the 100 that a rate of 1 % needs in one draw of 3,500 where exposure says nothing of membership.
EXPOSED = 250


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
    return _clopper_pearson(successes, trials, confidence)


def _clopper_pearson(successes: float, trials: int, confidence: float) -> Interval:
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
    a, b = _groups(members, nonmembers)
    parts = _resamples(a.size, b.size, resamples, seed, cells)
    return _central(np.concatenate([_areas(a, b, inside, outside) for inside, outside in parts]))


def _balanced_accuracies(a: Array, b: Array, threshold: float, resamples: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    found = rng.binomial(a.size, (a > threshold).mean(), resamples) / a.size
    cleared = rng.binomial(b.size, (b <= threshold).mean(), resamples) / b.size
    return (found + cleared) / 2


def _resamples(
    members: int, nonmembers: int, resamples: int, seed: int, cells: int = CELLS
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places of members `(R, N)` and of non-members `(R, M)` drawn with replacement, some resamples at a time.

    They depend on the sizes and the seed alone, so that any scores of the same images can be looked at together.
    """
    rng = np.random.default_rng(seed)
    step = max(1, cells // (members + nonmembers))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        yield rng.integers(members, size=(rows, members)), rng.integers(nonmembers, size=(rows, nonmembers))


def _areas(a: Array, b: Array, inside: NDArray[np.int64], outside: NDArray[np.int64]) -> Array:
    """The AUC of each resample `(R,)`."""
    values, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    own, others = np.split(place, [a.size])
    found, missed = (_counts(drawn, len(values)) for drawn in (own[inside], others[outside]))  # (R, G)
    won: Array = (found * (np.cumsum(missed, 1) - missed / 2)).sum(1)  # ties count half
    return won / (a.size * b.size)


def _counts(places: NDArray[np.int64], width: int) -> Array:
    """How often each row of `(R, N)` holds each place, `(R, width)`."""
    rows = len(places)
    flat = places + width * np.arange(rows)[:, None]
    return np.bincount(flat.ravel(), minlength=rows * width).reshape(rows, width).astype(np.float64)


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
    "balanced_accuracy", "balanced_accuracy_calibrated", "auc", "interval", "auc_interval",
    "tpr_at_0.001", "tpr_interval_at_0.001", "counts_at_0.001", "tpr_at_0.01", "tpr_interval_at_0.01", "counts_at_0.01",
    "tnr_at_0.001", "tnr_interval_at_0.001", "tnr_counts_at_0.001",
)  # fmt: skip
"""The figures of a report, in its order; each may be None, with its reason under `refused`."""


class Rate(NamedTuple):
    """A rate of a report: the names of its value, interval and counts, and how it is found."""

    value: str
    interval: str
    counts: str
    level: float
    of_members: bool  # members found at false alarms, else non-members cleared at missed members


RATES = (
    Rate("tpr_at_0.001", "tpr_interval_at_0.001", "counts_at_0.001", 0.001, True),
    Rate("tpr_at_0.01", "tpr_interval_at_0.01", "counts_at_0.01", 0.01, True),
    Rate("tnr_at_0.001", "tnr_interval_at_0.001", "tnr_counts_at_0.001", 0.001, False),
)
"""The rates at a fixed error. Counts of members are `true_positives` and `false_positives`, else `true_negatives` and
`false_negatives`."""


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
    for rate in RATES:
        found |= _rate(a, b, rate, refused)
    return found


def _rate(a: Array, b: Array, rate: Rate, refused: dict[str, str]) -> dict[str, Any]:
    """One rate with its raw counts and its exact interval; adds to `refused` why they are not there."""
    made = tpr_at_fpr(a, b, rate.level) if rate.of_members else tnr_at_fnr(a, b, rate.level)
    hits, errors = made[1:3]
    if hits is None:
        refused |= dict.fromkeys((rate.value, rate.interval, rate.counts), str(made.refused))
        return {}
    interval = clopper_pearson(hits, (a if rate.of_members else b).size)
    return {
        rate.value: made.value,
        rate.interval: list(interval),
        rate.counts: dict(zip(_count_names(rate), (hits, errors), strict=True)),
    }


def _count_names(rate: Rate) -> tuple[str, str]:
    """What is right and what is wrong among the counts of a rate."""
    return ("true_positives", "false_positives") if rate.of_members else ("true_negatives", "false_negatives")


# ---- the same over training seeds

Run = tuple[ArrayLike, ArrayLike, float | None]
"""Scores of members and of non-members of one model, and the threshold that was transferred to it."""


def report_seeds(runs: Sequence[Run], seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Any]:
    """The report of one attack on models of several training seeds, each (members, non-members, threshold).

    All are about the same images in the same order: another seed makes another model, not other images. Figures and
    counts are means over the seeds, and `members` and `nonmembers` the numbers of images. Intervals resample seeds,
    then images, the same for every seed (SPEC 0); that of a rate also covers the exact one of its mean over so many
    images, so that equal models are never worth more than one of them. A figure that one seed refuses is refused, with
    that reason. The threshold is None unless all seeds share it. `seeds` is their number. One seed gives `report`
    itself. Raises ValueError without a run, and for runs with different numbers of images.
    """
    leaves = [report(*run, seed=seed) for run in runs]
    if not leaves:
        raise ValueError("there are no runs to report on")
    if len(leaves) == 1:
        return leaves[0]
    if len({(np.size(members), np.size(nonmembers)) for members, nonmembers, _ in runs}) > 1:
        raise ValueError("the seeds must be about the same images; their numbers of scores differ")
    refused = {name: reason for leaf in reversed(leaves) for name, reason in leaf["refused"].items()}
    made: dict[str, Any] = dict.fromkeys(FIGURES)
    given = [name for name in FIGURES if name not in refused]
    for name in given:
        if isinstance(leaves[0][name], float):
            made[name] = float(np.mean([leaf[name] for leaf in leaves]))
    for rate in (rate for rate in RATES if rate.value in given):
        counts = [leaf[rate.counts] for leaf in leaves]
        made[rate.counts] = {name: float(np.mean([count[name] for count in counts])) for name in counts[0]}
    common = _common(runs)
    totals = {"members": common[0][0].size, "nonmembers": common[0][1].size}
    if {"auc", "balanced_accuracy_calibrated"} & set(given):
        made |= _seed_intervals(common, made, resamples, seed)
    lacking = [name for name in given if made[name] is None]
    refused |= dict.fromkeys(lacking, "no image has a score from every seed")
    shared = {leaf["threshold"] for leaf in leaves}
    threshold = shared.pop() if len(shared) == 1 else None
    return {**made, "threshold": threshold, **totals, "refused": refused, "seeds": len(leaves)}


def _common(runs: Sequence[Run]) -> list[tuple[Array, Array, float | None]]:
    """The runs with the images alone that each of them has a score of."""
    groups = [np.stack([np.asarray(run[place], np.float64).ravel() for run in runs]) for place in (0, 1)]  # (S, N)
    members, nonmembers = (group[:, ~np.isnan(group).any(0)] for group in groups)
    return [(a, b, run[2]) for a, b, run in zip(members, nonmembers, runs, strict=True)]


def _seed_intervals(
    runs: Sequence[tuple[Array, Array, float | None]], made: dict[str, Any], resamples: int, seed: int
) -> dict[str, list[float]]:
    """The intervals of the figures that are in `made`, over seeds and images; none where a group is empty."""
    sizes = runs[0][0].size, runs[0][1].size
    if not all(sizes):
        return {}
    rates = [rate for rate in RATES if made[rate.value] is not None]
    values: dict[str, list[list[Array]]] = {}  # by name of the interval: seeds of each part of the resamples
    for inside, outside in _resamples(*sizes, resamples, seed):
        for place, (a, b, threshold) in enumerate(runs):
            of_seed = {"auc_interval": _areas(a, b, inside, outside)}
            if made["balanced_accuracy"] is not None and threshold is not None:
                right = (a > threshold)[inside].mean(1) + (b <= threshold)[outside].mean(1)
                of_seed["interval"] = right / 2
            of_seed |= {rate.interval: _resampled_rate(a[inside], b[outside], rate) for rate in rates}
            for name, part in of_seed.items():
                values.setdefault(name, [[] for _ in runs])[place].append(part)
    tables = {name: np.stack([np.concatenate(parts) for parts in of]) for name, of in values.items()}  # (S, R)
    found = {name: list(_central(_drawn_seeds(table, seed))) for name, table in tables.items()}
    for rate in rates:
        exact = _exact_of_share(made[rate.value], sizes[0] if rate.of_members else sizes[1])
        low, high = found[rate.interval]
        found[rate.interval] = [min(low, exact.low), max(high, exact.high)]
    return found


def _resampled_rate(members: Array, nonmembers: Array, rate: Rate) -> Array:
    """A rate of each resample `(R,)` from its scores `(R, N)` and `(R, M)`, the threshold found in it too."""
    own, other = (members, nonmembers) if rate.of_members else (-nonmembers, -members)
    place = other.shape[1] - 1 - _allowed(other.shape[1], rate.level)
    threshold = np.partition(other, place, axis=1)[:, place]
    found: Array = (own > threshold[:, None]).mean(1)
    return found


def _exact_of_share(share: float, trials: int) -> Interval:
    """`clopper_pearson` of a share of the trials that need not be a whole number of them."""
    return _clopper_pearson(share * trials, trials, 0.95)


def _drawn_seeds(table: Array, seed: int) -> Array:
    """Means over seeds drawn with replacement, for each of the resampled sets of images, `(S, R)` -> `(R,)`."""
    seeds, resamples = table.shape
    drawn = np.random.default_rng([seed, seeds]).integers(seeds, size=(resamples, seeds))
    means: Array = table[drawn, np.arange(resamples)[:, None]].mean(1)
    return means


# ---- some of the images alone


def vulnerable_decile(
    scores: ArrayLike,
    member: ArrayLike,
    exposure: ArrayLike,
    threshold: float | None,
    share: float = 0.1,
    least: int = EXPOSED,
) -> dict[str, Any]:
    """The report of the most exposed images alone (`most_exposed`): `(N,)` scores, membership and exposure."""
    values, inside, exposed = np.asarray(scores, np.float64), np.asarray(member, bool), np.asarray(exposure, np.float64)
    _same_length(values, inside, exposed)
    chosen = most_exposed(exposed, share, least)
    return report(values[chosen & inside], values[chosen & ~inside], threshold)


def most_exposed(exposure: ArrayLike, share: float = 0.1, least: int = EXPOSED) -> NDArray[np.bool_]:
    """Which images are the most exposed, `(N,)`: a tenth, but at least `least` images, of these at most half of all.

    `exposure` ranks images without a look at the target's membership, as `tier.attacks.lira.exposure` does: how much
    reference models change by having trained on the image; and how many are taken depends on their number alone. A
    tenth of 2,000 has about 100 non-members, with which a rate at 1 % is given or refused by chance: hence `least`.
    Images where exposure is NaN are not ranked. Of n ranked at least one; equal ones are taken in the images' order.
    """
    exposed = np.asarray(exposure, np.float64)
    ranked = np.argsort(-exposed, kind="stable")[: int((~np.isnan(exposed)).sum())]  # NaN sorts last
    count = max(1, round(share * len(ranked)), min(least, len(ranked) // 2))
    chosen = np.zeros(exposed.shape, bool)
    chosen[ranked[:count]] = True
    return chosen


def class_leaks(
    scores: ArrayLike, member: ArrayLike, label: ArrayLike, threshold: float | None
) -> list[dict[str, Any]]:
    """What an attack is worth in each class, the most leaking first: `(N,)` scores, membership and labels.

    Of each class: `label`, `balanced_accuracy` at the transferred threshold, `interval` (95 %, Newcombe's of a
    difference of shares, which holds for few images and for rates of 0 and 1 too), `members`, `nonmembers`, and of
    them those above the threshold, `true_positives` and `false_positives`. Scores that are NaN are left out, and so
    are classes without members or without non-members, and all of them without a threshold.
    """
    values, inside, classes = np.asarray(scores, np.float64), np.asarray(member, bool), np.asarray(label)
    _same_length(values, inside, classes)
    if threshold is None or math.isnan(threshold):
        return []
    rows = []
    for one in np.unique(classes):
        here = (classes == one) & ~np.isnan(values)
        found, alarms = ((values > threshold)[here & group] for group in (inside, ~inside))
        if not (found.size and alarms.size):
            continue
        tpr, fpr = float(found.mean()), float(alarms.mean())
        rows.append(
            {
                "label": int(one),
                "balanced_accuracy": (tpr + 1 - fpr) / 2,
                "interval": list(gap_interval(tpr, fpr, found.size, alarms.size)),
                "members": found.size,
                "nonmembers": alarms.size,
                "true_positives": int(found.sum()),
                "false_positives": int(alarms.sum()),
            }
        )
    return sorted(rows, key=lambda row: -row["balanced_accuracy"])


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
