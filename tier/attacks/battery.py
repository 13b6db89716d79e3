"""All attacks of a sceptic on one model (SPEC 8), with signs, classifiers and thresholds found without its members.

What the attacker learns (signs, classifiers, thresholds) comes from the attack-train part of a shadow model, the same
rows that the attack with trajectories learns from. Only attacks whose references trained on the target's own images
(online) find their threshold by attacking each of those in turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tier.attacks import (
    agp,
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
from tier.config import Audit, Battery
from tier.metrics import best_threshold, report

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Signals:
    """What an attacker can see of N images of one model with K classes; None for what was not measured.

    `phi` is log(p / (1 - p)) of the label, the mean over the queries: of the model `(N,)` and of R references `(R, N)`,
    and of Z other images, `(Z,)` and `(R, Z)`; `reference_in` `(R, N)` bool: who trained on what.
    """

    label: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None
    classes: int | None = None
    loss: Array | None = None
    log_probabilities: Array | None = None  # (N, K)
    explanation: Mapping[str, Array] | None = None  # logarithm of each of `attribution.STATISTICS`
    log_gradient_norm: Array | None = None  # of the loss with respect to the pixels
    morf: Array | None = None  # (N, L) log confidences
    lerf: Array | None = None
    phi: Array | None = None
    reference_phi: Array | None = None
    reference_in: NDArray[np.bool_] | None = None
    population_phi: Array | None = None
    population_reference_phi: Array | None = None

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
    enough: int = Battery().enough
    mode: rmia.Mode = "offline"
    gamma: float = Battery().gamma
    a: float = Battery().a


class Scored(NamedTuple):
    """Scores of the target's images `(N,)`, higher = member, with what was found on shadow or references for them.

    `shadow` are those of the shadow's images `(M,)`, of which the rows learnt from say nothing; None where it taught
    nothing. `opposite` is the threshold of the opposite sign, where the shadow chose the sign.
    """

    scores: Array
    threshold: float
    sign: int = 1
    shadow: Array | None = None
    opposite: float | None = None


def score(
    name: str,
    target: Signals,
    shadow: Signals,
    shadow_member: NDArray[np.bool_],
    learn: NDArray[np.int64],
    settings: Settings,
) -> Scored:
    """One attack on the target's images; sign, classifier and threshold come from elsewhere.

    They are learnt from the rows `learn` of the shadow's images (its attack-train part); the threshold is that of the
    best balanced accuracy there, cross-fitted where a classifier is learnt from them; 0 for gap. Online, with
    references that trained on the target's images, it is the best when each of them in turn is taken for the target.
    Raises ValueError for an unknown attack, a signal not measured, and rows without one of the two groups.
    """
    found = entry(name)
    if found.learned:
        return _learned(name, target, shadow, shadow_member, learn, settings.audit)
    if name == "lira_online" or (name == "rmia" and settings.mode == "online"):
        return Scored(_compared(name, target, settings), _threshold(*_in_turn(name, target, settings)))
    own, theirs = (_statistic(name, signals, settings) for signals in (target, shadow))
    member = shadow_member[learn]
    sign = direction(theirs[learn], member) if found.oriented else 1
    if name == "gap":
        return Scored(own, 0.0, shadow=theirs)
    opposite = _threshold(-sign * theirs[learn], member) if found.oriented else None
    return Scored(sign * own, _threshold(sign * theirs[learn], member), sign, sign * theirs, opposite)


def leaf(
    found: Scored, member: NDArray[np.bool_], shadow_member: NDArray[np.bool_], test: NDArray[np.int64]
) -> dict[str, Any]:
    """What an attack is worth on the target, a `metrics.report` with `sign`, and more reports of the same kind in it.

    `attack_test` is on the rows `test` of the shadow, which taught nothing. `opposite`, where the shadow chose the
    sign, is on the target with the other one, its threshold found in the same way.
    """
    made = _report(found.scores, member, found.threshold) | {"sign": found.sign}
    if found.shadow is None:
        made["refused"]["attack_test"] = "the reference models taught the threshold, not a shadow"
        made["attack_test"] = None
    else:
        made["attack_test"] = _report(found.shadow[test], shadow_member[test], found.threshold)
    if found.opposite is not None:
        made["opposite"] = _report(-found.scores, member, found.opposite) | {"sign": -found.sign}
    return made


def _report(scores: Array, member: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    return report(scores[member], scores[~member], threshold)


STATISTICS: dict[str, Callable[[Signals], Array]] = {
    "gap": lambda s: gap.score(*s.need("predicted", "label")),
    "loss": lambda s: loss.score(*s.need("loss")),
    "modified_entropy": lambda s: modified_entropy.score(*s.need("log_probabilities", "label")),
    "attribution_variance": lambda s: s.need("explanation")[0]["variance"],
    "attribution_l1": lambda s: s.need("explanation")[0]["l1"],
    "attribution_l2": lambda s: s.need("explanation")[0]["l2"],
    "input_gradient_norm": lambda s: input_gradient.score(*s.need("log_gradient_norm")),
}
"""The attacks that are one number per image, before the sign, without a look at other models."""


def _statistic(name: str, signals: Signals, settings: Settings) -> Array:
    return STATISTICS[name](signals) if name in STATISTICS else _compared(name, signals, settings)


def _learned(
    name: str, target: Signals, shadow: Signals, member: NDArray[np.bool_], learn: NDArray[np.int64], config: Audit
) -> Scored:
    own, theirs = (_features(name, signals) for signals in (target, shadow))
    taught = theirs.take(learn)
    trained = agp.fit(taught, member[learn], config)
    threshold = _threshold(agp.cross_fitted(taught, member[learn], config), member[learn])
    return Scored(trained.score(own), threshold, shadow=trained.score(theirs))


def _features(name: str, signals: Signals) -> agp.Features:
    measured = signals.need(*entry(name).needs, "classes")
    return agp.Features(*measured) if name == "agp" else loss_mlp.features(*measured)


def _compared(name: str, signals: Signals, settings: Settings) -> Array:
    """Scores `(N,)` of an attack that compares a model with references."""
    phi, references, inside, *population = signals.need(*entry(name).needs)
    if name == "lira_offline":
        return lira.offline(phi, references, inside)
    if name == "lira_online":
        return lira.online(phi, references, inside, settings.variance, settings.enough)
    others, theirs = population
    return rmia.score(phi, references, inside, others, theirs, settings.mode, settings.gamma, settings.a)


def _in_turn(name: str, target: Signals, settings: Settings) -> tuple[Array, NDArray[np.bool_]]:
    """Scores and membership `(R N,)` when each reference in turn is taken for the target, the others for references.

    One of the references on an image's side is then missing, so that one less is enough for a variance of its own.
    """
    references, inside = target.need("reference_phi", "reference_in")
    population = target.population_reference_phi
    fewer = replace(settings, enough=settings.enough - 1)
    found = []
    for index in range(len(references)):
        others = np.arange(len(references)) != index
        seen = replace(target, phi=references[index], reference_phi=references[others], reference_in=inside[others])
        if population is not None:
            seen = replace(seen, population_phi=population[index], population_reference_phi=population[others])
        found.append(_compared(name, seen, fewer))
    return np.concatenate(found), inside.ravel()


def _threshold(scores: Array, member: NDArray[np.bool_]) -> float:
    there = ~np.isnan(scores)
    return best_threshold(scores[there & member], scores[there & ~member])
