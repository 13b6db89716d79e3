"""Every source of images but signs: what is converted, refused, counted, looked up and downloaded."""

import hashlib
import http.server
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tier import data
from tier.config import Data
from tier.data import DataError, Dataset, images, limit_rows, load, torchvision_sets
from tier.data.images import RefusedError, decode, decode_all

SIZE = 8


# ---- Files made by hand, so that Pillow is not checked against itself


def png(pixels: np.ndarray, colour: int, extra: bytes = b"") -> bytes:
    """A PNG of (H, W, C) samples, uint8 or uint16, of the given colour type; `extra` chunks go before the data."""
    height, width, _ = pixels.shape
    bits = pixels.dtype.itemsize * 8
    rows = pixels.astype(pixels.dtype.newbyteorder(">")).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def grey_tiff(values: np.ndarray, bits: int, photometric: int) -> bytes:
    """An uncompressed little-endian grey TIFF of (H, W); photometric 0: zero is white."""
    height, width = values.shape
    if bits == 12:  # two samples in three bytes
        a, b = values[:, ::2].astype(int), values[:, 1::2].astype(int)
        data = np.stack([a >> 4, (a & 15) << 4 | b >> 8, b & 255], -1).astype(np.uint8).tobytes()
    else:
        data = values.astype("<u2").tobytes()
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1), (278, height)]
    tags.append((279, len(data)))
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + directory + b"\0" * 4


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def random_pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def hwc(item: bytes | Path | np.ndarray, size: int = SIZE) -> np.ndarray:
    return decode(item, size)[0].transpose(1, 2, 0).astype(int)


def met(item: bytes) -> set[str]:
    return decode(item, SIZE)[1]


# ---- Conversions


def wide(seed: int, channels: int) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 65536, (SIZE, SIZE, channels), dtype=np.uint16)
    values[0, :4, 0] = [0, 255, 256, 65535]
    return values


def test_16_bit_keeps_the_high_byte() -> None:
    values = wide(0, 1)
    expected = np.repeat(values // 256, 3, axis=2)
    files = {
        "png": png(values, 0),
        "pgm": b"P5 8 8 65535\n" + values.astype(">u2").tobytes(),
        "tiff": grey_tiff(values[..., 0], 16, photometric=1),
    }
    for name, file in files.items():
        assert np.array_equal(hwc(file), expected), name
        assert met(file) == {"16-bit", "grey"}, name
    inverted = grey_tiff(65535 - values[..., 0], 16, photometric=0)
    assert np.array_equal(hwc(inverted), expected)


def test_16_bit_colour_keeps_the_high_byte() -> None:
    values = wide(1, 3)
    assert np.array_equal(hwc(png(values, 2)), values // 256)
    assert met(png(values, 2)) == {"16-bit"}


@pytest.mark.parametrize("widen", [257, 256])
def test_8_bits_stored_as_16_come_back(widen: int) -> None:
    pixels = random_pixels(2, SIZE, SIZE, 3)
    assert np.array_equal(hwc(png((pixels.astype(np.uint16) * widen), 2)), pixels)
    assert np.array_equal(hwc(png((pixels[..., :1].astype(np.uint16) * widen), 0)), pixels[..., [0, 0, 0]])


def test_12_bit_tiff() -> None:
    values = np.random.default_rng(3).integers(0, 4096, (SIZE, SIZE))
    values[0, :2] = [0, 4095]
    assert np.array_equal(hwc(grey_tiff(values, 12, photometric=1))[..., 0], values // 16)


def test_16_bit_alpha_and_transparent_grey() -> None:
    values = wide(4, 2)
    values[..., 1] = np.where(np.arange(SIZE) % 2, 65535, 0)
    expected = np.where(np.arange(SIZE) % 2, values[..., 0] // 256, 255)
    assert np.array_equal(hwc(png(values, 4))[..., 0], expected)
    grey = wide(5, 1)
    grey[3, 3] = 1234
    file = png(grey, 0, chunk(b"tRNS", struct.pack(">H", 1234)))
    expected = np.where(grey[..., 0] == 1234, 255, grey[..., 0] // 256)
    assert np.array_equal(hwc(file)[..., 0], expected)


def test_palette() -> None:
    palette, codes = random_pixels(6, 16, 3), np.random.default_rng(6).integers(0, 16, (SIZE, SIZE, 1)).astype(np.uint8)
    chunks = chunk(b"PLTE", palette.tobytes())
    file = png(codes, 3, chunks)
    assert np.array_equal(hwc(file), palette[codes[..., 0]])
    assert met(file) == {"palette"}
    alpha = np.where(np.arange(16) % 2, 255, 0).astype(np.uint8)
    transparent = png(codes, 3, chunks + chunk(b"tRNS", alpha.tobytes()))
    expected = np.where(alpha[codes] == 255, palette[codes[..., 0]], 255)
    assert np.array_equal(hwc(transparent), expected)
    assert met(transparent) == {"palette", "alpha"}


@pytest.mark.parametrize(("colour", "channels"), [(6, 4), (4, 2)])
def test_alpha_is_composited_on_white(colour: int, channels: int) -> None:
    values = random_pixels(7, SIZE, SIZE, channels)
    alpha = values[..., -1:].astype(float) / 255
    expected = alpha * values[..., :-1] + (1 - alpha) * 255
    assert np.abs(hwc(png(values, colour)) - expected).max() <= 1
    values[..., -1] = 255
    assert np.array_equal(hwc(png(values, colour)), np.broadcast_to(values[..., :-1], (SIZE, SIZE, 3)))
    assert "alpha" not in met(png(values, colour)), "opaque pixels are not counted as composited"
    values[..., -1] = 0
    assert (hwc(png(values, colour)) == 255).all()


def test_transparent_colour() -> None:
    values = random_pixels(8, SIZE, SIZE, 3)
    values[2, 5] = [1, 2, 3]
    file = png(values, 2, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    values[2, 5] = 255
    assert np.array_equal(hwc(file), values)


def test_cmyk() -> None:
    """Pillow's own conversion: each ink takes away its share of what black leaves."""
    inks = random_pixels(9, SIZE, SIZE, 4)
    inks[0, 0], inks[0, 1] = [0, 0, 0, 0], [0, 0, 0, 255]
    c = inks.astype(float) / 255
    expected = 255 * (1 - c[..., :3]) * (1 - c[..., 3:])
    file = encode(Image.frombytes("CMYK", (SIZE, SIZE), inks.tobytes()), "TIFF")
    assert np.abs(hwc(file) - expected).max() <= 1.5
    assert met(file) == {"other"}
    jpeg = encode(Image.new("CMYK", (SIZE, SIZE), (255, 0, 0, 0)), "JPEG", quality=95)
    assert np.abs(hwc(jpeg) - [0, 255, 255]).max() <= 3, (
        "cyan ink alone is cyan, also in a JPEG, which stores inks inverted"
    )


def test_grey_and_1_bit() -> None:
    grey = random_pixels(10, SIZE, SIZE, 1)
    assert np.array_equal(hwc(b"P5 8 8 255\n" + grey.tobytes()), grey.repeat(3, 2))
    assert np.array_equal(hwc(png(grey, 0)), grey.repeat(3, 2))
    assert met(png(grey, 0)) == {"grey"}
    bits = np.random.default_rng(10).integers(0, 2, (SIZE, SIZE))
    text = "P1 8 8\n" + "\n".join(" ".join(map(str, row)) for row in bits)  # 1 is black
    assert np.array_equal(hwc(text.encode())[..., 1], 255 * (1 - bits))
    assert met(text.encode()) == {"grey"}


def test_pixels_of_unknown_range_are_refused() -> None:
    for kind in (np.float32, np.int32):
        file = encode(Image.fromarray(np.ones((SIZE, SIZE), kind)), "TIFF")
        with pytest.raises(RefusedError, match="unknown range"):
            decode(file, SIZE)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation(form: str) -> None:
    pixels = random_pixels(11, SIZE, SIZE, 3)
    upright = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, -1),
        7: np.rot90(pixels, 2).transpose(1, 0, 2),
        8: np.rot90(pixels, 1),
    }
    for orientation, expected in upright.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = encode(Image.fromarray(pixels), form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
        assert np.array_equal(hwc(file), expected), orientation
        assert met(file) == (set() if orientation == 1 else {"turned"})


def triangle_weights(source: int, start: float, side: float, target: int) -> np.ndarray:
    """(target, source) weights of an antialiased bilinear filter over [start, start + side], slowly."""
    scale = side / target
    reach = max(scale, 1.0)
    weights = np.zeros((target, source))
    for i in range(target):
        centre = start + (i + 0.5) * scale
        for j in range(source):
            weights[i, j] = max(0.0, 1 - abs(j + 0.5 - centre) / reach)
        weights[i] /= weights[i].sum()
    return weights


@pytest.mark.parametrize(("height", "width"), [(20, 20), (21, 33), (40, 17), (5, 3), (8, 19), (1, 30)])
def test_centre_square_scaled(height: int, width: int) -> None:
    """The shorter side scaled, the centre kept, antialiased."""
    pixels = random_pixels(12, height, width, 3)
    side = min(height, width)
    rows = triangle_weights(height, (height - side) / 2, side, SIZE)
    columns = triangle_weights(width, (width - side) / 2, side, SIZE)
    expected = np.einsum("ih,jw,hwc->ijc", rows, columns, pixels.astype(float))
    assert np.abs(hwc(png(pixels, 2)) - expected).max() <= 1.01
    done = met(png(pixels, 2))
    assert ("resized" in done) == (side != SIZE)
    assert ("cropped" in done) == (height != width)


def test_right_size_is_untouched() -> None:
    pixels = random_pixels(13, SIZE, SIZE, 3)
    assert np.array_equal(hwc(png(pixels, 2)), pixels)
    assert np.array_equal(hwc(pixels), pixels)
    assert met(png(pixels, 2)) == set()


def test_first_frame() -> None:
    frames = [Image.fromarray(random_pixels(k, SIZE, SIZE, 3)) for k in range(3)]
    file = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(hwc(file), np.asarray(frames[0]))
    assert met(file) == {"frames"}


# ---- Refusals


def test_decompression_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    with pytest.raises(RefusedError, match="decompression bomb"):
        decode(bomb, SIZE)
    monkeypatch.setattr(images, "MAX_PIXELS", 63)
    with pytest.raises(RefusedError, match="decompression bomb: 8 x 8 pixels, more than 63"):
        decode(png(random_pixels(0, 8, 8, 3), 2), SIZE)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about damaged TIFF tags
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_damaged_files_are_refused_or_read_but_never_crash(form: str) -> None:
    """Every cut refused; any flipped byte either refused or decoded to the asked shape."""
    file = encode(Image.fromarray(random_pixels(14, 24, 24, 3)), form)
    for end in (0, 1, 8, len(file) // 3, len(file) // 2):
        with pytest.raises(RefusedError):
            decode(file[:end], SIZE)
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(file), 60):
        damaged = bytearray(file)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            assert decode(bytes(damaged), SIZE)[0].shape == (3, SIZE, SIZE)
        except RefusedError as refusal:
            assert str(refusal)  # noqa: PT017 - either outcome is right


def test_postscript_is_never_interpreted() -> None:
    with pytest.raises(RefusedError, match="not an image of a known format"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n", SIZE)


def test_all_refused() -> None:
    with pytest.raises(DataError, match="'x' holds no image that can be used; of 2: a: not an image of a known format"):
        decode_all([("a", b"text"), ("b", b"")], 2, SIZE, "x")


@pytest.mark.parametrize("count", [3, 600])
def test_refused_images_leave_no_gap(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with more than one chunk, and in a mapped file."""
    pixels = random_pixels(15, count, SIZE, SIZE, 3)
    bad = set(np.random.default_rng(1).choice(count, count // 3, replace=False).tolist())
    items = [(f"{k}.ppm", b"" if k in bad else b"P6 8 8 255\n" + pixels[k].tobytes()) for k in range(count)]
    good = [k for k in range(count) if k not in bad]
    seen: list[tuple[int, int]] = []
    for budget in ("", "100"):
        monkeypatch.setenv(images.MEMORY_VARIABLE, budget)
        decoded = decode_all(iter(items), count, SIZE, "x", lambda done, total: seen.append((done, total)))
        assert np.array_equal(decoded.images, pixels[good].transpose(0, 3, 1, 2))
        assert np.flatnonzero(decoded.kept).tolist() == good
        assert [name.split(".")[0] for name in decoded.refused] == [str(k) for k in sorted(bad)]
        assert decoded.notes[0].startswith(f"{len(bad)} of {count} images refused: {min(bad)}.ppm: ")
        assert isinstance(decoded.images, np.memmap) == (budget == "100")
        assert not decoded.images.flags.writeable
    assert seen[-1] == (count, count)


def test_progress_can_cancel() -> None:
    class StopError(Exception): ...

    def progress(done: int, total: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        decode_all([("a", random_pixels(0, 8, 8, 3))], 1, SIZE, "x", progress)


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(images.MEMORY_VARIABLE, "1")
    with pytest.raises(DataError, match=r"no room for .* GiB.*TMPDIR"):
        images.allocate((1 << 40, 3, 1024, 1024))
    monkeypatch.setenv(images.MEMORY_VARIABLE, "4 GiB")
    with pytest.raises(DataError, match="must be a number of bytes"):
        images.allocate((1, 3, 8, 8))


# ---- Class folders


def write(path: Path, content: bytes | None = None, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(random_pixels(seed, SIZE, SIZE, 3), 2) if content is None else content)
    return path


def tree(root: Path, classes: tuple[str, ...] = ("cat", "dog"), images_each: int = 3) -> Path:
    for k, name in enumerate(classes):
        for i in range(images_each):
            write(root / name / f"{i}.png", seed=100 * k + i)
    return root


def read(source: Path | str, **fields: object) -> Dataset:
    return load(Data(source=str(source), image_size=SIZE, **fields))


def test_class_folders(tmp_path: Path) -> None:
    dataset = read(tree(tmp_path / "set", ("dog", "cat")))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    expected = [random_pixels(seed, SIZE, SIZE, 3) for seed in (100, 101, 102, 0, 1, 2)]
    assert np.array_equal(dataset.images, np.stack(expected).transpose(0, 3, 1, 2))
    assert dataset.images.dtype == np.uint8
    assert dataset.images.flags.c_contiguous
    assert dataset.notes == ()


def test_split_folders_are_merged(tmp_path: Path) -> None:
    for split in ("train", "test"):
        tree(tmp_path / split, ("real", "fake"), 3 if split == "train" else 1)
    dataset = read(tmp_path)
    assert dataset.class_names == ("fake", "real")
    assert dataset.extra["split"].tolist() == ["test", "test"] + ["train"] * 6
    assert dataset.labels.tolist() == [0, 1, 0, 0, 0, 1, 1, 1]
    assert "2 in 'test', 6 in 'train'" in dataset.notes[0]


def test_unlabelled_test_folder_is_no_class(tmp_path: Path) -> None:
    tree(tmp_path / "train")
    write(tmp_path / "test" / "1.png")
    dataset = read(tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert "1 images left out that lie in no class folder" in dataset.notes


def test_classes_named_like_splits(tmp_path: Path) -> None:
    assert read(tree(tmp_path, ("test", "other"))).class_names == ("other", "test")


def test_wrapper_and_deeper_folders(tmp_path: Path) -> None:
    tree(tmp_path / "archive-main" / "images")
    write(tmp_path / "archive-main" / "images" / "dog" / "more" / "9.png")
    dataset = read(tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert len(dataset) == 7
    assert any("'archive-main/images'" in note for note in dataset.notes)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path / "cat" / "notes.txt", b"text")
    write(tmp_path / "cat" / "Thumbs.db", b"x")
    write(tmp_path / "stray.png")
    write(tmp_path / ".cache" / "hidden.png")
    write(tmp_path / "cat" / "._0.png", b"resource fork")
    write(tmp_path / "__MACOSX" / "cat" / "0.png", b"resource fork")
    write(tmp_path / "cat" / "text.jpg", b"not an image")
    write(tmp_path / "dog" / "cut.png", png(random_pixels(0, 64, 64, 3), 2)[:900])
    dataset = read(tmp_path)
    assert len(dataset) == 6
    assert "2 files left out that are no images by their ending (1 .db, 1 .txt)" in dataset.notes
    assert "1 images left out that lie in no class folder" in dataset.notes
    assert [line.split(":")[0] for line in dataset.refused] == ["cat/text.jpg", "dog/cut.png"]
    assert any(note.startswith("2 of 8 images refused: cat/text.jpg: not an image") for note in dataset.notes)


def test_mixed_files(tmp_path: Path) -> None:
    """Grey, non-square and transparent images, endings in capitals and wrong endings, in one tree."""
    tree(tmp_path)
    write(tmp_path / "cat" / "a.PGM", b"P5 8 8 255\n" + random_pixels(1, 64).tobytes())
    write(tmp_path / "cat" / "b.jpg", png(random_pixels(2, SIZE, SIZE, 4), 6))
    write(tmp_path / "dog" / "c.webp", png(random_pixels(3, 10, 24, 3), 2))
    dataset = read(tmp_path)
    assert len(dataset) == 9
    assert dataset.refused == ()
    text = "\n".join(dataset.notes)
    assert "1 of 9 images in grey" in text
    assert "1 of 9 images with transparent pixels, composited on RGB (255, 255, 255)" in text
    assert "1 of 9 images not square" in text


def test_link_loops_end(tmp_path: Path) -> None:
    tree(tmp_path / "set")
    (tmp_path / "set" / "dog" / "loop").symlink_to(tmp_path / "set")
    tree(tmp_path / "elsewhere", ("x",))
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere" / "x")
    dataset = read(tmp_path / "set")
    assert dataset.class_names == ("cat", "dog", "linked")
    assert len(dataset) == 9


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    tree(tmp_path)
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    (Path(os.fsdecode(folder)) / "0.png").write_bytes(b"broken")
    (Path(os.fsdecode(folder)) / "1.png").write_bytes(png(random_pixels(0, SIZE, SIZE, 3), 2))
    dataset = read(tmp_path)
    assert dataset.class_names[0] == "caf?"
    json.dumps([dataset.notes, dataset.class_names, dataset.refused]).encode("utf-8")


def test_class_without_readable_image_is_said(tmp_path: Path) -> None:
    write(tree(tmp_path) / "emu" / "0.png", b"broken")
    dataset = read(tmp_path)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert "1 classes have no image: emu" in dataset.notes


def test_folder_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in class folders: expected"):
        read(tmp_path / "empty")
    write(tmp_path / "flat" / "0.png")
    with pytest.raises(DataError, match="no images in class folders: expected"):
        read(tmp_path / "flat")
    with pytest.raises(DataError, match=r"one class only \('cat'\)"):
        read(tree(tmp_path / "one", ("cat",)))
    write(tmp_path / "set.zip", b"PK")
    with pytest.raises(DataError, match="unpack archives first"):
        read(tmp_path / "set.zip")


# ---- Parquet


def webp(seed: int) -> bytes:
    return encode(Image.fromarray(random_pixels(seed, SIZE, SIZE, 3)), "WEBP", lossless=True)


def write_parquet(
    path: Path, columns: Mapping[str, object], features: Mapping[str, object] | None = None, n: int = 4, first: int = 0
) -> Path:
    """A file of n images in the Hugging Face layout, with row groups of 3."""
    image = [{"bytes": webp(first + k), "path": f"{first + k}.webp"} for k in range(n)]
    table = pa.table({"image": image, **columns})
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=3)
    return path


CLASSES = {"label": {"names": ["ape", "bee", "cow"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}


def stack(seeds: list[int]) -> np.ndarray:
    return np.stack([random_pixels(seed, SIZE, SIZE, 3) for seed in seeds]).transpose(0, 3, 1, 2)


def test_images_can_be_left_out_by_a_column(tmp_path: Path) -> None:
    columns = {"label": [1, 0, 1, 0], "seen": [True, False, True, False], "score": [0.5, 1.0, 1.5, 2.0]}
    path = write_parquet(tmp_path / "one.parquet", columns, CLASSES)
    dataset = read(path, without="seen")
    assert dataset.labels.tolist() == [0, 0]
    assert np.array_equal(dataset.images, stack([1, 3]))
    assert dataset.extra["score"].tolist() == [1.0, 2.0]
    assert "2 images left out, whose seen is true" in dataset.notes
    with pytest.raises(DataError, match="column 'sene', which these images lack; further columns: seen, score"):
        read(path, without="sene")
    with pytest.raises(DataError, match="needs a column of true and false; 'score' holds float"):
        read(path, without="score")
    every = write_parquet(tmp_path / "all.parquet", {**columns, "seen": [True] * 4}, CLASSES)
    with pytest.raises(DataError, match="leaves no image"):
        read(every, without="seen")


def test_parquet(tmp_path: Path) -> None:
    columns = {
        "label": [1, 0, 1, 0],
        "track": ["b/1", "a/1", None, "b/1"],
        "from_cifar10": [True, False, True, True],
        "score": [0.5, None, 1.5, 2.0],
        "box": [[1, 2]] * 4,
        "text": ["x" * 500] * 4,
    }
    dataset = read(write_parquet(tmp_path / "one.parquet", columns, CLASSES))
    assert dataset.class_names == ("ape", "bee", "cow")
    assert dataset.labels.tolist() == [1, 0, 1, 0]
    assert np.array_equal(dataset.images, stack([0, 1, 2, 3]))
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [1, 0, 2, 1]
    assert dataset.groups.dtype == np.int64
    assert dataset.extra["track"].tolist() == ["b/1", "a/1", "", "b/1"]
    assert dataset.extra["from_cifar10"].tolist() == [True, False, True, True]
    assert np.array_equal(dataset.extra["score"], [0.5, np.nan, 1.5, 2.0], equal_nan=True)
    assert set(dataset.extra) == {"track", "from_cifar10", "score"}
    text = "\n".join(dataset.notes)
    for part in (
        "groups taken from the column 'track'",
        "neither numbers nor texts: box",
        "'text' left out",
        "no image: cow",
    ):
        assert part in text
    assert not any(column.dtype == object for column in dataset.extra.values()), "never pickled when stored"


def test_shards(tmp_path: Path) -> None:
    for k in range(3):
        name = f"train-{k:05d}-of-00003.parquet"
        write_parquet(tmp_path / "data" / name, {"label": [0, 1, 2, 0]}, CLASSES, first=10 * k)
    dataset = read(tmp_path)
    assert np.array_equal(dataset.images, stack([10 * k + i for k in range(3) for i in range(4)]))
    assert "split" not in dataset.extra
    write_parquet(
        tmp_path / "data" / "test-00000-of-00001-0123456789abcdef.parquet", {"label": [2] * 4}, CLASSES, first=90
    )
    merged = read(tmp_path)
    assert merged.extra["split"].tolist() == ["test"] * 4 + ["train"] * 12
    assert any("splits merged: test, train" in note for note in merged.notes)
    (tmp_path / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 3 shards: train-00001-of-00003.parquet"):
        read(tmp_path)


@pytest.mark.parametrize("limit", [1, 5, 7, 12])
def test_parquet_limit_reads_the_right_rows(tmp_path: Path, limit: int) -> None:
    for k in range(3):
        write_parquet(tmp_path / f"s-{k:05d}-of-00003.parquet", {"label": [0, 1, 2, 0]}, CLASSES, first=10 * k)
    whole, part = read(tmp_path), read(tmp_path, limit=limit)
    rows = limit_rows(whole.labels, limit)
    assert len(part) == limit
    assert np.array_equal(part.images, whole.images[rows])
    assert np.array_equal(part.labels, whole.labels[rows])


def test_label_column_is_chosen_and_said(tmp_path: Path) -> None:
    coarse = {"names": ["x", "y"], "_type": "ClassLabel"}
    fine = {"names": ["p", "q", "r"], "_type": "ClassLabel"}
    both = {"coarse_label": [0, 0, 1, 1], "fine_label": [0, 1, 2, 2]}
    dataset = read(write_parquet(tmp_path / "a.parquet", both, {"coarse_label": coarse, "fine_label": fine}))
    assert dataset.class_names == ("p", "q", "r")
    assert dataset.extra["coarse_label"].tolist() == [0, 0, 1, 1]
    assert "labels taken from the column 'fine_label'" in dataset.notes
    odd = {"family": [0, 0, 1, 1], "species": [0, 1, 2, 2]}
    dataset = read(write_parquet(tmp_path / "b.parquet", odd, {"family": coarse, "species": fine}))
    assert dataset.class_names == ("p", "q", "r")
    dataset = read(write_parquet(tmp_path / "c.parquet", {"kind": [5, 9, 5, 5], "weight": [0.1] * 4}))
    assert dataset.class_names == ("5", "9")
    assert dataset.labels.tolist() == [0, 1, 0, 0]
    dataset = read(write_parquet(tmp_path / "d.parquet", {"label": ["no", "yes", "no", "no"]}))
    assert dataset.class_names == ("no", "yes")
    assert any("names no classes" in note for note in dataset.notes)
    with pytest.raises(DataError, match=r"no label column; name it 'label'. Its columns: image, m, n"):
        read(write_parquet(tmp_path / "e.parquet", {"m": [1] * 4, "n": [2] * 4}))


def test_rows_without_label_or_image(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": [
                {"bytes": webp(0), "path": "a"},
                {"bytes": None, "path": "b"},
                None,
                *[{"bytes": webp(3), "path": "c"}] * 4,
            ],
            "label": [0, 1, 1, None, -1, 2, 1],
        }
    )
    meta = {"huggingface": json.dumps({"info": {"features": CLASSES}})}
    pq.write_table(table.replace_schema_metadata(meta), tmp_path / "x.parquet")
    dataset = read(tmp_path / "x.parquet")
    assert dataset.labels.tolist() == [0, 2, 1]
    assert dataset.refused == ("b: no bytes are stored for it", "x.parquet row 2: no bytes are stored for it")
    assert "2 of 7 rows left out: without a label" in dataset.notes


def test_plain_binary_column(tmp_path: Path) -> None:
    table = pa.table({"img": [webp(k) for k in range(4)], "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert np.array_equal(read(tmp_path / "x.parquet").images, stack([0, 1, 2, 3]))


def test_parquet_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the label 7, but names only 3 classes"):
        read(write_parquet(tmp_path / "a.parquet", {"label": [0, 1, 7, 0]}, CLASSES))
    pq.write_table(pa.table({"x": [1], "label": [0]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"no image column .* its columns: x, label"):
        read(tmp_path / "b.parquet")
    whole = write_parquet(tmp_path / "c.parquet", {"label": [0, 1, 1, 0]}, CLASSES).read_bytes()
    (tmp_path / "c.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot be read as parquet .* fetch its files again"):
        read(tmp_path / "c.parquet")
    write_parquet(tmp_path / "d" / "a.parquet", {"label": [0, 1, 1, 0]}, CLASSES)
    write_parquet(tmp_path / "d" / "b.parquet", {"other": [0, 1, 1, 0]}, CLASSES)
    with pytest.raises(DataError, match=r"b.parquet' has other columns than 'a.parquet'"):
        read(tmp_path / "d")
    with pytest.raises(DataError, match="no row with a label"):
        read(write_parquet(tmp_path / "e.parquet", {"label": [-1] * 4}, CLASSES))


def test_damaged_metadata_is_ignored_and_said(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"label": [0, 1, 1, 0]})
    pq.write_table(pq.read_table(path).replace_schema_metadata({"huggingface": "{"}), path)
    assert any("metadata is damaged" in note for note in read(path).notes)


# ---- torchvision, from a server on loopback


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on loopback: its address and the folder that it serves; `stall` never answers."""
    folder = tmp_path / "served"
    folder.mkdir()
    stop = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            if self.path == "/stall":
                stop.wait(20)
                return
            super().do_GET()

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        stop.set()
        httpd.shutdown()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def fake_cifar(name: str, monkeypatch: pytest.MonkeyPatch, served: Path, url: str) -> tuple[np.ndarray, list[int]]:
    """Serve a small CIFAR in torchvision's on-disk format and make its sums the expected ones; pixels and labels."""
    from torchvision import datasets

    kind = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    key = "labels" if name == "cifar10" else "fine_labels"
    names = [f"class {k}" for k in range(10)]
    pixels, labels = random_pixels(20, 20, 3, 32, 32), [k % 10 for k in range(20)]
    files = {}
    lists: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    per_file = len(pixels) // len(kind.train_list)
    for k, (file, _) in enumerate(kind.train_list):
        rows = slice(k * per_file, (k + 1) * per_file)
        files[file] = pickle.dumps({"data": pixels[rows].reshape(per_file, -1), key: labels[rows]})
        lists["train_list"].append([file, md5(files[file])])
    for file, _ in kind.test_list:
        files[file] = pickle.dumps({"data": pixels[:1].reshape(1, -1), key: labels[:1]})
        lists["test_list"].append([file, md5(files[file])])
    meta = {**kind.meta}
    files[meta["filename"]] = pickle.dumps({meta["key"]: names})
    meta["md5"] = md5(files[meta["filename"]])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file, content in files.items():
            entry = tarfile.TarInfo(f"{kind.base_folder}/{file}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    (served / kind.filename).write_bytes(buffer.getvalue())
    monkeypatch.setattr(kind, "url", f"{url}/{kind.filename}")
    monkeypatch.setattr(kind, "tgz_md5", md5(buffer.getvalue()))
    monkeypatch.setattr(kind, "meta", meta)
    for attribute, value in lists.items():
        monkeypatch.setattr(kind, attribute, value)
    return pixels, labels


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_downloaded_once(
    name: str, tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    pixels, labels = fake_cifar(name, monkeypatch, served, url)
    root = tmp_path / "root"
    dataset = load(Data(source=name), str(root))
    assert np.array_equal(dataset.images, pixels)
    assert dataset.labels.tolist() == labels
    assert dataset.class_names[3] == "class 3"
    assert [path.name for path in (root / "torchvision").iterdir()] == [str(torchvision_sets.LAYOUT[name])]
    for file in served.iterdir():
        file.unlink()
    again = load(Data(source=name, limit=10, image_size=16), str(root))
    assert np.bincount(again.labels).tolist() == [1] * 10
    assert again.images.shape == (10, 3, 16, 16)


def test_cifar_that_was_tampered_with_is_not_unpickled(
    tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    fake_cifar("cifar10", monkeypatch, served, url)
    load(Data(source="cifar10"), str(tmp_path))

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "unpickled"),)

    (tmp_path / "torchvision" / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"is damaged .* delete it and run again"):
        load(Data(source="cifar10"), str(tmp_path))
    assert not (tmp_path / "unpickled").exists()


def fake_gtsrb(monkeypatch: pytest.MonkeyPatch, served: Path, url: str, classes: int = 43) -> None:
    """Serve a small GTSRB as torchvision's archive is laid out: 2 tracks of 2 frames per class, non-square PPMs."""
    from torchvision.datasets import gtsrb
    from torchvision.datasets.utils import download_and_extract_archive

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for label in range(classes):
            for track, frame in ((0, 0), (0, 1), (1, 0), (1, 1)):
                file = b"P6 30 25 255\n" + random_pixels(label * 10 + track * 2 + frame, 25, 30, 3).tobytes()
                archive.writestr(f"GTSRB/Training/{label:05d}/{track:05d}_{frame:05d}.ppm", file)
            archive.writestr(f"GTSRB/Training/{label:05d}/GT-{label:05d}.csv", "Filename;Width\n")
    (served / "GTSRB-Training_fixed.zip").write_bytes(buffer.getvalue())

    def redirected(address: str, download_root: str, md5: str) -> None:
        name = address.rsplit("/", 1)[1]
        download_and_extract_archive(f"{url}/{name}", download_root=download_root, md5=checksum)

    checksum = md5(buffer.getvalue())
    monkeypatch.setattr(gtsrb, "download_and_extract_archive", redirected)


def test_gtsrb_tracks_are_groups(tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, served = server
    fake_gtsrb(monkeypatch, served, url)
    dataset = load(Data(source="gtsrb"), str(tmp_path))
    assert dataset.images.shape == (43 * 4, 3, 32, 32)
    assert dataset.labels.tolist() == np.repeat(np.arange(43), 4).tolist()
    assert dataset.class_names[14] == "14 stop"
    assert dataset.groups is not None
    assert dataset.groups.tolist() == np.repeat(np.arange(86), 2).tolist()
    assert dataset.extra["track"][:4].tolist() == ["00000/00000", "00000/00000", "00000/00001", "00000/00001"]
    assert any("172 images found" in note for note in dataset.notes)
    assert not list((tmp_path / "torchvision").rglob("*.zip"))
    moved = tmp_path / "moved"
    (tmp_path / "torchvision" / "gtsrb").rename(moved)
    monkeypatch.setattr(torchvision_sets, "_fetch", None)  # whatever is there already is not fetched again
    (tmp_path / "root").mkdir()
    moved.rename(tmp_path / "root" / "gtsrb")
    assert load(Data(source="gtsrb"), str(tmp_path / "root")).fingerprint == dataset.fingerprint


def test_gtsrb_without_all_classes(tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, served = server
    fake_gtsrb(monkeypatch, served, url, classes=42)
    with pytest.raises(DataError, match=r"has not the 43 classes.*delete"):
        load(Data(source="gtsrb"), str(tmp_path))


@pytest.mark.parametrize("failure", ["missing", "stall", "refused", "wrong sum", "not writable"])
def test_failed_downloads(
    failure: str, tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says what to do and leaves nothing behind that a later run could take for data."""
    from torchvision import datasets

    url, served = server
    fake_cifar("cifar10", monkeypatch, served, url)
    root = tmp_path / "root"
    if failure == "missing":
        (served / datasets.CIFAR10.filename).unlink()
    elif failure == "stall":
        monkeypatch.setattr(torchvision_sets, "TIMEOUT", 0.3)
        monkeypatch.setattr(datasets.CIFAR10, "url", f"{url}/stall")
    elif failure == "refused":
        monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/x")
    elif failure == "wrong sum":
        monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", "0" * 32)
    else:
        root.write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=r"could not be downloaded to .*Check the network.*or set TIER_DATA"):
        load(Data(source="cifar10"), str(root))
    assert not root.is_dir() or list((root / "torchvision").iterdir()) == []


def test_two_processes_finish_the_same_download(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        write(tmp_path / name / torchvision_sets.LAYOUT["gtsrb"] / "file", name.encode())
    torchvision_sets._move("gtsrb", tmp_path / "mine", tmp_path / "theirs")
    assert (tmp_path / "theirs" / torchvision_sets.LAYOUT["gtsrb"] / "file").read_bytes() == b"theirs"
    write(tmp_path / "torn" / "gtsrb" / "archive.zip", b"half")
    with pytest.raises(OSError, match="is in the way and is not complete: delete it"):
        torchvision_sets._move("gtsrb", tmp_path / "mine", tmp_path / "torn")


# ---- Looking up, limits, fingerprint


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The given root, else TIER_DATA, before the path; a torchvision name found there is not downloaded."""
    monkeypatch.setattr(torchvision_sets, "_fetch", None)
    tree(tmp_path / "root" / "cifar10", ("in root", "x"))
    tree(tmp_path / "env" / "cifar10", ("in env", "x"))
    tree(tmp_path / "here" / "cifar10", ("in cwd", "x"))
    write_parquet(tmp_path / "root" / "zoo.parquet", {"label": [0, 1, 2, 0]}, CLASSES)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TIER_DATA", str(tmp_path / "env"))
    config = Data(source="cifar10", image_size=SIZE)
    assert load(config, str(tmp_path / "root")).class_names[0] == "in root"
    assert load(config).class_names[0] == "in env"
    monkeypatch.delenv("TIER_DATA")
    assert load(config).class_names[0] == "in cwd"
    assert load(Data(source="zoo", image_size=SIZE), str(tmp_path / "root")).class_names == ("ape", "bee", "cow")


def test_unknown_name_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIER_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"no data set 'zoo'.*no TIER_DATA is set.*one sub-folder per class.*choose signs"
    ):
        read("zoo")
    with pytest.raises(DataError, match="no data set ''"):
        read("")
    with pytest.raises(DataError, match=f"looked under the data root '{tmp_path}'"):
        load(Data(source="zoo"), str(tmp_path))


@pytest.mark.parametrize("seed", range(10))
def test_limit_is_stratified(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(7), rng.integers(1, 80, 7)))
    for limit in (1, 10, len(labels) // 2, len(labels), 10_000):
        rows = limit_rows(labels, limit)
        assert len(rows) == min(limit, len(labels)) == len(set(rows.tolist()))
        assert (np.diff(rows) > 0).all()
        shares = len(rows) * np.bincount(labels) / len(labels)
        assert np.abs(np.bincount(labels[rows], minlength=7) - shares).max() < 1
        assert np.array_equal(rows, limit_rows(labels, limit))
    assert limit_rows(labels, None).tolist() == list(range(len(labels)))


def test_limited_folder(tmp_path: Path) -> None:
    whole, part = read(tree(tmp_path, images_each=6)), read(tmp_path, limit=5)
    rows = limit_rows(whole.labels, 5)
    assert np.array_equal(part.images, whole.images[rows])
    assert np.array_equal(part.labels, whole.labels[rows])


def small(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "images": random_pixels(0, 4, 3, 5, 5),
        "labels": np.array([0, 1, 1, 0]),
        "class_names": ("a", "b"),
        "groups": np.array([0, 0, 1, 1]),
    }
    return Dataset(**{**fields, **changes})  # type: ignore[arg-type]


def test_fingerprint() -> None:
    """Depends on every pixel, label and group and on the shape, not on names; by an independent computation."""
    dataset = small()
    header = b'{"groups": true, "shape": [4, 3, 5, 5], "version": 1}'
    content = dataset.images.tobytes() + struct.pack("<4q", 0, 1, 1, 0) + struct.pack("<4q", 0, 0, 1, 1)
    assert dataset.fingerprint == hashlib.sha256(header + content).hexdigest()
    assert small(class_names=("x", "y"), notes=("n",)).fingerprint == dataset.fingerprint
    pixel = dataset.images.copy()
    pixel[3, 2, 4, 4] ^= 1
    changed = [
        small(images=pixel),
        small(labels=np.array([0, 1, 0, 0])),
        small(groups=np.array([0, 0, 1, 2])),
        small(groups=None),
        small(images=dataset.images.reshape(4, 3, 1, 25)),
    ]
    assert len({dataset.fingerprint, *(other.fingerprint for other in changed)}) == 6


def test_pinned_fingerprint(tmp_path: Path) -> None:
    found = read(tree(tmp_path)).fingerprint
    assert read(tmp_path, fingerprint=found).fingerprint == found
    with pytest.raises(
        DataError, match=rf"its fingerprint is {found}, expected {'0' * 64}\. Put the original files back"
    ):
        read(tmp_path, fingerprint="0" * 64)


def test_dataset_checks_itself() -> None:
    with pytest.raises(ValueError, match=r"images must be \(4, 3, H, W\) uint8"):
        small(images=np.zeros((4, 5, 5, 3), np.uint8))
    with pytest.raises(ValueError, match="labels reach from 0 to 1, with 1 classes"):
        small(class_names=("a",))
    with pytest.raises(ValueError, match="4 images: groups"):
        small(groups=np.zeros(3, np.int64))
    taken = small(extra={"k": np.arange(4)}).take(np.array([3, 0]))
    assert taken.extra["k"].tolist() == [3, 0]
    assert taken.labels.tolist() == [0, 0]


def test_memory_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = read(tree(tmp_path))
    monkeypatch.setenv(images.MEMORY_VARIABLE, "1000")
    mapped = read(tmp_path)
    assert isinstance(mapped.images, np.memmap)
    assert mapped.fingerprint == in_memory.fingerprint
    with pytest.raises(ValueError, match="read-only"):
        mapped.images[0] = 0


def test_torch_stays_unloaded(tmp_path: Path) -> None:
    tree(tmp_path)
    code = (
        "import sys; from tier.config import Data; from tier.data import load; import tier.splits\n"
        f"load(Data(source={str(tmp_path)!r}, image_size=8)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_signs_go_through_the_same_door() -> None:
    pytest.importorskip("tier.data.signs")
    config = Data(image_size=16, limit=12).model_copy(update={"signs": Data().signs.model_copy(update={"images": 48})})
    dataset = load(config)
    assert dataset.images.shape == (12, 3, 16, 16)
    assert dataset.masks is not None
    assert dataset.masks.shape == (12, 16, 16)


# ---- The real images, where they are

REAL = {
    "cifar10": (20_000, 10),
    "cifar100": (40_000, 100),
    "gtsrb": (13_069, 43),
    "cinic10": (6_837, 10),
    "openforensics": (85, 2),
    "faces": (2_200, 2),
}


@pytest.mark.skipif(not os.environ.get("TIER_DATA"), reason="TIER_DATA is not set")
@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str) -> None:
    if not Path(os.environ["TIER_DATA"], name).exists():
        pytest.skip(f"TIER_DATA has no {name}")
    limit = 600
    dataset = load(Data(source=name, limit=limit))
    assert len(dataset) == min(limit, REAL[name][0])
    assert len(dataset.class_names) == REAL[name][1]
    assert dataset.refused == ()
    assert dataset.images.std() > 30
    assert (dataset.groups is not None) == (name == "gtsrb")
    assert ("from_cifar10" in dataset.extra) == (name == "cinic10")
    assert ("split" in dataset.extra) == (name == "openforensics")


def test_present_is_what_load_finds_without_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DEFAULT_ROOT", str(tmp_path / "cache"))
    monkeypatch.delenv(data.ROOT_VARIABLE, raising=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "torchvision" / torchvision_sets.LAYOUT["cifar10"]).mkdir(parents=True)
    assert data.present("signs")
    assert data.present("mine", str(tmp_path)) and data.present(str(tmp_path / "mine"))
    assert data.present("cifar10", str(tmp_path))
    assert not data.present("gtsrb", str(tmp_path)) and not data.present("cifar10") and not data.present("yours")
