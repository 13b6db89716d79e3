"""The plain gradient map: how much a small change of each pixel moves the explained logit."""

from torch import Tensor, nn

from tier.config import ChannelReduction
from tier.explainers.base import input_gradient, inspecting


def gradient(model: nn.Module, x: Tensor, target: Tensor, channel_reduction: ChannelReduction = "mean_abs") -> Tensor:
    """d logit_target / d pixel, reduced over channels: `(B, C, H, W)`, `(B,)` -> `(B, H, W)`, never negative.

    `mean_abs` is mean_c |g| (Algorithm 1's A), `abs_mean` |mean_c g| (section V-A).
    """
    with inspecting(model):
        grad = input_gradient(model, x, target)
    return grad.abs().mean(1) if channel_reduction == "mean_abs" else grad.mean(1).abs()
