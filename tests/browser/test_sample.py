"""The single-sample inspector in a real browser: a shared link, the level slider, the keyboard, the answer."""

import re
import shutil
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page

from tests import clock
from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import presets, tables
from tier.config import Inspect
from tier.store import Store

View = Callable[..., Page]
ROWS = np.arange(2 * synthetic.IMAGES) * 7 + 3
CARDS = tables.deck(pd.DataFrame({"index": ROWS}))
CURSORS = """() => [...document.querySelectorAll('.js-plotly-plot')].slice(0, 2)
    .map(chart => chart.layout.shapes.map(shape => shape.x0))"""


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("sampled")
    store, preset = Store(root), presets.get("signs")
    synthetic.fill(store, preset)
    for stage in ("gallery", "attack", "battery"):  # so that the masks are those of the images inspected below, and
        shutil.rmtree(root / stage)  # no chart is another page's
    preset = synthetic.pinned(store, preset)
    for model in ("none", "tier_full"):
        for number in range(1, 5):
            synthetic.add_inspect(store, preset.run(model), Inspect(row=int(CARDS[number - 1])))
    return serve(root)


@pytest.fixture(scope="module")
def kept(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the maps that the page Explanations shows."""
    root = tmp_path_factory.mktemp("kept")
    synthetic.fill(Store(root), presets.get("signs"))
    return serve(root)


def masked(page: Page, percent: int) -> list[str]:
    """The sources of both models' large masked pictures at a level."""
    found = page.locator(f'img[alt*="with {percent} % of the pixels removed, MoRF"]')
    found.nth(1).wait_for()
    return [str(found.nth(i).get_attribute("src")) for i in range(found.count())]


def asked(page: Page, name: str) -> list[str]:
    return parse_qs(urlsplit(page.url).query).get(name, [])


@pytest.mark.timed
def test_a_shared_link_opens_and_the_slider_moves_picture_and_cursor_together(
    serve: Serve, url: str, view: View
) -> None:
    def moved() -> float:
        page = view(f"{serve.anew(url)}/sample?sample=2&level=0.5")
        page.wait_for_selector(".stPlotlyChart .main-svg")
        assert "Image 2" in page.inner_text("body")
        before = masked(page, 50)
        assert page.evaluate(CURSORS) == [[0.5, 0.5], [0.5, 0.5]]
        page.get_by_role("slider", name="Share of pixels removed").press("ArrowRight")
        began = time.monotonic()
        after = masked(page, 60)
        page.wait_for_function(f"(wanted) => JSON.stringify(({CURSORS})()) === wanted", arg="[[0.6,0.6],[0.6,0.6]]")
        seconds = time.monotonic() - began
        assert len(before) == len(after) == 2
        assert not set(before) & set(after)
        assert asked(page, "level") == ["0.6"]
        addresses.append(page.url)
        return seconds

    addresses: list[str] = []
    clock.within(2.0, moved)
    again = view(addresses[-1])
    assert masked(again, 60) and again.evaluate(CURSORS) == [[0.6, 0.6], [0.6, 0.6]]


def test_membership_shows_only_once_it_is_revealed(url: str, view: View) -> None:
    page = view(f"{url}/sample?sample=3")
    page.get_by_text("Was the model trained on this image?", exact=True).wait_for()
    assert "This image is" not in page.inner_text("body")
    page.get_by_text("Reveal membership").click()
    member = int(CARDS[2]) in ROWS[: synthetic.IMAGES]
    page.get_by_text("the model was trained on it" if member else "the model never saw it").wait_for()
    assert asked(page, "reveal") == ["true"]


def test_the_keyboard_walks_and_guesses(url: str, view: View) -> None:
    page = view(f"{url}/sample?sample=2")
    page.keyboard.press("n")
    page.get_by_text("Image 3", exact=True).wait_for()
    settle(page)
    assert asked(page, "sample") == ["3"]
    page.keyboard.press("p")
    page.get_by_text("Image 2", exact=True).wait_for()
    settle(page)
    page.keyboard.press("m")
    page.get_by_text(re.compile(r"You: [01] of 1 right")).wait_for()


def test_the_models_stand_below_one_another_in_a_narrow_window(url: str, view: View) -> None:
    page = view(f"{url}/sample?sample=2", width=420)
    page.wait_for_selector(".stPlotlyChart .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 421
    first, second = (page.locator('img[alt*="outlined"]').nth(i).bounding_box() for i in (0, 1))
    assert first is not None and second is not None
    assert first["y"] + first["height"] < second["y"]


def test_labels_of_the_small_charts_neither_overlap_nor_leave_them(url: str, view: View) -> None:
    page = view(f"{url}/sample?sample=2")
    page.wait_for_selector(".stPlotlyChart .main-svg")
    charts = page.eval_on_selector_all(
        ".stPlotlyChart",
        """charts => charts.map(chart => {
            const frame = chart.getBoundingClientRect();
            return [...chart.querySelectorAll('.annotation-text')].map(e => {
                const b = e.getBoundingClientRect(), [x, y] = [frame.left, frame.top];
                return [b.left - x, b.top - y, b.right - x, b.bottom - y, frame.width];
            });
        })""",
    )
    assert len(charts) == 4
    for boxes in charts:
        for i, (left, top, right, bottom, width) in enumerate(boxes):
            assert left >= 0 and right <= width + 1
            for left_2, top_2, right_2, bottom_2, _ in boxes[i + 1 :]:
                assert right <= left_2 or right_2 <= left or bottom <= top_2 + 3 or bottom_2 <= top + 3


def shown(page: Page) -> str:
    """Which image the page shows, and under which explainer."""
    alt = str(page.locator('img[alt^="Undefended: "][alt*=" map of image"]').first.get_attribute("alt"))
    return alt.split(" for the class")[0]


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True], ids=["clicked", "linked"])
def test_a_triplets_link_to_sample_keeps_image_and_explainer(kept: str, view: View, linked: bool) -> None:
    page = view(f"{kept}/explanations?explainer=LIME" if linked else f"{kept}/explanations")
    if not linked:
        page.get_by_text("LIME", exact=True).click()
        settle(page)
    page.locator(".st-key-triplets").get_by_role("link", name="Sample").nth(2).click()
    page.wait_for_url("**/sample*")
    settle(page)
    (number,) = asked(page, "sample")
    assert number != "1"
    assert asked(page, "explainer") == ["LIME"]
    assert not asked(page, "row")
    assert shown(page) == f"Undefended: LIME map of image {number}"
    again = view(page.url)
    assert shown(again) == f"Undefended: LIME map of image {number}"
    assert asked(again, "sample") == [number]
    for _ in range(9):
        page.go_back()
        settle(page)
        if "/sample" not in page.url:
            break
        page.get_by_text(f"Image {number}", exact=True).wait_for()  # never another image on the way back
    assert "/explanations" in page.url


@pytest.mark.slow
def test_a_link_to_a_row_becomes_one_to_its_number(kept: str, view: View) -> None:
    page = view(f"{kept}/sample?row={CARDS[3]}&explainer=LIME")
    assert asked(page, "sample") == ["4"]
    assert not asked(page, "row")
    assert shown(view(page.url)) == "Undefended: LIME map of image 4"


def test_three_models_fit_beside_one_another(url: str, view: View) -> None:
    page = view(f"{url}/sample?sample=2&models=Undefended&models=TIER+Full&models=Second+seed")
    page.wait_for_selector(".stPlotlyChart .main-svg")
    charts = page.eval_on_selector_all(
        ".stPlotlyChart",
        """charts => charts.map(chart => {
            const frame = chart.getBoundingClientRect();
            const inside = [...chart.querySelectorAll('.annotation-text, .xtick text')].every(e => {
                const b = e.getBoundingClientRect();
                return b.left >= frame.left - 1 && b.right <= frame.right + 1;
            });
            const upright = [...chart.querySelectorAll('.xtick text')]
                .every(e => !/rotate\\((?!0)/.test(e.getAttribute('transform') || ''));
            const plot = chart.querySelector('.nsewdrag').getBoundingClientRect().width / frame.width;
            return [inside, upright, plot];
        })""",
    )
    assert len(charts) == 6
    for inside, upright, plot in charts:
        assert inside and upright
        assert plot > 0.75
    strip = page.locator('img[alt*="outlined"]').first.bounding_box()
    assert strip is not None
    assert strip["width"] / 5 > 40  # pixels of one of ten levels, in two lines
