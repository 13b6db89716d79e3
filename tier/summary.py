"""A preset's stored results in figures: means over seeds with intervals that resample seeds, then images (SPEC 0)."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tier import experiment, tables
from tier.attacks import ATTACKS, gap, loss
from tier.config import (
    EXPLAINER_SETTINGS,
    QUALITY_CONTROLS,
    QUALITY_METRICS,
    VARIANT_OF,
    Defense,
    Experiment,
)
from tier.fidelity import CONTROLS, METRICS
from tier.metrics import auc, balanced_accuracy, class_leaks, most_exposed, report_seeds
from tier.presets import Preset
from tier.stats import Array, gap_interval, seed_interval, seed_mean_interval
from tier.store import Result, Store

FIGURES = (
    "train_accuracy", "test_accuracy", "test_top5", "test_loss", "audit_balanced_accuracy", "audit_auc",
    "gap_balanced_accuracy", "loss_auc", "seconds_per_epoch", "overhead",
)  # fmt: skip
PRIVACY = ("epsilon", "delta")  # of DP-SGD


def summarize(
    store: Store,
    preset: Preset,
    settings: dict[str, Any] | None = None,
    defenses: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> dict[str, dict[str, Any]]:
    """What the store holds of each defense of the preset, rivals too; those without results are left out.

    - FIGURES, and their `intervals` by the same names; `overhead` is seconds per epoch over the undefended run's
    - `battery`: the leaf of the `attack` on the target, of those in `attacks`, that has the highest AUC, made on one
      `seed`. A maximum over attacks on the same images: the noise of each goes into it, and its intervals do not know
      of the choice, so it is somewhat above what an attacker who has to choose beforehand would get
    - PRIVACY where the defense states it, `seeds`, and what is `refused` and why

    Raises ValueError for a defense that the preset does not have.
    """
    found = {}
    asked = list(seeds or preset.seeds)
    plain = _reports(store, {seed: preset.run(Defense(), seed).set(settings or {}) for seed in asked})
    for name in defenses or [defense.name for defense in preset.compared]:
        held = _reports(store, {seed: preset.run(name, seed).set(settings or {}) for seed in asked})
        if held:
            found[name] = _entry(store, preset, name, held, plain, asked, settings or {})
    return found


def of_runs(store: Store, runs: dict[int, Experiment]) -> dict[str, Any] | None:
    """FIGURES of a run under several seeds, as `summarize` has them but for `overhead`; None where none is stored."""
    held = _reports(store, runs)
    return _figures(store, held) if held else None


_Runs = dict[int, tuple[Experiment, Result]]  # by seed: a run and its report


def _reports(store: Store, runs: dict[int, Experiment]) -> _Runs:
    """The runs whose report is stored."""
    reports = {seed: experiment.find(store, "report", e) for seed, e in runs.items()}
    return {seed: (runs[seed], report) for seed, report in reports.items() if report is not None}


def _entry(
    store: Store, preset: Preset, name: str, held: _Runs, plain: _Runs, asked: list[int], settings: dict[str, Any]
) -> dict[str, Any]:
    """One defense as `summarize` gives it."""
    out = _figures(store, held)
    values, reason = _overhead(store, held, plain)
    out["overhead"] = float(np.mean(values)) if values else None
    out["intervals"]["overhead"] = _over_seeds(values)
    out["battery"], refused = _strongest_on_target(store, preset, name, settings, asked[0])
    if reason is not None:
        refused["overhead"] = reason
    elif name == "memguard":
        refused["overhead of the guard"] = GUARD
    elif len(values) < 2:
        refused["intervals.overhead"] = "one seed only"
    if missing := [seed for seed in asked if seed not in held]:
        refused["seeds"] = f"not in this store: {', '.join(map(str, missing))}"
    out["refused"] |= refused
    return out


def _overhead(store: Store, held: _Runs, plain: _Runs) -> tuple[list[float], str | None]:
    """Seconds per epoch over those of the undefended run, for each seed that has both; or why there are none."""
    both = [seed for seed in held if seed in plain]
    if not both:
        return [], f"no undefended run of seed {', '.join(map(str, held))} is in this store"
    if all("guarded" in experiment.sources(held[seed][0]) for seed in both):
        return [1.0] * len(both), None  # by construction: the seconds stored are those of the model that it guards
    if len({_machine(store, *runs[seed]) for runs in (held, plain) for seed in both}) > 1:
        return [], "the runs were trained on different machines, whose seconds do not compare"
    seconds = [[runs[seed][1].metrics["seconds_per_epoch"] for seed in both] for runs in (held, plain)]
    return [own / other for own, other in zip(*seconds, strict=True)], None


def _machine(store: Store, e: Experiment, report: Result) -> tuple[Any, Any]:
    """On what a run was trained: its device and processor."""
    record = (experiment.find(store, "train", e) or report).record
    return record.get("device"), record.get("environment", {}).get("cpu")


def _over_seeds(values: Sequence[float]) -> list[float] | None:
    """The interval of a mean over seeds that have one value each; None for a single one."""
    if len(values) < 2:
        return None
    return list(seed_interval([{"runs": np.array([value])} for value in values], _mean))


def _strongest_on_target(
    store: Store, preset: Preset, name: str, settings: dict[str, Any], seed: int
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """`battery` of one defense, and what is refused of it."""
    try:
        of = attacks(store, preset, [name], seed=seed, settings=settings, parts=False)[name]
    except ValueError as mistake:  # these settings are of a model that is no target
        return None, {"battery": str(mistake)}
    areas = {attack: leaf["auc"] for attack, leaf in of["battery"].items() if leaf["auc"] is not None}
    lacking = {what: why for what, why in of["refused"].items() if what in ("battery", "battery.agp")}
    if not areas:
        return None, {"battery": lacking.get("battery", "no attack on the target is defined")}
    refused = {ONE_OF_FEW if what == "battery" else what: why for what, why in lacking.items()}
    best = max(areas, key=lambda attack: areas[attack])
    return {"attack": best, "attacks": list(areas), "seed": seed, **of["battery"][best]}, refused


GUARD = (
    "its training is the plain model's, so an epoch takes as long by construction; its guard is fitted once and "
    "searches noise for every answer, which is no part of an epoch: docs/capacity.md has what that costs an image"
)
"""Of MemGuard's overhead, what is not in it."""


def overheads(store: Store, preset: Preset) -> dict[str, dict[str, Any]]:
    """Seconds per epoch over plain training, of each defense of the preset that is stored.

    Each has `value` (mean over seeds; None with the reason under `refused`), `low` and `high` (95 % over seeds; None
    for a single seed), `seconds`, `seeds`, and `note` where the value is not what was measured. The same figures as
    `overhead` of `summarize`, without its bootstraps.
    """
    plain = _reports(store, {seed: preset.run(Defense(), seed) for seed in preset.seeds})
    found = {}
    for defense in preset.compared:
        held = _reports(store, {seed: preset.run(defense, seed) for seed in preset.seeds})
        if not held:
            continue
        values, reason = _overhead(store, held, plain)
        low, high = _over_seeds(values) or (None, None)
        seconds = _mean_known([report.metrics.get("seconds_per_epoch") for _, report in held.values()])
        value = float(np.mean(values)) if values else None
        row = {"value": value, "low": low, "high": high, "seconds": seconds, "seeds": len(values)}
        told = {"refused": reason} if reason else {"note": GUARD} if defense.name == "memguard" else {}
        found[str(defense.name)] = row | told
    return found


def best_attacks(store: Store, preset: Preset) -> dict[str, dict[str, Any]]:
    """`battery` of `summarize` for each defense of the preset whose battery is stored, without the rest of it.

    The best of one or two attacks is left out: it does not compare with the best of twelve.
    """
    found = {str(d.name): _strongest_on_target(store, preset, d.name, {}, preset.seeds[0]) for d in preset.compared}
    return {name: leaf for name, (leaf, refused) in found.items() if leaf is not None and ONE_OF_FEW not in refused}


ONE_OF_FEW = "battery.others"
"""Under `refused`: the best attack is the best of few, because the battery is not stored."""
UTILITY = ("train accuracy", "test accuracy", "test loss", "seconds per epoch (over plain)", "seeds")
LEAK = ("audit balanced accuracy", "audit AUC", "gap balanced accuracy", "loss AUC", "best attack")


def rows(summary: dict[str, dict[str, Any]], columns: Sequence[str] = UTILITY + LEAK) -> list[list[str]]:
    """Defenses down, figures across, as text: a header row, then a row per defense with values and intervals."""
    body = []
    for name, of in summary.items():
        cells = _cells(of)
        body.append([name, *(cells[column] for column in columns)])
    return [["defense", *columns], *body]


def _cells(of: dict[str, Any]) -> dict[str, str]:
    """One defense's cells by the name of their column."""
    shown = {
        "train accuracy": "train_accuracy", "test accuracy": "test_accuracy", "test loss": "test_loss",
        "audit balanced accuracy": "audit_balanced_accuracy", "audit AUC": "audit_auc",
        "gap balanced accuracy": "gap_balanced_accuracy", "loss AUC": "loss_auc",
    }  # fmt: skip
    cells = {column: interval_text(of[figure], of["intervals"][figure]) for column, figure in shown.items()}
    factor = "" if of["overhead"] is None else f" ({of['overhead']:.2f} x)"
    cells["seconds per epoch (over plain)"] = interval_text(of["seconds_per_epoch"], None) + factor
    best = of["battery"]
    cells["best attack"] = "-"
    if best is not None:
        of_few = f" (of {len(best['attacks'])} only)" if ONE_OF_FEW in of["refused"] else ""
        value = interval_text(best["balanced_accuracy"], best["interval"])
        cells["best attack"] = f"{_label(best['attack'], best)}: {value}{of_few}"
    return cells | {"seeds": ", ".join(map(str, of["seeds"]))}


def _label(attack: str, leaf: dict[str, Any]) -> str:
    """An attack's name, that of agp with its explainer."""
    return f"{attack} ({leaf['explainer']})" if "explainer" in leaf else attack


def markdown(summary: dict[str, dict[str, Any]]) -> str:
    """`rows` as a Markdown table."""
    return as_markdown(rows(summary))


def as_markdown(table: list[list[str]]) -> str:
    """A header row and its body as a Markdown table."""
    header, *body = table
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def interval_text(value: float | None, interval: list[float] | None) -> str:
    """A figure with its interval, `0.873 [0.856, 0.888]`; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _figures(store: Store, held: _Runs) -> dict[str, Any]:
    """Means over seeds with their intervals; `overhead` is still to be filled in."""
    out: dict[str, Any] = {"seeds": sorted(held)}
    refused: dict[str, str] = {}
    reports = [report.metrics for _, report in held.values()]
    for figure in FIGURES:
        out[figure] = _mean_known([metrics.get(figure) for metrics in reports])
    if out["test_top5"] is None:
        refused["test_top5"] = "fewer than six classes"
    told = [metrics.get("defense", {}) for metrics in reports]
    for name in PRIVACY if any(name in of for of in told for name in PRIVACY) else ():
        out[name] = _mean_known([of.get(name) for of in told])
        if out[name] is None:
            refused[name] = "without noise nothing is guaranteed"
    intervals: dict[str, list[float] | None] = dict.fromkeys(FIGURES)
    samples = [_samples(store, e) for e, _ in held.values()]
    if any(sample is None for sample in samples):
        refused |= dict.fromkeys((f"intervals.{f}" for f in _STATISTICS), "the per-image results are not in this store")
    else:
        for figure, statistic in _STATISTICS.items():
            if out[figure] is not None:
                intervals[figure] = list(seed_interval([s[figure] for s in samples if s is not None], statistic))
    intervals["seconds_per_epoch"] = _over_seeds([metrics["seconds_per_epoch"] for metrics in reports])
    if len(held) == 1:
        refused["intervals.seconds_per_epoch"] = "one seed only"
        refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
    return out | {"intervals": intervals, "refused": refused}


def _mean_known(values: Sequence[float | None]) -> float | None:
    """The mean; None where a value is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _samples(store: Store, e: Experiment) -> dict[str, dict[str, Array]] | None:
    """For each figure the per-image values of members and non-members that it is a statistic of."""
    train = experiment.find(store, "train", e, ["samples.parquet"])
    audit = experiment.find(store, "audit", e, ["scores.parquet"])
    if train is None or audit is None:
        return None
    table, scores = train.frame("samples.parquet"), audit.frame("scores.parquet")
    right = (table["predicted"] == table["label"]).to_numpy(float)
    member = table["member"].to_numpy(bool)
    held = scores["holdout"].notna().to_numpy()

    def groups(values: Any, rows: Any = slice(None)) -> dict[str, Array]:
        array, inside = np.asarray(values, np.float64)[rows], member[rows]
        return {"members": array[inside], "nonmembers": array[~inside]}

    return {
        "train_accuracy": {"members": right[member]},
        "test_accuracy": {"nonmembers": right[~member]},
        "test_top5": {"nonmembers": table["in_top5"].to_numpy(float)[~member]},
        "test_loss": {"nonmembers": table["loss"].to_numpy(float)[~member]},
        "gap_balanced_accuracy": groups(gap.score(table["predicted"].to_numpy(), table["label"].to_numpy())),
        "loss_auc": groups(loss.score(table["loss"].to_numpy(float))),
        "audit_balanced_accuracy": groups(scores["holdout"], held),
        "audit_auc": groups(scores["holdout"], held),
    }


def _mean(groups: dict[str, Array]) -> float:
    (values,) = groups.values()
    return float(values.mean())


_STATISTICS: dict[str, Callable[[dict[str, Array]], float]] = {
    "train_accuracy": _mean,
    "test_accuracy": _mean,
    "test_top5": _mean,
    "test_loss": _mean,
    "gap_balanced_accuracy": lambda g: balanced_accuracy(g["members"], g["nonmembers"]),
    "loss_auc": lambda g: auc(g["members"], g["nonmembers"]),
    "audit_balanced_accuracy": lambda g: balanced_accuracy(g["members"], g["nonmembers"]),
    "audit_auc": lambda g: auc(g["members"], g["nonmembers"]),
}


# ---- fidelity of maps


SCORES = "scores.parquet"
_COMPARED = {"mean": "", **{control: f"_{control}" for control in CONTROLS}}  # name -> suffix of its columns
_STATISTICS_OF_MAPS = [f"{metric}{suffix}" for metric in METRICS for suffix in _COMPARED.values()]
_UNFIT = "a map is constant or not finite"
_SCORE_COLUMNS = ["correct", "agree", *_STATISTICS_OF_MAPS]


def fidelity_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, int, Experiment]]:
    """(defense, explainer, seed, experiment) of every comparison asked for; None means all that the preset names.

    Raises ValueError for an explainer or defense that does not exist, and for `none`, which is the reference.
    """
    _refuse_unknown(explainers or ())
    compared = [defense.name for defense in preset.defenses if defense.name != "none"]
    for defense in defenses or compared:
        if defense == "none":
            raise ValueError(f"'none' is what the others are compared with; choose one of {', '.join(compared)}")
        for explainer in explainers or preset.explainers:
            for seed in seeds or preset.seeds:
                yield defense, explainer, seed, preset.fidelity(defense, seed, explainer).set(settings or {})


def _refuse_unknown(explainers: Sequence[str]) -> None:
    for name in explainers:
        if name not in EXPLAINER_SETTINGS:
            raise ValueError(f"no explainer named '{name}'; there are {', '.join(EXPLAINER_SETTINGS)}")


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


def fidelity_rows(summary: dict[str, dict[str, dict[str, Any]]]) -> list[list[str]]:
    """Explainer, defense and metric down; the score beside its controls, and over correct images, across, as text."""
    header = ["explainer", "defense", "metric", "mean", "other image", "other seed", "both right"]
    return [header, *_by_explainer(summary, METRICS, _likeness_cells)]


def _by_explainer(
    summary: dict[str, dict[str, dict[str, Any]]],
    metrics: Sequence[str],
    cells: Callable[[dict[str, Any], str], list[str]],
) -> Iterator[list[str]]:
    """A row for each explainer, defense and metric."""
    for explainer in dict.fromkeys(name for views in summary.values() for name in views):
        for defense, views in summary.items():
            if explainer in views:
                yield from ([explainer, defense, metric, *cells(views[explainer], metric)] for metric in metrics)


def _likeness_cells(entry: dict[str, Any], metric: str) -> list[str]:
    of, right = entry[metric], entry["correct"][metric]
    controls = [interval_text(of[name], of[f"{name}_interval"]) for name in CONTROLS]
    return [interval_text(of["mean"], of["interval"]), *controls, interval_text(right["mean"], right["interval"])]


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


# ---- quality of maps


JUDGED = (*QUALITY_METRICS, *VARIANT_OF)
"""The scores of a map (`tier.quality`, which loads torch, says what they are), and variants of them."""
GROUPS = ("members", "nonmembers")
_JUDGES = {  # name -> its column in `tables.quality`, that of its interval
    "mean": ("mean", "interval"), "random": ("random", "random_interval"), "edges": ("edges", "edges_interval"),
    "gap": ("gap", "gap_interval"), "change": ("change", "change_interval"),
    "other": ("other_seed", "other_seed_interval"),
}  # fmt: skip
_UNDEFINED = "not defined for any of these images"


def quality_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, int, Experiment]]:
    """(defense, explainer, seed, experiment) of every `quality` asked for; None: all that the preset names, but of
    seeds the first alone.

    Raises ValueError for an explainer or defense that does not exist.
    """
    _refuse_unknown(explainers or ())
    for defense in defenses or [defense.name for defense in preset.defenses]:
        for explainer in explainers or preset.explainers:
            for seed in seeds or preset.seeds[:1]:
                e = preset.run(defense, seed).set({**(settings or {}), "explain.name": explainer})
                yield defense, explainer, seed, e


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


def quality_rows(summary: dict[str, dict[str, dict[str, Any]]]) -> list[list[str]]:
    """Explainer, defense and metric down; across, as text, the score beside its controls, of members and non-members,
    and what it has over the undefended model's, beside what another seed has.
    """
    header = ["explainer", "defense", "metric", "mean", "random", "edges", "members", "non-members", "n"]
    return [[*header, "change", "other seed"], *_by_explainer(summary, JUDGED, _judged_cells)]


def _judged_cells(entry: dict[str, Any], metric: str) -> list[str]:
    of = entry[metric]
    controls = [interval_text(of[name], of[f"{name}_interval"]) for name in QUALITY_CONTROLS]
    groups = [interval_text(entry[group][metric]["mean"], entry[group][metric]["interval"]) for group in GROUPS]
    moved = [interval_text(of[name], of[f"{name}_interval"]) for name in ("change", "other_seed")]
    return [interval_text(of["mean"], of["interval"]), *controls, *groups, str(of["n"]), *moved]


# ---- attacks


ATTACKERS = {"transfer": "undefended", "adaptive": "same"}
"""Who attacks, and which shadow model they learn on (`attack.shadow`)."""
LEAVES = ("attack_test", "transfer", "adaptive")
PARTS = ("vulnerable_decile", "canaries")
_MISSING = "not in this store"
_BETWEEN = (0.0, *(round(0.15 + 0.1 * step, 2) for step in range(9)))  # 0.15 ... 0.95
_AttackResults = dict[str, dict[str, dict[int, Result]]]  # one defense: by explainer, attacker and seed


def attack_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, str, Experiment]]:
    """(defense, explainer, one of ATTACKERS, experiment) of every `attack` asked for; None: all that the preset names.

    `seed` is the preset's first by default. Without a defense both attackers are the same computation. Raises
    ValueError for an explainer or defense that does not exist, and for settings that name another model than that.
    """
    _refuse_unknown(explainers or ())
    for defense, e in battery_runs(preset, defenses, seed, settings):
        for explainer in explainers or preset.explainers:
            for attacker, kind in ATTACKERS.items():
                yield defense, explainer, attacker, e.set({"explain.name": explainer, "attack.shadow": kind})


def attack_variants(preset: Preset) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, settings) of the attack as it is and with other operators and levels, for `attack_runs`.

    TIER trains on 5, 10 and 20 % with mean fill; of the usual levels it has seen two. `road_between` removes shares
    that lie between those, in a way that no defense has seen; `mean` and `blur` are the usual levels filled otherwise.
    """
    usual: dict[str, Any] = {"attack.trajectory.levels": preset.experiment.attack.trajectory.levels}
    yield "standard", {}
    yield "road_between", {"attack.trajectory.operator": "road", "attack.trajectory.levels": _BETWEEN}
    for operator in ("mean", "blur"):
        yield operator, usual | {"attack.trajectory.operator": operator}


def variant_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, str, Experiment]]:
    """(defense, name of the variant, one of ATTACKERS, experiment) under the preset's first explainer."""
    for name, changes in attack_variants(preset):
        runs = attack_runs(preset, defenses, preset.explainers[:1], seed, {**(settings or {}), **changes})
        for defense, _, attacker, e in runs:
            yield defense, name, attacker, e


def battery_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, Experiment]]:
    """(defense, experiment) of every `battery` asked for. Raises as `attack_runs`.

    The maps that it measures are the preset's own unless the settings name an explainer (`explain.name`). The
    explainers of `attack_runs` do not matter here: another one's battery asks all reference models again.
    """
    number = preset.seeds[0] if seed is None else seed
    for defense in defenses or [defense.name for defense in preset.defenses]:
        e = preset.run(defense, number).set(settings or {})
        if (e.defense.name, e.train.seed, e.split.role) != (defense, number, "target"):
            raise ValueError("the attack is on the preset's targets: leave defense.name, train.seed, split.role alone")
        yield defense, e


def attacks(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
    battery: bool = True,
    extra: Sequence[str] = (),
    parts: bool = True,
    variants: bool = False,
) -> dict[str, dict[str, Any]]:
    """Per defense what the stored attacks are worth (SPEC 5 and 8), each leaf a `metrics.report`.

    - `explainers`: per explainer `attack_test` (the rest of a shadow with the same defense; what the paper's Table V
      most likely is), `transfer` and `adaptive` (the target, attacked from an undefended shadow and from one with the
      same defense), `transfer_attack_test` (the rest of the undefended shadow), `operator` and `levels`, and what each
      of ATTACKERS settled on: `alpha`, `features_kept`. None where only the other attacker's result is stored
    - `variants`, where asked for: the same for each of `attack_variants`, with the `explainer`
    - `battery`: per attack its leaf with `sign`; `agp` is the adaptive one of the explainer, named in `explainer`, that
      does best on attack-test: chosen without a look at the target
    - `vulnerable_decile` (`metrics.most_exposed`), `canaries`: leaves of the attacks in `battery` on these images
      alone, empty where there are none; `per_class`: for each attack the list of `metrics.class_leaks`
    - `queries`, `notes`, `battery_explainer`: how many views of an image LiRA and RMIA asked about, what the battery
      says of its own settings, and whose maps its attribution attacks measure
    - `seeds`, `seed` where there is one, and `refused`: what is not there and why, with the command that computes it,
      to which `extra` is added

    `seed`: the preset's first by default. Several give means over those that are stored (`metrics.report_seeds`); what
    attackers settled on is then a list, the exposure of an image its mean over them, and a class's interval that of the
    mean rates, for as many images as one seed has. Without `battery`, only `agp` is in it; without `parts`,
    `per_class` and agp's leaves on the parts are not made. Raises as `attack_runs`.
    """
    numbers = _asked_seeds(preset, seed)
    files = [SCORES] if len(numbers) > 1 else []
    command = _attack_command(preset, numbers, settings or {}, extra)
    runs = [attack_runs(preset, defenses, explainers, number, settings) for number in numbers]
    found, paths = _found_attacks(store, numbers, runs, files)
    others, explainer = _found_batteries(store, preset, defenses, numbers, settings, files, battery)
    out = {}
    for defense, held in others.items():
        own = [*command, "--defense", defense]
        views, refused = _views(found[defense], paths, numbers, own)
        made, reasons = _battery(views, _battery_metrics(found[defense], held), own, battery)
        refused |= reasons | (_lacking("battery", held, numbers, own) if held else {})
        if parts:
            refused |= _add_parts(made, found[defense], held)
        entry = {"explainers": views, **made, "battery_explainer": explainer, "seeds": numbers}
        if len(numbers) == 1:
            refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
            entry["seed"] = numbers[0]
        out[defense] = entry | {"refused": refused}
    if variants:
        _add_variants(out, store, preset, numbers, settings, command, files)
    return out


def _found_batteries(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None,
    seeds: Sequence[int],
    settings: dict[str, Any] | None,
    files: Sequence[str],
    asked: bool,
) -> tuple[dict[str, dict[int, Result]], str]:
    """What is stored of the batteries by defense and seed, nothing if they are not asked for; and whose maps it is."""
    found: dict[str, dict[int, Result]] = {}
    explainer = ""
    for seed in seeds:
        for defense, e in battery_runs(preset, defenses, seed, settings):
            result = experiment.find(store, "battery", e, files) if asked else None
            found.setdefault(defense, {}).update({} if result is None else {seed: result})
            explainer = e.explain.name
    return found, explainer


def _asked_seeds(preset: Preset, seed: int | Sequence[int] | None) -> list[int]:
    if seed is None:
        return [preset.seeds[0]]
    return [seed] if isinstance(seed, int) else list(dict.fromkeys(seed))


def _attack_command(preset: Preset, seeds: Sequence[int], settings: dict[str, Any], extra: Sequence[str]) -> list[str]:
    """The command that computes the attacks of these seeds under these settings."""
    command = ["python", "-m", "tier", "attack", preset.name]
    for seed in seeds:
        command += ["--seed", str(seed)]
    own = {"explain.name": "--battery-explainer"}  # which has an option
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items() if name not in own]
    options = [f"{own[name]}={value}" for name, value in settings.items() if name in own]
    return [*command, *extra, *sets, *options]


def _found_attacks(
    store: Store,
    seeds: Sequence[int],
    runs: Sequence[Iterable[tuple[str, str, str, Experiment]]],
    files: Sequence[str],
) -> tuple[dict[str, _AttackResults], dict[str, dict[str, Any]]]:
    """What is stored of each seed's runs by defense and explainer or variant; and each one's operator and levels."""
    found: dict[str, _AttackResults] = {}
    paths: dict[str, dict[str, Any]] = {}
    for seed, of_seed in zip(seeds, runs, strict=True):
        for defense, view, attacker, e in of_seed:
            here = found.setdefault(defense, {}).setdefault(view, {name: {} for name in ATTACKERS})[attacker]
            result = experiment.find(store, "attack", e, files)
            here |= {} if result is None else {seed: result}
            trajectory = e.attack.trajectory
            paths[view] = {"operator": trajectory.operator, "levels": list(trajectory.levels)}
    return found, paths


def attack_sentence(of: dict[str, Any]) -> str | None:
    """What one defense's entry of `attacks` says, in plain words; None where agp or gap is not there.

    Of 100 images, half of them members: balanced accuracies at transferred thresholds. It leads with the attacker who
    knows the defense, under the explainer that is best on attack-test, and ends with the attack that gets most right.
    """
    rates = {name: leaf["balanced_accuracy"] for name, leaf in of["battery"].items()}
    if rates.get("agp") is None or rates.get("gap") is None:
        return None
    own = of["battery"]["agp"]
    explainer = own["explainer"]
    naive = (of["explainers"][explainer]["transfer"] or {}).get("balanced_accuracy")
    low, high = own["interval"]
    same = of["explainers"][explainer]["transfer"] == of["explainers"][explainer]["adaptive"]  # no defense to know
    text = f"An attacker who {'' if same else 'knows the defense and '}sees explanations ({explainer}) gets "
    text += f"{100 * rates['agp']:.0f} of 100 right ({100 * low:.0f} to {100 * high:.0f}); "
    if not same and naive is not None:
        text += f"one who does not know it gets {100 * naive:.0f}; "
    text += f"one who only sees whether the answer is correct gets {100 * rates['gap']:.0f}."
    best = max((name for name in rates if rates[name] is not None), key=lambda name: rates[name])
    return text if best == "agp" else f"{text} Of all attacks {best} gets most right: {100 * rates[best]:.0f}."


_LEAF_HEADER = ["balanced accuracy", "calibrated", "AUC", "TPR at 1 % FPR"]


def attack_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Explainer, defense and LEAVES down, what the attack is worth across, as text."""
    explainers = dict.fromkeys(name for of in summary.values() for name in of["explainers"])
    body = [
        [explainer, defense, leaf, *_leaf_cells(of["explainers"][explainer][leaf])]
        for explainer in explainers
        for defense, of in summary.items()
        if explainer in of["explainers"]
        for leaf in LEAVES
    ]
    return [["explainer", "defense", "attack", *_LEAF_HEADER], *body]


def battery_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Each defense's attacks on the target, highest AUC first, as text; agp with its explainer."""
    body = []
    for defense, of in summary.items():
        for name, leaf in _ranked(of["battery"]):
            body.append([defense, _label(name, leaf), *_leaf_cells(leaf)])
    return [["defense", "attack", *_LEAF_HEADER], *body]


def part_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The attacks on the most exposed images and on canaries of each defense, highest AUC first, as text."""
    shown = {"vulnerable_decile": "most exposed", "canaries": "canaries"}
    body = []
    for defense, of in summary.items():
        for part, images in shown.items():
            for name, leaf in _ranked(of[part]):
                body.append([defense, images, _label(name, of["battery"].get(name, {})), *_leaf_cells(leaf)])
    return [["defense", "images", "attack", *_LEAF_HEADER], *body]


def variant_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Variants, defenses and ATTACKERS down, what the attack is worth across, as text."""
    names = dict.fromkeys(name for of in summary.values() for name in of.get("variants", {}))
    body = [
        [name, entry["operator"], levels_text(entry["levels"]), defense, who, *_leaf_cells(entry[who])]
        for name in names
        for defense, of in summary.items()
        if (entry := of.get("variants", {}).get(name)) is not None
        for who in ATTACKERS
    ]
    return [["variant", "operator", "levels", "defense", "attack", *_LEAF_HEADER], *body]


def levels_text(levels: Sequence[float]) -> str:
    """Shares of the pixels in percent: `0, 15, 25 %`."""
    return f"{', '.join(f'{100 * level:.4g}' for level in levels)} %"


def _ranked(leaves: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Leaves by attack, highest AUC first, those without one last."""
    return sorted(leaves.items(), key=lambda item: 1.0 if item[1]["auc"] is None else -item[1]["auc"])


def _leaf_cells(leaf: dict[str, Any] | None) -> list[str]:
    if leaf is None:
        return ["-"] * len(_LEAF_HEADER)
    cells = [
        interval_text(leaf["balanced_accuracy"], leaf["interval"]),
        interval_text(leaf["balanced_accuracy_calibrated"], None),
    ]
    cells.append(interval_text(leaf["auc"], leaf["auc_interval"]))
    counts = leaf["counts_at_0.01"]
    if leaf["tpr_at_0.01"] is None or counts is None:
        return [*cells, "-"]
    hits, alarms = (
        f"{counts[f'{what}_positives']:.6g} of {leaf[n]}" for what, n in (("true", "members"), ("false", "nonmembers"))
    )
    return [*cells, f"{leaf['tpr_at_0.01']:.3f} ({hits}; false {alarms})"]


def _views(
    found: _AttackResults, paths: dict[str, dict[str, Any]], seeds: Sequence[int], command: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Per explainer, of one defense, what is stored of it; and what is not."""
    views, refused = {}, {}
    for explainer, held in found.items():
        own = [*command, "--explainer", explainer, "--no-battery"]
        missing = [attacker for attacker in ATTACKERS if not held[attacker]]
        reason = f"{_MISSING}: {shlex.join(own)}"
        if len(missing) == len(ATTACKERS):
            refused[explainer] = reason
            continue
        refused |= {f"{explainer}.{attacker}": reason for attacker in missing}
        for attacker in (name for name in ATTACKERS if name not in missing):
            refused |= _lacking(f"{explainer}.{attacker}", held[attacker], seeds, own)
        views[explainer] = paths[explainer] | _view(held)
    return views, refused


def _view(held: dict[str, dict[int, Result]]) -> dict[str, Any]:
    """What is stored of one explainer, or variant, by both attackers."""
    of = {attacker: _attack_metrics(results) for attacker, results in held.items()}
    return {
        "attack_test": of["adaptive"].get("attack_test"),
        "transfer": of["transfer"].get("target"),
        "adaptive": of["adaptive"].get("target"),
        "transfer_attack_test": of["transfer"].get("attack_test"),
        **{name: {who: of[who].get(name) for who in ATTACKERS} for name in ("alpha", "features_kept")},
    }


def _lacking(what: str, held: dict[int, Result], seeds: Sequence[int], command: list[str]) -> dict[str, str]:
    """Which of the seeds are not there, of something of which others are."""
    if not (missing := [seed for seed in seeds if seed not in held]):
        return {}
    return {f"{what}.seeds": f"{_MISSING}: seed {', '.join(map(str, missing))}: {shlex.join(command)}"}


def _attack_metrics(results: dict[int, Result]) -> dict[str, Any]:
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


def _battery_metrics(found: _AttackResults, results: dict[int, Result]) -> dict[str, Any] | None:
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


def _battery(
    views: dict[str, dict[str, Any]], stored: dict[str, Any] | None, command: list[str], asked: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """`battery`, its notes, `vulnerable_decile` and `canaries` of one defense, and what is refused of them."""
    refused = {}
    if stored is None:
        refused["battery"] = f"{_MISSING}: {shlex.join(command)}" if asked else "not asked for"
        stored = {}
    of: dict[str, Any] = {}
    best = _strongest(views)
    if best is None:
        refused["battery.agp"] = "no attack learnt on a shadow with the same defense is in this store"
    else:
        of["agp"] = views[best]["adaptive"] | {"sign": 1, "explainer": best}
    of |= {name: stored[name] for name in ATTACKS if name in stored}
    parts = {name: dict(stored.get(name, {})) for name in PARTS}
    return {"battery": of, **parts, "queries": stored.get("queries"), "notes": stored.get("notes", [])}, refused


def _add_parts(made: dict[str, Any], found: _AttackResults, batteries: dict[int, Result]) -> dict[str, str]:
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


def _add_variants(
    out: dict[str, dict[str, Any]],
    store: Store,
    preset: Preset,
    seeds: Sequence[int],
    settings: dict[str, Any] | None,
    command: list[str],
    files: Sequence[str],
) -> None:
    """Put `variants`, and why some are not there, into each defense's entry."""
    runs = [variant_runs(preset, list(out), seed, settings) for seed in seeds]
    found, paths = _found_attacks(store, seeds, runs, files)
    for defense, variants in found.items():
        out[defense]["variants"] = {}
        own = [*command, "--defense", defense, "--explainer", preset.explainers[0], "--no-battery", "--variants"]
        for name, held in variants.items():
            if any(held.values()):
                view = {"explainer": preset.explainers[0], **paths[name], **_view(held)}
                out[defense]["variants"][name] = view
            for attacker, results in held.items():
                place = f"variants.{name}.{attacker}"
                told = {place: f"{_MISSING}: {shlex.join(own)}"} if not results else {}
                out[defense]["refused"] |= told or _lacking(place, results, seeds, own)


# ---- attacks, from the scores of single images

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


def _canary(found: _AttackResults, images: pd.DataFrame) -> NDArray[np.bool_] | None:
    """Which of the images are canaries, as any stored attack's scores have it; None where there are none."""
    for held in found.values():
        for result in (result for of in held.values() for result in of.values() if result.has(SCORES)):
            target = _of_target(result)
            if "canary" not in target or not target["canary"].any():
                return None
            return images["index"].isin(target["index"][target["canary"]]).to_numpy(bool)
    return None


def _strongest(views: dict[str, dict[str, Any]]) -> str | None:
    """The explainer whose attack has the highest AUC on attack-test, the first of equal ones; as pages choose it."""
    return tables.strongest({name: of["attack_test"] for name, of in views.items()})
