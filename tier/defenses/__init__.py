"""Defenses by name: each returns named loss terms, so that one loop trains them all."""

from collections.abc import Callable
from typing import Any

from tier import config
from tier.defenses.base import Defense, Terms
from tier.defenses.confidence_penalty import ConfidencePenaltyDefense
from tier.defenses.distillation import DistillationDefense
from tier.defenses.early_stopping import EarlyStoppingDefense
from tier.defenses.ensemble_partition import EnsemblePartitionDefense
from tier.defenses.label_smoothing import LabelSmoothingDefense
from tier.defenses.memguard import MemGuardDefense
from tier.defenses.relaxloss import RelaxLossDefense
from tier.defenses.tier import TierDefense, tier_loss

__all__ = ["REGISTRY", "Defense", "Terms", "build", "tier_loss"]


def _plain(settings: config.Defense) -> Defense:
    return Defense(settings.augmentation if settings.augments else None)


def _tier(settings: config.Defense) -> Defense:
    return TierDefense(settings.tier, settings.augmentation if settings.augments else None)


def _of(kind: Callable[[Any, config.Augmentation | None], Defense]) -> Callable[[config.Defense], Defense]:
    """A defense made from its own part of the settings and the augmentation."""

    def made(settings: config.Defense) -> Defense:
        part = getattr(settings, config.DEFENSE_SETTINGS[settings.name])
        return kind(part, settings.augmentation if settings.augments else None)

    return made


def _private(settings: config.Defense) -> Defense:
    from tier.defenses.dpsgd import DpSgdDefense  # here: Opacus takes a second to import

    return DpSgdDefense(settings.dpsgd, settings.augmentation if settings.augments else None)


REGISTRY: dict[str, Callable[[config.Defense], Defense]] = {
    "none": _plain,
    "augmentation": _plain,
    "tier_reg": _tier,
    "tier_full": _tier,
    "early_stopping": _of(EarlyStoppingDefense),
    "label_smoothing": _of(LabelSmoothingDefense),
    "relaxloss": _of(RelaxLossDefense),
    "confidence_penalty": _of(ConfidencePenaltyDefense),
    "distillation": _of(DistillationDefense),
    "ensemble_partition": _of(EnsemblePartitionDefense),
    "dpsgd_eps100": _private,
    "dpsgd_tuned": _private,
    "memguard": _of(MemGuardDefense),
}


def build(settings: config.Defense) -> Defense:
    """The defense of a config; raises ValueError listing the registered names for an unknown one."""
    if settings.name not in REGISTRY:
        raise ValueError(f"no defense named '{settings.name}'; there are {', '.join(REGISTRY)}")
    return REGISTRY[settings.name](settings) if settings.acts() else _plain(settings)
