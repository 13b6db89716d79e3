"""Attacks on the explanation alone (Shokri et al. 2021): one statistic of it, turned the way the shadow says.

Their explanation is the gradient of the model's output with respect to all n inputs, and their output is a probability
p: its gradient holds the factor p (1 - p), so it is flat where the model is certain, as it tends to be of members. The
gradient of the logit has no such factor and tells far less (`battery.output` chooses). Which direction means member
depends on explainer, output and defense, so `tier.attacks.oriented` chooses it on a shadow model.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

STATISTICS: dict[str, Callable[[Array], Array]] = {
    "variance": lambda flat: flat.var(axis=1),
    "l1": lambda flat: np.abs(flat).sum(axis=1),
    "l2": lambda flat: np.sqrt(np.square(flat).sum(axis=1)),
}
DEGREES = {"variance": 2, "l1": 1, "l2": 1}
"""What doubling the explanation multiplies each statistic by, as a power of two."""


def log_statistics(explanations: ArrayLike) -> dict[str, Array]:
    """The logarithm of each statistic of explanations `(N, ...)`, maps or whole gradients: `(N,)` by its name.

    The logarithm keeps the order, and keeps tiny values apart; that of 0 is that of the smallest float. NaN for an
    explanation that holds NaN. Raises ValueError for explanations without an image axis and another.
    """
    values = np.asarray(explanations, np.float64)
    if values.ndim < 2:
        raise ValueError(f"explanations are (N, ...), one row per image, got shape {values.shape}")
    flat, least = values.reshape(len(values), -1), np.finfo(np.float64).tiny
    return {name: np.log(np.maximum(statistic(flat), least)) for name, statistic in STATISTICS.items()}
