"""Explainers by name, all on one contract: `(model, x, target) -> (B, H, W)`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.config import Explain
from tier.explainers.base import inspecting, over_channels
from tier.explainers.cam import cams, default_layer
from tier.explainers.gradient import gradient
from tier.explainers.integrated import completeness_gap, integrated_gradients
from tier.explainers.lime import lime
from tier.explainers.noise import gradient_moments
from tier.explainers.shap import gradient_shap
from tier.runtime import as_pixels

__all__ = [
    "REGISTRY", "Attributions", "attributions", "completeness_gap", "default_layer", "explain",
    "explain_family", "explained_class", "mean_gap",
]  # fmt: skip

Family = Callable[[Explain, nn.Module, Tensor, Tensor], tuple[Tensor, ...]]
"""The maps of all explainers that share their passes, in the order of `config.FAMILIES`."""


def _gradient(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (gradient(model, x, target, config.channel_reduction),)


def _noise(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    mean, variance = gradient_moments(model, x, target, config.samples, config.noise, config.seed)
    return over_channels(mean, config.signed), variance.sum(1)


def _cam(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return cams(model, x, target, config.cam_layer)


def _integrated(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (integrated_gradients(model, x, target, config.steps, config.baseline, config.signed),)


def _shap(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (gradient_shap(model, x, target, config.samples, config.seed, config.signed),)


def _lime(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (lime(model, x, target, config),)


REGISTRY: dict[str, Family] = {
    "gradient": _gradient,
    "smoothgrad": _noise,
    "vargrad": _noise,
    "gradcam": _cam,
    "gradcampp": _cam,
    "integrated_gradients": _integrated,
    "shap": _shap,
    "lime": _lime,
}


def explain(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Maps of a batch: `(B, C, H, W)` pixels in [0, 1], `(B,)` classes -> `(B, H, W)`.

    The model is left as found: mode, gradients, hooks. Raises ValueError listing the registered names for an unknown
    explainer.
    """
    return explain_family(config, model, x, target)[config.name]


def explain_family(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The maps `(B, H, W)` of every explainer of `config.family`, by name, for the passes of one; as `explain`."""
    if config.name not in REGISTRY:
        raise ValueError(f"no explainer named '{config.name}'; there are {', '.join(REGISTRY)}")
    maps = REGISTRY[config.name](config, model, x, target)
    return {name: found.detach() for name, found in zip(config.family, maps, strict=True)}


def explained_class(model: nn.Module, x: Tensor, y: Tensor, config: Explain) -> Tensor:
    """The class whose logit is explained: the label, or the model's own prediction. The model must be in eval mode."""
    if config.target == "label":
        return y
    with torch.no_grad():  # not inference mode, whose tensors autograd refuses as an index
        return model(x).argmax(1)


@dataclass(frozen=True)
class Attributions:
    """Maps of N images by explainer, each float32 `(N, H, W)`, and the class explained, int64 `(N,)`."""

    maps: dict[str, NDArray[np.float32]]
    target: NDArray[np.int64]


def attributions(
    config: Explain,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    batch_size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Attributions:
    """Maps of a whole data set `(N, C, H, W)`, uint8 or in [0, 1], labels `(N,)`, for every explainer of the family.

    Runs on the model's device and leaves the model as found. Memory beyond the result is bounded by the batch size.
    Calls `progress(fraction done)` after each batch.
    """
    where = next(model.parameters()).device
    maps: dict[str, NDArray[np.float32]] = {
        name: np.empty((len(x), *x.shape[-2:]), np.float32) for name in config.family
    }
    targets = np.empty(len(x), np.int64)
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            part = slice(start, start + batch_size)
            images = as_pixels(x[part].to(where))
            target = explained_class(model, images, y[part].to(where), config)
            for name, found in explain_family(config, model, images, target).items():
                maps[name][part] = found.cpu().numpy()
            targets[part] = target.cpu().numpy()
            progress(min(1.0, (start + batch_size) / len(x)))
    return Attributions(maps, targets)


def mean_gap(config: Explain, model: nn.Module, x: Tensor, found: Attributions, batch_size: int = 250) -> float | None:
    """Mean |`completeness_gap`| of a data set's maps, in logits: how well the steps of Integrated Gradients sufficed.

    None for other explainers, for maps without a sign, which need not add up to anything, and for models whose
    gradient is not that of what they answer (`straight_through`).
    """
    if config.name != "integrated_gradients" or not config.signed or getattr(model, "straight_through", False):
        return None
    where, gaps = next(model.parameters()).device, []
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        maps, target = (torch.from_numpy(all[part]).to(where) for all in (found.maps[config.name], found.target))
        gap = completeness_gap(model, as_pixels(x[part].to(where)), target, maps, config.baseline)
        gaps.append(gap.abs().cpu().numpy())
    return float(np.concatenate(gaps).mean())
