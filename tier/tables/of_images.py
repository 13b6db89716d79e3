"""One image: its path, its place among the others, and the deck that it is drawn from."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from tier import stats


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
