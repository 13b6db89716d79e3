"""From slider to new curve on the real server and the real engine, over a refresh of the page."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Serve, next_lambda, settle

MINUTES = 60_000.0


@pytest.mark.timeout(600)
def test_a_slider_trains_a_new_point_and_its_curve_survives_a_refresh(
    serve: Serve, view: Callable[..., Page], tmp_path: Path
) -> None:
    page = view(f"{serve(tmp_path / 'store')}/train?epochs=12")
    page.get_by_text("This point has not been trained yet").wait_for()
    page.get_by_role("slider", name="Lambda").press("ArrowRight")
    page.get_by_role("button", name="Train").last.click()
    page.get_by_text(re.compile(r"Epoch \d+ of 12")).wait_for(timeout=3 * MINUTES)
    assert "me=" in page.url
    page.reload()
    settle(page)
    page.get_by_role("button", name="Cancel").wait_for()  # the address still knows whose run it is
    page.get_by_text("Gap attack right").wait_for(timeout=5 * MINUTES)
    page.get_by_text("After epoch 12 the model is right for").wait_for()
    assert page.locator(".stPlotlyChart .main-svg").count()
    assert f"lambda={next_lambda()[1]}" in page.url
