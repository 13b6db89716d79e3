"""What a defense is: four optional hooks around one training loop."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn, optim

from tier.config import Augmentation

Terms = dict[str, Tensor]
"""Named scalar loss terms; `loss` is the total that is minimised."""


class Defense:
    """Plain training: every hook does nothing. A defense overrides what it needs.

    `augmentation` is the transform T that the loop applies to each training batch, or None.
    """

    def __init__(self, augmentation: Augmentation | None = None) -> None:
        self.augmentation = augmentation

    def prepare(
        self, model: nn.Module, optimizer: optim.Optimizer, data: Any
    ) -> tuple[nn.Module, optim.Optimizer, Any]:
        """Change what is trained, with what, or on what, before the first epoch."""
        return model, optimizer, data

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        """The named loss terms of an augmented batch `(B, C, H, W)`, labels `(B,)`; epochs count from 0."""
        loss = F.cross_entropy(model(x).float(), y)
        return {"loss": loss, "ce": loss}

    def should_stop(self, history: list[dict[str, Any]]) -> bool:
        """Whether training ends after the epochs in `history`."""
        return False

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is served."""
        return model
