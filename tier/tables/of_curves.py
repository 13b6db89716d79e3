"""Removal paths and KL profiles of groups, and the game that is played with them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tier import paper


def paper_divergence(model: str) -> pd.DataFrame:
    """The paper's Table I (`none`) or III (`tier_full`): removed, members, nonmembers, t, t_p, ks, ks_p."""
    names = {"kl_mean_member": "members", "kl_mean_nonmember": "nonmembers", "t_statistic": "t", "t_p_value": "t_p"}
    names |= {"ks_statistic": "ks", "ks_p_value": "ks_p"}
    lines: dict[float | None, dict[str, float]] = {}
    for number in paper.printed():
        if number.place.table in ("I", "III") and number.place.defense == model:
            lines.setdefault(number.place.level, {})[names[number.place.quantity]] = number.value
    return pd.DataFrame([{"removed": level, **line} for level, line in lines.items()])


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
