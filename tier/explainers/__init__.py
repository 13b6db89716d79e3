"""Explainers by name, all on one contract: `(model, x, target) -> (B, H, W)`."""

from collections.abc import Callable

from torch import Tensor, nn

from tier.config import Explain
from tier.explainers.base import degenerate
from tier.explainers.cam import default_layer, gradcam
from tier.explainers.gradient import gradient

__all__ = ["REGISTRY", "default_layer", "degenerate", "explain"]

REGISTRY: dict[str, Callable[[Explain, nn.Module, Tensor, Tensor], Tensor]] = {
    "gradient": lambda config, model, x, target: gradient(model, x, target, config.channel_reduction),
    "gradcam": lambda config, model, x, target: gradcam(model, x, target, config.cam_layer),
}


def explain(config: Explain, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Maps of a batch: `(B, C, H, W)` pixels in [0, 1], `(B,)` classes -> `(B, H, W)`.

    The model is left as found: mode, gradients, hooks. Raises ValueError listing the registered names for an unknown
    explainer.
    """
    if config.name not in REGISTRY:
        raise ValueError(f"no explainer named '{config.name}'; there are {', '.join(REGISTRY)}")
    return REGISTRY[config.name](config, model, x, target).detach()
