"""The attribution-guided perturbation profile (section V-A): how far predictions move when top pixels are filled."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tier.config import Divergence
from tier.explainers.base import inspecting
from tier.perturbation import mask_levels, ranks
from tier.runtime import as_pixels
from tier.stats import compare, holm, mean_interval

SMALLEST_BATCHES = 8


def divergences(
    model: nn.Module,
    x: Tensor,
    maps: NDArray[np.float32],
    settings: Divergence,
    batch_size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> NDArray[np.float64]:
    """KL(P || Q_k) of each image and level, `(N, C, H, W)` and maps `(N, H, W)` -> `(N, L)` float64, in nats.

    P is the clean prediction, Q_k that with the top k of the map filled: in the paper the gradient map of the label's
    logit. The model is evaluated and left as found. Raises NoOrder, a ValueError, for a map that holds NaN.
    """
    where = next(model.parameters()).device
    parts = []
    with inspecting(model):
        for start in range(0, len(x), batch_size):
            images = as_pixels(x[start : start + batch_size].to(where))
            places = ranks(torch.from_numpy(maps[start : start + batch_size]).to(where))
            with torch.inference_mode():
                log_p = model(images).double().log_softmax(1)
                columns = []
                for level in settings.levels:
                    log_q = model(mask_levels(images, places, [level], settings.fill)[0]).double().log_softmax(1)
                    columns.append((log_p.exp() * (log_p - log_q)).sum(1))
            parts.append(torch.stack(columns, 1).cpu())
            progress(min(1.0, (start + batch_size) / len(x)))
    return torch.cat(parts).numpy()


def profile(values: NDArray[np.float64], member: NDArray[np.bool_], settings: Divergence) -> pd.DataFrame:
    """The table of Tables I and III: per unit and level, both groups' mean, sd, n, interval, and the tests.

    `values` is `(N, L)` from `divergences`. Unit `sample` compares images (Welch's t); `batch` compares means of
    `settings.batch` images (Student's t), as the paper's degrees of freedom suggest, and needs 8 batches per group,
    else its tests are NaN. p values are also given Holm-corrected over the levels.
    """
    frames = []
    for unit in ("sample", "batch"):
        first, second = values[member], values[~member]
        if unit == "batch":
            first, second = batch_means(first, settings.batch), batch_means(second, settings.batch)
        frames.append(_unit_profile(unit, first, second, settings.levels))
    return pd.concat(frames, ignore_index=True)


def batch_means(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Means of consecutive full batches, `(N, L)` -> `(N // size, L)`; the rest is left out."""
    whole = len(values) // size
    return values[: whole * size].reshape(whole, size, values.shape[1]).mean(1)


def _unit_profile(
    unit: str, first: NDArray[np.float64], second: NDArray[np.float64], levels: tuple[float, ...]
) -> pd.DataFrame:
    columns: dict[str, object] = {"unit": unit, "level": levels}
    for name, group in (("member", first), ("nonmember", second)):
        spread = len(group) > 1
        low, high = mean_interval(group) if spread else (np.full(len(levels), np.nan),) * 2
        columns[f"{name}_mean"] = group.mean(0) if len(group) else np.full(len(levels), np.nan)
        columns[f"{name}_sd"] = group.std(0, ddof=1) if spread else np.full(len(levels), np.nan)
        columns[f"{name}_n"], columns[f"{name}_low"], columns[f"{name}_high"] = len(group), low, high
    table = pd.DataFrame(columns)
    enough = min(len(first), len(second)) >= (2 if unit == "sample" else SMALLEST_BATCHES)
    tests = ["t", "t_df", "t_p", "ks", "ks_p", "cohen_d"]
    if enough:
        pairs = zip(first.T, second.T, strict=True)
        table[tests] = [compare(a, b, equal_variance=unit == "batch") for a, b in pairs]
    else:
        table[tests] = np.nan
    table["t_p_holm"], table["ks_p_holm"] = holm(list(table["t_p"])), holm(list(table["ks_p"]))
    return table
