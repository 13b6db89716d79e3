"""The page Attack in a real browser: the threshold slider with its counts, a shared link, every tab on a phone."""

import re
import shutil
import time
from collections.abc import Callable
from unittest import mock

import pytest
from playwright.sync_api import Page

from tests import clock
from tests.browser.conftest import Serve, settle
from tests.dashboard import synthetic
from tier import experiment, presets
from tier.store import Store

View = Callable[..., Page]
TABS = ("Result", "All+explainers", "What+it+looks+at", "Other+attacks", "Threshold")


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("attacked")
    preset = presets.get("signs")
    synthetic.fill(Store(root), preset)
    one = synthetic.pinned(Store(root), preset).run("tier_full").set({"explain.name": "lime", "attack.shadow": "same"})
    shutil.rmtree(root / "attack" / experiment.key("attack", one))
    made = synthetic.attack_leaf
    with mock.patch.object(synthetic, "attack_leaf", lambda scores, _: made(scores, 0.31)):
        synthetic.add_attack(Store(root), one)  # whose threshold is not that of the others
    return f"{serve(root)}/attack"


def accused(page: Page) -> int:
    """How many of the hundred little figures the attack calls members: bodies and heads in the model's colour."""
    return len(sizes(page)[True]) // 2


def sizes(page: Page) -> dict[bool, list[float]]:
    """The heights in pixels of the bodies and heads that are in the model's colour, and of the others."""
    found = (
        page.locator(".stPlotlyChart")
        .first.locator(".scatterlayer .point")
        .evaluate_all(
            """all => all.map(e => [[e.style.fill, e.style.stroke].includes('rgb(213, 94, 0)'),
                                    e.getBoundingClientRect().height])"""
        )
    )
    return {kind: [height for called, height in found if called == kind] for kind in (True, False)}


def test_who_is_called_a_member_is_larger(url: str, view: View) -> None:
    page = view(f"{url}?view=Threshold")
    page.wait_for_function("document.querySelectorAll('.stPlotlyChart')[0].querySelectorAll('.point').length == 200")
    drawn = sizes(page)
    for place in (0, -1):  # of heads and of bodies, which differ in height
        assert sorted(drawn[False])[place] < 0.8 * sorted(drawn[True])[place]


@pytest.mark.timed
def test_moving_the_threshold_changes_counts_figures_and_address(url: str, view: View) -> None:
    page = view(f"{url}?view=Threshold")
    page.wait_for_selector(".stPlotlyChart .main-svg")
    said = page.get_by_text("members found,").first
    before, figures = said.inner_text(), accused(page)
    assert figures > 0
    slider = page.get_by_role("slider", name="Threshold (log odds)")

    def answered(keys: int) -> None:
        """Press the key so often, and wait for what belongs to the stop where the slider then stands."""
        for _ in range(keys):
            slider.press("ArrowRight")
        at = float(slider.get_attribute("aria-valuetext") or "nan")
        page.wait_for_function("text => document.body.innerText.includes(text)", arg=f"threshold: {at:+.2f} (")

    def from_the_start(keys: int) -> float:
        page.get_by_role("button", name="Transferred").click()
        settle(page)
        return clock.took(lambda: answered(keys))

    clock.within(2.0, lambda: from_the_start(1))
    clock.within(4.0, lambda: from_the_start(20))  # the server keeps up with the keys, or leaves some out
    settle(page)
    assert accused(page) < figures  # a higher threshold accuses fewer
    moved = slider.get_attribute("aria-valuetext") or ""
    assert re.search(r"[?&]threshold=-?[\d.]+(&|$)", page.url)
    again = view(page.url)
    again.wait_for_selector(".stPlotlyChart .main-svg")
    assert again.get_by_text("members found,").first.inner_text() == said.inner_text()
    assert again.get_by_role("slider", name="Threshold (log odds)").get_attribute("aria-valuetext") == moved
    page.get_by_role("button", name="Transferred").click()
    page.get_by_text(before).first.wait_for()


def shown(page: Page) -> tuple[str, str]:
    """Where the slider stands, and what is counted there."""
    page.wait_for_selector(".stPlotlyChart .main-svg")
    slider = page.get_by_role("slider", name="Threshold (log odds)")
    return slider.get_attribute("aria-valuetext") or "", page.get_by_text("members found,").first.inner_text()


@pytest.mark.slow
def test_another_attack_brings_its_own_threshold_and_the_address_reopens_it(url: str, view: View) -> None:
    page = view(f"{url}?view=Threshold&explainer=LIME")
    first, _ = shown(page)
    page.get_by_text("TIER Full, adaptive", exact=True).click()
    settle(page)
    own = page.get_by_role("button", name="Transferred").inner_text().split()[-1]
    at, counts = shown(page)
    assert float(at) == float(own) != float(first)
    assert shown(view(page.url)) == (at, counts)
    slider = page.get_by_role("slider", name="Threshold (log odds)")
    for _ in range(5):
        slider.press("ArrowLeft")
    settle(page)
    page.get_by_text("Undefended, transfer", exact=True).click()  # where the slider was moved, it stays nearby
    settle(page)
    at, counts = shown(page)
    assert float(at) != float(first) and "threshold=" in page.url
    assert shown(view(page.url)) == (at, counts)


@pytest.mark.timed
def test_another_explainer_is_drawn_within_two_seconds(serve: Serve, url: str, view: View) -> None:
    def chosen() -> float:
        page = view(serve.anew(url))
        page.wait_for_selector(".stPlotlyChart .main-svg")
        assert not page.get_by_text("explainer: SHAP").count()
        began = time.monotonic()
        page.get_by_text("SHAP", exact=True).click()
        page.get_by_text("explainer: SHAP").first.wait_for()
        return time.monotonic() - began

    clock.within(2.0, chosen)


CLIPPED = """charts => charts.flatMap(chart => {
    const frame = chart.getBoundingClientRect()
    const words = '.annotation-text, .gtitle, .xtitle, .ytitle, .xtick text, .ytick text'
    return [...chart.querySelectorAll(words)].map(e => [e.textContent, e.getBoundingClientRect()])
        .filter(([text, box]) => box.width && (box.right > frame.right + 1 || box.left < frame.left - 1))
        .map(([text]) => text)})"""


@pytest.mark.parametrize("tab", TABS)
def test_a_narrow_window_keeps_everything_inside(url: str, view: View, tab: str) -> None:
    page = view(f"{url}?view={tab}", width=420)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 421
    assert not page.eval_on_selector_all(".stPlotlyChart", CLIPPED)


@pytest.mark.parametrize("width", [1440, 1200, 420])
def test_reasons_beside_one_another_are_not_clipped(url: str, view: View, width: int) -> None:
    address = url.replace("/attack", "/sample")
    page = view(f"{address}?models=Undefended&models=TIER+Full&models=TIER+Reg-only", width=width)
    page.get_by_text("What moved the score").nth(2).wait_for()
    charts = page.locator(".stPlotlyChart", has_text="What moved the score")
    assert charts.count() == 3
    assert not charts.evaluate_all(CLIPPED)
