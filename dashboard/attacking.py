"""The page Attack: its choices, the result in sentences, all explainers, the features; and one image's verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import attack_words, components, loaders, state, theme, words
from tier import experiment, figures, tables
from tier.attacks import ATTACKS
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
    _scores: dict[tuple[str, str, str], pd.DataFrame | None] = field(default_factory=dict, compare=False, repr=False)

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

    def scores(self, model: str, who: str, explainer: str | None = None) -> pd.DataFrame | None:
        """Scores of the target's images: index, member, label, score; None where they are not stored."""
        place = model, who, explainer or self.explainer
        if place not in self._scores:
            frame = loaders.frame("attack", self.experiment(*place), SCORES)
            self._scores[place] = None if frame is None else frame[frame["set"] == "target"].drop(columns="set")
        return self._scores[place]

    def best(self, model: str) -> str | None:
        """The explainer that helps the attacker who knows the defense most on attack-test, as the command line has it.

        None where no such attack is stored.
        """
        return tables.strongest({name: self.leaf(model, "attack_test", name) for name in figures.EXPLAINERS})

    @cached_property
    def attackers(self) -> list[tuple[str, str]]:
        """Every (model, who); without a defense there is nothing to know, so nobody is adaptive."""
        return [(model, who) for model in self.models for who in SHADOWS if who == "transfer" or model != "none"]

    def settings(self, of: str | None = None, **extra: object) -> str:
        """The settings line of what is shown, of all models or of one alone; `extra` adds to it."""
        one = self.models[of or "none"]
        shown = components.settings_line(
            self.preset, one, explainer=components.explainer_text(one), **settings_of(one),
            **components.strength(self.models if of is None else {of: one}),
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


def missing(view: View) -> dict[str, Experiment]:
    """The attacks with the explainer chosen that are not stored, by name."""
    return {
        f"{words.label(model)} ({who})": view.experiment(model, who)
        for model, who in view.attackers
        if view.scores(model, who) is None
    }


def offer(view: View) -> None:
    """Offer the attacks with the explainer chosen that are not stored, and say what they cost."""
    wanted = missing(view)
    components.offer("attack", wanted, SCORES)
    if wanted:
        st.caption(cost(view.preset, wanted, _models_of))


def nothing(view: View) -> None:
    """No attack with this explainer is stored: how to compute all of them, and what it costs."""
    st.info(
        f"No attack with {figures.EXPLAINERS[view.explainer]} maps on these models is stored. Compute all attacks on "
        f"the preset {view.preset.name} in a terminal, as below, or those of this view here.",
        title="Nothing to show yet",
        icon=":material/inventory_2:",
    )
    st.code(f"python -m tier attack {view.preset.name}", language="bash")


def _models_of(one: Experiment) -> list[Experiment]:
    """The models that an attack needs: the target, and the attacker's own."""
    return [one, experiment.shadow(one, adaptive=one.attack.shadow == "same")]


def cost(preset: Preset, wanted: Mapping[str, Experiment], models_of: Callable[[Experiment], list[Experiment]]) -> str:
    """What results cost that are not stored: the models still to be trained, and how long stored ones took.

    `models_of`: the models that one of them needs, which train about as long as its target.
    """
    known: set[str | None] = set()
    absent, seconds = 0, []
    for asked in wanted.values():
        needed = {loaders.key("train", one): one for one in models_of(asked)}
        new = [key for key, one in needed.items() if key not in known and not loaders.has_weights(one)]
        known |= set(needed)
        absent += len(new)
        took = loaders.metrics(loaders.explained(asked, preset.experiment.explain.name)) or {}
        if new and took.get("seconds_per_epoch"):
            seconds.append(len(new) * took["seconds_per_epoch"] * asked.train.epochs)
    if not absent:
        return "The models for this are stored; what is left to make are explanations and the attack itself."
    text = f"{absent} models are to be trained first" if absent > 1 else "A model is to be trained first"
    if seconds:
        text += f", about {components.duration(sum(seconds))} in all where the stored ones were trained"
    return f"{text}; then the explanations of all images are made."


# ---- the result in plain sentences


def sentences(view: View) -> None:
    """Per model how often the attacker is right, what knowing the defense adds, and what others get without maps."""
    lines = []
    for model in view.models:
        first, *more = attack_words.attacker(found(view, model))
        lines += [f"- **{theme.tag(model)}**: {first}", *(f"    - {line}" for line in more)]
    st.markdown("\n".join(lines), width=theme.TEXT_WIDTH)
    st.caption(
        "Of 100 images, half of them members; guessing gets 50. In brackets: 95 % intervals over images, a bootstrap "
        "for right guesses and DeLong's for AUC; attacks are compared with one another on the same images. Thresholds "
        "come from shadow or reference models. One training seed only: what another training would change is not in "
        "any interval."
    )


def found(view: View, model: str) -> attack_words.Found:
    """What is known of one model, for its sentence."""
    figure = {who: tables.attack_figure(view.leaf(model, who), "balanced_accuracy") for who in SHADOWS}
    explainer, defended = figures.EXPLAINERS[view.explainer], model != "none"
    right, ranks = knowing(view, model)
    naive = figure["transfer"] if defended else None
    return attack_words.Found(explainer, figure["adaptive"], naive, gap(view, model), right, ranks, rivals(view, model))


def rivals(view: View, model: str) -> attack_words.Rivals | None:
    """What the attacks of the battery get on the same images; None where they or the attack are not stored."""
    one, own = of_battery(view, model), _verdicts(view, model, "adaptive")
    result, frame, scores = loaders.find("battery", one), loaders.frame("battery", one, SCORES), view.scores(
        model, "adaptive"
    )  # fmt: skip
    if result is None or frame is None or own is None or scores is None:
        return None
    told = {name: result.metrics[name] for name in ATTACKS if isinstance(result.metrics.get(name), Mapping)}
    rates = {name: leaf["balanced_accuracy"] for name, leaf in told.items() if leaf["balanced_accuracy"] is not None}
    if not {"loss", "gap", "loss_mlp"} <= set(rates):
        return None
    others = {name: frame[["index", "member", name]].rename(columns={name: "score"}) for name in rates}
    over = {
        name: tables.gain(tables.verdicts(others[name], float(told[name]["threshold"])), own)
        for name in ("loss", "gap", "loss_mlp")
    }
    rates["agp"] = float(own.groupby("member")["right"].mean().mean())
    best = max(rates, key=lambda name: rates[name])
    area = tables.auc_gain(others["loss_mlp"], scores)
    return attack_words.Rivals(
        rates["loss"], over["loss"], over["gap"], over["loss_mlp"], area, (best, rates[best])
    )  # fmt: skip


def of_battery(view: View, model: str) -> Experiment:
    """The run whose battery is shown: with the preset's own explainer, whose maps three of its attacks look at."""
    return loaders.explained(view.models[model], view.preset.experiment.explain.name)


def gap(view: View, model: str) -> float | None:
    """The gap attack's balanced accuracy, from the model's accuracies; None where they are not stored."""
    trained = loaders.find("train", view.models[model])
    value = None if trained is None else trained.metrics.get("gap_balanced_accuracy")
    return None if value is None else float(value)


def knowing(view: View, model: str) -> tuple[attack_words.Gain | None, attack_words.Gain | None]:
    """By how much the adaptive attacker beats the other on the same images, in right guesses and in AUC.

    None without a defense, NaN where both attacks are not stored.
    """
    if model == "none":
        return None, None
    said = [_verdicts(view, model, who) for who in SHADOWS]
    scores = [view.scores(model, who) for who in SHADOWS]
    blank = dict.fromkeys(("difference", "low", "high"), float("nan"))
    right = blank if said[0] is None or said[1] is None else tables.gain(said[0], said[1])
    ranks = blank if scores[0] is None or scores[1] is None else tables.auc_gain(scores[0], scores[1])
    return right, ranks


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
        st.caption("There is no attack with this explainer to show.")
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
    said = {}
    for name, part in rows.groupby("model", sort=False):
        model = str(name)
        numbers = "; ".join(f"{row['who']} {tables.figure_text(row)}" for row in part.to_dict("records"))
        said[model] = f"{attack_words.answer(*knowing(view, model))} {tables.ATTACK_METRICS[metric]}: {numbers}."
    below = f"filled: transfer, open: adaptive<br>{tables.INTERVALS[metric]}<br>dotted: guessing"
    components.chart(
        figures.attack_dots(rows, tables.ATTACK_METRICS[metric], below, "right: leaks more", neutral(metric)),
        rows.drop(columns=["name", "text", "open"]), name=f"attack_{view.explainer}_{metric}", takeaway=said,
        meaning="""Transfer: the attacker learns on an undefended model and tries the same on the target. Adaptive: the
        attacker knows the defense and learns on a model that has it. What counts is the open marker: how near the
        adaptive attacker stays to guessing, compared with the undefended model. What transfer leaves out was hidden
        only from an attacker who does not know the defense.""",
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
    """Why figures are refused and of which models, each reason once."""
    for reason, part in rows[rows["refused"].notna() & (rows["refused"] != "not stored")].groupby(
        "refused", sort=False
    ):
        models = ", ".join(words.label(str(model)) for model in dict.fromkeys(part["model"]))
        why = state.plain(reason, 200)
        st.caption(f":material/block: {tables.ATTACK_METRICS[metric]} is refused for {models}: {why}.")


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
    bands = null.assign(model="shuffled memberships", setting="95 %").rename(
        columns={"low": "tpr_low", "high": "tpr_high"}
    )
    components.chart(
        figures.roc(frame, null), pd.concat([frame, bands], ignore_index=True), name=f"attack_roc_{view.explainer}",
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
    st.markdown(_best(view, known, metric), width=theme.TEXT_WIDTH)
    cells = tables.attack_cells(frame, metric)
    shown = cells.assign(
        explainer=[figures.EXPLAINERS[name] for name in cells["explainer"]],
        model=[figures.style(name).label for name in cells["model"]],
    )
    columns: dict[str, Any] = {
        "explainer": st.column_config.TextColumn("Explainer", pinned=True, width=170),
        "model": st.column_config.TextColumn("Model"),
    }
    columns |= {name: st.column_config.TextColumn(text) for name, (_, _, text) in SETTINGS.items()}
    alt = f"{tables.ATTACK_METRICS[metric]} by explainer and model"
    st.dataframe(shown, hide_index=True, column_config=columns, height="content", alt=alt)
    st.markdown(
        f":material/lightbulb: {_INTERVAL_TEXTS[metric]} Attack-test: images of a shadow model with the "
        "same defense, which is most likely what the paper's Table V gives. Without a defense, transfer and adaptive "
        "are the same attack. One training seed only.",
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


_BOOTSTRAP = "In brackets the 95 % bootstrap interval over images."
_RATE = (
    "In brackets the exact 95 % interval of the rate (Clopper-Pearson), then raw counts, such as 62 of 1,000 members "
    "found at 9 of 1,000 false alarms."
)
_INTERVAL_TEXTS = {
    "balanced_accuracy": _BOOTSTRAP, "auc": _BOOTSTRAP,
    "balanced_accuracy_calibrated": "The threshold is chosen on one half of the images and judged on the other; no "
    "interval is given.",
    "tpr_at_0.01": _RATE, "tpr_at_0.001": _RATE, "tnr_at_0.001": _RATE,
}  # fmt: skip


def _best(view: View, known: pd.DataFrame, metric: str) -> str:
    """Which explainer helps the attacker who knows the defense most, for each model, chosen without the target."""
    lines = []
    for name, part in known[known["setting"] == "adaptive"].groupby("model", sort=False):
        model = str(name)
        best = view.best(model)
        if best is not None:
            lines.append(f"- **{theme.tag(model)}**: {attack_words.best_explainer(part, best, model != 'none')}")
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
    stored_table = loaders.frame("attack", view.experiment(model, who), "features.parquet")
    if stored_table is None:
        st.caption("The attack from this shadow model is not stored with this explainer.")
        return
    table = tables.attack_features(stored_table)
    settings = view.settings(
        of=model, shadow=shadows[model], alpha=tuned(view, [(model, who)]),
        filter=f"Welch's t test at {view.models[model].audit.welch:g}", **sizes(view),
    )  # fmt: skip
    components.chart(
        figures.attack_features(table[table["level"].notna()], model), table,
        name=f"attack_features_{view.explainer}_{model}", takeaway=attack_words.kept_features(table),
        meaning="""Each point is one feature: the confidence after so many pixels have gone. The filter keeps those at
        which members and non-members of the shadow differ by more than chance explains (one in twenty passes by
        chance); only these, the loss and the predicted class reach the attack.""",
        settings=settings,
    )  # fmt: skip
    _worth(view, model, tables.feature_worth(stored_table), settings)


def _worth(view: View, model: str, worth: pd.DataFrame, settings: str) -> None:
    """What each feature is worth to the attack: how many right guesses its shuffling costs."""
    names = [attack_words.feature(row) for row in worth.to_dict("records")]
    rows = worth.assign(
        name=names, model=model, open=False, value=100 * worth["importance"], low=100 * worth["low"],
        high=100 * worth["high"],
        text=[f"{name}: {100 * value:+.2f}" for name, value in zip(names, worth["importance"], strict=True)],
    ).head(12)  # fmt: skip
    known = bool(worth["low"].notna().any())
    below = "95 % over shuffles and images" if known else "no intervals in this result"
    components.chart(
        figures.attack_dots(
            rows, "What each feature is worth", f"largest first; {below}<br>dotted: costs nothing",
            "guesses of 100 lost without it", 0.0,
        ),
        worth[["feature", "order", "level", "importance", "low", "high"]],
        name=f"attack_importance_{view.explainer}_{model}", takeaway=attack_words.importance(worth),
        meaning="""Features go together: the confidence with 20 % removed is much like that with 30 %, so either can
        stand in for the other and both look cheap to lose. If the confidence with nothing removed, loss or class lead,
        the explanation adds little: none of them contains any.""",
        settings=settings,
    )  # fmt: skip


# ---- one image, for the page Sample


def show_reasons(preset: Preset, models: Mapping[str, Experiment], row: int, number: int | None = None) -> None:
    """What the attacks from outside say of one image of the data set, and which features drove them.

    `models`: the runs, with their explainer; `number`: the image's, as the page counts. Tells neither the image's
    membership nor its row.
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
    results = {model: loaders.find("attack", one) for model, one in views.items()}
    alphas = {model: found.metrics.get("alpha") for model, found in results.items() if found is not None}
    chosen = ", ".join(f"{alpha:g} ({words.label(model)})" for model, alpha in alphas.items() if alpha is not None)
    st.caption(
        components.settings_line(
            preset, first, image=number, explainer=components.explainer_text(first), attacker=who,
            **settings_of(first), alpha=chosen or None, **components.strength(models),
        )
    )  # fmt: skip


def _reasons(model: str, view: Experiment, row: int) -> None:
    """One model's verdict on an image, with what it is worth and the largest contributions."""
    stored_scores, found = loaders.frame("attack", view, SCORES), loaders.find("attack", view)
    scores = None if stored_scores is None else stored_scores[stored_scores["set"] == "target"]
    own = None if scores is None else scores[scores["index"] == row]
    if scores is None or own is None or found is None or not len(own):
        st.caption("The attack has not scored this image yet.")
        return
    score, leaf = float(own["score"].iloc[0]), found.metrics.get("target") or {}
    threshold = float(leaf.get("threshold") or 0.0)
    said = attack_words.verdict(score, threshold, standing(scores, score, threshold, row))
    st.markdown(said)
    kept = loaders.frame("attack", view, "contributions.parquet")
    table = loaders.frame("attack", view, "features.parquet")
    of = None if kept is None else kept[kept["index"] == row]
    if of is None or table is None or not len(of):
        st.caption("What drove the score is kept for the images with the lowest numbers only.")
        return
    reasons = tables.reasons(of.iloc[0].to_dict(), table)
    reasons = reasons.assign(text=[attack_words.feature(line) for line in reasons.to_dict("records")])
    name, largest = f"attack_reasons_{model}", reasons.head(3).to_dict("records")
    drove = ", ".join(f"{line['text']} ({line['contribution']:+.2f})" for line in largest) or "none"
    alt = f"{words.label(model)}: {said.replace('**', '')} Features that moved the score most: {drove}."
    components.plot(figures.reasons(reasons, model), name, alt, key=f"reasons_{model}")
    components.download(reasons, name, key=f"reasons_{model}")


def standing(scores: pd.DataFrame, score: float, threshold: float, row: int) -> attack_words.Standing:
    """What the attack's word on one image is worth, from the scores of all."""
    counts = tables.confusion(scores, threshold)
    called = {"members": counts["tpr"], "nonmembers": counts["fpr"]}
    same = called if score > threshold else {name: 1.0 - share for name, share in called.items()}
    return attack_words.Standing(same, tables.standing(scores, score), tables.alike(scores, score, row))


TABS: dict[str, Callable[[View], None]] = {
    "Result": result, "All explainers": explainers, "What it looks at": features
}  # fmt: skip
