"""The page Quality: are maps faithful to the model, do they point at the object, and what does a defense cost them?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, gallery, inspector, loaders, quality_words, sitemap, state, theme, triplets, words
from tier import figures, tables
from tier.config import FAITHFULNESS, LOCALISATION, QUALITY_METRICS, Experiment
from tier.presets import Preset

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
        seeds = sorted({int(n) for n in self.all["seeds"]})
        made: dict[str, object] = {
            "n": self._counts(metrics, one_explainer),
            "explainer": components.explainer_text(one) if one_explainer else None,
            "class_explained": one.explain.target,
            **components.strength(self.runs),
            "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else None,
            **_of_metrics(one, metrics),
            "interval": f"95 % bootstrap over {'seeds, then images' if seeds[-1] > 1 else 'images'}",
            **extra,
        }
        return components.settings_line(self.preset, one, **made)

    def _counts(self, metrics: Sequence[str], one_explainer: bool) -> str:
        """How many images are judged, and of metrics that some do not have, how many have them."""
        table = self.table.assign(n=self.table["n"] / self.table["seeds"])
        most = table.groupby("images")["n"].max()
        text = f"{most['members']:.0f} members and {most['nonmembers']:.0f} non-members"
        shown = table[(table["images"] == "all") & table["mean"].notna()]
        shown = shown[shown["explainer"] == self.explainer] if one_explainer else shown
        for metric in metrics:
            held = shown.loc[shown["metric"] == metric, "n"]
            if len(held) and held.min() < most["all"]:
                counts = dict.fromkeys(f"{count:.0f}" for count in (held.min(), held.max()))
                text += f"; {figures.QUALITY[metric]} on {' to '.join(counts)} images"
        return text


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
    if {"mask_iou", "mask_mass"} & set(metrics):
        made["weight"] = "size of the map, without its sign"
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
        help="Of the thresholds, the profile, the single images and the triplets; table and curves show all.",
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
    st.markdown(quality_words.apart(rows, [view.metric]), width=theme.TEXT_WIDTH)
    groups = {
        name: view.table[(view.table["images"] == name) & (view.table["metric"] == view.metric)]
        .set_index(["model", "explainer"])["mean"]
        for name in ("members", "nonmembers")
    }  # fmt: skip
    shown = rows.join(pd.DataFrame(groups), on=["model", "explainer"])
    shown = shown.assign(
        noise=_against(rows, "random"),
        edge=_against(rows, "edges"),
        survives=pd.Series([tables.survives(row) for row in rows.to_dict("records")], rows.index, dtype="string"),
        model=[words.label(str(name)) for name in rows["model"]],
        explainer=[figures.EXPLAINERS[str(name)] for name in rows["explainer"]],
    )
    columns = _columns()
    st.dataframe(
        shown[list(columns)], hide_index=True, placeholder="–", column_config=columns,
        alt=f"{figures.QUALITY[view.metric]} of every explainer and defense beside noise and the image's edges",
    )  # fmt: skip
    meaning = f"{quality_words.MEANINGS[view.metric]} {quality_words.DIRECTION}"
    st.markdown(f":material/lightbulb: {words.flat(meaning)}", width=theme.TEXT_WIDTH)
    components.caption_with_data(view.settings(view.metric), view.table, "quality")
    with st.expander("All metrics side by side, as in Table VI", icon=":material/table_rows:"):
        st.caption(
            "✗: not better than noise. Brackets: 95 % interval. n: images with this score, where some have none."
        )
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
        "survives": TEXT("Against undefended", help="By the interval of the change, and by what another seed does."),
        "change": NUMBER("Change", format="%+.3f", help="On the same images; of Sufficiency, of its lead over chance."),
        "change_low": NUMBER("Change, low", format="%+.3f"), "change_high": NUMBER("Change, high", format="%+.3f"),
        "other": NUMBER("Other seed", format="%+.3f", help="Another seed of the undefended model less the first."),
        "other_low": NUMBER("Other seed, low", format="%+.3f"),
        "other_high": NUMBER("Other seed, high", format="%+.3f"),
        "members": NUMBER("Members", format="%.3f"), "nonmembers": NUMBER("Non-members", format="%.3f"),
        "gap": NUMBER("Members less others", format="%+.3f"),
        "gap_low": NUMBER("Members less others, low", format="%+.3f"),
        "gap_high": NUMBER("Members less others, high", format="%+.3f"),
        "n": NUMBER("n", format="%d", help="Images with this score."), "seeds": NUMBER("Seeds", format="%d"),
    }  # fmt: skip


# ---- do they survive?


def survival(view: View) -> None:
    """What each defense adds to each metric on the same images, beside what another undefended seed adds."""
    st.subheader("Do the explanations survive?", anchor=False)
    metrics = view.known(QUALITY_METRICS)
    shown = view.all[view.all["metric"].isin(metrics)]
    if not shown["change"].notna().any():
        st.caption("Shown once the undefended model and a defended one of the same seed are judged.")
        return
    lacking = "" if shown["other"].notna().any() else quality_words.ONE_SEED
    components.chart(
        figures.quality_changes(shown, metrics),
        shown,
        name="survival",
        takeaway=quality_words.survival(shown, metrics),
        meaning=f"""Each point is the defended map's score less the undefended one's, on the same images. Clear means
        that its interval leaves out 0 and goes beyond what another seed of the undefended model does. Lower is a loss
        only where the undefended map was better than its controls. {lacking}""",
        settings=view.settings(*metrics, sufficiency_change="of its lead over chance"),
    )


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
        meaning=f"""Lines that lie together mean that the defense changes little, not that the maps are good: look first
        whether they leave the grey bands of noise and edges. The paper calls its figure longitudinal without saying
        over what; here the curves go over the explainers, and maps in the course of training are not stored.
        {quality_words.DIRECTION}""",
        settings=view.settings(*metrics),
    )
    traps(view)


def traps(view: View) -> None:
    """What has to be known before Sufficiency is read: threshold, images, and what was left out."""
    one = next(iter(view.runs.values()))
    if text := quality_words.traps(view.all, one.quality.threshold):
        st.markdown(f":material/warning: {text}", width=theme.TEXT_WIDTH)
    told = [(words.label(name), state.plain(note, 300)) for name, of in view.told.items() for note in of["notes"]]
    if told:
        notes = [f"- {name}: {note}." for name, note in told]
        heading = f"What was left out, {figures.EXPLAINERS[view.explainer]}:"
        st.markdown("\n".join([heading, *notes]), width=theme.TEXT_WIDTH)


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
        takeaway=f"{quality_words.moved(shown, metrics)} {quality_words.apart(shown, metrics)}",
        meaning="""The drawn signs come with the sign's mask. Noise is what a random map scores: the mask's share of the
        picture for the pointing game and the mass, less for the IoU, whose two sets would have to meet; a large object
        is hit often by chance. Pointing at the object is not the same as being faithful: a model may decide by the
        background.""",
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
    metrics = view.known(QUALITY_METRICS)
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
        takeaway=quality_words.images(frame, view.metric, model, _row(view, model), view.runs[model].quality.runs),
        meaning="""A small mean may be a clear gain on few images or a faint one on all. Where members score otherwise
        than non-members, the map's quality itself tells them apart.""",
        settings=view.settings(view.metric, one_explainer=True, n=triplets.count(frame), interval=None),
    )


def _row(view: View, model: str) -> dict[Any, Any] | None:
    """The metric of a model's maps in the table, over all images, if it is there."""
    rows = view.all[(view.all["model"] == model) & (view.all["explainer"] == view.explainer)]
    found = rows[rows["metric"] == view.metric].to_dict("records")
    return dict(found[0]) if found else None


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
    runs = view.runs[model].quality.runs
    less, more = kept[kept["change"] < 0].head(SHOWN), kept[kept["change"] > 0].tail(SHOWN)[::-1]
    st.html(triplets.UNSMOOTHED)
    with st.container(key="triplets"):
        for heading, part in (("Lost most", less), ("Gained most", more)):
            if len(part):
                st.markdown(f"**{heading}** of the {len(kept)} kept")
            with st.container(horizontal=True, gap="small"):
                for row in part.reset_index().to_dict("records"):
                    before, after = (scores[name].loc[row["index"]].to_dict() for name in ("none", model))
                    _card(pair, int(row["index"]), quality_words.card(row, before, after, view.metric, runs))
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


def unjudged(view: View) -> None:
    """The defenses of the preset whose maps are not judged, and how they come to be."""
    judged = {str(name) for name in loaders.quality(view.preset)["model"]}
    missing = [str(d.name) for d in view.preset.compared if d.name not in judged]
    if not missing:
        return
    with st.expander(
        f"{len(missing)} of {len(view.preset.compared)} defenses are not judged", icon=":material/shield:"
    ):
        st.markdown(
            f"Not stored for any explainer: {', '.join(map(words.label, missing))}. Nothing on this page is about "
            f"them. Compute one here, under {figures.EXPLAINERS[view.explainer]}, or any in a terminal.",
            width=theme.TEXT_WIDTH,
        )
        chosen = state.choose("Defense", {name: words.label(name) for name in missing}, key="judge", default=missing[0])
        command = f"python -m tier quality {view.preset.name} --compute --defense {chosen}"
        st.code(f"{command} --explainer {view.explainer}", language="bash")
        one = loaders.explained(view.preset.run(chosen, view.preset.seeds[0]), view.explainer)
        if st.button("Compute it", key="compute_unjudged", icon=":material/play_arrow:"):
            components.submit("quality", one, [loaders.JUDGED])
        components.watch("quality", one)


def about(open_: bool = False) -> None:
    """What each metric can and cannot tell."""
    with st.expander("What each metric can and cannot tell", icon=":material/menu_book:", expanded=open_):
        for metric in quality_words.ABILITIES:
            st.markdown(quality_words.ability(metric), width=theme.TEXT_WIDTH)
        st.markdown(words.flat(quality_words.DIRECTION), width=theme.TEXT_WIDTH)
