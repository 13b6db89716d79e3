"""The page Explanations, part Seven explainers: one image under all of them, on the page and as a file for print."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, loaders, state, triplets, words
from dashboard.triplets import View
from tier import figures, pictures, sheets
from tier.gallery import Look

SEVEN = tuple(name for name in figures.EXPLAINERS if name != "gradient")
FORMS: dict[sheets.Form, str] = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
WIDTH = 620  # pixels on screen
SCORES = ("ssim", "cosine")  # of the four, those for which a cell has room
BESIDE = """Beside each row: the explainer's settings, and the mean SSIM / cosine over all images with a score, of
defended maps against undefended maps of other images, and of undefended maps under two training seeds (the models of a
pair share theirs)."""

Stored = dict[str, dict[str, loaders.Gallery | None]]


def show(view: View) -> None:
    """The seven explainers of one image under all models, on the page and as a file."""
    stored = {name: {model: loaders.gallery(one, name) for model, one in view.models.items()} for name in SEVEN}
    rows = _rows(view, stored)
    missing = {
        f"{figures.style(model).label}, {figures.EXPLAINERS[name]}": loaders.explained(view.models[model], name)
        for name, of in stored.items()
        for model, found in of.items()
        if found is None
    }
    if rows is not None and len(missing) < len(SEVEN) * len(view.models):
        names = {
            index: f"{view.title(index)}: {words.class_name(view.names, label)}, {triplets.kind(member)}"
            for index, label, member in rows
        }
        index = state.select("Image", names, key="sheet", help="Any image whose maps are kept.")
        if view.images is None:
            st.info(words.flat(triplets.NO_IMAGES), icon=":material/hide_image:")
        _show(view, _sheet(view, stored, index, names[index]), stored, index)
    components.offer("gallery", missing, "gallery.parquet")


def _rows(view: View, stored: Stored) -> list[tuple[int, int, bool]] | None:
    """Row, class and membership of the images that the undefended model's galleries keep, in their numbers' order."""
    found = [view.galleries.get("none"), *(of["none"] for of in stored.values())]
    frame = next((one.frame for one in found if one is not None), None)
    if frame is None:
        return None
    known = dict(zip(frame.index, zip(frame["label"], frame["member"], strict=True), strict=True))
    return [(row, int(known[row][0]), bool(known[row][1])) for row in view.in_order(known)]


def _sheet(view: View, stored: Stored, index: int, name: str) -> sheets.Sheet:
    """The sheet of one image; without the input's column when the images are not on this machine."""
    blank = np.zeros((3, *_size(stored)), np.uint8)
    known = view.pixels(index)
    made = [_triplet(view, name, of, index, blank if known is None else known) for name, of in stored.items()]
    one = view.models["none"]
    note = components.settings_line(
        view.preset, one, n=None, row=index, class_explained=one.explain.target, **components.strength(view.models)
    )
    text = f"{note}. {words.flat(BESIDE)}"
    drawn = sheets.of_triplets(f"{view.preset.title}. {name}", made, text, view.shared, view.absolute)
    if known is not None:
        return drawn
    return replace(drawn, columns=drawn.columns[1:], rows=tuple(replace(r, cells=r.cells[1:]) for r in drawn.rows))


def _triplet(
    view: View, explainer: str, of: dict[str, loaders.Gallery | None], index: int, image: np.ndarray
) -> sheets.Triplet:
    """One explainer's row: maps, each defended model's scores of this image, the settings and the controls' means."""
    looks: dict[str, Look | None] = {
        model: None if one is None or index not in one.frame.index else one.look(index) for model, one in of.items()
    }
    frames = _frames(view, explainer)
    scores = {
        model: triplets.numbers_of(row, SCORES)
        for model, frame in frames.items()
        if len(row := frame[frame["index"] == index])
    }
    one = loaders.explained(view.models["none"], explainer)
    layer = next((gallery.layer for gallery in of.values() if gallery is not None and gallery.layer), None)
    told = [components.explainer_settings(one), layer and f"layer {layer}", *_controls(frames)]
    maps = {model: None if look is None else look.map for model, look in looks.items()}
    detail = "; ".join(text for text in told if text)
    return sheets.Triplet(figures.EXPLAINERS[explainer], image, maps, pictures.has_sign(one.explain), scores, detail)


def _frames(view: View, explainer: str) -> dict[str, pd.DataFrame]:
    """Each defended model's scores under one explainer, where they are stored."""
    found = {model: loaders.fidelity(one, explainer) for model, one in view.models.items() if model != "none"}
    return {model: frame for model, frame in found.items() if frame is not None}


def _controls(frames: dict[str, pd.DataFrame]) -> list[str]:
    """The means of both controls in the order of `SCORES`; the second seed is the same beside every defended model."""
    if not frames:
        return []
    means = {
        ending: {model: _mean_text(frame, ending) for model, frame in frames.items()}
        for ending in ("_shuffled", "_second_seed")
    }
    several = len(frames) > 1
    others = ", ".join(
        f"{text} ({words.label(model)})" if several else text for model, text in means["_shuffled"].items()
    )
    return [f"other images {others}", f"two seeds {next(iter(means['_second_seed'].values()))}"]


def _mean_text(frame: pd.DataFrame, ending: str) -> str:
    return " / ".join(words.score_number(metric, float(frame[f"{metric}{ending}"].mean())) for metric in SCORES)


def _size(stored: Stored) -> tuple[int, int]:
    """Height and width of the maps kept."""
    one = next(gallery for of in stored.values() for gallery in of.values() if gallery is not None)
    return one.height, one.width


def _show(view: View, made: sheets.Sheet, stored: Stored, index: int) -> None:
    """The sheet as it prints, with its three files; SVG and PDF are drawn only when asked for."""
    keys = [loaders.key("gallery", loaders.explained(one, name)) for name in stored for one in view.models.values()]
    known = [gallery is not None for of in stored.values() for gallery in of.values()]
    texts = [(row.detail, *(cell.text for cell in row.cells)) for row in made.rows]
    key = f"{keys} {known} {index} {view.shared} {view.absolute} {texts} {made.title}"
    with st.container(width=WIDTH):  # not the image's width: Streamlit would smooth it down to that
        st.image(_rendered(key, "png", made), width="stretch", alt=made.alt, output_format="PNG")
    name = f"explanations_{view.preset.name}_row_{index}"
    with st.container(horizontal=True, gap="small"):
        for form, kind in FORMS.items():
            st.download_button(
                form.upper(), partial(_rendered, key, form, made), f"{name}.{form}", kind,
                key=f"sheet_{form}", icon=":material/download:", on_click="ignore",
            )  # fmt: skip


@st.cache_data(max_entries=32, show_spinner=False)
def _rendered(key: str, form: sheets.Form, _sheet: sheets.Sheet) -> bytes:
    """The sheet as a file; the key stands for its content."""
    return sheets.render(_sheet, form)
