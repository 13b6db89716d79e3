"""The page Attack in a real browser: the threshold slider with its counts, a shared link, every tab on a phone."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import presets
from tier.store import Store

View = Callable[..., Page]
TABS = ("Result", "All+explainers", "What+it+looks+at", "Other+attacks", "Threshold")


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("attacked")
    synthetic.fill(Store(root), presets.get("signs"))
    return f"{serve(root)}/attack"


def accused(page: Page) -> int:
    """How many of the hundred little figures the attack calls members: bodies and heads in the model's colour."""
    found = (
        page.locator(".stPlotlyChart")
        .first.locator(".scatterlayer .point")
        .evaluate_all("""all => all.filter(e => [e.style.fill, e.style.stroke].includes('rgb(213, 94, 0)')).length""")
    )
    return int(found) // 2


def test_moving_the_threshold_changes_counts_figures_and_address(url: str, view: View) -> None:
    page = view(f"{url}?view=Threshold")
    page.wait_for_selector(".stPlotlyChart .main-svg")
    said = page.get_by_text("members found,").first
    before, figures = said.inner_text(), accused(page)
    assert figures > 0
    slider = page.get_by_role("slider", name="Threshold (log odds)")
    began = time.monotonic()
    for _ in range(20):
        slider.press("ArrowRight")
    page.wait_for_function("text => !document.body.innerText.includes(text)", arg=before)
    assert time.monotonic() - began < 4.0  # twenty keys, of which the server answers the last at once
    settle(page)
    assert accused(page) < figures  # a higher threshold accuses fewer
    assert "threshold=1.05" in page.url
    again = view(page.url)
    again.wait_for_selector(".stPlotlyChart .main-svg")
    assert again.get_by_text("members found,").first.inner_text() == said.inner_text()
    page.get_by_role("button", name="Transferred").click()
    page.get_by_text(before).first.wait_for()


def test_another_explainer_is_drawn_within_two_seconds(url: str, view: View) -> None:
    page = view(url)
    page.wait_for_selector(".stPlotlyChart .main-svg")
    began = time.monotonic()
    page.get_by_text("SHAP", exact=True).click()
    page.get_by_text("explainer: SHAP").first.wait_for()
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("tab", TABS)
def test_a_narrow_window_keeps_everything_inside(url: str, view: View, tab: str) -> None:
    page = view(f"{url}?view={tab}", width=420)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 421
    clipped = page.eval_on_selector_all(
        ".stPlotlyChart",
        """charts => charts.flatMap(chart => [...chart.querySelectorAll('.annotation-text')]
            .filter(e => e.getBoundingClientRect().right > chart.getBoundingClientRect().right + 1)
            .map(e => e.textContent))""",
    )
    assert not clipped
