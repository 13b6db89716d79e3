"""The modified-entropy attack (Song and Mittal 2021): entropy that also knows which class would be right."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


def score(log_probabilities: Array, labels: NDArray[np.int64]) -> Array:
    """Minus the log of the modified entropy, from log probabilities `(N, K)` and labels `(N,)`; higher = member.

    `Mentr = -(1 - p_y) log p_y - sum over i != y of p_i log(1 - p_i)` is 0 for a certain, right prediction and grows
    without limit for a certain, wrong one. All in log space, so that members whose p_y rounds to 1 do not tie.
    Raises ValueError for fewer than two classes.
    """
    log_p = np.asarray(log_probabilities, np.float64)
    if log_p.ndim != 2 or log_p.shape[1] < 2:
        raise ValueError(f"modified entropy needs log probabilities of at least two classes, got shape {log_p.shape}")
    log_rest = log_complement(log_p)
    rows = np.arange(len(log_p))
    terms = log_p + _log_surprise(log_rest, log_p)  # log of -p_i log(1 - p_i)
    own, own_rest = log_p[rows, labels], log_rest[rows, labels]
    terms[rows, labels] = own_rest + _log_surprise(own, own_rest)  # log of -(1 - p_y) log p_y
    return -np.asarray(logsumexp(terms, axis=1), np.float64)


def log_complement(log_p: Array) -> Array:
    """log(1 - p_i) of log probabilities `(N, K)`: for the largest of a row the sum of the others, which stays exact."""
    rows, top = np.arange(len(log_p)), np.argmax(log_p, axis=1)
    others = log_p.copy()
    others[rows, top] = -np.inf
    with np.errstate(divide="ignore"):
        found = np.log1p(-np.exp(np.where(np.isneginf(others), -np.inf, log_p)))
    found[rows, top] = logsumexp(others, axis=1)
    return found


def _log_surprise(log_q: Array, log_rest: Array) -> Array:
    """log(-log q) where `log_rest` is log(1 - q): from whichever of the two says more about q.

    -log q is about 1 - q when q is near 1, and there log q itself has no digits left.
    """
    with np.errstate(divide="ignore"):
        near_one = np.where(log_rest < -30, log_rest, np.log(-np.log1p(-np.exp(np.minimum(log_rest, -np.log(2.0))))))
        far = np.log(-np.minimum(log_q, 0.0))
    return np.where(log_rest < -np.log(2.0), near_one, far)
