"""Accuracy against leak: settings compared over seeds, the frontier, what TIER has to beat."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from tier import stats
from tier.config import STRENGTHS, strength_field
from tier.tables.of_attacks import attack_figure
from tier.tables.of_runs import NAMES, setting_text

_TIERS = ("tier_reg", "tier_full")


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
