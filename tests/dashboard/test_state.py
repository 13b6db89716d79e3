"""Foreign text is made harmless before it is shown."""

import pytest

from dashboard import state


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "[x](javascript:y)", "**bold**", "`code`", ":red[x]", "![i](u)"]
)
def test_markup_does_not_survive(text: str) -> None:
    made = state.plain(text)
    assert not set("<>[]*`!") & set(made)


def test_long_text_is_cut() -> None:
    assert len(state.plain("a" * 500)) == 40
    assert state.plain("lambda 3, beta 0.1 (50 %)") == "lambda 3, beta 0.1 (50 %)"
