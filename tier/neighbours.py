"""The training image that looks most like another one: what a model may have seen of an image it never saw."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 4 << 20  # bytes of pixels compared at a time


@dataclass(frozen=True)
class Neighbour:
    """A row of the data set, and its distance: the root mean squared difference of the values, which lie in [0, 1].

    0 means the same pixels; two unrelated photographs are about 0.3 apart.
    """

    row: int
    distance: float


def nearest(
    image: NDArray[np.uint8], images: NDArray[np.uint8], rows: NDArray[np.integer], but: int | None = None
) -> Neighbour | None:
    """The image among `rows` of `images` `(N, C, H, W)` that is nearest to `image` `(C, H, W)`, the first of equals.

    `but` is a row that does not count: the image's own. None when no row is left. Raises ValueError when the shapes
    differ. Compared in whole numbers, so equal distances are equal; memory is bounded.
    """
    if image.shape != images.shape[1:]:
        raise ValueError(f"an image of shape {image.shape} cannot be compared with images of {images.shape[1:]}")
    pool = np.asarray(rows)
    pool = pool if but is None else pool[pool != but]
    if not len(pool):
        return None
    wanted = image.reshape(1, -1).astype(np.int32)
    step = max(1, CHUNK // image.size)
    parts = []
    for start in range(0, len(pool), step):
        change = images[pool[start : start + step]].reshape(-1, image.size) - wanted  # int32
        parts.append((change * change).sum(1, dtype=np.int64))
    squares = np.concatenate(parts)
    best = int(squares.argmin())
    return Neighbour(int(pool[best]), float(np.sqrt(squares[best] / image.size) / 255))


def same(image: NDArray[np.uint8], images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The rows of `images` `(N, C, H, W)` with exactly the pixels of `image` `(C, H, W)`, in order.

    Raises ValueError when the shapes differ. The first line of pixels sorts nearly all of them out.
    """
    if image.shape != images.shape[1:]:
        raise ValueError(f"an image of shape {image.shape} cannot be compared with images of {images.shape[1:]}")
    rows = np.flatnonzero((images[:, :, 0] == image[:, 0]).all((1, 2)))
    return rows[[bool((images[row] == image).all()) for row in rows]] if len(rows) else rows
