"""The page Quality: are maps faithful to the model, do they point at the object, and what does a defense cost them?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, gallery, inspector, loaders, quality_words, sitemap, state, theme, triplets, words
from tier import figures, tables
from tier.config import Experiment
from tier.presets import Preset

FAITHFULNESS = ("faithfulness_correlation", "faithfulness_estimate", "sufficiency")
LOCALISATION = ("pointing_game", "mask_mass", "mask_iou")
SHOWN = 3  # triplets at either end
NUMBER, TEXT = st.column_config.NumberColumn, st.column_config.TextColumn


@dataclass(frozen=True)
class View:
    """What the reader has chosen, and what is stored of the preset."""

    preset: Preset
    table: pd.DataFrame  # as from `tables.quality`, of the models shown
    models: tuple[str, ...]
    explainer: str
    metric: str

    @cached_property
    def runs(self) -> dict[str, Experiment]:
        """The first seed's run of each model shown."""
        return {name: self.preset.run(name, self.preset.seeds[0]) for name in self.models}

    @cached_property
    def all(self) -> pd.DataFrame:
        """The scores over members and non-members together."""
        return self.table[self.table["images"] == "all"]

    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Each model's single images under the explainer, of the first seed, where they are stored."""
        found = {name: loaders.judged(one, self.explainer) for name, one in self.runs.items()}
        return {name: frame for name, frame in found.items() if frame is not None}

    @cached_property
    def told(self) -> dict[str, dict[str, Any]]:
        """What the stage says beside the scores, by model."""
        return {name: loaders.judgement(self.runs[name], self.explainer) or {} for name in self.frames}

    def known(self, metrics: Sequence[str]) -> list[str]:
        """Those of the metrics that some map has."""
        return [name for name in metrics if self.all.loc[self.all["metric"] == name, "mean"].notna().any()]

    def settings(self, *metrics: str, one_explainer: bool = False, **extra: object) -> str:
        """The settings line of what is shown of some metrics; `one_explainer`: of the one chosen."""
        one = loaders.explained(next(iter(self.runs.values())), self.explainer)
        counts = self.table.assign(n=self.table["n"] / self.table["seeds"]).groupby("images")["n"].max()
        seeds = sorted({int(n) for n in self.all["seeds"]})
        made: dict[str, object] = {
            "n": f"{counts['members']:.0f} members and {counts['nonmembers']:.0f} non-members",
            "explainer": components.explainer_text(one) if one_explainer else None,
            "class_explained": one.explain.target,
            **components.strength(self.runs),
            "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else None,
            **_of_metrics(one, metrics),
            "interval": f"95 % bootstrap over {'seeds, then images' if seeds[-1] > 1 else 'images'}",
            **extra,
        }
        return components.settings_line(self.preset, one, **made)


def _of_metrics(one: Experiment, metrics: Sequence[str]) -> dict[str, object]:
    """The settings that some metrics depend on."""
    of = one.quality
    made: dict[str, object] = {}
    if "faithfulness_correlation" in metrics:
        made["correlation"] = f"{of.runs} random sets of {of.subset_size} features"
    if "faithfulness_estimate" in metrics:
        made["estimate"] = f"{of.features_in_step} features a step"
    if {"faithfulness_correlation", "faithfulness_estimate"} & set(metrics):
        made["replaced_by"] = {"black": "the image's least value", "white": "its greatest"}.get(of.baseline, "its mean")
    if "sufficiency" in metrics:
        made["sufficiency"] = f"threshold {of.threshold:g}, distance {of.distance}"
    return made | {"engine": of.engine}


# ---- choices


def choose(preset: Preset) -> View | None:
    """The choices above the page; None when no scores are stored."""
    table = loaders.quality(preset)
    if not len(table):
        return None
    scored = table[table["mean"].notna()]
    offered = {name: text for name, text in figures.QUALITY.items() if name in quality_words.ABILITIES}
    offered = {name: text for name, text in offered.items() if name in set(scored["metric"])}
    names = {str(d.name): words.label(d.name) for d in preset.compared if d.name in set(table["model"])}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=280):
            metric = state.select("Metric", offered, key="metric")
        with st.popover("Defenses", icon=":material/filter_alt:"):
            models = state.choose_many("Defenses shown", names, key="judged", default=list(names))
    explainer = state.choose(
        "Explainer", figures.EXPLAINERS, key="explainer", default=preset.explainers[0],
        help="Of the profile, the single images and the triplets; table and curves show all.",
    )  # fmt: skip
    return View(preset, table[table["model"].isin(models)], tuple(models), explainer, metric)


# ---- the table


def table(view: View) -> None:
    """One metric of every explainer and defense beside its controls, in the form of Table VI."""
    st.subheader(figures.QUALITY[view.metric], anchor=False)
    st.markdown(quality_words.ability(view.metric), width=theme.TEXT_WIDTH)
    rows = view.all[view.all["metric"] == view.metric]
    verdicts = quality_words.verdicts(rows, view.metric)
    st.markdown(
        "\n".join(f"- **{theme.tag(model)}**: {text}" for model, text in verdicts.items()), width=theme.TEXT_WIDTH
    )
    groups = {
        name: view.table[(view.table["images"] == name) & (view.table["metric"] == view.metric)]
        .set_index(["model", "explainer"])["mean"]
        for name in ("members", "nonmembers")
    }  # fmt: skip
    shown = rows.join(pd.DataFrame(groups), on=["model", "explainer"])
    shown = shown.assign(
        noise=_against(rows, "random"),
        edge=_against(rows, "edges"),
        model=[words.label(str(name)) for name in rows["model"]],
        explainer=[figures.EXPLAINERS[str(name)] for name in rows["explainer"]],
    )
    columns = _columns()
    st.dataframe(
        shown[list(columns)], hide_index=True, placeholder="–", column_config=columns,
        alt=f"{figures.QUALITY[view.metric]} of every explainer and defense beside noise and the image's edges",
    )  # fmt: skip
    st.markdown(f":material/lightbulb: {words.flat(_meaning(view))}", width=theme.TEXT_WIDTH)
    components.caption_with_data(view.settings(view.metric), view.table, "quality")
    with st.expander("All metrics side by side, as in Table VI", icon=":material/table_rows:"):
        st.caption("✗: not better than noise. Brackets: 95 % interval.")
        wide = tables.quality_wide(view.table)
        st.dataframe(
            wide.assign(
                model=[words.label(str(name)) for name in wide["model"]],
                explainer=[figures.EXPLAINERS[str(name)] for name in wide["explainer"]],
            ),
            hide_index=True, placeholder="–", alt="All metrics of every explainer and defense",
            column_config={"model": TEXT("Defense", pinned=True), "explainer": TEXT("Explainer")}
            | {name: TEXT(figures.QUALITY[str(name)]) for name in wide.columns[2:]},
        )  # fmt: skip


def _against(rows: pd.DataFrame, control: str) -> pd.Series:
    """What `tables.against` says of each row."""
    return pd.Series([tables.against(row, control) for row in rows.to_dict("records")], rows.index, dtype="string")


def _columns() -> dict[str, Any]:
    """The columns of the table, in their order."""
    columns: dict[str, Any] = {
        "model": TEXT("Defense", pinned=True), "explainer": TEXT("Explainer", pinned=True),
        "mean": NUMBER("Map", format="%.3f"), "mean_low": NUMBER("Map, low", format="%.3f"),
        "mean_high": NUMBER("Map, high", format="%.3f"),
        "noise": TEXT("Against noise", help="Better: the interval of the difference on the same images is above 0."),
        "random": NUMBER("Noise", format="%.3f"), "random_low": NUMBER("Noise, low", format="%.3f"),
        "random_high": NUMBER("Noise, high", format="%.3f"),
        "edge": TEXT("Against edges", help="The edges of the image know nothing of the model."),
        "edges": NUMBER("Edges", format="%.3f"), "edges_low": NUMBER("Edges, low", format="%.3f"),
        "edges_high": NUMBER("Edges, high", format="%.3f"),
    }  # fmt: skip
    return columns | {
        "members": NUMBER("Members", format="%.3f"), "nonmembers": NUMBER("Non-members", format="%.3f"),
        "n": NUMBER("n", format="%d", help="Images with this score."), "seeds": NUMBER("Seeds", format="%d"),
    }  # fmt: skip


def _meaning(view: View) -> str:
    text = """A map that is not better than noise says nothing of the model, whatever its value; one that is not better
    than the edges says no more than the picture does."""
    return f"{text} {quality_words.DIRECTION}" if view.metric == "sufficiency" else text


# ---- Fig. 5


def curves(view: View) -> None:
    """The three metrics of faithfulness over the explainers, a line per model (Fig. 5)."""
    st.subheader("Undefended against defended, as in Fig. 5", anchor=False)
    metrics = view.known(FAITHFULNESS)
    shown = view.all[view.all["metric"].isin(metrics)]
    components.chart(
        figures.quality_curves(shown, metrics),
        shown,
        name="faithfulness",
        takeaway=quality_words.moved(shown, metrics),
        meaning="""Lines that lie together mean that the defense changes little, not that the maps are good: look first
        whether they leave the grey bands of noise and edges. The paper calls its figure longitudinal without saying
        over what; here the curves go over the explainers, and maps in the course of training are not stored.""",
        settings=view.settings(*metrics),
    )


def localisation(view: View) -> None:
    """Whether the maps point at the object, or why that cannot be told."""
    st.subheader("Does the map point at the object?", anchor=False)
    metrics = view.known(LOCALISATION)
    if not metrics:
        st.info(f"Not shown: {_refused(view)}.", icon=":material/location_off:")
        return
    shown = view.all[view.all["metric"].isin(metrics)]
    components.chart(
        figures.quality_curves(shown, metrics),
        shown,
        name="localisation",
        takeaway=quality_words.moved(shown, metrics),
        meaning="""The drawn signs come with the sign's mask. Noise is the mask's share of the picture, so that a large
        object is hit often by chance. Pointing at the object is not the same as being faithful: a model may decide by
        the background.""",
        settings=view.settings(*metrics),
    )


def _refused(view: View) -> str:
    """Why there is no localisation, as the stage tells of the first map shown."""
    for row in view.all.to_dict("records"):
        told = loaders.judgement(view.preset.run(row["model"], view.preset.seeds[0]), row["explainer"]) or {}
        if reason := told.get("refused", {}).get(LOCALISATION[0]):
            return str(reason)
    return "no map that is stored has these scores"


# ---- one explainer


def profile(view: View) -> None:
    """One line per model through all scores of the explainer: faithfulness, localisation, likeness."""
    st.subheader(f"{figures.EXPLAINERS[view.explainer]}: all scores at once", anchor=False)
    missing = {name: one for name, one in view.runs.items() if name not in view.frames}
    components.offer(
        "quality", {name: loaders.explained(one, view.explainer) for name, one in missing.items()}, loaders.JUDGED
    )
    points = _points(view)
    if not len(points):
        return
    components.chart(
        figures.quality_profile(points),
        points,
        name=f"profile_{view.explainer}",
        takeaway=quality_words.profile(points, view.explainer),
        meaning="""Every axis goes from the worst to the best value shown, so that a step on one axis cannot be compared
        with a step on another. The last axes say how like the undefended model's maps a defended model's are; the
        undefended model has none.""",
        settings=view.settings(
            *view.known(FAITHFULNESS), one_explainer=True, likeness=f"seed {view.preset.seeds[0]}"
        ),
    )  # fmt: skip


def _points(view: View) -> pd.DataFrame:
    """The rows of `figures.quality_profile`: quality and likeness of the explainer, and their controls."""
    metrics = view.known((*FAITHFULNESS, *LOCALISATION))
    own = view.all[(view.all["explainer"] == view.explainer) & view.all["metric"].isin(metrics)]
    columns = ["model", "metric", "mean", "mean_low", "mean_high"]
    if not len(own):
        return pd.DataFrame(columns=[*columns, "less"])
    noise = own.groupby("metric", sort=False)[["random", "random_low", "random_high"]].mean().reset_index()
    parts = [own[columns], noise.set_axis(["metric", *columns[2:]], axis=1).assign(model="random")]
    defended = {name: loaders.explained(one, view.explainer) for name, one in view.runs.items() if name != "none"}
    found = {name: loaders.fidelity(one, view.explainer) for name, one in defended.items()}
    scores = {name: frame for name, frame in found.items() if frame is not None}
    if scores:
        like = _likeness(tuple(str(loaders.key("fidelity", defended[name])) for name in scores), scores)
        parts += [
            like[like["pair"] == "pair"][columns],
            like[like["pair"] == "shuffled"].groupby("metric", sort=False)[columns[2:]].mean().reset_index()
            .assign(model="random"),
        ]  # fmt: skip
    made = pd.concat(parts, ignore_index=True)
    return made.assign(less=made["metric"].isin(tables.LESS_IS_MORE))[[*columns, "less"]]


@st.cache_data(max_entries=64, show_spinner=False)
def _likeness(keys: tuple[str, ...], _scores: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """`tables.fidelity` over all images; the results' keys stand for the frames."""
    made = tables.fidelity(_scores)
    return made[made["images"] == "all"].rename(columns={"low": "mean_low", "high": "mean_high"})


def thresholds(view: View) -> None:
    """Sufficiency over its threshold, and what has to be known of it."""
    sweeps = {name: of["sweeps"] for name, of in view.told.items() if of}
    if view.metric != "sufficiency" or not sweeps:
        return
    st.subheader(f"{figures.EXPLAINERS[view.explainer]}: what the threshold does", anchor=False)
    made, chances = tables.quality_sweeps(sweeps), {name: float(view.told[name]["chance"]) for name in sweeps}
    one = next(iter(view.runs.values()))
    components.chart(
        figures.quality_sweep(made, chances, one.quality.threshold),
        made,
        name=f"sufficiency_{view.explainer}",
        takeaway=quality_words.sweep(made, chances, one.quality.threshold),
        meaning="""Where few images have a neighbour the score rests on these few; where all are neighbours it is the
        dotted line, whatever the maps are. A comparison that turns round with the threshold says nothing.""",
        settings=view.settings("sufficiency", one_explainer=True, interval=None),
    )
    told = [(words.label(name), state.plain(note, 300)) for name, of in view.told.items() for note in of["notes"]]
    notes = [f"{name}: {note}." for name, note in told]
    if notes:
        with st.expander(f"What was left out ({len(notes)})", icon=":material/info:"):
            st.markdown("\n".join(f"- {note}" for note in notes), width=theme.TEXT_WIDTH)


def images(view: View) -> None:
    """The metric of single images, members and non-members, beside both controls."""
    if not view.frames:
        return
    st.subheader("Behind the mean", anchor=False)
    offered = {name: words.label(name) for name in view.frames}
    model = state.choose("Maps of", offered, key="maps_of", default=next(iter(offered)))
    frame = view.frames[model]
    if view.metric not in frame:
        st.caption("These maps do not have this score.")
        return
    components.chart(
        figures.quality_images(frame, view.metric, model),
        frame,
        name=f"quality_{model}_{view.explainer}_{view.metric}",
        takeaway=quality_words.images(frame, view.metric, model),
        meaning="""A small mean may be a clear gain on few images or a faint one on all. Where members score otherwise
        than non-members, the map's quality itself tells them apart.""",
        settings=view.settings(view.metric, one_explainer=True, n=triplets.count(frame), interval=None),
    )


# ---- the images that change most


def changes(view: View) -> None:
    """The images on which a defense's map has lost or gained most, as triplets."""
    defended = {name: words.label(name) for name in view.frames if name != "none"}
    bare = loaders.judged(view.preset.run("none", view.preset.seeds[0]), view.explainer)
    if not defended or bare is None or view.metric not in bare:
        return
    st.subheader("What the defense changes, image by image", anchor=False)
    usual = "tier_full" if "tier_full" in defended else next(iter(defended))
    model = state.choose("Defended model", defended, key="changed_by", default=usual)
    table = tables.quality_change(bare, view.frames[model], view.metric)
    pair = _pair(view, model)
    kept = table[table.index.isin(pair.kept.index)] if pair.kept is not None else table.head(0)
    st.markdown(quality_words.change(table, view.metric, model, len(kept)), width=theme.TEXT_WIDTH)
    triplets.offer(pair, scores=False)
    scores = {name: frame.drop_duplicates("index").set_index("index")
              for name, frame in (("none", bare), (model, view.frames[model]))}  # fmt: skip
    half = min(SHOWN, len(kept) // 2)
    st.html(triplets.UNSMOOTHED)
    with st.container(key="triplets"):
        for heading, part in (("Lost most", kept.head(half)), ("Gained most", kept.tail(half)[::-1])):
            if len(part):
                st.markdown(f"**{heading}**")
            with st.container(horizontal=True, gap="small"):
                for row in part.reset_index().to_dict("records"):
                    before, after = (scores[name].loc[row["index"]].to_dict() for name in ("none", model))
                    _card(pair, int(row["index"]), quality_words.card(row, before, after, view.metric))
    if len(kept):
        gallery.legend(pair)
    components.caption_with_data(
        view.settings(view.metric, one_explainer=True, pair=triplets.PAIR, interval=None),
        table.rename_axis("row").reset_index(), f"change_{model}_{view.explainer}_{view.metric}",
    )  # fmt: skip


def _pair(view: View, model: str) -> triplets.View:
    """The undefended and one defended model, as the page Explanations shows them."""
    plain = {name: view.preset.run(name, view.preset.seeds[0]) for name in ("none", model)}
    found = {name: loaders.gallery(one, view.explainer) for name, one in plain.items()}
    galleries = {name: one for name, one in found.items() if one is not None}
    pixels = loaders.images(view.preset)
    return triplets.View(
        view.preset, view.explainer, {name: loaders.explained(one, view.explainer) for name, one in plain.items()},
        of=model, chosen=triplets.ALL, group="all", right="all", shared=False, absolute=False, opacity=0.0,
        galleries=galleries, scores={}, images=pixels, names=inspector.class_names(view.preset, pixels),
        numbers=triplets.numbers(plain, next(iter(galleries.values()), None)),
    )  # fmt: skip


def _card(pair: triplets.View, index: int, lines: Sequence[str]) -> None:
    """One triplet: the image, both maps, the scores, and the way to the page Sample."""
    looks = {name: one.look(index) for name, one in pair.galleries.items()}
    first = looks["none"]
    factor = max(1, round(gallery.PICTURE / max(first.map.shape)))
    across, image = factor * first.map.shape[1], pair.pixels(index)
    title, kind = pair.title(index), triplets.kind(bool(first.member))
    count = len(looks) + (image is not None)
    with st.container(border=True, width=count * (across + gallery.GAP) + gallery.EDGE, height="stretch", gap="xsmall"):
        st.markdown(f"**{title}**: {words.class_name(pair.names, first.label)}, {kind}")
        with st.container(horizontal=True, gap="small"):
            if image is not None:
                with st.container(width=across, gap=None):
                    data = str(pair.preset.experiment.data.fingerprint)
                    st.image(
                        gallery.input_png(data, index, factor, image), width=across, output_format="PNG",
                        alt=f"{title}, row {index} of the data set, a {kind}",
                    )  # fmt: skip
                    st.caption("Input")
            for name, look in looks.items():
                with st.container(width=across, gap=None):
                    gallery.model_map(pair, name, look, None, factor)
        st.caption(", ".join(lines))
        sitemap.link("sample", "Sample", gallery.sample_query(pair, index))


# ---- at the end


def about(open_: bool = False) -> None:
    """What each metric can and cannot tell."""
    with st.expander("What each metric can and cannot tell", icon=":material/menu_book:", expanded=open_):
        for metric in quality_words.ABILITIES:
            st.markdown(quality_words.ability(metric), width=theme.TEXT_WIDTH)
        st.markdown(words.flat(quality_words.DIRECTION), width=theme.TEXT_WIDTH)
