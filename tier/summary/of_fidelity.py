"""Likeness of maps to the undefended model's, over seeds, beside its controls."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tier import experiment
from tier.config import EXPLAINER_SETTINGS
from tier.fidelity import CONTROLS, METRICS
from tier.presets import Preset
from tier.stats import Array, seed_mean_interval
from tier.store import Store
from tier.summary.runs import SCORES, fidelity_runs

_COMPARED = {"mean": "", **{control: f"_{control}" for control in CONTROLS}}  # name -> suffix of its columns
_STATISTICS_OF_MAPS = [f"{metric}{suffix}" for metric in METRICS for suffix in _COMPARED.values()]
_UNFIT = "a map is constant or not finite"
_SCORE_COLUMNS = ["correct", "agree", *_STATISTICS_OF_MAPS]


def fidelity(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Per defense and explainer with stored scores: how like the undefended model's its maps are (SPEC 7).

    Each of METRICS holds `mean`, its 95 % `interval`, and the same of both controls: `shuffled`, `shuffled_interval`,
    `second_seed`, `second_seed_interval`. `n` counts the pairs compared, of all `seeds`; `refused` says what is left
    out and why. `correct` holds the same for the images that both models get right.
    Raises ValueError for a defense or explainer that does not exist. Comparisons not in the store are left out.
    """
    found: dict[tuple[str, str], dict[int, pd.DataFrame | None]] = {}
    views = explainers or list(EXPLAINER_SETTINGS)  # those that the preset does not name may be stored too
    for defense, explainer, seed, e in fidelity_runs(preset, defenses, views, seeds, settings):
        result = experiment.find(store, "fidelity", e, [SCORES])
        tables = found.setdefault((defense, explainer), {})
        tables[seed] = None if result is None else result.frame(SCORES, _SCORE_COLUMNS)
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for (defense, explainer), tables in found.items():
        if any(table is not None for table in tables.values()):
            out.setdefault(defense, {})[explainer] = _likeness(tables)
    return out


def _likeness(tables: dict[int, pd.DataFrame | None]) -> dict[str, Any]:
    """One defense and explainer over its seeds, of which one at least is there: all images, and the correct ones."""
    held = {seed: table for seed, table in tables.items() if table is not None}
    refused = {}
    if missing := [seed for seed in tables if seed not in held]:
        refused["seeds"] = f"not in this store: {', '.join(map(str, missing))}"
    if len(held) == 1:
        refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
    entry = _of_images(list(held.values()))
    right = _of_images([table[table["correct"].to_numpy(bool)] for table in held.values()])
    return entry | {"seeds": sorted(held), "refused": refused | entry["refused"], "correct": right}


def _of_images(tables: list[pd.DataFrame]) -> dict[str, Any]:
    """METRICS of the images of each seed, beside their controls and with intervals; `n` and `refused`."""
    values = [table[_STATISTICS_OF_MAPS].to_numpy(np.float64) for table in tables]
    mean = _mean_there(np.stack([_mean_there(of_seed) for of_seed in values]))  # of the seeds' means
    bounds = zip(mean, *seed_mean_interval(values), strict=True)
    out: dict[str, Any] = {metric: {} for metric in METRICS}
    refused = _left_out(pd.concat(tables))
    places = ((metric, name) for metric in METRICS for name in _COMPARED)
    for (metric, name), (value, low, high) in zip(places, bounds, strict=True):
        there = bool(np.isfinite(value))
        out[metric][name] = float(value) if there else None
        out[metric]["interval" if name == "mean" else f"{name}_interval"] = [float(low), float(high)] if there else None
        if not there:
            refused[f"{metric}.{name}"] = "no pair of maps can be compared"
    return out | {"n": sum(int(of_seed[METRICS[0]].notna().sum()) for of_seed in tables), "refused": refused}


def _mean_there(values: Array) -> Array:
    """Column means `(L,)` over the values that are not NaN; NaN where there is none."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        mean: Array = np.where(there, values, 0.0).sum(0) / there.sum(0)
    return mean


def _left_out(table: pd.DataFrame) -> dict[str, str]:
    """What the means over these pairs are without, and why."""
    if table.empty:
        return {"images": "there are none of this kind"}
    refused, agree = {}, table["agree"].to_numpy(bool)
    if not agree.all():
        refused["other class"] = f"{(~agree).sum()} of {len(agree)} pairs left out: they explain different classes"
    for name, suffix in _COMPARED.items():
        lacking = table[[f"{metric}{suffix}" for metric in METRICS]].isna().any(axis=1).to_numpy()
        if name != "second_seed":  # the defense does not matter to that control, and where it disagrees is not kept
            lacking = lacking & agree
        if lacking.any():
            of = "degenerate maps" if name == "mean" else f"degenerate maps.{name}"
            refused[of] = f"{lacking.sum()} of {len(agree)} pairs left out: {_UNFIT}"
            refused[of] += ", or they explain different classes" if name == "second_seed" else ""
    return refused
