"""Sentences about attacks from outside, computed from the numbers beside them, as in `dashboard.words`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dashboard.words import capital, class_name, of_hundred, percent
from tier import figures, tables
from tier.metrics import clopper_pearson

Gain = Mapping[str, float]  # difference, low, high, as of `tables.gain` and `tables.auc_gain`


@dataclass(frozen=True)
class Rivals:
    """What others get right on the same images, from the battery: the loss attack and the strongest of all, each a
    balanced accuracy. What the explanation attack has over the loss, over knowing only who is right, and over its own
    classifier without explanations (`mlp`, and `mlp_area` in AUC) is compared image by image.
    """

    loss: float
    over_loss: Gain
    over_gap: Gain
    over_mlp: Gain
    mlp_area: Gain
    best: tuple[str, float]


@dataclass(frozen=True)
class Found:
    """What is known of one model, for its sentence; figures are balanced accuracies as of `tables.attack_figure`.

    `knows`: of the attacker who knows the defense (without one: of the only one); `naive`: of the one who does not,
    None without a defense; `right` and `ranks`: what knowing adds in right guesses and in AUC, on the same images.
    """

    explainer: str
    knows: Mapping[str, Any]
    naive: Mapping[str, Any] | None
    gap: float | None
    right: Gain | None = None
    ranks: Gain | None = None
    rivals: Rivals | None = None


def attacker(found: Found) -> list[str]:
    """One model's result in plain words, of 100 images of which half are members: the result, then what it is worth."""
    lead = _lead(found)
    if lead is None:
        return [f"the attack with {found.explainer} maps {_missing(found.knows)}."]
    lines = [lead]
    if found.right is not None and found.ranks is not None:
        lines.append(knowing(found.right, found.ranks))
    if beside := _beside(found):
        lines.append(beside)
    return lines


def _lead(found: Found) -> str | None:
    """What the attacker gets right who knows most, and the other one; None where neither is known."""
    sees = f"sees explanations ({found.explainer})"
    naive = found.naive
    if pd.notna(found.knows["value"]):
        knows = "knows the defense and " if naive is not None else ""
        text = f"An attacker who {knows}{sees} gets {_right(found.knows)}"
        if naive is not None:
            text += f"; one who does not know it gets {_plain(naive)}"
        return f"{text}."
    if naive is None or pd.isna(naive["value"]):
        return None
    return (
        f"An attacker who {sees} and does not know the defense gets {_right(naive)}; the attack of one who knows it "
        f"{_missing(found.knows)}."
    )


def _right(figure: Mapping[str, Any]) -> str:
    text = f"**{of_hundred(figure['value'])}** right"
    return text if pd.isna(figure["low"]) else f"{text} ({100 * figure['low']:.0f} to {100 * figure['high']:.0f})"


def _plain(figure: Mapping[str, Any]) -> str:
    return "a number that is not stored yet" if pd.isna(figure["value"]) else f"{100 * figure['value']:.0f}"


def _missing(figure: Mapping[str, Any]) -> str:
    return "is not stored yet" if figure["refused"] == "not stored" else f"has no figure: {figure['refused']}"


def _beside(found: Found) -> str:
    """What attackers without explanations get; nothing where none is known."""
    parts, rivals = [], found.rivals
    if rivals is not None:
        more = _against(rivals.over_loss)
        parts.append(f"one who sees only the confidence gets **{100 * rivals.loss:.0f}**{more}")
    if found.gap is not None and not math.isnan(found.gap):
        more = _against(rivals.over_gap) if rivals is not None else _against(_apart(found))
        parts.append(f"one who only sees whether the answer is correct gets **{100 * found.gap:.0f}**{more}")
    text = "; ".join(parts)
    text = f"{capital(text)}." if text else ""
    return text if rivals is None else f"{text} {_worth(rivals)} {_strongest(rivals)}".strip()


def _apart(found: Found) -> Gain:
    """How the explanation attack lies to the gap attack when single images are not known: by its own interval."""
    figure = found.naive if pd.isna(found.knows["value"]) and found.naive is not None else found.knows
    gap = math.nan if found.gap is None else found.gap
    return {name: float(figure[key]) - gap for name, key in (("difference", "value"), ("low", "low"), ("high", "high"))}


def _against(over: Gain) -> str:
    """What the explanation attack's lead over another means for the other's number; nothing where it is ahead."""
    if math.isnan(over["low"]) or over["low"] > 0:
        return ""
    return ", which is more" if over["high"] < 0 else ", which is not clearly different"


def _worth(rivals: Rivals) -> str:
    """What the explanations add to the same classifier."""
    over = rivals.over_mlp
    if math.isnan(over["difference"]):
        return ""
    size = f"{_of_hundred(over)}; {_area(rivals.mlp_area)}"
    if over["low"] > 0:
        return f"To the same classifier on loss and class alone the explanations add something ({size})."
    if over["high"] < 0:
        return f"The same classifier on loss and class alone does better without the explanations ({size})."
    return f"To the same classifier on loss and class alone the explanations add nothing clear ({size})."


def _strongest(rivals: Rivals) -> str:
    name, value = rivals.best
    if name == "agp":
        return "No other attack stored gets more right."
    return f"Of all attacks, {attack_name(name)} gets most right: **{100 * value:.0f}**."


def _of_hundred(gain: Gain) -> str:
    return f"{100 * gain['difference']:+.1f} of 100, {100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}"


def _area(gain: Gain) -> str:
    return f"AUC {gain['difference']:+.3f}, {gain['low']:+.3f} to {gain['high']:+.3f}"


def knowing(right: Gain, ranks: Gain) -> str:
    """What knowing the defense is worth: a better order of the images, or only a threshold that fits.

    `right`: the gain in right guesses at each attacker's own threshold; `ranks`: in AUC, which knows no threshold.
    """
    if math.isnan(right["difference"]) or math.isnan(ranks["difference"]):
        return "What knowing the defense is worth is not known yet."
    size, area = _of_hundred(right), _area(ranks)
    if ranks["low"] > 0:
        gets = "and gets more of them right" if right["low"] > 0 else "but does not clearly get more of them right"
        return f"Knowing the defense **ranks the images better** ({area}) {gets} ({size})."
    if right["low"] > 0:
        order = "worse" if ranks["high"] < 0 else "no better"
        return f"Knowing the defense ranks the images {order} ({area}); its **threshold fits** ({size})."
    if right["high"] < 0 or ranks["high"] < 0:
        return f"Knowing the defense misleads here ({size}; {area})."
    return f"Knowing the defense does not clearly help ({size}; {area})."


def answer(right: Gain | None, ranks: Gain | None) -> str:
    """Whether knowing the defense helps, in a few words; None without a defense."""
    if right is None or ranks is None:
        return "There is no defense to know."
    if math.isnan(right["difference"]) or math.isnan(ranks["difference"]):
        return "Not known yet."
    if ranks["low"] > 0:
        return "Yes, it ranks the images better."
    if right["low"] > 0:
        return "Only in finding the threshold; it ranks the images no better."
    return "No, it misleads." if right["high"] < 0 or ranks["high"] < 0 else "Not clearly."


def roc(curves: pd.DataFrame, counts: Mapping[tuple[str, str], tuple[int, int]]) -> dict[str, str]:
    """For each model: the members found at few false alarms; `counts`: members and non-members by model and setting.

    Rates that the number of non-members cannot resolve are said to be so.
    """
    sentences = {}
    for model, part in curves.groupby("model", sort=False):
        parts = []
        for setting, line in part.groupby("setting", sort=False):
            members, others = counts[str(model), str(setting)]
            parts.append(f"The {setting} attack {_found_at(line, members, others)}.")
        sentences[str(model)] = " ".join(parts)
    return sentences


def _found_at(line: pd.DataFrame, members: int, others: int) -> str:
    """Members found at each strict rate that so many non-members resolve, and which rates they do not."""
    found, below = [], []
    for rate in figures.STRICT:
        known = line[line["fpr"] <= rate * (1 + 1e-9)]
        if others * rate < 1 - 1e-9:
            below.append(f"{100 * rate:g} %")
            continue
        hits = round(float(known["tpr"].max()) * members) if len(known) else 0
        low, high = clopper_pearson(hits, members)
        found.append(
            f"{hits:,} of {members:,} members ({100 * low:.1f} to {100 * high:.1f} %) while accusing "
            f"{math.floor(others * rate * (1 + 1e-9)):,} of {others:,} others, where guessing finds "
            f"{members * rate:,.0f}"
        )
    texts = [f"finds {', and '.join(found)}"] if found else []
    texts += [f"cannot be judged at {' or '.join(below)} false alarms with {others:,} non-members"] if below else []
    return "; it ".join(texts)


def best_explainer(part: pd.DataFrame, best: str, defended: bool) -> str:
    """What the explainer that does best on attack-test is worth on the target, against the others there.

    `part`: a line per explainer with value, low, high of one figure, of the attacker who knows the defense if there is
    one (`defended`).
    """
    own = part[part["explainer"] == best]
    who = "an adaptive attacker" if defended else "the attacker"
    text = f"of {len(part)} explainers, {figures.EXPLAINERS[best]} does best on attack-test (AUC)"
    if not len(own):
        return f"{text}; on the target this figure of it is not there."
    text += f"; on the target {who} gets {tables.figure_text(own.iloc[0].to_dict())} with it"
    others = part[part["explainer"] != best]
    if not len(others):
        return f"{text}."
    top = others.iloc[int(others["value"].to_numpy().argmax())]
    clear = float(own["low"].iloc[0]) > others["high"].max()
    if clear:
        return f"{text}, clearly more than with any other."
    return f"{text}, not clearly more than with {figures.EXPLAINERS[top['explainer']]} ({top['value']:.3f})."


def kept_features(table: pd.DataFrame) -> str:
    """What Welch's filter kept of the trajectory features, and which separates best; `table`: `tables.attack_features`.

    The confidence with nothing removed is one of them and belongs to neither order.
    """
    known = table[table["level"].notna()]
    kept = known[known["kept"].astype(bool)]
    if not len(kept):
        return f"The filter kept none of {len(known)} trajectory features: this attack sees loss and class only."
    best = kept.iloc[int(kept["t"].abs().to_numpy().argmax())]
    by_order = [f"{name} {int((kept['order'] == order).sum())}" for order, name in _ORDER_NAMES.items()]
    by_order += ["the untouched confidence"] if kept["order"].isna().any() else []
    return (
        f"The filter kept {len(kept)} of {len(known)} trajectory features ({', '.join(by_order)}). The one that "
        f"separates best is {feature(best)}: members {best['member_mean']:.2f}, non-members "
        f"{best['nonmember_mean']:.2f} (Welch's t {best['t']:+.1f})."
    )


_ORDER_NAMES = {"morf": "MoRF", "lerf": "LeRF"}


def feature(row: "Mapping[Any, Any] | pd.Series[Any]") -> str:
    """A feature of the attack by name: `MoRF, 30 % removed`."""
    if pd.isna(row["level"]):
        return {"loss": "Loss", "predicted": "Predicted class"}.get(str(row["feature"]), str(row["feature"]))
    if row["level"] == 0:  # whatever the order: no explanation has acted yet
        return "Confidence, nothing removed"
    return f"{_ORDER_NAMES.get(str(row['order']), row['order'])}, {percent(row['level'])} removed"


def importance(worth: pd.DataFrame) -> str:
    """Which features the attack rests on, of those that are clearly worth something; from `tables.feature_worth`."""
    clear = worth[worth["clear"]]
    if not len(clear):
        return "Shuffling any one feature costs the attack nothing clear: none of them is needed by itself."
    parts = [f"{feature(row)} ({100 * row['importance']:.1f})" for row in clear.head(3).to_dict("records")]
    text = f"The attack loses most right guesses of 100 when these are shuffled among the images: {', '.join(parts)}."
    first = clear.iloc[0]
    if pd.isna(first["level"]) or first["level"] == 0:
        text += f" {feature(first)} contains no explanation."
    return text


def ranking(rows: pd.DataFrame, name: str, explainers: Mapping[str, str]) -> dict[str, str]:
    """For each model: its strongest attack, and where the explanation attack stands; `rows` from `tables.ranked`.

    `explainers`: whose maps the explanation attack looks at, by model.
    """
    sentences = {}
    for model, part in rows.groupby("model", sort=False):
        known = part[part["value"].notna()].sort_values("value", ascending=False, kind="stable")
        if not len(known):
            reason = next(iter(part["refused"].dropna()), "nothing stored")
            sentences[str(model)] = f"no attack has this figure ({reason})."
            continue
        best = known.iloc[0]
        seen = f" ({figures.EXPLAINERS[explainers[str(model)]]})" if str(model) in explainers else ""
        leader = attack_name(best["attack"]) + (seen if best["attack"] == "agp" else "")
        text = f"{leader} leads ({name}: {_with_interval(best)})"
        own = known[known["attack"] == "agp"]
        if len(own) and best["attack"] != "agp":
            row, place = own.iloc[0], int((known["attack"] == "agp").to_numpy().argmax()) + 1
            clear = pd.notna(row["high"]) and pd.notna(best["low"]) and row["high"] < best["low"]
            text += f"; the explanation attack{seen} is number {place} of {len(known)} with {_with_interval(row)}"
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


def spread(scores: pd.DataFrame, counts: Mapping[str, Any], at: float) -> str:
    """How the scores of both groups lie to each other and to the threshold; `counts`: `tables.confusion` there."""
    middle = scores.groupby(scores["member"].astype(bool))["score"].median()
    if len(middle) < 2:
        return "There are only members or only non-members here, so their scores cannot be compared."
    return (
        f"The middle member scores {middle[True]:+.2f}, the middle non-member {middle[False]:+.2f}. The threshold "
        f"{at:+.2f} lies below {percent(counts['tpr'])} of the members and below {percent(counts['fpr'])} of the "
        "non-members."
    )


CANARIES = """Canaries are images that are put into the training set on purpose with a wrong label, so that the model
    can only know them by heart: what an attack finds among them is the worst case for an image unlike all others."""


@dataclass(frozen=True)
class Standing:
    """What an attack's word is worth: of how many members and non-members it says the same, shares of each; which share
    of each it scores lower than the image; and members among the images scored most like it, and how many these are.
    """

    same: Mapping[str, float]
    above: Mapping[str, float]
    alike: tuple[int, int] | None


def verdict(score: float, threshold: float, standing: Standing | None = None) -> str:
    """What an attack from outside says of one image, and what its word is worth."""
    if not math.isfinite(score):
        return "The attack has no score for this image."
    said = "member" if score > threshold else "not a member"
    text = f"The attack says: **{said}** (score {score:+.2f}, threshold {threshold:+.2f})."
    if standing is None:
        return text
    groups = (("members", "members"), ("nonmembers", "non-members"))
    same = [f"{of_hundred(standing.same[key])} {name}" for key, name in groups if not math.isnan(standing.same[key])]
    if same:
        text += f" This attacker calls {' and '.join(same)} '{said}'."
    above = [f"{percent(standing.above[key])} of the {n}" for key, n in groups if not math.isnan(standing.above[key])]
    if above:
        text += f" The score is higher than that of {' and of '.join(above)}."
    if standing.alike is not None:
        members, images = standing.alike
        text += f" Of the {images} images scored most like it, {members} are members ({percent(members / images)})."
    return text
