"""Quality of maps over seeds, beside its controls and what a defense changes of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tier import experiment, tables
from tier.config import QUALITY_CONTROLS, QUALITY_METRICS, VARIANT_OF, Experiment
from tier.presets import Preset
from tier.store import Result, Store
from tier.summary.runs import SCORES, quality_runs

JUDGED = (*QUALITY_METRICS, *VARIANT_OF)
"""The scores of a map (`tier.quality`, which loads torch, says what they are), and variants of them."""
GROUPS = ("members", "nonmembers")
_JUDGES = {  # name -> its column in `tables.quality`, that of its interval
    "mean": ("mean", "interval"), "random": ("random", "random_interval"), "edges": ("edges", "edges_interval"),
    "gap": ("gap", "gap_interval"), "change": ("change", "change_interval"),
    "other": ("other_seed", "other_seed_interval"),
}  # fmt: skip
_UNDEFINED = "not defined for any of these images"


def quality(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Per defense and explainer with stored scores: how faithful its maps are, and whether they point at the object.

    Each of JUDGED holds `mean`, its 95 % `interval`, the same of both controls (`random`, `random_interval`, `edges`,
    `edges_interval`), and `n`, the images of all `seeds` for which it is defined; `change`, what the model has over the
    undefended one on the `change_n` images of both, and `other_seed`, what another seed of the undefended model has
    over it, each with its interval (`tables.quality`). `members` and `nonmembers` hold the same of these images alone,
    `gap` what members have over non-members. `refused` says what is left out and why, `notes` what has to be known of
    the scores, by seed; `permutation`, by seed, where Sufficiency lies if maps tell nothing; `sweeps` is Sufficiency at
    other thresholds, of the first seed, `chance` what it is if maps tell nothing, and `settings` those of Sufficiency.
    Raises ValueError for a defense or explainer that does not exist. What is not in the store is left out.
    """
    runs = list(quality_runs(preset, defenses, explainers, seeds, settings))
    results = {(name, view, seed): (e, experiment.find(store, "quality", e, [SCORES])) for name, view, seed, e in runs}
    found: dict[tuple[str, str], dict[int, tuple[Result, Experiment] | None]] = {}
    for (name, view, seed), (e, result) in results.items():
        found.setdefault((name, view), {})[seed] = None if result is None else (result, e)
    held = {place: {seed: run for seed, run in of.items() if run is not None} for place, of in found.items()}
    held = {place: of for place, of in held.items() if of}
    bare: dict[str, dict[int, pd.DataFrame]] = {}
    asked = sorted({*preset.seeds, *(seed for _, _, seed, _ in runs)})
    for _, view, seed, e in quality_runs(preset, ["none"], sorted({view for _, view in held}) or None, asked, settings):
        if held and (result := experiment.find(store, "quality", e, [SCORES])) is not None:
            bare.setdefault(view, {})[seed] = result.frame(SCORES)
    table = tables.quality(
        {place: {seed: result.frame(SCORES) for seed, (result, _) in of.items()} for place, of in held.items()},
        bare,
        {
            place: {seed: result.metrics["permutation"] for seed, (result, _) in of.items()}
            for place, of in held.items()
        },
    )
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, view), of in held.items():
        rows = table[(table["model"] == name) & (table["explainer"] == view)]
        out.setdefault(name, {})[view] = _judged(rows, of, list(found[name, view]))
    return out


def _judged(rows: pd.DataFrame, held: dict[int, tuple[Result, Experiment]], asked: Sequence[int]) -> dict[str, Any]:
    """One defense and explainer over its seeds, of which one at least is there: all images, and either group."""
    first, e = next(iter(held.values()))
    refused = {}
    if missing := [seed for seed in asked if seed not in held]:
        refused["seeds"] = f"not in this store: {', '.join(map(str, missing))}"
    if len(held) == 1:
        refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
    entry = _of_maps(rows, "all", first.metrics["refused"])
    if not rows["change"].notna().any():
        undefended = e.defense.name == "none"
        refused["change"] = (
            "it is the undefended model" if undefended else "the undefended model's scores are not stored"
        )
    if not rows["other"].notna().any():
        refused["other_seed"] = "scores of the undefended model at two seeds are not stored"
    return {
        **entry,
        "refused": entry["refused"] | refused,
        "seeds": sorted(held),
        "images": sum(int(result.metrics["images"]) for result, _ in held.values()),
        "settings": {name: getattr(e.quality, name) for name in ("threshold", "distance")},
        "permutation": {str(seed): result.metrics["permutation"] for seed, (result, _) in held.items()},
        "sweeps": first.metrics["sweeps"],
        "chance": first.metrics["chance"],
        "notes": {str(seed): result.metrics["notes"] for seed, (result, _) in held.items()},
        **{name: _of_maps(rows, name, first.metrics["refused"]) for name in GROUPS},
    }


def _of_maps(rows: pd.DataFrame, images: str, reasons: dict[str, str]) -> dict[str, Any]:
    """JUDGED of one kind of images, from `tables.quality`; and what is `refused`, with the stage's reason if any."""
    by_metric = {row["metric"]: row for row in rows[rows["images"] == images].to_dict("records")}
    out: dict[str, Any] = {}
    refused = {}
    for metric in JUDGED:
        row = by_metric.get(metric, {})
        out[metric] = {"n": int(row.get("n", 0)), "change_n": _count(row.get("change_n"))}
        for column, (name, interval) in _JUDGES.items():
            if column == "gap" and images != "all":
                continue
            values = [row.get(f"{column}{end}", np.nan) for end in ("", "_low", "_high")]
            there = bool(np.isfinite(values).all())
            out[metric] |= {name: float(values[0]) if there else None, interval: values[1:] if there else None}
            if not there and column in ("mean", *QUALITY_CONTROLS):
                refused[metric if column == "mean" else f"{metric}.{column}"] = reasons.get(metric, _UNDEFINED)
    return out | {"refused": refused}


def _count(value: float | None) -> int:
    return 0 if value is None or np.isnan(value) else int(value)
