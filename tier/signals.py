"""What an attacker can measure on a model besides trajectories: its probabilities, and how steep its loss is."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.explainers.base import inspecting
from tier.runtime import as_pixels


def log_probabilities(model: nn.Module, x: Tensor, batch_size: int = 500) -> NDArray[np.float64]:
    """log softmax of images `(N, C, H, W)`, uint8 or in [0, 1], in float64: `(N, K)`. The model is left as found."""
    where = next(model.parameters()).device
    with inspecting(model), torch.inference_mode():
        parts = [model(as_pixels(part.to(where))).double().log_softmax(1).cpu() for part in x.split(batch_size)]
    return torch.cat(parts).numpy()


def loss_gradient_norm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    batch_size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> NDArray[np.float64]:
    """L2 norm of d cross-entropy / d pixels, `(N, C, H, W)`, `(N,)` -> `(N,)` float64. The model is left as found.

    The loss is taken in float64, where even a certain prediction keeps a gradient: in float32 they would tie at 0.
    """
    where = next(model.parameters()).device
    norms = []
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            part = slice(start, start + batch_size)
            leaf = as_pixels(x[part].to(where)).detach().requires_grad_()
            loss = F.cross_entropy(model(leaf).double(), y[part].to(where), reduction="sum")
            (grad,) = torch.autograd.grad(loss, leaf)
            norms.append(grad.double().flatten(1).norm(dim=1).cpu())
            progress(min(1.0, (start + batch_size) / len(x)))
    return torch.cat(norms).numpy()
