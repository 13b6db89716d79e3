"""The page Explanations in a real browser: triplets, a jump from the averages, the sheet saved in its three forms."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import presets
from tier.store import Store

View = Callable[..., Page]


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("explained")
    synthetic.fill(Store(root), presets.get("signs"))
    return f"{serve(root)}/explanations"


def test_the_sheet_is_saved_as_png_svg_and_pdf(url: str, view: View) -> None:
    page = view(url)
    page.get_by_role("button", name="Explainers").nth(2).click()
    page.get_by_role("img", name=re.compile("one row each for SmoothGrad")).wait_for()
    settle(page)
    assert "view=Seven" in page.url
    assert "sheet=Row" in page.url
    row = synthetic.ROWS[2]
    for form, start in (("PNG", b"\x89PNG\r\n"), ("SVG", b"<?xml"), ("PDF", b"%PDF-")):
        with page.expect_download() as started:
            page.get_by_role("button", name=form, exact=True).click()
        assert started.value.suggested_filename == f"explanations_signs_row_{row}.{form.lower()}"
        content = Path(started.value.path()).read_bytes()
        assert content.startswith(start)
        assert len(content) > 10_000


def test_the_worst_triplet_is_one_click_from_the_averages(url: str, view: View) -> None:
    page = view(f"{url}?view=On+average")
    page.get_by_role("button", name=re.compile("^.*Worst")).click()
    page.get_by_text("least alike first by the SSIM").wait_for()
    settle(page)
    assert "sort=Least" in page.url
    assert "least alike first" in view(page.url).inner_text("body")  # the link reopens it


def test_another_explainer_is_drawn_within_two_seconds(url: str, view: View) -> None:
    page = view(url)
    began = time.monotonic()
    page.get_by_text("LIME", exact=True).click()
    page.get_by_role("img", name=re.compile("LIME map of TIER Full")).first.wait_for()
    assert time.monotonic() - began < 2.0


def test_pictures_are_named_and_unsmoothed(url: str, view: View) -> None:
    page = view(url)
    found = page.eval_on_selector_all(
        ".st-key-triplets img",
        """all => all.map(
            e => [e.alt, getComputedStyle(e).imageRendering, e.naturalWidth, e.getBoundingClientRect().width])""",
    )
    assert len(found) == 36
    for alt, rendering, natural, shown in found:
        assert alt
        assert rendering == "pixelated"
        assert natural == shown == 96  # whole pixels: 3 for each of the image's


@pytest.mark.parametrize("part", ["Triplets", "On+average", "Seven+explainers"])
def test_a_narrow_window_keeps_everything_inside(url: str, view: View, part: str) -> None:
    page = view(f"{url}?view={part}", width=420)
    assert page.evaluate("document.documentElement.scrollWidth") <= 421
    inside = page.eval_on_selector_all(
        "[data-testid='stMain'] img", "all => all.every(e => e.getBoundingClientRect().right <= innerWidth)"
    )
    assert inside
