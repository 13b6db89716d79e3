"""RMIA (Zarifzadeh et al. 2024): an image against many others, each measured against reference models.

An image's gain is Pr(x | target) / Pr(x), its probability under the target over its mean under models of both kinds,
trained on it or not. The score is the share of other images z, known not to be members, that it beats by a factor
gamma. Probabilities come in as log odds, phi = log(p / (1 - p)), which keep both p and 1 - p. The paper lets augmented
copies of an image vote; here phi is the mean over them.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from tier.attacks.lira import LEAST, checked

Array = NDArray[np.float64]
Mode = Literal["offline", "online"]


def score(
    phi: ArrayLike,
    reference_phi: ArrayLike,
    inside: ArrayLike,
    population_phi: ArrayLike,
    population_reference_phi: ArrayLike,
    mode: Mode = "offline",
    gamma: float = 2.0,
    a: float = 0.3,
) -> Array:
    """The share of the population beaten, `(N,)` between 0 and 1, higher = member.

    The target's phi of N images `(N,)` and of Z other images `(Z,)`, the references' `(R, N)` and `(R, Z)`, `inside`
    `(R, N)` bool; nobody trained on the Z. Images of equal share are told apart by u, the gain in log odds:
    `score = (beaten + s(u)) / (Z + 1)` with `s(u) = (1 + u / (1 + |u|)) / 2`, which lies between 0 and 1, so it never
    overturns a difference of one image beaten; the gain itself is at most 1 / Pr(x), where images would tie. NaN below
    two references that did not train on the image, and online below two that did. Raises ValueError when shapes do not
    fit, Z is 0, gamma is not positive, a not in [0, 1].
    """
    target, references, member = checked(phi, reference_phi, inside)
    others = np.zeros(np.shape(population_reference_phi), bool)
    population, population_references, outside = checked(population_phi, population_reference_phi, others)
    if population.size == 0 or len(population_references) != len(references):
        raise ValueError(
            f"RMIA needs other images seen by the same references: {population.size} images, "
            f"{len(population_references)} of {len(references)} references"
        )
    if gamma <= 0 or not 0 <= a <= 1:
        raise ValueError(f"gamma is above 0 and a between 0 and 1, got {gamma} and {a}")
    marginal, complement = log_marginal(references, member, mode, a)
    of_others, _ = log_marginal(population_references, outside, "offline", a, least=1)
    gain = _log_p(target) - marginal
    bar = np.sort(_log_p(population) - of_others)
    beaten = np.searchsorted(bar, gain - np.log(gamma), side="right")  # how many z have gain(x) / gain(z) >= gamma
    u = target - (marginal - complement)
    tie = (1 + u / (1 + np.abs(u))) / 2
    return np.where(np.isnan(gain), np.nan, (beaten + tie) / (population.size + 1))


def log_marginal(
    references: Array, inside: NDArray[np.bool_], mode: Mode, a: float, least: int = LEAST
) -> tuple[Array, Array]:
    """log Pr(x) and log(1 - Pr(x)) from phi `(R, N)`: over a world in which x was trained on and one in which not.

    Online both are measured. Offline only the second is, Pr_out, and Pr(x) is `((1 + a) Pr_out + (1 - a)) / 2`:
    a = 1 trusts that training changes nothing, a = 0 that it makes the image certain.
    """
    out, not_out = (_log_mean(values, ~inside, least) for values in (_log_p(references), _log_p(-references)))
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 where a is 1; NaN stays NaN
        if mode == "online":
            into, not_into = (_log_mean(values, inside, least) for values in (_log_p(references), _log_p(-references)))
            return np.logaddexp(into, out) - np.log(2.0), np.logaddexp(not_into, not_out) - np.log(2.0)
        return np.logaddexp(np.log((1 + a) / 2) + out, np.log((1 - a) / 2)), np.log((1 + a) / 2) + not_out


def _log_p(phi: Array) -> Array:
    return -np.logaddexp(0.0, -phi)


def _log_mean(log_p: Array, side: NDArray[np.bool_], least: int) -> Array:
    """Log of the mean probability `(N,)` over the references of a side; NaN where there are fewer than `least`."""
    count = side.sum(0)
    known = count >= least
    held = np.where(side, log_p, -np.inf)[:, known]
    mean = np.full(len(count), np.nan)
    mean[known] = logsumexp(held, axis=0) - np.log(count[known])
    return mean
