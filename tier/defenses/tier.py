"""TIER (Algorithm 1, eq. 3): cross-entropy plus lambda times (KL consistency + beta * variance of confidence drops)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tier.config import Augmentation, Tier
from tier.defenses.base import Defense, Terms
from tier.perturbation import mask_levels, ranks, removed

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

Join = Callable[[Tensor], Tensor]
"""Figures `(L, B)` of this process' images -> those of the whole batch, where several processes share it out."""


def alone(figures: Tensor) -> Tensor:
    """The figures themselves: this process has the whole batch."""
    return figures


def tier_loss(
    model: nn.Module, x: Tensor, y: Tensor, epoch: int, config: Tier = Tier(), join: Join = alone
) -> tuple[Tensor, Terms]:
    """The total TIER loss of a batch, cross-entropy included, and its terms `loss, ce, kl, var`.

    `x` is `(B, C, H, W)`, already augmented; `y` is `(B,)`; `epoch` counts from 0, so the first `config.warmup` epochs
    are plain. The attribution map is a detached by-product of the clean pass; all masked levels go through the model
    as one stacked pass. Source: Algorithm 1 and eq. 3. Minimise with `torch.autograd.backward(total, inputs=weights)`
    to save the gradient of the pixels, or with `total.backward()`. With a `join`, means are over the share `x` of the
    batch, and the variance is that of the whole batch.
    """
    weight = strength(config, epoch)
    if weight == 0:
        ce = F.cross_entropy(model(x).float(), y)
        return ce, {"loss": ce, "ce": ce}
    with _without_dropout(model):
        leaf = x.detach().requires_grad_()
        clean = model(leaf).float()  # (B, K)
        target = y if config.target == "label" else clean.argmax(1)
        attribution = _gradient_map(clean, leaf, target, config)  # (B, H, W)
        places = ranks(attribution, first=removed(max(config.levels), attribution[0].numel()))
        masked = mask_levels(x.detach(), places, config.levels, config.fill)  # (L, B, C, H, W)
        perturbed = _masked_logits(model, masked, config)  # (L, B, K)
    ce = F.cross_entropy(clean, y)
    kl = consistency(clean, perturbed)
    var = drop_variance(clean, perturbed, target, config, join)
    total = ce + weight * (kl + config.beta * var)
    return total, {"loss": total, "ce": ce, "kl": kl, "var": var}


def strength(config: Tier, epoch: int) -> float:
    """lambda at an epoch (counted from 0): 0 in the warm-up, then constant or rising linearly over `ramp` epochs."""
    if epoch < config.warmup:
        return 0.0
    if config.lambda_schedule == "linear":
        return config.lambda_ * min(1.0, (epoch - config.warmup + 1) / config.ramp)
    return config.lambda_


def consistency(clean: Tensor, perturbed: Tensor) -> Tensor:
    """L_KL: mean over levels and batch of KL(softmax clean || softmax perturbed); logits `(B, K)` and `(L, B, K)`."""
    log_p, log_q = clean.log_softmax(-1), perturbed.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def drop_variance(clean: Tensor, perturbed: Tensor, target: Tensor, config: Tier, join: Join = alone) -> Tensor:
    """L_var: the variance of the confidence drops, over the batch for each level (Algorithm 1) or over the levels.

    Unbiased variance; 0 where there is one value only. `target` is `(B,)`.
    """
    if config.confidence == "probability":
        clean, perturbed = clean.softmax(-1), perturbed.softmax(-1)
    index = target.unsqueeze(1)
    before = clean.gather(1, index).squeeze(1)  # (B,)
    after = perturbed.gather(2, index.expand(len(perturbed), -1, 1)).squeeze(2)  # (L, B)
    dimension = 1 if config.variance == "batch" else 0
    drops = before - after
    if config.variance == "batch":
        drops = join(drops)
    if drops.shape[dimension] < 2:
        return drops.sum() * 0.0
    return drops.var(dimension).mean()


def _gradient_map(logits: Tensor, leaf: Tensor, target: Tensor, config: Tier) -> Tensor:
    score = logits.gather(1, target.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(score, leaf, retain_graph=True)
    return gradient.abs().mean(1) if config.channel_reduction == "mean_abs" else gradient.mean(1).abs()


def _masked_logits(model: nn.Module, masked: Tensor, config: Tier) -> Tensor:
    levels, batch = masked.shape[:2]
    if config.batchnorm == "per_level":
        return torch.stack([model(level).float() for level in masked])
    with _frozen_statistics(model, config.batchnorm == "clean_statistics"):
        return model(masked.flatten(0, 1)).float().view(levels, batch, -1)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout layers off, so that clean and masked predictions differ by the mask alone."""
    active = [module for module in model.modules() if isinstance(module, _DROPOUT) and module.training]
    for module in active:
        module.eval()
    try:
        yield
    finally:
        for module in active:
            module.train()


@contextmanager
def _frozen_statistics(model: nn.Module, frozen: bool) -> Iterator[None]:
    """BatchNorm still normalises by the batch at hand, but its running statistics stay as they are."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if frozen else []
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count


class TierDefense(Defense):
    """TIER inside the training loop: Reg-only without T, Full with it."""

    def __init__(self, config: Tier, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config
        self.join: Join = alone

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        return tier_loss(model, x, y, epoch, self.config, self.join)[1]
