"""The loss attack (Yeom et al. 2018): a low cross-entropy points to a member."""

import numpy as np
from numpy.typing import NDArray


def score(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minus the logarithm of the loss, `(N,)`, so that confident losses do not tie; higher = member."""
    return -np.log(np.maximum(loss, np.finfo(np.float64).tiny))
