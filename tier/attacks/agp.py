"""The attribution-guided perturbation attack's classifier on trajectory features (section IV), and the internal audit.

Features: MoRF confidences, LeRF confidences, cross-entropy loss, one-hot predicted class. Welch's t test, on training
rows only, keeps the trajectory features that separate; a small multilayer perceptron scores the rest.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_ind
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from tier.config import Audit
from tier.metrics import auc, balanced_accuracy
from tier.stats import seed_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """What the attacker sees of N images: log confidences along both paths `(N, L)`, loss `(N,)`, prediction `(N,)`.

    Of near-duplicates, which `groups` `(N,)` tells by equal numbers, no fold has some to learn from and others to
    score: a track of which one frame is known as a member would give the others away.
    """

    morf: Array
    lerf: Array
    loss: Array
    predicted: NDArray[np.int64]
    classes: int
    groups: NDArray[np.int64] | None = None

    def trajectory(self) -> Array:
        """The confidences T_MoRF + T_LeRF, `(N, 2L)`, as probabilities in float64."""
        return np.exp(np.concatenate([self.morf, self.lerf], 1).astype(np.float64))

    def take(self, rows: NDArray[np.int64]) -> "Features":
        """The same of some images."""
        parts = (self.morf[rows], self.lerf[rows], self.loss[rows], self.predicted[rows])
        return Features(*parts, self.classes, None if self.groups is None else self.groups[rows])

    def rest(self) -> Array:
        """Loss and one-hot predicted class, `(N, 1 + K)`; these are never filtered."""
        return np.concatenate([self.loss[:, None], np.eye(self.classes)[self.predicted]], 1)


@dataclass(frozen=True)
class AuditScores:
    """Log odds of membership, higher = member.

    `holdout` is NaN but on the held-out rows of the 80/20 split; `crossfit` scores every row by a classifier that did
    not see it; `fold` names that classifier. `kept` are the trajectory features the filter kept on the 80 %.
    """

    holdout: Array
    crossfit: Array
    fold: NDArray[np.int64]
    kept: NDArray[np.bool_]


NOTHING_SEPARATES = "no trajectory feature separates members from non-members; the attack sees loss and class only"


@dataclass(frozen=True)
class Attack:
    """A trained attack: filter, standardisation, classifier.

    Of attack-train, per trajectory feature `(2L,)`: whether the filter kept it, Welch's t (above 0 where members are
    higher) and p, both NaN for a constant feature, and the means of members and of non-members.
    """

    kept: NDArray[np.bool_]
    t: Array
    p: Array
    member_mean: Array
    nonmember_mean: Array
    scale: StandardScaler
    model: MLPClassifier
    prior: float  # log odds of membership among the training rows
    twins: bool  # whether both paths begin with the same confidence, that of the untouched image

    @property
    def features(self) -> dict[str, list[int]]:
        """What one image is described by: name -> places among the 2L trajectory features, then loss and class.

        `morf_i` and `lerf_i` per level, `loss`, `predicted`. Where both paths begin with the untouched image, its
        confidence is in both and holds no explanation: one feature, `untouched`, with two places.
        """
        count = len(self.kept) // 2
        places = {f"{order}_{i}": [k * count + i] for k, order in enumerate(("morf", "lerf")) for i in range(count)}
        if self.twins:
            places = {"untouched": places.pop("morf_0") + places.pop("lerf_0")} | places
        return places | {"loss": [2 * count], "predicted": [2 * count + 1]}

    def score(self, features: Features) -> Array:
        """Log odds of membership less those of the training rows, `(N,)`; 0 favours neither; NaN where one is NaN.

        Raises ValueError when the features have other levels or classes than the attack was trained with.
        """
        trajectory, rest = self._arrays(features)
        return self.table_scores(trajectory, rest)

    def contributions(self, features: Features) -> Array:
        """How much each of `features` moves an image's score, `(N, F)`: the score less that without the feature.

        Without: at its mean over attack-train (the one-hot class as a whole). Features that the filter dropped have 0.
        The network is not linear and features go together, so contributions need not add up to the score.
        """
        trajectory, rest = self._arrays(features)
        own, mean = self.table_scores(trajectory, rest), self.scale.mean_
        found = np.zeros((len(own), len(self.features)))
        for number, columns in self._columns():
            table = self._table(trajectory, rest)
            table[:, columns] = mean[columns]
            found[:, number] = own - self._from_table(table)
        return found

    def importance(
        self, features: Features, member: NDArray[np.bool_], threshold: float, repeats: int = 10, seed: int = 0
    ) -> Array:
        """Loss of balanced accuracy when one of `features` is shuffled among the images: mean, low, high, `(F, 3)`.

        The mean is over repeats, the 95 % bootstrap interval over images. Features that the filter dropped have 0.
        Meant for attack-test rows. Raises ValueError when there are no members or no non-members.
        """
        _need(member, 1, "importance needs")
        trajectory, rest = self._arrays(features)
        table, rng = self._table(trajectory, rest), np.random.default_rng(seed)
        found = np.zeros((len(self.features), 3))

        def right(scores: Array) -> Array:
            return np.where(scores == threshold, 0.5, (scores > threshold) == member)

        def lost(groups: dict[str, Array]) -> float:
            return float((groups["members"].mean() + groups["nonmembers"].mean()) / 2)

        own = right(self._from_table(table))
        for number, columns in self._columns():
            still = np.zeros(len(table))
            for _ in range(repeats):
                shuffled = table.copy()
                shuffled[:, columns] = table[rng.permutation(len(table))][:, columns]
                still += right(self._from_table(shuffled)) / repeats
            groups = {"members": (own - still)[member], "nonmembers": (own - still)[~member]}
            found[number] = lost(groups), *seed_interval([groups], lost)
        return found

    def table_scores(self, trajectory: Array, rest: Array) -> Array:
        """Scores from `Features.trajectory()` and `Features.rest()`."""
        return self._from_table(self._table(trajectory, rest))

    def _arrays(self, features: Features) -> tuple[Array, Array]:
        trajectory, rest = features.trajectory(), features.rest()
        wanted = (len(self.kept), len(self.scale.mean_) - int(self.kept.sum()) - 1)
        if (trajectory.shape[1], features.classes) != wanted:
            raise ValueError(
                f"the attack was trained with {wanted[0]} trajectory features and {wanted[1]} classes, "
                f"not {trajectory.shape[1]} and {features.classes}"
            )
        return trajectory, rest

    def _table(self, trajectory: Array, rest: Array) -> Array:
        return np.concatenate([trajectory[:, self.kept], rest], 1)

    def _from_table(self, table: Array) -> Array:
        return _log_odds(self.model, self.scale.transform(table)) - self.prior

    def _columns(self) -> Iterator[tuple[int, list[int]]]:
        """For each of `features` that acts, its number and its columns in the table that the network sees."""
        kept = {int(place): [column] for column, place in enumerate(np.flatnonzero(self.kept))}
        loss = len(kept)
        kept |= {len(self.kept): [loss], len(self.kept) + 1: list(range(loss + 1, len(self.scale.mean_)))}
        for number, places in enumerate(self.features.values()):
            if columns := [column for place in places for column in kept.get(place, [])]:
                yield number, columns


def fit(features: Features, member: NDArray[np.bool_], config: Audit) -> Attack:
    """The attack trained on all rows given: attack-train of a shadow model (SPEC 5).

    Warns when no trajectory feature separates. Raises ValueError for fewer than four of either group, and for features
    that are not finite.
    """
    _need(member, FEWEST, "the attack learns from")
    trajectory, rest = features.trajectory(), features.rest()
    if not np.isfinite(trajectory).all() or not np.isfinite(rest).all():
        raise ValueError("the attack cannot learn from features that are NaN or infinite: leave those images out")
    attack = _fit(trajectory, rest, member, config)
    if not attack.kept.any() and trajectory.shape[1]:
        warnings.warn(NOTHING_SEPARATES, stacklevel=2)
    return attack


FEWEST = 4  # of each group: early stopping sets some of both aside


def cross_fitted(features: Features, member: NDArray[np.bool_], config: Audit) -> Array:
    """Scores `(N,)` of attack-train itself, each by an attack that did not see the image; for thresholds.

    Raises ValueError when a group is too small for the folds.
    """
    found = np.empty(len(member))
    for train, test in _folds(features, member, config):
        found[test] = _quiet_scores(features, member, train, test, config)
    return found


def best_features(
    candidates: Mapping[float, Features], member: NDArray[np.bool_], config: Audit
) -> tuple[float, dict[float, float]]:
    """Which of several feature sets attacks best, by name (the alpha behind it), and the validation AUC of each.

    The AUC is the mean over folds of attack-train, each scored by an attack that saw the others only; of equal ones the
    first given. Raises ValueError when there is none, or when a group is too small for the folds.
    """
    if not candidates:
        raise ValueError("there are no feature sets to choose from")
    found = {}
    for name, features in candidates.items():
        folds = list(_folds(features, member, config))
        scores = [(test, _quiet_scores(features, member, train, test, config)) for train, test in folds]
        found[name] = float(np.mean([auc(made[member[test]], made[~member[test]]) for test, made in scores]))
    return max(found, key=lambda name: found[name]), found


Rows = NDArray[np.int64]


def _folds(features: Features, member: NDArray[np.bool_], config: Audit) -> Iterator[tuple[Rows, Rows]]:
    """Rows to learn from and rows to score, once per fold, with equal shares of members and non-members.

    Of `features`, whose first rows are those of `member`, only the groups are looked at.
    """
    _need(member, max(config.folds, FEWEST + 1), f"{config.folds} folds need")
    if features.groups is not None:
        yield from _apart(features.groups[: len(member)], member, config.folds, config.seed)
        return
    splitter = StratifiedKFold(config.folds, shuffle=True, random_state=config.seed)
    yield from splitter.split(member, member)


def _apart(groups: Rows, member: NDArray[np.bool_], folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Folds that keep groups whole; raises ValueError where there are too few of them for members in every fold."""
    if (fewest := min(len(np.unique(groups[member])), len(np.unique(groups[~member])))) < folds:
        raise ValueError(
            f"{folds} folds of whole groups need as many groups, of members and of non-members; got {fewest}"
        )
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    yield from splitter.split(member, member, groups)


def _held_out(features: Features, member: NDArray[np.bool_], config: Audit) -> tuple[Rows, Rows]:
    """Rows to learn from and the share `config.holdout` to score, of whole groups as near to it as folds come."""
    if features.groups is not None:
        return next(_apart(features.groups, member, max(2, round(1 / config.holdout)), config.seed))
    rows = np.arange(len(member))
    train, test = train_test_split(rows, test_size=config.holdout, stratify=member, random_state=config.seed)
    return train, test


def _need(member: NDArray[np.bool_], least: int, who: str) -> None:
    """Raises ValueError when either group is smaller than that."""
    if (smallest := min(int(member.sum()), int((~member).sum()))) < least:
        raise ValueError(f"{who} at least {least} members and non-members, got {smallest}")


def _quiet_scores(
    features: Features, member: NDArray[np.bool_], train: NDArray[np.int64], test: NDArray[np.int64], config: Audit
) -> Array:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NOTHING_SEPARATES)  # the attack that is kept says so itself
        return fit_score(features, member, train, test, config)[0]


def separating(p: Array, level: float) -> NDArray[np.bool_]:
    """Which of the features pass the filter, from their p of Welch's test; constant ones, whose p is NaN, never do."""
    return np.nan_to_num(p, nan=1.0) < level


def welch(features: Array, member: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Welch's t and p of each column of `(N, F)`, positive t for higher members; NaN for constant columns."""
    if features.shape[1] == 0:
        return np.empty(0), np.empty(0)
    varies = np.ptp(features, axis=0) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns of constant columns, which are NaN here anyway
        test = ttest_ind(features[member], features[~member], equal_var=False)
    return np.where(varies, test.statistic, np.nan), np.where(varies, test.pvalue, np.nan)


def fit_score(
    features: Features, member: NDArray[np.bool_], train: NDArray[np.int64], test: NDArray[np.int64], config: Audit
) -> tuple[Array, NDArray[np.bool_]]:
    """Train the attack on rows `train`, score rows `test`; returns the scores and the features kept.

    A score is the log odds of membership less those of the training rows, so that 0 favours neither group.

    Warns when no trajectory feature separates: loss and one-hot alone remain (SPEC 5).
    """
    trajectory, rest = features.trajectory(), features.rest()
    attack = _fit(trajectory[train], rest[train], member[train], config)
    if not attack.kept.any():
        warnings.warn(NOTHING_SEPARATES, stacklevel=2)
    return attack.table_scores(trajectory[test], rest[test]), attack.kept


def _fit(trajectory: Array, rest: Array, member: NDArray[np.bool_], config: Audit) -> Attack:
    t, p = welch(trajectory, member)
    kept = separating(p, config.welch)
    table = np.concatenate([trajectory[:, kept], rest], 1)
    learning = _learning_rows(member, config.validation)
    scale = StandardScaler().fit(table)
    model = MLPClassifier(
        config.hidden, alpha=config.penalty, batch_size=min(config.batch_size, len(table) // 2, learning),
        learning_rate_init=config.learning_rate, max_iter=config.iterations, early_stopping=True,
        n_iter_no_change=config.patience, validation_fraction=config.validation, random_state=config.seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scale.transform(table), member.astype(np.int64))
    prior = float(np.log(member.sum() / (~member).sum()))  # 0 for equal groups
    count = trajectory.shape[1] // 2
    twins = count > 0 and bool((trajectory[:, 0] == trajectory[:, count]).all())
    means = trajectory[member].mean(0), trajectory[~member].mean(0)
    return Attack(kept, t, p, *means, scale, model, prior, twins)


def _learning_rows(member: NDArray[np.bool_], validation: float) -> int:
    """How many rows the network learns from, the others telling it when to stop.

    Raises ValueError when less than two remain on either side, one of each group.
    """
    held = math.ceil(validation * len(member))
    if min(held, len(member) - held) < 2:
        raise ValueError(
            f"audit.validation is {validation:g}: of {int(member.sum())} members and {int((~member).sum())} "
            f"non-members it sets {held} aside to stop by and leaves {len(member) - held} to learn from; either needs "
            "at least 2"
        )
    return len(member) - held


def audit(features: Features, member: NDArray[np.bool_], config: Audit) -> AuditScores:
    """The internal audit (VI-C): the attack's classifier on the target itself, 80/20 and cross-fitted.

    Raises ValueError when one membership class has fewer rows than there are folds.
    """
    least = max(config.folds, FEWEST + 1, math.ceil(1 / config.holdout), math.ceil(1 / (1 - config.holdout)))
    _need(member, least, "an audit needs")
    train, test = _held_out(features, member, config)
    holdout, crossfit = np.full(len(member), np.nan), np.empty(len(member))
    holdout[test], kept = fit_score(features, member, train, test, config)
    fold = np.empty(len(member), np.int64)
    for index, (train, test) in enumerate(_folds(features, member, config)):
        crossfit[test], _ = fit_score(features, member, train, test, config)
        fold[test] = index
    return AuditScores(holdout, crossfit, fold, kept)


def score_new(features: Features, member: NDArray[np.bool_], config: Audit, new: Features) -> Array:
    """Log odds of membership of images outside the audit's own, one column per classifier of its folds, `(N, folds)`.

    Each classifier is the one that `audit` fits for that fold, so scores compare with `AuditScores.crossfit`.
    """
    joined = Features(
        np.concatenate([features.morf, new.morf]), np.concatenate([features.lerf, new.lerf]),
        np.concatenate([features.loss, new.loss]), np.concatenate([features.predicted, new.predicted]),
        features.classes,
    )  # fmt: skip
    inside = np.concatenate([member, np.zeros(len(new.loss), bool)])  # what is said of the new rows is not looked at
    asked = np.arange(len(member), len(inside))
    folds = _folds(features, member, config)
    return np.stack([fit_score(joined, inside, train, asked, config)[0] for train, _ in folds], 1)


def figures(scores: AuditScores, member: NDArray[np.bool_]) -> dict[str, float]:
    """Balanced accuracy and AUC of the held-out 20 % (`audit_*`, the paper's figure) and of the cross-fitted scores.

    `_low` and `_high` are 95 % bootstrap intervals over images.
    """
    held = ~np.isnan(scores.holdout)
    out: dict[str, float] = {}
    for name, values, rows in (("audit", scores.holdout, held), ("crossfit", scores.crossfit, np.ones_like(held))):
        groups = {"members": values[rows & member], "nonmembers": values[rows & ~member]}
        for figure, function in (("balanced_accuracy", balanced_accuracy), ("auc", auc)):
            out[f"{name}_{figure}"] = function(**groups)
            interval = seed_interval([groups], lambda g, f=function: f(**g))  # type: ignore[misc]
            out[f"{name}_{figure}_low"], out[f"{name}_{figure}_high"] = interval
    return out


def _log_odds(model: MLPClassifier, table: Array) -> Array:
    """The network's output before the sigmoid: scikit-learn only offers probabilities, which saturate and tie."""
    hidden = table
    for weights, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        hidden = np.maximum(hidden @ weights + bias, 0.0)
    return (hidden @ model.coefs_[-1] + model.intercepts_[-1])[:, 0]
