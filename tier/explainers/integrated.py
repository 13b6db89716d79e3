"""Integrated Gradients: the gradient along the straight path from a baseline, times the way travelled."""

from typing import Literal

import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn

from tier.explainers.base import ROWS, flat_baseline, inspecting, over_channels


def integrated_gradients(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    steps: int = 32,
    baseline: Literal["zero", "mean"] = "zero",
    signed: bool = True,
) -> Tensor:
    """Integrated Gradients (Sundararajan et al. 2017, eq. 1): `(B, C, H, W)`, `(B,)` -> `(B, H, W)`.

    captum's, with Gauss-Legendre nodes. Signed maps sum to f(x) - f(baseline) up to `completeness_gap`.
    """
    pixels = x.detach()
    with inspecting(model):
        found = IntegratedGradients(lambda rows: model(rows).float()).attribute(
            pixels,
            baselines=flat_baseline(pixels, baseline).expand_as(pixels),
            target=target,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(ROWS, len(pixels)),
        )
    return over_channels(found.detach(), signed)


def completeness_gap(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, baseline: Literal["zero", "mean"] = "zero"
) -> Tensor:
    """How far signed maps `(B, H, W)` miss completeness: sum of the map - (f(x) - f(baseline)), in logits, `(B,)`."""
    start = flat_baseline(x, baseline).expand_as(x)
    with inspecting(model), torch.no_grad():
        scores = [model(rows).double().gather(1, target.unsqueeze(1)).squeeze(1) for rows in (x, start)]
    return maps.double().sum((1, 2)) - (scores[0] - scores[1])
