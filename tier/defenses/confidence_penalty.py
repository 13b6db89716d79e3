"""Confidence penalty (Pereyra et al. 2017, section 3): cross-entropy minus a weight times the predictions' entropy."""

import torch.nn.functional as F
from torch import Tensor, nn

from tier.config import Augmentation, ConfidencePenalty
from tier.defenses.base import Defense, Terms


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predictions, in nats; logits `(B, K)`."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


class ConfidencePenaltyDefense(Defense):
    """Terms `loss`, `ce` and `entropy`; the total is negative where entropy is worth more than the labels."""

    def __init__(self, config: ConfidencePenalty, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        logits = model(x).float()
        ce, spread = F.cross_entropy(logits, y), entropy(logits)
        return {"loss": ce - self.config.weight * spread, "ce": ce, "entropy": spread}
