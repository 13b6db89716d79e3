"""A preset's stored results in figures: means over seeds with intervals that resample seeds, then images (SPEC 0)."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tier import experiment, tables
from tier.attacks import ATTACKS, gap, loss
from tier.config import EXPLAINER_SETTINGS, Defense, Experiment
from tier.fidelity import CONTROLS, METRICS
from tier.metrics import auc, balanced_accuracy
from tier.presets import Preset
from tier.stats import Array, seed_interval, seed_mean_interval
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
        of = attacks(store, preset, [name], seed=seed, settings=settings)[name]
    except ValueError as mistake:  # these settings are of a model that is no target
        return None, {"battery": str(mistake)}
    areas = {attack: leaf["auc"] for attack, leaf in of["battery"].items() if leaf["auc"] is not None}
    lacking = {what: why for what, why in of["refused"].items() if what in ("battery", "battery.agp")}
    if not areas:
        return None, {"battery": lacking.get("battery", "no attack on the target is defined")}
    refused = {"battery.others" if what == "battery" else what: why for what, why in lacking.items()}
    best = max(areas, key=lambda attack: areas[attack])
    return {"attack": best, "attacks": list(areas), "seed": seed, **of["battery"][best]}, refused


def overheads(store: Store, preset: Preset) -> dict[str, dict[str, Any]]:
    """Seconds per epoch over plain training, of each defense of the preset that is stored.

    Each has `value` (mean over seeds; None with the reason under `refused`), `low` and `high` (95 % over seeds; None
    for a single seed), `seconds` and `seeds`. The same figures as `overhead` of `summarize`, without its bootstraps.
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
        found[str(defense.name)] = row | ({"refused": reason} if reason else {})
    return found


def best_attacks(store: Store, preset: Preset) -> dict[str, dict[str, Any]]:
    """`battery` of `summarize` for each defense of the preset that has one, without the rest of it."""
    found = {str(d.name): _strongest_on_target(store, preset, d.name, {}, preset.seeds[0])[0] for d in preset.compared}
    return {name: leaf for name, leaf in found.items() if leaf is not None}


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
    cells = {column: _cell(of[figure], of["intervals"][figure]) for column, figure in shown.items()}
    factor = "" if of["overhead"] is None else f" ({of['overhead']:.2f} x)"
    cells["seconds per epoch (over plain)"] = _cell(of["seconds_per_epoch"], None) + factor
    best = of["battery"]
    cells["best attack"] = "-"
    if best is not None:
        cells["best attack"] = f"{_label(best['attack'], best)}: {_cell(best['balanced_accuracy'], best['interval'])}"
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


def _cell(value: float | None, interval: list[float] | None) -> str:
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
    explainers = dict.fromkeys(name for views in summary.values() for name in views)
    body = [
        [explainer, defense, metric, *_likeness_cells(views[explainer], metric)]
        for explainer in explainers
        for defense, views in summary.items()
        if explainer in views
        for metric in METRICS
    ]
    return [header, *body]


def _likeness_cells(entry: dict[str, Any], metric: str) -> list[str]:
    of, right = entry[metric], entry["correct"][metric]
    controls = [_cell(of[name], of[f"{name}_interval"]) for name in CONTROLS]
    return [_cell(of["mean"], of["interval"]), *controls, _cell(right["mean"], right["interval"])]


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


# ---- attacks


ATTACKERS = {"transfer": "undefended", "adaptive": "same"}
"""Who attacks, and which shadow model they learn on (`attack.shadow`)."""
LEAVES = ("attack_test", "transfer", "adaptive")
_MISSING = "not in this store"


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


def battery_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, Experiment]]:
    """(defense, experiment) of every `battery` asked for, under the preset's own explainer. Raises as `attack_runs`."""
    number = preset.seeds[0] if seed is None else seed
    for defense in defenses or [defense.name for defense in preset.defenses]:
        e = preset.run(defense, number).set(settings or {})
        if (e.defense.name, e.train.seed, e.split.role) != (defense, number, "target"):
            raise ValueError("the attack is on the preset's targets: leave defense.name, train.seed, split.role alone")
        yield defense, e.with_(explain=e.explain.model_copy(update={"name": preset.experiment.explain.name}))


def attacks(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
    battery: bool = True,
    extra: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Per defense what the stored attacks are worth (SPEC 5 and 8), each leaf a `metrics.report`.

    - `explainers`: per explainer `attack_test` (the rest of a shadow with the same defense; what the paper's Table V
      most likely is), `transfer` and `adaptive` (the target, attacked from an undefended shadow and from one with the
      same defense), `transfer_attack_test` (the rest of the undefended shadow), and what each of ATTACKERS settled on:
      `alpha`, `features_kept`. None where only the other attacker's result is stored
    - `battery`: per attack its leaf with `sign`; `agp` is the adaptive one of the explainer, named in `explainer`, that
      does best on attack-test: chosen without a look at the target
    - `vulnerable_decile`, `canaries`: leaves of the battery on these images alone, empty where there are none
    - `seed`, and `refused`: what is not there and why, with the command that computes it, to which `extra` is added

    Without `battery`, only `agp` is in it. Raises as `attack_runs`.
    """
    number = preset.seeds[0] if seed is None else seed
    command = ["python", "-m", "tier", "attack", preset.name, "--seed", str(number), *extra]
    command += [f"--set={name}={json.dumps(value)}" for name, value in (settings or {}).items()]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for defense, explainer, attacker, e in attack_runs(preset, defenses, explainers, seed, settings):
        result = experiment.find(store, "attack", e)
        found.setdefault(defense, {}).setdefault(explainer, {})[attacker] = {} if result is None else result.metrics
    out = {}
    for defense, e in battery_runs(preset, defenses, seed, settings):
        result = experiment.find(store, "battery", e) if battery else None
        own = [*command, "--defense", defense]
        views, refused = _views(found[defense], own)
        made, reasons = _battery(views, None if result is None else result.metrics, own, battery)
        refused |= reasons | {"intervals over seeds": "one seed only: the intervals resample images alone"}
        out[defense] = {"explainers": views, **made, "seed": number, "refused": refused}
    return out


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


_LEAF_HEADER = ["balanced accuracy", "AUC", "TPR at 1 % FPR"]


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
        ranked = sorted(of["battery"].items(), key=lambda item: -1.0 if item[1]["auc"] is None else -item[1]["auc"])
        for name, leaf in ranked:
            body.append([defense, _label(name, leaf), *_leaf_cells(leaf)])
    return [["defense", "attack", *_LEAF_HEADER], *body]


def _leaf_cells(leaf: dict[str, Any] | None) -> list[str]:
    if leaf is None:
        return ["-"] * len(_LEAF_HEADER)
    cells = [_cell(leaf["balanced_accuracy"], leaf["interval"]), _cell(leaf["auc"], leaf["auc_interval"])]
    counts = leaf["counts_at_0.01"]
    if leaf["tpr_at_0.01"] is None or counts is None:
        return [*cells, "-"]
    hits, alarms = (
        f"{counts[f'{what}_positives']} of {leaf[n]}" for what, n in (("true", "members"), ("false", "nonmembers"))
    )
    return [*cells, f"{leaf['tpr_at_0.01']:.3f} ({hits}; false {alarms})"]


def _views(found: dict[str, dict[str, Any]], command: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Per explainer, of one defense, what is stored of it; and what is not."""
    views, refused = {}, {}
    for explainer, of in found.items():
        missing = [attacker for attacker in ATTACKERS if not of[attacker]]
        reason = f"{_MISSING}: {shlex.join([*command, '--explainer', explainer, '--no-battery'])}"
        if len(missing) == len(ATTACKERS):
            refused[explainer] = reason
            continue
        refused |= {f"{explainer}.{attacker}": reason for attacker in missing}
        views[explainer] = {
            "attack_test": of["adaptive"].get("attack_test"),
            "transfer": of["transfer"].get("target"),
            "adaptive": of["adaptive"].get("target"),
            "transfer_attack_test": of["transfer"].get("attack_test"),
            **{name: {who: of[who].get(name) for who in ATTACKERS} for name in ("alpha", "features_kept")},
        }
    return views, refused


def _battery(
    views: dict[str, dict[str, Any]], stored: dict[str, Any] | None, command: list[str], asked: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """`battery`, `vulnerable_decile` and `canaries` of one defense, and what is refused of them."""
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
    parts = {name: stored.get(name, {}) for name in ("vulnerable_decile", "canaries")}
    return {"battery": of, **parts}, refused


def _strongest(views: dict[str, dict[str, Any]]) -> str | None:
    """The explainer whose attack has the highest AUC on attack-test, the first of equal ones; as pages choose it."""
    return tables.strongest({name: of["attack_test"] for name, of in views.items()})
