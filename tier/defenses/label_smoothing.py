"""Label smoothing (Szegedy et al. 2016, section 7): the label keeps 1 - a of the target, all classes share a alike."""

import torch.nn.functional as F
from torch import Tensor, nn

from tier.config import Augmentation, LabelSmoothing
from tier.defenses.base import Defense, Terms


class LabelSmoothingDefense(Defense):
    """Cross-entropy against smoothed labels; `ce` is the one against the labels, which other runs report too."""

    def __init__(self, config: LabelSmoothing, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        logits = model(x).float()
        smoothed = F.cross_entropy(logits, y, label_smoothing=self.config.amount)
        return {"loss": smoothed, "ce": F.cross_entropy(logits.detach(), y)}
