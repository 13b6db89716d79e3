"""A preset's stored results in figures: means over seeds with intervals that resample seeds, then images (SPEC 0)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tier import experiment
from tier.attacks import gap, loss
from tier.config import Experiment
from tier.metrics import auc, balanced_accuracy
from tier.presets import Preset
from tier.stats import Array, seed_interval
from tier.store import Store

FIGURES = (
    "train_accuracy", "test_accuracy", "test_top5", "test_loss", "audit_balanced_accuracy", "audit_auc",
    "gap_balanced_accuracy", "loss_auc", "seconds_per_epoch",
)  # fmt: skip


def summarize(
    store: Store,
    preset: Preset,
    settings: dict[str, Any] | None = None,
    defenses: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> dict[str, dict[str, Any]]:
    """Per defense with stored results: FIGURES, `intervals` by the same names, `seeds`, and what is `refused` and why.

    Raises ValueError for a defense that the preset does not have. Defenses without results are left out.
    """
    found = {}
    for name in defenses or [defense.name for defense in preset.defenses]:
        runs = {seed: preset.run(name, seed).set(settings or {}) for seed in seeds or preset.seeds}
        reports = {seed: experiment.find(store, "report", e) for seed, e in runs.items()}
        held = {seed: report.record["metrics"] for seed, report in reports.items() if report is not None}
        if held:
            found[name] = _figures(store, held, {seed: runs[seed] for seed in held})
            if missing := [seed for seed in runs if seed not in held]:
                found[name]["refused"]["seeds"] = f"not in this store: {', '.join(map(str, missing))}"
    return found


def rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Figures down, defenses across, as text: a header row, then a row per figure with values and intervals."""
    body = [[figure, *(_cell(of[figure], of["intervals"][figure]) for of in summary.values())] for figure in FIGURES]
    seeds = ["seeds", *(", ".join(map(str, of["seeds"])) for of in summary.values())]
    return [["figure", *summary], *body, seeds]


def markdown(summary: dict[str, dict[str, Any]]) -> str:
    """`rows` as a Markdown table."""
    header, *body = rows(summary)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _figures(store: Store, held: dict[int, dict[str, Any]], runs: dict[int, Experiment]) -> dict[str, Any]:
    out: dict[str, Any] = {"seeds": sorted(held)}
    refused: dict[str, str] = {}
    for figure in FIGURES:
        values = [metrics[figure] for metrics in held.values()]
        out[figure] = None if any(value is None for value in values) else float(np.mean(values))
    if out["test_top5"] is None:
        refused["test_top5"] = "fewer than six classes"
    intervals: dict[str, list[float] | None] = dict.fromkeys(FIGURES)
    samples = [_samples(store, e) for e in runs.values()]
    if any(sample is None for sample in samples):
        refused |= dict.fromkeys((f"intervals.{f}" for f in _STATISTICS), "the per-image results are not in this store")
    else:
        for figure, statistic in _STATISTICS.items():
            if out[figure] is not None:
                intervals[figure] = list(seed_interval([s[figure] for s in samples if s is not None], statistic))
    if len(held) > 1:
        times = [{"runs": np.array([metrics["seconds_per_epoch"]])} for metrics in held.values()]
        intervals["seconds_per_epoch"] = list(seed_interval(times, lambda group: float(group["runs"].mean())))
    else:
        refused["intervals.seconds_per_epoch"] = "one seed only"
        refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
    return out | {"intervals": intervals, "refused": refused}


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
