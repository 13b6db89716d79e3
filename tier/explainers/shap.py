"""GradientSHAP: expected gradients between random flat images and the image, times the way travelled."""

import torch
from torch import Tensor, nn

from tier.explainers.base import inspecting, over_channels, passes, stacked_gradients
from tier.runtime import generator


def gradient_shap(model: nn.Module, x: Tensor, target: Tensor, samples: int, seed: int, signed: bool = True) -> Tensor:
    """GradientSHAP (Lundberg and Lee 2017; Erion et al. 2021): `(B, C, H, W)`, `(B,)` -> `(B, H, W)`.

    Mean over draws s of (x - b_s) * df/dx at b_s + a_s (x - b_s); a_s and b_s as `path_draws` gives them. The sum of a
    signed map estimates f(x) - E f(b). captum draws anew for each image of a batch, so its maps depend on the place in
    the batch; here all images share the draws.
    """
    places, colours = path_draws(samples, x.shape[1], seed)
    places, colours = (draw.to(x).view(samples, 1, -1, 1, 1) for draw in (places, colours))
    total = torch.zeros_like(x)
    with inspecting(model):
        for part in passes(samples, len(x)):
            way = x - colours[part]  # (S, B, C, H, W)
            total += (way * stacked_gradients(model, colours[part] + places[part] * way, target)).sum(0)
    return over_channels(total / samples, signed)


def path_draws(samples: int, channels: int, seed: int) -> tuple[Tensor, Tensor]:
    """Places on the path `(S,)` and the baselines' colours `(S, C)`, both uniform on [0, 1]."""
    draws = torch.rand(samples, 1 + channels, generator=generator("explain", seed))
    return draws[:, 0], draws[:, 1:]
