"""Foreign text is made harmless before it is shown."""

import pytest
from streamlit.testing.v1 import AppTest

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


def _number() -> None:
    from dashboard import state

    state.begin()
    state.whole("Image", 1, 9, key="image", default=2)


@pytest.mark.parametrize(
    "value, noted, shown", [("3.5", True, 3), ("10", True, 2), ("nan", True, 2), ("x", True, 2), ("3", False, 3)]
)
def test_a_number_that_is_not_whole_is_noted_with_what_is_shown(value: str, noted: bool, shown: int) -> None:
    test = AppTest.from_function(_number)
    test.query_params["image"] = value
    test.run()
    notes = test.session_state["notes"]
    assert [note.endswith(f"showing {shown}.") for note in notes] == [True] * noted
    assert test.number_input(key="image").value == shown


def test_a_visitor_is_nobody_that_a_link_names() -> None:
    def page() -> None:
        import streamlit as st

        from dashboard import state

        st.session_state["ids"] = [state.requester(), state.visitor(), state.visitor()]

    test = AppTest.from_function(page)
    test.query_params["me"] = "a" * 12
    test.run()
    requester, visitor, again = test.session_state["ids"]
    assert requester == "a" * 12 != visitor == again
    assert test.query_params.get("me") in ("a" * 12, ["a" * 12])


def _parts() -> None:
    import streamlit as st

    from dashboard import state

    state.begin()
    st.session_state["seen"] = state.peek("view", ("A", "B"), "A")
    state.tabs(("A", "B"), key="view")
    state.absent("gone")


@pytest.mark.parametrize("value, seen, noted", [("B", "B", 0), ("C", "A", 1)])
def test_a_choice_is_known_before_its_widget_is_drawn(value: str, seen: str, noted: int) -> None:
    test = AppTest.from_function(_parts)
    test.query_params["view"] = value
    test.run()
    assert test.session_state["seen"] == seen
    assert len(test.session_state["notes"]) == noted


def test_a_choice_without_a_widget_leaves_the_address() -> None:
    test = AppTest.from_function(_parts)
    test.query_params["gone"] = "zz"
    assert "gone" not in test.run().query_params


@pytest.mark.parametrize("text, seen", [("B", "B"), ("All explainers", "A")])
def test_a_links_choice_is_given_to_another_page_only_where_that_page_knows_it(text: str, seen: str) -> None:
    """Two pages have a parameter of one name with other values; the reader of the second made no wrong choice."""
    test = AppTest.from_function(_parts)
    test.session_state["linked"] = {"view": (text, [text])}
    test.run()
    assert test.session_state["seen"] == seen
    assert not test.session_state["notes"]


def _choices() -> None:
    from dashboard import state

    state.begin()
    state.slide("Threshold", 0.0, 1.0, key="threshold", default=0.5, step=0.1)
    state.choose_many("Models", {"a": "A", "b": "B"}, key="models", default=["a"])


def test_a_choice_named_twice_is_noted() -> None:
    test = AppTest.from_function(_choices)
    test.query_params["threshold"] = ["0.1", "0.2"]
    test.query_params["models"] = ["A", "B"]  # of these there may be several
    test.run()
    assert test.session_state["notes"] == ["The link names threshold 2 times; there is only one, as shown below."]


def test_deselecting_all_is_not_blamed_on_a_link() -> None:
    test = AppTest.from_function(_choices)
    test.query_params["models"] = ""  # what the browser writes then
    test.run()
    assert not [note for note in test.session_state["notes"] if "link" in note]
