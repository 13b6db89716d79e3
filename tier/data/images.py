"""Any image file to RGB uint8 pixels of one size, and many of them to one array.

What is done, in this order:
- Orientation: turned as the file's EXIF says.
- 16 bits per channel: the high byte is kept. It inverts both ways of widening 8 bits (times 257, times 256).
- Palette: looked up. CMYK, YCbCr, LAB, HSV: Pillow's own conversion; embedded colour profiles are not applied.
- Transparency: composited on white (`BACKGROUND`). Grey and 1-bit: the same value in the three channels.
- Size: the largest centred square, scaled to the asked size with Pillow's antialiased bilinear filter, which is the
  same as scaling the shorter side and cropping the centre. An image that has the size is not touched.
- Of an animation or a file with several pages, the first.

Refused by name, never guessed: files that Pillow cannot decode to the end, more than `MAX_PIXELS` pixels (decompression
bombs), and 32-bit integer or float pixels, whose range a file does not tell.
"""

import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tier.data import DataError, Progress, shortened

Item = Path | bytes | np.ndarray  # a file, a file's content, or (H, W, 3) uint8 pixels

BACKGROUND = (255, 255, 255)
MAX_PIXELS = 89_478_485  # Pillow's own warning level: 256 MiB of RGB
MEMORY_VARIABLE = "TIER_DATA_MEMORY"  # bytes
MEMORY_BUDGET = 4 << 30  # bytes of images kept in memory; above, a mapped temporary file
THREADS = min(8, os.cpu_count() or 1)
CHUNK = 256  # images read ahead
SLICE = 16  # images per task: one task per 32x32 image costs more than its decoding

Image.init()  # all plugins now, not in the threads
# A fixed list, because Pillow would hand PostScript to Ghostscript. By content, not by file name.
FORMATS = tuple(f for f in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP") if f in Image.OPEN)
ENDINGS = (  # what a folder's image files are known by, in any case
    *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)

GREY, ALPHA, WIDE = "grey", "alpha", "16-bit"
TURNED, PALETTE, OTHER, FRAMES, CROPPED, RESIZED = "turned", "palette", "other", "frames", "cropped", "resized"
MEANING = {
    TURNED: "turned as their EXIF orientation says",
    WIDE: "with 16 bits per channel, reduced to the high 8",
    PALETTE: "with a palette, looked up",
    ALPHA: f"with transparent pixels, composited on RGB {BACKGROUND}",
    OTHER: "in CMYK or another colour space, converted to RGB",
    GREY: "in grey or black and white, given three equal channels",
    FRAMES: "with several frames, of which the first was taken",
    CROPPED: "not square, cropped to the centre square",
    RESIZED: "of another size, scaled with an antialiased bilinear filter",
}


class RefusedError(Exception):
    """An image that cannot be used, and why."""


@dataclass(frozen=True)
class Decoded:
    """Images (M, 3, S, S) uint8, which of the items they are, (N,) bool, and what happened to them."""

    images: np.ndarray
    kept: np.ndarray
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def open_image(item: Path | bytes) -> tuple[Image.Image, set[str]]:
    """The decoded image, turned upright, and what was met. Raises RefusedError with the reason."""
    if isinstance(item, bytes) and not item:
        raise RefusedError("no bytes are stored for it")
    try:
        with Image.open(io.BytesIO(item) if isinstance(item, bytes) else item, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise RefusedError(f"decompression bomb: {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            met = {FRAMES} if getattr(image, "is_animated", False) and image.format != "MPO" else set()
            if image.tile and ";16" in str(image.tile[0][3]):  # Pillow's raw mode, gone once the pixels are loaded
                met.add(WIDE)
            bits, inverted = _tiff_grey(image)
            oriented = image.getexif().get(0x0112, 1) != 1
            image.load()
            upright = ImageOps.exif_transpose(image)
    except RefusedError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything inside a decoder: refused, with its reason
        raise RefusedError(f"{_reason(error)}") from error
    if oriented:
        met.add(TURNED)
    if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format in ("PNG", "PPM")):
        return _high_byte(upright, bits, inverted), met | {WIDE}
    return upright, met


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not found"
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return str(error) or type(error).__name__


def _tiff_grey(image: Image.Image) -> tuple[int, bool]:
    """Bits per sample and whether 0 means white: Pillow heeds neither for grey TIFFs of more than 8 bits."""
    tags = getattr(image, "tag_v2", {})
    return int(np.ravel(tags.get(258, 16))[0]), tags.get(262, 1) == 0


def _high_byte(image: Image.Image, bits: int, inverted: bool) -> Image.Image:
    """A grey image of up to 16 bits as 8 bits, with alpha where the file declares a transparent value."""
    values = np.asarray(image).astype(np.int64)
    grey = np.clip(values >> (bits - 8), 0, 255).astype(np.uint8)
    result = Image.fromarray(255 - grey if inverted else grey)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        result.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return result


def to_rgb(image: Image.Image) -> tuple[Image.Image, set[str]]:
    """Any decoded image in RGB, and what was converted. Raises RefusedError for pixels without a known range."""
    mode, met = image.mode, set()
    if mode in ("I", "F"):
        raise RefusedError("pixels are 32-bit numbers of unknown range; save it with 8 or 16 bits per channel")
    if mode in ("P", "PA"):
        met.add(PALETTE)
    elif mode in ("1", "L", "LA", "La"):
        met.add(GREY)
    elif mode not in ("RGB", "RGBA", "RGBa", "RGBX"):
        met.add(OTHER)
    if mode == "La":
        image = image.convert("LA")  # Pillow has no direct way from premultiplied grey to RGBA
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            met.add(ALPHA)
            rgba = Image.alpha_composite(Image.new("RGBA", rgba.size, (*BACKGROUND, 255)), rgba)
        return rgba.convert("RGB"), met
    return image.convert("RGB"), met


def to_square(image: Image.Image, size: int) -> tuple[Image.Image, set[str]]:
    """The centred square of an RGB image, scaled to `size` pixels, and what was done."""
    width, height = image.size
    if (width, height) == (size, size):
        return image, set()
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    square = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return square, ({RESIZED} if side != size else set()) | ({CROPPED} if width != height else set())


def decode(item: Item, size: int) -> tuple[np.ndarray, set[str]]:
    """One image as (3, size, size) uint8 RGB, and what was done to it. Raises RefusedError."""
    if isinstance(item, np.ndarray):
        image, met = Image.fromarray(item), set[str]()
    else:
        image, met = open_image(item)
    rgb, converted = to_rgb(image)
    square, shaped = to_square(rgb, size)
    return np.asarray(square).transpose(2, 0, 1), met | converted | shaped


def decode_all(
    items: Iterable[tuple[str, Item]], count: int, size: int, source: str, progress: Progress | None = None
) -> Decoded:
    """`count` named images as one read-only array, decoded in threads, the refused ones left out, named and counted.

    Raises DataError when no image is left, or when there is no room for them.
    """
    images = allocate((count, 3, size, size))
    kept = np.zeros(count, bool)
    tally: Counter[str] = Counter()
    refused: list[str] = []

    def work(start: int, batch: list[tuple[str, Item]]) -> list[set[str] | str]:
        return [_decode_into(images, start + k, name, item) for k, (name, item) in enumerate(batch)]

    stream, done = iter(items), 0
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(stream, CHUNK)):
            offsets = range(0, len(chunk), SLICE)
            batches = pool.map(work, (done + k for k in offsets), (chunk[k : k + SLICE] for k in offsets))
            for row, outcome in enumerate((one for batch in batches for one in batch), start=done):
                if isinstance(outcome, str):
                    refused.append(outcome)
                else:
                    kept[row] = True
                    tally.update(outcome)
            done += len(chunk)
            if progress is not None:
                progress(done, count)
    if not kept.any():
        raise DataError(f"'{source}' holds no image that can be used; of {count}: {shortened(refused, 5) or 'none'}")
    images = _compacted(images, kept)
    images.flags.writeable = False
    return Decoded(images, kept, _notes(tally, refused, count), tuple(refused))


def _decode_into(images: np.ndarray, row: int, name: str, item: Item) -> set[str] | str:
    """Write one image to its row; what was done to it, or "name: reason" if it is refused."""
    try:
        images[row], met = decode(item, images.shape[-1])
    except RefusedError as refusal:
        return f"{name}: {refusal}"
    return met


def _notes(tally: Counter[str], refused: list[str], count: int) -> tuple[str, ...]:
    """What happened to the images, as sentences for the user."""
    notes = [f"{tally[met]} of {count} images {meaning}" for met, meaning in MEANING.items() if tally[met]]
    if refused:
        notes.insert(0, f"{len(refused)} of {count} images refused: {shortened(refused)}")
    return tuple(notes)


def _compacted(images: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The kept rows, moved to the front in place: a copy might not fit in memory."""
    rows = np.flatnonzero(kept)
    if len(rows) < len(images):
        for start in range(0, len(rows), CHUNK):
            block = rows[start : start + CHUNK]  # each row moves forwards only, so nothing unread is overwritten
            images[start : start + len(block)] = images[block]
    return images[: len(rows)]


def allocate(shape: tuple[int, ...]) -> np.ndarray:
    """An array of uint8, in memory, or above the budget in a temporary file that vanishes with it.

    The budget is TIER_DATA_MEMORY in bytes, else 4 GiB; the file lies where TMPDIR says. Raises DataError when there is
    no room.
    """
    size = int(np.prod(shape, dtype=np.int64))
    if size <= _budget():
        return np.empty(shape, np.uint8)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk now, not a bus error while images are written
            return np.memmap(file, np.uint8, "r+" if hasattr(os, "posix_fallocate") else "w+", shape=shape)
    except OSError as error:
        raise DataError(
            f"no room for {size / 2**30:.1f} GiB of images in {tempfile.gettempdir()} ({error.strerror or error}): "
            f"point TMPDIR to a larger disk, raise {MEMORY_VARIABLE}, or lower data.limit or data.image_size"
        ) from error


def _budget() -> int:
    text = os.environ.get(MEMORY_VARIABLE, "")
    if not text:
        return MEMORY_BUDGET
    if not text.isdecimal():
        raise DataError(f"{MEMORY_VARIABLE} must be a number of bytes, not '{text}'")
    return int(text)
