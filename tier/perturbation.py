"""Order pixels and replace them: the one place that masks, for training, trajectories and the KL profile."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from tier.config import Fill, OperatorName, Trajectory
from tier.imputation import blurred, road


class NoOrder(ValueError):
    """An importance map with NaN, which has no order."""


def removed(level: float, pixels: int) -> int:
    """How many pixels a level removes: none at 0, else `max(1, round(level * pixels))` (SPEC, notation).

    Raises ValueError unless 0 <= level <= 1.
    """
    if not 0.0 <= level <= 1.0:
        raise ValueError(f"a level is a fraction of the pixels between 0 and 1, not {level}")
    return max(1, round(level * pixels)) if level > 0 else 0


def ranks(importance: Tensor, descending: bool = True, first: int | None = None) -> Tensor:
    """The place of each pixel in the removal order, `(B, H, W)` -> `(B, H*W)` int64; ties go by pixel index.

    With `first`, only that many places are worked out, which is faster; all later pixels share the place H*W. Raises
    NoOrder, a ValueError, for NaN importance.
    """
    flat = importance.flatten(1)  # (B, P)
    if bool(torch.isnan(flat).any()):
        raise NoOrder("the importance map holds NaN: the explainer failed on this batch (did the model diverge?)")
    pixels = flat.shape[1]
    order = _order(-flat if descending else flat, pixels if first is None else min(first, pixels))
    places = torch.arange(order.shape[1], device=flat.device).expand_as(order)
    return torch.full(flat.shape, pixels, device=flat.device).scatter_(1, order, places)


def _order(flat: Tensor, first: int) -> Tensor:
    """Indices of the `first` smallest values of each row, smallest first, ties by index: `(B, P)` -> `(B, first)`.

    `topk` leaves ties open and a stable sort is slow, so integers that never tie are ordered: the value's bits, in an
    order-preserving form, above the index. On the CPU NumPy sorts all of them faster than `topk` finds a few.
    """
    if flat.dtype == torch.float64:  # leaves no bits for the index
        return torch.sort(flat, dim=1, stable=True).indices[:, :first]
    bits = (flat.float() + 0.0).view(torch.int32)  # adding zero makes -0 the equal of 0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    unique = (ordered << 32) | torch.arange(flat.shape[1], device=flat.device)
    if flat.device.type == "cpu":
        return torch.from_numpy(np.sort(unique.numpy(), axis=1)[:, :first]) & 0xFFFFFFFF
    if first == flat.shape[1]:
        return unique.argsort(dim=1)
    return unique.topk(first, dim=1, largest=False).indices


def fill_value(x: Tensor, fill: Fill) -> Tensor:
    """What replaces a pixel: the image's own mean per channel `(B, C, 1, 1)`, its scalar mean, or zero."""
    if fill == "channel_mean":
        return x.mean((2, 3), keepdim=True)
    if fill == "scalar_mean":
        return x.mean((1, 2, 3), keepdim=True)
    return x.new_zeros(())


def mask_levels(x: Tensor, places: Tensor, levels: Sequence[float], fill: Fill) -> Tensor:
    """The images with the first pixels of the order replaced, `(L, B, C, H, W)` for L levels.

    `x` is `(B, C, H, W)`, `places` the ranks `(B, H*W)`. All channels of a pixel go together.
    """
    batch, _, height, width = x.shape
    counts = torch.tensor([removed(level, height * width) for level in levels], device=x.device)
    gone = places.view(1, batch, height, width, 1) < counts.view(-1, 1, 1, 1, 1)  # (L, B, H, W, 1)
    filler = fill_value(x, fill).expand(batch, x.shape[1], 1, 1).permute(0, 2, 3, 1)  # (B, 1, 1, C)
    # computed with the channels last, so that the convolution that follows need not reorder
    return torch.where(gone, filler, x.permute(0, 2, 3, 1)).permute(0, 1, 4, 2, 3)


Operator = Callable[[Tensor, Tensor], Tensor]
"""`(x (B, C, H, W) in [0, 1], gone (B, H, W) bool) -> x with the pixels that are gone replaced`; x stays as it is."""


FILLS: dict[OperatorName, Callable[[Tensor, Trajectory], Tensor]] = {
    "mean": lambda x, settings: fill_value(x, "channel_mean"),
    "zero": lambda x, settings: fill_value(x, "zero"),
    "blur": lambda x, settings: blurred(x, settings.blur),
}
"""What a pixel becomes whatever else is removed, in a shape that fits x. Under `road` it depends on the rest."""


def _filling(name: OperatorName) -> Callable[[Trajectory], Operator]:
    return lambda settings: lambda x, gone: torch.where(gone.unsqueeze(1), FILLS[name](x, settings), x)


OPERATORS: dict[OperatorName, Callable[[Trajectory], Operator]] = {
    **{name: _filling(name) for name in FILLS},
    "road": lambda settings: lambda x, gone: road(x, gone, settings.noise, settings.noise_seed),
}


def removal_images(x: Tensor, steps: Tensor, settings: Trajectory) -> Iterator[Tensor]:
    """The images x_0 ... x_n of the removal paths, `(B, C, H, W)` for each level.

    `steps` `(B, H, W)` is the place of the first level that removes a pixel.
    """
    if settings.operator in FILLS:  # worked out once for all levels
        yield from _filled(x, FILLS[settings.operator](x, settings), steps, settings.levels)
        return
    replace = OPERATORS[settings.operator](settings)
    for place, level in enumerate(settings.levels):
        yield replace(x, steps <= place) if level > 0 else x


def _filled(x: Tensor, fill: Tensor, steps: Tensor, levels: Sequence[float]) -> Iterator[Tensor]:
    """`removal_images` where the fill does not depend on what is removed."""
    # worked with the channels last and every operand whole: six times faster than `where` on parts that are spread out
    image = x.permute(0, 2, 3, 1).contiguous()  # (B, H, W, C)
    filler = fill.expand_as(x).permute(0, 2, 3, 1).contiguous()
    when = steps.unsqueeze(-1).expand_as(image).to(x.dtype).contiguous()
    kept = torch.empty_like(when)
    for place, level in enumerate(levels):
        torch.gt(when, place, out=kept)
        # weights of 0 and 1 choose exactly
        yield torch.lerp(filler, image, kept).permute(0, 3, 1, 2) if level > 0 else x


def total_variation(x: Tensor) -> Tensor:
    """Local total variation scaled to a largest value of 1 per image, `(B, C, H, W)` in [0, 1] -> `(B, H, W)`.

    Sum over the 8 neighbours of |neighbour - pixel|, mean over channels, divided by its maximum (SPEC 5); neighbours
    outside the image do not count; a constant image has zero everywhere.
    """
    total = torch.zeros_like(x)
    height, width = x.shape[-2:]
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) == (0, 0):
                continue
            here = (..., slice(max(0, -down), height - max(0, down)), slice(max(0, -right), width - max(0, right)))
            there = (..., slice(max(0, down), height - max(0, -down)), slice(max(0, right), width - max(0, -right)))
            total[here] += (x[there] - x[here]).abs()
    local = total.mean(1)  # (B, H, W)
    peak = local.amax((1, 2), keepdim=True)
    return local / torch.where(peak > 0, peak, torch.ones_like(peak))


def removal_importance(attribution: Tensor, x: Tensor, alpha: float, sign: str) -> Tensor:
    """The attack's order I = g - alpha * TV (eq. 1), `(B, H, W)`; g is scaled to max |g| = 1 per image.

    `sign` is `signed` or `absolute`. MoRF removes the largest first, LeRF the smallest.
    """
    scaled = attribution.abs() if sign == "absolute" else attribution
    peak = scaled.abs().amax((1, 2), keepdim=True)
    scaled = scaled / torch.where(peak > 0, peak, torch.ones_like(peak))
    return scaled - alpha * total_variation(x) if alpha else scaled
