"""The likelihood ratio attack (Carlini et al. 2022): is this confidence that of models that trained on the image?

References are models trained on random halves of the same images; `inside` says which trained on what. Confidences are
log odds of the label, phi = log(p / (1 - p)), where they are about normal; they come from all logits
(`tier.signals.log_odds`), since a p that rounds to 1 tells nothing any more.

The paper asks each model about several augmented copies of an image and fits one normal distribution of as many
dimensions. Here phi is the mean over the copies and its distribution has one dimension: the shared covariance of many
copies takes more references than one trains here, and found less than the mean on the drawn signs (docs/attack.md).
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Variance = Literal["fixed", "per_image"]

LEAST = 2  # references on a side below which an image gets no score
_LEAST_SD = 1e-6


class Moments(NamedTuple):
    """What references say of N images: mean and standard deviation, `(N,)`; NaN below `LEAST` references."""

    mean: Array
    sd: Array


def offline(phi: ArrayLike, reference_phi: ArrayLike, inside: ArrayLike) -> Array:
    """Offline LiRA with one variance for all images; `(N,)`, higher = member.

    The target's phi `(N,)`, the references' `(R, N)`, `inside` `(R, N)` bool. Only references that did not train on
    an image act. The paper's score is Pr[Z < phi] for Z ~ N(mean_out, sd^2); this is phi's distance from mean_out in
    standard deviations, which orders images in the same way and does not round to 1. NaN below two such references.
    """
    target, references, member = checked(phi, reference_phi, inside)
    out = moments(references, ~member)
    return (target - out.mean) / out.sd


def online(
    phi: ArrayLike, reference_phi: ArrayLike, inside: ArrayLike, variance: Variance = "fixed", enough: int = LEAST
) -> Array:
    """Online LiRA, `log N(phi; mean_in, sd_in^2) - log N(phi; mean_out, sd_out^2)`; `(N,)`, higher = member.

    Arguments as for `offline`. Means are each image's own. `variance` "fixed" shares one among all images on each side;
    "per_image" uses an image's own where at least `enough` references are on that side. NaN below two on either side.
    """
    target, references, member = checked(phi, reference_phi, inside)
    terms = []
    for side in (member, ~member):
        known = moments(references, side, variance, enough)
        terms.append(-np.square((target - known.mean) / known.sd) / 2 - np.log(known.sd))
    return terms[0] - terms[1]


def exposure(reference_phi: ArrayLike, inside: ArrayLike) -> Array:
    """How exposed each image is, `(N,)`: what training on it does to phi, in standard deviations.

    The mean over references that trained on it less the mean over those that did not, over the sum of the two shared
    standard deviations. The target is not looked at. NaN below two references on either side.
    """
    references, member = _reference_arrays(reference_phi, inside)
    into, out = (moments(references, side) for side in (member, ~member))
    return (into.mean - out.mean) / (into.sd + out.sd)


def moments(values: Array, side: Flags, variance: Variance = "fixed", enough: int = LEAST) -> Moments:
    """Mean and standard deviation of `(R, N)` values over the references of a side `(R, N)`.

    The shared variance is that within images, sum of squares over degrees of freedom; the authors' code takes the
    spread over references and images together, which also holds how much images differ. No standard deviation is
    below 1e-6, so that references that all say the same give finite scores.
    """
    count = side.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(side, values, 0.0).sum(0) / count
        squares = np.square(np.where(side, values - mean, 0.0)).sum(0)
        own = squares / (count - 1)
    known = count >= LEAST
    freedom = (count[known] - 1).sum()
    shared = squares[known].sum() / freedom if freedom else np.nan
    spread = np.where(count >= enough, own, shared) if variance == "per_image" else np.full(len(count), shared)
    sd = np.sqrt(np.maximum(spread, _LEAST_SD**2))
    return Moments(np.where(known, mean, np.nan), np.where(known, sd, np.nan))


def checked(phi: ArrayLike, reference_phi: ArrayLike, inside: ArrayLike) -> tuple[Array, Array, Flags]:
    """The three arrays as float64 and bool. Raises ValueError when shapes do not fit or a phi is not finite."""
    target = np.asarray(phi, np.float64)
    references, member = _reference_arrays(reference_phi, inside)
    if target.shape != references.shape[1:]:
        raise ValueError(f"the target has {target.shape} log odds, each reference {references.shape[1:]}")
    _finite(target, "the target's")
    return target, references, member


def _reference_arrays(reference_phi: ArrayLike, inside: ArrayLike) -> tuple[Array, Flags]:
    references, member = np.asarray(reference_phi, np.float64), np.asarray(inside)
    if references.ndim != 2 or member.shape != references.shape or member.dtype != np.bool_:
        raise ValueError(
            f"references are (R, N) log odds with (R, N) flags of who trained on what, got {references.shape} "
            f"and {member.shape} {member.dtype}"
        )
    _finite(references, "the references'")
    return references, member


def _finite(values: Array, whose: str) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"{whose} log odds must be finite")
