"""Attacks over several seeds, on parts of the images and by class: all that takes the scores of single images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tier.attacks import ATTACKS
from tier.metrics import class_leaks, most_exposed, report_seeds
from tier.stats import gap_interval
from tier.store import Result
from tier.summary.runs import SCORES

PARTS = ("vulnerable_decile", "canaries")
AttackResults = dict[str, dict[str, dict[int, Result]]]  # one defense: by explainer, attacker and seed
_Frames = Sequence[pd.DataFrame]  # of one attack under each seed: index, member, label, score, in the same order


def seeds_report(scores: _Frames, thresholds: Sequence[float | None], rows: Any = slice(None)) -> dict[str, Any]:
    """`metrics.report_seeds` of one attack's scores under each seed, of the images `rows` `(N,)` bool alone.

    Each table has index, member, score, of the same images in the same order. Raises ValueError for other images.
    """
    if any(not np.array_equal(table["index"], scores[0]["index"]) for table in scores):
        raise ValueError("the seeds have different images; they can be looked at one by one only")
    runs = []
    for table, threshold in zip(scores, thresholds, strict=True):
        values, member = table["score"].to_numpy(np.float64)[rows], table["member"].to_numpy(bool)[rows]
        runs.append((values[member], values[~member], threshold))
    return report_seeds(runs)


def exposed_report(scores: _Frames, thresholds: Sequence[float | None], batteries: _Frames) -> dict[str, Any] | None:
    """The report of an attack on the most exposed images (`metrics.most_exposed`); None where exposure is unknown.

    `scores`: of the attack under each seed, as for `seeds_report`. `batteries`: battery/scores.parquet of the seeds,
    of whose exposures an image's is the mean. One table in each gives the report of that seed.
    """
    exposure = np.mean([table.set_index("index").loc[scores[0]["index"], "exposure"] for table in batteries], axis=0)
    return None if np.isnan(exposure).all() else seeds_report(scores, thresholds, most_exposed(exposure))


def seeds_class_leaks(scores: _Frames, thresholds: Sequence[float | None]) -> list[dict[str, Any]]:
    """`metrics.class_leaks` of one attack, over the seeds the means of its figures and counts.

    The interval is that of the mean rates for as many images as one seed has: other seeds' images are the same ones.
    """
    found = [
        class_leaks(table["score"], table["member"], table["label"], threshold)
        for table, threshold in zip(scores, thresholds, strict=True)
    ]
    if len(found) == 1:
        return found[0]
    by_label = [{row["label"]: row for row in rows} for rows in found]
    made = []
    for label in by_label[0]:
        rows = [of[label] for of in by_label if label in of]
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name not in _OF_CLASS}
        sizes = rows[0]["members"], rows[0]["nonmembers"]
        tpr, fpr = mean["true_positives"] / sizes[0], mean["false_positives"] / sizes[1]
        interval = list(gap_interval(tpr, fpr, *sizes))
        made.append(
            {name: rows[0][name] for name in ("label", "members", "nonmembers")} | mean | {"interval": interval}
        )
    return sorted(made, key=lambda row: -row["balanced_accuracy"])


_OF_CLASS = ("label", "interval", "members", "nonmembers")  # that are no means over seeds


def attack_metrics(results: dict[int, Result]) -> dict[str, Any]:
    """What the stage `attack` says, of several seeds over all of them; nothing where none is stored."""
    told = [result.metrics for result in results.values()]
    if len(told) < 2:
        return dict(told[0]) if told else {}
    frames = [result.frame(SCORES) for result in results.values()]
    made: dict[str, Any] = {name: [of.get(name) for of in told] for name in ("alpha", "features_kept")}
    for name in ("attack_test", "target"):
        parts = [_in_order(frame[frame["set"] == name]) for frame in frames]
        made[name] = seeds_report(parts, [of[name]["threshold"] for of in told])
    return made


def battery_metrics(found: AttackResults, results: dict[int, Result]) -> dict[str, Any] | None:
    """What the stage `battery` says, of several seeds over all of them; None where none is stored."""
    told = [result.metrics for result in results.values()]
    if len(told) < 2:
        return dict(told[0]) if told else None
    frames = [_in_order(result.frame(SCORES)) for result in results.values()]
    made: dict[str, Any] = {"queries": told[0].get("queries"), **{part: {} for part in PARTS}}
    made["notes"] = list(dict.fromkeys(note for of in told for note in of.get("notes", ())))
    exposed, canary = _exposed(frames), _canary(found, frames[0])
    for name in (name for name in ATTACKS if all(name in of for of in told)):
        scores, thresholds = _scores(frames, name), [of[name]["threshold"] for of in told]
        signs = {of[name].get("sign") for of in told}
        made[name] = seeds_report(scores, thresholds) | {"sign": signs.pop() if len(signs) == 1 else None}
        made["vulnerable_decile"][name] = seeds_report(scores, thresholds, exposed)
        if canary is not None:
            made["canaries"][name] = seeds_report(scores, thresholds, canary)
    return made


def add_parts(made: dict[str, Any], found: AttackResults, batteries: dict[int, Result]) -> dict[str, str]:
    """Put agp's leaves on the parts into one defense's entry, and `per_class` of all its attacks.

    Returns what is refused of them and why: they are made from the scores of single images, which need not be stored.
    """
    of: dict[str, Any] = made["battery"]
    made["per_class"] = {}
    refused = {}
    held = [result for result in batteries.values() if result.has(SCORES)]
    frames = [_in_order(result.frame(SCORES)) for result in held]
    if "agp" in of:
        learnt = [r for r in found[of["agp"]["explainer"]]["adaptive"].values() if r.has(SCORES)]
        scores = [_in_order(_of_target(result)) for result in learnt]
        thresholds = [result.metrics["target"]["threshold"] for result in learnt]
        leaves: dict[str, dict[str, Any] | None] = {}
        if scores:
            made["per_class"]["agp"] = seeds_class_leaks(scores, thresholds)
            leaves["vulnerable_decile"] = exposed_report(scores, thresholds, frames) if frames else None
            canary = _canary(found, scores[0])
            leaves["canaries"] = None if canary is None else seeds_report(scores, thresholds, canary)
        for part, leaf in leaves.items():
            made[part] = ({} if leaf is None else {"agp": leaf}) | made[part]
        if made["vulnerable_decile"].keys() - {"agp"} and "agp" not in made["vulnerable_decile"]:
            refused["vulnerable_decile.agp"] = "the scores or the exposure of single images are not in this store"
    for name in (name for name in of if name != "agp" and frames):
        made["per_class"][name] = seeds_class_leaks(_scores(frames, name), [r.metrics[name]["threshold"] for r in held])
    if lacking := [name for name in of if name not in made["per_class"]]:
        refused["per_class"] = f"the scores of single images are not in this store: {', '.join(lacking)}"
    return refused | _one_sided(frames)


def _one_sided(frames: Sequence[pd.DataFrame]) -> dict[str, str]:
    """Which classes `per_class` leaves out."""
    if not frames:
        return {}
    groups = frames[0].groupby("label")["member"].nunique()
    labels = ", ".join(str(label) for label in groups.index[groups < 2])
    return {"per_class.classes": f"only members or only non-members: {labels}"} if labels else {}


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("index", ignore_index=True)


def _of_target(result: Result) -> pd.DataFrame:
    table = result.frame(SCORES)
    return table[table["set"] == "target"]


def _scores(batteries: _Frames, attack: str) -> list[pd.DataFrame]:
    """One attack's scores in the tables of the battery."""
    return [table[["index", "member", "label"]].assign(score=table[attack]) for table in batteries]


def _exposed(batteries: _Frames) -> NDArray[np.bool_]:
    return most_exposed(np.mean([table["exposure"] for table in batteries], axis=0))


def _canary(found: AttackResults, images: pd.DataFrame) -> NDArray[np.bool_] | None:
    """Which of the images are canaries, as any stored attack's scores have it; None where there are none."""
    for held in found.values():
        for result in (result for of in held.values() for result in of.values() if result.has(SCORES)):
            target = _of_target(result)
            if "canary" not in target or not target["canary"].any():
                return None
            return images["index"].isin(target["index"][target["canary"]]).to_numpy(bool)
    return None
