"""Images and labels from any source, as one uint8 array with a fingerprint (SPEC 1).

Importing this package loads neither torch nor pyarrow: each source imports what it needs when it is asked for.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tier.config import Data
from tier.environment import DATA_ROOT as ROOT_VARIABLE

DEFAULT_ROOT = "~/.cache/tier/data"  # where downloads go when no data root is given
DOWNLOADABLE = ("cifar10", "cifar100", "gtsrb")
FINGERPRINT_VERSION = 1
LIMIT_SEED = 0  # Data has no seed of its own: the same limit always keeps the same images

Progress = Callable[[int, int], None]  # (images done, images in all); may raise to cancel


class DataError(ValueError):
    """The images cannot be given; the message says what to do."""


@dataclass(frozen=True)
class Dataset:
    """A whole data set in memory.

    - `images` (N, 3, H, W) uint8 RGB, read-only; a memory-mapped temporary file if too large for memory
    - `labels` (N,) int64, indices into `class_names`
    - `groups` (N,) int64; images of one group are near-duplicates (a GTSRB track)
    - `masks` (N, H, W) bool, the object's pixels
    - `extra` the other columns, each (N,)
    - `notes` what was converted, counted or left out, for the user
    - `refused` one "name: reason" for every image that could not be used
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    groups: np.ndarray | None = None
    masks: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes, types and the range of the labels; raises ValueError naming the column."""
        n = len(self.labels)
        if self.images.ndim != 4 or self.images.shape[:2] != (n, 3) or self.images.dtype != np.uint8:
            raise ValueError(f"images must be ({n}, 3, H, W) uint8, not {self.images.shape} {self.images.dtype}")
        if self.labels.ndim != 1 or self.labels.dtype != np.int64:
            raise ValueError(f"labels must be (N,) int64, not {self.labels.shape} {self.labels.dtype}")
        if n and (self.labels.min() < 0 or self.labels.max() >= len(self.class_names)):
            raise ValueError(
                f"labels reach from {self.labels.min()} to {self.labels.max()}, with {len(self.class_names)} classes"
            )
        columns = {"groups": self.groups, "masks": self.masks, **self.extra}
        wrong = [name for name, column in columns.items() if column is not None and len(column) != n]
        if wrong:
            raise ValueError(f"these columns have not one row for each of the {n} images: {', '.join(wrong)}")

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, 64 hex digits, of shape, images, labels and groups (not of class names, masks or extra columns)."""
        header = {"version": FINGERPRINT_VERSION, "shape": list(self.images.shape), "groups": self.groups is not None}
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        step = max(1, (64 << 20) // max(1, self.images[:1].nbytes))  # 64 MiB at a time: the images may be a mapped file
        for start in range(0, len(self.images), step):
            digest.update(np.ascontiguousarray(self.images[start : start + step]).data)
        for column in (self.labels, self.groups):
            if column is not None:
                digest.update(np.ascontiguousarray(column, dtype="<i8").data)
        return digest.hexdigest()

    def take(self, rows: np.ndarray) -> "Dataset":
        """The data set of these rows (indices, in this order), with the same class names and notes."""
        images = self.images[rows]
        images.flags.writeable = False
        return replace(
            self,
            images=images,
            labels=self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
            masks=None if self.masks is None else self.masks[rows],
            extra={name: column[rows] for name, column in self.extra.items()},
        )


def limit_rows(labels: np.ndarray, limit: int | None) -> np.ndarray:
    """Indices, ascending, of at most `limit` of the labels (N,), each class with its share to within one image."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    shares, remainders = np.divmod(limit * counts, len(labels))  # integers: no ties decided by rounding errors
    shares[np.argsort(-remainders, kind="stable")[: limit - shares.sum()]] += 1
    rng = np.random.default_rng(LIMIT_SEED)
    kept = [
        rng.permutation(np.flatnonzero(labels == label))[:share] for label, share in zip(classes, shares, strict=True)
    ]
    return np.sort(np.concatenate(kept))


def load(config: Data, root: str | None = None, progress: Progress | None = None) -> Dataset:
    """The data set that `config` names, at `config.image_size`.

    `signs` is drawn. Any other source is looked up in this order: under the data root (`root`, else the environment
    variable TIER_DATA) as a parquet file or folder or a class-per-folder tree; as a path; as a torchvision data set,
    downloaded into `<data root, else ~/.cache/tier/data>/torchvision`. Images that are not square are scaled on their
    shorter side and centre-cropped. Raises DataError saying what to do when nothing is found or readable, when a
    download fails, when there is no column `config.without`, or when the images are not those of `config.fingerprint`.
    """
    dataset = _signs(config) if config.source == "signs" else _from_disk(config, root, progress)
    if config.without is not None:
        dataset = _without(dataset, config.without)
    if len(dataset.class_names) < 2:
        raise DataError(
            f"'{config.source}' has one class only ('{dataset.class_names[0]}'); a classifier needs two or more"
        )
    verify(dataset, config)
    return _with_empty_classes_noted(dataset)


def _without(dataset: Dataset, column: str) -> Dataset:
    """The images for which a column of yes and no says no."""
    if column not in dataset.extra:
        known = ", ".join(dataset.extra) or "none"
        raise DataError(f"data.without names the column '{column}', which these images lack; further columns: {known}")
    flags = dataset.extra[column]
    if flags.dtype != bool:
        raise DataError(f"data.without needs a column of true and false; '{column}' holds {flags.dtype}")
    kept = dataset.take(np.flatnonzero(~flags))
    if not len(kept):
        raise DataError(f"data.without={column} leaves no image")
    return replace(kept, notes=(*kept.notes, f"{int(flags.sum())} images left out, whose {column} is true"))


def verify(dataset: Dataset, config: Data) -> None:
    """Raises DataError saying what to do when the images are not those of `config.fingerprint`."""
    if config.fingerprint is not None and config.fingerprint != dataset.fingerprint:
        raise DataError(
            f"'{config.source}' is not the data that this experiment is pinned to: its fingerprint is "
            f"{dataset.fingerprint}, expected {config.fingerprint}. Put the original files back, or set "
            "data.fingerprint to null to run on these (the results then get keys of their own). Another version of "
            "the JPEG decoder also changes pixels, and so the fingerprint"
        )


def present(source: str, root: str | None = None) -> bool:
    """Whether `load` would find the images without a download; nothing is read."""
    from tier.data import torchvision_sets

    base = root or os.environ.get(ROOT_VARIABLE) or None
    if source == "signs" or (source.strip() and _find(source, base) is not None):
        return True
    home = Path(base or DEFAULT_ROOT).expanduser()
    return source in DOWNLOADABLE and any(
        torchvision_sets.is_present(source, at) for at in (home / "torchvision", home)
    )


def _signs(config: Data) -> Dataset:
    from tier.data import signs

    drawing = signs.draw(config.signs, config.image_size)
    dataset = Dataset(drawing.images, drawing.labels, tuple(drawing.class_names), masks=drawing.masks)
    if config.limit is None or config.limit >= len(dataset):
        return dataset
    return dataset.take(limit_rows(dataset.labels, config.limit))


def _from_disk(config: Data, root: str | None, progress: Progress | None) -> Dataset:
    from tier.data import folder, parquet, torchvision_sets

    name, base = config.source, root or os.environ.get(ROOT_VARIABLE) or None
    path = _find(name, base) if name.strip() else None
    if name in DOWNLOADABLE:
        home = Path(base or DEFAULT_ROOT).expanduser()
        places = [home / "torchvision", home] if path is None else [path, path.parent]
        present = next((place for place in places if torchvision_sets.is_present(name, place, within=path)), None)
        if path is None or present is not None:
            return torchvision_sets.load(name, present or home / "torchvision", config, progress)
    if path is not None:
        return (parquet.load if parquet.is_parquet(path) else folder.load)(path, config, progress)
    looked = f"under the data root '{base}' and as a path" if base else f"as a path (no {ROOT_VARIABLE} is set)"
    raise DataError(
        f"no data set '{name}': looked {looked}. Give the path of a folder with one sub-folder per class or of parquet "
        f"files; or set {ROOT_VARIABLE} to the folder that holds '{name}'; or choose signs, {', '.join(DOWNLOADABLE)}, "
        "which need no files"
    )


def _find(source: str, base: str | None) -> Path | None:
    """The file or folder that a source names, the data root first."""
    candidates = [Path(base).expanduser() / name for name in (source, f"{source}.parquet")] if base else []
    return next((path for path in (*candidates, Path(source).expanduser()) if path.exists()), None)


def _with_empty_classes_noted(dataset: Dataset) -> Dataset:
    present = np.bincount(dataset.labels, minlength=len(dataset.class_names)) > 0
    empty = [name for name, some in zip(dataset.class_names, present, strict=True) if not some]
    if not empty:
        return dataset
    return replace(dataset, notes=(*dataset.notes, f"{len(empty)} classes have no image: {shortened(empty)}"))


def shortened(names: list[str], most: int = 20) -> str:
    """The first names, comma-separated, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
