"""What a defense is: optional hooks around one training loop, and around the model that is served."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn, optim

from tier.config import Augmentation, Train

if TYPE_CHECKING:
    import torch

Terms = dict[str, Tensor]
"""Named scalar loss terms; `loss` is the total that is minimised."""


class Defense:
    """Plain training: every hook does nothing. A defense overrides what it needs.

    `augmentation` is the transform T that the loop applies to each training batch, or None. A `composed` defense has
    no training of its own: its model is put together from others, which `experiment` trains first.
    """

    composed = False

    def __init__(self, augmentation: Augmentation | None = None) -> None:
        self.augmentation = augmentation

    def settings(self, train: Train) -> Train:
        """The loop's settings as the defense wants them."""
        return train

    def prepare(self, model: nn.Module, optimizer: optim.Optimizer, data: Any) -> tuple[nn.Module, optim.Optimizer]:
        """Change what is trained, or with what, before the first epoch; `data` is a `training.Problem`."""
        return model, optimizer

    def teach(self, models: Sequence[nn.Module], seen: Tensor) -> None:
        """Take over trained models; `seen` `(M, N)` bool says which of the members each of them was trained on. Called
        before training where the defense has such models.
        """

    def batches(self, count: int, size: int, draw: "torch.Generator") -> list[Tensor] | None:
        """One epoch's batches of places among `count` members; None: a shuffled pass in batches of `size`."""
        return None

    def begin(self, index: Tensor, epoch: int) -> None:
        """Told before each batch which members, `(B,)` places, it holds; epochs count from 0."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        """The named loss terms of an augmented batch `(B, C, H, W)`, labels `(B,)`; epochs count from 0."""
        loss = F.cross_entropy(model(x).float(), y)
        return {"loss": loss, "ce": loss}

    def cures(self, train: Train) -> list[str]:
        """What may help a training that diverged, in words that name the settings; `train` as from `settings`."""
        cures = [f"a train.learning_rate below {train.learning_rate}"]
        return cures + (["train.gradient_clip = 1"] if train.gradient_clip is None else [])

    def should_stop(self, history: list[dict[str, Any]]) -> bool:
        """Whether training ends after the epochs in `history`."""
        return False

    def serve(self, build: Callable[[], nn.Module], classes: int) -> nn.Module:
        """The model as it is served, its weights still to be loaded; `build` makes one untrained net."""
        return build()

    def compose(
        self, served: nn.Module, models: Sequence[nn.Module], members: Tensor, outsiders: Callable[[], Tensor]
    ) -> None:
        """Fill the served model of a `composed` defense from trained ones.

        `members`, and what `outsiders` gives, which no model has seen, are uint8 images `(N, C, H, W)`.
        """

    def figures(self) -> dict[str, float]:
        """What is to be told of the finished training, such as the epsilon that it cost."""
        return {}
