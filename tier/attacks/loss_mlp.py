"""The ablation of agp: its classifier on loss and predicted class alone (SPEC 8: do trajectories add anything?)."""

import numpy as np
from numpy.typing import NDArray

from tier.attacks.agp import Features


def features(loss: NDArray[np.float64], predicted: NDArray[np.int64], classes: int) -> Features:
    """What this attacker sees of N images: losses `(N,)` and predicted classes `(N,)`; no level of any trajectory.

    `tier.attacks.agp.fit` learns from them as from any others: same network, same settings.
    """
    nothing = np.empty((len(loss), 0))
    return Features(nothing, nothing, loss, predicted, classes)
