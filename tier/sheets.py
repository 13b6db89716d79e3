"""Sheets of maps for print: rows of input, undefended and defended map, as PNG, SVG or PDF. No Streamlit, no torch.

`of_triplets` lays out explainers of one image as well as images of one gallery; `render` draws what it made. Pixels
stay square and unsmoothed in every form, text stays text in SVG and PDF, and the same sheet gives the same bytes.
"""

import io
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tier import pictures
from tier.figures import style
from tier.pictures import Picture

Form = Literal["png", "svg", "pdf"]
TIED = "\u00a0"  # a no-break space keeps a score's name and its number on one line
NARROWEST = 0.2  # width of the font's narrowest characters, in font sizes, rounded down
FAMILY = ("DejaVu Sans", "sans-serif")  # matplotlib brings the first; who opens an SVG may lack it
MAX_ROWS = 32
MAX_PIXELS = 640  # on a picture's longer side
NEUTRAL = "#5f5f5f"  # of the input column's accent
SCORES = {"ssim": "SSIM", "mse": "MSE", "cosine": "cosine", "cosine_unscaled": "unscaled cosine"}
_LOCK = threading.Lock()  # matplotlib's settings are the process's, not the thread's


# ---- what is on a sheet


@dataclass(frozen=True)
class Cell:
    """A picture `(H, W, 3)` with a line of text below it; None where there is no result."""

    picture: Picture | None
    text: str = ""


@dataclass(frozen=True)
class Row:
    """A row: its name, a second, smaller line about it, and a cell per column."""

    label: str
    cells: tuple[Cell, ...]
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A column's head and the colour of the bar below it."""

    head: str
    colour: str = NEUTRAL


@dataclass(frozen=True)
class Sheet:
    """A table of pictures of one size under a title; `signed` lists the colour scales in use, for the legend."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    signed: tuple[bool, ...] = ()

    @property
    def alt(self) -> str:
        """What the sheet shows, for those who cannot see it."""
        rows, heads = ", ".join(row.label for row in self.rows), ", ".join(column.head for column in self.columns)
        return f"{self.title}: a table of pictures, one row each for {rows}; one column each for {heads}."


@dataclass(frozen=True)
class Triplet:
    """An image `(3, H, W)` and the maps `(H, W)` of one explainer under two or more models, in the order of columns.

    A map that does not exist yet is None. `scores` holds, per model, what is written below its map.
    """

    label: str
    image: NDArray[np.uint8]
    maps: Mapping[str, NDArray[Any] | None]
    signed: bool | None = None
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    detail: str = ""


def of_triplets(
    title: str,
    triplets: Sequence[Triplet],
    note: str = "",
    shared: bool = False,
    absolute: bool = False,
    heads: Mapping[str, str] | None = None,
) -> Sheet:
    """The sheet of explainers of one image, or of images under one explainer: a row per triplet.

    With `shared`, the maps of a row have one scale, otherwise each has its own; `absolute` shows |map|. `heads` names
    models otherwise than `figures.style` does. What the colours mean is added to the note.
    Raises ValueError when there is no triplet or when triplets differ in their models.
    """
    if not triplets:
        raise ValueError("a sheet needs at least one row: give one triplet per explainer or per image")
    models = list(triplets[0].maps)
    for triplet in triplets:
        if list(triplet.maps) != models:
            raise ValueError(
                f"every row needs a map (or None) for {', '.join(models)}, in that order; "
                f"'{triplet.label}' has {', '.join(triplet.maps) or 'none'}"
            )
    kinds = [_is_signed(triplet, absolute) for triplet in triplets]
    columns = [
        Column("Input"),
        *(Column((heads or {}).get(name, style(name).label), style(name).colour) for name in models),
    ]
    rows = tuple(_row(triplet, kind, shared, absolute) for triplet, kind in zip(triplets, kinds, strict=True))
    signed = tuple(sorted(set(kinds), reverse=True))
    legend = [pictures.legend_text(kind, shared, absolute) for kind in signed]
    return Sheet(title, tuple(columns), rows, " ".join(part for part in (note, *_joined(legend)) if part), signed)


def _joined(legend: list[str]) -> list[str]:
    """The legends of two colour scales in one text, which says only once whose scale the maps follow."""
    return [f"{text.partition(';')[0]}." for text in legend[:-1]] + legend[-1:]


def _is_signed(triplet: Triplet, absolute: bool) -> bool:
    if absolute or triplet.signed is not None:
        return bool(triplet.signed) and not absolute
    return any(bool((np.nan_to_num(values) < 0).any()) for values in triplet.maps.values() if values is not None)


def _row(triplet: Triplet, signed: bool, shared: bool, absolute: bool) -> Row:
    known = [values for values in triplet.maps.values() if values is not None]
    limit = pictures.limit_of(known) if shared else None
    cells = [Cell(pictures.image_rgb(triplet.image))]
    for name, values in triplet.maps.items():
        if values is None:
            cells.append(Cell(None, "no result yet"))
            continue
        scores = score_text(triplet.scores.get(name, {})).replace(" ", TIED).replace(f",{TIED}", ", ")
        said = [pictures.flaw(values), scores]
        cells.append(Cell(pictures.heat(values, limit, signed, absolute), "; ".join(part for part in said if part)))
    return Row(triplet.label, tuple(cells), triplet.detail)


def score_text(scores: Mapping[str, float]) -> str:
    """`SSIM 0.41, cosine 0.88`; a score that does not exist (NaN) is said to be undefined."""
    digits = {"mse": 3}
    return ", ".join(
        f"{SCORES.get(name, name)} {'undefined' if math.isnan(value) else format(value, f'.{digits.get(name, 2)}f')}"
        for name, value in scores.items()
    )


# ---- text that fits


def plain(text: str) -> str:
    """The text on one line, each character that the sheet's font lacks as a box, so that no form breaks on it."""
    glyphs = _font().get_charmap()
    text = re.sub(rf"[^\S{TIED}]+", " ", text).strip()
    return "".join(char if char == TIED or (ord(char) in glyphs and char.isprintable()) else "□" for char in text)


def wrapped(text: str, width: float, size: float, lines: int, bold: bool = False) -> list[str]:
    """`text` in at most `lines` lines of `width` inches at `size` points; what does not fit ends in an ellipsis.

    A line ends at a space, or within a word that is longer than a line, but not at a no-break space if it can.
    """
    return [line.replace(TIED, " ") for line in _lines(plain(text), width, size, lines, bold)]


def _lines(rest: str, width: float, size: float, lines: int, bold: bool) -> list[str]:
    done: list[str] = []
    while rest:
        last = len(done) == lines - 1
        count = _fitting(rest, width, size, bold, "…" if last else "")
        if count == len(rest):
            return [*done, rest]
        if last:
            return [*done, f"{rest[:count].rstrip()}…"]
        space = rest.rfind(" ", 0, count + 1)
        cut = space if space > 0 else count
        done.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return done


def _fitting(text: str, width: float, size: float, bold: bool, end: str) -> int:
    """How many first characters of the text fit, at least one; all of them, or fewer with `end` after them."""
    most = int(width * 72 / (NARROWEST * size)) + 1  # no need to measure the whole of a long text
    if len(text) <= most and _width(text, size, bold) <= width:
        return len(text)
    low, high = 1, max(1, min(most, len(text) - 1))
    while low < high:  # the width grows with each character
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _width(text[:middle] + end, size, bold) <= width else (low, middle - 1)
    return low


def _font() -> Any:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont(_properties(10, False)))


def _properties(size: float, bold: bool) -> Any:
    """The font as matplotlib's own file: another release of it, which a system may have, makes other bytes."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import FontProperties

    file = Path(get_data_path(), "fonts", "ttf", f"DejaVuSans{'-Bold' if bold else ''}.ttf")
    return FontProperties(family=list(FAMILY), size=size, weight="bold" if bold else "normal", fname=file)


@lru_cache(maxsize=4096)
def _width(text: str, size: float, bold: bool) -> float:
    """Width of a text in inches."""
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, _properties(size, bold), False)[0]) / 72


# ---- layout, in dots from the top left


@dataclass(frozen=True)
class Label:
    """A line of text: its baseline's place, size in points, and how it is aligned."""

    text: str
    x: float
    y: float
    size: float
    bold: bool = False
    align: Literal["left", "center"] = "left"
    colour: str = "#1a1a1a"


@dataclass(frozen=True)
class Box:
    """A rectangle of one colour, or a picture to fill it; `left` and `top` are whole dots."""

    left: int
    top: int
    width: int
    height: int
    colour: str = ""
    picture: Picture | None = None


@dataclass(frozen=True)
class Layout:
    """Where all parts of a sheet lie; `cells[r][c]` is the box of a cell's picture."""

    width: int
    height: int
    dpi: int
    cells: tuple[tuple[Box, ...], ...]
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


CELL = 1.15  # inches that a cell's longer side comes close to
DPI = 300
LEADING = 1.28  # distance of two lines in font sizes


def layout(sheet: Sheet) -> Layout:
    """Place title, heads, labels, cells, scores, legend and note.

    A cell's picture has a whole number of dots per pixel. Raises ValueError for a sheet without rows or columns, with
    too many rows, with ragged rows or with pictures of different sizes.
    """
    height, width = _checked(sheet)
    dpi = max(DPI, math.ceil(max(height, width) / CELL))  # large images: more dots, not larger paper
    factor = max(1, round(CELL * dpi / max(height, width)))
    return _Setter(sheet, width * factor, height * factor, dpi).set()


def _checked(sheet: Sheet) -> tuple[int, int]:
    """Height and width of all pictures of a sheet that can be drawn."""
    if not sheet.rows or not sheet.columns:
        raise ValueError("a sheet needs at least one row and one column: choose an explainer or an image")
    if len(sheet.rows) > MAX_ROWS:
        raise ValueError(f"a sheet holds at most {MAX_ROWS} rows, not {len(sheet.rows)}: choose fewer images")
    for row in sheet.rows:
        if len(row.cells) != len(sheet.columns):
            raise ValueError(
                f"row '{row.label}' has {len(row.cells)} cells for {len(sheet.columns)} columns: "
                "give one cell per column, Cell(None) where there is no result"
            )
    shapes = {cell.picture.shape for row in sheet.rows for cell in row.cells if cell.picture is not None}
    if len(shapes) != 1:
        found = ", ".join(map(str, sorted(shapes))) or "none"
        raise ValueError(f"a sheet needs RGB pictures (height, width, 3) of one size, and has {found}")
    shape = shapes.pop()
    if len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ValueError(f"a sheet needs RGB pictures (height, width, 3), not {shape}")
    if max(shape) > MAX_PIXELS:
        raise ValueError(f"a sheet's pictures have at most {MAX_PIXELS} pixels a side, not {max(shape)}: reduce them")
    return shape[0], shape[1]


class _Setter:
    """Sets a sheet from top to bottom; `self.y` is the lowest dot in use."""

    def __init__(self, sheet: Sheet, width: int, height: int, dpi: int) -> None:
        self.sheet, self.dpi = sheet, dpi
        self.cell_width, self.cell_height = width, height
        inches = width / dpi
        self.margin, self.gap = self.dots(0.14), self.dots(0.16)
        self.names = self.dots(_names_width(sheet))
        self.first = self.margin + self.names
        self.inner = max(inches, 0.6)  # inches of text that a narrow cell still has room for
        self.pitch = max(width, self.dots(self.inner)) + self.gap
        # a sheet of few columns still has room for its title and its note
        self.width = max(self.first + self.pitch * len(sheet.columns) - self.gap + self.margin, self.dots(3.4))
        self.y: float = self.margin
        self.boxes: list[Box] = []
        self.labels: list[Label] = []

    def dots(self, inches: float) -> int:
        return round(inches * self.dpi)

    def left(self, column: int) -> int:
        """The left edge of a column's pictures, centred in its room."""
        return self.first + column * self.pitch + (self.pitch - self.gap - self.cell_width) // 2

    def set(self) -> Layout:
        paper = (self.width - 2 * self.margin) / self.dpi
        self.text(self.sheet.title, self.margin, paper, 10.5, 3, bold=True)
        self.y += self.dots(0.05)
        self.heads()
        cells = tuple(self.row(row) for row in self.sheet.rows)
        self.legend()
        self.text(self.sheet.note, self.margin, paper, 6.0, 12, colour="#444444")
        return Layout(self.width, round(self.y + self.margin), self.dpi, cells, tuple(self.boxes), tuple(self.labels))

    def text(self, text: str, x: float, width: float, size: float, lines: int, **look: Any) -> None:
        """Lines of text at the lowest place, which moves below them."""
        for line in wrapped(text, width, size, lines, look.get("bold", False)):
            self.y += size * LEADING * self.dpi / 72
            self.labels.append(Label(line, x, self.y - size * 0.26 * self.dpi / 72, size, **look))

    def heads(self) -> None:
        """Column heads, all on one last line, with the bar of the model's colour below each."""
        size, bar = 8.0, self.dots(0.028)
        heads = [wrapped(column.head, self.inner, size, 3, bold=True) for column in self.sheet.columns]
        step = size * LEADING * self.dpi / 72
        self.y += step * max(map(len, heads)) + self.dots(0.04)
        for place, (column, lines) in enumerate(zip(self.sheet.columns, heads, strict=True)):
            left = self.left(place)
            middle = left + self.cell_width / 2
            for number, line in enumerate(reversed(lines)):
                y = self.y - self.dots(0.055) - number * step
                self.labels.append(Label(line, middle, y, size, True, "center"))
            self.boxes.append(Box(left, round(self.y), self.cell_width, bar, column.colour))
        self.y += bar + self.dots(0.05)

    def row(self, row: Row) -> tuple[Box, ...]:
        """One row: its name beside the middle of the cells, the cells, and the texts below them."""
        top, edge = math.ceil(self.y), max(1, self.dots(0.005))
        self.name(row, top + self.cell_height / 2)
        self.y = top + self.cell_height
        below, lowest, cells = self.y, self.y, []
        for place, cell in enumerate(row.cells):
            left = self.left(place)
            box = Box(left, top, self.cell_width, self.cell_height, "#f0f0f0", cell.picture)
            cells.append(box)
            frame = Box(left - edge, top - edge, self.cell_width + 2 * edge, self.cell_height + 2 * edge, "#8c8c8c")
            self.boxes += [frame, box]
            self.y = below + self.dots(0.025)
            room = self.inner + 0.75 * self.gap / self.dpi
            self.text(cell.text, left + self.cell_width / 2, room, 6.0, 3, align="center", colour="#333333")
            lowest = max(lowest, self.y if cell.text else below)
        self.y = lowest + self.dots(0.085)
        return tuple(cells)

    def name(self, row: Row, middle: float) -> None:
        """A row's name and detail, centred on the height of the cells."""
        room = (self.names - self.dots(0.12)) / self.dpi
        most = max(1, int(self.cell_height / (8.0 * LEADING * self.dpi / 72)))  # lines that the row has height for
        name = wrapped(row.label, room, 8.0, min(4, most), bold=True)
        left = int((self.cell_height * 72 / (LEADING * self.dpi) - 8.0 * len(name)) / 6.0)  # lines still free
        detail = wrapped(row.detail, room, 6.0, min(9, left), bold=False) if left > 0 else []
        tall = (8.0 * len(name) + 6.0 * len(detail)) * LEADING * self.dpi / 72
        self.y = middle - tall / 2
        self.text(row.label, self.margin, room, 8.0, len(name), bold=True)
        if detail:
            self.text(row.detail, self.margin, room, 6.0, len(detail), colour="#444444")

    def legend(self) -> None:
        """A bar per colour scale in use, with its ends named."""
        self.y += self.dots(0.02)
        left: float = self.margin
        wide, tall = self.dots(0.75), self.dots(0.075)
        for signed in self.sheet.signed:
            before, after = ("against", "for the class") if signed else ("0", "largest")
            parts = [_width(part, 6.0, False) * self.dpi + self.dots(0.05) for part in (before, after)]
            base = self.y + tall
            if left + sum(parts) + wide > self.width - self.margin and left > self.margin:
                left, base, self.y = self.margin, base + self.dots(0.14), self.y + self.dots(0.14)
            self.labels.append(Label(before, left, base, 6.0, colour="#444444"))
            bar = Box(round(left + parts[0]), round(base) - tall, wide, tall, "", pictures.colour_bar(signed, wide, 1))
            self.boxes.append(bar)
            self.labels.append(Label(after, bar.left + wide + self.dots(0.05), base, 6.0, colour="#444444"))
            left += sum(parts) + wide + self.dots(0.2)
        if self.sheet.signed:
            self.y += tall + self.dots(0.06)


def _names_width(sheet: Sheet) -> float:
    """Inches for the rows' names: their longest word and about half of their longest text, within bounds."""
    texts = [(text, size, bold) for row in sheet.rows for text, size, bold in _name_texts(row)]
    words = [_width(word, size, bold) for text, size, bold in texts for word in text.split()]
    halves = [0.6 * _width(text, size, bold) for text, size, bold in texts]
    return min(max([0.5, *words, *halves]), 1.4) + 0.14


def _name_texts(row: Row) -> list[tuple[str, float, bool]]:
    return [(plain(row.label), 8.0, True), (plain(row.detail), 6.0, False)]


# ---- drawing


def render(sheet: Sheet, form: Form) -> bytes:
    """The sheet as a file of that form; the same sheet gives the same bytes.

    Raises ValueError for an unknown form, and as `layout` does.
    """
    if form not in get_args(Form):
        raise ValueError(f"a sheet is drawn as {', '.join(get_args(Form))}, not as {form!r}")
    import matplotlib

    file = io.BytesIO()
    with _LOCK, matplotlib.rc_context(_SETTINGS):
        figure = _figure(layout(sheet), form)
        getattr(_canvas(form)(figure), f"print_{form}")(file, metadata=_metadata(plain(sheet.title), form))
    return file.getvalue()


_SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "tier", "svg.image_inline": True, "pdf.fonttype": 42, "pdf.compression": 6,
    "text.usetex": False, "path.simplify": False,
    "font.sans-serif": ["DejaVu Sans"],
}  # fmt: skip


def _canvas(form: Form) -> Any:
    if form == "png":
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        return FigureCanvasAgg
    if form == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        return FigureCanvasSVG
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    return FigureCanvasPdf


def _metadata(title: str, form: Form) -> dict[str, str | None]:
    """The title, and neither dates nor versions, which would differ between equal sheets."""
    left_out = {"png": ["Software"], "svg": ["Date", "Creator"], "pdf": ["CreationDate", "Creator", "Producer"]}[form]
    return {"Title": title, **dict.fromkeys(left_out)}


def _figure(plan: Layout, form: Form) -> Any:
    """A matplotlib figure of the layout: one axis over the whole paper, in dots from the top left."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(plan.width / plan.dpi, plan.height / plan.dpi), dpi=plan.dpi, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for order, box in enumerate(plan.boxes):
        if box.picture is None:
            patch = Rectangle((box.left, box.top), box.width, box.height, facecolor=box.colour, linewidth=0)
            patch.set(zorder=order, antialiased=False, snap=False)
            axes.add_patch(patch)
            continue
        axes.imshow(
            _sized(box, form), extent=(box.left, box.left + box.width, box.top + box.height, box.top),
            interpolation="nearest" if form == "png" else "none", zorder=order, aspect="auto",
        )  # fmt: skip
    axes.set(xlim=(0, plan.width), ylim=(plan.height, 0))
    for label in plan.labels:
        axes.text(
            label.x, label.y, label.text, color=label.colour, ha=label.align, va="baseline", parse_math=False,
            fontproperties=_properties(label.size, label.bold), zorder=len(plan.boxes),
        )  # fmt: skip
    return figure


def _sized(box: Box, form: Form) -> Picture:
    """A box's picture with each pixel as a square of whole dots.

    In PNG it has the box's size, so that nothing is resampled. In SVG and PDF its longer side has 256 dots or more:
    some viewers smooth small pictures whatever the file says, which a large one hardly shows.
    """
    assert box.picture is not None
    height, width = box.picture.shape[:2]
    if form == "png":
        return box.picture.repeat(box.height // height, axis=0).repeat(box.width // width, axis=1)
    return pictures.enlarge(box.picture, max(1, math.ceil(256 / max(height, width))))
