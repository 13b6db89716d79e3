"""One image under the lens: which one it is, from the data set or brought by the reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from dashboard import components, loaders, state, uploads
from tier import experiment, neighbours, tables
from tier.config import Experiment, Inspect
from tier.gallery import Look
from tier.presets import Preset

MOST_MODELS = 3  # that fit side by side
CATALOGUES = (("train", "samples.parquet"), ("audit", "scores.parquet"), ("trajectory", "samples.parquet"))

Twin = Literal["training", "other", "none"]


@dataclass(frozen=True)
class Subject:
    """The image looked at: a numbered one of the data set, or (without `number` and `row`) an uploaded one.

    `pixels` (3, H, W) uint8 are None where the data is not on this machine. `members` are the rows of the target's
    training images, `member` is None for an upload. `twin` says whether an upload has the very pixels of a training
    image, of another image of the data set, or of none; None where that is not known.
    """

    inspect: Inspect
    members: NDArray[np.int64]
    names: tuple[str, ...]
    pixels: NDArray[np.uint8] | None
    number: int | None = None
    row: int | None = None
    label: int | None = None
    member: bool | None = None
    twin: Twin | None = None

    @property
    def title(self) -> str:
        """What the page calls it."""
        return "Your image" if self.number is None else f"Image {self.number}"

    @property
    def assumed(self) -> bool:
        """Whether the class explained is what the undefended model predicts, because nobody has chosen one."""
        return self.number is None and self.inspect.label is None


def catalogue(models: Mapping[str, Experiment]) -> pd.DataFrame | None:
    """Row and membership of the target's images: index, member; from any stored result, since the models share them."""
    for one in models.values():
        for stage, name in CATALOGUES:
            found = loaders.frame(stage, one, name, ["index", "member"])
            if found is not None:
                return found
    return None


def deck(images: pd.DataFrame) -> NDArray[np.int64]:
    """The images in the order of their numbers; those whose maps are kept come first and show at once."""
    return tables.deck(images, kept=experiment.GALLERY)


def class_names(preset: Preset, images: loaders.Images | None) -> tuple[str, ...]:
    """The names of the classes, harmless for Markdown; none when neither images nor a split are there."""
    if images is not None:
        names: Sequence[str] = images.class_names
    else:
        split = loaders.find("split", preset.run("none", preset.seeds[0]))
        names = () if split is None else split.metrics.get("class_names") or ()
    return tuple(state.plain(str(name).replace("_", " "), 60) for name in names)


# ---- the number


def number_of(cards: NDArray[np.int64], hardest: Sequence[int], explainer: str) -> int:
    """The number of the image to show, with the buttons that move on; it is in the address."""
    wanted = _heed_row(cards)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        _step("Previous", "P", "arrow_back", _go, (-1, len(cards)))
        with st.container(width=200):
            number = state.whole(f"Image, 1 to {len(cards)}", 1, len(cards), key="sample", default=1)
        _step("Next", "N", "arrow_forward", _go, (1, len(cards)))
        _step("Random", "X", "shuffle", _random, (len(cards),))
        _step(
            "Hardest", "H", "psychology_alt", _hardest, (tuple(hardest),), disabled=not hardest,
            help=f"The image on which the attack on the undefended model, from its {explainer} curves, is nearest to "
            "undecided; again: the next one. Guesses on it do not count."
            if hardest
            else f"The attack on the undefended model is not stored for {explainer}.",
        )  # fmt: skip
    _row_done(wanted, number)
    return number


def _step(
    label: str, key: str, icon: str, act: Any, args: tuple[Any, ...], help: str = "", disabled: bool = False
) -> None:
    st.button(
        label, key=f"step_{label.lower()}", on_click=act, args=args, icon=f":material/{icon}:", shortcut=key,
        help=f"{help} Key: {key}.".strip(), disabled=disabled,
    )  # fmt: skip


def _heed_row(cards: NDArray[np.int64]) -> int | None:
    """The number that `row=` of a link, a row of the data set, stands for, made the page's choice; None without one.

    It is put into the address by hand: Streamlit writes there what a program chooses only for a widget that it knows.
    """
    asked = st.query_params.get("row")
    if asked is None:
        return None
    row = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 12 else -1
    place = np.flatnonzero(cards == row)
    if not place.size:
        state.note(f"The link asks for row '{state.plain(asked)}', which is none of the target's images.")
        del st.query_params["row"]
        return None
    number = int(place[0]) + 1
    st.session_state["sample"] = number
    if number > 1:  # the first image is the default, which the address need not name
        state.put("sample", f"{number}")
    return number


def _row_done(wanted: int | None, number: int) -> None:
    """Take `row=` out of the address once its image is shown.

    Where the reader comes back to such a link with the browser's Back, Streamlit shows what the address names, the
    first image, whatever a program chooses; the run after that heeds the choice.
    """
    if wanted is None:
        return
    if number != wanted and st.session_state.get("row_again") != wanted:
        st.session_state["row_again"] = wanted
        st.rerun()
    st.session_state.pop("row_again", None)
    del st.query_params["row"]


def _current(count: int) -> int:
    return min(max(int(st.session_state.get("sample") or 1), 1), count)


def _go(by: int, count: int) -> None:
    st.session_state["sample"] = (_current(count) - 1 + by) % count + 1


def _random(count: int) -> None:
    now = _current(count)
    st.session_state["sample"] = (now - 1 + int(np.random.default_rng().integers(1, max(count, 2)))) % count + 1


def _hardest(order: Sequence[int]) -> None:
    """The first of the order, or the one after the image at which the last press ended."""
    place = st.session_state.get("hardest_place", -1)
    stayed = 0 <= place < len(order) and st.session_state.get("sample") == order[place]
    place = (place + 1) % len(order) if stayed else 0
    st.session_state["hardest_place"] = place
    st.session_state["sample"] = order[place]
    picked(order[place])


def picked(number: int | None = None) -> set[int]:
    """The numbers of the images that this session has reached with Hardest, with one more."""
    made: set[int] = st.session_state.setdefault("hardest_picked", set())
    if number is not None:
        made.add(number)
    return made


# ---- the image


def subject(preset: Preset, images: pd.DataFrame, bare: pd.DataFrame | None, explainer: str) -> Subject:
    """The image of the data set that the address names.

    `bare` are the undefended model's audit scores under the explainer, which is named for the reader.
    """
    cards = deck(images)
    number = number_of(cards, [] if bare is None else tables.undecided(bare, cards), explainer)
    row = int(cards[number - 1])
    member = images["member"].to_numpy(bool)
    rows = images["index"].to_numpy(np.int64)
    found = loaders.images(preset)
    known = found is not None and row < len(found.pixels)
    return Subject(
        Inspect(row=row), rows[member], class_names(preset, found),
        found.pixels[row] if found is not None and known else None, number, row,
        int(found.labels[row]) if found is not None and known else None, bool(member[rows == row][0]),
    )  # fmt: skip


def own_image(preset: Preset, images: pd.DataFrame) -> Subject | None:
    """An uploaded image and the class to explain, or None while there is none; the engine starts meanwhile."""
    _warm_up()
    found = loaders.images(preset)
    names = class_names(preset, found)
    upload = uploads.choose(preset.experiment.data.image_size)
    if upload is None:
        return None
    offered = {-1: "what the undefended model predicts"} | dict(enumerate(names))
    label = state.select("Class to explain", offered, key="label")
    members = images["index"][images["member"].astype(bool)].to_numpy(np.int64)
    wanted = Inspect(upload=upload.name, label=None if label < 0 else label)
    return Subject(wanted, members, names, upload.pixels, twin=_twin(found, upload.pixels, members))


def _twin(found: loaders.Images | None, pixels: NDArray[np.uint8], members: NDArray[np.int64]) -> Twin | None:
    """Whether the data set, and its training images, hold the very pixels of an upload."""
    if found is None or found.pixels.shape[1:] != pixels.shape:
        return None
    same = neighbours.same(pixels, found.pixels)
    return "training" if np.isin(same, members).any() else "other" if len(same) else "none"


def forget_upload() -> None:
    """Take the reader's own image and its class out of the address, which is now that of an image for everybody."""
    state.absent("upload", "label")
    st.session_state.pop("label", None)
    uploads.forget()


def _warm_up() -> None:
    """Start the engine as soon as somebody is about to upload: its first answer takes some seconds less."""
    if st.session_state.get("warmed_up"):
        return
    st.session_state["warmed_up"] = True
    try:
        loaders.engine().start_engine()
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)


def labelled(what: Subject, looks: Sequence[Look | None]) -> Subject:
    """The subject with its class from a map where the data itself is not on this machine."""
    look = next((look for look in looks if look is not None), None)
    if what.label is not None or look is None or what.row is None:
        return what
    return replace(what, label=look.label)
