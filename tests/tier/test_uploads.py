"""Uploaded images are kept for their days under the hash of size and pixels, and nothing else is read as one."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tier import uploads
from tier.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def test_an_image_comes_back_under_the_hash_of_its_size_and_pixels(store: Store) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 7), dtype=np.uint8)
    name = uploads.keep(store, pixels)
    assert (uploads.read(store, name) == pixels).all()
    assert uploads.keep(store, pixels.copy()) == name
    assert uploads.keep(store, pixels + np.uint8(1)) != name
    turned = uploads.keep(store, pixels.reshape(3, 7, 5))
    assert turned != name
    assert uploads.read(store, name).shape == (3, 5, 7) and uploads.read(store, turned).shape == (3, 7, 5)


def test_an_image_is_kept_for_its_days_from_when_it_was_brought_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, first = np.ones((3, 5, 7), np.uint8), datetime(2026, 3, 1, 12, tzinfo=UTC)
    monkeypatch.setattr(uploads, "_now", lambda: first)
    name = uploads.keep(store, pixels)
    assert uploads.expiry(store, name) == "2026-03-08T12:00:00+00:00"
    monkeypatch.setattr(uploads, "_now", lambda: first + timedelta(days=6.9))
    assert uploads.read(store, name).shape == (3, 5, 7)
    assert uploads.keep(store, pixels) == name
    monkeypatch.setattr(uploads, "_now", lambda: first + timedelta(days=13))
    assert uploads.read(store, name).shape == (3, 5, 7)
    monkeypatch.setattr(uploads, "_now", lambda: first + timedelta(days=14))
    with pytest.raises(ValueError, match="upload it again"):
        uploads.read(store, name)
    assert uploads.expiry(store, "0" * 64) == "2026-03-15T12:00:00+00:00"  # of what is gone nothing need be kept


@pytest.mark.parametrize(
    "change",
    [
        {"height": 4}, {"pixels": "AAAA"}, {"pixels": "not base64!"}, {"pixels": None}, {"height": "x"},
        {"height": 7, "width": 5}, {"expires": None}, {"expires": "soon"}, {"expires": "2126-01-01T00:00:00"},
    ],
)  # fmt: skip
def test_what_is_not_the_image_that_its_name_says_is_refused(store: Store, change: dict[str, Any]) -> None:
    name = uploads.keep(store, np.ones((3, 5, 7), np.uint8))
    path = f"uploads/{name}.json"
    content = store.get_json(path)
    assert isinstance(content, dict)
    store.put_json(path, content | change)
    with pytest.raises(ValueError, match="upload it again"):
        uploads.read(store, name)


def test_pixels_exchanged_for_others_of_the_same_size_are_refused(store: Store) -> None:
    first, second = (uploads.keep(store, np.full((3, 2, 2), value, np.uint8)) for value in (1, 2))
    content = store.get_json(f"uploads/{second}.json")
    store.put_json(f"uploads/{first}.json", content)
    with pytest.raises(ValueError, match="upload it again"):
        uploads.read(store, first)


def test_an_image_no_longer_kept(store: Store) -> None:
    with pytest.raises(ValueError, match="upload it again"):
        uploads.read(store, "0" * 64)
