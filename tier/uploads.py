"""Images that users bring: kept for a few days in the store's bus, named by their size and pixels."""

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tier.store import Store

KEPT_DAYS = 7  # an image, and what was made of it; `Store.gc` then removes both


def keep(store: Store, pixels: NDArray[np.uint8]) -> str:
    """Keep an image `(3, H, W)` for KEPT_DAYS and return its name, the sha256 of size and pixels, 64 hex digits."""
    raw, (_, height, width) = np.ascontiguousarray(pixels).tobytes(), pixels.shape
    name = _name(raw, height, width)
    until = (_now() + timedelta(days=KEPT_DAYS)).isoformat(timespec="seconds")
    content = {"height": height, "width": width, "pixels": base64.b64encode(raw).decode(), "expires": until}
    store.put_json(_path(name), content)
    return name


def read(store: Store, name: str) -> NDArray[np.uint8]:
    """The image of that name, `(3, H, W)`.

    Raises ValueError when its days are over, and when what is kept is not what its name says.
    """
    gone = "the uploaded image is no longer kept; upload it again"
    content = _content(store, name)
    try:
        height, width = int(content["height"]), int(content["width"])
        raw = base64.b64decode(content["pixels"], validate=True)
        pixels = np.frombuffer(raw, np.uint8).reshape(3, height, width)
        over = datetime.fromisoformat(content["expires"]) <= _now()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(gone) from error
    if over or _name(raw, height, width) != name:
        raise ValueError(gone)
    return pixels.copy()  # the caller's own, writable


def expiry(store: Store, name: str) -> str:
    """Until when the image, and so what is made of it, is kept: ISO time in UTC; now when it is gone already."""
    expires = _content(store, name).get("expires")
    return expires if isinstance(expires, str) else _now().isoformat(timespec="seconds")


def _content(store: Store, name: str) -> dict[str, Any]:
    content = store.get_json(_path(name))
    return content if isinstance(content, dict) else {}


def _name(raw: bytes, height: int, width: int) -> str:
    return hashlib.sha256(f"{height}x{width}:".encode() + raw).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC)


def _path(name: str) -> str:
    return f"uploads/{name}.json"
