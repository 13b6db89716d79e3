"""The view's state lives in the address: every choice is a widget bound to a query parameter, so links reopen the view.

Streamlit drops what a widget cannot take from the address without a word; the functions here check it first and leave
a note, which the page shows. What a widget returns is checked once more: its own limits hold in the browser only.
"""

import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import streamlit as st
from streamlit.errors import StreamlitAPIException

T = TypeVar("T")
BIND: Final = "query-params"
_REQUESTER = re.compile(r"[0-9a-f]{12}")
_SHOWN = 40  # characters of a foreign value that a note repeats


def begin() -> None:
    """Forget the notes of the previous run."""
    st.session_state["notes"] = []


def end() -> None:
    """Remember, after a session's first run, the choices that its link made (`_recall`)."""
    if "linked" not in st.session_state:
        made = {key: st.query_params.get_all(key) for key in st.query_params if key in st.session_state}
        st.session_state["linked"] = {key: (st.session_state[key], text) for key, text in made.items()}


def _recall(key: str, valid: Callable[[str], bool]) -> None:
    """Give a link's choice back to another page that knows it, too; what that page would refuse is forgotten.

    Streamlit carries bound choices from page to page, but forgets those of the link that opened the session when the
    reader's first step leads to another page.
    """
    value, text = st.session_state.get("linked", {}).pop(key, (None, None))
    if text is None or not all(map(valid, text)):
        return
    if key not in st.query_params and st.session_state.get(key, value) == value:
        st.session_state[key] = value
        put(key, text)


def put(key: str, text: str | list[str]) -> None:
    """Write a choice made by the program into the address, before its widget is drawn for the first time."""
    with contextlib.suppress(StreamlitAPIException):  # drawn in the run before: Streamlit writes it itself
        st.query_params[key] = text


def note(text: str) -> None:
    """Leave a note for the reader of this page; shown once, at its top."""
    notes = st.session_state.setdefault("notes", [])
    if text not in notes:
        notes.append(text)


def notes() -> list[str]:
    """The notes left so far in this run."""
    return list(st.session_state.get("notes", []))


def plain(text: object, limit: int = _SHOWN) -> str:
    """Foreign text made harmless for Markdown: word characters and simple punctuation only, shortened."""
    kept = re.sub(r"[^\w .,:;+\-/=()%']", "?", str(text))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def _check(key: str, label: str, valid: Callable[[str], bool], instead: str, several: bool = False) -> None:
    """Leave a note when the address holds a value for `key` that the widget is going to refuse.

    `several`: the widget takes any number of values; none is an empty one, which is what deselecting all leaves.
    """
    _recall(key, valid)
    given = st.query_params.get_all(key)
    if len(given) > 1 and not several:
        note(f"The link names {label.lower()} {len(given)} times; there is only one, as shown below.")
        return
    for value in given:
        if not valid(value) and not (several and value == ""):
            note(f"The link asks for {label.lower()} '{plain(value)}', which does not exist here; showing {instead}.")


def _named(options: Mapping[T, str] | Sequence[T]) -> dict[T, str]:
    """Options with the names that page and address show."""
    return dict(options) if isinstance(options, Mapping) else {option: str(option) for option in options}


def choose(
    label: str, options: Mapping[T, str] | Sequence[T], *, key: str, default: T, help: str | None = None,
    disabled: bool = False,
) -> T:  # fmt: skip
    """One of a few options, all visible."""
    names = _named(options)
    _check(key, label, lambda value: value in names.values(), names[default])
    chosen = st.segmented_control(
        label, list(names), default=default, format_func=names.__getitem__, key=key, help=help, required=True,
        bind=BIND, disabled=disabled,
    )  # fmt: skip
    return chosen if chosen in names else default


def select(label: str, options: Mapping[T, str] | Sequence[T], *, key: str, help: str | None = None) -> T:
    """One of many options, in a drop-down; the first is the default."""
    names = _named(options)
    first = next(iter(names))
    _check(key, label, lambda value: value in names.values(), names[first])
    chosen = st.selectbox(label, list(names), format_func=names.__getitem__, key=key, help=help, bind=BIND)
    return chosen if chosen in names else first


def choose_many(
    label: str, options: Mapping[T, str], *, key: str, default: Sequence[T], help: str | None = None
) -> list[T]:
    """Any of a few options, all visible; the default when none is left, so that a chart never stands empty."""
    usual = ", ".join(options[value] for value in default)
    _check(key, label, lambda value: value in options.values(), usual, several=True)
    chosen = st.pills(
        label, list(options), selection_mode="multi", default=list(default), format_func=options.__getitem__, key=key,
        help=help, bind=BIND,
    )  # fmt: skip
    kept = [value for value in options if value in chosen]
    if not kept:
        note(f"Nothing is selected under {label.lower()}; showing {usual}.")
    return kept or list(default)


def stop(label: str, options: Sequence[float], *, key: str, default: float, help: str | None = None) -> float:
    """A slider over a few numbers."""
    names = {option: f"{option:g}" for option in options}
    _check(key, label, lambda value: value in names.values(), names[default])
    chosen: float = st.select_slider(
        label, tuple(options), value=default, format_func="{:g}".format, key=key, help=help, bind=BIND
    )
    return chosen if chosen in names else default


def number(
    label: str, low: float, high: float, *, key: str, default: float, step: float, help: str | None = None
) -> float:
    """A number between two limits."""
    _check(key, label, lambda value: _between(value, low, high), f"{default:g}")
    chosen = st.number_input(label, low, high, default, step, format="%.2f", key=key, help=help, bind=BIND)
    return min(max(chosen, low), high)


def whole(label: str, low: int, high: int, *, key: str, default: int, step: int = 1, help: str | None = None) -> int:
    """A whole number between two limits."""
    asked = st.query_params.get(key, "")
    instead = int(float(asked)) if _between(asked, low, high) else default  # Streamlit cuts a fraction off
    _check(key, label, lambda value: _between(value, low, high) and float(value).is_integer(), f"{instead}")
    chosen = st.number_input(label, low, high, default, step, key=key, help=help, bind=BIND)
    return min(max(chosen, low), high)


def _between(value: str, low: float, high: float) -> bool:
    try:
        return low <= float(value) <= high
    except ValueError:
        return False


def switch(label: str, *, key: str, help: str | None = None) -> bool:
    """An on/off choice, off at first."""
    _check(key, label, lambda value: value.lower() in ("true", "false"), "off")
    return st.toggle(label, key=key, help=help, bind=BIND)


def tabs(labels: Sequence[str], *, key: str) -> dict[str, Any]:
    """Tabs by label, the first one open at first; draw only in the one whose `open` is true."""
    _check(key, "the tab", lambda value: value in labels, labels[0])
    return dict(zip(labels, st.tabs(labels, key=key, bind=BIND), strict=True))


def ready(key: str, value: object) -> None:
    """Prepare a choice whose widget is not on screen, so that a button may make it and the address follows.

    Streamlit writes a value that is set by the program to the address only where the run before knew the choice.
    """
    if key not in st.session_state and key not in st.query_params:
        st.session_state[key] = value


def peek(key: str, options: Mapping[T, str] | Sequence[T], default: T) -> T:
    """A choice before its widget is drawn: as the session knows it, else as the address names it, else the default."""
    names = _named(options)
    _recall(key, lambda text: text in names.values())
    if key in st.session_state:
        known = st.session_state[key]
        return known if known in names else default
    return next((option for option, name in names.items() if name == st.query_params.get(key)), default)


def absent(*keys: str) -> None:
    """Take choices out of the address whose widgets are not drawn: nothing would check or follow them."""
    for key in keys:
        if key in st.query_params:
            with contextlib.suppress(StreamlitAPIException):  # drawn in the run before: Streamlit takes it out itself
                del st.query_params[key]


def slide(
    label: str, low: float, high: float, *, key: str, default: float, step: float, help: str | None = None,
    disabled: bool = False,
) -> float:  # fmt: skip
    """A number between two limits, on a slider."""
    _check(key, label, lambda value: _between(value, low, high), f"{default:g}")
    chosen: float = st.slider(label, low, high, default, step, key=key, help=help, bind=BIND, disabled=disabled)
    return min(max(chosen, low), high)


def page(count: int, *, key: str) -> int:
    """The page of a list that is shown, from 1 to `count`; the last one when the list has become shorter."""
    if key in st.session_state:
        if st.session_state[key] > count:
            st.session_state[key] = count
    else:
        _check(key, "page", lambda value: value.isdecimal() and _between(value, 1, count), "the first page")
    return min(max(st.pagination(count, key=key, bind=BIND), 1), count)


def requester() -> str:
    """Who asks for runs: this session, or the one before a refresh, named in the address while a run goes on."""
    if "requester" not in st.session_state:
        named = st.query_params.get("me", "")
        st.session_state["requester"] = named if _REQUESTER.fullmatch(named) else secrets.token_hex(6)
    return str(st.session_state["requester"])


def visitor() -> str:
    """Who asks for what a page needs without a click: this session alone; it never stands in an address.

    So nobody who opens a copied link becomes the same requester, whose leaving would end somebody else's run.
    """
    if "visitor" not in st.session_state:
        st.session_state["visitor"] = secrets.token_hex(6)
    return str(st.session_state["visitor"])


def remember_requester(waiting: bool) -> None:
    """Keep the requester in the address while its runs go on, so that it can still cancel them after a refresh."""
    if waiting:
        st.query_params["me"] = requester()
    elif "me" in st.query_params:
        del st.query_params["me"]
