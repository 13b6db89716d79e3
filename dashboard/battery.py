"""The page Attack's part for sceptics: all other attacks ranked, the most exposed images, classes, canaries."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import attack_words, attacking, components, inspector, loaders, state, theme, words
from dashboard.attacking import View
from tier import demo, experiment, figures, metrics, tables
from tier.attacks import ATTACKS
from tier.config import Experiment

Leaves = Mapping[tuple[str, str], Mapping[str, Any] | None]  # reports by attack and model
Metrics = Mapping[str, Mapping[str, Any]]  # of each model's battery


def show(view: View) -> None:
    """Every attack on every model, ranked; then the images, classes and canaries that fare worst."""
    runs = {model: run(view, model) for model in view.models}
    found = {model: loaders.find("battery", one) for model, one in runs.items()}
    known = {model: result.metrics for model, result in found.items() if result is not None}
    missing = {m: runs[m] for m, result in found.items() if result is None}
    components.offer("battery", missing, attacking.SCORES)
    if missing:
        st.caption(attacking.cost(view.preset, missing, _models_of))
    if not known:
        return
    metric = attacking.choose_metric()
    _ranking(view, known, metric)
    _about()
    _decile(view, runs, known, metric)
    _classes(view, runs, known)
    _canaries(view, known, metric)


def run(view: View, model: str) -> Experiment:
    """The run whose battery is shown."""
    return attacking.of_battery(view, model)


def _models_of(one: Experiment) -> list[Experiment]:
    """The models that a battery needs: the target, a shadow with its defense, and the references."""
    references = [experiment.reference(one, number) for number in range(one.battery.references)]
    return [one, experiment.shadow(one, adaptive=True), *references]


def explainer(view: View, model: str) -> str:
    """Whose maps the explanation attack looks at: the best on attack-test, as the command line has it."""
    return view.best(model) or view.explainer


def _explainers(view: View) -> dict[str, str]:
    return {model: explainer(view, model) for model in view.models}


def _settings(view: View, of: str | None = None, **extra: object) -> str:
    """The settings line, of all models or of one alone."""
    one, chosen = run(view, of or "none"), _explainers(view) if of is None else {of: explainer(view, of)}
    labels = [figures.EXPLAINERS[name] for name in chosen.values()]
    each = [f"{label} ({figures.style(model).label})" for label, model in zip(labels, chosen, strict=True)]
    seen = labels[0] if len(set(labels)) == 1 else ", ".join(each)
    return components.settings_line(
        view.preset, one, maps=figures.EXPLAINERS[one.explain.name], reference_models=one.battery.references,
        shadow="same defense", agp=f"{seen}, {one.attack.trajectory.operator}, best on attack-test",
        **components.strength(view.models if of is None else {of: view.models[of]}), **extra,
    )  # fmt: skip


def _chart(view: View, leaves: Leaves, metric: str, heading: str, key: str, meaning: str, kind: str = "") -> None:
    """Attacks ranked by one figure, as dots with intervals; `kind`: of the intervals, where not the usual ones."""
    rows = tables.ranked(leaves, metric)
    if not rows["value"].notna().any():
        attacking.refusals(rows, metric)
        return
    signs = rows.groupby("attack")["sign"].agg(set)
    names, texts = [], []
    for row in rows.to_dict("records"):
        name = attack_words.attack_name(row["attack"]) + _sign(row["attack"], signs[row["attack"]])
        names.append(name)
        maps = f", {figures.EXPLAINERS[explainer(view, row['model'])]} maps" if row["attack"] == "agp" else ""
        texts.append(f"{name}{maps}, {figures.style(row['model']).label}<br>{tables.figure_text(row)}")
    drawn = rows.assign(name=names, text=texts, open=False)
    below = "<br>".join([tables.ATTACK_METRICS[metric], kind or tables.INTERVALS[metric], "dotted: guessing"])
    components.chart(
        figures.attack_dots(drawn, heading, below, "right: leaks more", attacking.neutral(metric)),
        rows, name=f"battery_{key}_{metric}",
        takeaway=attack_words.ranking(rows, tables.ATTACK_METRICS[metric], _explainers(view)),
        meaning=meaning, settings=_settings(view, images=_images(leaves)), key=key,
    )  # fmt: skip
    attacking.refusals(rows, metric)


def _part(known: Metrics, name: str) -> dict[tuple[str, str], Mapping[str, Any] | None]:
    """The reports of the batteries on some images alone, by attack and model, with the sign found on the shadow."""
    return {
        (attack, model): {"sign": (told.get(attack) or {}).get("sign"), **leaf}
        for model, told in known.items()
        for attack, leaf in (told.get(name) or {}).items()
    }


def _images(leaves: Leaves) -> str:
    """How many images the figures are over, of each model where they differ."""
    sizes = {model: (leaf["members"], leaf["nonmembers"]) for (_, model), leaf in leaves.items() if leaf is not None}
    if len(set(sizes.values())) == 1:
        members, others = next(iter(sizes.values()))
        return f"{members:,} members and {others:,} non-members"
    return ", ".join(f"{m:,} + {n:,} ({figures.style(model).label})" for model, (m, n) in sizes.items())


def _sign(attack: str, signs: set[Any]) -> str:
    """Which way a statistic points to members, for attacks whose direction each model's shadow decides."""
    if attack not in ATTACKS or not ATTACKS[attack].oriented:
        return ""
    return {(1,): " (high)", (-1,): " (low)"}.get(tuple(signs), "")


def _ranking(view: View, known: Metrics, metric: str) -> None:
    st.subheader("Every attack, ranked", anchor=False)
    leaves = {(attack, model): told.get(attack) for model, told in known.items() for attack in ATTACKS}
    for model in known:
        leaves["agp", model] = view.leaf(model, "adaptive", explainer(view, model))
    _chart(
        view, leaves, metric, "All images", "all",
        """The strongest attack is the one that counts: a defense against one attack is worth what the others leave of
        it. Signs, classifiers and thresholds come from a shadow model with the same defense, or from reference models,
        never from the target. (high) and (low): which values of a map's or gradient's size point to a member. The
        explanation attack looks at the maps that serve it best on attack-test. One training seed only.""",
    )  # fmt: skip
    _opposite(known, metric)


def _opposite(known: Metrics, metric: str) -> None:
    """What statistics of maps get when the other direction is taken for a member's, where that is stored."""
    for model, told in known.items():
        turned = {name: told[name].get("opposite") for name in ATTACKS if isinstance(told.get(name), Mapping)}
        parts = [
            f"{attack_words.attack_name(name)} {tables.figure_text(tables.attack_figure(leaf, metric))}"
            for name, leaf in turned.items()
            if isinstance(leaf, Mapping)
        ]
        if parts:
            st.caption(f"{figures.style(model).label}, taken the other way round: {'; '.join(parts)}.")


def _about() -> None:
    """What each attack is, from the registry."""
    with st.expander("What these attacks are", icon=":material/menu_book:"):
        lines = [f"- **{attack_words.attack_name(n)}**: {e.description} ({e.source})." for n, e in ATTACKS.items()]
        st.markdown("\n".join(lines), width=theme.TEXT_WIDTH)


def _decile(view: View, runs: Mapping[str, Experiment], known: Metrics, metric: str) -> None:
    """The same on those images, a tenth or at least 250, on which training leaves most traces."""
    leaves = _part(known, "vulnerable_decile")
    for model in known:
        leaves["agp", model] = _agp_decile(view, runs[model], model)
    if not any(leaf is not None for leaf in leaves.values()):
        return
    st.subheader("The most exposed images", anchor=False)
    _chart(
        view, _exact(leaves, runs), metric, "Most exposed", "decile",
        """An average over all images hides those that fare worst. These are the tenth of the images, at least 250,
        whose confidence reference models change most by training on them; the target has not been looked at to choose
        them. There are few of them, so intervals are wide; where a group is all right or all wrong, a bootstrap has no
        spread, and Newcombe's interval stands in (for AUC the exact one).""",
        kind="95 % bootstrap or Newcombe's" if metric == "balanced_accuracy" else "",
    )  # fmt: skip


def _exact(leaves: Leaves, runs: Mapping[str, Experiment]) -> Leaves:
    """Reports on the most exposed images with Newcombe's interval where one group's rate is 0 or 1."""
    frames = {model: loaders.frame("battery", one, attacking.SCORES) for model, one in runs.items()}
    made = dict(leaves)
    for (attack, model), leaf in leaves.items():
        frame = frames[model]
        if leaf is None or frame is None or attack not in frame:
            continue
        few = tables.exposed(frame)[["member", attack]].rename(columns={attack: "score"})
        made[attack, model] = tables.exact(leaf, few)
    return made


def _agp_decile(view: View, one: Experiment, model: str) -> dict[str, Any] | None:
    """The explanation attack's figures on the most exposed images, None where scores are not stored."""
    name = explainer(view, model)
    scores, leaf = view.scores(model, "adaptive", name), view.leaf(model, "adaptive", name)
    ranks = loaders.frame("battery", one, attacking.SCORES, ["index", "exposure"])
    if scores is None or leaf is None or ranks is None:
        return None
    both = scores.merge(ranks, on="index")
    if both["exposure"].isna().all():
        return None
    made = metrics.vulnerable_decile(
        both["score"], both["member"].astype(bool), both["exposure"], leaf.get("threshold")
    )  # fmt: skip
    return tables.exact(made, tables.exposed(both))


def _classes(view: View, runs: Mapping[str, Experiment], known: Metrics) -> None:
    """Which classes leak most under one attack, as a small table."""
    st.subheader("Which classes leak most", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        model = next(iter(known))
        if len(known) > 1:
            labels = {name: figures.style(name).label for name in known}
            model = state.choose("Model", labels, key="of", default=model)
        told = {**known[model], "agp": view.leaf(model, "adaptive", explainer(view, model))}
        offered = {name: attack_words.attack_name(name) for name in _by_strength(told)}
        with st.container(width=260):
            attack = state.select("Attack", offered, key="attack", help="The strongest on all images comes first.")
    frame = _scores(view, runs[model], model, attack)
    if frame is None:
        st.caption("The scores of single images are not stored.")
        return
    rows = tables.class_leaks(frame, told[attack].get("threshold"))
    names = inspector.class_names(view.preset, loaders.images(view.preset))
    st.markdown(attack_words.classes(rows, names, attack), width=theme.TEXT_WIDTH)
    number = st.column_config.NumberColumn
    shown = rows.assign(label=[words.class_name(names, int(label)) for label in rows["label"]])
    st.dataframe(
        shown.head(8), hide_index=True, alt="Balanced accuracy by class, the most leaking first", width="content",
        column_config={
            "label": st.column_config.TextColumn("Class", pinned=True),
            "value": number("Balanced accuracy", format="%.2f"), "low": number("low", format="%.2f"),
            "high": number("high", format="%.2f"), "members": number("Members"),
            "nonmembers": number("Non-members"),
        },
    )  # fmt: skip
    st.markdown(
        f":material/lightbulb: The eight worst of {len(rows)} classes. A class has few images, so some look bad by "
        "luck: the worst of many is rarely as bad the next time. low, high: 95 % interval (Newcombe's).",
        width=theme.TEXT_WIDTH,
    )
    settings = _settings(view, model, attack=attack_words.attack_name(attack), model=figures.style(model).label)
    components.caption_with_data(settings, rows, f"classes_{model}_{attack}", key="attack_classes")


def _scores(view: View, one: Experiment, model: str, attack: str) -> pd.DataFrame | None:
    """One attack's scores: member, label, score; None where they are not stored."""
    if attack == "agp":
        return view.scores(model, "adaptive", explainer(view, model))
    frame = loaders.frame("battery", one, attacking.SCORES, ["index", "member", "label", attack])
    return None if frame is None else frame.rename(columns={attack: "score"})


def _by_strength(told: Mapping[str, Any]) -> list[str]:
    """The attacks of a battery, the highest AUC first."""
    there = [name for name in ATTACKS if isinstance(told.get(name), Mapping)]
    return sorted(there, key=lambda name: -(told[name].get("auc") or 0.0))


def _canaries(view: View, known: Metrics, metric: str) -> None:
    """The attacks on mislabelled images, where there are any; else what they are and how to get them."""
    st.subheader("Canaries", anchor=False)
    st.markdown(words.flat(attack_words.CANARIES), width=theme.TEXT_WIDTH)
    told = dict(known)
    for model in view.models:
        found = loaders.find("battery", run(view, model).set({"split.canaries": demo.CANARIES}))
        if not (told.get(model) or {}).get("canaries") and found is not None:
            told[model] = found.metrics
    if leaves := _part(told, "canaries"):
        _chart(
            view, leaves, metric, "Canaries", "canaries",
            """Members here are images trained on with a wrong label, non-members the same number of images given a
            wrong label only when the attack looks at them. What leaks here bounds what leaks of an outlier.""",
        )  # fmt: skip
        return
    st.caption("These models were trained without any. With some, in a terminal:")
    st.code(f"python -m tier attack {view.preset.name} --set split.canaries={demo.CANARIES}", language="bash")
