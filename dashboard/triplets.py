"""The page Explanations: its choices, the gallery of triplets, the averages with their controls, the printed sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, inspector, loaders, sitemap, state, theme, words
from tier import figures, pictures, sheets, tables
from tier.config import Experiment
from tier.gallery import Look
from tier.presets import Preset

PAGE = 12  # triplets on a page of the gallery
PICTURE = 96  # pixels on screen that the longer side of a picture comes close to
GAP, EDGE, BESIDE = 16, 36, 104  # pixels between pictures, of a card's padding and border, of the scores beside them
ALL = -1  # the class filter's first choice
GROUPS = {"all": "All", "members": "Members", "nonmembers": "Non-members"}
RIGHT = {"all": "All", "right": "All models right", "wrong": "Some model wrong"}
ORDERS = {"drawn": "As drawn", "best": "Most alike", "median": "Median", "worst": "Least alike"}
SCALES = {"own": "Own", "shared": "Shared"}
SIGNS = {"signed": "Signed", "absolute": "Absolute"}
SEVEN = tuple(name for name in figures.EXPLAINERS if name != "gradient")
FORMS: dict[sheets.Form, str] = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
SHEET_WIDTH = 620  # pixels on screen
SHEET_SCORES = ("ssim", "cosine")  # of the four, those for which a cell has room
NUMBER = "page_number"  # the gallery's page, in the address
TAB, TRIPLETS, AVERAGES, SHEET = "view", "Triplets", "On average", "Seven explainers"
# pixels stay square where a browser enlarges a picture, too
UNSMOOTHED = "<style>.st-key-triplets img {image-rendering: pixelated;}</style>"
MARKS = ":material/check: the model is right, :material/close: wrong, with what it says; the number is its confidence."
NO_IMAGES = """The images of this data set are not on this machine or cannot be read, so the maps stand without them.
They appear once the data lies in the folder that TIER_DATA names."""


@dataclass(frozen=True)
class View:
    """What the reader has chosen, and what is stored of it; models in the order shown, the undefended one first."""

    preset: Preset
    explainer: str
    models: dict[str, Experiment]  # with the explainer
    of: str  # the defended model whose scores arrange the images
    chosen: int  # class, or ALL
    group: str
    right: str
    shared: bool
    absolute: bool
    opacity: float
    galleries: dict[str, loaders.Gallery]
    scores: dict[str, pd.DataFrame]
    images: loaders.Images | None
    names: tuple[str, ...]  # of the classes

    @property
    def signed(self) -> bool:
        """Whether the explainer's maps tell what speaks for the class from what speaks against it."""
        return pictures.has_sign(self.models["none"].explain)

    @cached_property
    def kept(self) -> pd.DataFrame | None:
        """The images whose maps are kept for all models, as `tables.triplets`; None while one's are not stored."""
        if set(self.galleries) != set(self.models):
            return None
        return tables.triplets({name: one.frame for name, one in self.galleries.items()}, self.scores.get(self.of))

    @cached_property
    def by_row(self) -> dict[str, pd.DataFrame]:
        """Each defended model's scores by row of the data set."""
        return {name: frame.drop_duplicates("index").set_index("index") for name, frame in self.scores.items()}

    def pixels(self, index: int) -> np.ndarray | None:
        """An image of the data set (3, H, W) uint8, or None where it is not on this machine."""
        known = self.images is not None and 0 <= index < len(self.images.pixels)
        return self.images.pixels[index] if self.images is not None and known else None

    def filtered(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of the class and group chosen."""
        keep = pd.Series(True, frame.index)
        if self.group != "all":
            keep &= frame["member"].astype(bool) == (self.group == "members")
        if self.chosen != ALL:
            keep &= frame["label"] == self.chosen
        return frame[keep]

    def triplets(self, order: str, metric: str) -> pd.DataFrame:
        """The triplets that pass every filter, arranged; none while a model's maps are not stored."""
        if self.kept is None:
            return pd.DataFrame(columns=["member", "label", "right", *tables.FIDELITY])
        frame = self.filtered(self.kept)
        if self.right != "all":
            frame = frame[frame["right"] == (self.right == "right")]
        return tables.arranged(frame, order, metric)

    def settings(self, **extra: object) -> str:
        """The settings line of what is shown; `extra` adds to it."""
        one = self.models["none"]
        layer = next((gallery.layer for gallery in self.galleries.values() if gallery.layer), None)
        return components.settings_line(
            self.preset, one, explainer=components.explainer_text(one), layer=layer, class_explained=one.explain.target,
            **components.strength(self.models), **extra,
        )  # fmt: skip


# ---- choices


def tabs(view: View) -> dict[str, Any]:
    """The page's parts, of which only the open one is drawn."""
    st.html(UNSMOOTHED)
    made = state.tabs(list(TABS), key=TAB)
    if not made[TRIPLETS].open:
        state.ready("sort", "drawn")
        state.ready(NUMBER, 1)
    if not made[SHEET].open and view.kept is not None and len(view.kept):
        state.ready("sheet", int(view.kept.index[0]))
    return made


def choose(preset: Preset) -> View:
    """Draw the choices that all parts of the page share, and load what is stored of them."""
    explainer = state.choose("Explainer", figures.EXPLAINERS, key="explainer", default=preset.explainers[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        models_first = st.container(width="content")
        at = components.choose_strength(preset)
        with models_first:
            models = components.choose_beside(preset, at)
        models = {name: loaders.explained(one, explainer) for name, one in models.items()}
        beside = {name: figures.style(name).label for name in models if name != "none"}
        galleries = {name: loaders.gallery(one, explainer) for name, one in models.items()}
        scores = {name: loaders.fidelity(_compared(preset, models[name]), explainer) for name in beside}
        images = loaders.images(preset)
        names = inspector.class_names(preset, images)
        known = {name: frame for name, frame in galleries.items() if frame is not None}
        scored = {name: frame for name, frame in scores.items() if frame is not None}
        chosen, group, right = _filters(names, [one.frame for one in known.values()] + list(scored.values()))
        shared, absolute, opacity = _look(pictures.has_sign(models["none"].explain), images is not None)
        of = next(iter(beside))
        if len(beside) > 1:
            of = state.choose("Scores of", beside, key="of", default=of)
    return View(
        preset, explainer, models, of, chosen, group, right, shared, absolute, opacity, known, scored, images, names
    )


def _compared(preset: Preset, one: Experiment) -> Experiment:
    """A defended model's experiment with the second seed beside which its maps are compared."""
    return preset.fidelity(one.defense, one.train.seed, one.explain.name)


def _filters(names: Sequence[str], frames: list[pd.DataFrame]) -> tuple[int, str, str]:
    """Class, membership and correctness of the images shown."""
    labels = sorted({int(label) for frame in frames for label in frame["label"].unique()})
    with st.popover("Filter", icon=":material/filter_alt:"):
        offered = {ALL: "All", **{label: words.class_name(names, label) for label in labels}}
        chosen = state.select("Class", offered, key="class")
        group = state.choose("Images", GROUPS, key="group", default="all", help="Members are images trained on.")
        right = state.choose(
            "Predictions", RIGHT, key="right", default="all",
            help="Acts on the triplets; averages are always given over all and over the correct images.",
        )  # fmt: skip
    return chosen, group, right


def _look(signed: bool, images: bool) -> tuple[bool, bool, float]:
    """How maps are drawn: on a shared scale, absolute, and how much of the map covers the image (0: map alone)."""
    with st.popover("Look", icon=":material/palette:"):
        scale = state.choose(
            "Scale", SCALES, key="scale", default="own",
            help="Own: each map up to its own largest value. Shared: the maps of one image up to their largest.",
        )  # fmt: skip
        sign = state.choose("Values", SIGNS, key="sign", default="signed") if signed else "signed"
        opacity = 0.0
        if images:
            opacity = state.slide(
                "Overlay", 0.0, 1.0, key="opacity", default=0.0, step=0.1,
                help="0 shows the map alone, beside the image. Above 0 it lies over the image, as opaque as that.",
            )  # fmt: skip
    return scale == "shared", sign == "absolute", opacity


def _choose_score() -> str:
    return state.choose("Score", figures.SCORES, key="score", default=tables.FIDELITY[0])


def _kind(member: bool) -> str:
    return "member" if member else "non-member"


def _offer(view: View, galleries: bool = True, scores: bool = True) -> None:
    """Offer what is not stored of the explainer chosen."""
    if galleries:
        missing = {
            f"maps of {words.label(name)}": one for name, one in view.models.items() if name not in view.galleries
        }
        components.offer("gallery", missing, "gallery.parquet")
    if scores:
        compared = {
            f"scores of {words.label(name)}": _compared(view.preset, one)
            for name, one in view.models.items()
            if name != "none" and name not in view.scores
        }
        components.offer("fidelity", compared, "scores.parquet")


# ---- the gallery


def gallery(view: View) -> None:
    """A page of triplets in the order chosen."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        order = state.choose("Sort", ORDERS, key="sort", default="drawn", help="Images without a score come last.")
        metric = _choose_score()
    _offer(view)
    if view.kept is None:
        return
    if view.images is None:
        st.info(words.flat(NO_IMAGES), icon=":material/hide_image:")
    frame = view.triplets(order, metric)
    if not len(frame):
        st.info("No image passes the filter. Choose another class or group.", icon=":material/filter_alt_off:")
        return
    said = _said(view, len(frame), order, metric)
    if view.of in view.scores:
        said += f" {words.controls(view.filtered(view.scores[view.of]), metric, view.of)}"
    st.markdown(said, width=theme.TEXT_WIDTH)
    pages = -(-len(frame) // PAGE)
    place = st.container(key="triplets", horizontal=True, gap="small")
    with st.container(horizontal_alignment="center"):
        number = _page(view, pages, order, metric)
    with place:
        for index in frame.index[(number - 1) * PAGE : number * PAGE]:
            _card(view, int(index))
    _legend(view)
    components.caption_with_data(
        view.settings(n=_count(frame), scale=SCALES["shared" if view.shared else "own"].lower(), **_overlaid(view)),
        _data(view, frame), f"triplets_{view.explainer}",
    )  # fmt: skip


def _page(view: View, pages: int, *order: str) -> int:
    """The page shown; the first one again when the images or their order have changed."""
    shown = (view.preset.name, view.explainer, view.chosen, view.group, view.right, view.of, *order)
    if st.session_state.get("page_of", shown) != shown:
        st.session_state[NUMBER] = 1
    st.session_state["page_of"] = shown
    return state.page(pages, key=NUMBER) if pages > 1 else 1


def _said(view: View, count: int, order: str, metric: str) -> str:
    """How many triplets there are, and in which order."""
    kept = 0 if view.kept is None else len(view.kept)
    text = f"{count} of the {kept} images whose maps are kept"
    if order == "drawn":
        return f"{text}, in the order drawn."
    way = {"best": "most alike first", "worst": "least alike first", "median": "nearest to their median first"}[order]
    name = words.score_name(metric)
    return f"{text}, {way} by the {name} of {words.label(view.of)} and the undefended model."


def _count(frame: pd.DataFrame) -> str:
    """How many images of either kind, for a settings line."""
    members = int(frame["member"].astype(bool).sum())
    return f"{members} members and {len(frame) - members} non-members"


def _overlaid(view: View) -> dict[str, str]:
    values = {"values": "absolute"} if view.absolute else {}
    return values | ({"overlay": f"{view.opacity:g}"} if view.opacity else {})


def _data(view: View, frame: pd.DataFrame) -> pd.DataFrame:
    """The triplets listed as a table: what each model predicts, and each defended model's scores."""
    made = frame[["member", "label", "right"]]
    for name, one in view.galleries.items():
        made = made.join(one.frame[["predicted", "confidence"]].add_suffix(f"_{name}"))
    for name, scores in view.by_row.items():
        made = made.join(scores[list(tables.FIDELITY)].add_suffix(f"_{name}"))
    return made.rename_axis("row").reset_index()


def _card(view: View, index: int) -> None:
    """One triplet: the image, each model's map and prediction, the scores, and where to go from here."""
    looks = {name: one.look(index) for name, one in view.galleries.items()}
    first = looks["none"]
    factor = max(1, round(PICTURE / max(first.map.shape)))
    across = factor * first.map.shape[1]
    image = view.pixels(index)
    count = len(looks) + (image is not None)
    name, kind = words.class_name(view.names, first.label), _kind(bool(first.member))
    several = len(view.models) > 2  # then scores stand below their maps, so that two cards still fit side by side
    width = count * (across + GAP) + (-GAP if several else BESIDE) + EDGE
    with st.container(border=True, width=width, height="stretch", gap="xsmall"):
        st.markdown(f"**{name}**, {kind}")
        with st.container(horizontal=True, gap="small"):
            if image is not None:
                with st.container(width=across, gap=None):
                    alt = f"Row {index} of the data set, {name}, a {kind}"
                    data = str(view.preset.experiment.data.fingerprint)
                    st.image(
                        _input(data, index, factor, image),
                        width=across,
                        alt=alt,
                        output_format="PNG",
                    )
                    st.caption("Input")
            limit = pictures.limit_of([look.map for look in looks.values()]) if view.shared else None
            for model, look in looks.items():
                with st.container(width=across, gap=None):
                    _map(view, model, look, limit, factor)
                    if several and model in view.by_row:
                        _numbers(view, model, index)
            with st.container(
                width="stretch" if several else BESIDE, horizontal=several, vertical_alignment="center", gap=None
            ):
                if not several and view.of in view.by_row:
                    _numbers(view, view.of, index)
                _onward(view, index)


def _onward(view: View, index: int) -> None:
    """Where to go from a triplet: the image alone, or under all explainers."""
    sitemap.link("sample", "Sample", _sample(view, index))
    st.button(
        "Explainers", key=f"sheet_{index}", type="tertiary", icon=":material/grid_view:",
        help="This image under all seven explainers.", on_click=_open, args=(SHEET,), kwargs={"sheet": index},
    )  # fmt: skip


def _map(view: View, model: str, look: Look, limit: float | None, factor: int) -> None:
    """One model's map, its prediction, and what is wrong with the map, if anything."""
    label, predicted = figures.style(model).label, words.class_name(view.names, look.predicted)
    key = loaders.key("gallery", view.models[model]) or ""
    image = view.pixels(look.index) if view.opacity else None
    scale = None if limit is None else round(limit, 12)
    drawn = _drawn(key, look.index, scale, view.signed, view.absolute, view.opacity, factor, look.map, image)
    right = look.predicted == look.label
    flaw = pictures.flaw(look.map)
    alt = (
        f"{figures.EXPLAINERS[view.explainer]} map of {label} for row {look.index}, "
        f"which it {'rightly' if right else 'wrongly'} calls {predicted}"
    )
    st.image(drawn, width=factor * look.map.shape[1], alt=alt + (f"; {flaw}" if flaw else ""), output_format="PNG")
    said = f":material/check: {look.confidence:.2f}" if right else f":material/close: {predicted} {look.confidence:.2f}"
    st.caption(f"{theme.tag(model)}  \n{said}" + (f"  \n:orange[{flaw}]" if flaw else ""))


def _numbers(view: View, model: str, index: int) -> None:
    """The scores of one defended model's map against the undefended one's."""
    scores = view.by_row[model]
    known = {} if index not in scores.index else _scored(scores.loc[[index]], tables.FIDELITY)
    if np.isnan(list(known.values())).all():  # also where there is none
        st.caption("no scores")
        return
    text = sheets.score_text(known)
    st.caption(text.replace("unscaled cosine", "unscaled").replace(", ", "  \n"))


def _scored(row: pd.DataFrame, metrics: Sequence[str]) -> dict[str, float]:
    """Some scores of a frame of one image."""
    return dict(zip(metrics, row[list(metrics)].to_numpy(np.float64)[0], strict=True))


@st.cache_data(max_entries=1000, show_spinner=False)
def _input(data: str, index: int, factor: int, _pixels: np.ndarray) -> bytes:
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


def _legend(view: View) -> None:
    """What the colours of the maps mean."""
    signed = view.signed and not view.absolute
    text = pictures.legend_text(view.signed, view.shared, view.absolute)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        bar = pictures.png(pictures.colour_bar(signed))
        st.image(
            bar,
            width=160,
            alt="Colour scale from " + ("against to for the class" if signed else "0 to largest"),
            output_format="PNG",
        )
        st.caption(f"{text} {MARKS}", width="stretch")


def _sample(view: View, index: int) -> dict[str, str | list[str]]:
    """The page Sample with the image, explainer and models shown here."""
    shown = components.strength(view.models)
    query: dict[str, str | list[str]] = {name: shown[name] for name in ("lambda", "beta", "seed") if name in shown}
    query |= {"preset": view.preset.name, "explainer": figures.EXPLAINERS[view.explainer], "row": str(index)}
    return query | {"models": [figures.style(name).label for name in view.models]}


def _open(tab: str, **choices: object) -> None:
    """Go to another part of the page with some choices made, from a button."""
    st.session_state[TAB] = tab
    for name, value in choices.items():
        st.session_state[name] = value


# ---- averages


def averages(view: View) -> None:
    """Mean scores beside both controls, and the distribution behind them."""
    _offer(view, galleries=False)
    if not view.scores:
        return
    frames = {name: view.filtered(frame) for name, frame in view.scores.items()}
    keys = tuple(str(loaders.key("fidelity", _compared(view.preset, view.models[name]))) for name in frames)
    means = _means(keys, view.chosen, view.group, frames)
    counted = frames[view.of] if view.of in frames else next(iter(frames.values()))
    second = _compared(view.preset, view.models[view.of]).fidelity.second_seed
    settings = view.settings(
        n=_count(counted),
        images=None if view.chosen == ALL else words.class_name(view.names, view.chosen),
        second_seed=view.models["none"].train.seed + 1 if second is None else second,
        interval="95 % bootstrap over images", maps="scaled to [0, 1] but for the unscaled cosine",
    )  # fmt: skip
    components.chart(
        figures.fidelity(means), means, name=f"fidelity_{view.explainer}", takeaway=words.fidelity(means),
        meaning="""A pair of maps says something about the single image only as far as it is more alike than maps of
        different images; and no more can be asked of a defense than what another training seed leaves. Without these
        controls the figures mean little: even two maps of noise, scaled, have a cosine above 0.9. Open markers: only
        the images that both models get right.""",
        settings=settings,
    )  # fmt: skip
    _table(means, f"fidelity_table_{view.explainer}")
    st.subheader("Behind the mean", anchor=False)
    metric = _choose_score()
    if view.of not in frames:
        st.caption(f"The scores of {words.label(view.of)} are not stored.")
        return
    components.chart(
        figures.scores(frames[view.of], metric, view.of),
        frames[view.of], name=f"scores_{view.explainer}_{metric}",
        takeaway=words.scores(frames[view.of], metric, view.of),
        meaning="""A mean hides whether all images are somewhat alike or a few are and most are not. Look at the best,
        the middle and the worst triplet before believing it.""",
        settings=settings,
    )  # fmt: skip
    _jumps(view, metric, len(frames[view.of]))


@st.cache_data(max_entries=64, show_spinner=False)
def _means(keys: tuple[str, ...], chosen: int, group: str, _frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """`tables.fidelity`; the results' keys and the filters stand for the frames."""
    return tables.fidelity(_frames)


def _table(means: pd.DataFrame, name: str) -> None:
    """The means as a table, a line per model, images and score."""
    wide = tables.fidelity_wide(means)
    number = st.column_config.NumberColumn
    columns: dict[str, Any] = {
        "model": st.column_config.TextColumn("Model", pinned=True),
        "images": st.column_config.TextColumn("Images", help="Correct: those that both models get right."),
        "metric": st.column_config.TextColumn("Score"),
        "n": number("n", format="%d", help="Images with this score."),
    }
    for pair, text in (("pair", "Defended"), ("shuffled", "Shuffled"), ("second_seed", "Second seed")):
        columns |= {
            pair: number(text, format="%.3f"),
            f"{pair}_low": number(f"{text}, low", format="%.3f", help="95 % bootstrap interval over images."),
            f"{pair}_high": number(f"{text}, high", format="%.3f"),
        }
    columns["over_shuffled"] = number(
        "Over shuffled", format="%+.3f", help="By how much more alike than maps of different images; also for MSE."
    )
    columns["over_second_seed"] = number("Over second seed", format="%+.3f")
    shown = wide.assign(
        model=[figures.style(model).label for model in wide["model"]],
        metric=[figures.SCORES[metric] for metric in wide["metric"]],
    )
    alt = "Mean scores of defended against undefended maps, with both controls"
    st.dataframe(shown[list(columns)], hide_index=True, placeholder="–", alt=alt, column_config=columns)
    components.download(wide, name)


def _jumps(view: View, metric: str, scored: int) -> None:
    """Buttons that open the best, the median and the worst triplet whose maps are kept."""
    _offer(view, scores=False)
    places = {name: view.triplets(name, metric).dropna(subset=[metric]) for name in ("best", "median", "worst")}
    if not len(places["best"]):
        if view.kept is not None:
            st.caption("None of the images whose maps are kept has this score and passes the filter.")
        return
    with st.container(horizontal=True, gap="small"):
        for name, text in (("best", "Best"), ("median", "Median"), ("worst", "Worst")):
            st.button(
                f"{text} ({places[name][metric].iloc[0]:.2f})", key=f"jump_{name}", icon=":material/image_search:",
                on_click=_open, args=(TRIPLETS,), kwargs={"sort": name, "score": metric, NUMBER: 1},
            )  # fmt: skip
    st.caption(
        f"They open the triplets, sorted so, among the {len(places['best'])} images whose maps are kept and pass the "
        f"filter; the means are over {scored:,} images."
    )


# ---- the sheet


def sheet(view: View) -> None:
    """The seven explainers of one image under all models, on the page and as a file."""
    stored = {name: {model: loaders.gallery(one, name) for model, one in view.models.items()} for name in SEVEN}
    rows = _sheet_rows(view, stored)
    missing = {
        f"{figures.style(model).label}, {figures.EXPLAINERS[name]}": loaders.explained(view.models[model], name)
        for name, of in stored.items()
        for model, found in of.items()
        if found is None
    }
    if rows is not None and len(missing) < len(SEVEN) * len(view.models):
        names = {
            index: f"Row {index}: {words.class_name(view.names, label)}, {_kind(member)}"
            for index, label, member in rows
        }
        index = state.select("Image", names, key="sheet", help="Any image whose maps are kept.")
        if view.images is None:
            st.info(words.flat(NO_IMAGES), icon=":material/hide_image:")
        _show_sheet(view, _sheet(view, stored, index, names[index]), stored, index)
    components.offer("gallery", missing, "gallery.parquet")


Stored = dict[str, dict[str, loaders.Gallery | None]]


def _sheet_rows(view: View, stored: Stored) -> list[tuple[int, int, bool]] | None:
    """Row, class and membership of the images that the undefended model's galleries keep, in the order drawn."""
    found = [view.galleries.get("none"), *(of["none"] for of in stored.values())]
    frame = next((one.frame for one in found if one is not None), None)
    if frame is None:
        return None
    return [
        (int(i), int(label), bool(m)) for i, label, m in zip(frame.index, frame["label"], frame["member"], strict=True)
    ]


def _sheet(view: View, stored: Stored, index: int, name: str) -> sheets.Sheet:
    """The sheet of one image; without the input's column when the images are not on this machine."""
    triplets = []
    blank = np.zeros((3, *_size(stored)), np.uint8)
    known = view.pixels(index)
    image = blank if known is None else known
    for explainer, of in stored.items():
        looks = {
            model: None if one is None or index not in one.frame.index else one.look(index) for model, one in of.items()
        }
        triplets.append(
            sheets.Triplet(
                figures.EXPLAINERS[explainer], image,
                {model: None if look is None else look.map for model, look in looks.items()},
                signed=pictures.has_sign(loaders.explained(view.models["none"], explainer).explain),
                scores=_sheet_scores(view, explainer, index),
            )
        )  # fmt: skip
    note = components.settings_line(
        view.preset, view.models["none"], n=None, class_explained=view.models["none"].explain.target,
        explainers="as in the preset", **components.strength(view.models),
    )  # fmt: skip
    made = sheets.of_triplets(f"{view.preset.title}. {name}", triplets, f"{note}.", view.shared, view.absolute)
    if known is not None:
        return made
    return replace(made, columns=made.columns[1:], rows=tuple(replace(row, cells=row.cells[1:]) for row in made.rows))


def _size(stored: Stored) -> tuple[int, int]:
    """Height and width of the maps kept."""
    one = next(gallery for of in stored.values() for gallery in of.values() if gallery is not None)
    return one.height, one.width


def _sheet_scores(view: View, explainer: str, index: int) -> dict[str, dict[str, float]]:
    """Each defended model's scores for one image under one explainer, where they are stored."""
    made = {}
    for model, one in view.models.items():
        frame = (
            None
            if model == "none"
            else loaders.fidelity(_compared(view.preset, loaders.explained(one, explainer)), explainer)
        )
        row = None if frame is None else frame[frame["index"] == index]
        if row is not None and len(row):
            made[model] = _scored(row, SHEET_SCORES)
    return made


def _show_sheet(view: View, made: sheets.Sheet, stored: Stored, index: int) -> None:
    """The sheet as it prints, with its three files; SVG and PDF are drawn only when asked for."""
    keys = [loaders.key("gallery", loaders.explained(one, name)) for name in stored for one in view.models.values()]
    known = [gallery is not None for of in stored.values() for gallery in of.values()]
    key = (
        f"{keys} {known} {index} {view.shared} {view.absolute} {[cell.text for row in made.rows for cell in row.cells]}"
    )
    with st.container(width=SHEET_WIDTH):  # not the image's width: Streamlit would smooth it down to that
        st.image(_rendered(key + made.title, "png", made), width="stretch", alt=made.alt, output_format="PNG")
    name = f"explanations_{view.preset.name}_row_{index}"
    with st.container(horizontal=True, gap="small"):
        for form, kind in FORMS.items():
            st.download_button(
                form.upper(), partial(_rendered, key + made.title, form, made), f"{name}.{form}", kind,
                key=f"sheet_{form}", icon=":material/download:", on_click="ignore",
            )  # fmt: skip


@st.cache_data(max_entries=32, show_spinner=False)
def _rendered(key: str, form: sheets.Form, _sheet: sheets.Sheet) -> bytes:
    """The sheet as a file; the key stands for its content."""
    return sheets.render(_sheet, form)


TABS: dict[str, Callable[[View], None]] = {TRIPLETS: gallery, AVERAGES: averages, SHEET: sheet}
