"""Sheets in every form: the cells' pixels, the text, the same bytes again, and text that fits whatever it says."""

import base64
import dataclasses
import io
import itertools
import os
import re
import struct
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from tests import clock
from tier import pictures, sheets
from tier.figures import EXPLAINERS, style
from tier.sheets import Cell, Column, Form, Row, Sheet, Triplet

SIGNED = {"smoothgrad", "integrated_gradients", "shap", "lime"}
SVG = "{http://www.w3.org/2000/svg}"
FORMS: list[Form] = ["png", "svg", "pdf"]


def maps(explainer: str, seed: int, height: int = 32, width: int = 32) -> NDArray[np.float64]:
    values = np.random.default_rng([seed, *explainer.encode()]).normal(size=(height, width))
    return values if explainer in SIGNED else np.abs(values)


def image(height: int = 32, width: int = 32) -> NDArray[np.uint8]:
    return np.random.default_rng(9).integers(0, 256, (3, height, width), dtype=np.uint8)


def triplets(height: int = 32, width: int = 32) -> list[Triplet]:
    """All explainers of one image under two models."""
    return [
        Triplet(
            label, image(height, width),
            {"none": maps(name, 0, height, width), "tier_full": 3 * maps(name, 1, height, width)},
            name in SIGNED, {"tier_full": {"ssim": 0.412, "cosine": 0.883}},
        )
        for name, label in EXPLAINERS.items()
    ]  # fmt: skip


def explainer_sheet(shared: bool = False, **changes: object) -> Sheet:
    sheet = sheets.of_triplets("Image 12, priority road", triplets(), "Data signs, seed 0.", shared)
    return Sheet(**{**vars(sheet), **changes})


def opened(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def cell(png: NDArray[np.uint8], box: sheets.Box) -> NDArray[np.uint8]:
    return png[box.top : box.top + box.height, box.left : box.left + box.width]


def svg_texts(data: bytes) -> list[str]:
    return [element.text or "" for element in ET.fromstring(data).iter(f"{SVG}text")]


def pdf_images(data: bytes) -> list[NDArray[np.uint8]]:
    """The pictures of a PDF, whose pixel data are those of a PNG: each is put into one and opened."""
    found = []
    for match in re.finditer(rb"/Subtype /Image (.*?)stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL):
        head, stream = match.groups()
        width, height = (int(re.search(rb"/%s (\d+)" % name, head)[1]) for name in (b"Width", b"Height"))  # type: ignore[index]
        palette = re.search(rb"/Indexed /DeviceRGB \d+\s*\((.*)\)\s*\]", head, re.DOTALL)
        chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3 if palette else 2, 0, 0, 0))]
        if palette:
            chunks.append((b"PLTE", re.sub(rb"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), palette[1], flags=re.DOTALL)))
        chunks += [(b"IDAT", stream), (b"IEND", b"")]
        parts = [struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks]
        found.append(opened(b"\x89PNG\r\n\x1a\n" + b"".join(parts)))
    return found


def pdf_streams(data: bytes) -> list[bytes]:
    """All compressed streams of a PDF."""
    return [
        zlib.decompress(match[1])
        for match in re.finditer(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
    ]


ESCAPES = {b"n": b"\n", b"r": b"\r"}


class TestPng:
    @pytest.mark.parametrize("shared", [False, True])
    def test_cells_hold_the_maps_pixel_by_pixel(self, shared: bool) -> None:
        sheet = explainer_sheet(shared)
        plan, png = sheets.layout(sheet), opened(sheets.render(sheet, "png"))
        assert png.shape == (plan.height, plan.width, 3)
        for triplet, boxes in zip(triplets(), plan.cells, strict=True):
            limit = pictures.limit_of(list(triplet.maps.values())) if shared else None  # type: ignore[arg-type]
            shown = [pictures.heat(values, limit, triplet.signed) for values in triplet.maps.values()]  # type: ignore[arg-type]
            for box, picture in zip(boxes, [pictures.image_rgb(triplet.image), *shown], strict=True):
                factor = box.width // 32
                assert factor >= 10
                assert (cell(png, box) == pictures.enlarge(picture, factor)).all()

    @pytest.mark.parametrize(("height", "width"), [(8, 8), (20, 33), (224, 224), (400, 300), (3, 64)])
    def test_pixels_stay_square_at_any_size(self, height: int, width: int) -> None:
        sheet = sheets.of_triplets("t", triplets(height, width)[:1])
        plan = sheets.layout(sheet)
        box = plan.cells[0][1]
        factor = box.width // width
        assert (box.width, box.height) == (width * factor, height * factor)
        assert 0.7 <= max(box.width, box.height) / plan.dpi <= 1.8  # inches
        expected = pictures.enlarge(pictures.heat(maps("gradient", 0, height, width)), factor)
        assert (cell(opened(sheets.render(sheet, "png")), box) == expected).all()

    def test_ground_is_white_and_heads_have_their_models_colour(self) -> None:
        sheet = explainer_sheet()
        plan, png = sheets.layout(sheet), opened(sheets.render(sheet, "png"))
        assert (png[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()
        for model, box in zip(["none", "tier_full"], plan.cells[0][1:], strict=True):
            above = png[: box.top - 4, box.left + box.width // 2]
            assert (above == pictures.colour_of(style(model).colour)[:3]).all(1).any()

    def test_says_its_title_and_resolution_and_no_date(self) -> None:
        picture = Image.open(io.BytesIO(sheets.render(explainer_sheet(), "png")))
        assert picture.info["Title"] == "Image 12, priority road"
        assert round(picture.info["dpi"][0]) == sheets.DPI
        assert set(picture.info) == {"Title", "dpi"}

    def test_a_missing_map_leaves_an_empty_cell_that_says_so(self) -> None:
        sheet = sheets.of_triplets("t", [Triplet("LIME", image(), {"none": None, "tier_full": maps("lime", 0)})])
        box = sheets.layout(sheet).cells[0][1]
        assert (np.ptp(cell(opened(sheets.render(sheet, "png")), box), axis=(0, 1)) == 0).all()
        assert "no result yet" in svg_texts(sheets.render(sheet, "svg"))


class TestSvg:
    def test_text_is_text(self) -> None:
        texts = svg_texts(sheets.render(explainer_sheet(), "svg"))
        joined = " ".join(texts)
        for wanted in ["Image 12, priority road", "Input", "Undefended", "TIER Full", *EXPLAINERS.values()]:
            assert wanted in joined
        assert texts.count("SSIM 0.41, cosine 0.88") == len(EXPLAINERS)
        assert "Data signs, seed 0." in joined and "own scale" in joined

    def test_images_are_crisp_and_hold_the_maps(self) -> None:
        sheet = sheets.of_triplets("t", triplets()[:1])
        root = ET.fromstring(sheets.render(sheet, "svg"))
        found = []
        for element in root.iter(f"{SVG}image"):
            assert "pixelated" in element.get("style", "")
            data = base64.b64decode(element.get("{http://www.w3.org/1999/xlink}href", "").partition(",")[2])
            found.append(opened(data))
        wanted = [cell.picture for cell in sheet.rows[0].cells if cell.picture is not None]
        for picture in wanted:
            large = pictures.enlarge(picture, 8)
            assert sum(seen.shape == large.shape and (seen == large).all() for seen in found) == 1

    def test_each_picture_stays_one_of_its_own(self) -> None:
        root = ET.fromstring(sheets.render(explainer_sheet(), "svg"))
        assert len(list(root.iter(f"{SVG}image"))) == 3 * len(EXPLAINERS) + 2  # cells and two colour bars

    def test_title_is_that_of_the_document_and_no_date_is_given(self) -> None:
        data = sheets.render(explainer_sheet(), "svg")
        title = ET.fromstring(data).find(f"{SVG}title")
        assert title is not None and title.text == "Image 12, priority road"
        assert b"dc:date" not in data and b"matplotlib" not in data.lower()

    @pytest.mark.parametrize("text", ['<b>&amp; & "quoted" ]]>', "$x^2$ and $", r"\alpha \$5", "a_b^c {d}", "100 % #1"])
    def test_what_looks_like_markup_is_shown_as_written(self, text: str) -> None:
        sheet = sheets.of_triplets(text, [Triplet(text, image(), {"none": maps("shap", 0)}, detail=text)], text)
        data = sheets.render(sheet, "svg")
        texts = svg_texts(data)
        assert texts[0] == text and len(texts) >= 5
        assert text in " ".join(texts[texts.index("Undefended") + 1 :])
        assert all(sheets.render(sheet, form) for form in ("png", "pdf"))


class TestPdf:
    def test_one_page_with_title_and_embedded_fonts(self) -> None:
        data = sheets.render(explainer_sheet(), "pdf")
        assert data.startswith(b"%PDF") and data.rstrip().endswith(b"%%EOF")
        assert len(re.findall(rb"/Type /Page\b", data)) == 1 and b"/Count 1" in data
        assert b"/Title (Image 12, priority road)" in data
        assert b"/FontFile2" in data and b"/Subtype /Type3" not in data
        assert b"CreationDate" not in data and b"Producer" not in data

    def test_holds_the_maps_unsmoothed(self) -> None:
        sheet = sheets.of_triplets("t", triplets()[:1])
        data = sheets.render(sheet, "pdf")
        found = [picture for picture in pdf_images(data) if picture.shape == (256, 256, 3)]
        wanted = [cell.picture for cell in sheet.rows[0].cells if cell.picture is not None]
        assert len(found) == len(wanted) == 3 and b"/Interpolate true" not in data
        for seen, picture in zip(found, wanted, strict=True):
            assert (seen == pictures.enlarge(picture, 8)[::-1]).all()  # bottom row first ...
        page = max(pdf_streams(data), key=lambda stream: stream.count(b" Do"))
        placed = re.findall(rb"([\d.]+) 0 0 -([\d.]+) 0 \2 cm /I\d+ Do", page)  # ... and turned over where it is placed
        assert len(placed) == 4 and all(width == height for width, height in placed[:3])

    def test_accents_in_the_title(self) -> None:
        data = sheets.render(explainer_sheet(title="Überholverbot, prière"), "pdf")
        title = re.search(rb"/Title \((.*?)\)\s*>>", data, re.DOTALL)
        assert title is not None
        raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), title[1])
        raw = re.sub(rb"\\(.)", rb"\1", raw)
        text = raw.decode("utf-16" if raw.startswith(b"\xfe\xff") else "latin-1")
        assert text == "Überholverbot, prière"


class TestRender:
    @pytest.mark.parametrize("form", FORMS)
    def test_same_sheet_same_bytes_in_any_process(self, form: Form, tmp_path: Path) -> None:
        here = sheets.render(explainer_sheet(), form)
        assert sheets.render(explainer_sheet(), form) == here
        code = (
            "import sys; from tests.tier.test_sheets import explainer_sheet; from tier import sheets\n"
            f"sys.stdout.buffer.write(sheets.render(explainer_sheet(), {form!r}))"
        )
        root = Path(__file__).parents[2]
        there = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, cwd=root,
            env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(root), "MPLCONFIGDIR": str(tmp_path)},
        )  # fmt: skip
        assert there.stdout == here

    @pytest.mark.parametrize("form", FORMS)
    def test_another_font_file_of_the_same_name_changes_nothing(
        self, form: Form, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = sheets.render(explainer_sheet(), form)
        fonts = font_manager.fontManager
        [mono, *_] = [font for font in fonts.ttflist if font.name == "DejaVu Sans Mono"]
        disguised = [
            dataclasses.replace(mono, name="DejaVu Sans", style="normal", weight=weight) for weight in (400, 700)
        ]
        monkeypatch.setattr(fonts, "ttflist", [*disguised, *fonts.ttflist])
        fonts._findfont_cached.cache_clear()
        sheets._width.cache_clear()
        try:
            assert sheets.render(explainer_sheet(), form) == here
        finally:
            fonts._findfont_cached.cache_clear()
            sheets._width.cache_clear()

    @pytest.mark.timed
    @pytest.mark.parametrize("form", FORMS)
    def test_takes_less_than_a_second_and_a_half(self, form: Form) -> None:
        sheets.render(explainer_sheet(), form)  # imports and fonts
        clock.within(1.5, lambda: clock.took(lambda: sheets.render(explainer_sheet(), form), time.process_time))

    def test_sessions_may_render_at_once(self) -> None:
        expected = {form: sheets.render(explainer_sheet(), form) for form in FORMS}
        wrong: list[Form] = []

        def work(form: Form) -> None:
            if sheets.render(explainer_sheet(), form) != expected[form]:
                wrong.append(form)

        threads = [threading.Thread(target=work, args=(form,)) for form in FORMS * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_leaves_matplotlibs_settings_as_found(self) -> None:
        import matplotlib

        before = dict(matplotlib.rcParams)
        sheets.render(explainer_sheet(), "svg")
        assert dict(matplotlib.rcParams) == before
        assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()

    def test_refuses_an_unknown_form(self) -> None:
        with pytest.raises(ValueError, match="png, svg, pdf, not as 'gif'"):
            sheets.render(explainer_sheet(), "gif")  # type: ignore[arg-type]


class TestRefusals:
    picture = np.zeros((4, 4, 3), np.uint8)

    def sheet(self, *rows: Row, columns: int = 1) -> Sheet:
        return Sheet("t", tuple(Column(str(i)) for i in range(columns)), rows)

    def test_no_rows_or_columns(self) -> None:
        with pytest.raises(ValueError, match="at least one row"):
            sheets.render(self.sheet(), "png")
        with pytest.raises(ValueError, match="one column"):
            sheets.render(self.sheet(Row("a", ()), columns=0), "png")
        with pytest.raises(ValueError, match="one triplet per"):
            sheets.of_triplets("t", [])

    def test_ragged_rows(self) -> None:
        with pytest.raises(ValueError, match=r"row 'b' has 1 cells for 2 columns.*Cell\(None\)"):
            sheets.layout(self.sheet(Row("a", (Cell(self.picture),) * 2), Row("b", (Cell(self.picture),)), columns=2))
        ragged = [Triplet("a", image(), {"none": None, "tier_full": None}), Triplet("b", image(), {"none": None})]
        with pytest.raises(ValueError, match="'b' has none"):
            sheets.of_triplets("t", ragged)

    @pytest.mark.parametrize("shape", [(4, 5, 3), (4, 4), (4, 4, 4)])
    def test_pictures_of_different_shapes(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="of one size"):
            sheets.layout(self.sheet(Row("a", (Cell(self.picture), Cell(np.zeros(shape, np.uint8)))), columns=2))

    @pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4), (0, 4, 3), (4, 2000, 3)])
    def test_what_is_no_picture(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="pictures"):
            sheets.layout(self.sheet(Row("a", (Cell(np.zeros(shape, np.uint8)),))))

    def test_nothing_but_missing_results(self) -> None:
        with pytest.raises(ValueError, match="has none"):
            sheets.layout(self.sheet(Row("a", (Cell(None),))))

    def test_too_many_rows(self) -> None:
        rows = [Row(str(i), (Cell(self.picture),)) for i in range(sheets.MAX_ROWS + 1)]
        with pytest.raises(ValueError, match="choose fewer"):
            sheets.layout(self.sheet(*rows))


class TestContent:
    def test_scales_are_shared_within_a_row_only(self) -> None:
        own, shared = (sheets.of_triplets("t", triplets(), shared=flag) for flag in (False, True))
        first, second = triplets()[1].maps.values()
        assert first is not None and second is not None
        limit = pictures.limit_of([first, second])
        assert own.rows[1].cells[1].picture is not None and shared.rows[1].cells[1].picture is not None
        assert (own.rows[1].cells[1].picture == pictures.heat(first, None, True)).all()
        assert (shared.rows[1].cells[1].picture == pictures.heat(first, limit, True)).all()
        assert "own scale" in own.note and "share one scale" in shared.note

    def test_legend_names_the_scales_in_use(self) -> None:
        both = sheets.of_triplets("t", triplets())
        assert both.signed == (True, False) and "Red" in both.note and "Bright" in both.note
        assert both.note.count("own scale") == 1
        magnitudes = sheets.of_triplets("t", triplets(), absolute=True)
        assert magnitudes.signed == (False,) and "Red" not in magnitudes.note
        texts = svg_texts(sheets.render(both, "svg"))
        assert {"against", "for the class", "largest"} <= set(texts)
        assert "against" not in svg_texts(sheets.render(magnitudes, "svg"))

    def test_sign_is_guessed_from_the_values_of_a_row_when_not_said(self) -> None:
        positive, mixed = np.abs(maps("lime", 0)), maps("lime", 1)
        sheet = sheets.of_triplets("t", [Triplet("a", image(), {"none": positive, "tier_full": mixed})])
        assert sheet.signed == (True,)
        assert sheet.rows[0].cells[1].picture is not None
        assert (sheet.rows[0].cells[1].picture == pictures.heat(positive, None, True)).all()

    def test_degenerate_maps_are_flagged(self) -> None:
        flawed = {"none": np.zeros((32, 32)), "tier_full": np.full((32, 32), np.nan)}
        scores = {"tier_full": {"ssim": float("nan"), "mse": 0.0312}}
        cells = sheets.of_triplets("t", [Triplet("a", image(), flawed, False, scores)]).rows[0].cells
        texts = [cell.text.replace("\u00a0", " ") for cell in cells]
        assert texts == ["", "all-zero map", "not a number; SSIM undefined, MSE 0.031"]

    def test_scores_have_their_names(self) -> None:
        assert sheets.score_text({"ssim": 0.414, "cosine_unscaled": -0.1}) == "SSIM 0.41, unscaled cosine -0.10"
        assert sheets.score_text({}) == ""

    def test_heads_may_be_named(self) -> None:
        sheet = sheets.of_triplets("t", triplets(), heads={"tier_full": "TIER, lambda 9"})
        assert [column.head for column in sheet.columns] == ["Input", "Undefended", "TIER, lambda 9"]
        assert [column.colour for column in sheet.columns[1:]] == [style("none").colour, style("tier_full").colour]

    def test_alt_text_names_rows_and_columns(self) -> None:
        alt = explainer_sheet().alt
        assert all(word in alt for word in ["Image 12", "Integrated Gradients", "Undefended", "TIER Full"])


LONG = "Zusätzliches Überholverbot für Kraftfahrzeuge mit einer zulässigen Gesamtmasse über 3,5 t, " * 6
UNBROKEN = "W" * 300


def boxes_of(sheet: Sheet) -> list[tuple[str, float, float, float, float]]:
    """Every text of the layout with its extent in dots: left, top, right, bottom, as Agg measures it."""
    plan = sheets.layout(sheet)
    figure = Figure(figsize=(plan.width / plan.dpi, plan.height / plan.dpi), dpi=plan.dpi)
    renderer = FigureCanvasAgg(figure).get_renderer()
    found = []
    for label in plan.labels:
        text = Text(
            label.x, plan.height - label.y, label.text, ha=label.align, va="baseline", parse_math=False,
            fontfamily="DejaVu Sans", fontsize=label.size, fontweight="bold" if label.bold else "normal",
        )  # fmt: skip
        text.set_figure(figure)
        extent = text.get_window_extent(renderer)
        found.append((label.text, extent.x0, plan.height - extent.y1, extent.x1, plan.height - extent.y0))
    return found


class TestTextFits:
    @pytest.mark.parametrize("text", ["stop", LONG, UNBROKEN, "a", "priority road (non-member)"])
    @pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 16), (16, 64)])
    def test_nothing_overlaps_or_leaves_the_paper(self, text: str, height: int, width: int) -> None:
        score = {"tier_full": {"ssim": 0.4, "mse": 0.04, "cosine": 0.9, "cosine_unscaled": 0.1}}
        rows = [
            Triplet(text, one.image, one.maps, one.signed, score, detail=text) for one in triplets(height, width)[:3]
        ]
        sheet = sheets.of_triplets(text, rows, text, heads={"none": text, "tier_full": text})
        plan, texts = sheets.layout(sheet), boxes_of(sheet)
        slack = 0.02 * plan.dpi  # the height of a line includes room that its letters do not use
        solid = [(b.left, b.top, b.left + b.width, b.top + b.height) for row in plan.cells for b in row]
        for place, (said, left, top, right, bottom) in enumerate(texts):
            assert left >= 0 and top >= 0 and right <= plan.width and bottom <= plan.height, said
            others = [other[1:] for other in texts[place + 1 :]] + solid
            for x0, y0, x1, y1 in others:
                apart = right <= x0 + slack or x1 <= left + slack or bottom <= y0 + slack or y1 <= top + slack
                assert apart, said

    def test_long_text_ends_in_an_ellipsis(self) -> None:
        lines = sheets.wrapped(LONG, 1.0, 8.0, 3)
        assert len(lines) == 3 and lines[-1].endswith("…") and lines[0].startswith("Zusätzliches")

    @pytest.mark.parametrize("text", [LONG, UNBROKEN, "a b c", ""])
    @pytest.mark.parametrize("width", [0.01, 0.5, 2.0])
    def test_wrapping_loses_nothing(self, text: str, width: float) -> None:
        lines = sheets.wrapped(text, width, 7.0, 10_000)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(lines)

    def test_a_scores_name_and_number_stay_together(self) -> None:
        four = {"tier_full": {"ssim": 0.4, "mse": 0.04, "cosine": 0.9, "cosine_unscaled": 0.1}}
        one = triplets()[0]
        sheet = sheets.of_triplets("t", [Triplet("a", one.image, one.maps, False, four)])
        texts = svg_texts(sheets.render(sheet, "svg"))
        place = texts.index("SSIM 0.40, MSE 0.040,")
        assert texts[place + 1 : place + 3] == ["cosine 0.90,", "unscaled cosine 0.10"]

    def test_a_line_is_as_full_as_it_can_be(self) -> None:
        words = "one two three four five six seven eight nine ten"
        lines = sheets.wrapped(words, 1.0, 8.0, 20)
        for line, following in itertools.pairwise(lines):
            assert sheets._width(line, 8.0, False) <= 1.0
            assert sheets._width(f"{line} {following.split()[0]}", 8.0, False) > 1.0

    def test_what_the_font_lacks_or_xml_forbids_becomes_a_box(self) -> None:
        assert sheets.plain("stop\n\tsign  \x00\x07 止 é ü ß λ") == "stop sign □□ □ é ü ß λ"
        title = "止まれ \x00 \ud800 end"
        sheet = sheets.of_triplets(title, [Triplet(title, image(), {"none": maps("shap", 0)})])
        for form in FORMS:
            assert sheets.render(sheet, form)
        assert svg_texts(sheets.render(sheet, "svg"))[0] == "□□□ □ □ end"
