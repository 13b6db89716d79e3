"""Attacks on the explanation alone (Shokri et al. 2021): one statistic of the map, turned the way the shadow says.

An explanation tends to be flat where the model is certain, hence for members; but which direction means member depends
on the explainer and on the defense, so `tier.attacks.oriented` chooses it on a shadow model.
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


def statistic(name: str, maps: ArrayLike) -> Array:
    """One value per map `(N, H, W)`, `(N,)` in the maps' own units, NaN for a map that holds NaN.

    Raises ValueError for an unknown statistic and for maps of another shape.
    """
    if name not in STATISTICS:
        raise ValueError(f"no statistic named '{name}'; there are {', '.join(STATISTICS)}")
    values = np.asarray(maps, np.float64)
    if values.ndim != 3:
        raise ValueError(f"maps are (N, H, W), got shape {values.shape}")
    return STATISTICS[name](values.reshape(len(values), -1))


def score(name: str, maps: ArrayLike, sign: int) -> Array:
    """The statistic times the sign that `tier.attacks.oriented` found on a shadow model; `(N,)`, higher = member."""
    if sign not in (1, -1):
        raise ValueError(f"a sign is 1 or -1, not {sign}")
    return sign * statistic(name, maps)
