"""RelaxLoss (Chen, Yu and Fritz, ICLR 2022, Algorithm 1): the mean loss of a batch is held at alpha.

Above alpha: descent. Below it, in turn by epochs: ascent, or posterior flattening, which keeps the label's probability
and spreads the rest evenly over the other classes. Whose posteriors are flattened differs between the authors' own code
for images and for tables (github.com/DingfanChen/RelaxLoss), so it is a setting. The soft label is a constant, as the
paper has it; that code lets the gradient through.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from tier.config import Augmentation, RelaxLoss
from tier.defenses.base import Defense, Terms


def soft_labels(logits: Tensor, y: Tensor, upper: float) -> Tensor:
    """The flattened posteriors `(B, K)`, constants: the label keeps its probability up to `upper`, the rest is even."""
    own = logits.detach().softmax(-1).gather(1, y.unsqueeze(1)).clamp(max=upper)  # (B, 1)
    others = (1 - own) / (logits.shape[1] - 1)
    return others.expand_as(logits).scatter(1, y.unsqueeze(1), own)


def relaxed(logits: Tensor, y: Tensor, epoch: int, config: RelaxLoss) -> Tensor:
    """What is minimised for a batch `(B, K)`, `(B,)` whose mean loss is below alpha; epochs count from 0."""
    if epoch % 2 == 0:
        return -F.cross_entropy(logits, y)
    flattened = F.cross_entropy(logits, soft_labels(logits, y, config.upper), reduction="none")
    if config.flattens == "all":
        return flattened.mean()
    wrong = logits.argmax(1) != y
    return (wrong * flattened - F.cross_entropy(logits, y, reduction="none")).mean()


class RelaxLossDefense(Defense):
    """Terms `loss`, `ce`, and `relaxed`: the share of images in batches that were below alpha.

    The total is negative where it ascends.
    """

    def __init__(self, config: RelaxLoss, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        logits = model(x).float()
        ce = F.cross_entropy(logits, y)
        below = ce.detach() < self.config.alpha
        return {"loss": relaxed(logits, y, epoch, self.config) if below else ce, "ce": ce, "relaxed": below.float()}
