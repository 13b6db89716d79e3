"""Quality of maps beside controls: means, differences, and what survives a defense."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from tier import stats
from tier.config import QUALITY_CONTROLS, QUALITY_METRICS, VARIANT_OF

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
