"""The semantic augmentation T (section V-E2): flip, rotation and crop of a whole batch in one resampling."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tier.config import Augmentation


def augment(
    x: Tensor, config: Augmentation, generator: torch.Generator, own: slice = slice(None), count: int | None = None
) -> Tensor:
    """Randomly flipped, rotated and shifted images, `(B, C, H, W)` -> the same shape; outside the image is black.

    The shift by whole pixels is a random crop of the image padded by `config.padding`; rotation is bilinear about the
    centre. `generator` lives on the CPU, so that every device draws the same. Where the images are only the places
    `own` of a batch of `count`, they are changed as they would be in it.
    """
    batch, _, height, width = x.shape
    draws = torch.rand(4, batch if count is None else count, generator=generator)[:, own]
    flip = torch.where(draws[0] < 0.5, -1.0, 1.0) if config.flip else torch.ones(batch)
    angle = (2 * draws[1] - 1) * math.radians(config.rotation)
    span = 2 * config.padding + 1
    down, right = ((draws[2:] * span).floor().clamp(max=span - 1) - config.padding).unbind(0)  # (B,) whole pixels
    cos, sin = angle.cos(), angle.sin()
    ratio = height / width
    theta = torch.stack(  # output position -> input position, in grid_sample's [-1, 1] coordinates
        [
            torch.stack([flip * cos, -flip * sin * ratio, flip * (cos * right - sin * down) * 2 / width], 1),
            torch.stack([sin / ratio, cos, (sin * right + cos * down) * 2 / height], 1),
        ],
        1,
    ).to(x.device)  # (B, 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False).to(x.dtype)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
