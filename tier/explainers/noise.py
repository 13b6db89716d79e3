"""SmoothGrad and VarGrad: the mean and the variance of the gradient over noisy copies of the image."""

import torch
from torch import Tensor, nn

from tier.explainers.base import inspecting, passes, stacked_gradients
from tier.runtime import generator


def gradient_moments(
    model: nn.Module, x: Tensor, target: Tensor, samples: int, noise: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of d logit_target / d pixel over noisy copies: `(B, C, H, W)`, `(B,)` -> twice `(B, C, H, W)`.

    The mean is SmoothGrad (Smilkov et al. 2017), the variance, divided by `samples`, VarGrad (Adebayo et al. 2018), as
    in captum. The `samples` draws of Gaussian noise with standard deviation `noise` are the same for every image, so
    that a map does not depend on its batch and two models are compared on the same copies. Copies are not clipped.
    """
    draws = noise * torch.randn(samples, *x.shape[1:], generator=generator("explain", seed))
    draws = draws.to(x).unsqueeze(1)  # (S, 1, C, H, W)
    mean, squares = torch.zeros_like(x), torch.zeros_like(x)
    with inspecting(model):
        for part in passes(samples, len(x)):
            found = stacked_gradients(model, x + draws[part], target)
            # merged by deviations from the mean (Chan et al. 1983): E[g^2] - E[g]^2 would cancel, even below zero
            count, seen = len(found), part.start
            local = found.mean(0)
            shift = local - mean
            mean += shift * (count / (seen + count))
            squares += (found - local).square().sum(0) + shift.square() * (seen * count / (seen + count))
    return mean, squares / samples
