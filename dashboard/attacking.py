"""The page Attack: its choices, the result in sentences, all explainers, the features; and one image's verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import attack_words, components, loaders, state, theme, words
from tier import figures, tables
from tier.config import Experiment
from tier.presets import Preset
from tier.store import Result

SHADOWS = {"transfer": "undefended", "adaptive": "same"}  # who attacks: `attack.shadow`
SETTINGS = {  # where an attack is judged: who attacks, which part of the stage's figures, the column's name
    "attack_test": ("adaptive", "attack_test", "Attack-test"),
    "transfer": ("transfer", "target", "Transfer"),
    "adaptive": ("adaptive", "target", "Adaptive"),
}
SCORES = "scores.parquet"


@dataclass(frozen=True)
class View:
    """What the reader has chosen; models in the order shown, the undefended one first, all with the explainer."""

    preset: Preset
    explainer: str
    models: dict[str, Experiment]
    # what has been looked up for this drawing of the page: finding a result anew costs a walk over all it depends on
    _found: dict[tuple[str, str, str], Result | None] = field(default_factory=dict, compare=False, repr=False)
    _scores: dict[tuple[str, str], pd.DataFrame | None] = field(default_factory=dict, compare=False, repr=False)

    def experiment(self, model: str, who: str, explainer: str | None = None) -> Experiment:
        """The experiment of one attack: on which model, by whom (`transfer`, `adaptive`), with which explainer."""
        return attacked(loaders.explained(self.models[model], explainer or self.explainer), who)

    def found(self, model: str, who: str, explainer: str | None = None) -> Result | None:
        """The stored attack, or None."""
        place = model, who, explainer or self.explainer
        if place not in self._found:
            self._found[place] = loaders.find("attack", self.experiment(*place))
        return self._found[place]

    def leaf(self, model: str, setting: str, explainer: str | None = None) -> Mapping[str, Any] | None:
        """The figures of an attack in one of `SETTINGS`, or None where it is not stored."""
        who, part, _ = SETTINGS[setting]
        result = self.found(model, who, explainer)
        return None if result is None else result.metrics.get(part)

    def scores(self, model: str, who: str) -> pd.DataFrame | None:
        """Scores of the target's images: index, member, label, score; None where they are not stored."""
        if (model, who) not in self._scores:
            frame = loaders.frame("attack", self.experiment(model, who), SCORES)
            kept = None if frame is None else frame[frame["set"] == "target"].drop(columns="set")
            self._scores[model, who] = kept
        return self._scores[model, who]

    @cached_property
    def attackers(self) -> list[tuple[str, str]]:
        """Every (model, who); without a defense there is nothing to know, so nobody is adaptive."""
        return [(model, who) for model in self.models for who in SHADOWS if who == "transfer" or model != "none"]

    def settings(self, **extra: object) -> str:
        """The settings line of what is shown; `extra` adds to it."""
        one = self.models["none"]
        shown = components.settings_line(
            self.preset, one, explainer=components.explainer_text(one), **settings_of(one),
            **components.strength(self.models),
        )  # fmt: skip
        return " · ".join([shown, *(f"{k.replace('_', ' ')}: {v}" for k, v in extra.items() if v is not None)])


def attacked(one: Experiment, who: str) -> Experiment:
    """A run with the attacker on it: `transfer` learns on an undefended shadow, `adaptive` on one with its defense."""
    return one.with_(attack=one.attack.model_copy(update={"shadow": SHADOWS[who]}))


def settings_of(one: Experiment) -> dict[str, object]:
    """What an attack depends on besides model and explainer, for a settings line."""
    attack, levels = one.attack, one.attack.trajectory.levels
    return {
        "operator": attack.trajectory.operator,
        "levels": f"{len(levels)}, {words.percent(levels[0])} to {words.percent(levels[-1])}",
        "attack_seed": attack.seed,
    }


def tuned(view: View, models: list[tuple[str, str]]) -> str | None:
    """The alpha that each attacker's shadow data chose, for a settings line; once where all chose the same."""
    found = {(model, who): view.found(model, who) for model, who in models}
    chosen = {place: result.metrics.get("alpha") for place, result in found.items() if result is not None}
    if len(set(chosen.values())) == 1:
        return str(next(iter(chosen.values())))
    return ", ".join(f"{alpha} ({words.label(model)}, {who})" for (model, who), alpha in chosen.items()) or None


def sizes(view: View) -> dict[str, str]:
    """How many shadow images the attack learnt from and was tested on, for a settings line."""
    for model, who in view.attackers:
        result = view.found(model, who)
        test = None if result is None else result.metrics.get("attack_test")
        if test:
            share = view.models[model].attack.holdout
            test_n = (int(test["members"]), int(test["nonmembers"]))
            train_n = [round(n / share) - n for n in test_n]
            return {
                "attack-train": f"about {train_n[0]:,} + {train_n[1]:,} shadow images",
                "attack-test": f"{test_n[0]:,} + {test_n[1]:,}",
            }
    return {}


# ---- choices


def choose(preset: Preset) -> View:
    """Draw the choices that all parts of the page share."""
    explainer = state.choose("Explainer", figures.EXPLAINERS, key="explainer", default=preset.explainers[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        first = st.container(width="content")
        at = components.choose_strength(preset)
        with first:
            models = components.choose_beside(preset, at)
    return View(preset, explainer, {name: loaders.explained(one, explainer) for name, one in models.items()})


def choose_metric() -> str:
    """Which figure of an attack is shown."""
    with st.container(width=360):
        return state.select("Figure", tables.ATTACK_METRICS, key="metric", help="The glossary explains each of them.")


def stored(view: View) -> bool:
    """Whether any attack on the models chosen is stored, with this explainer."""
    return any(view.found(model, who) is not None for model, who in view.attackers)


def offer(view: View) -> None:
    """Offer the attacks with the explainer chosen that are not stored."""
    missing = {
        f"{words.label(model)}, {who}": view.experiment(model, who)
        for model, who in view.attackers
        if view.scores(model, who) is None
    }
    components.offer("attack", missing, SCORES)


# ---- the result in plain sentences


def sentences(view: View) -> None:
    """One sentence per model: how often the attacker is right, beside the simplest attack; and what knowing helps."""
    lines = []
    for model in view.models:
        figure = tables.attack_figure(view.leaf(model, "transfer"), "balanced_accuracy")
        said = attack_words.attacker(figure, gap(view, model), knowing(view, model))
        lines.append(f"- **{theme.tag(model)}**: {said}")
    st.markdown("\n".join(lines), width=theme.TEXT_WIDTH)
    st.caption(
        "Of 100 images, half of them members; a coin gets 50. In brackets: 95 % bootstrap intervals over images; one "
        "attacker is compared with the other on the same images. Thresholds are those of the shadow model."
    )


def gap(view: View, model: str) -> float | None:
    """The gap attack's balanced accuracy, from the model's accuracies; None where they are not stored."""
    trained = loaders.find("train", view.models[model])
    value = None if trained is None else trained.metrics.get("gap_balanced_accuracy")
    return None if value is None else float(value)


def knowing(view: View, model: str) -> dict[str, float] | None:
    """By how much the adaptive attacker beats the other on the same images; None where both are not stored."""
    if model == "none":
        return None
    first, second = (_verdicts(view, model, who) for who in SHADOWS)
    if first is None or second is None:
        return dict.fromkeys(("difference", "low", "high"), float("nan"))
    return tables.gain(first, second)


def _verdicts(view: View, model: str, who: str) -> pd.DataFrame | None:
    """Whether an attacker is right about each image at the transferred threshold; None where that is not stored."""
    scores, leaf = view.scores(model, who), view.leaf(model, who)
    if scores is None or leaf is None or leaf.get("threshold") is None:
        return None
    return tables.verdicts(scores, float(leaf["threshold"]))


# ---- who wins: transfer beside adaptive, and the ROC


def result(view: View) -> None:
    """Transfer and adaptive side by side, and both curves on log-log axes."""
    if not stored(view):
        st.info("No attack with this explainer is stored for these models.", icon=":material/hourglass_empty:")
        return
    st.subheader("Does knowing the defense help?", anchor=False)
    metric = choose_metric()
    rows = _side_by_side(view, metric)
    refusals(rows, metric)
    if rows["value"].notna().any():
        _show_side_by_side(view, rows, metric)
    st.subheader("At few false alarms", anchor=False)
    _roc(view)


def _show_side_by_side(view: View, rows: pd.DataFrame, metric: str) -> None:
    """Dots with intervals: filled for who does not know the defense, open for who does."""
    said = {
        str(model): "; ".join(f"{row['who']} {tables.figure_text(row)}" for row in part.to_dict("records")) + "."
        for model, part in rows.groupby("model", sort=False)
    }
    components.chart(
        figures.attack_dots(
            rows, tables.ATTACK_METRICS[metric], "filled: transfer, open: adaptive<br>95 % intervals; dotted: guessing",
            "right: leaks more", neutral(metric),
        ),
        rows.drop(columns=["name", "text", "open"]), name=f"attack_{view.explainer}_{metric}", takeaway=said,
        meaning="""Transfer: the attacker learns on an undefended model and tries the same on the target. Adaptive: the
        attacker knows the defense and learns on a model that has it. A defense holds only where the adaptive attacker
        gains nothing: otherwise it merely moves the traces to where an unprepared attacker does not look.""",
        settings=view.settings(alpha=tuned(view, view.attackers), **sizes(view)),
    )  # fmt: skip


def neutral(metric: str) -> float:
    """What guessing reaches."""
    return {"tpr_at_0.01": 0.01, "tpr_at_0.001": 0.001, "tnr_at_0.001": 0.001}.get(metric, 0.5)


def _side_by_side(view: View, metric: str) -> pd.DataFrame:
    rows = []
    for model, who in view.attackers:
        figure = tables.attack_figure(view.leaf(model, who), metric)
        look = figures.style(model)
        rows.append(
            {"name": look.label, "model": model, "who": who, "open": who == "adaptive", **figure,
             "text": f"{look.label}, {who}<br>{tables.figure_text(figure)}"}
        )  # fmt: skip
    return pd.DataFrame(rows)


def refusals(rows: pd.DataFrame, metric: str) -> None:
    """Why figures are refused, each reason once."""
    reasons = [reason for reason in dict.fromkeys(rows["refused"].dropna()) if reason != "not stored"]
    if reasons:
        why = "; ".join(state.plain(reason, 200) for reason in reasons)
        st.caption(f":material/block: {tables.ATTACK_METRICS[metric]} is refused: {why}.")


def _roc(view: View) -> None:
    """The curves of every attacker stored, with the null band of as many images as the first one's."""
    curves, counts = [], {}
    for model, who in view.attackers:
        scores = view.scores(model, who)
        made = None if scores is None else tables.roc(scores)
        if scores is None or made is None or not len(made):
            continue
        member = scores.loc[scores["score"].notna(), "member"].astype(bool)
        counts[model, who] = int(member.sum()), int((~member).sum())
        curves.append(made.assign(model=model, setting=who))
    if not curves:
        st.caption("There are no scores of members and non-members to draw a curve from.")
        return
    frame = pd.concat(curves, ignore_index=True)[["model", "setting", "fpr", "tpr"]]
    null = tables.roc_null(*next(iter(counts.values())))
    components.chart(
        figures.roc(frame, null), frame, name=f"attack_roc_{view.explainer}",
        takeaway=attack_words.roc(frame, counts),
        meaning="""An attack that is right for half of all images and wrong for the other half does little harm; one
        that is hardly ever wrong about the few it names does much. Look at the left end: a curve inside the grey band
        there is no better than shuffled memberships. A curve begins where one false alarm is its first point.""",
        settings=view.settings(alpha=tuned(view, list(counts)), **sizes(view)),
    )  # fmt: skip


# ---- every explainer


def explainers(view: View) -> None:
    """The table explainer x defense x figure, with intervals and what is refused."""
    metric = choose_metric()
    leaves = {
        (explainer, model, setting): view.leaf(model, setting, explainer)
        for explainer in figures.EXPLAINERS
        for model in view.models
        for setting in SETTINGS
    }
    frame = tables.attacks(leaves)
    part = frame[frame["metric"] == metric]
    known = part[part["value"].notna()]
    st.markdown(_best(known, metric), width=theme.TEXT_WIDTH)
    cells = tables.attack_cells(frame, metric)
    shown = cells.assign(
        explainer=[figures.EXPLAINERS[name] for name in cells["explainer"]],
        model=[figures.style(name).label for name in cells["model"]],
    )
    columns: dict[str, Any] = {
        "explainer": st.column_config.TextColumn("Explainer", pinned=True),
        "model": st.column_config.TextColumn("Model"),
    }
    columns |= {name: st.column_config.TextColumn(text) for name, (_, _, text) in SETTINGS.items()}
    alt = f"{tables.ATTACK_METRICS[metric]} by explainer and model"
    st.dataframe(shown, hide_index=True, column_config=columns, height="content", alt=alt)
    st.markdown(
        ":material/lightbulb: In brackets the 95 % interval; for rates the raw counts, such as 62 of 1,000 members "
        "found at 9 of 1,000 false alarms. Attack-test: images of a shadow model with the same defense, which is most "
        "likely what the paper's Table V gives. Without a defense, transfer and adaptive are the same attack.",
        width=theme.TEXT_WIDTH,
    )
    refusals(part, metric)
    if missing := int((part["refused"] == "not stored").sum()):
        st.caption(f"{missing} of {len(part)} cells are not stored. All of them, in a terminal:")
        st.code(f"python -m tier attack {view.preset.name}", language="bash")
    one = view.models["none"]
    settings = components.settings_line(
        view.preset, one, explainers="each with its own settings", **settings_of(one), **sizes(view),
        **components.strength(view.models),
    )  # fmt: skip
    components.caption_with_data(settings, frame, f"attack_{view.preset.name}", key="attack_table")


def _best(known: pd.DataFrame, metric: str) -> str:
    """Which explainer helps the adaptive attacker most, for each model."""
    lines = []
    for model, part in known[known["setting"] == "adaptive"].groupby("model", sort=False):
        top = part.iloc[int(part["value"].to_numpy().argmax())]
        lines.append(
            f"- **{theme.tag(str(model))}**: of {len(part)} explainers, {figures.EXPLAINERS[top['explainer']]} helps "
            f"an adaptive attacker most: {tables.figure_text(top.to_dict())}."
        )
    return "\n".join(lines) or f"No {tables.ATTACK_METRICS[metric]} of an adaptive attacker is stored."


# ---- what the filter kept


def features(view: View) -> None:
    """What Welch's filter saw of the trajectory features on the shadow, and what each feature is worth."""
    shadows = {model: f"{figures.style(model).label} shadow" for model in view.models}
    model = state.choose(
        "Shadow model", shadows, key="shadow", default="none",
        help="The attack learns on a shadow: an undefended one (transfer), or one with the defense (adaptive).",
    )  # fmt: skip
    who = "transfer" if model == "none" else "adaptive"
    table = loaders.frame("attack", view.experiment(model, who), "features.parquet")
    if table is None:
        st.caption("The attack from this shadow model is not stored with this explainer.")
        return
    found = view.found(model, who)
    alpha = None if found is None else found.metrics.get("alpha")
    settings = view.settings(
        shadow=shadows[model],
        alpha=alpha,
        filter=f"Welch's t test at {view.models[model].audit.welch:g}",
        **sizes(view),
    )
    said = attack_words.kept_features(table)
    components.chart(
        figures.attack_features(table[table["level"].notna()], model), table,
        name=f"attack_features_{view.explainer}_{model}", takeaway=said,
        meaning="""Each point is one feature: the confidence after so many pixels have gone. The filter keeps those at
        which members and non-members of the shadow differ by more than chance explains (one in twenty passes by
        chance); only these, the loss and the predicted class reach the attack.""",
        settings=settings,
    )  # fmt: skip
    worth = table[table["kept"].astype(bool)].nlargest(12, "importance")
    rows = worth.assign(
        name=[attack_words.feature(row) for row in worth.to_dict("records")], model=model, open=False,
        value=100 * worth["importance"], low=float("nan"), high=float("nan"),
        text=[f"{attack_words.feature(row)}: {100 * row['importance']:+.2f}" for row in worth.to_dict("records")],
    )  # fmt: skip
    components.chart(
        figures.attack_dots(
            rows, "What each feature is worth", "the twelve that matter most",
            "right guesses of 100 lost when it is shuffled", 0.0,
        ),
        table[["feature", "order", "level", "kept", "importance"]],
        name=f"attack_importance_{view.explainer}_{model}", takeaway=attack_words.importance(table),
        meaning="""Features go together: the confidence with 20 % removed is much like that with 30 %, so either can
        stand in for the other and both look cheap to lose. If loss or class lead, the explanation adds little.""",
        settings=settings,
    )  # fmt: skip


# ---- one image, for the page Sample


def show_reasons(preset: Preset, models: Mapping[str, Experiment], row: int) -> None:
    """What the attacks from outside say of one image of the data set, and which features drove them.

    `models`: the runs, with their explainer. Tells neither the image's membership nor its row.
    """
    st.subheader("The attack from outside", anchor=False)
    offered = {"transfer": "Transfer", "adaptive": "Adaptive"}
    who = state.choose(
        "Attacker", offered, key="attacker", default="transfer",
        help="Transfer: learnt on an undefended shadow model. Adaptive: on one with the model's defense.",
    )  # fmt: skip
    views = {model: attacked(one, who) for model, one in models.items()}
    for column, (model, view) in zip(st.columns(len(views), gap="medium"), views.items(), strict=True):
        with column:
            st.markdown(f"**{theme.tag(model)}**")
            _reasons(model, view, row)
    components.offer("attack", {m: v for m, v in views.items() if loaders.find("attack", v, [SCORES]) is None}, SCORES)
    st.markdown(
        ":material/lightbulb: This attacker has never seen the model's training list: it learnt on a shadow model and "
        "looks at confidences, loss and class only. A bar is what the score would lose if the feature were average; "
        "features work together, so bars need not add up to the score.",
        width=theme.TEXT_WIDTH,
    )
    first = next(iter(views.values()))
    st.caption(
        components.settings_line(
            preset, first, explainer=figures.EXPLAINERS[first.explain.name], attacker=who,
            **settings_of(first), **components.strength(models),
        )
    )  # fmt: skip


def _reasons(model: str, view: Experiment, row: int) -> None:
    """One model's verdict on an image, with its largest contributions."""
    scores, found = loaders.frame("attack", view, SCORES), loaders.find("attack", view)
    own = None if scores is None else scores[(scores["set"] == "target") & (scores["index"] == row)]
    if own is None or found is None or not len(own):
        st.caption("The attack has not scored this image yet.")
        return
    leaf = found.metrics.get("target") or {}
    said = attack_words.verdict(float(own["score"].iloc[0]), float(leaf.get("threshold") or 0.0))
    st.markdown(said)
    kept = loaders.frame("attack", view, "contributions.parquet")
    table = loaders.frame("attack", view, "features.parquet")
    of = None if kept is None else kept[kept["index"] == row]
    if of is None or table is None or not len(of):
        st.caption("What drove the score is kept for the images with the lowest numbers only.")
        return
    reasons = tables.reasons(of.iloc[0].to_dict(), table)
    reasons = reasons.assign(text=[attack_words.feature(line) for line in reasons.to_dict("records")])
    name = f"attack_reasons_{model}"
    components.plot(
        figures.reasons(reasons, model), name, f"{words.label(model)}: {said.replace('**', '')}", key=f"reasons_{model}"
    )
    components.download(reasons, name, key=f"reasons_{model}")


TABS: dict[str, Callable[[View], None]] = {
    "Result": result, "All explainers": explainers, "What it looks at": features
}  # fmt: skip
