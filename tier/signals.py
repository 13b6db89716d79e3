"""What an attacker can measure on a model besides trajectories: its probabilities, and how steep its outputs are."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.attacks import attribution
from tier.config import Explain
from tier.explainers import explained_class
from tier.explainers.base import inspecting
from tier.runtime import as_pixels

Array = NDArray[np.float64]
Progress = Callable[[float], None]
Output = Literal["logit", "probability", "loss"]


def log_probabilities(model: nn.Module, x: Tensor, batch_size: int = 500) -> Array:
    """log softmax of images `(N, C, H, W)`, uint8 or in [0, 1], in float64: `(N, K)`. The model is left as found."""
    where = next(model.parameters()).device
    with inspecting(model), torch.inference_mode():
        parts = [model(as_pixels(part.to(where))).double().log_softmax(1).cpu() for part in x.split(batch_size)]
    return torch.cat(parts).numpy()


def log_odds(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    queries: int = 1,
    view: Callable[[Tensor, int, int], Tensor] = lambda pixels, query, batch: pixels,
    batch_size: int = 500,
) -> Array:
    """log(p / (1 - p)) of labels `(N,)`, `(N,)` float64, the mean over several views of each image.

    The first query is the image itself, the others are `view(pixels, query, batch)` of each batch, which must depend
    on its arguments only for all models to be asked the same. p and 1 - p keep their digits at any gap between logits:
    -log p is `logaddexp(0, -odds)`. The model is left as found.
    """
    where = next(model.parameters()).device
    found = []
    with inspecting(model), torch.inference_mode():
        for batch, (part, labels) in enumerate(zip(x.split(batch_size), y.split(batch_size), strict=True)):
            pixels, target = as_pixels(part.to(where)), labels.to(where)
            views = (pixels if query == 0 else as_pixels(view(pixels, query, batch)) for query in range(queries))
            odds = [_log_odds(model(one).double(), target) for one in views]
            found.append(torch.stack(odds).mean(0).cpu())
    return torch.cat(found).numpy()


def gradient_statistics(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    output: Output,
    explain: Explain = Explain(),
    batch_size: int = 250,
    progress: Progress = lambda fraction: None,
) -> dict[str, Array]:
    """Logarithms of `attribution.STATISTICS` of d output / d pixels over all C H W inputs, `(N,)` float64 each.

    The output is the logit or the probability p of the class explained (the label, unless `explain.target` says
    otherwise), or its cross-entropy -log p. The gradient of p is p (1 - p), and that of the loss p - 1, times the
    gradient of the log odds log(p / (1 - p)), which is as steep where the model is certain as elsewhere. The factor
    stays a logarithm, so that nothing underflows and no scores tie. The model is left as found.
    """
    where = next(model.parameters()).device
    parts: list[dict[str, Array]] = []
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            part = slice(start, start + batch_size)
            leaf = as_pixels(x[part].to(where)).detach().requires_grad_()
            target = explained_class(model, leaf, y[part].to(where), explain)
            logits = model(leaf).double()
            own, odds = logits.gather(1, target[:, None])[:, 0], _log_odds(logits, target)
            (grad,) = torch.autograd.grad((own if output == "logit" else odds).sum(), leaf)
            factor = _log_factor(odds.detach(), output).cpu().numpy()
            found = attribution.log_statistics(grad.double().cpu().numpy())
            parts.append({name: values + attribution.DEGREES[name] * factor for name, values in found.items()})
            progress(min(1.0, (start + batch_size) / len(x)))
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """log(p / (1 - p)) of a class from float64 logits, `(N, K)`, `(N,)` -> `(N,)`: its own less the others' in all."""
    others = logits.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    return logits.gather(1, target[:, None])[:, 0] - others


def _log_factor(odds: Tensor, output: Output) -> Tensor:
    """log of |d output / d log odds| from log odds `(N,)`; the logit is taken as it is."""
    match output:
        case "logit":
            return torch.zeros_like(odds)
        case "loss":
            return F.logsigmoid(-odds)  # log(1 - p)
        case _:
            return F.logsigmoid(odds) + F.logsigmoid(-odds)  # log p (1 - p)
