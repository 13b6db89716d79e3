"""How like one model's maps are to another's (SPEC 7): SSIM, MSE and cosine, and the controls that give them meaning.

A signed map scaled to [0, 1] lies about a grey of one half, so that even independent noise scores a cosine above 0.9
(normal values, 32x32): no value here says anything without the score of maps of different images and that of two
undefended seeds.
"""

import math

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from skimage.metrics import structural_similarity

from tier.gallery import degenerate
from tier.stats import Array

METRICS = ("ssim", "mse", "cosine", "cosine_unscaled")
CONTROLS = ("shuffled", "second_seed")
CHUNK = 100 << 10  # pixels of maps scored at a time, 100 maps of 32x32, whose copies take 20 MB
WINDOW = 7  # pixels on a side of the SSIM window, scikit-image's default


def unit(maps: ArrayLike) -> Array:
    """Each map `(N, H, W)` scaled by its own least and largest value to [0, 1]; NaN throughout where degenerate."""
    stack = _stack(maps)
    scaled, sound = np.full_like(stack, np.nan), ~degenerate(stack)
    low, high = (bound(stack[sound], axis=(1, 2), keepdims=True) for bound in (np.min, np.max))
    scaled[sound] = (stack[sound] - low) / (high - low)
    return scaled


def ssim(first: ArrayLike, second: ArrayLike) -> Array:
    """Structural similarity (Wang et al. 2004) of maps `(N, H, W)` in [0, 1], pair by pair: `(N,)`, 1 when equal.

    scikit-image's mean over a uniform window of 7x7, or the largest odd one that fits into a smaller map. NaN where
    either map is degenerate. Raises ValueError for maps under 3x3, in which no window has a variance.
    """
    a, b, values = _pairs(first, second)
    window = min(WINDOW, *((side - 1) // 2 * 2 + 1 for side in a.shape[1:]))
    if window < 3:
        raise ValueError(f"SSIM needs maps of at least 3x3 pixels, got {a.shape[1]}x{a.shape[2]}")
    if len(a):
        # every channel is an image; the full result keeps them apart, the strip that the mean leaves out is cut here
        _, full = structural_similarity(a, b, win_size=window, data_range=1.0, channel_axis=0, full=True)
        edge = window // 2
        values[~np.isnan(values)] = full[:, edge : a.shape[1] - edge, edge : a.shape[2] - edge].mean((1, 2))
    return values


def mse(first: ArrayLike, second: ArrayLike) -> Array:
    """Mean squared difference over the pixels of maps `(N, H, W)`, pair by pair: `(N,)`; NaN where degenerate."""
    a, b, values = _pairs(first, second)
    values[~np.isnan(values)] = ((a - b) ** 2).mean((1, 2))
    return values


def cosine(first: ArrayLike, second: ArrayLike) -> Array:
    """Cosine of the angle between maps `(N, H, W)` taken as vectors, pair by pair: `(N,)` in [-1, 1].

    NaN where either map is degenerate, which a zero vector is.
    """
    a, b, values = _pairs(first, second)
    u, v = _directions(a), _directions(b)
    values[~np.isnan(values)] = np.clip((u * v).sum(1), -1.0, 1.0)  # rounding may pass 1
    return values


def scores(defended: ArrayLike, reference: ArrayLike) -> dict[str, Array]:
    """METRICS of the maps `(N, H, W)` of two models for the same images: `(N,)` float64 each, NaN where degenerate.

    SSIM, MSE and cosine are of maps scaled to [0, 1] each by itself; `cosine_unscaled` is of the maps as they are.
    Raises ValueError when the shapes differ.
    """
    a, b = unit(defended), unit(reference)
    scaled = {"ssim": ssim(a, b), "mse": mse(a, b), "cosine": cosine(a, b)}
    return scaled | {"cosine_unscaled": cosine(defended, reference)}


def shuffled(n: int, seed: int) -> NDArray[np.int64]:
    """For each of `n` images another one, each taken once, from a seed: one random cycle through all of them.

    Raises ValueError for fewer than two images, which have no other.
    """
    if n < 2:
        raise ValueError(f"shuffled pairs need at least two images, got {n}")
    order = np.random.default_rng(seed).permutation(n)
    partner = np.empty(n, np.int64)
    partner[order] = np.roll(order, -1)
    return partner


def table(
    defended: ArrayLike,
    reference: ArrayLike,
    second: ArrayLike,
    agree: ArrayLike,
    seed: int,
    second_agree: ArrayLike | None = None,
) -> pd.DataFrame:
    """METRICS of each image's pair of maps and of its two controls, float32, NaN where degenerate or not comparable.

    `defended`, `reference` and `second` are maps `(N, H, W)` of the same images by the defended model, the undefended
    one, and an undefended one of another training seed. The plain columns compare defended with reference, those that
    end in `_shuffled` the defended map with the reference's of another image (`shuffled`, from `seed`), those that end
    in `_second_seed` reference with second, whatever the defense. `agree` `(N,)` tells where defended and reference
    explain the same class, `second_agree` where reference and second do (None: everywhere); other pairs are NaN, the
    shuffled ones with their image's own, so that both are over the same images.
    Raises ValueError when shapes differ, and for fewer than two images.
    """
    a, b, c = np.asarray(defended), np.asarray(reference), np.asarray(second)
    if not a.shape == b.shape == c.shape:
        raise ValueError(f"maps of shapes {a.shape}, {b.shape} and {c.shape} cannot be compared image by image")
    own, control = np.asarray(agree, bool), np.ones(len(b), bool)
    if second_agree is not None:
        control = np.asarray(second_agree, bool)
    for name, flags in (("agree", own), ("second_agree", control)):
        if flags.shape != (len(b),):
            raise ValueError(f"{name} has shape {flags.shape}, not one value for each of the {len(b)} images")
    partner = shuffled(len(b), seed)
    parts = []
    for rows in _chunks(b.shape):
        found = {"": scores(a[rows], b[rows]), "_shuffled": scores(a[rows], b[partner[rows]])}
        found["_second_seed"] = scores(b[rows], c[rows])
        parts.append({f"{metric}{suffix}": found[suffix][metric] for suffix in found for metric in METRICS})
    comparable = {"": own, "_shuffled": own, "_second_seed": control}
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return pd.DataFrame({
        f"{metric}{suffix}": np.where(flags, joined[f"{metric}{suffix}"], np.nan).astype(np.float32)
        for suffix, flags in comparable.items()
        for metric in METRICS
    })  # fmt: skip


def _chunks(shape: tuple[int, ...]) -> list[slice]:
    """All images of maps `(N, H, W)`, as many at a time as have about CHUNK pixels."""
    step = max(1, CHUNK // max(1, math.prod(shape[1:])))
    return [slice(start, start + step) for start in range(0, shape[0], step)]


def _stack(maps: ArrayLike) -> Array:
    stack = np.asarray(maps, np.float64)
    if stack.ndim != 3 or 0 in stack.shape[1:]:
        raise ValueError(f"maps are (N, H, W) with at least one pixel, not {stack.shape}")
    return stack


def _pairs(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array, Array]:
    """The pairs that can be compared, both sides `(M, H, W)`, and the `(N,)` result: NaN where one cannot, else 0."""
    a, b = _stack(first), _stack(second)
    if a.shape != b.shape:
        raise ValueError(f"maps of shapes {a.shape} and {b.shape} cannot be compared pair by pair")
    sound = ~(degenerate(a) | degenerate(b))
    return a[sound], b[sound], np.where(sound, 0.0, np.nan)


def _directions(maps: Array) -> Array:
    """Unit vectors `(N, H * W)`; scaled by the largest value first, whose square might leave the range of floats."""
    flat = maps.reshape(len(maps), maps.shape[1] * maps.shape[2])
    scaled = flat / np.abs(flat).max(1, keepdims=True)
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
