"""Sentences about attacks from outside, computed from the numbers beside them, as in `dashboard.words`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dashboard.words import class_name, of_hundred, percent
from tier import figures


def attacker(figure: Mapping[str, Any], gap: float | None, gain: Mapping[str, float] | None) -> str:
    """One model's result in plain words, of 100 images of which half are members.

    `figure`: the balanced accuracy of the attack from an undefended shadow, as `tables.attack_figure`; `gap`: that of
    the gap attack; `gain`: what knowing the defense adds on the same images (`tables.gain`), None without a defense.
    """
    if pd.isna(figure["value"]):
        reason = "is not stored yet" if figure["refused"] == "not stored" else f"has no figure: {figure['refused']}"
        return f"the attack from an undefended shadow {reason}." + (f" {_adaptive(gain)}" if gain else "")
    text = f"An attacker who sees explanations gets **{of_hundred(figure['value'])}** right"
    if pd.notna(figure["low"]):
        text += f" ({100 * figure['low']:.0f} to {100 * figure['high']:.0f})"
    if gap is not None and not math.isnan(gap):
        text += f"; one who only sees whether the answer is correct gets **{100 * gap:.0f}**{_beside_gap(figure, gap)}"
    return f"{text}. {'' if gain is None else _adaptive(gain)}".strip()


def _beside_gap(figure: Mapping[str, Any], gap: float) -> str:
    """Whether the explanations are worth more to an attacker than the simplest attack."""
    if pd.isna(figure["low"]):
        return ""
    if figure["low"] > gap:
        return ""
    return ", which is no less" if figure["high"] < gap else ", which is not clearly different"


def _adaptive(gain: Mapping[str, float]) -> str:
    """What knowing the defense is worth, in images of 100, and whether chance could make it."""
    if math.isnan(gain["difference"]):
        return "What an attacker gains who knows the defense is not known yet."
    size = f"{100 * gain['difference']:+.1f} of 100, interval {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"
    if gain["low"] > 0:
        return f"One who knows the defense does **better** ({size})."
    if gain["high"] < 0:
        return f"One who knows the defense does worse ({size}), so here the knowledge misleads."
    return f"One who knows the defense does not clearly do better ({size})."


def roc(curves: pd.DataFrame, counts: Mapping[tuple[str, str], tuple[int, int]]) -> dict[str, str]:
    """For each model: the members found at few false alarms; `counts`: members and non-members by model and setting.

    Rates that the number of non-members cannot resolve are said to be so.
    """
    sentences = {}
    for model, part in curves.groupby("model", sort=False):
        parts = []
        for setting, line in part.groupby("setting", sort=False):
            members, others = counts[str(model), str(setting)]
            parts.append(f"{setting}: {_found_at(line, members, others)}")
        sentences[str(model)] = f"{'. '.join(parts)}."
    return sentences


def _found_at(line: pd.DataFrame, members: int, others: int) -> str:
    """Members found at each strict rate that so many non-members resolve, and which rates they do not."""
    found, below = [], []
    for rate in figures.STRICT:
        known = line["tpr"][line["fpr"] <= rate * (1 + 1e-9)]
        if others * rate < 1 - 1e-9:
            below.append(f"{100 * rate:g} %")
        else:
            found.append(f"{round(known.max() * members) if len(known) else 0:,} at {100 * rate:g} %")
    texts = [f"of {members:,} members {' and '.join(found)} false alarms"] if found else []
    texts += [f"{others:,} non-members cannot resolve {' or '.join(below)}"] if below else []
    return "; ".join(texts)


def kept_features(table: pd.DataFrame) -> str:
    """What Welch's filter kept of the trajectory features, and which separates best."""
    known = table[table["level"].notna()]
    kept = known[known["kept"].astype(bool)]
    if not len(kept):
        return f"The filter kept none of {len(known)} trajectory features: this attack sees loss and class only."
    best = kept.iloc[int(kept["t"].abs().to_numpy().argmax())]
    by_order = ", ".join(f"{name} {int((kept['order'] == order).sum())}" for order, name in _ORDER_NAMES.items())
    return (
        f"The filter kept {len(kept)} of {len(known)} trajectory features ({by_order}). The one that separates best is "
        f"{feature(best)}: members {best['member_mean']:.2f}, non-members {best['nonmember_mean']:.2f} "
        f"(Welch's t {best['t']:+.1f})."
    )


_ORDER_NAMES = {"morf": "MoRF", "lerf": "LeRF"}


def feature(row: "Mapping[Any, Any] | pd.Series[Any]") -> str:
    """A feature of the attack by name: `MoRF, 30 % removed`."""
    if pd.isna(row["level"]):
        return {"loss": "Loss", "predicted": "Predicted class"}.get(str(row["feature"]), str(row["feature"]))
    return f"{_ORDER_NAMES.get(str(row['order']), row['order'])}, {percent(row['level'])} removed"


def importance(table: pd.DataFrame) -> str:
    """Which features the attack rests on."""
    if not (table["importance"] > 0).any():
        return "Shuffling any one feature costs the attack nothing: none of them is needed by itself."
    most = table.nlargest(3, "importance")
    parts = [f"{feature(row)} ({100 * row['importance']:.1f})" for row in most.to_dict("records")]
    return f"The attack loses most right guesses of 100 when these are shuffled among the images: {', '.join(parts)}."


def ranking(rows: pd.DataFrame, name: str) -> dict[str, str]:
    """For each model: its strongest attack, and where the explanation attack stands; `rows` from `tables.ranked`."""
    sentences = {}
    for model, part in rows.groupby("model", sort=False):
        known = part[part["value"].notna()].sort_values("value", ascending=False, kind="stable")
        if not len(known):
            reason = next(iter(part["refused"].dropna()), "nothing stored")
            sentences[str(model)] = f"no attack has this figure ({reason})."
            continue
        best = known.iloc[0]
        text = f"{attack_name(best['attack'])} leads ({name}: {_with_interval(best)})"
        own = known[known["attack"] == "agp"]
        if len(own) and best["attack"] != "agp":
            row, place = own.iloc[0], int((known["attack"] == "agp").to_numpy().argmax()) + 1
            clear = pd.notna(row["high"]) and pd.notna(best["low"]) and row["high"] < best["low"]
            text += f"; the explanation attack is number {place} of {len(known)} with {_with_interval(row)}"
            text += "" if clear else ", not clearly behind"
        sentences[str(model)] = f"{text}."
    return sentences


def _with_interval(row: "Mapping[Any, Any] | pd.Series[Any]") -> str:
    return f"{row['value']:.3f}" + ("" if pd.isna(row["low"]) else f" ({row['low']:.3f} to {row['high']:.3f})")


def attack_name(name: str) -> str:
    """An attack's name in a table or sentence."""
    return figures.ATTACKS.get(name, name)


def classes(rows: pd.DataFrame, names: Sequence[str], attack: str) -> str:
    """Which class leaks most, and how much of that one may believe; `rows` from `tables.class_leaks`."""
    if not len(rows):
        return "No class has both members and non-members with a score."
    top = rows.iloc[0]
    clear = int((rows["low"] > 0.5).sum())
    return (
        f"By the attack {attack_name(attack)}, {class_name(names, int(top['label']))} leaks most: "
        f"{_with_interval(top)}. In {clear} of {len(rows)} classes the interval lies above guessing (0.5)."
    )


def threshold(counts: Mapping[str, Any]) -> str:
    """What an attack says at a threshold, in counts."""
    if not (counts["members"] and counts["nonmembers"]):
        return "There are only members or only non-members here, so nothing can be told apart."
    return (
        f"Of 50 members {round(50 * counts['tpr'])} are found and {50 - round(50 * counts['tpr'])} missed; of 50 "
        f"non-members {round(50 * counts['fpr'])} are wrongly called members and {50 - round(50 * counts['fpr'])} "
        f"cleared. In all: {counts['found']:,} of {counts['members']:,} members found, {counts['alarms']:,} of "
        f"{counts['nonmembers']:,} non-members wrongly called members."
    )


CANARIES = """Canaries are images that are put into the training set on purpose with a wrong label, so that the model
    can only know them by heart: what an attack finds among them is the worst case for an image unlike all others."""


def verdict(score: float, threshold: float) -> str:
    """What an attack from outside says of one image."""
    if not math.isfinite(score):
        return "The attack has no score for this image."
    said = "**member**" if score > threshold else "**not a member**"
    return f"The attack says: {said} (score {score:+.2f}, threshold {threshold:+.2f})."
