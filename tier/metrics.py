"""Figures of merit of classifiers and of membership scores; a higher score always means member."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


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


def _need_both(members: Array, nonmembers: Array) -> None:
    if members.size == 0 or nonmembers.size == 0:
        raise ValueError("membership figures need members and non-members; one of the two groups is empty")
