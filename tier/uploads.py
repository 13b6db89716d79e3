"""Images that users bring: kept for a few days in the store's bus, named by their pixels."""

import base64
import hashlib

import numpy as np
from numpy.typing import NDArray

from tier.store import Store


def keep(store: Store, pixels: NDArray[np.uint8]) -> str:
    """Keep an image `(3, H, W)` and return its name, the sha256 of its bytes, 64 hex digits."""
    raw = np.ascontiguousarray(pixels).tobytes()
    name = hashlib.sha256(raw).hexdigest()
    content = {"height": pixels.shape[1], "width": pixels.shape[2], "pixels": base64.b64encode(raw).decode()}
    store.put_json(_path(name), content)
    return name


def read(store: Store, name: str) -> NDArray[np.uint8]:
    """The image of that name, `(3, H, W)`.

    Raises ValueError when it is not kept any more, or is not what its name says.
    """
    content = store.get_json(_path(name))
    gone = "the uploaded image is no longer kept; upload it again"
    if not isinstance(content, dict):
        raise ValueError(gone)
    try:
        raw = base64.b64decode(content["pixels"], validate=True)
        pixels = np.frombuffer(raw, np.uint8).reshape(3, int(content["height"]), int(content["width"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(gone) from error
    if hashlib.sha256(raw).hexdigest() != name:
        raise ValueError(gone)
    return pixels.copy()  # the caller's own, writable


def _path(name: str) -> str:
    return f"uploads/{name}.json"
