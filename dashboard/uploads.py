"""Images that readers bring: what is accepted, why the rest is refused, and how the page keeps one.

A file is judged by its content alone; its name is neither used nor shown. Only the pixels that the model sees, a small
square, are kept (`tier.uploads`), never the file.
"""

import io
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dashboard import loaders, state
from tier import uploads
from tier.data import images
from tier.store import StoreError

TYPES = ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff")
MOST_MEGABYTES = 5
MOST_PIXELS = 25_000_000  # 75 MB once decoded, so that a class of thirty fits in memory; a phone's photo has 12 million
HELP = "Save it as PNG or JPEG with another program and try again."
PRIVACY = (
    "The file itself is not kept. The square that the model sees is kept in the store, so that the link reopens it: "
    f"for {uploads.KEPT_DAYS} days whoever has the link can see it. Then the link no longer works, and the engine "
    "removes the square and all that was made of it when it next cleans up, as it starts or within a day."
)


class RefusedError(ValueError):
    """A file that cannot be used: why, and what to do."""


@dataclass(frozen=True)
class Upload:
    """A kept image: its name (the sha256 of its size and pixels) and its pixels, (3, S, S) uint8."""

    name: str
    pixels: NDArray[np.uint8]


def accept(raw: bytes, size: int) -> tuple[NDArray[np.uint8], list[str]]:
    """A file's content as the (3, size, size) uint8 pixels that the models see, and what was done to it, in words.

    Raises RefusedError for files that are too large, declare too many pixels, or are no whole image.
    """
    if len(raw) > MOST_MEGABYTES << 20:
        raise RefusedError(
            f"The file has {len(raw) / 2**20:.1f} MB, more than {MOST_MEGABYTES}. Make it smaller: the models look at "
            f"{size} x {size} pixels only."
        )
    width, height = _declared(raw)
    if width * height > MOST_PIXELS:
        raise RefusedError(
            f"The image declares {width:,} x {height:,} pixels, more than {MOST_PIXELS // 10**6} million: it might be "
            "made to fill the memory (a decompression bomb). Scale it down and try again."
        )
    try:
        pixels, met = images.decode(raw, size)
    except images.RefusedError as refusal:
        reason = state.plain(refusal, 120)
        raise RefusedError(f"The image cannot be decoded ({reason}). It may be cut short or damaged. {HELP}") from None
    return np.ascontiguousarray(pixels), [text for name, text in DONE.items() if name in met]


DONE = {
    images.TURNED: "turned as its EXIF orientation says",
    images.WIDE: "reduced from 16 to 8 bits per channel",
    images.ALPHA: "transparent parts shown on white",
    images.OTHER: "converted to RGB",
    images.GREY: "grey given three equal channels",
    images.FRAMES: "the first of several frames taken",
    images.CROPPED: "cropped to the centre square",
    images.RESIZED: "scaled to the model's size",
}


def _declared(raw: bytes) -> tuple[int, int]:
    """Width and height as the file's head says, before anything is decoded."""
    try:
        with Image.open(io.BytesIO(raw), formats=images.FORMATS) as image:
            return image.size
    except Image.DecompressionBombError:
        raise RefusedError(
            "The image declares so many pixels that it might be made to fill the memory (a decompression bomb). Scale "
            "it down and try again."
        ) from None
    except UnidentifiedImageError:
        raise RefusedError(f"The file is not an image of a known format. {HELP}") from None
    except Exception as error:  # a damaged head can raise nearly anything inside a plugin: refused
        reason = state.plain(error, 120)
        raise RefusedError(f"The image's head is damaged ({reason}). {HELP}") from error


def choose(size: int) -> Upload | None:
    """The uploader, and the image that the address names, if it is still kept."""
    st.file_uploader(
        f"An image of your own (at most {MOST_MEGABYTES} MB)",
        TYPES,
        key="file",
        max_upload_size=MOST_MEGABYTES,
        on_change=_take,
        args=(size,),
        help=f"Cropped to its centre square and scaled to {size} x {size} pixels. {PRIVACY}",
    )
    st.caption(f":material/privacy_tip: {PRIVACY}")
    refused = st.session_state.get("upload_refused")
    if refused:
        st.error(refused, title="This file cannot be used", icon=":material/broken_image:")
    name = st.query_params.get("upload", "")
    if not name:
        return None
    found = read(name, size)
    if found is None:
        state.note("The link's uploaded image is no longer kept, or was made for another preset; upload it again.")
        return None
    return found


def read(name: str, size: int) -> Upload | None:
    """The kept image of that name and size, or None."""
    if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        return None
    try:
        pixels = uploads.read(loaders.store(), name)
    except (OSError, StoreError, ValueError):
        return None
    return Upload(name, pixels) if pixels.shape == (3, size, size) else None


def forget() -> None:
    """Say nothing more of the file taken last."""
    st.session_state.pop("upload_refused", None)
    st.session_state.pop("upload_done", None)


def _take(size: int) -> None:
    """Accept the file just chosen, keep its pixels, and put their name into the address."""
    st.session_state["upload_refused"] = None
    st.session_state["upload_done"] = []
    file = st.session_state.get("file")
    if file is None:
        st.query_params.pop("upload", None)
        return
    try:
        pixels, done = accept(file.getvalue(), size)
        name = uploads.keep(loaders.store(), pixels)
    except RefusedError as refusal:
        st.session_state["upload_refused"] = str(refusal)
    except (OSError, StoreError) as error:
        st.session_state["upload_refused"] = f"It cannot be kept in the store: {state.plain(error, 200)}"
    else:
        st.query_params["upload"] = name
        st.session_state["upload_done"] = done
