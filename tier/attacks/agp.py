"""The attribution-guided perturbation attack's classifier on trajectory features (section IV), and the internal audit.

Features: MoRF confidences, LeRF confidences, cross-entropy loss, one-hot predicted class. Welch's t test, on training
rows only, keeps the trajectory features that separate; a small multilayer perceptron scores the rest.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_ind
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from tier.config import Audit
from tier.metrics import auc, balanced_accuracy
from tier.stats import seed_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """What the attacker sees of N images: log confidences along both paths `(N, L)`, loss `(N,)`, prediction `(N,)`."""

    morf: Array
    lerf: Array
    loss: Array
    predicted: NDArray[np.int64]
    classes: int

    def trajectory(self) -> Array:
        """The confidences T_MoRF + T_LeRF, `(N, 2L)`, as probabilities in float64."""
        return np.exp(np.concatenate([self.morf, self.lerf], 1).astype(np.float64))

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


def welch_filter(features: Array, member: NDArray[np.bool_], level: float) -> NDArray[np.bool_]:
    """Which columns of `(N, F)` separate members from non-members by Welch's t test; constant columns never pass."""
    varies = np.ptp(features, axis=0) > 0
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # scipy warns of constant columns, which are dropped here anyway
        p = ttest_ind(features[member], features[~member], equal_var=False).pvalue
    return varies & (np.nan_to_num(p, nan=1.0) < level)


def fit_score(
    features: Features, member: NDArray[np.bool_], train: NDArray[np.int64], test: NDArray[np.int64], config: Audit
) -> tuple[Array, NDArray[np.bool_]]:
    """Train the attack on rows `train`, score rows `test`; returns the scores and the features kept.

    A score is the log odds of membership less those of the training rows, so that 0 favours neither group.

    Warns when no trajectory feature separates: loss and one-hot alone remain (SPEC 5).
    """
    trajectory, rest = features.trajectory(), features.rest()
    kept = welch_filter(trajectory[train], member[train], config.welch)
    if not kept.any():
        warnings.warn(
            "no trajectory feature separates members from non-members; the attack sees loss and class only",
            stacklevel=2,
        )
    table = np.concatenate([trajectory[:, kept], rest], 1)
    scale = StandardScaler().fit(table[train])
    model = MLPClassifier(
        config.hidden, alpha=config.penalty, batch_size=min(config.batch_size, len(train) // 2),
        learning_rate_init=config.learning_rate, max_iter=config.iterations, early_stopping=True,
        n_iter_no_change=config.patience, validation_fraction=config.validation, random_state=config.seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scale.transform(table[train]), member[train].astype(np.int64))
    prior = np.log(member[train].sum() / (~member[train]).sum())  # 0 for equal groups
    return _log_odds(model, scale.transform(table[test])) - prior, kept


def audit(features: Features, member: NDArray[np.bool_], config: Audit) -> AuditScores:
    """The internal audit (VI-C): the attack's classifier on the target itself, 80/20 and cross-fitted.

    Raises ValueError when one membership class has fewer rows than there are folds.
    """
    smallest = min(int(member.sum()), int((~member).sum()))
    least = max(config.folds, 5, math.ceil(1 / config.holdout), math.ceil(1 / (1 - config.holdout)))
    if smallest < least:
        raise ValueError(f"an audit needs at least {least} members and non-members, got {smallest}")
    rows = np.arange(len(member))
    train, test = train_test_split(rows, test_size=config.holdout, stratify=member, random_state=config.seed)
    holdout, crossfit = np.full(len(rows), np.nan), np.empty(len(rows))
    holdout[test], kept = fit_score(features, member, train, test, config)
    fold = np.empty(len(rows), np.int64)
    splitter = StratifiedKFold(config.folds, shuffle=True, random_state=config.seed)
    for index, (train, test) in enumerate(splitter.split(rows, member)):
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
    rows = np.arange(len(member))
    inside = np.concatenate([member, np.zeros(len(new.loss), bool)])  # what is said of the new rows is not looked at
    asked = np.arange(len(member), len(inside))
    folds = StratifiedKFold(config.folds, shuffle=True, random_state=config.seed).split(rows, member)
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
