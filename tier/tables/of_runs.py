"""Runs and their leak as tidy tables.

Runs are compared by their `leak`: the balanced accuracy of the stronger of two attacks, the cross-fitted audit and the
gap attack. What one attack finds has leaked, however little another finds; and as every run and every early-stopping
checkpoint is measured by both, none looks better for an audit that did badly on it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tier.config import STRENGTHS, Defense, Experiment
from tier.stats import gap_interval, share_interval

RUN_COLUMNS = (
    "key", "model", "lambda", "beta", "strength", "seed", "epochs", "train_accuracy", "test_accuracy", "test_low",
    "test_high", "leak", "low", "high", "by", "audit", "audit_low", "audit_high", "auc", "gap", "loss_auc", "holdout",
    "features", "seconds_per_epoch", "epsilon", "delta", "setting",
)  # fmt: skip
WORDS = ("key", "model", "by", "setting")  # the columns that hold no numbers
LEAK_COLUMNS = ("test_accuracy", "leak", "low", "high", "by", "audit", "gap")
PATH_COLUMNS = ("model", "seed", "epoch", *LEAK_COLUMNS, "test_low", "test_high")
COIN = 0.5  # the balanced accuracy of guessing


def leak(metrics: Mapping[Any, Any], members: int, nonmembers: int) -> dict[str, Any]:
    """The leak of one trained model from its figures: leak, low, high, by, audit, audit_low, audit_high, gap.

    `leak` is the larger of the cross-fitted audit's and the gap attack's balanced accuracy, `low` and `high` are that
    attack's 95 % interval, `by` names it (`audit`, `gap`). Nobody need do worse than guess: where both attacks did,
    the leak is 0.5, `by` is `coin` and the interval reaches up to 0.5 at least. Null without an audit.
    """
    names = ("crossfit_balanced_accuracy", "crossfit_balanced_accuracy_low", "crossfit_balanced_accuracy_high")
    audit, audit_low, audit_high = (_number(metrics.get(name)) for name in names)
    gap = _number(metrics.get("gap_balanced_accuracy"))
    by, most, low, high = None if np.isnan(audit) else "audit", audit, audit_low, audit_high
    if gap > audit:
        train, test = _number(metrics.get("train_accuracy")), _number(metrics.get("test_accuracy"))
        by, most, (low, high) = "gap", gap, gap_interval(train, test, members, nonmembers)
    if most < COIN:
        by, most, high = "coin", COIN, max(high, COIN)
    found = {"leak": most, "low": low, "high": high, "by": by}
    return found | {"audit": audit, "audit_low": audit_low, "audit_high": audit_high, "gap": gap}


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def run(key: str, experiment: Experiment, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One report as a row of `RUN_COLUMNS`; lambda and beta are null where TIER does not act, strength where it does.

    `leak`, `low`, `high`, `by`, `audit` and `gap` are explained at `leak`; `auc` is the cross-fitted audit's; `holdout`
    is the audit as the paper makes it, on the 20 % held out; `features` counts the trajectory features that it kept.
    `test_low`, `test_high`: Wilson's 95 % interval of the test accuracy; `epsilon`, `delta`: the guarantee of DP-SGD;
    `setting` is the same text for runs that differ in their seed alone.
    """
    defense = experiment.canonical().defense.trained
    acts = defense.regularizes
    members = metrics.get("members") or experiment.split.target_train
    nonmembers = metrics.get("nonmembers") or experiment.split.target_test
    epochs, told = metrics.get("epochs") or experiment.epochs, metrics.get("defense") or {}
    test_low, test_high = share_interval(_number(metrics.get("test_accuracy")), nonmembers)
    return {
        "key": key,
        "model": defense.name,
        "lambda": defense.tier.lambda_ if acts else np.nan,
        "beta": defense.tier.beta if acts else np.nan,
        "strength": np.nan if acts else _strength(defense),
        "seed": experiment.train.seed,
        "epochs": epochs,
        "train_accuracy": metrics.get("train_accuracy"),
        "test_accuracy": metrics.get("test_accuracy"),
        "test_low": test_low,
        "test_high": test_high,
        **leak(metrics, members, nonmembers),
        "auc": metrics.get("crossfit_auc"),
        "loss_auc": metrics.get("loss_auc"),
        "holdout": metrics.get("audit_balanced_accuracy"),
        "features": len(metrics["features"]) if metrics.get("features") is not None else None,
        "seconds_per_epoch": metrics.get("seconds_per_epoch"),
        "epsilon": told.get("epsilon"),
        "delta": told.get("delta"),
        "setting": json.dumps({"defense": defense.changed(), "epochs": experiment.train.epochs}, sort_keys=True),
    }


def _strength(defense: Defense) -> float:
    """What a sweep of the defense varies; NaN for one that has no strength."""
    try:
        return defense.strength
    except ValueError:  # undefended, or DP-SGD by the one of epsilon and noise that a sweep does not vary
        return float("nan")


def runs(rows: Iterable[Mapping[str, Any]], headline: Iterable[str] = ()) -> pd.DataFrame:
    """Rows of `run` as one frame, one per key, with `headline` (bool) and `text`, the run's name for a person."""
    frame = pd.DataFrame(list(rows), columns=list(RUN_COLUMNS)).drop_duplicates("key", ignore_index=True)
    numbers = [name for name in RUN_COLUMNS if name not in WORDS]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    chosen = set(headline)
    frame["headline"] = frame["key"].isin(chosen)
    frame["text"] = [describe(row) for row in frame.to_dict("records")]
    alike = frame["text"].duplicated(keep=False)  # they differ in a setting that the name does not hold
    frame.loc[alike, "text"] += " (" + frame["key"].str[:8] + ")"
    return frame.sort_values(["model", "lambda", "beta", "strength", "seed"], ignore_index=True)


NAMES = {
    "none": "Undefended", "augmentation": "Augmentation", "tier_reg": "TIER Reg-only", "tier_full": "TIER Full",
    "dpsgd_eps100": "DP-SGD, paper", "dpsgd_tuned": "DP-SGD, tuned", "memguard": "MemGuard",
    "early_stopping": "Early stopping", "label_smoothing": "Label smoothing", "relaxloss": "RelaxLoss",
    "confidence_penalty": "Confidence penalty", "distillation": "Distillation",
    "ensemble_partition": "Ensemble partition",
}  # fmt: skip


def describe(row: Mapping[Any, Any]) -> str:
    """A run's name, e.g. `TIER Full, lambda 7, beta 0.3, 30 epochs, seed 0`."""
    name, at = NAMES.get(str(row["model"]), str(row["model"])), setting_text(row)
    return f"{name}, {at + ', ' if at else ''}{int(row['epochs'])} epochs, seed {int(row['seed'])}"


def setting_text(row: Mapping[Any, Any]) -> str:
    """How strong a run's defense is, e.g. `lambda 7, beta 0.3` or `alpha 0.5`; empty where its epochs say it all."""
    if pd.notna(row["lambda"]):
        return f"lambda {row['lambda']:g}, beta {row['beta']:g}"
    name, strength = STRENGTHS.get(row["model"]), row.get("strength")
    if name is None or name == "epochs" or pd.isna(strength):
        return ""
    return f"{name} {strength:g}"


def to_json(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON-ready records, null where a value is unknown."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


def by_model(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows of `summary` by model."""
    return {str(row["model"]): {str(name): value for name, value in row.items()} for row in frame.to_dict("records")}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The headline runs by model: mean over seeds, lowest and highest seed, and how many seeds.

    Columns: model, seeds, and `<metric>`, `<metric>_min`, `<metric>_max` for train_accuracy, test_accuracy, leak,
    audit, gap, auc, loss_auc; `low`, `high`: the widest interval of the leak over the seeds; `features`: the most
    trajectory features that an audit kept.
    """
    metrics = ("train_accuracy", "test_accuracy", "leak", "audit", "gap", "auc", "loss_auc")
    headline = frame[frame["headline"]]
    rows = []
    for model, part in headline.groupby("model", sort=False):
        row: dict[str, Any] = {"model": model, "seeds": int(part["seed"].nunique())}
        for name in metrics:
            row |= {name: part[name].mean(), f"{name}_min": part[name].min(), f"{name}_max": part[name].max()}
        rows.append(row | {"low": part["low"].min(), "high": part["high"].max(), "features": part["features"].max()})
    columns = ["model", "seeds", *(f"{m}{end}" for m in metrics for end in ("", "_min", "_max"))]
    return pd.DataFrame(rows, columns=[*columns, "low", "high", "features"])


def path(model: str, seed: int, frame: pd.DataFrame, members: int, nonmembers: int) -> pd.DataFrame:
    """The early-stopping checkpoints at which the audit was run, as rows of `PATH_COLUMNS`."""
    rows = []
    for row in frame.sort_values("epoch").to_dict("records"):
        low, high = share_interval(_number(row["test_accuracy"]), nonmembers)
        known = {"model": model, "seed": seed, "test_low": low, "test_high": high}
        rows.append(dict[Any, Any](row) | leak(row, members, nonmembers) | known)
    made = pd.DataFrame(rows, columns=list(PATH_COLUMNS))
    return made[made["audit"].notna()].reset_index(drop=True)


def paths(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Several `path` frames as one; empty with the right columns when there are none."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(PATH_COLUMNS))


def stopped_text(row: Mapping[Any, Any]) -> str:
    """An early-stopping checkpoint's name."""
    name = NAMES.get(str(row["model"]), str(row["model"]))
    return f"{name}, stopped after epoch {row['epoch']:.0f}, seed {row['seed']:.0f}"
