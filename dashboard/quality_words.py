"""The wording of the page Quality: what each metric can and cannot tell, and takeaways computed from what is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dashboard.words import label, of_hundred
from tier import figures, tables
from tier.config import FAITHFULNESS, LOCALISATION

ABILITIES: dict[str, tuple[str, str]] = {
    "faithfulness_correlation": (
        "whether random sets of features that the map holds for important lower the logit more than others when they "
        "are replaced",
        "whether the map names the right pixels: a random set mixes high and low ones, so that even good maps score "
        "low, the score moves with the size of the sets and with what replaces them, and that of a single image is "
        "mostly the luck of its draws",
    ),
    "faithfulness_estimate": (
        "whether the features that the map puts first lower the logit more when each small group is replaced alone",
        "what features do together, or how it compares with a score at another step: larger groups score higher; "
        "replaced pixels make images that the model has never seen, where groups tie (LIME's superpixels, the zeros of "
        "Grad-CAM) their order is arbitrary, and a map without signs, such as a gradient's size or Grad-CAM, puts what "
        "speaks against the class among the first or at 0, and loses by it",
    ),
    "sufficiency": (
        "whether images with like maps get the same prediction",
        "whether the map is right for the image at hand; the score depends on the threshold, on the distance and on "
        "how many images are compared, and at a high threshold, where all images are neighbours, it is the chance that "
        "two images share a class whatever the maps are",
    ),
    "pointing_game": (
        "whether the highest value, what speaks most for the class, lies on the object",
        "whether the rest of the map does; a large object in the centre is hit by nearly anything",
    ),
    "mask_mass": (
        "which share of the map's size lies on the object",
        "whether that is why the model decides as it does: a model may well look at the background, and a map that is "
        "right about it scores low",
    ),
    "mask_iou": (
        "whether the pixels with the most weight, whatever its sign, cover the object",
        "anything about maps that are right to mark a part of it: a glyph in the middle of the sign is enough for the "
        "class and covers little",
    ),
}
"""What a metric can tell, and what it cannot, with its trap; `docs/quality.md` has the same sentences (tested)."""

DIRECTION = """Of every metric here more is better. The paper's Table VI counts less Sufficiency as better; by the
definition that it cites, the share of images with like maps that get the same prediction, more is."""

_EDGES = "One that is not better than the edges says no more than the picture itself does."
_LOCAL = f"""A map that is not better than noise points at the object no more than chance does. It may be true to its
model all the same, which may decide by something else. {_EDGES}"""
MEANINGS = {
    **dict.fromkeys(FAITHFULNESS, f"""By this measure a map that is not better than noise tells no more of what the
    model uses than noise does. {_EDGES}"""),
    "sufficiency": f"""Noise is the chance that two images get the same prediction. Where maps are not better than that,
    images with like maps agree no more than any two do; of the map of one image it says nothing. Better: when the
    classes are dealt anew to the images, 1 in 40 at most leads so far; a lead may be certain and tiny. {_EDGES}""",
    **dict.fromkeys(LOCALISATION, _LOCAL),
}  # fmt: skip
"""What it means that a metric does not beat its controls."""

ONE_SEED = """The undefended model of another seed is not judged here, so that training noise cannot be told apart."""


def ability(metric: str) -> str:
    """One sentence of what a metric can and cannot tell."""
    can, cannot = ABILITIES[metric]
    return f"**{figures.QUALITY[metric]}** can tell {can}. It cannot tell {cannot}."


def verdicts(table: pd.DataFrame, metric: str) -> dict[str, str]:
    """Of each model: under how many explainers its maps beat the controls, and which do not.

    `table`: rows of `tables.quality` over all images.
    """
    sentences = {}
    for model, part in table[table["metric"] == metric].groupby("model", sort=False):
        rows = [row for row in part.to_dict("records") if tables.against(row, "random")]
        if not rows:
            sentences[str(model)] = "no map has this score."
            continue
        lost = [figures.EXPLAINERS[row["explainer"]] for row in rows if tables.against(row, "random") != tables.BETTER]
        edges = [row for row in rows if tables.against(row, "edges") == tables.BETTER]
        best, most = max(rows, key=lambda row: row["mean"]), table["n"].max()
        few = f" on {best['n']} of {most} images only" if best["n"] < most / 2 else ""
        text = f"{len(rows) - len(lost)} of {len(rows)} explainers are better than noise"
        text += f" (not {_list(lost)})" if 0 < len(lost) < len(rows) else ""
        text += f", {len(edges)} better than the image's edges. "
        sentences[str(model)] = (
            f"{text}Highest: {figures.EXPLAINERS[best['explainer']]}, {best['mean']:.3f}{few} (noise "
            f"{best['random']:.3f}, edges {best['edges']:.3f})."
        )
    return sentences


def survival(table: pd.DataFrame, metrics: Sequence[str]) -> dict[str, str]:
    """Of each defended model: under which explainers each metric is clearly higher or lower than undefended.

    `table`: rows of `tables.quality` over all images.
    """
    sentences: dict[str, str] = {}
    known = table[table["metric"].isin(metrics) & table["change"].notna()]
    for model, part in known.groupby("model", sort=False):
        told = [
            _survival(part[part["metric"] == metric], metric) for metric in metrics if metric in set(part["metric"])
        ]
        verdicts = [tables.survives(row) for row in part.to_dict("records")]
        lower, higher = verdicts.count(tables.LOWER), verdicts.count(tables.HIGHER)
        count = f"of {len(verdicts)} scores {lower} {_are(lower)} clearly lower and {higher} {_are(higher)} higher. "
        sentences[str(model)] = f"{count}{'; '.join(told)}."
    return sentences


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _survival(rows: pd.DataFrame, metric: str) -> str:
    verdicts = {str(row["explainer"]): tables.survives(row) for row in rows.to_dict("records")}
    parts = []
    for verdict, text in ((tables.LOWER, "lower"), (tables.HIGHER, "higher")):
        if names := [figures.EXPLAINERS[name] for name, told in verdicts.items() if told == verdict]:
            whose = _list(names) if len(names) < 4 else f"{len(names)} of {len(verdicts)} explainers"
            parts.append(f"{text} under {whose}")
    seed = sum(told == tables.SEED for told in verdicts.values())
    parts += [f"no more than another seed does under {seed}"] if seed else []
    return f"{figures.QUALITY[metric]} {', '.join(parts) or 'without a clear change'}"


def moved(table: pd.DataFrame, metrics: Sequence[str]) -> str:
    """How far each defense moves each metric from the undefended model, as a mean over the explainers both have.

    On the same images; Sufficiency by its lead over chance.
    """
    parts = []
    for metric in metrics:
        rows = table[(table["metric"] == metric) & table["change"].notna()]
        changes = [
            f"{label(str(model))} {part['change'].mean():+.3f}" for model, part in rows.groupby("model", sort=False)
        ]
        if changes:
            over = " over chance" if metric == "sufficiency" else ""
            parts.append(f"{figures.QUALITY[metric]}{over}: {', '.join(changes)}")
    if not parts:
        known = table[table["metric"].isin(metrics)]
        rows = known.groupby("metric", sort=False)["mean"].agg(["min", "max"])
        return "Lowest and highest mean: " + "; ".join(
            f"{figures.QUALITY[str(metric)]} {row['min']:.3f} to {row['max']:.3f}" for metric, row in rows.iterrows()
        ) + "."  # fmt: skip
    return f"Mean change from the undefended model on the same images, over the explainers. {'. '.join(parts)}."


def traps(table: pd.DataFrame, threshold: float) -> str:
    """On how few images Sufficiency rests, and what chance is; `table`: rows of `tables.quality` over all images."""
    rows = table[(table["metric"] == "sufficiency") & table["mean"].notna()]
    if not len(rows):
        return ""
    most, low, high = int(table["n"].max()), rows["random"].min(), rows["random"].max()
    text = f"**Before reading Sufficiency.** Threshold {threshold:g} of the largest distance between two maps. "
    few = rows[rows["n"] < most].sort_values("n", kind="stable").head(3).to_dict("records")
    if few:
        named = [f"{figures.EXPLAINERS[row['explainer']]} {label(row['model'])} {row['n']}" for row in few]
        text += f"Images without a near map have none; of {most} are left, at least: {_list(named)}. "
    chance = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}, depending on the model"
    return f"{text}Chance is {chance}, so that leads over it are what compares."


def apart(table: pd.DataFrame, metrics: Sequence[str]) -> str:
    """Where maps of members score clearly otherwise than those of non-members; rows over all images."""
    rows = table[table["metric"].isin(metrics) & table["gap"].notna()]
    if not len(rows):
        return ""
    parts = []
    for kind, part in (("higher", rows[rows["gap_low"] > 0]), ("lower", rows[rows["gap_high"] < 0])):
        if len(part):
            row = part.iloc[int(part["gap"].abs().to_numpy().argmax())]
            where = f"{figures.QUALITY[row['metric']]}, {figures.EXPLAINERS[row['explainer']]}, {label(row['model'])}"
            interval = f"{row['gap']:+.3f} [{row['gap_low']:+.3f}, {row['gap_high']:+.3f}]"
            parts.append(f"{kind} in {len(part)} (most: {where}, {interval})")
    found = ", ".join(parts) or "clearly otherwise in none"
    return f"Members against non-members, {len(rows)} scores: members {found}. One in 20 would be by chance."


def profile(table: pd.DataFrame, explainer: str) -> str:
    """Which model is clearly highest on how many axes; `table` as for `figures.quality_profile`.

    Only axes count that every model shown has; clear means that its interval lies beyond those of all others.
    """
    own = table[(table["model"] != "random") & table["mean"].notna()]
    models, axes = own["model"].nunique(), 0
    won: dict[str, int] = {}
    below = []
    for metric, part in own.groupby("metric", sort=False):
        sign = -1 if part["less"].any() else 1
        if len(part) == models > 1:
            axes += 1
            if best := _clearly_best(part, sign):
                won[best] = won.get(best, 0) + 1
        control = table[(table["model"] == "random") & (table["metric"] == metric)]["mean"]
        if len(control) and pd.notna(control.iloc[0]):
            beaten = sign * part["mean"] <= sign * control.iloc[0]
            below += [label(str(model)) for model in part["model"][beaten]]
    text = ", ".join(f"{label(name)} on {count}" for name, count in sorted(won.items(), key=lambda pair: -pair[1]))
    tail = (
        f" At or below its control at least once: {_list(list(dict.fromkeys(below)))}."
        if below
        else " No value is at or below its control."
    )
    head = f"of {axes} axes that all models have, the interval is highest and apart from all others for "
    return f"{figures.EXPLAINERS[explainer]}: {head if axes else ''}{(text or 'none') if axes else 'one model'}.{tail}"


def _clearly_best(part: pd.DataFrame, sign: int) -> str | None:
    """The model whose interval lies beyond all others' on the better side, or None."""
    ends = ("mean_low", "mean_high") if sign > 0 else ("mean_high", "mean_low")
    worst, best = (sign * part[end].to_numpy(float) for end in ends)
    place = int(worst.argmax())
    return str(part["model"].iloc[place]) if (worst[place] > np.delete(best, place)).all() else None


def sweep(sweeps: pd.DataFrame, chances: Mapping[str, float], threshold: float) -> dict[str, str]:
    """Of each model: Sufficiency at the threshold used, its range over the others, and what chance gives."""
    sentences = {}
    for model, part in sweeps[sweeps["of"] == "map"].groupby("model", sort=False):
        used, known = part[(part["threshold"] - threshold).abs() < 1e-9], part["mean"].dropna()
        if not len(known):
            sentences[str(model)] = "no threshold shown gives any image a neighbour."
            continue
        at = used["mean"].iloc[0] if len(used) and pd.notna(used["mean"].iloc[0]) else None
        first = "not defined" if at is None else f"{at:.3f}"
        alone = f"; {of_hundred(used['alone'].iloc[0])} images have no neighbour there" if len(used) else ""
        sentences[str(model)] = (
            f"{first} at threshold {threshold:g}; {known.min():.3f} to {known.max():.3f} over the thresholds shown; "
            f"{chances[str(model)]:.3f} if maps tell nothing{alone}."
        )
    return sentences


def images(
    frame: pd.DataFrame, metric: str, model: str, gap: Mapping[Any, Any] | None = None, runs: int | None = None
) -> str:
    """How single images spread, how many beat their controls, and whether members differ from non-members.

    `gap`: the row of `tables.quality` over all images; `runs`: how many random sets a correlation is over.
    """
    own = frame[metric]
    known = own.notna()
    if not known.any():
        return f"No image has a {figures.QUALITY[metric]} under {label(model)}."
    low, middle, high = own[known].quantile([0.05, 0.5, 0.95])
    beaten = []
    for control, name in (("random", "noise"), ("edges", "the edges")):
        beside = tables.control_of(frame, metric, control)
        both = known & beside.notna()
        if both.any():
            beaten.append(f"{name} in {of_hundred((own > beside)[both].mean())}")
    text = f"Nine in ten images lie between {low:.3f} and {high:.3f}, the median is {middle:.3f}. "
    text += f"The map is above {' and '.join(beaten)} images. " if beaten else ""
    means = own[known].groupby(frame["member"].astype(bool)).mean()
    if len(means) == 2:
        text += f"Mean of members {means[True]:.3f}, of non-members {means[False]:.3f}"
        if gap is not None and pd.notna(gap["gap"]):
            text += f", difference {gap['gap']:+.3f} [{gap['gap_low']:+.3f}, {gap['gap_high']:+.3f}]"
        text += "."
    if metric == "faithfulness_correlation" and runs:
        error = tables.correlation_error(own[known], runs)
        share = min(1.0, float((error**2).mean() / own[known].var())) if known.sum() > 1 else 1.0
        text += (
            f" One image's value has a standard error of {error.mean():.2f} from its {runs} random sets alone, which "
            f"makes {of_hundred(share)} parts of the variance shown."
        )
    return text.strip()


def change(table: pd.DataFrame, metric: str, model: str, kept: int) -> str:
    """How many images lose and gain from the undefended model's map to the defended one's; `kept` of them are shown."""
    if not len(table):
        return f"No image has a {figures.QUALITY[metric]} under both models."
    less, more = int((table["change"] < 0).sum()), int((table["change"] > 0).sum())
    return (
        f"From the undefended map to that of {label(model)} {less} of {len(table)} images lose "
        f"{figures.QUALITY[metric]}, {more} gain; the mean changes by {table['change'].mean():+.3f}. "
        f"Shown are those that change most of the {kept} whose maps are kept, not of all {len(table)}."
    )


def card(
    row: Mapping[Any, Any], before: Mapping[str, Any], after: Mapping[str, Any], metric: str, runs: int | None = None
) -> list[str]:
    """Lines below a triplet: the two scores beside their noise, and the change.

    `runs`: how many random sets a correlation is over, which gives its standard error; that of the change is as if the
    models had been asked about sets of their own, while they are asked about the same.
    """
    errors = [0.0, 0.0]
    if metric == "faithfulness_correlation" and runs:
        errors = tables.correlation_error(pd.Series([row["before"], row["after"]], dtype=float), runs).to_list()
    both = (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    lines = [f"**{row['change']:+.3f}**" + (f" ± {both:.2f}" if both else "")]
    names = (("undefended", row["before"], before), ("defended", row["after"], after))
    for (name, value, scores), error in zip(names, errors, strict=True):
        noise = scores[f"{metric}_random"]
        text = f"{name} {value:.3f}" + (f" ± {error:.2f}" if error else "")
        lines.append(text + ("" if pd.isna(noise) else f" (noise {noise:.3f})"))
    return lines


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
