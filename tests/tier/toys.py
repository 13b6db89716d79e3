"""Tiny images, nets and problems that the tests of the torch side share."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tier import config, gallery, models
from tier.models.blocks import Classifier
from tier.training import Problem


def images(count: int = 4, height: int = 16, width: int = 16, seed: int = 0) -> Tensor:
    """Random pixels in [0, 1], `(count, 3, height, width)`."""
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def labels(count: int = 4, classes: int = 4) -> Tensor:
    """0, 1, 2, ... in turn."""
    return torch.arange(count) % classes


def net(architecture: config.ArchitectureName = "small", classes: int = 4, seed: int = 0, width: int = 4) -> Classifier:
    """A fresh classifier in evaluation mode whose BatchNorm statistics are not the trivial zeros and ones."""
    model = models.build(
        config.Model(architecture=architecture, width=width),
        classes,
        torch.full((3,), 0.5),
        torch.full((3,), 0.25),
        seed,
    )
    draw = torch.Generator().manual_seed(seed + 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features, generator=draw) * 0.1
            module.running_var = torch.rand(module.num_features, generator=draw) + 0.5
    return model.eval()


def plain_net(classes: int = 4, seed: int = 0) -> nn.Module:
    """A smooth net without BatchNorm, so that one image's output does not depend on the others; sensitive to masks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 6, 3, stride=2, padding=1), nn.Softplus(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, classes),
        )  # fmt: skip
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 3.0
        next(iter(model[-1].parameters())).mul_(4.0)
    return model


def problem(count: int = 24, classes: int = 4, height: int = 8, width: int = 8, seed: int = 0) -> Problem:
    """`count` members and as many non-members of random pixels with a class-dependent brightness."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.arange(2 * count) % classes
    noise = torch.randint(0, 120, (2 * count, 3, height, width), generator=draw)
    pixels = (noise + 100 * label.view(-1, 1, 1, 1) // classes).to(torch.uint8)
    return Problem(pixels[:count], label[:count], pixels[count:], label[count:], classes)


def pictures(count: int = 4, height: int = 16, width: int = 16, seed: int = 0, channels: int = 3) -> Tensor:
    """Smooth random colours in [0, 1], `(count, channels, height, width)`: superpixels find regions in them."""
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear")


def smooth_net(channels: int = 3, classes: int = 4, seed: int = 0) -> nn.Module:
    """As `plain_net`, for any number of channels and moderate weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 6, 3, padding=1), nn.Softplus(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(96, classes),
        )  # fmt: skip


def degenerate(maps: Tensor) -> NDArray[np.bool_]:
    """`tier.gallery.degenerate` of an explainer's maps."""
    return gallery.degenerate(maps.numpy())
