"""What the parts of the page Explanations share: its choices, and what is stored of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, inspector, loaders, state, words
from tier import experiment, figures, pictures, tables
from tier.config import Experiment
from tier.presets import Preset

ALL = -1  # the class filter's first choice
GROUPS = {"all": "All", "members": "Members", "nonmembers": "Non-members"}
RIGHT = {"all": "All", "right": "All models right", "wrong": "Some model wrong"}
SCALES = {"own": "Own", "shared": "Shared"}
SIGNS = {"signed": "Signed", "absolute": "Absolute"}
NUMBER = "page_number"  # the gallery's page, in the address
TAB, TRIPLETS, AVERAGES, SHEET = "view", "Triplets", "On average", "Seven explainers"
TABS = (TRIPLETS, AVERAGES, SHEET)
# pixels stay square where a browser enlarges a picture, too
UNSMOOTHED = "<style>.st-key-triplets img {image-rendering: pixelated;}</style>"
PAIR = "one training seed for both models: same start weights, same batch order"  # of a settings line
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
    numbers: dict[int, int]  # of the images, as the page Sample counts them, by row of the data set

    @property
    def signed(self) -> bool:
        """Whether the explainer's maps tell what speaks for the class from what speaks against it."""
        return pictures.has_sign(self.models["none"].explain)

    @cached_property
    def kept(self) -> pd.DataFrame | None:
        """The images whose maps are kept for all models, as `tables.triplets`, in the order of their numbers.

        None while one model's maps are not stored.
        """
        if set(self.galleries) != set(self.models):
            return None
        looks = {name: one.frame for name, one in self.galleries.items()}
        made = tables.triplets(looks, self.scores.get(self.of))
        return made.loc[self.in_order(made.index)]

    @cached_property
    def by_row(self) -> dict[str, pd.DataFrame]:
        """Each defended model's scores by row of the data set."""
        return {name: frame.drop_duplicates("index").set_index("index") for name, frame in self.scores.items()}

    def in_order(self, rows: Iterable[Any]) -> list[int]:
        """Rows of the data set in the order of the images' numbers, in which members and non-members are mixed."""
        last = len(self.numbers) + 1
        return sorted((int(row) for row in rows), key=lambda row: (self.numbers.get(row, last), row))

    def title(self, index: int) -> str:
        """What an image is called: its number, or its row of the data set where it has none."""
        return f"Image {self.numbers[index]}" if index in self.numbers else f"Row {index}"

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

    def filters(self, right: bool = True) -> str | None:
        """The filters in use, in words; `right`: also the one on predictions, which acts on the triplets only."""
        return filter_text(self.names, self.chosen, self.group, self.right if right else "all")

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
    """The page's parts, of which only the open one is drawn; what the others choose is not in the address."""
    st.html(UNSMOOTHED)
    made = state.tabs(TABS, key=TAB)
    if not made[TRIPLETS].open:
        state.absent("sort", NUMBER)
        state.ready("sort", "drawn")
        state.ready(NUMBER, 1)
    if made[SHEET].open:
        state.absent("score")
    else:
        state.absent("sheet")
        if view.kept is not None and len(view.kept):
            state.ready("sheet", int(view.kept.index[0]))
    return made


def choose(preset: Preset) -> View:
    """Draw the choices that all parts of the page share, and load what is stored of them."""
    idle = state.peek(TAB, TABS, TRIPLETS) == SHEET  # the sheet shows one image under every explainer
    explainer = state.choose(
        "Explainer", figures.EXPLAINERS, key="explainer", default=preset.explainers[0], disabled=idle
    )
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        models_first = st.container(width="content")
        at = components.choose_strength(preset)
        with models_first:
            plain = components.choose_beside(preset, at)
        models = {name: loaders.explained(one, explainer) for name, one in plain.items()}
        beside = {name: figures.style(name).label for name in models if name != "none"}
        galleries = {name: loaders.gallery(one, explainer) for name, one in models.items()}
        scores = {name: loaders.fidelity(models[name], explainer) for name in beside}
        images = loaders.images(preset)
        names = inspector.class_names(preset, images)
        known = {name: frame for name, frame in galleries.items() if frame is not None}
        scored = {name: frame for name, frame in scores.items() if frame is not None}
        frames = [one.frame for one in known.values()] + list(scored.values())
        chosen, group, right = _filters(names, frames, idle)
        shared, absolute, opacity = _look(pictures.has_sign(models["none"].explain), images is not None, idle)
        of = next(iter(beside))
        if len(beside) > 1:
            of = state.choose("Scores of", beside, key="of", default=of, disabled=idle)
        else:
            state.absent("of")
    return View(
        preset, explainer, models, of, chosen, group, right, shared, absolute, opacity, known, scored, images, names,
        numbers(plain, next(iter(known.values()), None)),
    )  # fmt: skip


def numbers(models: dict[str, Experiment], kept: loaders.Gallery | None) -> dict[int, int]:
    """The images' numbers on the page Sample, by row of the data set."""
    listed = inspector.catalogue(models)
    if listed is None:  # the images whose maps are kept have the lowest numbers, so they suffice
        listed = None if kept is None else kept.frame.reset_index()[["index", "member"]]
    if listed is None:
        return {}
    return {int(row): number for number, row in enumerate(tables.deck(listed, kept=experiment.GALLERY), 1)}


def filter_text(names: Sequence[str], chosen: int, group: str, right: str) -> str | None:
    """The filters that leave images out, or None when there is none."""
    parts = [] if chosen == ALL else [f"class {words.class_name(names, chosen)}"]
    parts += [] if group == "all" else [GROUPS[group].lower()]
    parts += [] if right == "all" else [RIGHT[right].lower()]
    return ", ".join(parts) or None


def _filters(names: Sequence[str], frames: list[pd.DataFrame], idle: bool) -> tuple[int, str, str]:
    """Class, membership and correctness of the images shown, behind a button that names those in use."""
    labels = sorted({int(label) for frame in frames for label in frame["label"].unique()})
    offered = {ALL: "All", **{label: words.class_name(names, label) for label in labels}}
    group, right = state.peek("group", GROUPS, "all"), state.peek("right", RIGHT, "all")
    used = filter_text(names, state.peek("class", offered, ALL), group, right)
    with st.popover(
        f"Filter: {used}" if used else "Filter", key="filters", disabled=idle,
        icon=":material/filter_alt:", help="Acts on the triplets and on the averages." if idle else None,
    ):  # fmt: skip
        chosen = state.select("Class", offered, key="class")
        group = state.choose("Images", GROUPS, key="group", default="all", help="Members are images trained on.")
        right = state.choose(
            "Predictions", RIGHT, key="right", default="all",
            help="Acts on the triplets; averages are always given over all and over the correct images.",
        )  # fmt: skip
    return chosen, group, right


def _look(signed: bool, images: bool, idle: bool) -> tuple[bool, bool, float]:
    """How maps are drawn: on a shared scale, absolute, and how much of the map covers the image (0: map alone)."""
    with st.popover("Look", icon=":material/palette:"):
        scale = state.choose(
            "Scale", SCALES, key="scale", default="own",
            help="Own: each map up to its own largest value. Shared: the maps of one image up to their largest.",
        )  # fmt: skip
        sign, opacity = "signed", 0.0
        if signed or idle:  # some of the sheet's explainers have a sign
            sign = state.choose("Values", SIGNS, key="sign", default="signed")
        else:
            state.absent("sign")
        if images:
            opacity = state.slide(
                "Overlay", 0.0, 1.0, key="opacity", default=0.0, step=0.1, disabled=idle,
                help="0 shows the map alone, beside the image. Above 0 it lies over the image, as opaque as that. "
                "Acts on the triplets.",
            )  # fmt: skip
        else:
            state.absent("opacity")
    return scale == "shared", sign == "absolute", opacity


# ---- shared by the parts


def choose_score() -> str:
    """One of the four scores."""
    return state.choose("Score", figures.SCORES, key="score", default=tables.FIDELITY[0])


def kind(member: bool) -> str:
    """An image's membership as a word."""
    return "member" if member else "non-member"


def count(frame: pd.DataFrame) -> str:
    """How many images of either kind, for a settings line."""
    members = int(frame["member"].astype(bool).sum())
    return f"{members} members and {len(frame) - members} non-members"


def scored(frame: pd.DataFrame) -> pd.DataFrame:
    """The images that have a score at all: a map that tells nothing has none."""
    return frame[frame[list(tables.FIDELITY)].notna().any(axis=1)]


def numbers_of(row: pd.DataFrame, metrics: Sequence[str]) -> dict[str, float]:
    """Some scores of a frame of one image."""
    return dict(zip(metrics, row[list(metrics)].to_numpy(np.float64)[0], strict=True))


def offer(view: View, galleries: bool = True, scores: bool = True) -> None:
    """Offer what is not stored of the explainer chosen."""
    if galleries:
        missing = {
            f"maps of {words.label(name)}": one for name, one in view.models.items() if name not in view.galleries
        }
        components.offer("gallery", missing, "gallery.parquet")
    if scores:
        unscored = {
            f"scores of {words.label(name)}": one
            for name, one in view.models.items()
            if name != "none" and name not in view.scores
        }
        components.offer("fidelity", unscored, "scores.parquet")


def go_to(tab: str, **choices: object) -> None:
    """Go to another part of the page with some choices made, from a button."""
    st.session_state[TAB] = tab
    for name, value in choices.items():
        st.session_state[name] = value
