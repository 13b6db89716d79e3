"""The procedural signs: same bytes everywhere, masks that fit, and a difficulty that `detail` controls."""

import hashlib
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests import clock
from tier.config import Signs
from tier.data import signs
from tier.data.signs import CLASSES, FULL, GLYPHS, draw

# sha256 of the first 100 images at 32x32, then labels and masks; the same on every machine.
PINNED = "fac5d0e86a34f41a23f9033de54528f18ac16ed3489f5cac580b51c23d25e978"


def digest(drawing: signs.Drawing) -> str:
    labels = drawing.labels.astype("<i8").tobytes()
    return hashlib.sha256(drawing.images.tobytes() + labels + np.packbits(drawing.masks).tobytes()).hexdigest()


def test_first_hundred_images_are_pinned():
    assert digest(draw(Signs(classes=24, images=100, detail=0.5, seed=0), 32)) == PINNED


def test_shapes_and_types():
    drawing = draw(Signs(classes=7, images=15), 20)
    assert drawing.images.shape == (15, 3, 20, 20)
    assert drawing.images.dtype == np.uint8
    assert drawing.labels.shape == (15,)
    assert drawing.labels.dtype == np.int64
    assert drawing.masks.shape == (15, 20, 20)
    assert drawing.masks.dtype == np.bool_
    assert drawing.class_names == tuple(kind.name for kind in CLASSES[:7])


def test_same_seed_same_bytes_and_another_seed_other_images():
    first, again, other = (draw(Signs(images=48, seed=seed)) for seed in (3, 3, 4))
    assert digest(first) == digest(again)
    assert (first.images != other.images).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 100])
def test_an_image_does_not_depend_on_how_many_are_drawn(count):
    every, some = draw(Signs(images=150), 16), draw(Signs(images=count), 16)
    for part in ("images", "labels", "masks"):
        np.testing.assert_array_equal(getattr(some, part), getattr(every, part)[:count])


def test_an_image_does_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    whole = digest(draw(Signs(images=50), 24))
    monkeypatch.setattr(signs, "BATCH", 1)
    assert digest(draw(Signs(images=50), 24)) == whole


def test_no_two_images_are_equal():
    drawing = draw(Signs(images=2000, detail=1.0))
    assert len({image.tobytes() for image in drawing.images}) == 2000


@pytest.mark.parametrize("classes", [2, 5, 24])
def test_classes_are_balanced_and_mixed(classes):
    labels = draw(Signs(classes=classes, images=10 * classes + 1), 8).labels
    counts = np.bincount(labels, minlength=classes)
    assert counts.min() == 10
    assert counts.max() == 11
    assert not np.array_equal(labels[:classes], labels[classes : 2 * classes]) or classes == 2


@pytest.mark.parametrize("size", [8, 17, 32, 96])
@pytest.mark.parametrize("detail", [0.0, 0.5, 1.0])
def test_every_size_has_a_sign_in_every_image(size, detail):
    drawing = draw(Signs(images=48, detail=detail), size)
    share = drawing.masks.mean(axis=(1, 2))
    assert share.min() > 0.15
    assert share.max() < 0.9
    assert (drawing.images.reshape(48, -1).std(axis=1) > 3).all()


def test_larger_images_show_the_same_scenes():
    small, large = draw(Signs(images=40), 32), draw(Signs(images=40), 64)
    np.testing.assert_array_equal(small.labels, large.labels)
    agreement = (large.masks[:, ::2, ::2] == small.masks).mean()
    assert agreement > 0.95
    halved = large.images.reshape(40, 3, 32, 2, 32, 2).mean(axis=(3, 5))
    assert np.abs(halved - small.images).mean() < 12


def test_masks_cover_the_sign():
    """Colours differ between inside and outside, and the class explains those inside only."""
    drawing = draw(Signs(classes=24, images=480, detail=0.0), 32)
    images = drawing.images.astype(np.float64).transpose(0, 2, 3, 1)  # (N, H, W, 3)
    inside = np.stack([image[mask].mean(axis=0) for image, mask in zip(images, drawing.masks, strict=True)])
    outside = np.stack([image[~mask].mean(axis=0) for image, mask in zip(images, drawing.masks, strict=True)])
    assert np.median(np.abs(inside - outside).max(axis=1)) > 25

    def explained(colours: np.ndarray) -> float:
        """The part of the colours' variance, relative to their brightness, that the class explains."""
        hue = colours - colours.mean(axis=1, keepdims=True)
        within = sum(((hue[drawing.labels == k] - hue[drawing.labels == k].mean(axis=0)) ** 2).sum() for k in range(24))
        return float(1 - within / ((hue - hue.mean(axis=0)) ** 2).sum())

    assert explained(inside) > 0.6
    assert explained(outside) < 0.2


def test_only_the_sign_depends_on_the_detail():
    """Between details, pixels change on the signs only (and next to them, by blur); the scene is the same."""
    coarse, fine = (draw(Signs(images=60, detail=detail)) for detail in (0.0, 1.0))
    np.testing.assert_array_equal(coarse.labels, fine.labels)
    changed = (coarse.images != fine.images).any(axis=1)
    near = coarse.masks | fine.masks
    for _ in range(3):  # blur reaches two pixels, an edge pixel covered by less than half one more
        grown = np.pad(near, ((0, 0), (1, 1), (1, 1)))
        near = np.any([grown[:, i : i + 32, j : j + 32] for i in range(3) for j in range(3)], axis=0)
    assert not (changed & ~near).any()
    assert changed.any(axis=(1, 2)).mean() > 0.95


def test_at_detail_one_every_class_has_the_same_plate():
    kinds = {kind.plates[2] for kind in CLASSES}
    assert len(kinds) == 1
    assert len({kind.plates[0] for kind in CLASSES}) == len(CLASSES)
    families = {kind.plates[1] for kind in CLASSES}
    assert 4 <= len(families) < 12


def accuracy(detail: float, classes: int = 8) -> float:
    """Test accuracy of a linear classifier of pixels."""
    drawing = draw(Signs(classes=classes, images=900, detail=detail, seed=1), 16)
    pixels = drawing.images.reshape(900, -1) / 255.0
    model = LogisticRegression(C=0.1, max_iter=300).fit(pixels[:600], drawing.labels[:600])
    return float(model.score(pixels[600:], drawing.labels[600:]))


def test_classes_are_harder_to_tell_at_higher_detail():
    coarse, middle, fine = (accuracy(detail) for detail in (0.0, 0.5, 1.0))
    assert coarse > middle + 0.05 > fine + 0.1
    assert coarse > 0.6
    assert fine > 1.2 / 8  # above chance: there is something to learn


def test_reads_no_files():
    """Neither fonts nor anything else is opened while drawing, and nothing that could read fonts is loaded."""
    script = """
        import sys
        from tier.config import Signs
        from tier.data.signs import draw

        def refuse(event, arguments):
            if event == "open":
                raise RuntimeError(f"opened {arguments[0]}")

        assert not {"PIL", "matplotlib", "torch"} & set(sys.modules), "a drawing library was loaded"
        sys.addaudithook(refuse)
        draw(Signs(images=30))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


@pytest.mark.timed
def test_draws_at_least_400_images_a_second():
    """It is about 3000."""
    draw(Signs(images=64))
    clock.within(512 / 400, lambda: clock.took(lambda: draw(Signs(images=512)), time.process_time), tries=3)


@pytest.mark.parametrize("size", [7, 0, -3])
def test_refuses_a_size_too_small_to_show_anything(size):
    with pytest.raises(ValueError, match=f"at least 8, not {size}"):
        draw(Signs(images=2), size)


def test_refuses_a_negative_seed():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Signs(images=2, seed=-1)


# ---- The rasteriser against a slow one.


def winding(contours: list[np.ndarray], x: float, y: float) -> int:
    """How often the contours go round a point, by counting the edges that a ray to the left crosses."""
    total = 0
    for points in contours:
        for (a, b), (c, d) in zip(points, np.roll(points, -1, axis=0), strict=True):
            if (b <= y) != (d <= y) and a + (c - a) * (y - b) / (d - b) <= x:
                total += 1 if b < d else -1
    return total


def slow_coverage(contours: list[np.ndarray], size: int, samples: int = 8) -> np.ndarray:
    steps = (np.arange(size * samples) + 0.5) / samples
    inside = np.array([[winding(contours, x, y) != 0 for x in steps] for y in steps])
    return inside.reshape(size, samples, size, samples).mean(axis=(1, 3))


def edges_of(contours: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.stack([p, np.roll(p, -1, axis=0)], axis=1) for p in contours])[None]


SQUARE = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
SHAPES = {
    "triangle": [np.array([(1.3, 0.7), (8.2, 3.1), (3.9, 7.6)])],
    "concave": [np.array([(1.0, 1.0), (8.0, 1.0), (8.0, 8.0), (4.5, 2.5), (1.0, 8.0)])],
    "overlap": [SQUARE * 4 + 1.25, SQUARE * 4 + 3.5],
    "hole": [SQUARE * 7 + 1, (SQUARE * 3 + 3.25)[::-1]],
    "leaves the frame": [np.array([(-5.0, 3.0), (4.0, -6.0), (14.0, 5.0), (4.0, 13.0)])],
    "outside": [SQUARE - 5, SQUARE * 3 + 20],
}


@pytest.mark.parametrize("name", SHAPES)
def test_coverage_equals_a_slow_rasteriser(name):
    fast = signs._coverage(edges_of(SHAPES[name]), 9)[0] / FULL
    np.testing.assert_allclose(fast, slow_coverage(SHAPES[name], 9), atol=0.15)
    assert abs(fast.mean() - slow_coverage(SHAPES[name], 9).mean()) < 0.01


def test_coverage_is_exact_for_whole_pixels_and_keeps_images_apart():
    two = np.concatenate([edges_of([SQUARE * 3 + 2]), edges_of([SQUARE * 2 + (5.0, 1.0)])])
    expected = np.zeros((2, 8, 8), dtype=int)
    expected[0, 2:5, 2:5] = expected[1, 1:3, 5:7] = FULL
    np.testing.assert_array_equal(signs._coverage(two, 8), expected)


def test_contours_turn_one_way_except_holes():
    """Otherwise overlapping parts of a glyph would cut holes into each other."""
    shapes = {**GLYPHS, **signs.MARKS, **{name: [outline] for name, (outline, _) in signs.OUTLINES.items()}}
    against = [name for name, contours in shapes.items() for c in signs._merged(contours) if signs._area(c.points) <= 0]
    assert against == ["tent"]


def test_no_class_is_the_mirror_image_of_another():
    """Flipped, a glyph stays further from every other class than a tenth of their common area."""
    size = 40
    glyphs = signs._coverage((signs._GLYPHS + signs._GLYPHS_BOLD) * 0.48 * size + size / 2, size) / FULL
    for k, mirrored in enumerate(glyphs[:, :, ::-1]):
        for other in set(range(len(glyphs))) - {k}:
            difference = np.abs(mirrored - glyphs[other]).sum() / np.maximum(mirrored, glyphs[other]).sum()
            assert difference > 0.1, (CLASSES[k].name, CLASSES[other].name)
