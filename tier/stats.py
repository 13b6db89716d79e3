"""Small statistics as pure functions: tests, effect sizes, corrections, bootstrap intervals."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """Two groups compared: t test, two-sample Kolmogorov-Smirnov test, Cohen's d."""

    t: float
    t_df: float
    t_p: float
    ks: float
    ks_p: float
    cohen_d: float


def compare(first: ArrayLike, second: ArrayLike, equal_variance: bool) -> Comparison:
    """Compare two samples of at least two values each; `equal_variance` picks Student's over Welch's t.

    NaN where a statistic is undefined (no spread in either group). Raises ValueError for a group of fewer than two.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(a.size, b.size) < 2:
        raise ValueError(f"a comparison needs at least two values per group, got {a.size} and {b.size}")
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # not the variance: that of equal values can round to above 0
        test = (np.nan, np.nan, np.nan)
    else:
        result = stats.ttest_ind(a, b, equal_var=equal_variance)
        test = (float(result.statistic), float(result.df), float(result.pvalue))
    ks = stats.ks_2samp(a, b)
    return Comparison(*test, float(ks.statistic), float(ks.pvalue), cohen_d(a, b))


def cohen_d(first: Array, second: Array) -> float:
    """Difference of means over the pooled standard deviation; NaN without spread."""
    n, m = first.size, second.size
    pooled = ((n - 1) * first.var(ddof=1) + (m - 1) * second.var(ddof=1)) / (n + m - 2)
    spread = pooled > 0 and (np.ptp(first) > 0 or np.ptp(second) > 0)
    return float((first.mean() - second.mean()) / np.sqrt(pooled)) if spread else float("nan")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for several tests; NaN stays NaN and does not count as a test."""
    p = np.asarray(p_values, np.float64)
    corrected = np.full_like(p, np.nan)
    order = [i for i in np.argsort(p, kind="stable") if np.isfinite(p[i])]
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * float(p[index])))
        corrected[index] = running
    return [float(value) for value in corrected]


def share_below(scores: ArrayLike, score: float) -> float:
    """Which share of the scores is lower than a given one, ties half; NaN when there are none, or it is not finite."""
    known = np.asarray(scores, np.float64)
    if not known.size or not np.isfinite(score):
        return float("nan")
    return float(((known < score).sum() + 0.5 * (known == score).sum()) / known.size)


def mean_interval(values: Array, resamples: int = 1000, seed: int = 0) -> tuple[Array, Array]:
    """95 % bootstrap interval of the column means of `(N, L)` values: low `(L,)`, high `(L,)`.

    Resampled counts times values is the same as resampling rows, in one matrix product.
    """
    rng = np.random.default_rng(seed)
    n = len(values)
    means = rng.multinomial(n, np.full(n, 1 / n), size=resamples) @ values / n  # (R, L)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high


def difference_bands(first: Array, second: Array, resamples: int = 1000, seed: int = 0) -> dict[str, Array]:
    """Difference of column means of `(N, L)` and `(M, L)`, its 95 % interval, and its 95 % band under the null.

    The null shuffles who belongs to which group. Keys: difference, low, high, null_low, null_high; each `(L,)`.
    """
    rng = np.random.default_rng(seed)
    n, m = len(first), len(second)
    boot = rng.multinomial(n, np.full(n, 1 / n), size=resamples) @ first / n
    boot = boot - rng.multinomial(m, np.full(m, 1 / m), size=resamples) @ second / m
    both = np.concatenate([first, second])
    chosen = np.zeros((resamples, n + m))
    for row in chosen:
        row[rng.choice(n + m, n, replace=False)] = 1.0
    null = chosen @ both / n - (1.0 - chosen) @ both / m
    low, high = np.quantile(boot, [0.025, 0.975], axis=0)
    null_low, null_high = np.quantile(null, [0.025, 0.975], axis=0)
    difference = first.mean(0) - second.mean(0)
    return {"difference": difference, "low": low, "high": high, "null_low": null_low, "null_high": null_high}


def seed_interval(
    seeds: Sequence[dict[str, Array]],
    statistic: Callable[[dict[str, Array]], float],
    resamples: int = 500,
    seed: int = 0,
) -> Interval:
    """95 % bootstrap that resamples training seeds, then samples within each group (SPEC 0, `interval`).

    Each seed is a dict of groups, `{"members": (N, ...), "nonmembers": (M, ...)}`; groups are resampled separately, so
    that their sizes stay. The statistic of a resample is the mean over the drawn seeds.
    """
    rng = np.random.default_rng(seed)
    values = np.empty(resamples)
    for index in range(resamples):
        drawn = [seeds[i] for i in rng.integers(len(seeds), size=len(seeds))]
        parts = [{name: group[rng.integers(len(group), size=len(group))] for name, group in s.items()} for s in drawn]
        values[index] = np.mean([statistic(part) for part in parts])
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))


def seed_mean_interval(seeds: Sequence[Array], resamples: int = 500, seed: int = 0) -> tuple[Array, Array]:
    """`seed_interval` of column means for many columns at once: low `(L,)`, high `(L,)` of each seed's `(N_s, L)`.

    NaN is a value that is not there: means are over what a resample holds, and a drawn seed without any value in a
    column does not count there. NaN where no resample has a value.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(seeds), size=(resamples, len(seeds)))  # (R, S)
    means = np.empty((*drawn.shape, seeds[0].shape[1]))  # (R, S, L)
    for index, values in enumerate(seeds):
        means[drawn == index] = _resampled_means(values, int((drawn == index).sum()), rng)
    there = np.isfinite(means)
    with np.errstate(invalid="ignore"):
        held = np.where(there, means, 0.0).sum(1) / there.sum(1)  # (R, L), 0 / 0 where no drawn seed has a value
    bounds = np.full((2, held.shape[1]), np.nan)
    if (some := np.isfinite(held).any(0)).any():
        bounds[:, some] = np.nanquantile(held[:, some], [0.025, 0.975], axis=0)
    return bounds[0], bounds[1]


def _resampled_means(values: Array, times: int, rng: np.random.Generator) -> Array:
    """Column means `(times, L)` of rows of `(N, L)` drawn with replacement, over the values that are not NaN."""
    n = len(values)
    if n == 0 or times == 0:
        return np.full((times, values.shape[1]), np.nan)
    places = rng.integers(n, size=(times, n)) + n * np.arange(times)[:, None]
    counts = np.bincount(places.ravel(), minlength=times * n).reshape(times, n).astype(np.float64)
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        means: Array = (counts @ np.where(there, values, 0.0)) / (counts @ there)
    return means


def gap_interval(train: float, test: float, members: int, nonmembers: int) -> tuple[float, float]:
    """95 % interval of the gap attack's balanced accuracy, (1 + train accuracy - test accuracy) / 2.

    Newcombe's hybrid score interval of a difference of two shares (1998, method 10), which also holds at a train
    accuracy of 1. NaN where an accuracy is unknown or a group is empty.
    """
    if not (members and nonmembers) or np.isnan(train + test):
        return float("nan"), float("nan")
    (train_low, train_high), (test_low, test_high) = share_interval(train, members), share_interval(test, nonmembers)
    down, up = np.hypot(train - train_low, test_high - test), np.hypot(train_high - train, test - test_low)
    return float(1 + train - test - down) / 2, float(1 + train - test + up) / 2


def share_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n; NaN where the share is unknown or n is 0."""
    if not n:
        return float("nan"), float("nan")
    middle, scale = share + Z**2 / (2 * n), 1 + Z**2 / n
    half = Z * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return float(middle - half) / scale, float(middle + half) / scale
