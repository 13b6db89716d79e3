"""MoRF and LeRF confidence trajectories (section IV): remove pixels in the map's order, watch the confidence."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.config import Explain, Trajectory
from tier.explainers import degenerate, explain
from tier.explainers.base import inspecting
from tier.perturbation import OPERATORS, ranks, removal_importance, removed
from tier.runtime import as_pixels
from tier.stats import difference_bands, mean_interval

ORDERS = ("morf", "lerf")


@dataclass(frozen=True)
class Trajectories:
    """Log confidences of N images along both removal paths, `(N, L)` float64 each, and which maps were degenerate."""

    morf: NDArray[np.float64]
    lerf: NDArray[np.float64]
    degenerate: NDArray[np.bool_]


def trajectories(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Trajectory,
    explainer: Explain,
    batch_size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Trajectories:
    """Trajectories of images `(N, C, H, W)`, uint8 or in [0, 1], labels `(N,)`.

    `T = (log p_y(x_0), ..., log p_y(x_n))` for removal from the top (MoRF) and the bottom (LeRF) of the order of
    eq. 1, at each level. The model is evaluated and left as found. Memory is bounded by the batch size. Calls
    `progress(fraction done)` after each batch.
    """
    where = next(model.parameters()).device
    parts: dict[str, list[Tensor]] = {"morf": [], "lerf": [], "degenerate": []}
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            images = as_pixels(x[start : start + batch_size].to(where))
            labels = y[start : start + batch_size].to(where)
            maps = explain(explainer, model, images, explained_class(model, images, labels, explainer))
            importance = removal_importance(maps, images, settings.alpha, settings.sign)
            for order in ORDERS:
                parts[order].append(removal_path(model, images, labels, importance, order, settings).cpu())
            parts["degenerate"].append(degenerate(maps).cpu())
            progress(min(1.0, (start + batch_size) / len(x)))
    joined = {name: torch.cat(values).numpy() for name, values in parts.items()}
    return Trajectories(joined["morf"], joined["lerf"], joined["degenerate"])


def removal_path(
    model: nn.Module, x: Tensor, y: Tensor, importance: Tensor, order: str, settings: Trajectory
) -> Tensor:
    """Log confidence of the label at each level, `(B, L)` float64, removing top (`morf`) or bottom (`lerf`) first."""
    places = ranks(importance, descending=order == "morf").view_as(importance)  # (B, H, W)
    operator = OPERATORS[settings.operator]
    columns = []
    with torch.inference_mode():
        for level in settings.levels:
            count = removed(level, importance[0].numel())
            columns.append(log_confidence(model(operator(x, places < count) if count else x), y))
    return torch.stack(columns, 1)


def log_confidence(logits: Tensor, y: Tensor) -> Tensor:
    """log p_y in float64, `(B, K)`, `(B,)` -> `(B,)`."""
    return logits.double().log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)


def explained_class(model: nn.Module, x: Tensor, y: Tensor, explainer: Explain) -> Tensor:
    """The class whose logit is explained: the label, or the model's own prediction."""
    if explainer.target == "label":
        return y
    with torch.no_grad():  # not inference mode, whose tensors autograd refuses as an index
        return model(x).argmax(1)


def curves(paths: Trajectories, member: NDArray[np.bool_], levels: tuple[float, ...]) -> pd.DataFrame:
    """Mean confidence by order, level and membership with the 95 % bootstrap interval of the mean."""
    rows = []
    for order in ORDERS:
        confidence = np.exp(getattr(paths, order))  # (N, L)
        for group in (True, False):
            values = confidence[member == group]
            low, high = mean_interval(values)
            for index, level in enumerate(levels):
                rows.append((order, level, group, values[:, index].mean(), low[index], high[index], len(values)))
    return pd.DataFrame(rows, columns=["order", "level", "member", "mean", "low", "high", "n"])


def differences(paths: Trajectories, member: NDArray[np.bool_], levels: tuple[float, ...]) -> pd.DataFrame:
    """Member minus non-member mean confidence, its 95 % interval, and the 95 % band under shuffled membership."""
    frames = []
    for order in ORDERS:
        confidence = np.exp(getattr(paths, order))
        bands = difference_bands(confidence[member], confidence[~member])
        frames.append(pd.DataFrame({"order": order, "level": levels, **bands}))
    return pd.concat(frames, ignore_index=True)
