"""Class activation maps: the feature maps of one layer, weighted by how they move the explained logit."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tier.explainers.base import inspecting

SMALLEST_MAP = 4


def cams(model: nn.Module, x: Tensor, target: Tensor, layer: str | None = None) -> tuple[Tensor, Tensor]:
    """Grad-CAM and Grad-CAM++ from one pass: `(B, C, H, W)`, `(B,)` -> two maps `(B, H, W)`, never negative.

    The rectified weighted sum of the layer's feature maps is scaled up bilinearly. `layer` names a submodule; None
    takes `default_layer`.
    """
    activations, gradients = layer_pass(model, x, target, layer or default_layer(model, x))
    weights = mean_weights(gradients), plus_plus_weights(activations, gradients)
    coarse = torch.cat([(weight * activations).sum(1, keepdim=True).relu() for weight in weights], 1)  # (B, 2, h, w)
    # with the channels last, two maps are scaled up in the time of one
    coarse = coarse.contiguous(memory_format=torch.channels_last)
    maps = F.interpolate(coarse, (x.shape[-2], x.shape[-1]), mode="bilinear", align_corners=False)
    return maps[:, 0].contiguous(), maps[:, 1].contiguous()


def gradcam(model: nn.Module, x: Tensor, target: Tensor, layer: str | None = None) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017, eq. 1 and 2), as `cams` gives it."""
    return cams(model, x, target, layer)[0]


def gradcampp(model: nn.Module, x: Tensor, target: Tensor, layer: str | None = None) -> Tensor:
    """Grad-CAM++ (Chattopadhay et al. 2018, eq. 5 and 19), as `cams` gives it."""
    return cams(model, x, target, layer)[1]


def mean_weights(gradients: Tensor) -> Tensor:
    """Grad-CAM's weight of each feature map: the spatial mean of its gradient, `(B, D, h, w)` -> `(B, D, 1, 1)`."""
    return gradients.mean((2, 3), keepdim=True)


def plus_plus_weights(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM++'s weight of each feature map, `(B, D, h, w)` twice -> `(B, D, 1, 1)`.

    Eq. 5 and 19 with Y = exp(S), S the logit: w = sum_ij alpha_ij relu(dY/dA_ij), where alpha_ij = d2Y/dA_ij2 /
    (2 d2Y/dA_ij2 + sum_ab(A_ab) d3Y/dA_ij3). Where S is piecewise linear in A, with g = dS/dA, the derivatives of Y are
    exp(S) g, exp(S) g^2 and exp(S) g^3, so alpha = g^2 / (2 g^2 + sum(A) g^3) = 1 / (2 + sum(A) g). The factor exp(S)
    that is left scales an image's whole map and would overflow; it is left out, as is usual.
    """
    denominator = 2 + activations.sum((2, 3), keepdim=True) * gradients  # g^2 cancelled, as it underflows for small g
    safe = torch.where(denominator == 0, torch.ones_like(denominator), denominator)  # only where g < 0 or A < 0
    return (gradients.relu() / safe).sum((2, 3), keepdim=True)


def layer_pass(model: nn.Module, x: Tensor, target: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A layer's output and the gradient of the explained logit by it, both `(B, D, h, w)`.

    Raises ValueError when the model has no such layer or its output is not a feature map.
    """
    module = dict(model.named_modules()).get(layer)
    if module is None:
        raise ValueError(f"the model has no layer '{layer}'; candidates are {', '.join(_candidates(model))}")
    kept: list[Tensor] = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
    try:
        with inspecting(model):
            score = model(x.detach().requires_grad_()).float().gather(1, target.unsqueeze(1)).sum()
            if kept[-1].dim() != 4:
                raise ValueError(f"layer '{layer}' gives {tuple(kept[-1].shape)}, not feature maps (B, D, h, w)")
            (gradients,) = torch.autograd.grad(score, kept[-1])
    finally:
        handle.remove()
    return kept[-1].detach().float(), gradients.float()


def default_layer(model: nn.Module, x: Tensor) -> str:
    """The last layer whose map is at least 4x4 (SPEC 4): in deeper, 1x1 maps every pixel would tie.

    Looks at `model.cam_candidates`, else at every submodule. Raises ValueError when there is none.
    """
    found: list[str] = []
    names, handles = _candidates(model), []
    modules = dict(model.named_modules())
    for name in names:

        def note(_module: nn.Module, _inputs: object, output: object, name: str = name) -> None:
            if isinstance(output, Tensor) and output.dim() == 4 and min(output.shape[-2:]) >= SMALLEST_MAP:
                found.append(name)

        handles.append(modules[name].register_forward_hook(note))
    try:
        with inspecting(model), torch.no_grad():
            model(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        size = "x".join(str(side) for side in x.shape[-2:])
        raise ValueError(f"no layer keeps a {SMALLEST_MAP}x{SMALLEST_MAP} map at input size {size}; use larger images")
    return found[-1]


def _candidates(model: nn.Module) -> list[str]:
    named = getattr(model, "cam_candidates", None)
    return list(named) if named else [name for name, _ in model.named_modules() if name]
