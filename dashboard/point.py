"""The Train page's controls and the point they name: its figures when stored, its progress while it trains."""

from typing import Literal

import streamlit as st

from dashboard import components, loaders, sitemap, state, theme, words
from tier import figures, tables
from tier.config import DefenseName, Experiment
from tier.presets import Preset

VARIANTS: dict[DefenseName, str] = {"tier_full": "Full", "tier_reg": "Reg-only"}
MOST_LAMBDA, MOST_BETA, MOST_EPOCHS = 30.0, 5.0, 200  # beyond these nothing new is seen, or the class waits too long


def trainable(preset: Preset) -> bool:
    """Whether the preset has a defense that lambda and beta belong to."""
    return any(defense.name in VARIANTS for defense in preset.defenses)


def choose(preset: Preset) -> tuple[Experiment, bool]:
    """The point that the form names, and whether Train was pressed just now."""
    names = {name: text for name, text in VARIANTS.items() if any(d.name == name for d in preset.defenses)}
    usual = preset.defense(next(iter(names))).tier
    free = state.switch("Off the grid", key="free", help="Any lambda and beta; the point is trained when it is new.")
    with st.form("point"):
        name = state.choose("TIER", names, key="variant", default=next(iter(names)), help="Full adds augmentation.")
        if free:
            lam = state.number("Lambda", 0.0, MOST_LAMBDA, key="lambda_free", default=usual.lambda_, step=0.5)
            beta = state.number("Beta", 0.0, MOST_BETA, key="beta_free", default=usual.beta, step=0.05)
        else:
            lam = state.stop("Lambda", sorted({*preset.lambdas, usual.lambda_}), key="lambda", default=usual.lambda_)
            beta = state.stop("Beta", sorted({*preset.betas, usual.beta}), key="beta", default=usual.beta)
        left, right = st.columns(2)
        with left:
            epochs = state.whole("Epochs", 1, MOST_EPOCHS, key="epochs", default=preset.experiment.train.epochs)
        with right:
            seed = state.whole("Seed", 0, 9999, key="seed_free", default=preset.seeds[0])
        asked = st.form_submit_button("Train", type="primary", icon=":material/play_arrow:", width="stretch")
    one = preset.point(name, lam, beta, seed)
    return one.with_(train=one.train.model_copy(update={"epochs": epochs})), asked


def show(preset: Preset, one: Experiment, asked: bool) -> None:
    """The chosen point: stored, in training, or not yet asked for."""
    report = loaders.metrics(one)
    if report is not None:
        _stored(preset, one, report)
        return
    if asked:
        components.submit("report", one)
    if not components.watch("report", one):
        st.info(
            "Press Train: it then trains in the background, with live curves here.",
            title="This point has not been trained yet",
            icon=":material/model_training:",
        )


def among(preset: Preset, one: Experiment) -> None:
    """Where the chosen point lies among the runs of the preset's own defenses; the rest is on the page Trade-off."""
    runs = loaders.runs(preset)
    st.subheader("Accuracy against leak", anchor=False)
    if not len(runs):
        components.empty(preset, "finished runs")
        return
    chosen = runs[runs["key"] == loaders.key("report", one)]
    own = runs[runs["model"].isin([defense.name for defense in preset.defenses])]
    choices = tables.options(runs, loaders.paths(preset))
    setting = choices[choices["setting"].isin(chosen["setting"])]
    matched, frontier = tables.matched(setting, tables.alternatives(choices)), tables.frontier(choices)
    components.chart(
        figures.leak(own, tables.paths([]), frontier, chosen, height=480),
        own.drop(columns=["setting"]),
        name="accuracy_against_leak",
        takeaway=words.standing_of(matched, frontier),
        meaning="""Every point is a trained model: to the right it is better on new images, further down it gives less
        away. The grey steps are the least mean leak to be had at each accuracy, by any defense or by stopping early: a
        setting is worth its trouble only there. A single point below them may be luck.""",
        settings=components.settings_line(
            preset, preset.experiment, runs=len(own), seeds=words.seeds(tables.seed_counts(choices)),
            leak="the stronger of gap attack and audit", audit=components.audit_text(preset),
            ring="the point chosen above" if len(chosen) else None,
        ),
    )  # fmt: skip
    query = {"preset": preset.name} | ({"run": str(chosen["text"].iloc[0])} if len(chosen) else {})
    sitemap.link("tradeoff", "Compare with every defense, and at equal accuracy", query)


def _stored(preset: Preset, one: Experiment, report: dict[str, object]) -> None:
    """The figures of a finished point beside the undefended model's, and how its training went."""
    row = tables.run("", one, report)
    bare = loaders.metrics(preset.run("none", preset.seeds[0]))
    base = None if bare is None else tables.run("", preset.run("none", preset.seeds[0]), bare)
    st.markdown(f"**{theme.tag(row['model'])}** · {words.point(row)}")
    if not one.canonical().defense.regularizes:
        when = "At lambda 0" if one.defense.tier.lambda_ == 0 else f"For the first {one.defense.tier.warmup} epochs"
        st.caption(f"{when} TIER is off: this is the same training without it.")
    shown: tuple[tuple[str, str, Literal["normal", "inverse"]], ...] = (
        ("New images right", "test_accuracy", "normal"),
        ("Audit right", "audit", "inverse"),
        ("Gap attack right", "gap", "inverse"),
    )
    with st.container(horizontal=True, gap="large"):
        for label, name, better in shown:
            components.share(label, row[name], None if base is None else base[name], better)
    if row["features"] == 0:
        st.caption(words.BLIND)
    events = loaders.frame("train", one, "events.parquet")
    if events is None:
        st.caption("The training curves of this run are not stored.")
        return
    components.chart(
        figures.training(events, row["model"], one.train.epochs),
        events,
        name="training",
        takeaway=words.training(events),
        meaning="""While solid and dashed lie together the model treats seen and new images alike. As they part, even
        the simplest attacks below begin to work.""",
        settings=components.settings_line(
            preset, one, seed=one.train.seed, epochs=one.train.epochs, audit=components.audit_text(preset)
        ),
    )
