"""Maps and images as small RGB pictures: arrays in, uint8 arrays out; no files, no Streamlit, no torch.

Pixels stay square and unsmoothed: a picture only ever grows by whole factors. RdBu shows signed maps (red speaks for
the class, blue against it, white is zero), cividis magnitudes. A picture is `(H, W, 3)` uint8, or `(H, W, 4)` where
parts are transparent, so that the gaps of a strip look right on light and dark ground.
"""

import io
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tier.config import EXPLAINER_SETTINGS, Explain

Picture = NDArray[np.uint8]
NO_VALUE = (128, 128, 128)  # NaN and infinite values: a grey that neither colour scale holds
_HALF = 255  # steps between zero and the limit, on each side of a signed scale


def has_sign(explain: Explain) -> bool:
    """Whether an explainer's maps tell what speaks for the class from what speaks against it (SPEC 4)."""
    return explain.name == "lime" or ("signed" in EXPLAINER_SETTINGS[explain.name] and explain.signed)


# ---- maps


def limit_of(maps: Sequence[NDArray[Any]]) -> float:
    """The scale that several maps share: the largest finite |value|, 0 when there is none."""
    peaks = [np.abs(values[np.isfinite(values)]).max(initial=0.0) for values in map(np.asarray, maps)]
    return float(max(peaks, default=0.0))


def flaw(values: NDArray[Any]) -> str | None:
    """Why a map says nothing, in two or three words: it holds NaN, is all zero or is constant; None for a sound one."""
    if not np.isfinite(values).all():
        return "not a number"
    if values.size and values.min() == values.max():
        return "constant map" if values.flat[0] else "all-zero map"
    return None


def heat(
    values: NDArray[Any], limit: float | None = None, signed: bool | None = None, absolute: bool = False
) -> Picture:
    """A map `(H, W)` in colour, `(H, W, 3)`.

    The scale goes to `limit`, or to the map's own largest |value|; what lies beyond has the colour of its end.
    `signed` maps are RdBu centred at 0, others cividis from 0 (values below 0 then count as 0); None: signed when a
    value is negative. `absolute` shows |map|, never signed. Where a value is NaN or infinite the picture is grey; a
    constant map on its own scale has zero's colour everywhere, since it distinguishes nothing.
    Raises ValueError for an array that is not two-dimensional.
    """
    level = np.asarray(values, dtype=np.float64)
    if level.ndim != 2:
        raise ValueError(f"a map has two dimensions, height and width, not {level.ndim}")
    known = np.isfinite(level)
    level = np.where(known, np.abs(level) if absolute else level, 0.0)
    signed = not absolute and (bool((level < 0).any()) if signed is None else signed)
    if limit is None:
        limit = 0.0 if flaw(level[known]) else limit_of([level])
    if limit > 0:
        level = np.clip(level, -limit if signed else 0.0, limit) / limit  # clipped first: a division cannot overflow
    else:
        level = np.zeros_like(level)
    place = np.rint(level * _HALF).astype(np.int64) + (_HALF if signed else 0)
    return np.where(known[..., None], _scale(signed)[place], np.array(NO_VALUE, np.uint8))


@lru_cache(maxsize=2)
def _scale(signed: bool) -> Picture:
    """The colours of a scale: -limit to limit in 511 steps, zero in the very middle, or 0 to limit in 256."""
    from matplotlib import colormaps  # only here: pages that show no map need not load it

    scale = colormaps["RdBu_r" if signed else "cividis"].resampled(2 * _HALF + 1 if signed else _HALF + 1)
    colours = np.rint(scale(np.arange(scale.N))[:, :3] * 255).astype(np.uint8)
    colours.setflags(write=False)  # shared by all sessions
    return colours


def colour_bar(signed: bool, width: int = 160, height: int = 10) -> Picture:
    """The colours of a scale from left to right, `(height, width, 3)`: -limit, 0, limit; or 0 to limit."""
    ramp = np.linspace(-1.0 if signed else 0.0, 1.0, width)
    return heat(np.broadcast_to(ramp, (height, width)), limit=1.0, signed=signed)


def legend_text(signed: bool, shared: bool, absolute: bool = False) -> str:
    """What the colours mean, in plain words, and whose scale they follow."""
    if signed and not absolute:
        colours = "Red pixels speak for the class, blue ones against it, white ones for neither"
    else:
        colours = "Bright pixels matter most to the class, dark ones least"
    scale = (
        "maps side by side share one scale, so their strength can be compared"
        if shared
        else "each map has its own scale, so only the pattern can be compared, not the strength"
    )
    return f"{colours}; {scale}."


# ---- images


def image_rgb(image: NDArray[Any]) -> Picture:
    """An image `(3, H, W)` or grey `(1, H, W)`, uint8 or float in [0, 1], as a picture `(H, W, 3)`.

    Raises ValueError for another shape.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image is (3, height, width) or (1, height, width), not {image.shape}")
    if image.dtype != np.uint8:
        image = np.rint(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(image, 0, -1), (*image.shape[1:], 3)))


def overlay(image: Picture, picture: Picture, opacity: float) -> Picture:
    """A picture laid over another of the same shape: opacity 0 shows `image` alone, 1 `picture` alone.

    Raises ValueError when the shapes differ or the opacity is not between 0 and 1.
    """
    if image.shape != picture.shape:
        raise ValueError(f"only pictures of one shape can be laid over one another, not {image.shape}, {picture.shape}")
    if not 0.0 <= opacity <= 1.0:
        raise ValueError(f"opacity is between 0 and 1, not {opacity}")
    return np.rint((1.0 - opacity) * image + opacity * picture).astype(np.uint8)


def enlarge(picture: Picture, factor: int) -> Picture:
    """Each pixel as a square of `factor` x `factor`; raises ValueError unless the factor is a whole number from 1."""
    if factor != int(factor) or factor < 1:
        raise ValueError(f"pictures grow by whole factors from 1, so that pixels stay square, not by {factor}")
    return picture.repeat(int(factor), axis=0).repeat(int(factor), axis=1)


def colour_of(colour: str | Sequence[int] | None) -> tuple[int, int, int, int]:
    """`#RRGGBB`, `(r, g, b)` or `(r, g, b, a)` as red, green, blue and opacity, 0 to 255; None is transparent."""
    if colour is None:
        return (0, 0, 0, 0)
    if isinstance(colour, str):
        digits = colour.removeprefix("#")
        parts = list(bytes.fromhex(digits)) if re.fullmatch("[0-9a-fA-F]{6}", digits) else []
    else:
        parts = [int(part) for part in colour]
    if len(parts) not in (3, 4) or any(not 0 <= part <= 255 for part in parts):
        raise ValueError(f"a colour is #RRGGBB, three or four numbers from 0 to 255, or None, not {colour!r}")
    red, green, blue, opacity = [*parts, 255][:4]
    return (red, green, blue, opacity)


def with_opacity(picture: Picture) -> Picture:
    """The picture as `(H, W, 4)`, opaque where it said nothing about opacity."""
    if picture.shape[2] == 4:
        return picture
    return np.concatenate([picture, np.full((*picture.shape[:2], 1), 255, np.uint8)], axis=2)


def outlined(picture: Picture, colour: str | Sequence[int] | None, width: int = 2) -> Picture:
    """The picture within a frame of `width` pixels on each side, `(H + 2 width, W + 2 width, 4)`.

    The frame lies outside, so that it hides nothing; None is a transparent one, which keeps a row's pictures equal.
    """
    height, across = picture.shape[:2]
    framed = np.empty((height + 2 * width, across + 2 * width, 4), np.uint8)
    framed[:] = colour_of(colour)
    framed[width : width + height, width : width + across] = with_opacity(picture)
    return framed


def row(pictures: Sequence[Picture], gap: int = 4, background: str | Sequence[int] | None = None) -> Picture:
    """Pictures of equal size side by side, `gap` pixels of `background` between them, `(H, ..., 4)`.

    Without a background the gaps are transparent. Raises ValueError for no picture or for different sizes.
    """
    sizes = {picture.shape[:2] for picture in pictures}
    if len(sizes) != 1:
        raise ValueError(f"a row needs pictures of one size, not {sorted(sizes) or 'none'}")
    ((height, width),) = sizes
    joined = np.empty((height, len(pictures) * (width + gap) - gap, 4), np.uint8)
    joined[:] = colour_of(background)
    for place, picture in enumerate(pictures):
        left = place * (width + gap)
        joined[:, left : left + width] = with_opacity(picture)
    return joined


def png(picture: Picture) -> bytes:
    """The picture as a PNG file; the same picture gives the same bytes."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "PNG", compress_level=3)  # repeats compress well anyway
    return file.getvalue()


# ---- the removal path


def masked(image: NDArray[np.uint8], steps: NDArray[np.uint8], place: int, fill: str = "mean") -> NDArray[np.float32]:
    """The image at one level of its removal path, `(3, H, W)` in [0, 1]: what `tier.perturbation` feeds the model.

    `image` is `(3, H, W)` uint8. `steps` `(H, W)` holds, for each pixel, the place in the list of levels of the first
    level at which it is removed, and the number of levels where it never is: at `place` the pixels with
    `steps <= place` are gone, all channels of each. `fill` is `mean`, the image's own mean per channel, or `zero`.
    Raises ValueError for another fill, shapes that do not fit, or a negative place.
    """
    if steps.shape != image.shape[1:]:
        raise ValueError(f"steps of shape {steps.shape} do not fit an image of shape {image.shape}")
    if place < 0:
        raise ValueError(f"a place in the list of levels is 0 or more, not {place}")
    pixels = image.astype(np.float32) / np.float32(255)
    if fill == "mean":
        filler = pixels.mean((1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    elif fill == "zero":
        filler = np.zeros((), np.float32)
    else:
        raise ValueError(f"removed pixels become 'mean' or 'zero', not {fill!r}")
    return np.where(steps <= place, filler, pixels)


def strip(
    image: NDArray[np.uint8],
    steps: NDArray[np.uint8],
    levels: Sequence[float],
    fill: str = "mean",
    factor: int = 2,
    current: int | None = None,
    colour: str = "#E69F00",
    gap: int = 2,
) -> Picture:
    """The removal path x_0 ... x_n side by side, one image per level, transparent between them.

    Each image is enlarged `factor` times and has room for a frame of 3 pixels; the one at the place `current` in
    `levels` has it in `colour`, an orange that stands out on light and dark ground. `image`, `steps` and `fill` are
    `masked`'s. Raises ValueError when there is no level or `current` is none of their places.
    """
    if not levels or (current is not None and not 0 <= current < len(levels)):
        raise ValueError(f"there is no place {current} among {len(levels)} levels")
    pictures = [enlarge(image_rgb(masked(image, steps, place, fill)), factor) for place in range(len(levels))]
    return row(
        [outlined(picture, colour if place == current else None, 3) for place, picture in enumerate(pictures)], gap
    )


def folded(picture: Picture, cells: int, lines: int, gap: int = 2) -> Picture:
    """A row of `cells` equal pictures with `gap` pixels between them, as `strip` makes it, in several lines.

    The last line is filled up with transparent pixels. Raises ValueError when the row has another width.
    """
    width, rest = divmod(picture.shape[1] + gap, cells)
    if rest or lines < 1:
        raise ValueError(f"{picture.shape[1]} pixels are no row of {cells} pictures, or {lines} no number of lines")
    across, height = -(-cells // lines), picture.shape[0]
    made = np.zeros((lines * (height + gap) - gap, across * width - gap, 4), np.uint8)
    whole = with_opacity(picture)
    for line in range(lines):
        part = whole[:, line * across * width : (line + 1) * across * width - gap]
        made[line * (height + gap) : line * (height + gap) + height, : part.shape[1]] = part
    return made
