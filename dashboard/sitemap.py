"""The pages in the order of the menu; a new page is one entry here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

PAGES = Path(__file__).resolve().parent.parent / "pages"

_ENTRIES: tuple[dict[str, Any], ...] = (
    {"file": "overview", "title": "Overview", "icon": ":material/home:", "default": True,
     "help": "What is at stake, the key figures, and a game: can you tell members from their curves?"},
    {"file": "trajectories", "title": "Trajectories", "icon": ":material/show_chart:",
     "help": "How the model's confidence falls when an explanation's pixels are removed, for members and non-members."},
    {"file": "divergence", "title": "KL divergence", "icon": ":material/ssid_chart:",
     "help": "How far the model's answer moves when pixels are removed, with tests in the form of the paper's tables."},
    {"file": "explanations", "title": "Explanations", "icon": ":material/imagesearch_roller:",
     "help": "Maps of the undefended and the defended model side by side, with scores beside honest controls."},
    {"file": "quality", "title": "Quality", "icon": ":material/straighten:",
     "help": "Whether maps are faithful to their model and point at the object, each score beside noise and edges."},
    {"file": "sample", "title": "Sample", "icon": ":material/search:",
     "help": "One image under the lens: maps, removal path, the attack's belief, and your guess; also your own image."},
    {"file": "attack", "title": "Attack", "icon": ":material/gavel:",
     "help": "An attack from outside on every model: what it finds, whether knowing the defense helps, other attacks."},
    {"file": "tradeoff", "title": "Trade-off", "icon": ":material/balance:",
     "help": "Accuracy against leak for every defense: is TIER worth its cost, or does something simpler do as well?"},
    {"file": "paper", "title": "Paper vs here", "icon": ":material/fact_check:",
     "help": "Every number of the paper's tables beside ours: what agrees, what does not, and under which conditions."},
    {"file": "train", "title": "Train", "icon": ":material/tune:",
     "help": "Move lambda and beta, train a new model, and see its accuracy and leak."},
    {"file": "runs", "title": "Runs", "icon": ":material/inventory_2:",
     "help": "Jobs, stored results, versions and downloads."},
)  # fmt: skip


def pages() -> list[Any]:
    """Streamlit's page objects, for `st.navigation`."""
    return [
        st.Page(
            PAGES / f"{entry['file']}.py", title=entry["title"], icon=entry["icon"], help=entry["help"],
            default=entry.get("default", False), url_path=None if entry.get("default") else entry["file"],
        )
        for entry in _ENTRIES
    ]  # fmt: skip


def card(file: str, heading: str, text: str, query: dict[str, str] | None = None) -> None:
    """A bordered card that leads to a page, with a view's query parameters."""
    entry = next(entry for entry in _ENTRIES if entry["file"] == file)
    with st.container(border=True, height="stretch"):
        st.markdown(f"**{heading}**")
        st.markdown(text)
        st.space("stretch")
        st.page_link(PAGES / f"{file}.py", label=entry["title"], icon=entry["icon"], query_params=query)


def link(file: str, label: str, query: Mapping[str, str | list[str]]) -> None:
    """A quiet link to a view of another page."""
    entry = next(entry for entry in _ENTRIES if entry["file"] == file)
    st.page_link(PAGES / f"{file}.py", label=label, icon=entry["icon"], query_params=dict(query))
