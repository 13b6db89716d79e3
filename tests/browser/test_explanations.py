"""The page Explanations in a real browser: triplets, a jump from the averages, the sheet saved in its three forms."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page

from tests import clock
from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import experiment, presets, tables
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
    assert "sheet=Image+3" in page.url
    images = pd.DataFrame({"index": synthetic.ROWS, "member": np.arange(len(synthetic.ROWS)) < synthetic.IMAGES})
    row = tables.deck(images, kept=experiment.GALLERY)[2]
    for form, start in (("PNG", b"\x89PNG\r\n"), ("SVG", b"<?xml"), ("PDF", b"%PDF-")):
        with page.expect_download() as started:
            page.get_by_role("button", name=form, exact=True).click()
        assert started.value.suggested_filename == f"explanations_signs_row_{row}.{form.lower()}"
        content = Path(started.value.path()).read_bytes()
        assert content.startswith(start)
        assert len(content) > 10_000


@pytest.mark.slow
def test_the_worst_triplet_is_one_click_from_the_averages(url: str, view: View) -> None:
    page = view(f"{url}?view=On+average")
    page.get_by_role("button", name=re.compile("^.*Worst")).click()
    page.get_by_text("least alike first by the SSIM").wait_for()
    settle(page)
    assert "sort=Least" in page.url
    assert "least alike first" in view(page.url).inner_text("body")  # the link reopens it


def test_the_filter_names_itself_while_it_stays_open(url: str, view: View) -> None:
    page = view(url)
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("Non-members", exact=True).click()
    page.get_by_role("button", name="Filter: non-members").wait_for()
    assert page.get_by_text("Predictions", exact=True).is_visible()
    settle(page)
    assert "group=Non-members" in page.url


def test_what_does_not_act_on_the_sheet_is_off_there_and_comes_back(url: str, view: View) -> None:
    page = view(f"{url}?explainer=LIME&group=Members")
    page.get_by_role("tab", name="Seven explainers").click()
    page.get_by_role("img", name=re.compile("one row each for SmoothGrad")).wait_for()
    settle(page)
    assert page.get_by_role("button", name="Filter").is_disabled()
    page.get_by_role("tab", name="Triplets").click()
    page.get_by_role("img", name=re.compile("LIME map of TIER Full")).first.wait_for()
    settle(page)
    assert page.get_by_role("button", name="Filter: members").is_enabled()
    assert "explainer=LIME" in page.url
    assert "sheet=" not in page.url


@pytest.mark.timed
def test_another_explainer_is_drawn_within_two_seconds(serve: Serve, url: str, view: View) -> None:
    def chosen() -> float:
        page = view(serve.anew(url))
        picture = page.get_by_role("img", name=re.compile("LIME map of TIER Full"))
        assert not picture.count()
        began = time.monotonic()
        page.get_by_text("LIME", exact=True).click()
        picture.first.wait_for()
        return time.monotonic() - began

    clock.within(2.0, chosen)


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
