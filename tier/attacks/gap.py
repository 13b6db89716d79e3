"""The gap attack (Yeom et al. 2018): whoever is classified correctly is called a member."""

import numpy as np
from numpy.typing import NDArray


def score(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """+1 where the prediction is right, -1 where it is wrong; `(N,)`, higher = member, threshold 0."""
    return np.where(predicted == labels, 1.0, -1.0)
