"""The page Trade-off in a real browser: a click on a point, its shared link, and the whole page on a phone."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import presets, tables
from tier.store import Store

View = Callable[..., Page]


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("compared")
    synthetic.fill(Store(root), presets.get("signs"))
    synthetic.add_rivals(Store(root), presets.get("signs"))
    return f"{serve(root)}/tradeoff"


def place(page: Page, text: str) -> tuple[float, float]:
    """Where a point of the first chart lies on the screen, from its text."""
    x, y = page.locator(".stPlotlyChart .js-plotly-plot").first.evaluate(
        """(plot, text) => {
            const layout = plot._fullLayout, frame = plot.getBoundingClientRect();
            for (const trace of plot._fullData) {
                const i = (trace.customdata || []).findIndex(row => row[0] === text);
                if (i >= 0) return [frame.left + layout._size.l + layout.xaxis.c2p(trace.x[i]),
                                    frame.top + layout._size.t + layout.yaxis.c2p(trace.y[i])];
            }
        }""",
        text,
    )
    return x, y


@pytest.mark.slow
def test_a_click_on_a_point_shows_it_and_the_link_reopens_it(url: str, view: View) -> None:
    page = view(url)
    page.wait_for_selector(".stPlotlyChart .main-svg")
    page.locator(".stPlotlyChart").first.scroll_into_view_if_needed()
    one = presets.get("signs").run("ensemble_partition", 2)
    wanted = tables.describe(tables.run("", one, {}))
    x, y = place(page, wanted)
    page.mouse.move(x, y)
    page.wait_for_timeout(300)  # plotly clicks on what it hovers over
    page.mouse.click(x, y)
    page.get_by_text(f"ring: {wanted}").wait_for()
    assert "run=Ensemble" in page.url
    again = view(page.url)
    again.get_by_text(f"ring: {wanted}").wait_for()
    assert again.get_by_text(wanted.partition(", ")[2]).first.is_visible()


@pytest.mark.parametrize("measure", ["Audit+or+gap+attack", "Best+attack%2C+AUC"])
def test_a_narrow_window_keeps_everything_inside(url: str, view: View, measure: str) -> None:
    page = view(f"{url}?leak={measure}", width=420)
    page.wait_for_selector(".stPlotlyChart .main-svg")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 421
    clipped = page.eval_on_selector_all(
        ".stPlotlyChart",
        """charts => charts.flatMap(chart => [...chart.querySelectorAll('.annotation-text')]
            .filter(e => e.getBoundingClientRect().right > chart.getBoundingClientRect().right + 1
                      || e.getBoundingClientRect().left < chart.getBoundingClientRect().left - 1)
            .map(e => e.textContent))""",
    )
    assert not clipped
