"""Early stopping: plain training that ends before its last epoch (Prechelt 1998), the baseline of Song & Mittal 2021.

It ends after a number of epochs and not by a validation loss: no images are held back from any defense here.
"""

from typing import Any

from tier.config import Augmentation, EarlyStopping
from tier.defenses.base import Defense


class EarlyStoppingDefense(Defense):
    """Plain training for `config.epochs` epochs; the learning rate is that of the whole run, cut off."""

    def __init__(self, config: EarlyStopping, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config

    def should_stop(self, history: list[dict[str, Any]]) -> bool:
        return len(history) >= self.config.epochs
