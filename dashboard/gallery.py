"""The page Explanations, part Triplets: images with each model's map, beside one another, page by page."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, loaders, sitemap, state, theme, triplets, words
from dashboard.triplets import NUMBER, SCALES, SHEET, SIGNS, View
from tier import figures, pictures, tables
from tier.gallery import Look

PAGE = 12  # triplets on a page
PICTURE = 96  # pixels on screen that the longer side of a picture comes close to
GAP, EDGE, BESIDE = 16, 36, 110  # pixels between pictures, of a card's padding and border, of the scores beside them
ORDERS = {"drawn": "Number", "best": "Most alike", "median": "Median", "worst": "Least alike"}
MARKS = ":material/check: the model is right, :material/close: wrong, with what it says; the number is its confidence."
BOTH_CONTROLS = """Below the score chosen stand the same image's controls. Other (image): its defended map against the
undefended map of another image. (Two) seeds: its undefended maps under two training seeds, which, unlike the models of
a pair, share neither start weights nor batch order."""


def show(view: View) -> None:
    """A page of triplets in the order chosen."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        order = state.choose("Sort", ORDERS, key="sort", default="drawn", help="Images without a score come last.")
        metric = triplets.choose_score()
    triplets.offer(view)
    if view.kept is None:
        return
    if view.images is None:
        st.info(words.flat(triplets.NO_IMAGES), icon=":material/hide_image:")
    frame = view.triplets(order, metric)
    if not len(frame):
        st.info(f"No image passes the filter ({view.filters()}). Choose another.", icon=":material/filter_alt_off:")
        return
    st.markdown(_said(view, len(frame), order, metric), width=theme.TEXT_WIDTH)
    pages = -(-len(frame) // PAGE)
    place = st.container(key="triplets", horizontal=True, gap="small")
    with st.container(horizontal_alignment="center"):
        number = _page(view, pages, order, metric)
    with place:
        for index in frame.index[(number - 1) * PAGE : number * PAGE]:
            _card(view, int(index), metric)
    legend(view)
    settings = view.settings(
        n=triplets.count(frame), filter=view.filters(), pair=triplets.PAIR,
        scale=SCALES["shared" if view.shared else "own"].lower(), **_overlaid(view),
    )  # fmt: skip
    components.caption_with_data(settings, _data(view, frame), f"triplets_{view.explainer}")


def _page(view: View, pages: int, *order: str) -> int:
    """The page shown; the first one again when the images or their order have changed."""
    shown = (view.preset.name, view.explainer, view.chosen, view.group, view.right, view.of, *order)
    if st.session_state.get("page_of", shown) != shown:
        st.session_state[NUMBER] = 1
    st.session_state["page_of"] = shown
    if pages > 1:
        return state.page(pages, key=NUMBER)
    state.absent(NUMBER)
    return 1


def _said(view: View, count: int, order: str, metric: str) -> str:
    """How many triplets there are, through which filter, in which order, and what the scores are held against."""
    kept, used = 0 if view.kept is None else len(view.kept), view.filters()
    passing = f" pass the filter ({used})" if used else ""
    text = f"{count} of the {kept} images whose maps are kept{passing}"
    if order == "drawn":
        text += ", in the order of their numbers, members and non-members mixed."
    else:
        ways = {"best": "most alike first", "worst": "least alike first", "median": "nearest to their median first"}
        name = words.score_name(metric)
        text += f", {ways[order]} by the {name} of {words.label(view.of)} and the undefended model."
    if view.of not in view.scores:
        return text
    means = words.controls(view.filtered(view.scores[view.of]), metric, view.of, view.filters(right=False))
    aside = " The filter on predictions does not act on these means." if view.right != "all" else ""
    return f"{text} {means}{aside}"


def _overlaid(view: View) -> dict[str, str]:
    values = {"values": "absolute"} if view.absolute else {}
    return values | ({"overlay": f"{view.opacity:g}"} if view.opacity else {})


def _data(view: View, frame: pd.DataFrame) -> pd.DataFrame:
    """The triplets listed as a table: what each model predicts, each defended model's scores and their controls."""
    made = frame[["member", "label", "right"]]
    made.insert(0, "image", [view.numbers.get(int(row)) for row in made.index])
    for name, one in view.galleries.items():
        made = made.join(one.frame[["predicted", "confidence"]].add_suffix(f"_{name}"))
    columns = [f"{metric}{ending}" for metric in tables.FIDELITY for ending in tables.PAIRS.values()]
    for name, scores in view.by_row.items():
        made = made.join(scores[columns].add_suffix(f"_{name}"))
    return made.rename_axis("row").reset_index()


# ---- one triplet


def _card(view: View, index: int, metric: str) -> None:
    """One triplet: the image, each model's map and prediction, the scores, and where to go from here."""
    looks = {name: one.look(index) for name, one in view.galleries.items()}
    first = looks["none"]
    factor = max(1, round(PICTURE / max(first.map.shape)))
    across = factor * first.map.shape[1]
    image = view.pixels(index)
    count = len(looks) + (image is not None)
    name, kind = words.class_name(view.names, first.label), triplets.kind(bool(first.member))
    several = len(view.models) > 2  # then scores stand below their maps, so that two cards still fit side by side
    width = count * (across + GAP) + (-GAP if several else BESIDE) + EDGE
    with st.container(border=True, width=width, height="stretch", gap="xsmall"):
        st.markdown(f"**{view.title(index)}**: {name}, {kind}")
        with st.container(horizontal=True, gap="small"):
            if image is not None:
                with st.container(width=across, gap=None):
                    alt = f"{view.title(index)}, row {index} of the data set, {name}, a {kind}"
                    data = str(view.preset.experiment.data.fingerprint)
                    st.image(input_png(data, index, factor, image), width=across, alt=alt, output_format="PNG")
                    st.caption("Input")
            limit = pictures.limit_of([look.map for look in looks.values()]) if view.shared else None
            for model, look in looks.items():
                with st.container(width=across, gap=None):
                    model_map(view, model, look, limit, factor)
                    if several and model in view.by_row:
                        _scores(view, model, index, metric)
            with st.container(
                width="stretch" if several else BESIDE, horizontal=several, vertical_alignment="center", gap=None
            ):
                if not several and view.of in view.by_row:
                    _scores(view, view.of, index, metric)
                _onward(view, index)


def _onward(view: View, index: int) -> None:
    """Where to go from a triplet: the image alone, or under all explainers."""
    sitemap.link("sample", "Sample", sample_query(view, index))
    st.button(
        "Explainers", key=f"sheet_{index}", type="tertiary", icon=":material/grid_view:",
        help="This image under all seven explainers.", on_click=triplets.go_to, args=(SHEET,), kwargs={"sheet": index},
    )  # fmt: skip


def model_map(view: View, model: str, look: Look, limit: float | None, factor: int) -> None:
    """One model's map, its prediction, and what is wrong with the map, if anything."""
    label, predicted = figures.style(model).label, words.class_name(view.names, look.predicted)
    key = loaders.key("gallery", view.models[model]) or ""
    image = view.pixels(look.index) if view.opacity else None
    scale = None if limit is None else round(limit, 12)
    drawn = _drawn(key, look.index, scale, view.signed, view.absolute, view.opacity, factor, look.map, image)
    right = look.predicted == look.label
    flaw = pictures.flaw(look.map)
    alt = (
        f"{figures.EXPLAINERS[view.explainer]} map of {label} for {view.title(look.index).lower()}, "
        f"which it {'rightly' if right else 'wrongly'} calls {predicted}"
    )
    st.image(drawn, width=factor * look.map.shape[1], alt=alt + (f"; {flaw}" if flaw else ""), output_format="PNG")
    said = f":material/check: {look.confidence:.2f}" if right else f":material/close: {predicted} {look.confidence:.2f}"
    st.caption(f"{theme.tag(model)}  \n{said}" + (f"  \n:orange[{flaw}]" if flaw else ""))


def _scores(view: View, model: str, index: int, metric: str) -> None:
    """The scores of one defended model's map against the undefended one's; the one chosen with its controls."""
    frame = view.by_row[model]
    columns = [f"{name}{ending}" for name in tables.FIDELITY for ending in tables.PAIRS.values()]
    known = {} if index not in frame.index else triplets.numbers_of(frame.loc[[index]], columns)
    if np.isnan([known.get(name, np.nan) for name in tables.FIDELITY]).all():
        st.caption("no scores")
        return
    text = _lines(known, metric, short=len(view.models) > 2)
    st.caption("  \n".join(text), help=words.flat(BOTH_CONTROLS))


def _lines(known: dict[str, float], metric: str, short: bool) -> Sequence[str]:
    """A line for each score, the one chosen first, with its controls below it; `short`: as narrow as a map."""
    lines = [f"**{words.score_text(metric, known[metric])}**"]
    names = ("other", "seeds") if short else ("other image", "two seeds")
    for ending, name in zip(("_shuffled", "_second_seed"), names, strict=True):
        lines.append(f"{name} {words.score_number(metric, known[f'{metric}{ending}'])}")
    rest = [name for name in tables.FIDELITY if name != metric]
    return [*lines, *(words.score_text(name, known[name]).replace("unscaled cosine", "unscaled") for name in rest)]


@st.cache_data(max_entries=1000, show_spinner=False)
def input_png(data: str, index: int, factor: int, _pixels: np.ndarray) -> bytes:
    """An image of the data set as PNG."""
    return pictures.png(pictures.enlarge(pictures.image_rgb(_pixels), factor))


@st.cache_data(max_entries=4000, show_spinner=False)
def _drawn(
    key: str, index: int, limit: float | None, signed: bool, absolute: bool, opacity: float, factor: int,
    _map: np.ndarray, _image: np.ndarray | None,
) -> bytes:  # fmt: skip
    """A map as PNG; the result's key and the image's row stand for the arrays."""
    picture = pictures.heat(_map, limit, signed, absolute)
    if _image is not None and opacity > 0:
        picture = pictures.overlay(pictures.image_rgb(_image), picture, opacity)
    return pictures.png(pictures.enlarge(picture, factor))


def legend(view: View) -> None:
    """What the colours of the maps mean."""
    signed = view.signed and not view.absolute
    text = pictures.legend_text(view.signed, view.shared, view.absolute)
    ends = "blue speaks against the class, white for neither, red for it" if signed else "dark is 0, bright the largest"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        bar = pictures.png(pictures.colour_bar(signed))
        st.image(bar, width=160, alt=f"Colour scale: {ends}", output_format="PNG")
        st.caption(f"{text} {MARKS}", width="stretch")


def sample_query(view: View, index: int) -> dict[str, str | list[str]]:
    """The page Sample with the image, explainer, models and colours shown here."""
    shown = components.strength(view.models)
    query: dict[str, str | list[str]] = {name: shown[name] for name in ("lambda", "beta", "seed") if name in shown}
    query |= {"preset": view.preset.name, "explainer": figures.EXPLAINERS[view.explainer], "row": str(index)}
    query |= {"scale": SCALES["shared"]} if view.shared else {}
    query |= {"sign": SIGNS["absolute"]} if view.absolute else {}
    return query | {"models": [figures.style(name).label for name in view.models]}
