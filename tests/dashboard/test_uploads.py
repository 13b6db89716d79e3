"""Files that readers bring: every common kind is accepted as the model sees it, the rest refused with what to do."""

import io
import struct
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dashboard import loaders, uploads
from tier import uploads as kept

SIZE = 32


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)  # type: ignore[arg-type]
    return file.getvalue()


def colours(mode: str = "RGB", size: tuple[int, int] = (48, 40)) -> Image.Image:
    ramp = np.linspace(0, 255, size[0] * size[1] * 3).astype(np.uint8).reshape(size[1], size[0], 3)
    return Image.fromarray(ramp).convert(mode)


def animation() -> bytes:
    frames = [Image.new("RGB", (SIZE, SIZE), colour) for colour in ("red", "blue")]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG that declares a size whatever it holds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


ACCEPTED = {
    "png": saved(colours(), "PNG"),
    "jpeg": saved(colours(), "JPEG"),
    "webp": saved(colours(), "WEBP"),
    "bmp": saved(colours(), "BMP"),
    "tiff": saved(colours(), "TIFF"),
    "animated gif": animation(),
    "16-bit grey": saved(Image.fromarray(np.full((SIZE, SIZE), 0x8000, np.uint16)), "PNG"),
    "RGBA": saved(Image.new("RGBA", (SIZE, SIZE), (255, 0, 0, 0)), "PNG"),
    "CMYK jpeg": saved(colours("CMYK"), "JPEG"),
    "palette": saved(colours("P"), "PNG"),
    "one pixel": saved(Image.new("RGB", (1, 1), "lime"), "PNG"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_common_files_become_the_models_square(name: str) -> None:
    pixels, _ = uploads.accept(ACCEPTED[name], SIZE)
    assert pixels.shape == (3, SIZE, SIZE)
    assert pixels.dtype == np.uint8


def test_what_was_done_is_told() -> None:
    assert "the first of several frames taken" in uploads.accept(ACCEPTED["animated gif"], SIZE)[1]
    pixels, _ = uploads.accept(ACCEPTED["animated gif"], SIZE)
    assert pixels[:, 5, 5].tolist() == [255, 0, 0]  # the first frame's red
    assert "reduced from 16 to 8 bits per channel" in uploads.accept(ACCEPTED["16-bit grey"], SIZE)[1]
    assert set(uploads.accept(ACCEPTED["16-bit grey"], SIZE)[0].ravel()) == {0x80}
    assert "transparent parts shown on white" in uploads.accept(ACCEPTED["RGBA"], SIZE)[1]
    assert set(uploads.accept(ACCEPTED["RGBA"], SIZE)[0].ravel()) == {255}
    assert "converted to RGB" in uploads.accept(ACCEPTED["CMYK jpeg"], SIZE)[1]
    assert "scaled to the model's size" in uploads.accept(ACCEPTED["png"], SIZE)[1]


REFUSED = {
    "text": (b"not an image at all", "not an image of a known format"),
    "empty": (b"", "not an image of a known format"),
    "script": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", "not an image"),
    "huge png": (png(60_000, 60_000), "decompression bomb"),
    "large png": (png(6_000, 6_000), "decompression bomb"),
    "long png": (png(2**31 - 1, 1), "decompression bomb"),
    "cut jpeg": (ACCEPTED["jpeg"][:-40], "cut short"),
    "png without pixels": (png(40, 40), "cut short"),
    "png head only": (ACCEPTED["png"][:20], "damaged|not an image"),
    "float tiff": (saved(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"), "unknown range"),
    "too many bytes": (ACCEPTED["png"] + b"\0" * (5 << 20), "more than 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_with_what_to_do(name: str) -> None:
    raw, reason = REFUSED[name]
    with pytest.raises(uploads.RefusedError, match=reason) as caught:
        uploads.accept(raw, SIZE)
    text = str(caught.value)
    assert any(word in text for word in ("Save it as", "Scale it down", "Make it smaller"))
    assert not set("<>[]*`") & set(text)  # nothing of the file reaches the page as markup


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: object) -> None:
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr(uploads.images, "decode", decoded)
    with pytest.raises(uploads.RefusedError, match="bomb"):
        uploads.accept(png(6_000, 6_000), SIZE)


def test_a_kept_image_is_found_by_its_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIER_STORE", str(tmp_path))
    pixels, _ = uploads.accept(ACCEPTED["png"], SIZE)
    name = kept.keep(loaders.store(), pixels)
    found = uploads.read(name, SIZE)
    assert found is not None
    assert np.array_equal(found.pixels, pixels)
    assert uploads.read(name, 64) is None  # kept for a model of another size
    assert uploads.read("0" * 64, SIZE) is None
    for hostile in ("", "../../etc/passwd", "A" * 64, name[:-1], name + "/", "%00" * 22):
        assert uploads.read(hostile, SIZE) is None
    later = datetime.now(UTC) + timedelta(days=kept.KEPT_DAYS, minutes=1)
    with monkeypatch.context() as clock:
        clock.setattr(kept, "_now", lambda: later)
        assert uploads.read(name, SIZE) is None  # its days are over, whether or not anyone has cleaned up
    content = loaders.store().get_json(f"uploads/{name}.json")
    assert isinstance(content, dict)
    loaders.store().put_json(f"uploads/{name}.json", content | {"pixels": "AAAA"})
    assert uploads.read(name, SIZE) is None


def test_the_page_says_for_how_long_an_image_is_kept() -> None:
    assert f"for {kept.KEPT_DAYS} days whoever has the link" in uploads.PRIVACY
