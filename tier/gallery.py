"""Images with their maps and removal steps, small enough to keep and to ship: what pages show of single images.

A map is kept in 8 bits for viewing. Steps are exact: for each pixel the place, in the list of levels, of the first
level at which it is removed, so that a page draws the very images whose confidences make the curves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

STEPS = 127  # of a map's 8 bits on either side of zero
ORDERS = ("morf", "lerf")


@dataclass(frozen=True)
class Look:
    """One image as one model and explainer see it.

    `index` is the data set's row, -1 for an uploaded image, whose `member` is None. `target` is the class explained,
    `map` its attribution `(H, W)`, `morf` and `lerf` the steps `(H, W)`, and `paths` the log confidences `(L,)` of the
    label along both orders. `confidence` belongs to the predicted class.
    """

    index: int
    member: bool | None
    label: int
    predicted: int
    confidence: float
    target: int
    map: NDArray[np.float32]
    morf: NDArray[np.uint8]
    lerf: NDArray[np.uint8]
    paths: dict[str, NDArray[np.float64]] = field(default_factory=dict)


def degenerate(maps: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which maps `(N, H, W)` say nothing about order: all equal, or holding NaN or infinity; `(N,)`."""
    flat = maps.reshape(len(maps), -1)
    finite = np.isfinite(flat).all(1)
    return np.asarray(~finite | (flat.max(1) == flat.min(1)))


def columns(levels: int) -> dict[str, list[str]]:
    """Names of the columns that hold log confidences along the removal paths, by order: `morf_0`, `morf_1`, ..."""
    return {order: [f"{order}_{i}" for i in range(levels)] for order in ORDERS}


def encode(maps: NDArray[np.floating], steps: Mapping[str, NDArray[np.uint8]]) -> dict[str, Any]:
    """The columns `scale, map, morf, lerf` of N images from maps and steps, `(N, H, W)` each.

    A map with a value that is not finite, which nothing can be seen in, is kept as NaN in `scale`.
    """
    flat = np.asarray(maps, np.float64).reshape(len(maps), -1)
    finite = np.asarray(np.isfinite(flat).all(1))
    scale = np.where(finite, np.abs(np.where(finite[:, None], flat, 0.0)).max(1), np.nan)
    share = flat / np.where(scale > 0, scale, 1.0)[:, None]
    coded = np.rint(STEPS * np.where(finite[:, None], share, 0.0)).astype(np.int8)
    columns: dict[str, Any] = {"scale": scale.astype(np.float32), "map": [row.tobytes() for row in coded]}
    return columns | {order: [np.ascontiguousarray(step).tobytes() for step in steps[order]] for order in ORDERS}


def look(row: Mapping[Any, Any], height: int, width: int) -> Look:
    """One row of `gallery.parquet` or `inspect.parquet`, decoded.

    Raises ValueError when the bytes do not fit the size.
    """
    shape = height, width
    coded = np.frombuffer(row["map"], np.int8).reshape(shape)
    steps = {order: np.frombuffer(row[order], np.uint8).reshape(shape) for order in ORDERS}
    levels = sum(str(name).startswith("morf_") for name in row)
    paths = {order: np.array([row[name] for name in names], np.float64) for order, names in columns(levels).items()}
    member = row["member"]
    return Look(
        index=int(row["index"]), member=None if pd.isna(member) else bool(member),
        label=int(row["label"]), predicted=int(row["predicted"]), confidence=float(row["confidence"]),
        target=int(row["target"]), map=(coded * np.float32(row["scale"]) / STEPS).astype(np.float32),
        morf=steps["morf"], lerf=steps["lerf"], paths=paths,
    )  # fmt: skip
