"""Membership inference attacks: arrays in, one score per image out, higher = member."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tier.metrics import auc


@dataclass(frozen=True)
class Entry:
    """One attack as a reader meets it: its idea, its source, and the signals it needs (`battery.Signals`).

    `oriented`: which direction means member is chosen on a shadow model. `learned`: a classifier trained on a shadow
    model scores. `references`: models trained on random halves of the target's images are compared with; an offline
    attacker has only those that did not see the image, and finds the threshold on a shadow, of which all are such.
    """

    description: str
    source: str
    needs: tuple[str, ...]
    oriented: bool = False
    learned: bool = False
    references: bool = False


_REFERENCES = ("phi", "reference_phi", "reference_in")

ATTACKS: dict[str, Entry] = {
    "agp": Entry(
        "a classifier on how fast the confidence falls when explained pixels go, with loss and predicted class",
        "TIER, section IV", ("morf", "lerf", "loss", "predicted"), learned=True,
    ),
    "gap": Entry("whoever is classified correctly is a member", "Yeom et al. 2018", ("predicted", "label")),
    "loss": Entry("a low loss points to a member", "Yeom et al. 2018", ("loss",)),
    "modified_entropy": Entry(
        "a prediction that is certain and right points to a member",
        "Song and Mittal 2021", ("log_probabilities", "label"),
    ),
    "attribution_variance": Entry(
        "how unevenly the explanation is spread over the inputs", "Shokri et al. 2021", ("explanation",), oriented=True
    ),
    "attribution_l1": Entry(
        "the explanation's sum of absolute values", "Shokri et al. 2021", ("explanation",), oriented=True
    ),
    "attribution_l2": Entry(
        "the explanation's length as a vector", "Shokri et al. 2021", ("explanation",), oriented=True
    ),
    "input_gradient_norm": Entry(
        "the loss is flat around a member: the norm of its gradient with respect to the pixels",
        "Shokri et al. 2021; Rezaei and Liu 2021", ("log_gradient_norm",), oriented=True,
    ),
    "loss_mlp": Entry(
        "the classifier of agp without the trajectories: what it gains is what they add",
        "SPEC 8", ("loss", "predicted"), learned=True,
    ),
    "lira_offline": Entry(
        "how unlikely so high a confidence is among models that did not train on the image",
        "Carlini et al. 2022", _REFERENCES, references=True,
    ),
    "lira_online": Entry(
        "likelihood ratio of the confidence between models that trained on the image and models that did not",
        "Carlini et al. 2022, algorithm 1", _REFERENCES, references=True,
    ),
    "rmia": Entry(
        "how many other images the image beats in gain of probability over reference models",
        "Zarifzadeh et al. 2024", (*_REFERENCES, "population_phi", "population_reference_phi"),
        references=True,
    ),
}  # fmt: skip
"""Every attack by its name in settings, JSON and on the command line (SPEC 0)."""


def entry(name: str) -> Entry:
    """The attack of that name. Raises ValueError, listing the valid names, for an unknown one."""
    if name not in ATTACKS:
        raise ValueError(f"no attack named '{name}'; there are {', '.join(ATTACKS)}")
    return ATTACKS[name]


def oriented(shadow_scores: ArrayLike, shadow_member: ArrayLike) -> int:
    """Which direction of a statistic means member, from a shadow model's images: +1 as it is, -1 turned round.

    The sign whose AUC on the shadow is at least one half; scores that are NaN are left out. Raises ValueError when
    nothing is left of one of the two groups.
    """
    scores, member = np.asarray(shadow_scores, np.float64), np.asarray(shadow_member, bool)
    there = ~np.isnan(scores)
    return 1 if auc(scores[there & member], scores[there & ~member]) >= 0.5 else -1
