"""The input-gradient attack: around a training image the loss is flat (Shokri et al. 2021; Rezaei and Liu 2021)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def score(norm: ArrayLike, sign: int = 1) -> NDArray[np.float64]:
    """Minus the logarithm of the loss gradient's norm, times a sign; `(N,)`, higher = member.

    The logarithm keeps the order, and keeps tiny norms apart. `sign` is 1 for the expected direction, or what
    `tier.attacks.oriented` found on a shadow model. A norm of NaN stays NaN. Raises ValueError for a negative norm.
    """
    values = np.asarray(norm, np.float64)
    if (values < 0).any():
        raise ValueError("a norm cannot be negative")
    if sign not in (1, -1):
        raise ValueError(f"a sign is 1 or -1, not {sign}")
    return -sign * np.log(np.maximum(values, np.finfo(np.float64).tiny))
