"""Stage results -> tidy DataFrames, one row per thing shown: no files, no Streamlit, no torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tier.config import Experiment

RUN_COLUMNS = (
    "key", "model", "lambda", "beta", "seed", "epochs", "train_accuracy", "test_accuracy", "leak", "low", "high",
    "auc", "gap", "loss_auc", "seconds_per_epoch",
)  # fmt: skip
PATH_COLUMNS = ("model", "seed", "epoch", "test_accuracy", "leak", "low", "high")

# The paper's Tables I and III (GTSRB): percent removed, mean KL of members and non-members, t, its p, KS, its p.
_PAPER_COLUMNS = ("removed", "members", "nonmembers", "t", "t_p", "ks", "ks_p")
PAPER_DIVERGENCE: dict[str, pd.DataFrame] = {
    "none": pd.DataFrame([
        (0.1, 2.6, 2.2, 7.9, 1.1e-12, 0.5, 5.7e-13), (0.2, 4.6, 3.8, 14.3, 3.2e-30, 0.8, 6.4e-26),
        (0.3, 6.2, 5.4, 13.3, 8.8e-28, 0.7, 2.5e-22), (0.4, 7.4, 6.7, 10.9, 2.7e-21, 0.7, 1.8e-20),
        (0.5, 8.0, 7.7, 4.9, 2.9e-6, 0.3, 9.2e-5),
    ], columns=list(_PAPER_COLUMNS)),
    "tier_full": pd.DataFrame([
        (0.1, 0.12, 0.18, -24.1, 1.3e-54, 0.9, 2.3e-46), (0.2, 0.29, 0.37, -15.9, 5.4e-36, 0.8, 5.1e-27),
        (0.3, 0.56, 0.60, -6.2, 3.6e-9, 0.4, 1.5e-7), (0.4, 0.92, 0.89, 3.1, 2.3e-3, 0.3, 4.2e-3),
        (0.5, 1.36, 1.22, 10.8, 7.1e-21, 0.6, 9.8e-17),
    ], columns=list(_PAPER_COLUMNS)),
}  # fmt: skip


def run(key: str, experiment: Experiment, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One report as a row of `RUN_COLUMNS`; lambda and beta are null where TIER does not act."""
    defense = experiment.defense.canonical()
    acts = defense.regularizes
    return {
        "key": key,
        "model": defense.name,
        "lambda": defense.tier.lambda_ if acts else np.nan,
        "beta": defense.tier.beta if acts else np.nan,
        "seed": experiment.train.seed,
        "epochs": metrics.get("epochs") or experiment.train.epochs,
        "train_accuracy": metrics.get("train_accuracy"),
        "test_accuracy": metrics.get("test_accuracy"),
        "leak": metrics.get("audit_balanced_accuracy"),
        "low": metrics.get("audit_balanced_accuracy_low"),
        "high": metrics.get("audit_balanced_accuracy_high"),
        "auc": metrics.get("audit_auc"),
        "gap": metrics.get("gap_balanced_accuracy"),
        "loss_auc": metrics.get("loss_auc"),
        "seconds_per_epoch": metrics.get("seconds_per_epoch"),
    }


def runs(rows: Iterable[Mapping[str, Any]], headline: Iterable[str] = ()) -> pd.DataFrame:
    """Rows of `run` as one frame, one per key, with `headline` (bool) and `text`, the run's name for a person."""
    frame = pd.DataFrame(list(rows), columns=list(RUN_COLUMNS)).drop_duplicates("key", ignore_index=True)
    numbers = [name for name in RUN_COLUMNS if name not in ("key", "model")]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    chosen = set(headline)
    frame["headline"] = frame["key"].isin(chosen)
    frame["text"] = [describe(row) for row in frame.to_dict("records")]
    return frame.sort_values(["model", "lambda", "beta", "seed"], ignore_index=True)


NAMES = {
    "none": "Undefended", "augmentation": "Augmentation", "tier_reg": "TIER Reg-only", "tier_full": "TIER Full",
}  # fmt: skip


def describe(row: Mapping[Any, Any]) -> str:
    """A run's name, e.g. `TIER Full, lambda 7, beta 0.3, seed 0`."""
    name = NAMES.get(str(row["model"]), str(row["model"]))
    point = "" if pd.isna(row["lambda"]) else f", lambda {row['lambda']:g}, beta {row['beta']:g}"
    return f"{name}{point}, {int(row['epochs'])} epochs, seed {int(row['seed'])}"


def to_json(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON-ready records, null where a value is unknown."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


def by_model(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows of `summary` by model."""
    return {str(row["model"]): {str(name): value for name, value in row.items()} for row in frame.to_dict("records")}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The headline runs by model: mean over seeds, lowest and highest seed, and how many seeds.

    Columns: model, seeds, and `<metric>`, `<metric>_min`, `<metric>_max` for train_accuracy, test_accuracy, leak, auc,
    gap, loss_auc; `low`, `high`: the widest audit interval over the seeds.
    """
    metrics = ("train_accuracy", "test_accuracy", "leak", "auc", "gap", "loss_auc")
    headline = frame[frame["headline"]]
    rows = []
    for model, part in headline.groupby("model", sort=False):
        row: dict[str, Any] = {"model": model, "seeds": int(part["seed"].nunique())}
        for name in metrics:
            row |= {name: part[name].mean(), f"{name}_min": part[name].min(), f"{name}_max": part[name].max()}
        rows.append(row | {"low": part["low"].min(), "high": part["high"].max()})
    columns = ["model", "seeds", *(f"{m}{end}" for m in metrics for end in ("", "_min", "_max")), "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def path(model: str, seed: int, frame: pd.DataFrame) -> pd.DataFrame:
    """The early-stopping checkpoints at which the audit was run, as rows of `PATH_COLUMNS`."""
    known = frame[frame["audit_balanced_accuracy"].notna()].sort_values("epoch")
    names = {f"audit_balanced_accuracy{end}": name for end, name in (("", "leak"), ("_low", "low"), ("_high", "high"))}
    made = known.rename(columns=names).assign(model=model, seed=seed)
    return made.reindex(columns=list(PATH_COLUMNS)).reset_index(drop=True)


def paths(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Several `path` frames as one; empty with the right columns when there are none."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(PATH_COLUMNS))


def alternatives(frame: pd.DataFrame, stopped: pd.DataFrame) -> pd.DataFrame:
    """What TIER has to beat: the finished runs without TIER and every early-stopping checkpoint of theirs.

    Columns: text, model, test_accuracy, leak, low, high.
    """
    columns = ["text", "model", "test_accuracy", "leak", "low", "high"]
    plain = frame[~frame["model"].isin(["tier_reg", "tier_full"])][columns]
    names = [
        f"{NAMES.get(str(model), str(model))}, stopped after epoch {epoch}, seed {seed}"
        for model, epoch, seed in zip(stopped["model"], stopped["epoch"], stopped["seed"], strict=True)
    ]
    parts = [part for part in (plain, stopped.assign(text=names)[columns]) if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else plain


def matched(frame: pd.DataFrame, rivals: pd.DataFrame, tolerance: float = 0.02) -> pd.DataFrame:
    """Each TIER run beside the rivals whose test accuracy is within `tolerance` (a fraction) of its own.

    Columns: text, model, lambda, beta, seed, test_accuracy, leak, low, high; rivals (how many); best, best_accuracy,
    best_leak (the least leaking rival) and worst, worst_accuracy, worst_leak; `advantage` = best_leak - leak, positive
    where TIER leaks less than the best rival; `clear`: the two 95 % intervals do not overlap (null when one is
    unknown). A run without a rival keeps nulls. Taking the least leaking of several noisy checkpoints favours the
    rivals a little.
    """
    rows = []
    for run_row in frame[frame["model"].isin(["tier_reg", "tier_full"])].to_dict("records"):
        keep = ("text", "model", "lambda", "beta", "seed", "test_accuracy", "leak", "low", "high", "headline")
        row: dict[str, Any] = {name: run_row[name] for name in keep}
        distance = (rivals["test_accuracy"] - run_row["test_accuracy"]).abs()
        near = rivals[(distance <= tolerance + 1e-12) & rivals["leak"].notna()]
        row["rivals"] = len(near)
        for word, place in (("best", near["leak"].idxmin), ("worst", near["leak"].idxmax)) if len(near) else ():
            rival = near.loc[place()]
            row |= {word: rival["text"], f"{word}_accuracy": rival["test_accuracy"], f"{word}_leak": rival["leak"]}
            if word == "best":
                row["advantage"] = rival["leak"] - run_row["leak"]
                row["clear"] = _apart(row, rival)
        rows.append(row)
    columns = [
        "text", "model", "lambda", "beta", "seed", "test_accuracy", "leak", "low", "high", "headline", "rivals",
        "best", "best_accuracy", "best_leak", "worst", "worst_accuracy", "worst_leak", "advantage", "clear",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _apart(first: dict[str, Any], second: pd.Series) -> bool | None:
    """Whether two 95 % intervals miss each other; None when either is unknown."""
    bounds = (first["low"], first["high"], second["low"], second["high"])
    if any(pd.isna(value) for value in bounds):
        return None
    return bool(first["low"] > second["high"] or second["low"] > first["high"])


def stack(parts: Mapping[str, pd.DataFrame], order: str | None = None) -> pd.DataFrame:
    """Frames of several models as one with a `model` column; `order` keeps one removal order."""
    frames = []
    for model, part in parts.items():
        kept = part if order is None else part[part["order"] == order]
        frames.append(kept.assign(model=model))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["model"])


def profile(frame: pd.DataFrame, unit: str) -> pd.DataFrame:
    """A divergence profile in long form: level, member, mean, sd, n, low, high."""
    rows = frame[frame["unit"] == unit].sort_values("level")
    parts = []
    for member, word in ((True, "member"), (False, "nonmember")):
        names = {f"{word}_{name}": name for name in ("mean", "sd", "n", "low", "high")}
        parts.append(rows[["level", *names]].rename(columns=names).assign(member=member))
    return pd.concat(parts, ignore_index=True)


def tests(frame: pd.DataFrame, unit: str) -> pd.DataFrame:
    """The form of Tables I and III: removed, members, nonmembers, t, df, t_p, ks, ks_p, d, n_members, n_nonmembers.

    The p values are Holm-corrected over the levels; nulls where there are too few units to test.
    """
    rows = frame[frame["unit"] == unit].sort_values("level")
    names = {
        "level": "removed", "member_mean": "members", "nonmember_mean": "nonmembers", "t": "t", "t_df": "df",
        "t_p_holm": "t_p", "ks": "ks", "ks_p_holm": "ks_p", "cohen_d": "d", "member_n": "n_members",
        "nonmember_n": "n_nonmembers",
    }  # fmt: skip
    return rows[list(names)].rename(columns=names).reset_index(drop=True)


def game(samples: pd.DataFrame, scores: pd.DataFrame | None, seed: int, rounds: int) -> pd.DataFrame:
    """Images for the guessing game: `rounds` rows drawn half from members, half not, in a seeded order.

    `samples` is trajectory/samples.parquet, `scores` audit/scores.parquet (a positive cross-fitted score: the attack
    says member). Columns: index, member, attack (bool, null without a score), confidence_0.. (MoRF, probabilities).
    """
    columns = sorted((c for c in samples.columns if c.startswith("morf_")), key=lambda name: int(name.split("_")[1]))
    generator = np.random.default_rng(seed)
    picked = []
    for member, count in ((True, rounds - rounds // 2), (False, rounds // 2)):
        rows = np.flatnonzero(samples["member"].to_numpy() == member)
        picked.append(generator.choice(rows, size=min(count, len(rows)), replace=False))
    order = generator.permutation(np.concatenate(picked))
    chosen = samples.iloc[order][["index", "member", *columns]].reset_index(drop=True)
    chosen[columns] = np.exp(chosen[columns])
    chosen = chosen.rename(columns={name: name.replace("morf", "confidence") for name in columns})
    if scores is None:
        return chosen.assign(attack=pd.array([None] * len(chosen), dtype="boolean"))
    score = dict(zip(scores["index"], scores["score"], strict=True))
    verdicts = [bool(score[i] > 0) if i in score else None for i in chosen["index"]]
    return chosen.assign(attack=pd.array(verdicts, dtype="boolean"))


def curve(row: Mapping[str, Any], levels: Iterable[float]) -> pd.DataFrame:
    """One row of `game` as level, confidence."""
    return pd.DataFrame([{"level": level, "confidence": row[f"confidence_{i}"]} for i, level in enumerate(levels)])
