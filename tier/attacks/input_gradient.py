"""The input-gradient attack: around a training image the loss is flat (Shokri et al. 2021; Rezaei and Liu 2021)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def score(log_norm: ArrayLike) -> NDArray[np.float64]:
    """Minus the logarithm of the loss gradient's norm, `(N,)`, higher = member; NaN stays NaN.

    From the logarithm, `tier.signals.gradient_statistics`, since the norms of certain predictions underflow.
    """
    return -np.asarray(log_norm, np.float64)
