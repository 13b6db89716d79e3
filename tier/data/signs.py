"""Procedural traffic signs: the embedded data set (SPEC 1a), the same bytes from the same seed on every machine.

A class is a glyph (a number, a word, a pictogram). What else gives the class away is set by `detail`:

- 0: every class has a plate of its own, so shape, colours and a large glyph all tell the class;
- 0.5: plates are shared by families as on European roads (red rings, warning triangles, blue discs, blue squares), so
  shape and colour tell the family and a smaller glyph the class;
- 1: every class is a red ring, and only a fine glyph tells it.

Between these, each image takes the next plate with a probability that rises with `detail`, and the glyph shrinks.
Everything else about an image (pose, colours, light, clutter, blur, noise) depends on the seed and its index only, so
the same scene can be compared at two details, sizes or numbers of images.

No class is the mirror image of another, so a horizontal flip never turns an image into one of another class.

Reproducibility: random numbers are raw Philox words, whose stream numpy guarantees; geometry uses +, -, *, / element by
element, which IEEE 754 rounds alike everywhere; coverage, colours, blur and noise are integers. No fonts are read.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tier.config import Signs

Point = tuple[float, float]
Colour = tuple[int, int, int]
Array = NDArray[np.float64]
Integers = NDArray[np.int32]


@dataclass(frozen=True)
class Drawing:
    """Drawn images with the pixels of their sign."""

    images: NDArray[np.uint8]  # (N, 3, H, W), RGB
    labels: NDArray[np.int64]  # (N,)
    masks: NDArray[np.bool_]  # (N, H, W): the plate, without its pole
    class_names: tuple[str, ...]


# ---- Outlines: closed contours, x to the right, y down; all solid contours turn the same way, holes the other way.


@dataclass(frozen=True)
class Contour:
    """A polygon whose corner k lies at points[k] + weight * bold[k], weight being the stroke weight drawn per image."""

    points: tuple[Point, ...]
    bold: tuple[Point, ...]


def _area(points: Sequence[Point]) -> float:
    following = [*points[1:], points[0]]
    return sum(x * v - u * y for (x, y), (u, v) in zip(points, following, strict=True)) / 2


def _solid(*points: Point) -> Contour:
    ordered = points if _area(points) > 0 else points[::-1]
    return Contour(ordered, ((0.0, 0.0),) * len(points))


def _hole(*points: Point) -> Contour:
    solid = _solid(*points)
    return Contour(solid.points[::-1], solid.bold)


def _disc(x: float, y: float, radius: float, corners: int = 12) -> Contour:
    angles = [2 * math.pi * (k + 0.5) / corners for k in range(corners)]
    # rounded, because math.cos may differ in its last bit between C libraries
    return _solid(*((x + round(radius * math.cos(a), 6), y + round(radius * math.sin(a), 6)) for a in angles))


def _strokes(width: float, *paths: Sequence[Point]) -> list[Contour]:
    """Every segment of the paths as a rectangle of that width, long enough to fill the joints."""
    contours = []
    for path in paths:
        for (x, y), (u, v) in pairwise(path):
            length = math.sqrt((u - x) * (u - x) + (v - y) * (v - y))
            a, b = (u - x) / length * width / 2, (v - y) / length * width / 2  # half a width along the segment
            bold = ((-a + b, -b - a), (a + b, b - a), (a - b, b + a), (-a - b, -b + a))
            contours.append(Contour(((x, y), (u, v), (u, v), (x, y)), bold))
    return contours


def _rounded(points: Sequence[Point], cut: float, steps: int = 4) -> tuple[Point, ...]:
    """The polygon with each corner replaced by a parabola that starts `cut` of the way along its sides."""
    result = []
    for k, (x, y) in enumerate(points):
        (a, b), (c, d) = points[k - 1], points[(k + 1) % len(points)]
        start, end = (x + cut * (a - x), y + cut * (b - y)), (x + cut * (c - x), y + cut * (d - y))
        for step in range(steps + 1):
            t = step / steps
            p, q, r = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
            result.append((p * start[0] + q * x + r * end[0], p * start[1] + q * y + r * end[1]))
    return tuple(result)


# ---- Glyphs. Characters are strokes on a grid of 4 x 6, written as "xy xy ..." per stroke.

CHARACTERS = {
    "0": ("10 30 41 45 36 16 05 01 10",),
    "1": ("02 20 26",),
    "2": ("01 10 30 41 42 06 46",),
    "3": ("01 10 30 41 42 33 13", "33 44 45 36 16 05"),
    "4": ("36 30 04 44",),
    "5": ("40 00 03 33 44 45 36 06",),
    "6": ("41 30 10 01 05 16 36 45 44 33 03",),
    "7": ("00 40 16",),
    "8": ("13 02 01 10 30 41 42 33 13 04 05 16 36 45 44 33",),
    "9": ("05 16 36 45 41 30 10 01 02 13 43",),
    "H": ("00 06", "40 46", "03 43"),
    "O": ("10 30 41 45 36 16 05 01 10",),
    "P": ("06 00 30 41 42 33 03",),
    "S": ("41 30 10 01 02 13 33 44 45 36 16 05",),
    "T": ("00 40", "20 26"),
}


def _text(text: str) -> list[Contour]:
    """A word or number in stroke characters, condensed beyond two characters as on real signs."""
    squeeze = 1.0 if len(text) < 3 else 0.8
    paths = []
    for k, character in enumerate(text):
        for stroke in CHARACTERS[character]:
            paths.append([(squeeze * (int(at[0]) + 5.6 * k), float(at[1])) for at in stroke.split()])
    return _strokes(1.0, *paths)


def _person(x: float, y: float, size: float) -> list[Contour]:
    def at(u: float, v: float) -> Point:
        return x + size * u, y + size * v

    return [
        _disc(*at(0, -8), 2.3 * size),
        _solid(at(-2, -5), at(2, -5), at(1.6, 2), at(-1.6, 2)),
        *_strokes(1.5 * size, [at(-1, -4.4), at(-3.6, -0.8), at(-5, 0.5)], [at(1, -4.4), at(3.4, -1.6), at(5, -2)]),
        *_strokes(2.0 * size, [at(-0.6, 1), at(-1.6, 5), at(-5, 9)], [at(0.6, 1), at(3, 4.6), at(3.4, 9)]),
    ]


GLYPHS: dict[str, list[Contour]] = {
    **{text: _text(text) for text in ("STOP", "20", "30", "40", "50", "60", "70", "80", "90", "100", "H")},
    "exclamation": [_solid((-2, -9), (2, -9), (1.2, 3), (-1.2, 3)), _disc(0, 7, 2)],
    "arrow": [_solid((0, -10), (7, -2), (2.6, -2), (2.6, 10), (-2.6, 10), (-2.6, -2), (-7, -2))],
    "bar": [_solid((-10, -2.6), (10, -2.6), (10, 2.6), (-10, 2.6))],
    "diamond": [_solid((0, -9), (9, 0), (0, 9), (-9, 0))],
    "triangle": [_solid((-9, -7), (9, -7), (0, 8))],
    "slash": _strokes(3.4, [(-7, -7), (7, 7)]),
    "cross": _strokes(3.0, [(-8, -8), (8, 8)], [(-8, 8), (8, -8)]),
    "bend": [*_strokes(3.6, [(-5, 10), (-5, 1), (-3.4, -3.4), (0, -5), (2.4, -5)]), _solid((3, -11), (10, -5), (3, 1))],
    "chevrons": [
        _solid(*((x + shift, y) for x, y in ((-5, -8), (-1, -8), (5, 0), (-1, 8), (-5, 8), (1, 0))))
        for shift in (-9, 0, 9)
    ],
    "tent": [_solid((0, -8), (11, 8), (-11, 8)), _hole((0, 0), (3.6, 8), (-3.6, 8))],
    "children": [*_person(-5, 0, 1.0), *_person(6.4, 2.4, 0.75)],
    "digger": [
        _disc(-2, -8.4, 2.3),
        _solid((-3.4, -6), (0.6, -5.4), (-2.4, 1.4), (-6, 0.4)),
        *_strokes(2.0, [(-4.6, 0), (-6, 5), (-9.4, 9.4)], [(-3.4, 0.6), (0, 4.6), (-1.4, 9.4)]),
        *_strokes(1.5, [(-0.4, -4.6), (1.4, 0), (4, 1.4)]),
        *_strokes(1.1, [(-0.6, -1), (8, 5.4)]),
        _solid((3, 10), (5.6, 6), (8, 4.4), (10, 6), (12, 10)),
    ],
    "deer": [
        _solid((-6, -3.4), (-3, -3.6), (5, -2.6), (8, -1), (8.4, 2.4), (5, 3), (1, 2), (-3, 3.4), (-6, 1.4)),
        _solid((-6.4, 0.4), (-9.4, -5.4), (-12, -4.4), (-12.4, -5.6), (-9.4, -8.4), (-7, -8), (-3, -3.4)),
        *_strokes(0.9, [(-8, -8), (-8.4, -10.4), (-7, -12)], [(-7.4, -8), (-5, -9.4), (-4.4, -12)]),
        *_strokes(0.9, [(-5, -9.4), (-2.4, -10)]),
        *_strokes(1.5, [(-5, 1), (-8.4, 4), (-6.4, 7)], [(-3.6, 2), (-5.4, 6), (-3, 9)]),
        *_strokes(1.5, [(6, 1.6), (6.6, 5), (10, 9)], [(7.4, 1), (9.4, 4), (13, 7)]),
    ],
}  # fmt: skip

# ---- Plates.

WHITE, BLACK, GREY = (240, 240, 238), (28, 28, 30), (120, 122, 126)
RED, BLUE, GREEN = (196, 26, 36), (16, 78, 168), (0, 112, 74)
YELLOW, ORANGE, LIME, BROWN = (250, 204, 20), (244, 122, 16), (186, 222, 30), (110, 66, 34)


@dataclass(frozen=True)
class Plate:
    """What a glyph stands on: an outline from OUTLINES, the width of its rim as a fraction, colours, an extra mark."""

    outline: str
    face: Colour
    rim: Colour
    ink: Colour
    width: float = 0.1
    mark: str = "nothing"
    mark_colour: Colour = BLACK


_SQUARE = ((-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86))

# Contour, and the box (centre x, y, half width, half height) that a glyph may fill at detail 0.
OUTLINES: dict[str, tuple[Contour, tuple[float, float, float, float]]] = {
    "circle": (_disc(0, 0, 1, 28), (0, 0, 0.68, 0.58)),
    "octagon": (_disc(0, 0, 1.04, 8), (0, 0, 0.7, 0.5)),
    "triangle": (_solid(*_rounded(((0, -1.05), (1.12, 0.9), (-1.12, 0.9)), 0.08)), (0, 0.3, 0.46, 0.44)),
    "inverted": (_solid(*_rounded(((0, 1.05), (1.12, -0.9), (-1.12, -0.9)), 0.08)), (0, -0.3, 0.46, 0.44)),
    "diamond": (_solid(*_rounded(((0, -1.14), (1.14, 0), (0, 1.14), (-1.14, 0)), 0.08)), (0, 0, 0.5, 0.48)),
    "square": (_solid(*_rounded(_SQUARE, 0.1)), (0, 0, 0.58, 0.58)),
    "tall": (_solid(*_rounded([(0.8 * x, 1.16 * y) for x, y in _SQUARE], 0.1)), (0, 0, 0.5, 0.6)),
    "wide": (_solid(*_rounded([(1.22 * x, 0.74 * y) for x, y in _SQUARE], 0.1)), (0, 0, 0.84, 0.42)),
    "pentagon": (_solid((0, -1), (0.94, -0.14), (0.94, 0.9), (-0.94, 0.9), (-0.94, -0.14)), (0, 0.2, 0.64, 0.5)),
    "shield": (
        _solid((-0.84, -0.9), (0, -0.8), (0.84, -0.9), (0.98, -0.2), (0.8, 0.4), (0, 1.04), (-0.8, 0.4), (-0.98, -0.2)),
        (0, 0.14, 0.56, 0.42),
    ),
}

# What some plates carry besides the glyph.
MARKS: dict[str, list[Contour]] = {
    "nothing": [],
    "end": _strokes(0.13, [(-0.66, 0.66), (0.66, -0.66)]),
    "crown": [_solid((-0.75, -0.8), (0, -0.71), (0.75, -0.8), (0.84, -0.36), (-0.84, -0.36))],
}

RING = Plate("circle", WHITE, RED, BLACK, 0.19)
WARNING = Plate("triangle", WHITE, RED, BLACK, 0.2)
ORDER = Plate("circle", BLUE, WHITE, WHITE, 0.05)
INFORMATION = Plate("square", BLUE, WHITE, WHITE, 0.06)


@dataclass(frozen=True)
class SignClass:
    """A class: its glyph, its plate where plates tell the class, and its plate where they tell the family."""

    name: str
    glyph: str
    own: Plate
    family: Plate

    @property
    def plates(self) -> tuple[Plate, Plate, Plate]:
        """The plates of detail 0, 0.5 and 1."""
        return self.own, self.family, RING


def _alone(name: str, glyph: str, plate: Plate) -> SignClass:
    """A class whose plate no other shares on real roads either."""
    return SignClass(name, glyph, plate, plate)


# The first n make a meaningful set for any n: kinds of signs take turns. Glyphs drawn in the colour of their face are
# not seen on that plate, whose shape says it all (priority road, give way).
CLASSES: tuple[SignClass, ...] = (
    SignClass("number 50", "50", RING, RING),
    _alone("stop", "STOP", Plate("octagon", RED, WHITE, WHITE, 0.07)),
    SignClass("danger", "exclamation", WARNING, WARNING),
    SignClass("ahead", "arrow", INFORMATION, ORDER),
    SignClass("number 80", "80", Plate("circle", YELLOW, RED, BLACK, 0.19), RING),  # temporary limit
    _alone("priority road", "diamond", Plate("diamond", YELLOW, WHITE, YELLOW, 0.26)),
    _alone("no entry", "bar", Plate("circle", RED, WHITE, WHITE, 0.05)),
    SignClass("deer", "deer", Plate("triangle", YELLOW, RED, BLACK, 0.2), WARNING),
    SignClass("number 30", "30", ORDER, ORDER),  # minimum speed
    SignClass("road works", "digger", Plate("diamond", ORANGE, BLACK, BLACK, 0.07), WARNING),
    SignClass("number 100", "100", Plate("circle", BLACK, RED, YELLOW, 0.19), RING),  # variable limit
    _alone("give way", "triangle", Plate("inverted", WHITE, RED, WHITE, 0.24)),
    SignClass("bus stop", "H", Plate("circle", YELLOW, GREEN, GREEN, 0.14), INFORMATION),
    SignClass("number 60", "60", Plate("circle", WHITE, GREY, GREY, 0.07, "end"), RING),  # end of limit
    SignClass("children", "children", Plate("pentagon", LIME, BLACK, BLACK, 0.07), WARNING),
    SignClass("number 40", "40", Plate("square", YELLOW, BLACK, BLACK, 0.07), RING),  # advisory speed
    SignClass("no parking", "slash", Plate("circle", BLUE, RED, RED, 0.19), RING),
    SignClass("number 90", "90", Plate("shield", BLUE, WHITE, WHITE, 0.09, "crown", RED), RING),  # route
    SignClass("bend", "bend", Plate("diamond", YELLOW, BLACK, BLACK, 0.07), WARNING),
    SignClass("number 70", "70", Plate("tall", WHITE, BLACK, BLACK, 0.08), RING),  # speed limit
    SignClass("sharp bend", "chevrons", Plate("wide", RED, WHITE, WHITE, 0.08), ORDER),
    SignClass("number 20", "20", Plate("wide", GREEN, WHITE, WHITE, 0.08), RING),  # exit
    SignClass("level crossing", "cross", Plate("circle", YELLOW, BLACK, BLACK, 0.08), WARNING),
    SignClass("camp site", "tent", Plate("wide", BROWN, WHITE, WHITE, 0.08), INFORMATION),
)


def _table(shapes: Iterable[list[Contour]]) -> tuple[Array, Array]:
    """Edges of every shape and their change per stroke weight, (S, E, 2 ends, 2 axes); missing edges have no length."""
    fixed, bold = [], []
    for contours in shapes:
        pairs = [(c, k, (k + 1) % len(c.points)) for c in contours for k in range(len(c.points))]
        fixed.append([(c.points[j], c.points[k]) for c, j, k in pairs])
        bold.append([(c.bold[j], c.bold[k]) for c, j, k in pairs])
    longest = max(len(edges) for edges in fixed)
    nowhere = ((0.0, 0.0), (0.0, 0.0))

    def padded(part: list[list[tuple[Point, Point]]]) -> Array:
        return np.array([edges + [nowhere] * (longest - len(edges)) for edges in part], dtype=np.float64)

    return padded(fixed), padded(bold)


def _centred(contours: list[Contour]) -> tuple[list[Contour], Point]:
    """The glyph moved to the origin and scaled to a largest half extent of 1, and its half width and height."""
    corners = [(x + u, y + v) for c in contours for (x, y), (u, v) in zip(c.points, c.bold, strict=True)]
    (left, right), (top, bottom) = ((min(axis), max(axis)) for axis in zip(*corners, strict=True))
    x, y, size = (left + right) / 2, (top + bottom) / 2, max(right - left, bottom - top) / 2
    moved = [
        Contour(
            tuple(((u - x) / size, (v - y) / size) for u, v in c.points), tuple((u / size, v / size) for u, v in c.bold)
        )
        for c in contours
    ]
    return moved, ((right - left) / 2 / size, (bottom - top) / 2 / size)


def _shrunk(contour: Contour, width: float) -> Contour:
    """The outline's inner edge: scaled about its centroid (the mean of its corners) by 1 - width."""
    x, y = (sum(axis) / len(contour.points) for axis in zip(*contour.points, strict=True))
    return _solid(*((u + width * (x - u), v + width * (y - v)) for u, v in contour.points))


class _Plates:
    """Columns over distinct plates, for a batch of images to index."""

    def __init__(self, plates: Sequence[Plate]):
        outlines = [OUTLINES[p.outline] for p in plates]
        self.outer = _table([o] for o, _ in outlines)[0]
        self.inner = _table([_shrunk(o, p.width)] for (o, _), p in zip(outlines, plates, strict=True))[0]
        self.marks = _table(_merged(MARKS[p.mark]) for p in plates)[0]
        self.box = np.array([box for _, box in outlines], dtype=np.float64)  # (P, 4)
        self.colours = np.array([(p.rim, p.face, p.mark_colour, p.ink) for p in plates], dtype=np.float64)  # (P, 4, 3)
        self.hidden = np.array([p.ink == p.face for p in plates])  # (P,): the glyph is not seen


def _merged(contours: list[Contour]) -> list[Contour]:
    """The contours at stroke weight 1."""
    weight_one = [tuple((x + u, y + v) for (x, y), (u, v) in zip(c.points, c.bold, strict=True)) for c in contours]
    return [Contour(points, ((0.0, 0.0),) * len(points)) for points in weight_one]


_DISTINCT = tuple(dict.fromkeys(plate for kind in CLASSES for plate in kind.plates))
_PLATES = _Plates(_DISTINCT)
_PLATE_OF = np.array([[_DISTINCT.index(plate) for plate in kind.plates] for kind in CLASSES])  # (24, 3)
_CENTRED = [_centred(GLYPHS[kind.glyph]) for kind in CLASSES]
_GLYPHS, _GLYPHS_BOLD = _table(contours for contours, _ in _CENTRED)
_GLYPH_EXTENT = np.array([extent for _, extent in _CENTRED])  # (24, 2)

# ---- Random numbers.


class _Dice:
    """Uniform numbers, one row per image; every roll uses up the next columns."""

    def __init__(self, words: NDArray[np.uint64]):
        self._unit: Array = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1), exact
        self._used = 0

    def roll(self, low: float, high: float, *shape: int) -> Array:
        """(n, *shape) numbers in [low, high)."""
        start, self._used = self._used, self._used + math.prod(shape)
        if self._used > self._unit.shape[1]:
            raise RuntimeError("more random numbers used than WORDS")
        unit: Array = self._unit[:, start : self._used].reshape(-1, *shape)
        return low + (high - low) * unit


WORDS = 256  # random words per image, of which some are spare
_LABELS, _SCENES, _NOISE = range(3)  # independent streams of one seed


def _stream(seed: int, purpose: int) -> np.random.Philox:
    return np.random.Philox(np.random.SeedSequence([seed, purpose]))


def _labels(seed: int, classes: int, count: int) -> NDArray[np.int64]:
    """Each run of `classes` images holds every class once, in random order."""
    rounds = -(-count // classes)
    words = _stream(seed, _LABELS).random_raw(rounds * classes).reshape(rounds, classes)
    return np.argsort(words, axis=1, kind="stable").reshape(-1)[:count].astype(np.int64)


# ---- Rasteriser, in integers.

SUBROWS = 4  # scan lines per pixel row; along a line, coverage is exact to 1/256 pixel
FULL = 256 * SUBROWS  # a covered pixel


def _coverage(edges: Array, size: int) -> Integers:
    """How much of each pixel lies inside the shapes, 0..FULL, (n, size, size).

    `edges` is (n, E, 2 ends, 2 axes) in pixels; contours that overlap are united, opposite ones cut holes.
    """
    n, rows, pitch = len(edges), size * SUBROWS, 256 // SUBROWS
    image, edge, line, x = _crossings(np.rint(edges * 256).astype(np.int64), rows, pitch)
    down = np.where(edges[..., 0, 1] < edges[..., 1, 1], 1.0, -1.0)[image, edge]
    x = np.clip(x, 0, 256 * size)
    cell, fraction = (image * rows + line) * (size + 2) + (x >> 8), x & 255
    # right of a crossing the winding number changes by one; its own pixel is covered in part
    where, change = np.concatenate([cell, cell + 1]), np.concatenate([down * (256 - fraction), down * fraction])
    changes = np.bincount(where, change, n * rows * (size + 2)).astype(np.int32).reshape(n, rows, size + 2)
    winding = np.cumsum(changes, axis=2, dtype=np.int32)[:, :, :size]
    covered: Integers = np.minimum(np.abs(winding), 256).reshape(n, size, SUBROWS, size).sum(axis=2, dtype=np.int32)
    return covered


def _crossings(ends: NDArray[np.int64], rows: int, pitch: int) -> tuple[NDArray[np.int64], ...]:
    """Where edges cross scan lines: image, edge, line and x of each crossing; coordinates in 1/256 pixel.

    Line k lies at y = pitch * k + pitch / 2.
    """
    low = np.where((ends[..., 0, 1] <= ends[..., 1, 1])[..., None], ends[..., 0, :], ends[..., 1, :])
    run = ends.sum(axis=2) - 2 * low  # from the upper end to the lower
    first = np.clip((low[..., 1] + pitch // 2 - 1) // pitch, 0, rows).ravel()
    last = np.clip((low[..., 1] + run[..., 1] + pitch // 2 - 1) // pitch, 0, rows).ravel()
    counts = last - first
    which = np.repeat(np.arange(len(counts)), counts)
    line = first[which] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
    (x, y), (dx, dy) = low.reshape(-1, 2)[which].T, run.reshape(-1, 2)[which].T
    return which // ends.shape[1], which % ends.shape[1], line, x + dx * (pitch * line + pitch // 2 - y) // dy


def _paint(canvas: Integers, coverage: Integers, colour: Array, opacity: float | Array = 1.0) -> None:
    """Lay a colour (n, 3) of 0..255 over the canvas (n, 3, H, W) of 0..4080 where covered."""
    strength = np.rint(np.broadcast_to(opacity, len(canvas)) * 256).astype(np.int32)
    cover = (coverage * strength[:, None, None] >> 8)[:, None]
    paint = np.rint(colour * 16).astype(np.int32)[:, :, None, None]
    canvas += (paint - canvas) * cover // FULL


# ---- Scenes.

SHRINK = 0.34  # how much smaller a glyph is at detail 1 than at 0; it goes with detail squared
SKEW = 0.1  # largest slant of a glyph and largest perspective of a sign


@dataclass(frozen=True)
class _Pose:
    """How sign coordinates become fractions of the frame: a matrix, a centre and a slight perspective, per image."""

    matrix: Array  # (n, 2, 2)
    centre: Array  # (n, 2)
    tilt: Array  # (n, 2)

    def apply(self, edges: Array) -> Array:
        """Edges (n, E, 2, 2) from sign coordinates to fractions of the frame."""
        x, y = edges[..., 0], edges[..., 1]  # (n, E, 2)
        depth = 1 + self.tilt[:, 0, None, None] * x + self.tilt[:, 1, None, None] * y
        x, y = x / depth, y / depth
        m, c = self.matrix[..., None, None], self.centre[..., None, None]
        return np.stack([c[:, 0] + m[:, 0, 0] * x + m[:, 0, 1] * y, c[:, 1] + m[:, 1, 0] * x + m[:, 1, 1] * y], axis=-1)


def _rotation(t: Array) -> tuple[Array, Array]:
    """cos and sin of the angle 2 atan(t), without trigonometric functions, which differ between machines."""
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def _pose(dice: _Dice) -> _Pose:
    """A pose that keeps most of the sign inside the frame."""
    size, stretch, shear = dice.roll(0.36, 0.48), dice.roll(0.9, 1.12), dice.roll(-0.07, 0.07)
    cos, sin = _rotation(dice.roll(-0.06, 0.06) + dice.roll(-0.06, 0.06))  # up to 14 degrees
    matrix = np.stack([cos * stretch, cos * shear - sin, sin * stretch, sin * shear + cos], axis=1)
    room = np.maximum(0.5 - size, 0.05)  # a large sign may lose its edge to the frame's
    centre = 0.5 + room[:, None] * dice.roll(-1, 1, 2)
    return _Pose(matrix.reshape(-1, 2, 2) * size[:, None, None], centre, dice.roll(-SKEW, SKEW, 2))


_NATURE = np.array([
    (70, 92, 48), (44, 66, 40), (120, 112, 84), (132, 96, 70), (150, 150, 152), (92, 96, 104), (196, 190, 178),
    (160, 184, 210), (60, 58, 60), (176, 70, 56), (222, 224, 228), (206, 170, 60), (58, 92, 150),
], dtype=np.float64)  # fmt: skip


def _pick(dice: _Dice) -> Array:
    """A colour of leaves, earth, walls, asphalt or sky, varied, (n, 3)."""
    base = _NATURE[dice.roll(0, len(_NATURE)).astype(np.int64)]
    return np.clip(base * dice.roll(0.6, 1.25, 1) + dice.roll(-16, 16, 3), 0, 255)


def _box(dice: _Dice, centre: Array, half: Array, turn: float) -> Array:
    """Edges (n, 4, 2, 2) of an irregular four-sided patch."""
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * dice.roll(0.6, 1.2, 4, 2)
    x, y = corners[..., 0] * half[:, 0, None], corners[..., 1] * half[:, 1, None]
    cos, sin = (part[:, None] for part in _rotation(dice.roll(-turn, turn)))
    points = np.stack([cos * x - sin * y + centre[:, 0, None], sin * x + cos * y + centre[:, 1, None]], axis=-1)
    return _closed(points)


def _closed(corners: Array) -> Array:
    """Edges (n, V, 2 ends, 2 axes) of polygons with corners (n, V, 2)."""
    return np.stack([corners, np.roll(corners, -1, axis=1)], axis=2)


# Largest half width, half height (in frames) and turn (2 atan) of what stands around: two walls, a mast, five patches.
_CLUTTER = ((0.3, 0.5, 0.02), (0.25, 0.4, 0.02), (0.03, 0.8, 0.1), *((0.22, 0.22, 1.0),) * 5)


def _background(dice: _Dice, size: int) -> Integers:
    """Sky above ground and clutter, (n, 3, H, W) of 0..4080."""
    top, bottom = (np.rint(_pick(dice) * 16).astype(np.int32)[:, :, None, None] for _ in range(2))
    ramp = np.arange(size, dtype=np.int32)[:, None]
    canvas = top + (bottom - top) * ramp // size + np.zeros((1, 1, 1, size), dtype=np.int32)
    horizon, wide = dice.roll(0.4, 1.0), np.ones(len(canvas))
    ground = _box(dice, np.stack([wide * 0.5, horizon + 1.5], 1), np.stack([wide * 2, wide * 1.5], 1), 0.03)
    _paint(canvas, _coverage(ground * size, size), _pick(dice))
    for half_width, half_height, turn in _CLUTTER:
        half = np.stack([dice.roll(0.15, 1.0) * half_width, dice.roll(0.2, 1.0) * half_height], 1)
        patch = _box(dice, dice.roll(-0.05, 1.05, 2), half, turn)
        _paint(canvas, _coverage(patch * size, size), _pick(dice), dice.roll(0.5, 1.0))
    return canvas


def _glyph(dice: _Dice, labels: NDArray[np.int64], plate: NDArray[np.int64], detail: float) -> Array:
    """Edges of the glyph in sign coordinates, sized for the plate and the detail, with a stroke weight per image."""
    box, extent = _PLATES.box[plate], _GLYPH_EXTENT[labels]
    scale = np.minimum(box[:, 2] / extent[:, 0], box[:, 3] / extent[:, 1])
    shrink = SHRINK * detail * detail
    scale = scale * (1 - shrink) * dice.roll(0.9, 1.08)
    free = 0.04 + 0.4 * shrink * box[:, 3]  # a smaller glyph has room to wander
    shift = box[:, :2] + free[:, None] * dice.roll(-1, 1, 2)
    edges = _GLYPHS[labels] + _GLYPHS_BOLD[labels] * dice.roll(0.85, 1.25, 1, 1, 1)
    x, y = edges[..., 0] * dice.roll(0.9, 1.1, 1, 1), edges[..., 1]
    x = x + y * dice.roll(-SKEW, SKEW, 1, 1)
    at = [scale[:, None, None] * axis + shift[:, k, None, None] for k, axis in enumerate((x, y))]
    return np.stack(at, axis=-1)


def _sign(dice: _Dice, canvas: Integers, labels: NDArray[np.int64], detail: float) -> NDArray[np.bool_]:
    """Draw pole and sign on the canvas; returns the sign's mask (n, H, W)."""
    size = canvas.shape[-1]
    step = (2 * detail + dice.roll(0, 1)).astype(np.int64)  # 0 own, 1 family, 2 common
    plate, pose = _PLATE_OF[labels, np.minimum(step, 2)], _pose(dice)

    def cover(edges: Array) -> Integers:
        return _coverage(pose.apply(edges) * size, size)

    pole = np.array([(-0.08, 0.5), (0.08, 0.5), (0.08, 6.0), (-0.08, 6.0)]) * np.ones((len(labels), 1, 1))
    _paint(canvas, cover(_closed(pole)), dice.roll(90, 180, 1) + dice.roll(-9, 9, 3))
    fade = dice.roll(0, 0.35, 1, 1)
    rim, face, mark, ink = np.moveaxis(
        _PLATES.colours[plate] * (1 - fade) + 128 * fade + dice.roll(-16, 16, 4, 3), 1, 0
    )
    ink = np.where(_PLATES.hidden[plate, None], face, ink)
    outer = cover(_PLATES.outer[plate])
    _paint(canvas, outer, rim)
    _paint(canvas, cover(_PLATES.inner[plate]), face)
    _paint(canvas, cover(_glyph(dice, labels, plate, detail)), ink)
    _paint(canvas, cover(_PLATES.marks[plate]), mark)
    return outer * 2 >= FULL


def _camera(dice: _Dice, canvas: Integers, noise: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shadow, blur, contrast, brightness, tint and noise."""
    size = canvas.shape[-1]
    shadow = _box(dice, dice.roll(0, 1, 2), dice.roll(0.3, 1.2, 2), 1.0)
    _paint(canvas, _coverage(shadow * size, size), np.zeros((len(canvas), 3)), dice.roll(0, 0.45))
    side = np.rint(dice.roll(0, 1) * dice.roll(0, 64)).astype(np.int32)[:, None, None, None]  # weight of a neighbour
    for axis in (2, 3):  # more often on a larger frame, to blur about the same part of it
        for _ in range(max(1, size // 16)):
            canvas = _smooth(canvas, side, axis)
    contrast = np.rint(dice.roll(0.55, 1.2, 1) * dice.roll(0.92, 1.08, 3) * 256).astype(np.int32)
    light = np.rint(dice.roll(78, 168, 1) * 16).astype(np.int32)[:, :, None, None]
    canvas = ((canvas - 2048) * contrast[:, :, None, None] >> 8) + light
    grain = np.rint(dice.roll(0, 1) * dice.roll(0, 24)).astype(np.int32)[:, None, None, None]
    wave = noise[:, 0].astype(np.int32) + noise[:, 1] - 255  # triangular, +-255
    image: NDArray[np.uint8] = np.clip((canvas + (wave * grain >> 4) + 8) >> 4, 0, 255).astype(np.uint8)
    return image


def _smooth(canvas: Integers, side: Integers, axis: int) -> Integers:
    """Weights (side, 256 - 2 side, side) / 256 along an axis, the border repeated."""
    before = np.concatenate([canvas.take([0], axis), canvas.take(range(canvas.shape[axis] - 1), axis)], axis)
    after = np.concatenate([canvas.take(range(1, canvas.shape[axis]), axis), canvas.take([-1], axis)], axis)
    smooth: Integers = canvas + ((before + after - 2 * canvas) * side >> 8)
    return smooth


BATCH = 1 << 16  # pixels drawn at once: few enough for the processor's cache


def draw(config: Signs, image_size: int = 32) -> Drawing:
    """Draw `config.images` signs of `image_size` x `image_size` pixels.

    Image i depends only on its index and the settings, not on how many are drawn; classes are balanced to within one.
    Raises ValueError when the size is below 8.
    """
    if image_size < 8:
        raise ValueError(f"signs need an image_size of at least 8, not {image_size}")
    labels = _labels(config.seed, config.classes, config.images)
    images = np.empty((config.images, 3, image_size, image_size), dtype=np.uint8)
    masks = np.empty((config.images, image_size, image_size), dtype=np.bool_)
    scenes, grain = _stream(config.seed, _SCENES), _stream(config.seed, _NOISE)
    grain_words = -(-6 * image_size * image_size // 8)
    batch = max(8, BATCH // image_size**2)
    for start in range(0, config.images, batch):
        part = slice(start, min(start + batch, config.images))
        count = part.stop - start
        dice = _Dice(scenes.random_raw(count * WORDS).reshape(count, WORDS))
        noise = grain.random_raw(count * grain_words).astype("<u8").view(np.uint8).reshape(count, -1)
        noise = noise[:, : 6 * image_size * image_size].reshape(count, 2, 3, image_size, image_size)
        canvas = _background(dice, image_size)
        masks[part] = _sign(dice, canvas, labels[part], config.detail)
        images[part] = _camera(dice, canvas, noise)
    return Drawing(images, labels, masks, tuple(kind.name for kind in CLASSES[: config.classes]))
