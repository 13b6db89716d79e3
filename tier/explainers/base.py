"""The explainers' contract: whole batches, deterministic, the model left as found."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from tier.runtime import as_pixels

ROWS = 256
"""Most rows of a pass that joins several draws of a small batch: enough to keep the processor busy with a single image,
few enough that memory does not grow with the number of draws."""


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


def passes(draws: int, batch: int) -> Iterator[slice]:
    """The draws of each pass: as many as make `ROWS` rows with a batch of `batch` images, at least one."""
    step = max(1, ROWS // batch)
    for start in range(0, draws, step):
        yield slice(start, min(start + step, draws))


def input_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """d logit_target / d x of each image, `(B, C, H, W)`, `(B,)` -> `(B, C, H, W)`; call it while `inspecting`."""
    leaf = x.detach().requires_grad_()
    score = model(leaf).float().gather(1, target.unsqueeze(1)).sum()
    (grad,) = torch.autograd.grad(score, leaf)
    return grad


def stacked_gradients(model: nn.Module, copies: Tensor, target: Tensor) -> Tensor:
    """`input_gradient` of S altered copies of a batch in one pass, `(S, B, C, H, W)`, `(B,)` -> `(S, B, C, H, W)`."""
    rows = as_pixels(copies.flatten(0, 1))
    return input_gradient(model, rows, target.repeat(len(copies))).view_as(copies)


def flat_baseline(x: Tensor, baseline: Literal["zero", "mean"]) -> Tensor:
    """What stands for "nothing there": black, or each image's own mean colour; `(B, C, H, W)` -> `(B, C, 1, 1)`."""
    if baseline == "zero":
        return x.new_zeros(*x.shape[:2], 1, 1)
    # in float64 the mean of a flat image is that image's colour exactly, so that its maps are exactly zero
    return x.double().mean((2, 3), keepdim=True).to(x.dtype)


def over_channels(attribution: Tensor, signed: bool) -> Tensor:
    """One value per pixel, `(B, C, H, W)` -> `(B, H, W)`: the channels' sum, or the sum of their absolute values."""
    return attribution.sum(1) if signed else attribution.abs().sum(1)
