"""The page Quality in a real browser: complete in both themes, a shared link, and the whole page on a phone."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import presets
from tier.store import Store

View = Callable[..., Page]
CLIPPED = """charts => charts.flatMap(chart => [...chart.querySelectorAll('.annotation-text')]
    .filter(e => e.getBoundingClientRect().right > chart.getBoundingClientRect().right + 1
              || e.getBoundingClientRect().left < chart.getBoundingClientRect().left - 1)
    .map(e => e.textContent))"""


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("judged")
    synthetic.fill(Store(root), presets.get("signs"))
    return f"{serve(root)}/quality"


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "width"), [("light", 420), ("dark", 1440)])
def test_a_link_opens_a_complete_page(url: str, view: View, theme: str, width: int) -> None:
    page = view(f"{url}?metric=Sufficiency&explainer=SHAP&judged=Undefended&judged=TIER+Full", theme, width)
    page.wait_for_selector(".stPlotlyChart .main-svg")
    settle(page)
    assert page.locator('[data-testid="stException"]').count() == 0
    assert page.locator(".stPlotlyChart .main-svg").count() >= 5
    assert page.get_by_text("SHAP: what the threshold does").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert not page.eval_on_selector_all(".stPlotlyChart", CLIPPED)
    assert page.locator(".st-key-triplets img").count() == 6 * 3
    # a choice goes into the address
    page.get_by_role("radio", name="Grad-CAM", exact=True).click()
    page.get_by_text("Grad-CAM: what the threshold does").wait_for()
    assert "explainer=Grad-CAM" in page.url
