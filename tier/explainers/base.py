"""The explainers' contract: whole batches, deterministic, the model left as found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def inspecting(model: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients on; each module's own mode comes back, parameter gradients are never touched."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def degenerate(maps: Tensor) -> Tensor:
    """Which maps `(B, H, W)` say nothing about order: all equal, or holding NaN or infinity; `(B,)` bool."""
    flat = maps.flatten(1)
    return ~torch.isfinite(flat).all(1) | (flat.amax(1) == flat.amin(1))
