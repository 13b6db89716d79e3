"""CIFAR-10, CIFAR-100 and GTSRB through torchvision, downloaded when they are not there yet.

- The official training sets are used: 50,000 images for CIFAR, the 26,640 of torchvision's archive for GTSRB. The
  tracks of GTSRB's official test images are not published, so a group-disjoint split could not hold with them.
- GTSRB's `groups` are its tracks, the first number of a file name, counted within each class.
- torchvision's CIFAR reader unpickles the official files. It checks them against its MD5 sums right before, at every
  load, so users cannot supply files of their own there.
- torchvision, and so torch, is imported only when one of these sets is asked for.
"""

import http.client
import os
import socket
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tier.config import Data
from tier.data import ROOT_VARIABLE, DataError, Dataset, Progress, folder, limit_rows
from tier.data.images import Item, decode_all

LAYOUT = {  # what torchvision unpacks each set to
    "cifar10": Path("cifar-10-batches-py"),
    "cifar100": Path("cifar-100-python"),
    "gtsrb": Path("gtsrb", "GTSRB", "Training"),
}
TIMEOUT = 30.0  # seconds without a byte
GTSRB_IMAGES = 26_640
FAILURES = (OSError, RuntimeError, EOFError, http.client.HTTPException, zipfile.BadZipFile, tarfile.TarError)

GTSRB_CLASSES = (
    *("00 speed limit 20", "01 speed limit 30", "02 speed limit 50", "03 speed limit 60", "04 speed limit 70"),
    *("05 speed limit 80", "06 end of speed limit 80", "07 speed limit 100", "08 speed limit 120", "09 no passing"),
    *("10 no passing for trucks", "11 right-of-way at next intersection", "12 priority road", "13 yield", "14 stop"),
    *("15 no vehicles", "16 no trucks", "17 no entry", "18 general caution", "19 dangerous curve left"),
    *(
        "20 dangerous curve right",
        "21 double curve",
        "22 bumpy road",
        "23 slippery road",
        "24 road narrows on the right",
    ),
    *("25 road work", "26 traffic signals", "27 pedestrians", "28 children crossing", "29 bicycles crossing"),
    *("30 beware of ice or snow", "31 wild animals crossing", "32 end of all speed and passing limits"),
    *(
        "33 turn right ahead",
        "34 turn left ahead",
        "35 ahead only",
        "36 go straight or right",
        "37 go straight or left",
    ),
    *(
        "38 keep right",
        "39 keep left",
        "40 roundabout mandatory",
        "41 end of no passing",
        "42 end of no passing by trucks",
    ),
)


def is_present(name: str, home: Path, within: Path | None = None) -> bool:
    """Whether the set lies unpacked below `home`, as torchvision lays it out, and inside `within` if that is given."""
    place = home / LAYOUT[name]
    return place.is_dir() and (within is None or place.is_relative_to(within))


def load(name: str, home: Path, config: Data, progress: Progress | None = None) -> Dataset:
    """The set `name`, downloaded to `home` first if it is not there.

    Raises DataError saying what to do when the download fails or the files are damaged.
    """
    if not is_present(name, home):
        _download(name, home)
    read = _load_gtsrb if name == "gtsrb" else _load_cifar
    return read(name, home, config, progress)


def _download(name: str, home: Path) -> None:
    """Download into a folder of its own, then move the result in place: a torn download leaves nothing behind."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=home) as staging, _timeout(TIMEOUT):
            _fetch(name, staging)
            for archive in Path(staging).rglob("*.zip"):
                archive.unlink()
            _move(name, Path(staging), home)
    except FAILURES as error:
        raise DataError(
            f"{name} could not be downloaded to '{home}' ({error}). Check the network and that the folder can be "
            f"written, and try again; or set {ROOT_VARIABLE} to a folder that holds '{name}' as class folders, as "
            f"parquet, or as torchvision unpacks it ('{LAYOUT[name]}')"
        ) from error


def _fetch(name: str, target: str) -> None:
    from torchvision import datasets

    if name == "gtsrb":
        datasets.GTSRB(target, split="train", download=True)
    else:
        (datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100)(target, download=True)


def _move(name: str, staging: Path, home: Path) -> None:
    """Put a finished download in place, unless another process has finished the same one meanwhile."""
    top = LAYOUT[name].parts[0]
    try:
        os.rename(staging / top, home / top)
    except OSError as error:
        if not is_present(name, home):
            raise OSError(f"'{home / top}' is in the way and is not complete: delete it") from error


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """torchvision sets no timeout: without one, a silent server would hold the download for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _load_cifar(name: str, home: Path, config: Data, progress: Progress | None) -> Dataset:
    from torchvision import datasets

    try:
        official = (datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100)(str(home), download=False)
    except FAILURES as error:
        raise DataError(
            f"'{home / LAYOUT[name]}' is damaged ({error}): delete it and run again to download it anew"
        ) from error
    labels = np.array(official.targets, dtype=np.int64)
    rows = limit_rows(labels, config.limit)
    items: Iterator[tuple[str, Item]] = ((f"image {row}", official.data[row]) for row in rows)
    decoded = decode_all(items, len(rows), config.image_size, name, progress)
    rows = rows[decoded.kept]
    return Dataset(decoded.images, labels[rows], tuple(official.classes), notes=(_source(name), *decoded.notes))


def _load_gtsrb(name: str, home: Path, config: Data, progress: Progress | None) -> Dataset:
    """GTSRB's training images are class folders `00000` to `00042`, listed as any class tree."""
    path = home / LAYOUT[name]
    listing = folder.list_images(path)
    labels = np.array([int(number) if number.isdecimal() else -1 for number in listing.classes], dtype=np.int64)
    if set(labels) != set(range(len(GTSRB_CLASSES))):
        raise DataError(
            f"'{path}' has not the 43 classes of GTSRB: delete '{home / 'gtsrb'}' and run again to download it anew"
        )
    tracks = [
        f"{number}/{file.stem.split('_')[0]}" for number, file in zip(listing.classes, listing.files, strict=True)
    ]
    groups = np.unique(tracks, return_inverse=True)[1].astype(np.int64)
    rows = limit_rows(labels, config.limit)
    items: Iterator[tuple[str, Item]] = ((listing.files[row].name, listing.files[row]) for row in rows)
    decoded = decode_all(items, len(rows), config.image_size, name, progress)
    rows = rows[decoded.kept]
    return Dataset(
        images=decoded.images,
        labels=labels[rows],
        class_names=GTSRB_CLASSES,
        groups=groups[rows],
        extra={"track": np.array(tracks)[rows]},
        notes=(_source(name), *_missing(len(listing.files)), "groups are the tracks of the file names", *decoded.notes),
        refused=decoded.refused,
    )


def _missing(found: int) -> tuple[str, ...]:
    if found == GTSRB_IMAGES:
        return ()
    return (f"{found} images found where torchvision's archive has {GTSRB_IMAGES}: the copy is not complete",)


def _source(name: str) -> str:
    return f"{name}: the official training set, through torchvision"
