"""MoRF and LeRF confidence trajectories (section IV): remove pixels in the map's order, watch the confidence."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.config import Trajectory
from tier.explainers.base import inspecting
from tier.gallery import ORDERS
from tier.inference import Forward, fast
from tier.perturbation import ranks, removal_images, removal_importance, removed
from tier.runtime import as_pixels
from tier.stats import difference_bands, mean_interval


@dataclass(frozen=True)
class Trajectories:
    """Log confidences of N images along both removal paths, `(N, L)` float64 each."""

    morf: NDArray[np.float64]
    lerf: NDArray[np.float64]


def trajectories(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    maps: NDArray[np.float32],
    settings: Trajectory,
    batch_size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Trajectories:
    """Trajectories of images `(N, C, H, W)`, uint8 or in [0, 1], labels `(N,)`, with their maps `(N, H, W)`.

    `T = (log p_y(x_0), ..., log p_y(x_n))` for removal from the top (MoRF) and the bottom (LeRF) of the order of
    eq. 1, at each level. The model is evaluated and left as found. Memory is bounded by the batch size. Calls
    `progress(fraction done)` after each batch. Raises NoOrder, a ValueError, for a map that holds NaN.
    """
    where = next(model.parameters()).device
    forward = fast(model, settings.inference)
    parts: dict[str, list[Tensor]] = {order: [] for order in ORDERS}
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            rows = slice(start, start + batch_size)
            images, labels = as_pixels(x[rows].to(where)), y[rows].to(where)
            steps = removal_steps(torch.from_numpy(maps[rows]).to(where), images, settings)
            with torch.inference_mode():  # both paths begin with the images as they are
                whole = log_confidence(forward(images), labels) if settings.levels[0] == 0 else None
            for order in ORDERS:
                parts[order].append(removal_path(forward, images, labels, steps[order], settings, whole).cpu())
            progress(min(1.0, (start + batch_size) / len(x)))
    joined = {name: torch.cat(values).numpy() for name, values in parts.items()}
    return Trajectories(joined["morf"], joined["lerf"])


def removal_steps(maps: Tensor, x: Tensor, settings: Trajectory) -> dict[str, Tensor]:
    """When each pixel goes, by order, `(B, H, W)` uint8: the place in `settings.levels` of the first level without it.

    Pixels that no level removes get the number of levels. `maps` is `(B, H, W)`, `x` `(B, C, H, W)` in [0, 1].
    """
    importance = removal_importance(maps, x, settings.alpha, settings.sign)
    pixels = importance[0].numel()
    counts = torch.tensor([removed(level, pixels) for level in settings.levels], device=x.device)
    places = torch.arange(pixels, device=x.device)
    step = torch.bucketize(places, counts, right=True).to(torch.uint8)  # of each place: how many counts are <= it
    return {order: step.take(ranks(importance, order == "morf")).view_as(importance) for order in ORDERS}


def removal_path(
    forward: Forward, x: Tensor, y: Tensor, steps: Tensor, settings: Trajectory, whole: Tensor | None = None
) -> Tensor:
    """Log confidence of the label at each level, `(B, L)` float64, when pixels go at their `steps` `(B, H, W)`.

    `whole`, `(B,)`, is that of the images as they are, where it is known.
    """
    with torch.inference_mode():
        columns = [
            whole if image is x and whole is not None else log_confidence(forward(image), y)
            for image in removal_images(x, steps, settings)
        ]
    return torch.stack(columns, 1)


def log_confidence(logits: Tensor, y: Tensor) -> Tensor:
    """log p_y in float64, `(B, K)`, `(B,)` -> `(B,)`."""
    return logits.double().log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)


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
