"""Utility and leak of models: means over seeds, with intervals that resample seeds, then images (SPEC 0)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tier import experiment
from tier.attacks import gap, loss
from tier.config import Defense, Experiment
from tier.metrics import auc, balanced_accuracy
from tier.presets import Preset
from tier.stats import Array, seed_interval
from tier.store import Result, Store
from tier.summary.of_attacks import attacks

FIGURES = (
    "train_accuracy", "test_accuracy", "test_top5", "test_loss", "audit_balanced_accuracy", "audit_auc",
    "gap_balanced_accuracy", "loss_auc", "seconds_per_epoch", "overhead",
)  # fmt: skip
PRIVACY = ("epsilon", "delta")  # of DP-SGD
ONE_OF_FEW = "battery.others"
"""Under `refused`: the best attack is the best of few, because the battery is not stored."""
GUARD = (
    "its training is the plain model's, so an epoch takes as long by construction; its guard is fitted once and "
    "searches noise for every answer, which is no part of an epoch: docs/capacity.md has what that costs an image"
)
"""Of MemGuard's overhead, what is not in it."""


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
