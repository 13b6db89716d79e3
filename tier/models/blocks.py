"""Building blocks shared by the architectures: no in-place operation, so that hooks and Opacus work."""

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Shift and scale pixels in [0, 1] per channel, so that maps and masks live in pixel space."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone().float().view(1, -1, 1, 1))
        self.register_buffer("std", std.detach().clone().float().view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std  # (B, C, H, W)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, added out of place (He et al. 2016, figure 2)."""

    def __init__(self, width_in: int, width_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.relu2 = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(out)) + self.downsample(x))


class Classifier(nn.Module):
    """Normalisation, then a body that returns logits.

    `cam_candidates` names the submodules, in order of execution, at whose output a class activation map makes sense.
    """

    def __init__(self, normalize: Normalize, body: nn.Module, cam_candidates: tuple[str, ...]) -> None:
        super().__init__()
        self.normalize = normalize
        self.body = body
        self.cam_candidates = tuple(f"body.{name}" for name in cam_candidates)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.normalize(x))  # (B, K)


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """He initialisation of convolutions, ones and zeros for norms, uniform for the linear layer; from one generator."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            nn.init.zeros_(module.bias)


FEWEST = 4  # channels of a group
MOST = 32  # groups


def grouped(model: nn.Module) -> None:
    """Exchange every BatchNorm for a GroupNorm (Wu and He 2018), which looks at one image at a time.

    As many groups of equal size as possible, up to 32 and of no fewer than four channels where there are so many.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            channels = module.num_features
            groups = max(n for n in range(1, MOST + 1) if channels % n == 0 and (n == 1 or channels // n >= FEWEST))
            model.set_submodule(name, nn.GroupNorm(groups, channels))
