"""Distillation: a student learns from the softened answers of teachers instead of from the labels.

The loss is Hinton, Vinyals and Dean's (2015, section 2): T^2 KL(teacher at temperature T || student at T), beside the
cross-entropy. What follows whom:

- `parts` = 1: one teacher trained on all members, whose answers on these same members the student learns. The TIER
  paper's related work names PFE-KD, "which integrates feature extraction with distillation"; this is the distillation
  of that idea. Its extraction of features is not here, as the paper gives no more than that sentence, and neither are
  the unlabelled reference images of DMP (Shejwalkar and Houmansadr 2021), on which alone its student learns.
- `parts` = K > 1: K teachers, each trained on all parts of the members but one, and each image taught by the one that
  never saw it. This is the self-distillation of SELENA (Tang et al. 2022), whose Split-AI likewise leaves each image
  out of some sub-models (10 of 25 there, one of K here), and for K = 2 the pseudo complementary distillation of Zheng,
  Cao and Wang (2021, PCKD) without its pre-training. Unlike SELENA's, answers are given anew on each augmented image,
  and softened.

An image's soft answer still depends on other members, which is an attack of its own (Jagielski et al. 2023).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tier.config import Augmentation, Distillation, Train
from tier.defenses.base import Defense, Terms

STUDENT_SEED = 5000
"""Added to the teacher's seed: with equal weights, batches and augmentation at the start, a student of a confident
teacher would repeat its training step by step. Away from the seeds of targets and of reference models."""


class DistillationDefense(Defense):
    """A student whose teachers are given by `teach`, before training."""

    def __init__(self, config: Distillation, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config
        self._teachers: list[nn.Module] = []
        self._teaches = torch.zeros(0, 0, dtype=torch.bool)  # (M, N)
        self._batch = torch.zeros(0, dtype=torch.int64)  # places among the members

    def settings(self, train: Train) -> Train:
        return train.model_copy(update={"seed": train.seed + STUDENT_SEED})

    def teach(self, models: Sequence[nn.Module], seen: Tensor) -> None:
        """Take the teachers. Raises ValueError where with several parts an image has no teacher that never saw it."""
        if len(models) != self.config.parts:
            raise ValueError(f"distillation with {self.config.parts} parts has that many teachers, not {len(models)}")
        teaches = torch.ones_like(seen) if self.config.parts == 1 else ~seen
        if not bool(teaches.any(0).all()):
            raise ValueError("some members were seen by every teacher, so that none is left to teach them")
        self._teachers, self._teaches = [model.eval() for model in models], teaches

    def begin(self, index: Tensor, epoch: int) -> None:
        self._batch = index

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        """`loss`, `ce`, and `distillation`, T^2 KL of the answers on the batch as the student sees it."""
        temperature, weight = self.config.temperature, self.config.weight
        with torch.no_grad():
            answers = torch.stack([teacher(x).float() for teacher in self._teachers])  # (M, B, K)
            taught = soft_targets(answers, self._teaches.to(x.device)[:, self._batch], temperature)
        logits = model(x).float()
        ce, distilled = F.cross_entropy(logits, y), divergence(logits, taught, temperature)
        return {"loss": weight * distilled + (1 - weight) * ce, "ce": ce, "distillation": distilled}


def soft_targets(answers: Tensor, teaches: Tensor, temperature: float) -> Tensor:
    """Mean confidences at a temperature of the models that teach an image: logits `(M, B, K)`, `(M, B)` bool ->
    `(B, K)`. Each image has at least one such model.
    """
    share = teaches.float() / teaches.sum(0)
    return ((answers / temperature).softmax(2) * share.unsqueeze(2)).sum(0)


def divergence(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """T^2 KL(taught || student at T), mean over the batch: student logits `(B, K)`, confidences `(B, K)` -> scalar.

    The factor keeps the gradient's size when T changes (Hinton et al. 2015, section 2).
    """
    student = (logits / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(student, taught, reduction="batchmean")
