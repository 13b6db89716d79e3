"""A folder with one sub-folder of images per class, such as OpenForensics, or anyone's.

The name of the sub-folder is the class; images may lie deeper inside it. Two layouts around it are understood:
- a level of split folders (`train`, `test`, `val`, ...): classes of the same name are merged, and the split is kept as
  the extra column `split`;
- a single folder around everything, as archives often unpack to.
Hidden files and folders, and `__MACOSX`, are skipped. Files that are no images by their ending, and images that lie in
no class folder, are left out and counted.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tier.config import Data
from tier.data import DataError, Dataset, Progress, limit_rows
from tier.data.images import ENDINGS, decode_all

SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation", "holdout")


@dataclass(frozen=True)
class Listing:
    """Image files below `root`, sorted by split, class and name; `splits` is empty when there is no such level."""

    root: Path
    files: tuple[Path, ...]
    classes: tuple[str, ...]  # one per file
    splits: tuple[str, ...]
    notes: tuple[str, ...]


def load(path: Path, config: Data, progress: Progress | None = None) -> Dataset:
    """The images of a class-per-folder tree, at `config.image_size`; classes in the order of their names.

    Raises DataError when the folder holds no class folders with readable images.
    """
    listing = list_images(path)
    class_names, labels = np.unique(np.array(listing.classes), return_inverse=True)
    rows = limit_rows(labels, config.limit)
    items = ((printable(listing.files[row].relative_to(path).as_posix()), listing.files[row]) for row in rows)
    decoded = decode_all(items, len(rows), config.image_size, printable(str(path)), progress)
    rows = rows[decoded.kept]
    return Dataset(
        images=decoded.images,
        labels=labels[rows].astype(np.int64),
        class_names=tuple(printable(str(name)) for name in class_names),
        extra={"split": np.array(listing.splits)[rows]} if listing.splits else {},
        notes=listing.notes + decoded.notes,
        refused=decoded.refused,
    )


def list_images(path: Path) -> Listing:
    """Which files are images of which class and split. Raises DataError when no class folder with images is there."""
    if not path.is_dir():
        raise DataError(f"'{path}' is neither a folder nor a parquet file; unpack archives first")
    root, notes, found = path, [], sorted(_files(path), key=lambda file: file.parts)
    images = [file for file in found if file.suffix.lower() in ENDINGS]
    if len(images) < len(found):
        notes.append(
            f"{len(found) - len(images)} files left out that are no images by their ending ({_endings(found)})"
        )
    parts = [file.relative_to(root).parts for file in images]
    while parts and min(map(len, parts)) > 2 and len({part[0] for part in parts}) == 1:
        root = root / parts[0][0]
        notes.append(f"classes are the folders below '{printable(str(root.relative_to(path)))}', the only folder")
        parts = [part[1:] for part in parts]
    level = 1 if _has_split_level(parts) else 0
    kept = [(file, part) for file, part in zip(images, parts, strict=True) if len(part) > level + 1]
    if len(kept) < len(images):
        notes.append(f"{len(images) - len(kept)} images left out that lie in no class folder")
    if not kept:
        raise DataError(
            f"'{path}' holds no images in class folders: expected '{path}/CLASS/IMAGE' or '{path}/SPLIT/CLASS/IMAGE' "
            f"with the endings {', '.join(ENDINGS)}"
        )
    splits = tuple(part[0] for _, part in kept) if level else ()
    if splits:
        counts = ", ".join(f"{n} in '{printable(split)}'" for split, n in sorted(Counter(splits).items()))
        notes.append(f"split folders merged: {counts}; kept as the column 'split'")
    files, classes = tuple(file for file, _ in kept), tuple(part[level] for _, part in kept)
    return Listing(root, files, classes, splits, tuple(notes))


def _files(path: Path) -> Iterator[Path]:
    """All visible files below a folder, links followed, each folder once."""
    seen: set[str] = set()
    for folder, folders, files in os.walk(path, onerror=_refuse_unreadable, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link back up would never end, and would list images twice
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
        yield from (Path(folder, name) for name in files if not name.startswith("."))


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(
        f"the folder '{error.filename}' cannot be read ({error.strerror}): allow it, or move it away"
    ) from error


def _has_split_level(parts: list[tuple[str, ...]]) -> bool:
    """Whether the first folders are splits: one is named so and holds folders, and no other holds images itself."""
    named = {part[0] for part in parts if len(part) > 2 and part[0].lower() in SPLITS}
    return bool(named) and all(part[0].lower() in SPLITS for part in parts if len(part) == 2)


def _endings(files: list[Path]) -> str:
    counts = Counter(
        printable(file.suffix.lower()) or "no ending" for file in files if file.suffix.lower() not in ENDINGS
    )
    return ", ".join(f"{n} {ending}" for ending, n in counts.most_common(5))


def printable(name: str) -> str:
    """A file name with the bytes that are not UTF-8 replaced, so that it can be stored and shown."""
    return name.encode("utf-8", "replace").decode("utf-8")
