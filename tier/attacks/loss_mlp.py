"""The ablation of agp: its classifier on loss and predicted class alone (SPEC 8: do trajectories add anything?)."""

import numpy as np
from numpy.typing import NDArray

from tier.attacks.agp import Attack, Features, fit
from tier.config import Audit


def features(loss: NDArray[np.float64], predicted: NDArray[np.int64], classes: int) -> Features:
    """What this attacker sees of N images: losses `(N,)` and predicted classes `(N,)`; no level of any trajectory."""
    nothing = np.empty((len(loss), 0))
    return Features(nothing, nothing, loss, predicted, classes)


def train(
    loss: NDArray[np.float64], predicted: NDArray[np.int64], classes: int, member: NDArray[np.bool_], config: Audit
) -> Attack:
    """The attack learnt from a shadow model's images; its `score` takes what `features` makes of other images.

    Same network, settings and errors as `tier.attacks.agp.fit`.
    """
    return fit(features(loss, predicted, classes), member, config)
