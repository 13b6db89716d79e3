"""Likeness of two models' maps, and the gallery of their triplets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tier import stats

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
