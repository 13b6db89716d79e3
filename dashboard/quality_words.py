"""The wording of the page Quality: what each metric can and cannot tell, and takeaways computed from what is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dashboard.words import label, of_hundred
from tier import figures, tables

ABILITIES: dict[str, tuple[str, str]] = {
    "faithfulness_correlation": (
        "whether random sets of features that the map holds for important lower the logit more than others when they "
        "are replaced",
        "whether the map names the right pixels: a set of 7 % of all features mixes high and low ones, so that even "
        "good maps score low, and the score moves with the size of the sets and with what replaces them",
    ),
    "faithfulness_estimate": (
        "whether the features that the map puts first lower the logit more when each small group is replaced alone",
        "what features do together; replaced pixels make images that the model has never seen, and where groups tie "
        "(LIME's superpixels, the zeros of Grad-CAM) their order is arbitrary",
    ),
    "sufficiency": (
        "whether images with like maps get the same prediction",
        "whether the map is right for the image at hand; the score depends on the threshold, on the distance and on "
        "how many images are compared, and at a high threshold, where all images are neighbours, it is the chance that "
        "two images share a class whatever the maps are",
    ),
    "pointing_game": (
        "whether the highest pixel lies on the object",
        "whether the rest of the map does; a large object in the centre is hit by nearly anything",
    ),
    "mask_mass": (
        "which share of the map's size lies on the object",
        "whether that is why the model decides as it does: a model may well look at the background, and a map that is "
        "right about it scores low",
    ),
    "mask_iou": (
        "whether the highest pixels cover the object",
        "anything about maps that are right to mark a part of it: a glyph in the middle of the sign is enough for the "
        "class and covers little",
    ),
}
"""What a metric can tell, and what it cannot, with its trap; `docs/quality.md` has the same sentences (tested)."""

DIRECTION = """Of every metric here more is better. The paper's Table VI counts less Sufficiency as better; by the
definition that it cites, the share of images with like maps that get the same prediction, more is."""


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


def moved(table: pd.DataFrame, metrics: Sequence[str]) -> str:
    """How far each defense moves each metric from the undefended model, as a mean over the explainers both have."""
    parts = []
    for metric in metrics:
        wide = table[table["metric"] == metric].pivot(index="explainer", columns="model", values="mean")
        changes = [
            f"{label(str(model))} {wide[model].sub(wide['none']).mean():+.3f}"
            for model in wide.columns
            if "none" in wide and model != "none" and wide[model].sub(wide["none"]).notna().any()
        ]
        if changes:
            parts.append(f"{figures.QUALITY[metric]}: {', '.join(changes)}")
    if not parts:
        known = table[table["metric"].isin(metrics)]
        rows = known.groupby("metric", sort=False)["mean"].agg(["min", "max"])
        return "Lowest and highest mean: " + "; ".join(
            f"{figures.QUALITY[str(metric)]} {row['min']:.3f} to {row['max']:.3f}" for metric, row in rows.iterrows()
        ) + "."  # fmt: skip
    return f"Mean change from the undefended model over the explainers. {'. '.join(parts)}."


def profile(table: pd.DataFrame, explainer: str) -> str:
    """Which model is highest on how many axes; `table` as for `figures.quality_profile`."""
    own = table[(table["model"] != "random") & table["mean"].notna()]
    won: dict[str, int] = {}
    below = []
    for metric, part in own.groupby("metric", sort=False):
        sign = -1 if part["less"].any() else 1
        best = str(part["model"].iloc[int((sign * part["mean"]).argmax())])
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
    return f"{figures.EXPLAINERS[explainer]}: of {own['metric'].nunique()} axes the highest is {text}.{tail}"


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


def images(frame: pd.DataFrame, metric: str, model: str) -> str:
    """How single images spread, how many beat their controls, and whether members differ from non-members."""
    own = frame[metric]
    known = own.notna()
    if not known.any():
        return f"No image has a {figures.QUALITY[metric]} under {label(model)}."
    low, middle, high = own[known].quantile([0.05, 0.5, 0.95])
    beaten = []
    for control, name in (("random", "noise"), ("edges", "the edges")):
        both = known & frame[f"{metric}_{control}"].notna()
        if both.any():
            beaten.append(f"{name} in {of_hundred((own > frame[f'{metric}_{control}'])[both].mean())}")
    text = f"Nine in ten images lie between {low:.3f} and {high:.3f}, the median is {middle:.3f}. "
    text += f"The map is above {' and '.join(beaten)} images. " if beaten else ""
    means = own[known].groupby(frame["member"].astype(bool)).mean()
    if len(means) == 2:
        text += f"Mean of members {means[True]:.3f}, of non-members {means[False]:.3f}."
    return text.strip()


def change(table: pd.DataFrame, metric: str, model: str, kept: int) -> str:
    """How many images lose and gain from the undefended model's map to the defended one's; `kept` of them are shown."""
    if not len(table):
        return f"No image has a {figures.QUALITY[metric]} under both models."
    less, more = int((table["change"] < 0).sum()), int((table["change"] > 0).sum())
    return (
        f"From the undefended map to that of {label(model)} {less} of {len(table)} images lose "
        f"{figures.QUALITY[metric]}, {more} gain; the mean changes by {table['change'].mean():+.3f}. "
        f"The maps of {kept} of them are kept."
    )


def card(row: Mapping[Any, Any], before: Mapping[str, Any], after: Mapping[str, Any], metric: str) -> list[str]:
    """Lines below a triplet: the two scores beside their noise, and the change."""
    lines = [f"**{row['change']:+.3f}**"]
    for name, value, scores in (("undefended", row["before"], before), ("defended", row["after"], after)):
        noise = scores[f"{metric}_random"]
        lines.append(f"{name} {value:.3f}" + ("" if pd.isna(noise) else f" (noise {noise:.3f})"))
    return lines


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
