"""Attacks from outside: figures with intervals, curves, thresholds, and what a classifier looks at."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import betabinom

from tier import stats
from tier.metrics import RATES, best_threshold, clopper_pearson, most_exposed
from tier.metrics import class_leaks as leaks_by_class
from tier.metrics import roc as all_points
from tier.stats import gap_interval

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
