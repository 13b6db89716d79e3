"""The page Explanations, part On average: mean scores beside both controls, and the distribution behind them."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, loaders, triplets, words
from dashboard.triplets import NUMBER, TRIPLETS, View
from tier import figures, tables


def show(view: View) -> None:
    """Mean scores beside both controls, and the distribution behind them."""
    triplets.offer(view, galleries=False)
    if not view.scores:
        return
    frames = {name: view.filtered(frame) for name, frame in view.scores.items()}
    keys = tuple(str(loaders.key("fidelity", view.models[name])) for name in frames)
    means = _means(keys, view.chosen, view.group, frames)
    counted = frames[view.of] if view.of in frames else next(iter(frames.values()))
    settings = _settings(view, counted)
    components.chart(
        figures.fidelity(means), means, name=f"fidelity_{view.explainer}", takeaway=words.fidelity(means),
        meaning=f"""A pair of maps says something about the single image only as far as it is more alike than maps of
        different images. {words.scaled_cosine(means)} {words.SHARED_SEED} Open markers: only the images that both
        models of a pair get right.""",
        settings=settings,
    )  # fmt: skip
    _table(means)
    st.subheader("Behind the mean", anchor=False)
    metric = triplets.choose_score()
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
    _jumps(view, metric, int(frames[view.of][metric].notna().sum()))


def _settings(view: View, counted: pd.DataFrame) -> str:
    """The settings line of both charts; only images with a score are counted."""
    second = view.models[view.of].fidelity.second_seed
    return view.settings(
        n=triplets.count(triplets.scored(counted)), filter=view.filters(right=False), pair=triplets.PAIR,
        second_seed=view.models["none"].train.seed + 1 if second is None else second,
        interval="95 % bootstrap over images", maps="scaled to [0, 1] but for the unscaled cosine",
    )  # fmt: skip


@st.cache_data(max_entries=64, show_spinner=False)
def _means(keys: tuple[str, ...], chosen: int, group: str, _frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """`tables.fidelity`; the results' keys and the filters stand for the frames."""
    return tables.fidelity(_frames)


def _table(means: pd.DataFrame) -> None:
    """The means as a table, a line per model, images and score; the same numbers as the chart's data."""
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
    columns["over_second_seed"] = number(
        "Over second seed", format="%+.3f", help="Above 0 is expected: the models of a pair share their seed."
    )
    shown = wide.assign(
        model=[figures.style(model).label for model in wide["model"]],
        metric=[figures.SCORES[metric] for metric in wide["metric"]],
    )
    alt = "Mean scores of defended against undefended maps, with both controls"
    st.dataframe(shown[list(columns)], hide_index=True, placeholder="–", alt=alt, column_config=columns)


def _jumps(view: View, metric: str, scored: int) -> None:
    """Buttons that open the best, the median and the worst triplet whose maps are kept."""
    triplets.offer(view, scores=False)
    places = {name: view.triplets(name, metric).dropna(subset=[metric]) for name in ("best", "median", "worst")}
    used = f" ({view.filters()})" if view.filters() else ""
    if not len(places["best"]):
        if view.kept is not None:
            st.caption(f"None of the images whose maps are kept has this score and passes the filter{used}.")
        return
    with st.container(horizontal=True, gap="small"):
        for name, text in (("best", "Best"), ("median", "Median"), ("worst", "Worst")):
            st.button(
                f"{text} ({words.score_number(metric, places[name][metric].iloc[0])})", key=f"jump_{name}",
                icon=":material/image_search:", on_click=triplets.go_to, args=(TRIPLETS,),
                kwargs={"sort": name, "score": metric, NUMBER: 1},
            )  # fmt: skip
    st.caption(
        f"They open the triplets, sorted so, among the {len(places['best'])} images whose maps are kept and pass the "
        f"filter{used}; the means are over {scored:,} images."
    )
