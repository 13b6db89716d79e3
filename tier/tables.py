"""Stage results -> tidy DataFrames, one row per thing shown: no files, no Streamlit, no torch.

Runs are compared by their `leak`: the balanced accuracy of the stronger of two attacks, the cross-fitted audit and the
gap attack. What one attack finds has leaked, however little another finds; and as every run and every early-stopping
checkpoint is measured by both, none looks better for an audit that did badly on it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import betabinom, norm
from scipy.stats import t as student

from tier import paper, stats
from tier.config import QUALITY_CONTROLS, QUALITY_METRICS, STRENGTHS, VARIANT_OF, Defense, Experiment, strength_field
from tier.metrics import RATES, best_threshold, clopper_pearson, most_exposed
from tier.metrics import class_leaks as leaks_by_class
from tier.metrics import roc as all_points
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
_TIERS = ("tier_reg", "tier_full")


def paper_divergence(model: str) -> pd.DataFrame:
    """The paper's Table I (`none`) or III (`tier_full`): removed, members, nonmembers, t, t_p, ks, ks_p."""
    names = {"kl_mean_member": "members", "kl_mean_nonmember": "nonmembers", "t_statistic": "t", "t_p_value": "t_p"}
    names |= {"ks_statistic": "ks", "ks_p_value": "ks_p"}
    lines: dict[float | None, dict[str, float]] = {}
    for number in paper.printed():
        if number.place.table in ("I", "III") and number.place.defense == model:
            lines.setdefault(number.place.level, {})[names[number.place.quantity]] = number.value
    return pd.DataFrame([{"removed": level, **line} for level, line in lines.items()])


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


def alternatives(choices: pd.DataFrame) -> pd.DataFrame:
    """What TIER has to beat: of `options`, the settings without TIER, stopped early or not."""
    return choices[~choices["model"].isin(_TIERS)]


def repeated(choices: pd.DataFrame) -> pd.Series:
    """Which settings count in a verdict, bool: those with several seeds, or all where none has.

    The least of many settings with one seed each is the luckiest rather than the best.
    """
    several = choices["seeds"] > 1
    return several if several.any() else several | True


def frontier(choices: pd.DataFrame) -> pd.DataFrame:
    """The least leak at each accuracy: the settings that none leaks less than at equal or higher accuracy.

    `choices` as from `options`; of them the `repeated` ones, by their means over seeds. Columns: text, model, stopped
    (bool: a checkpoint of early stopping), seeds, test_accuracy, leak; accuracy and leak rise from row to row.
    """
    columns = ["text", "model", "stopped", "seeds", "test_accuracy", "leak"]
    known = choices[repeated(choices) & choices[["test_accuracy", "leak"]].notna().all(axis=1)][columns]
    known = known.sort_values(["test_accuracy", "leak"], ascending=[False, True], kind="stable")
    least = known["leak"].cummin()
    kept = known[least.shift().isna() | (known["leak"] < least.shift())]
    return kept[::-1].reset_index(drop=True)


MATCHED = (
    "text", "model", "lambda", "beta", "seeds", "counted", "test_accuracy", "leak", "low", "high", "audit", "gap",
    "headline",
)  # fmt: skip


def matched(chosen: pd.DataFrame, rivals: pd.DataFrame, tolerance: float = 0.02) -> pd.DataFrame:
    """Each TIER setting beside what it has to beat: rivals as accurate, to within `tolerance` (a fraction), or more.

    `chosen` and `rivals` are rows of `options`; of the rivals the `repeated` ones count. A rival that is more accurate
    and leaks less beats a TIER setting however far apart they are, so it counts.
    Columns: MATCHED; rivals (how many); best, best_accuracy, best_leak, best_audit, best_gap (the least leaking of
    them); worst, worst_accuracy, ... (the most leaking of those within `tolerance` on either side); `advantage` =
    best_leak - leak, positive where TIER leaks less than the best rival; `p`: how often chance makes so much of it,
    times `rivals`, of which the best was picked, then Holm's correction over the rows; `clear`: below 0.05. Both are
    null where the error is unknown or the setting has one seed while others have several (`counted` is false). A row
    without a rival keeps nulls.
    """
    chosen = chosen[chosen["model"].isin(_TIERS)]
    counts = repeated(pd.concat([chosen, rivals]))
    rivals, rows = rivals[counts.iloc[len(chosen) :].to_numpy()], []
    for setting, counted in zip(chosen.to_dict("records"), counts.iloc[: len(chosen)], strict=True):
        row: dict[str, Any] = {name: setting[name] for name in MATCHED if name != "counted"}
        row["counted"] = bool(counted)
        ahead = rivals["test_accuracy"] - setting["test_accuracy"]
        able = rivals[(ahead >= -tolerance - 1e-12) & rivals["leak"].notna()]
        near = able[ahead[able.index] <= tolerance + 1e-12]
        row["rivals"] = len(able)
        if len(able):
            best = able.loc[able["leak"].idxmin()]
            row |= _beside("best", best) | {"advantage": best["leak"] - setting["leak"]}
            row["p"] = np.minimum(1.0, len(able) * _by_chance(setting, best)) if counted else np.nan
        if len(near):
            row |= _beside("worst", near.loc[near["leak"].idxmax()])
        rows.append(row)
    columns = [f"{word}{end}" for word in ("best", "worst") for end in ("", "_accuracy", "_leak", "_audit", "_gap")]
    return _corrected(pd.DataFrame(rows, columns=[*MATCHED, "rivals", *columns, "advantage", "p"]))


def _beside(word: str, rival: pd.Series) -> dict[str, Any]:
    """A rival's columns in `matched`."""
    figures = {f"{word}_{name}": rival[name] for name in ("leak", "audit", "gap")}
    return {word: rival["text"], f"{word}_accuracy": rival["test_accuracy"], **figures}


def _by_chance(first: Mapping[Any, Any], second: Mapping[Any, Any] | pd.Series) -> float:
    """How often chance alone makes two settings' leaks so different (two-sided t test); NaN for an unknown error.

    The errors are added as if they were independent. Both are measured on the same images, so that the true error of
    the difference is rather smaller.
    """
    error = np.hypot(first["error"], second["error"])
    return float(2 * student.sf(abs(first["leak"] - second["leak"]) / error, first["freedom"])) if error > 0 else np.nan


RARELY = 0.05  # a difference is clear that chance makes less often than this, once all choices are allowed for


def _corrected(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with `p` corrected by Holm's method over them, and `clear`: whether it is below RARELY; None without p."""
    p = stats.holm(rows["p"].to_numpy(float).tolist())
    clear = [None if np.isnan(value) else value < RARELY for value in p]
    return rows.assign(p=p, clear=pd.Series(clear, rows.index, dtype=object))


def measured(frame: pd.DataFrame, leaves: Mapping[str, Mapping[str, Any]], metric: str, seed: int) -> pd.DataFrame:
    """The headline runs of one seed with the leak that an attack on the target finds, in place of audit and gap.

    `leaves`: by defense, the report of its best attack with its name under `attack`; `metric`: `balanced_accuracy` or
    `auc`. Columns as `frame`; runs whose attack is not stored are left out.
    """
    rows = []
    for row in frame[frame["headline"] & (frame["seed"] == seed)].to_dict("records"):
        leaf = leaves.get(str(row["model"]))
        found = attack_figure(leaf, metric)
        if leaf is not None and pd.notna(found["value"]):
            bounds = {"leak": found["value"], "low": found["low"], "high": found["high"]}
            rows.append(row | bounds | {"by": leaf.get("attack", "")})
    return pd.DataFrame(rows, columns=frame.columns)


STOPPED = "_stopped"  # ending of a defense that is another one stopped early
TRAIL_COLUMNS = ("trail", "model", "at", "test_accuracy", "leak")
OTHER_METHOD = {"distillation": (1.0,)}
"""Strengths at which a defense is another method, and so no point on its way: with one part the teacher has seen every
image that it teaches, with several it has seen none of them."""


def trails(frame: pd.DataFrame, usual: Mapping[str, tuple[float, float]], seed: int) -> pd.DataFrame:
    """Paths through the plane in the order of a setting, as rows of `TRAIL_COLUMNS`; each has at least two points.

    For each of TIER's variants with `usual` (lambda, beta): one over lambda at the usual beta, which begins at the same
    training without TIER, and one over beta at the usual lambda. For every other defense one over the setting that a
    sweep varies, which need not be a strength: a larger epsilon and more epochs protect less. All of one training seed,
    and equal to the defense's headline run in every other setting. `at` is the value that varies.
    """
    of = frame[(frame["seed"] == seed) & frame["leak"].notna()]
    parts = []
    for model, (lam, beta) in usual.items():
        own = _alike(of, frame, model)
        without = "augmentation" if model == "tier_full" else "none"
        plain = _alike(of, frame, without).assign(**{"lambda": 0.0})
        over = pd.concat([part for part in (plain, own[own["beta"] == beta]) if len(part)] or [own])
        parts.append(_trail(over, model, "lambda", f"beta {beta:g}"))
        parts.append(_trail(own[own["lambda"] == lam], model, "beta", f"lambda {lam:g}"))
    for name in dict.fromkeys(of[of["strength"].notna()]["model"]):
        own = _alike(of, frame, str(name))
        parts.append(_trail(own[~own["strength"].isin(OTHER_METHOD.get(str(name), ()))], str(name), "strength", ""))
    long = [part for part in parts if len(part) > 1]
    return pd.concat(long, ignore_index=True) if long else pd.DataFrame(columns=list(TRAIL_COLUMNS))


def _alike(of: pd.DataFrame, frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """The runs of a model, among `of`, that differ from its usual one in nothing but what a sweep varies."""
    own, usual = of[of["model"] == model], _usual(frame, model)
    return own[[_rest(row) == usual for row in own.to_dict("records")]] if len(own) else own


def _usual(frame: pd.DataFrame, model: str) -> dict[str, Any]:
    """The settings, besides the one that a sweep varies, of a model's headline run; of the most runs without one."""
    own = frame[frame["model"] == model]
    shown = own[own["headline"]] if own["headline"].any() else own
    if not len(shown):
        return {}
    rests = [json.dumps(_rest(row), sort_keys=True) for row in shown.to_dict("records")]
    found: dict[str, Any] = json.loads(max(rests, key=rests.count))
    return found


def _rest(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A run's settings, by dotted name, besides the defense's name and what a sweep varies of it."""
    model, held = str(row["model"]), json.loads(row["setting"])
    varied = {"name"}
    if model in _TIERS:
        varied |= {"tier.lambda", "tier.beta"}
    elif model in STRENGTHS:
        varied.add(".".join(strength_field(model)))
    found = {name: value for name, value in _dotted(held["defense"]) if name not in varied}
    return found | {"epochs": held["epochs"]}


def _dotted(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted name."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _differing(row: Mapping[Any, Any], usual: Mapping[str, Any]) -> str:
    """In what a run differs from its defense's usual one, besides what a sweep varies: `clip 0.1, epochs 60`."""
    own = _rest(row)
    names = [name for name in dict.fromkeys([*own, *usual]) if own.get(name) != usual.get(name)]
    return ", ".join(f"{name.rpartition('.')[2]} {own.get(name, 'as by default')}" for name in names)


def _trail(rows: pd.DataFrame, model: str, over: str, fixed: str) -> pd.DataFrame:
    name = STRENGTHS.get(model, over) if over == "strength" else over  # type: ignore[call-overload]
    text = f"{NAMES.get(model, model)} over {name}{', ' + fixed if fixed else ''}"
    made = rows.sort_values(over).drop_duplicates(over).rename(columns={over: "at"})
    return made.assign(trail=text, model=model)[list(TRAIL_COLUMNS)]


OPTION_COLUMNS = (
    "defense", "model", "text", "setting_text", "setting", "lambda", "beta", "stopped", "headline", "seeds",
    "test_accuracy", "test_low", "test_high", "leak", "low", "high", "audit", "gap", "error", "freedom", "epsilon",
    "delta",
)  # fmt: skip


def options(frame: pd.DataFrame, stopped: pd.DataFrame) -> pd.DataFrame:
    """What one can choose between: each setting of each defense with its mean over seeds, as rows of `OPTION_COLUMNS`.

    `frame` as from `runs`, `stopped` as from `paths`. A checkpoint of plain training is early stopping (`stopped`);
    one of training with augmentation is the defense `augmentation_stopped`. `setting` is that of the runs, null for
    checkpoints.

    `error` is the standard error of the mean leak: of the images, which are the same for every seed, and of the seeds.
    How much seeds differ is estimated over all settings with several (`freedom` degrees of freedom), as few seeds of
    one setting tell little; a setting whose own seeds differ more gets its own variance. `low`, `high` and `test_low`,
    `test_high` are 95 % intervals of the means from it. Where no setting has several seeds, `error` is null and the
    intervals are of the images alone.
    """
    known = frame[frame["leak"].notna()]
    finished = [part.drop_duplicates("seed") for _, part in known.groupby("setting", sort=False)]
    spread, usual = _between_seeds(finished), {str(name): _usual(frame, str(name)) for name in frame["model"].unique()}
    rows = [_finished_option(part, usual) | _over_seeds(part, spread) for part in finished]
    made = {(row["defense"], row["setting_text"]): row for row in rows}
    for row in _stopped_options(stopped, spread):  # or a run that ended there, if it has as many seeds
        same = made.get((row["defense"], row["setting_text"]))
        if same is None:
            rows.append(row)
        elif row["seeds"] > same["seeds"]:
            rows[rows.index(same)] = row
    for row in rows:
        several = f"mean of {row['seeds']} seeds" if row["seeds"] > 1 else "one seed"
        at = f"stopped {row['setting_text']}" if row["stopped"] else row["setting_text"]
        row["text"] = ", ".join(filter(None, [NAMES.get(row["model"], row["model"]), at, several]))
    return pd.DataFrame(rows, columns=list(OPTION_COLUMNS)).astype({"stopped": bool, "headline": bool})


def _finished_option(part: pd.DataFrame, usual: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What one setting of finished runs is called in `options`; `usual` by model, as from `_usual`."""
    first = part.iloc[0].to_dict()
    model = str(first["model"])
    text = f"after epoch {first['epochs']:.0f}" if model == "early_stopping" else setting_text(first)
    text += " (another method)" if first["strength"] in OTHER_METHOD.get(model, ()) else ""
    text = ", ".join(filter(None, [text, _differing(first, usual[model])]))
    named = {"defense": model, "setting_text": text, "stopped": False, "headline": bool(part["headline"].any())}
    return named | {name: first[name] for name in ("setting", "lambda", "beta")}


def _stopped_options(stopped: pd.DataFrame, spread: "_Spread") -> Iterator[dict[str, Any]]:
    """The checkpoints before the last one of each path."""
    known = stopped[stopped["leak"].notna()]
    if not len(known):
        return
    early = known[known["epoch"] < known.groupby(["model", "seed"])["epoch"].transform("max")]
    for (name, epoch), part in early.groupby(["model", "epoch"], sort=False):
        named = {"defense": "early_stopping" if name == "none" else f"{name}{STOPPED}", "stopped": True}
        named |= {"setting_text": f"after epoch {epoch:.0f}", "headline": False, "setting": None}
        yield {**named, "lambda": np.nan, "beta": np.nan, **_over_seeds(part, spread)}


@dataclass(frozen=True)
class _Spread:
    """How much training seeds of one setting differ: variances, and the degrees of freedom behind them."""

    leak: float
    accuracy: float
    freedom: int


def _between_seeds(settings: Sequence[pd.DataFrame]) -> _Spread:
    """Pooled over all settings with several seeds; NaN where there are none."""
    several = [part for part in settings if len(part) > 1]
    freedom = sum(len(part) - 1 for part in several)

    def pooled(name: str) -> float:
        return sum(float(part[name].var()) * (len(part) - 1) for part in several) / freedom if freedom else np.nan

    return _Spread(pooled("leak"), pooled("test_accuracy"), freedom)


def _over_seeds(part: pd.DataFrame, spread: _Spread) -> dict[str, Any]:
    """Several seeds of one setting as one: means, and how sure they are."""
    row: dict[str, Any] = {"model": str(part["model"].iloc[0]), "seeds": len(part), "freedom": spread.freedom}
    for name in ("test_accuracy", "leak", "audit", "gap", "epsilon", "delta"):
        row[name] = part[name].mean() if name in part else np.nan
    wide = float(student.ppf(0.975, spread.freedom)) if spread.freedom else stats.Z
    row["error"] = _error(part, "leak", "low", "high", spread.leak)
    accuracy_error = _error(part, "test_accuracy", "test_low", "test_high", spread.accuracy)
    ends = (("leak", "low", "high", row["error"]), ("test_accuracy", "test_low", "test_high", accuracy_error))
    for name, low, high, error in ends:
        if np.isnan(error):  # of the seeds nothing is known
            row |= {end: part[end].mean() if end in part else np.nan for end in (low, high)}
        else:
            row |= {low: row[name] - wide * error, high: row[name] + wide * error}
    return row


def _error(part: pd.DataFrame, name: str, low: str, high: str, variance: float) -> float:
    """The standard error of a mean over seeds, from each run's interval over images and the variance between seeds."""
    if low not in part:
        return float("nan")
    images = (((part[high] - part[low]) / (2 * stats.Z)) ** 2).mean()
    own = float(part[name].var()) if len(part) > 1 else 0.0
    return float(np.sqrt(images + max(own, variance) / len(part))) if variance == variance else float("nan")


def at_accuracy(
    choices: pd.DataFrame, accuracy: float, tolerance: float = 0.02, against: str = "tier_full"
) -> pd.DataFrame:
    """Each defense's least leaking setting among those as accurate, to within `tolerance`, or more; least leak first.

    `choices` as from `options`, `accuracy` a fraction. A more accurate setting that leaks less is the better choice
    however much more accurate it is, so it counts. Settings with one seed stand for a defense only where it has no
    `repeated` one that is as accurate (`counted` is false then), and their rows come last. Further columns: `of`, from
    how many settings the one was picked; `borderline`, whether the interval of its accuracy reaches below the limit,
    unless that is the accuracy asked for;
    `single`, its least leaking setting with one seed where that leaks less than the row's; `difference`, its leak minus
    that of `against`, with the 95 % interval `difference_low` to `difference_high` of this one comparison; `p`: how
    often chance makes so much of it, times the numbers of settings from which both were picked, then Holm's correction
    over the rows; `clear`: below 0.05. Both are null where they are unknown, where one side is not counted, and for
    `against` itself.
    """
    limit = accuracy - tolerance - 1e-12
    able = choices.assign(counted=repeated(choices))
    able = able[able["test_accuracy"] >= limit]
    rows = [_pick(part) for _, part in able.groupby("defense", sort=False)]
    for row in rows:
        row["borderline"] = bool(row["test_low"] < limit and abs(row["test_accuracy"] - accuracy) > 1e-9)
    rows.sort(key=lambda row: (not row["counted"], row["leak"]))
    reference = next((row for row in rows if row["defense"] == against), None)
    made = [row if reference is None or row is reference else row | _less(row, reference) for row in rows]
    columns = [*choices.columns, "counted", "of", "borderline", "single"]
    return _corrected(pd.DataFrame(made, columns=[*columns, "difference", "difference_low", "difference_high", "p"]))


def _pick(part: pd.DataFrame) -> dict[Any, Any]:
    """The setting that stands for a defense in `at_accuracy`, from those that are as accurate."""
    counted = part[part["counted"]]
    among = counted if len(counted) else part
    row: dict[Any, Any] = among.sort_values("leak", kind="stable").iloc[0].to_dict()
    single = part[~part["counted"] & (part["leak"] < row["leak"])] if len(counted) else part.head(0)
    row |= {"of": len(among), "single": None}
    if len(single):
        least = single.sort_values("leak", kind="stable").iloc[0]
        row["single"] = f"{least['setting_text']}: {least['leak']:.3f}"
    return row


def _less(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> dict[str, Any]:
    """The difference of two leaks with the interval of this one comparison, and its p before Holm's correction."""
    change = float(first["leak"] - second["leak"])
    freedom = first["freedom"]
    half = float(student.ppf(0.975, freedom) * np.hypot(first["error"], second["error"])) if freedom else np.nan
    p = np.nan
    if first["counted"] and second["counted"]:
        p = float(np.minimum(1.0, first["of"] * second["of"] * _by_chance(first, second)))
    return {"difference": change, "difference_low": change - half, "difference_high": change + half, "p": p}


def seed_counts(choices: pd.DataFrame) -> dict[int, int]:
    """How many settings have how many seeds, the most seeds first."""
    seeds = choices["seeds"].to_list()
    return {int(count): seeds.count(count) for count in sorted(set(seeds), reverse=True)}


def stack(parts: Mapping[str, pd.DataFrame], order: str | None = None) -> pd.DataFrame:
    """Frames of several models as one with a `model` column; `order` keeps one removal order."""
    frames = []
    for model, part in parts.items():
        kept = part if order is None else part[part["order"] == order]
        frames.append(kept.assign(model=model))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["model"])


def by_explainer(parts: Mapping[str, Mapping[str, pd.DataFrame]], order: str) -> pd.DataFrame:
    """Frames of several explainers and models, `parts[explainer][model]`, as one with columns `explainer` and `model`;
    only the rows of one removal order.
    """
    frames = [stack(of, order).assign(explainer=name) for name, of in parts.items() if of]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["explainer", "model", "level"])


GAP_COLUMNS = (
    "explainer", "model", "start", "start_low", "start_high", "outside", "level", "difference", "growth", "chance",
    "grown",
)  # fmt: skip


def gaps(difference: pd.DataFrame) -> pd.DataFrame:
    """How far apart members and non-members are before pixels are removed, and what each explainer adds to that.

    `difference` is `difference.parquet` of one order, stacked, with `explainer` and `model`. Columns:
    `start`, `start_low`, `start_high`: the difference with nothing removed, in which no explanation has a part, and
    whether it lies `outside` its null band; null where that level was not asked for.
    `level`, `difference`: where the difference is largest in size once pixels are removed; `growth`: by how much it is
    larger in size there than at the start (negative: it shrinks everywhere); `chance`: half the width of the null band
    there; `grown`: whether the growth exceeds that. Growth is measured on the same images as the start, so that
    chance makes less of it than the null band allows: `grown` errs on the side of none.
    """
    rows = []
    for (explainer, model), part in difference.groupby(["explainer", "model"], sort=False):
        removed, whole = part[part["level"] > 0], part[part["level"] == 0]
        if not len(removed):
            continue
        largest = removed.iloc[int(removed["difference"].abs().to_numpy().argmax())]
        row = {"explainer": explainer, "model": model, "level": largest["level"], "difference": largest["difference"]}
        row |= {"chance": (largest["null_high"] - largest["null_low"]) / 2, "grown": False, "outside": False}
        if len(whole):
            first = whole.iloc[0]
            growth = abs(largest["difference"]) - abs(first["difference"])
            outside = not first["null_low"] <= first["difference"] <= first["null_high"]
            row |= {"start": first["difference"], "start_low": first["low"], "start_high": first["high"]}
            row |= {"outside": outside, "growth": growth, "grown": bool(growth > row["chance"])}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(GAP_COLUMNS))


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


# ---- fidelity and the gallery

FIDELITY = ("ssim", "mse", "cosine", "cosine_unscaled")
LESS_IS_MORE = ("mse",)  # the scores of which a smaller one means more alike
PAIRS = {"pair": "", "shuffled": "_shuffled", "second_seed": "_second_seed"}  # what is compared: the columns' ending
ARRANGED = ("drawn", "best", "median", "worst")


def fidelity(scores: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean scores of `fidelity/scores.parquet` by model, beside both controls, over all and over the correct images.

    Columns: model, images (`all`, `correct`: both models right), metric, pair (`pair`: defended against undefended;
    `shuffled`: against the undefended map of another image; `second_seed`: two undefended models), mean, low, high, n.
    Rows of `pair` also hold `over_shuffled` and `over_second_seed`: by how much more alike it is than that control,
    the mean of the differences on the same images (positive: more alike, also for mse), each with `_low`, `_high`.
    Intervals are 95 % bootstrap intervals over images; a score without a value counts nowhere.
    """
    rows: list[dict[str, Any]] = []
    for model, frame in scores.items():
        for images, part in (("all", frame), ("correct", frame[frame["correct"].astype(bool)])):
            made = _means(part.assign(**_more_alike(part)))
            for metric in FIDELITY:
                for pair, ending in PAIRS.items():
                    row = {"model": model, "images": images, "metric": metric, "pair": pair}
                    row |= made[f"{metric}{ending}"]
                    if pair == "pair":
                        row |= _over(made, metric)
                    rows.append(row)
    ends = ("", "_low", "_high")
    over = [f"over_{control}{end}" for control in ("shuffled", "second_seed") for end in ends]
    return pd.DataFrame(rows, columns=["model", "images", "metric", "pair", "mean", "low", "high", "n", *over])


def _more_alike(part: pd.DataFrame) -> dict[str, pd.Series]:
    """By image, how much more alike a pair is than each control on the same image."""
    made = {}
    for metric in FIDELITY:
        sign = -1.0 if metric in LESS_IS_MORE else 1.0
        for control in ("shuffled", "second_seed"):
            made[f"{metric}_over_{control}"] = sign * (part[metric] - part[f"{metric}_{control}"])
    return made


def _over(made: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """The columns of `fidelity` that compare a pair with its controls."""
    row: dict[str, Any] = {}
    for control in ("shuffled", "second_seed"):
        of = made[f"{metric}_over_{control}"]
        name = f"over_{control}"
        row |= {name: of["mean"], f"{name}_low": of["low"], f"{name}_high": of["high"]}
    return row


def _means(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Mean, low, high and n of every column of scores; columns known on the same images share their resamples."""
    names = [name for name in frame.columns if str(name).startswith(FIDELITY)]
    known = frame[names].notna()
    found: dict[str, dict[str, Any]] = {}
    groups: dict[bytes, list[str]] = {}
    for name in names:
        groups.setdefault(known[name].to_numpy().tobytes(), []).append(name)
    for group in groups.values():
        values = frame.loc[known[group[0]], group].to_numpy(np.float64)
        n = len(values)
        mean = values.mean(0) if n else np.full(len(group), np.nan)
        low, high = stats.mean_interval(values) if n > 1 else (np.full(len(group), np.nan),) * 2
        for i, name in enumerate(group):
            found[name] = {"mean": float(mean[i]), "low": float(low[i]), "high": float(high[i]), "n": n}
    return found


def fidelity_wide(means: pd.DataFrame) -> pd.DataFrame:
    """`fidelity` with a line per model, images and metric: `pair`, `shuffled` and `second_seed` beside each other.

    Each has `_low` and `_high`; `n` counts the images behind `pair`.
    """
    keys = ["model", "images", "metric"]
    over = [name for name in means.columns if str(name).startswith("over_")]
    made = means[means["pair"] == "pair"][[*keys, "n", *over]]
    for pair in PAIRS:
        part = means[means["pair"] == pair][[*keys, "mean", "low", "high"]]
        names = {"mean": pair, "low": f"{pair}_low", "high": f"{pair}_high"}
        made = made.merge(part.rename(columns=names), on=keys, how="left")
    return made.reset_index(drop=True)


def triplets(looks: Mapping[str, pd.DataFrame], scores: pd.DataFrame | None) -> pd.DataFrame:
    """The images that every model's gallery holds, in the order drawn, by row of the data set.

    `looks`: by model, `gallery.parquet` indexed by row; `scores`: the fidelity scores that images are arranged by.
    Columns: member, label, right (bool: all these models are), `FIDELITY` (null without scores).
    """
    first = next(iter(looks.values()))
    shared = first.index
    for frame in looks.values():
        shared = shared[shared.isin(frame.index)]
    right = np.ones(len(shared), bool)
    for frame in looks.values():
        right &= (frame.loc[shared, "predicted"] == frame.loc[shared, "label"]).to_numpy()
    made = first.loc[shared, ["member", "label"]].assign(member=first.loc[shared, "member"].astype(bool), right=right)
    if scores is None:
        return made.assign(**dict.fromkeys(FIDELITY, np.nan))
    return made.join(scores.drop_duplicates("index").set_index("index")[list(FIDELITY)])


def arranged(frame: pd.DataFrame, order: str, metric: str) -> pd.DataFrame:
    """`triplets` as drawn, or most alike (`best`), least alike (`worst`) or nearest to the median first by a score.

    Images without a score come last. Raises ValueError for an unknown order.
    """
    if order not in ARRANGED:
        raise ValueError(f"unknown order '{order}'; choose one of {', '.join(ARRANGED)}")
    if order == "drawn":
        return frame
    value = frame[metric].astype(float)
    place = (value - value.median()).abs() if order == "median" else value
    rising = order == "median" or (order == "best") == (metric in LESS_IS_MORE)
    return frame.loc[place.sort_values(ascending=rising, kind="stable", na_position="last").index]


# ---- one image


def deck(images: pd.DataFrame, seed: int = 0, kept: int = 0) -> np.ndarray:
    """The data set's rows in the order in which single images are numbered: image k is `deck(...)[k - 1]`.

    `images` has columns `index` and, with `kept`, `member`. A seeded shuffle, so that neither an image's number nor its
    neighbours tell whether a model has seen it. The first `kept` members and non-members of the stored order, whose
    maps are kept, get the lowest numbers, shuffled among themselves.
    """
    rows, shuffle = images["index"].to_numpy(np.int64), np.random.default_rng(seed)
    first = images.groupby("member").cumcount().to_numpy() < kept if kept else np.zeros(len(rows), bool)
    return np.concatenate([shuffle.permutation(np.unique(part)) for part in (rows[first], rows[~first])])


def undecided(scores: pd.DataFrame, cards: np.ndarray) -> list[int]:
    """The numbers of the images by how near their cross-fitted score is to 0, where the attack cannot decide.

    The hardest come first. An order by how wrong the attack is would give membership away together with the score.
    Images without a finite score are left out.
    """
    known = scores[np.isfinite(scores["score"])]
    numbers = {int(row): number for number, row in enumerate(cards, start=1)}
    order = known.assign(distance=known["score"].abs()).sort_values(["distance", "index"])["index"]
    return [numbers[int(row)] for row in order if int(row) in numbers]


def standing(scores: pd.DataFrame, score: float) -> dict[str, float]:
    """Where a score stands among members and among non-members: the share of each with a lower one, ties half.

    NaN for a score that is not finite and for a group without images.
    """
    shares = {}
    for name, group in (("members", scores["member"]), ("nonmembers", ~scores["member"].astype(bool))):
        shares[name] = stats.share_below(scores["score"][group.astype(bool)].to_numpy(np.float64), score)
    return shares


def alike(scores: pd.DataFrame, score: float, row: int | None = None, most: int = 200) -> tuple[int, int] | None:
    """How many are members among the images scored most like one, and how many images these are.

    The nearest `most` finite scores, at the most a fifth of all, so that they stay near; the image's own `row` is left
    out, since its membership may be hidden. Equal distances in the order of the rows. None for a score that is not
    finite or with fewer than 20 such images: a share of so few says nothing.
    """
    known = scores[np.isfinite(scores["score"]) & (scores["index"] != (-1 if row is None else row))]
    count = min(most, len(known) // 5)
    if not np.isfinite(score) or count < 20:
        return None
    distance = (known["score"] - score).abs()
    near = known.assign(distance=distance).sort_values(["distance", "index"]).head(count)
    return int(near["member"].astype(bool).sum()), count


def image_path(paths: Mapping[str, Iterable[float]], levels: Iterable[float]) -> pd.DataFrame:
    """One image's confidence along both removal orders, from log confidences: order, level, confidence."""
    places = list(levels)
    parts = [
        pd.DataFrame({"order": order, "level": places, "confidence": np.exp(np.asarray(list(path), np.float64))})
        for order, path in paths.items()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["order", "level", "confidence"])


def stored_path(samples: pd.DataFrame, row: int, levels: Iterable[float]) -> pd.DataFrame | None:
    """`image_path` of one row of the data set in trajectory/samples.parquet, or None when it has no such image."""
    found = samples[samples["index"] == row]
    places = list(levels)
    if not len(found):
        return None
    return image_path(
        {o: found[[f"{o}_{i}" for i in range(len(places))]].iloc[0].to_numpy(np.float64) for o in ("morf", "lerf")},
        places,
    )


def with_means(path: pd.DataFrame, means: pd.DataFrame | None) -> pd.DataFrame:
    """`image_path` beside the mean confidence of members and non-members at the same levels: what a reader keeps.

    `means` is trajectory/curves.parquet. Adds members, members_low, members_high, and the same for nonmembers.
    """
    if means is None:
        return path
    for word, member in (("members", True), ("nonmembers", False)):
        part = means[means["member"].astype(bool) == member][["order", "level", "mean", "low", "high"]]
        names = {"mean": word, "low": f"{word}_low", "high": f"{word}_high"}
        path = path.merge(part.rename(columns=names), on=["order", "level"], how="left")
    return path


# ---- attacks from outside

ATTACK_METRICS: dict[str, str] = {
    "balanced_accuracy": "Balanced accuracy, threshold transferred",
    "balanced_accuracy_calibrated": "Balanced accuracy, threshold calibrated",
    "auc": "AUC",
    "tpr_at_0.01": "TPR at 1 % FPR",
    "tpr_at_0.001": "TPR at 0.1 % FPR",
    "tnr_at_0.001": "TNR at 0.1 % FNR",
}
_INTERVALS = {"balanced_accuracy": "interval", "auc": "auc_interval", **{rate.value: rate.interval for rate in RATES}}
_COUNTS = {rate.value: rate.counts for rate in RATES}
INTERVALS: dict[str, str] = {
    "balanced_accuracy": "95 % bootstrap over images",
    "balanced_accuracy_calibrated": "no intervals",
    "auc": "95 % bootstrap over images",
    "tpr_at_0.01": "95 % Clopper-Pearson intervals",
    "tpr_at_0.001": "95 % Clopper-Pearson intervals",
    "tnr_at_0.001": "95 % Clopper-Pearson intervals",
}
"""What kind of interval each figure has; `attack_figure` says what stands in where a bootstrap has no spread."""
_ATTACK_COLUMNS = ("value", "low", "high", "hits", "of", "alarms", "alarms_of", "refused")


def attack_figure(leaf: Mapping[str, Any] | None, metric: str) -> dict[str, Any]:
    """One figure of an attack's report: value, low, high (95 %), and for rates the raw counts behind it.

    `hits` of `of` images are found at `alarms` errors of `alarms_of`, as the report counts them.
    `refused`: why there is no value; a report that is None is `not stored`. Where resampling cannot change a figure,
    since all scores lie on their own side, `_without_spread` gives the interval instead of the bootstrap.
    """
    row: dict[str, Any] = dict.fromkeys(_ATTACK_COLUMNS)
    row |= {"value": np.nan, "low": np.nan, "high": np.nan}
    if leaf is None:
        return row | {"refused": "not stored"}
    if leaf.get(metric) is None:
        return row | {"refused": str((leaf.get("refused") or {}).get(metric, "not in this report"))}
    row["value"] = value = float(leaf[metric])
    if (counts := leaf.get(_COUNTS.get(metric, ""))) is not None:  # of a rate: members found or non-members cleared
        found, erred = ("members", "nonmembers") if metric.startswith("tpr") else ("nonmembers", "members")
        row |= {"of": int(leaf[found]), "alarms_of": int(leaf[erred])}
        told = {name.partition("_")[0]: count for name, count in counts.items()}  # a store sorts the names
        row |= {"hits": told["true"], "alarms": told["false"]}
    if (bounds := leaf.get(_INTERVALS.get(metric, ""))) is not None:
        row["low"], row["high"] = map(float, bounds)
        if row["low"] == row["high"] and metric in ("balanced_accuracy", "auc"):
            row["low"], row["high"] = _without_spread(metric, value, int(leaf["members"]), int(leaf["nonmembers"]))
    return row


def _without_spread(metric: str, value: float, members: int, nonmembers: int) -> tuple[float, float]:
    """95 % interval of a figure whose bootstrap has no width, because each group's rate is 0 or 1.

    Balanced accuracy: Newcombe's (`gap_interval`). An AUC of 1: some threshold parts the groups, and the area is at
    least the product of the rates there, each with its exact (Clopper-Pearson) bound at 97.5 %; 0 mirrors it. An AUC
    between them comes from equal scores, which no resample changes.
    """
    if metric == "balanced_accuracy":
        return gap_interval(float(value >= 0.5), float(value <= 0.5), members, nonmembers)
    if value not in (0.0, 1.0):
        return value, value
    least = clopper_pearson(members, members).low * clopper_pearson(nonmembers, nonmembers).low
    return (least, 1.0) if value else (0.0, 1.0 - least)


def exposed(frame: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """The rows of the most exposed images, as `metrics.vulnerable_decile` takes them (`metrics.most_exposed`)."""
    return frame[most_exposed(frame["exposure"].to_numpy(np.float64), share)]


def exact(leaf: Mapping[str, Any], scores: pd.DataFrame) -> dict[str, Any]:
    """A report whose balanced accuracy has Newcombe's interval where a group's rate at the threshold is 0 or 1.

    A bootstrap gives such a group no spread at all. `scores`: member, score, of the images of the report.
    """
    if leaf.get("threshold") is None or leaf.get("interval") is None:
        return dict(leaf)
    counts = confusion(scores, float(leaf["threshold"]))
    if not {counts["tpr"], counts["fpr"]} & {0.0, 1.0}:
        return dict(leaf)
    bounds = gap_interval(counts["tpr"], counts["fpr"], counts["members"], counts["nonmembers"])
    return {**leaf, "interval": list(bounds)}


def strongest(leaves: Mapping[str, Mapping[str, Any] | None]) -> str | None:
    """The explainer, or attack, with the highest AUC in its report, the first of equal ones; None without any.

    Of reports on attack-test it is chosen without a look at the target: what pages and command line do alike.
    """
    areas = {name: leaf.get("auc") for name, leaf in leaves.items() if leaf is not None}
    known = {name: float(area) for name, area in areas.items() if area is not None}
    return max(known, key=lambda name: known[name]) if known else None


def attacks(leaves: Mapping[tuple[str, str, str], Mapping[str, Any] | None]) -> pd.DataFrame:
    """Every figure of every report, by (explainer, model, setting): a line each, as `attack_figure` gives them."""
    rows = [
        {"explainer": explainer, "model": model, "setting": setting, "metric": metric, **attack_figure(leaf, metric)}
        for (explainer, model, setting), leaf in leaves.items()
        for metric in ATTACK_METRICS
    ]
    return pd.DataFrame(rows, columns=["explainer", "model", "setting", "metric", *_ATTACK_COLUMNS])


def attack_cells(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """`attacks` of one metric for reading: a line per explainer and model, the figure in words for each setting."""
    rows = frame[frame["metric"] == metric]
    made = rows[["explainer", "model"]].drop_duplicates()
    for setting in dict.fromkeys(rows["setting"]):
        part = rows[rows["setting"] == setting]
        said = part[["explainer", "model"]].assign(**{setting: [figure_text(row) for row in part.to_dict("records")]})
        made = made.merge(said, on=["explainer", "model"], how="left")
    return made.reset_index(drop=True)


def figure_text(row: Mapping[Any, Any]) -> str:
    """`0.783 (0.751 to 0.810)`, for rates with their counts; `refused` or `not stored` where there is no value."""
    if pd.isna(row["value"]):
        return "not stored" if row["refused"] == "not stored" else "refused"
    text = f"{row['value']:.3f}"
    if not pd.isna(row["low"]):
        text += f" ({row['low']:.3f} to {row['high']:.3f})"
    if not pd.isna(row["of"]):
        text += f", {int(row['hits']):,} of {int(row['of']):,}"
        text += "" if pd.isna(row["alarms"]) else f" at {int(row['alarms']):,} of {int(row['alarms_of']):,}"
    return text


def verdicts(scores: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Whether an attack is right about each image: index, member, right; images without a score are left out."""
    known = scores[scores["score"].notna()]
    member = known["member"].astype(bool)
    return pd.DataFrame({"index": known["index"], "member": member, "right": (known["score"] > threshold) == member})


def gain(first: pd.DataFrame, second: pd.DataFrame, resamples: int = 2000, seed: int = 0) -> dict[str, float]:
    """By how much the second attack's balanced accuracy is above the first's on the same images, with its interval.

    Both as from `verdicts`. Keys: difference, low, high (95 % bootstrap over images, pairs kept together); NaN when
    members or non-members have no pair. What is resampled takes three values, so its counts are drawn.
    """
    both = first.merge(second, on=["index", "member"], suffixes=("_first", "_second"))
    change = both["right_second"].astype(int) - both["right_first"].astype(int)
    rng, means, draws = np.random.default_rng(seed), [], []
    for member in (True, False):
        values = change[both["member"] == member]
        n = len(values)
        if not n:
            return dict.fromkeys(("difference", "low", "high"), float("nan"))
        shares = [float((values == step).mean()) for step in (-1, 0, 1)]
        drawn = rng.multinomial(n, shares, size=resamples)
        means.append(float(values.mean()))
        draws.append((drawn[:, 2] - drawn[:, 0]) / n)
    low, high = np.quantile((draws[0] + draws[1]) / 2, [0.025, 0.975])
    return {"difference": sum(means) / 2, "low": float(low), "high": float(high)}


def auc_gain(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, float]:
    """By how much the second attack's AUC is above the first's on the same images, with its 95 % interval.

    Both: index, member, score. Keys as of `gain`; NaN with fewer than two pairs of members or of non-members. Whether
    an attack ranks better does not depend on any threshold. The variance is that of DeLong, DeLong and Clarke-Pearson
    (1988): of the differences in how many of the other group each image stands above.
    """
    both = first.merge(second, on=["index", "member"], suffixes=("_first", "_second"))
    both = both[both["score_first"].notna() & both["score_second"].notna()]
    member = both["member"].to_numpy(bool)
    if min(member.sum(), (~member).sum()) < 2:
        return dict.fromkeys(("difference", "low", "high"), float("nan"))
    placed = [_placements(both[f"score_{name}"].to_numpy(np.float64), member) for name in ("first", "second")]
    changes = [new - old for old, new in zip(*placed, strict=True)]  # of members, of non-members
    difference = float(changes[0].mean())
    half = stats.Z * float(np.sqrt(sum(change.var(ddof=1) / len(change) for change in changes)))
    return {"difference": difference, "low": difference - half, "high": difference + half}


def _placements(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each member the share of non-members below it, for each non-member that of members above it, ties half."""
    inside, outside = scores[member], scores[~member]

    def below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
        ordered = np.sort(others)
        places = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
        return np.asarray(places / (2 * len(others)))

    return below(inside, outside), 1.0 - below(outside, inside)


ROC_POINTS = 250  # of a curve, evenly spread over the logarithm of the rate


def roc(scores: pd.DataFrame) -> pd.DataFrame:
    """The part of an ROC that log-log axes can show: fpr, tpr, at every false-positive rate that counts resolve.

    At each rate the most members that it allows; rates of 0 have no logarithm and are left out. At most `ROC_POINTS`.
    """
    known = scores[scores["score"].notna()]
    member = known["member"].astype(bool)
    if member.all() or not member.any():
        return pd.DataFrame(columns=["fpr", "tpr"])
    fpr, tpr, _ = all_points(known["score"][member], known["score"][~member])
    frame = pd.DataFrame({"fpr": fpr, "tpr": tpr}).groupby("fpr", as_index=False).max()
    frame = frame[(frame["fpr"] > 0) & (frame["tpr"] > 0)].reset_index(drop=True)
    if len(frame) <= ROC_POINTS:
        return frame
    wanted = np.geomspace(frame["fpr"].iloc[0], 1.0, ROC_POINTS)
    return frame.iloc[np.unique(np.searchsorted(frame["fpr"], wanted * (1 - 1e-9)))].reset_index(drop=True)


def roc_null(members: int, nonmembers: int) -> pd.DataFrame:
    """What an ROC looks like when membership is shuffled: fpr, low, high, 95 % of the true-positive rates at each.

    With k false alarms allowed the threshold is the (k + 1)-th highest of n non-members' scores, a Beta(k + 1, n - k)
    quantile of the common distribution, so the members above it are beta-binomial.
    """
    if members < 1 or nonmembers < 2:
        return pd.DataFrame(columns=["fpr", "low", "high"])
    allowed = np.unique(np.geomspace(1, nonmembers - 1, 80).round().astype(int))
    low, high = (betabinom.ppf(q, members, allowed + 1, nonmembers - allowed) / members for q in (0.025, 0.975))
    return pd.DataFrame({"fpr": allowed / nonmembers, "low": low, "high": high})


def confusion(scores: pd.DataFrame, threshold: float) -> dict[str, Any]:
    """Counts and rates of an attack at a threshold: members, found, nonmembers, alarms, tpr, fpr, balanced_accuracy.

    Rates are NaN for an empty group; images without a score are left out.
    """
    known = scores[scores["score"].notna()]
    member, said = known["member"].to_numpy(bool), known["score"].to_numpy(float) > threshold
    made: dict[str, Any] = {
        "members": int(member.sum()), "found": int((member & said).sum()),
        "nonmembers": int((~member).sum()), "alarms": int((~member & said).sum()),
    }  # fmt: skip
    tpr = made["found"] / made["members"] if made["members"] else float("nan")
    fpr = made["alarms"] / made["nonmembers"] if made["nonmembers"] else float("nan")
    return made | {"tpr": tpr, "fpr": fpr, "balanced_accuracy": (tpr + 1 - fpr) / 2}


def stops(scores: pd.DataFrame, *marks: float, steps: int = 200) -> list[float]:
    """Thresholds to try, rising, to two decimals: one for every half percent of the scores, and the `marks`.

    So a step moves about as many images wherever the scores lie. There are at least two.
    """
    known = scores["score"].to_numpy(np.float64)
    known = known[np.isfinite(known)]
    places = np.quantile(known, np.linspace(0, 1, steps + 1)) if known.size else np.empty(0)
    found = sorted({round(float(value), 2) + 0.0 for value in (*places, *marks) if np.isfinite(value)})
    return found if len(found) > 1 else [value + step for value in found or [0.0] for step in (-1.0, 0.0, 1.0)]


def calibrated(scores: pd.DataFrame) -> float:
    """The threshold that is best for these very images; NaN without members or without non-members."""
    known = scores[np.isfinite(scores["score"])]
    member = known["member"].to_numpy(bool)
    if member.all() or not member.any():
        return float("nan")
    return best_threshold(known["score"][member], known["score"][~member])


HALF = 50  # members, and as many non-members, that stand for all


def hundred(counts: Mapping[str, Any]) -> pd.DataFrame:
    """`confusion` scaled to 50 members and 50 non-members: member, said (called a member), figures, images.

    Two lines for each group that has images.
    """
    rows = []
    groups = ((True, "found", "members", "tpr"), (False, "alarms", "nonmembers", "fpr"))
    for member, hits, whole, rate in groups:
        if not counts[whole]:
            continue
        figures = round(HALF * counts[rate])
        rows.append({"member": member, "said": True, "figures": figures, "images": counts[hits]})
        rows.append(
            {"member": member, "said": False, "figures": HALF - figures, "images": counts[whole] - counts[hits]}
        )
    return pd.DataFrame(rows, columns=["member", "said", "figures", "images"])


def ranked(leaves: Mapping[tuple[str, str], Mapping[str, Any] | None], metric: str) -> pd.DataFrame:
    """Reports by (attack, model), the attack that reaches furthest on any model first: attack, model, `sign`, figures.

    Reports that are None are left out; refused figures come last.
    """
    rows = [
        {"attack": attack, "model": model, "sign": leaf.get("sign"), **attack_figure(leaf, metric)}
        for (attack, model), leaf in leaves.items()
        if leaf is not None
    ]
    frame = pd.DataFrame(rows, columns=["attack", "model", "sign", *_ATTACK_COLUMNS])
    best = frame.groupby("attack")["value"].transform("max")
    order = best.sort_values(ascending=False, kind="stable", na_position="last").index
    return frame.loc[order].reset_index(drop=True)


def class_leaks(scores: pd.DataFrame, threshold: float | None) -> pd.DataFrame:
    """How well an attack does in each class, most leaking first: label, value, low, high, members, nonmembers.

    `scores` has label, member, score; `value` is the balanced accuracy at the transferred threshold with its 95 %
    interval, as `metrics.class_leaks` has them. Classes without members or without
    non-members are left out, and all of them without a threshold.
    """
    rows = leaks_by_class(scores["score"], scores["member"], scores["label"], threshold)
    made = [
        {"label": row["label"], "value": row["balanced_accuracy"], "low": low, "high": high}
        | {name: row[name] for name in ("members", "nonmembers")}
        for row in rows
        for low, high in [row["interval"]]
    ]
    return pd.DataFrame(made, columns=["label", "value", "low", "high", "members", "nonmembers"])


UNTOUCHED = "confidence"  # the feature that both orders begin with: nothing has been removed yet


def attack_features(table: pd.DataFrame) -> pd.DataFrame:
    """`attack/features.parquet` with the confidence before any removal as one feature, first: it is of neither order.

    Its `order` is None and its level 0. Older results list it twice, as MoRF and as LeRF at level 0; what shuffling
    either costs (`importance`, and `contribution` where there is one) is summed there, and it has no interval.
    """
    at_zero = (table["level"] == 0) & (table["order"].notna())
    twice = table[at_zero]
    own = (table["level"] == 0) & ~at_zero
    if not len(twice):
        return pd.concat([table[own], table[~own]], ignore_index=True)
    first = twice.iloc[:1].assign(feature=UNTOUCHED, order=None, kept=bool(twice["kept"].any()))
    for name in ("importance", "contribution"):
        if name in table:
            first[name] = twice[name].sum(min_count=1)
    return pd.concat([first.astype({"order": object}), table[~at_zero]], ignore_index=True)


def feature_worth(table: pd.DataFrame) -> pd.DataFrame:
    """The features that reach the attack, the costliest to shuffle first: as `attack_features`, with `low`, `high`.

    The interval is 95 % over shuffles and images of what the shuffle costs; NaN in older results. `clear`: it lies
    above 0; where there is none, whether the cost does.
    """
    made = attack_features(table)
    made = made[made["kept"].astype(bool)]
    blank = pd.Series(np.nan, made.index)
    low, high = (made.get(f"importance_{end}", blank).astype(float) for end in ("low", "high"))
    clear = low.fillna(made["importance"]) > 0
    return made.assign(low=low, high=high, clear=clear).sort_values(
        "importance", ascending=False, kind="stable", ignore_index=True
    )


def reasons(row: Mapping[Any, Any], table: pd.DataFrame, most: int = 8) -> pd.DataFrame:
    """What drove one image's attack score: feature, order, level, contribution; the largest in size first.

    `row` is one of `attack/contributions.parquet`, `table` is `attack/features.parquet`, whose untouched confidence
    counts once (`attack_features`); features without any contribution are left out.
    """
    made = table[["feature", "order", "level"]].assign(
        kept=True, contribution=[float(row[name]) if name in row else np.nan for name in table["feature"]]
    )
    made = attack_features(made).drop(columns="kept")
    made = made[made["contribution"].notna() & (made["contribution"] != 0)]
    order = made["contribution"].abs().sort_values(ascending=False, kind="stable").index
    return made.loc[order[:most]].reset_index(drop=True)


# ---- quality of maps

QUALITY_IMAGES = ("all", "members", "nonmembers")
QUALITY_COLUMNS = (
    "model", "explainer", "images", "metric", "seeds", "n", "mean", "mean_low", "mean_high",
    *(f"{of}{name}{end}" for of in ("", "over_") for name in QUALITY_CONTROLS for end in ("", "_low", "_high")),
    "above", "below", *(f"{name}{end}" for name in ("gap", "change", "other") for end in ("", "_low", "_high")),
    "change_n",
)  # fmt: skip
Permuted = Mapping[str, Mapping[str, float | None]]  # by QUALITY_IMAGES, `permutation` of the stage `quality`


def quality_metrics(frame: pd.DataFrame) -> list[str]:
    """The scores that a `quality/scores.parquet` holds beside their controls."""
    return [name for name in (*QUALITY_METRICS, *VARIANT_OF) if name in frame.columns]


def control_of(frame: pd.DataFrame, metric: str, control: str) -> pd.Series:
    """A control's scores; those of a variant without controls of its own are those of its metric."""
    own = f"{metric}_{control}"
    return frame[own if own in frame.columns else f"{VARIANT_OF[metric]}_{control}"].astype(np.float64)


def quality(
    scores: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]],
    undefended: Mapping[str, Mapping[int, pd.DataFrame]] | None = None,
    permuted: Mapping[tuple[str, str], Mapping[int, Permuted]] | None = None,
) -> pd.DataFrame:
    """Mean scores of maps beside both controls, over all images, the members and the non-members.

    `scores`: by model and explainer, `quality/scores.parquet` of each seed; `undefended`: that of the undefended model
    by explainer, of all seeds there are; `permuted`: what the stage says under `permutation`. Columns: QUALITY_COLUMNS.

    - `mean`, `random` and `edges` are means over seeds, the `over_` columns the mean of the differences on the same
      images. A score without a value counts nowhere; `n` counts the others
    - `above` and `below`, of Sufficiency: p values of a lead over chance so high or so low if maps tell nothing
    - `gap`, over all images: what members have over non-members
    - `change`: what a model has over the undefended one of the same seed on the same images, `change_n` in number;
      `other`: what another seed of the undefended model has over the first, which is what training noise alone does.
      Sufficiency is compared by its lead over chance, which differs between models

    Each with its 95 % interval, which resamples seeds, then images; that of Sufficiency knows that images share
    neighbours (`tier.quality.pseudo_values`).
    """
    rows: list[dict[str, Any]] = []
    bare = {
        explainer: {seed: _judged(of) for seed, of in held.items()} for explainer, held in (undefended or {}).items()
    }
    noise: dict[tuple[str, int], dict[str, dict[str, dict[str, float]]]] = {}  # the same of every model
    for (model, explainer), frames in scores.items():
        metrics = quality_metrics(next(iter(frames.values())))
        held = {seed: _judged(frame) for seed, frame in frames.items()}
        plain, first = bare.get(explainer, {}), min(held)
        changes = [
            _difference(plain[seed], of, "change") for seed, of in held.items() if seed in plain and model != "none"
        ]
        if (explainer, first) not in noise:
            pairs = [_difference(*pair, "other") for pair in _other_seed(plain, first)]
            noise[explainer, first] = {images: _with_intervals(pairs, images) for images in QUALITY_IMAGES}
        dealt = list((permuted or {}).get((model, explainer), {}).values())
        apart = [_members_apart(of) for of in held.values()]
        for images in QUALITY_IMAGES:
            parts = [_of_group(of, images) for of in held.values()]
            made = _with_intervals(apart if images == "all" else parts)
            _add(made, _with_intervals(changes, images))
            _add(made, noise[explainer, first][images])
            known = {"model": model, "explainer": explainer, "images": images, "seeds": len(frames)}
            for metric in metrics:
                n = sum(int(part.values[metric, "mean"].notna().sum()) for part in parts)
                tails = _tails([of[images] for of in dealt]) if metric == "sufficiency" else {}
                rows.append({**known, "metric": metric, "n": n, **made[metric], **tails})
    return pd.DataFrame(rows, columns=list(QUALITY_COLUMNS))


def seeds_judged(place: tuple[str, str], scores: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]]) -> list[int]:
    """The seeds of `scores` that a model is shown with under an explainer: all it has, but of the undefended model only
    those that some defended one has too. Its further seeds are a control, and would make it a mean over more models.
    """
    others = {seed for of, held in scores.items() if of[1] == place[1] and of[0] != "none" for seed in held}
    own = sorted(scores[place])
    return [seed for seed in own if seed in others] or own[:1] if place[0] == "none" else own


class _Judged(NamedTuple):
    """One model's scores by row of the data set, under (metric, name of `QUALITY_COLUMNS`).

    `spread` has the means of `values` up to a constant, and is what is resampled.
    """

    values: pd.DataFrame
    spread: pd.DataFrame
    member: pd.Series


def _judged(frame: pd.DataFrame) -> _Judged:
    metrics = quality_metrics(frame)
    frame = frame.drop_duplicates("index").set_index("index")
    beside = {(metric, of): control_of(frame, metric, of) for metric in metrics for of in QUALITY_CONTROLS}
    own = {metric: frame[metric].astype(np.float64) for metric in metrics}
    return _Judged(
        _beside_controls(own, beside), _beside_controls(*_resampled(frame, own, beside)), frame["member"].astype(bool)
    )


def _beside_controls(own: Mapping[str, pd.Series], beside: Mapping[tuple[str, str], pd.Series]) -> pd.DataFrame:
    """By image: each metric, its controls and what it has over them."""
    made = {}
    for metric, values in own.items():
        made[metric, "mean"] = values
        for control in QUALITY_CONTROLS:
            made[metric, control] = beside[metric, control]
            made[metric, f"over_{control}"] = values - beside[metric, control]
    return pd.DataFrame(made)


def _resampled(
    frame: pd.DataFrame, own: Mapping[str, pd.Series], beside: Mapping[tuple[str, str], pd.Series]
) -> tuple[dict[str, pd.Series], dict[tuple[str, str], pd.Series]]:
    """What stands for the scores in a bootstrap: of Sufficiency the pseudo-values, of all others the scores.

    Those of chance, (n_c - 1) / (N - 1) of an image whose class has n_c of N images, are twice it less its mean.
    """
    own, beside = dict(own), dict(beside)
    if "sufficiency_pseudo" not in frame.columns:
        return own, beside
    maps, edges = (frame[f"sufficiency{of}_pseudo"].astype(np.float64) for of in ("", "_edges"))
    chance = beside["sufficiency", "random"]
    own["sufficiency"], beside["sufficiency", "edges"] = maps, edges
    beside["sufficiency", "random"] = 2 * chance - chance.mean()
    if "sufficiency_quantus" in own:  # 0 without neighbours, and 0 throughout where a pixel is constant
        if own["sufficiency_quantus"].any():
            own["sufficiency_quantus"] = maps.fillna(0.0)
        if beside["sufficiency_quantus", "edges"].any():
            beside["sufficiency_quantus", "edges"] = edges.fillna(0.0)
    return own, beside


def _of_group(of: _Judged, images: str) -> _Judged:
    """The rows of all images, the members or the non-members."""
    if images == "all":
        return of
    kept = of.member == (images == "members")
    return _Judged(of.values[kept], of.spread[kept], of.member[kept])


def _members_apart(of: _Judged) -> _Judged:
    """With `gap` beside each metric: what members have over non-members, as a mean over all images.

    Each image counts by its distance from its group's mean, so that resampling all images together gives the spread of
    the difference of both means.
    """
    columns = [column for column in of.values.columns if column[1] == "mean"]
    own = of.values[columns].to_numpy(np.float64)  # (N, M)
    moved, inside = np.where(np.isnan(own), np.nan, of.spread[columns].to_numpy(np.float64)), of.member.to_numpy(bool)
    known, centred, means = ~np.isnan(own), np.empty_like(own), []
    with np.errstate(invalid="ignore", divide="ignore"):
        for group, sign in ((inside, 1.0), (~inside, -1.0)):
            there = known[group]
            centre = np.where(there, moved[group], 0.0).sum(0) / there.sum(0)
            centred[group] = sign * (moved[group] - centre) * known.sum(0) / there.sum(0)
            means.append(np.where(there, own[group], 0.0).sum(0) / there.sum(0))
    names = pd.MultiIndex.from_tuples([(column[0], "gap") for column in columns])
    apart = np.where(known, means[0] - means[1], np.nan)
    values, spread = (pd.DataFrame(made, of.values.index, names) for made in (apart, centred))
    return _Judged(pd.concat([of.values, values], axis=1), pd.concat([of.spread, spread], axis=1), of.member)


def _difference(first: _Judged, second: _Judged, name: str) -> _Judged:
    """What the second model has over the first on the images of both, under (metric, `name`).

    Sufficiency by its lead over chance.
    """
    rows = first.values.index.intersection(second.values.index)
    both = first.values.columns.intersection(second.values.columns, sort=False)
    metrics = [column[0] for column in both if column[1] == "mean"]
    columns = [(metric, "over_random" if metric == "sufficiency" else "mean") for metric in metrics]
    names = pd.MultiIndex.from_tuples([(metric, name) for metric in metrics])
    values, spread = (
        (after.loc[rows, columns] - before.loc[rows, columns]).set_axis(names, axis=1)
        for before, after in ((first.values, second.values), (first.spread, second.spread))
    )
    return _Judged(values, spread, first.member[rows])


def _other_seed(bare: Mapping[int, _Judged], first: int) -> list[tuple[_Judged, _Judged]]:
    """The undefended model of the first seed and that of the next there is; none where either is missing."""
    others = sorted(bare, key=lambda seed: (seed < first, seed))
    return [(bare[first], bare[seed]) for seed in others if seed != first][:1] if first in bare else []


def _with_intervals(seeds: Sequence[_Judged], images: str = "all") -> dict[str, dict[str, float]]:
    """By metric: the mean of each column over the seeds' means, and its interval under its name, `_low` and `_high`.

    Of `change` also the images compared, in all seeds, as `change_n`.
    """
    made: dict[str, dict[str, float]] = {}
    if not seeds:
        return made
    seeds = [_of_group(of, images) for of in seeds]
    centred = []
    for of in seeds:
        spread = of.spread[of.values.columns].where(of.values.notna())
        centred.append((spread - spread.mean() + of.values.mean()).to_numpy(np.float64))
    low, high = stats.seed_mean_interval(centred)
    means = pd.DataFrame([of.values.mean() for of in seeds]).mean().to_list()
    columns = seeds[0].values.columns.to_list()
    for column, mean, lowest, highest in zip(columns, means, low.tolist(), high.tolist(), strict=True):
        metric, name = map(str, tuple(column))
        values = {name: mean, f"{name}_low": lowest, f"{name}_high": highest}
        if name == "change":
            values["change_n"] = sum(int(of.values[column].notna().sum()) for of in seeds)
        made.setdefault(metric, {}).update(values)
    return made


def _add(made: dict[str, dict[str, float]], more: Mapping[str, Mapping[str, float]]) -> None:
    for metric, values in more.items():
        made[metric].update(values)


def _tails(dealt: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """The p values of `permutation`, those of several seeds together by Stouffer's method; nothing where unknown."""
    tails = {}
    for name in ("above", "below"):
        p = np.array([of[name] for of in dealt if of[name] is not None], np.float64)
        if p.size:
            scores = norm.isf(np.clip(p, None, 1 - 1e-3))
            tails[name] = float(p[0]) if p.size == 1 else float(norm.sf(scores.sum() / np.sqrt(p.size)))
    return tails


BETTER, SAME, WORSE = "✓ better", "✗ not better", "✗ worse"
LEVEL = 0.025  # of either tail


def against(row: Mapping[Any, Any], control: str) -> str | None:
    """Whether a row of `quality` is better than a control: BETTER, SAME or WORSE; None where either is unknown.

    Better means that the 95 % interval of the difference on the same images lies above 0; of all scores more is better.
    Of Sufficiency against noise it means that so great a lead over chance is rare when classes are dealt anew to the
    images (p of at most LEVEL), as neighbours in common make any interval over images a guess.
    """
    low, high = row[f"over_{control}_low"], row[f"over_{control}_high"]
    if control == "random" and pd.notna(row.get("above")):
        return BETTER if row["above"] <= LEVEL else WORSE if row["below"] <= LEVEL else SAME
    if pd.isna(low) or pd.isna(high):
        return None
    return BETTER if low > 0 else WORSE if high < 0 else SAME


HIGHER, LOWER, SEED, UNCLEAR = "▲ higher", "▼ lower", "no more than another seed", "no clear change"


def survives(row: Mapping[Any, Any]) -> str | None:
    """What a defense does to a score, by a row of `quality`: HIGHER, LOWER, SEED or UNCLEAR; None where not known.

    UNCLEAR: the interval of the change holds 0. SEED: it does not, but it reaches into what the interval of another
    seed's change says of either sign, which training noise alone may do.
    """
    low, high = row["change_low"], row["change_high"]
    if pd.isna(low) or pd.isna(high):
        return None
    if low <= 0 <= high:
        return UNCLEAR
    noise = [abs(row[name]) for name in ("other_low", "other_high") if pd.notna(row[name])]
    if noise and min(abs(low), abs(high)) <= max(noise):
        return SEED
    return HIGHER if low > 0 else LOWER


def quality_wide(table: pd.DataFrame) -> pd.DataFrame:
    """`quality` over all images in the form of Table VI: a line per model and explainer, the metrics across, as text.

    Each cell has the mean, its interval and, where the map is not better than noise, that sign; and the number of
    images where some have no such score.
    """
    part = table[table["images"] == "all"]
    most = part["n"].max()
    cells = pd.Series([quality_text(row, most) for row in part.to_dict("records")], part.index, dtype="string")
    order = part[["model", "explainer"]].drop_duplicates()
    wide = part.assign(cell=cells).pivot(index=["model", "explainer"], columns="metric", values="cell")
    return wide.loc[[tuple(pair) for pair in order.to_numpy()], list(dict.fromkeys(part["metric"]))].reset_index()


def quality_text(row: Mapping[Any, Any], images: int) -> str | None:
    """`0.062 [0.051, 0.073] n=174 ✗`: n if below `images`, the sign where noise does as well; None without a value."""
    if pd.isna(row["mean"]):
        return None
    sign = "" if against(row, "random") in (BETTER, None) else " ✗"
    interval = "" if pd.isna(row["mean_low"]) else f" [{row['mean_low']:.3f}, {row['mean_high']:.3f}]"
    few = f" n={row['n']}" if row["n"] < images else ""
    return f"{row['mean']:.3f}{interval}{few}{sign}"


def correlation_error(values: pd.Series, runs: int) -> pd.Series:
    """The standard error of Pearson's correlations over `runs` draws, (1 - r^2) / sqrt(runs - 1)."""
    return (1 - values.astype(np.float64) ** 2) / np.sqrt(runs - 1)


def quality_change(first: pd.DataFrame, second: pd.DataFrame, metric: str) -> pd.DataFrame:
    """What each image's score gains from one model's map to another's, by row of the data set, least gain first.

    `first`, `second`: `quality/scores.parquet` of the undefended and the defended model. Columns: member, label,
    before, after, change; images without either score are left out.
    """
    held = [frame.drop_duplicates("index").set_index("index") for frame in (first, second)]
    made = held[0][["member", "label"]].assign(member=held[0]["member"].astype(bool), before=held[0][metric])
    made = made.join(held[1][metric].rename("after"), how="inner").astype({"before": float, "after": float}).dropna()
    return made.assign(change=made["after"] - made["before"]).sort_values("change", kind="stable")


def quality_sweeps(sweeps: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]) -> pd.DataFrame:
    """Sufficiency over thresholds by model and kind of map (`map`, `random`, `edges`), from `sweeps` of the stage.

    Columns: model, of, threshold, mean, neighbours (mean count), alone (share of images without any).
    """
    names = ("threshold", "mean", "neighbours", "alone")
    rows = [
        pd.DataFrame({name: kept[name] for name in names}, dtype=float).assign(model=model, of=of)
        for model, kinds in sweeps.items()
        for of, kept in kinds.items()
    ]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=["model", "of", *names])
