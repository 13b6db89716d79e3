"""All attacks of a sceptic on one model (SPEC 8), with signs, classifiers and thresholds found without its members.

What the attacker learns comes from a shadow model whose members are known; attacks with references find their threshold
by attacking the references themselves, of which it is known who trained on what.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tier.attacks import (
    ATTACKS,
    agp,
    attribution,
    entry,
    gap,
    input_gradient,
    lira,
    loss,
    loss_mlp,
    modified_entropy,
    rmia,
)
from tier.attacks import oriented as direction
from tier.config import Audit
from tier.metrics import best_threshold

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Signals:
    """What an attacker can see of N images of one model with K classes; None for what was not measured.

    Log probabilities of the label, of the target `(N,)` and of R references `(R, N)`, and of Z other images, `(Z,)` and
    `(R, Z)`; `reference_in` `(R, N)` bool: who trained on what.
    """

    label: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None
    classes: int | None = None
    loss: Array | None = None
    log_probabilities: Array | None = None  # (N, K)
    maps: NDArray[Any] | None = None  # (N, H, W)
    gradient_norm: Array | None = None  # of the loss with respect to the pixels
    morf: Array | None = None  # (N, L) log confidences
    lerf: Array | None = None
    log_p: Array | None = None
    reference_log_p: Array | None = None
    reference_in: NDArray[np.bool_] | None = None
    population_log_p: Array | None = None
    population_reference_log_p: Array | None = None

    def need(self, *names: str) -> list[Any]:
        """The signals of these names. Raises ValueError that lists those not measured."""
        if missing := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"the attack needs signals that were not measured: {', '.join(missing)}")
        return [getattr(self, name) for name in names]


@dataclass(frozen=True)
class Settings:
    """Open choices of the attacks with references, and the classifier's settings."""

    audit: Audit = Audit()
    variance: lira.Variance = "fixed"
    enough: int = lira.ENOUGH
    mode: rmia.Mode = "offline"
    gamma: float = 2.0
    a: float = 0.3


class Scored(NamedTuple):
    """Scores of the target's images `(N,)`, higher = member, with what was found on shadow or references for them."""

    scores: Array
    threshold: float
    sign: int


def score(name: str, target: Signals, shadow: Signals, shadow_member: NDArray[np.bool_], settings: Settings) -> Scored:
    """One attack on the target's images; sign, classifier and threshold come from elsewhere.

    A threshold is that of the best balanced accuracy on the shadow's images, cross-fitted where a classifier is learnt
    from them; 0 for gap. With references, it is the best when each of them in turn is taken for the target. Raises
    ValueError for an unknown attack, a signal not measured, and a shadow without one of the two groups.
    """
    found = entry(name)
    if found.references:
        return _with_references(name, target, settings)
    if found.learned:
        return _learned(name, target, shadow, shadow_member, settings.audit)
    own, theirs = STATISTICS[name](target), STATISTICS[name](shadow)
    sign = direction(theirs, shadow_member) if found.oriented else 1
    if name == "gap":
        return Scored(own, 0.0, 1)
    return Scored(sign * own, _threshold(sign * theirs, shadow_member), sign)


STATISTICS: dict[str, Callable[[Signals], Array]] = {
    "gap": lambda s: gap.score(*s.need("predicted", "label")),
    "loss": lambda s: loss.score(*s.need("loss")),
    "modified_entropy": lambda s: modified_entropy.score(*s.need("log_probabilities", "label")),
    "attribution_variance": lambda s: attribution.statistic("variance", *s.need("maps")),
    "attribution_l1": lambda s: attribution.statistic("l1", *s.need("maps")),
    "attribution_l2": lambda s: attribution.statistic("l2", *s.need("maps")),
    "input_gradient_norm": lambda s: input_gradient.score(*s.need("gradient_norm")),
}
"""The attacks that are one number per image, before the sign."""


def ready(target: Signals, names: Iterable[str] = ATTACKS) -> list[str]:
    """Which of the attacks can be mounted with what was measured."""
    return [name for name in names if all(getattr(target, signal) is not None for signal in entry(name).needs)]


def _learned(name: str, target: Signals, shadow: Signals, member: NDArray[np.bool_], config: Audit) -> Scored:
    own, theirs = (_features(name, signals) for signals in (target, shadow))
    trained = agp.fit(theirs, member, config)
    return Scored(trained.score(own), _threshold(agp.cross_fitted(theirs, member, config), member), 1)


def _features(name: str, signals: Signals) -> agp.Features:
    measured = signals.need(*entry(name).needs, "classes")
    return agp.Features(*measured) if name == "agp" else loss_mlp.features(*measured)


def _with_references(name: str, target: Signals, settings: Settings) -> Scored:
    """Scores of the target, and the threshold that is best when each reference in turn is taken for the target."""
    log_p, references, inside, *population = target.need(*entry(name).needs)
    scores = _compared(name, log_p, references, inside, population, settings)
    found, member = [], []
    for index in range(len(references)):
        others = np.arange(len(references)) != index
        theirs = [population[1][index], population[1][others]] if population else []
        found.append(_compared(name, references[index], references[others], inside[others], theirs, settings))
        member.append(inside[index])
    return Scored(scores, _threshold(np.concatenate(found), np.concatenate(member)), 1)


def _compared(
    name: str, log_p: Array, references: Array, inside: NDArray[np.bool_], population: list[Array], settings: Settings
) -> Array:
    if name == "lira_offline":
        return lira.offline(log_p, references, inside)
    if name == "lira_online":
        return lira.online(log_p, references, inside, settings.variance, settings.enough)
    others, theirs = population
    return rmia.score(log_p, references, inside, others, theirs, settings.mode, settings.gamma, settings.a)


def _threshold(scores: Array, member: NDArray[np.bool_]) -> float:
    there = ~np.isnan(scores)
    return best_threshold(scores[there & member], scores[there & ~member])
