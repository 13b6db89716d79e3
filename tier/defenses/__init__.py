"""Defenses by name: each returns named loss terms, so that one loop trains them all."""

from collections.abc import Callable

from tier import config
from tier.defenses.base import Defense, Terms
from tier.defenses.tier import TierDefense, tier_loss

__all__ = ["REGISTRY", "Defense", "Terms", "build", "tier_loss"]


def _plain(settings: config.Defense) -> Defense:
    return Defense(settings.augmentation if settings.augments else None)


def _tier(settings: config.Defense) -> Defense:
    return TierDefense(settings.tier, settings.augmentation if settings.augments else None)


REGISTRY: dict[str, Callable[[config.Defense], Defense]] = {
    "none": _plain,
    "augmentation": _plain,
    "tier_reg": _tier,
    "tier_full": _tier,
}


def build(settings: config.Defense) -> Defense:
    """The defense of a config; raises ValueError listing the registered names for an unknown one."""
    if not settings.acts():
        return _plain(settings)
    if settings.name not in REGISTRY:
        raise ValueError(f"no defense named '{settings.name}'; there are {', '.join(REGISTRY)}")
    return REGISTRY[settings.name](settings)
