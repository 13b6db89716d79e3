"""Figures of merit against scikit-learn and against counting."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, top_k_accuracy_score

from tier.metrics import auc, balanced_accuracy, top_k_accuracy


def _scores(n: int, m: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    members, nonmembers = rng.normal(0.4, 1, n), rng.normal(0, 1, m)
    return (members.round(), nonmembers.round()) if ties else (members, nonmembers)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n", "m"), [(40, 60), (1, 5), (1, 1)])
def test_auc(n: int, m: int, ties: bool) -> None:
    members, nonmembers = _scores(n, m, ties)
    truth = [1] * n + [0] * m
    assert auc(members, nonmembers) == pytest.approx(roc_auc_score(truth, np.concatenate([members, nonmembers])))
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(members, nonmembers))
    assert auc(members, nonmembers) == pytest.approx(won / (n * m))


def test_auc_of_infinite_scores_and_of_no_difference() -> None:
    assert auc([np.inf, 1.0], [0.0, -np.inf]) == 1.0
    assert auc([0.0, 1.0], [2.0, np.inf]) == 0.0
    assert auc([5.0] * 3, [5.0] * 4) == 0.5


@pytest.mark.parametrize("threshold", [0.0, 0.5, -1.0])
def test_balanced_accuracy(threshold: float) -> None:
    members, nonmembers = _scores(40, 60, ties=True)
    truth = [1] * 40 + [0] * 60
    called = np.concatenate([members, nonmembers]) > threshold
    assert balanced_accuracy(members, nonmembers, threshold) == pytest.approx(balanced_accuracy_score(truth, called))


def test_a_score_at_the_threshold_is_called_a_nonmember() -> None:
    assert balanced_accuracy([0.0], [0.0]) == 0.5
    assert balanced_accuracy([1e-300], [0.0]) == 1.0


@pytest.mark.parametrize("figure", [auc, balanced_accuracy])
def test_one_group_alone_is_refused(figure: object) -> None:
    for groups in (([1.0], []), ([], [1.0]), ([], [])):
        with pytest.raises(ValueError, match="empty"):
            figure(*groups)  # type: ignore[operator]


def test_top_k_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 9)), rng.integers(0, 9, 200)
    for k in (1, 2, 5):
        expected = top_k_accuracy_score(labels, logits, k=k, labels=np.arange(9))
        assert top_k_accuracy(logits, labels, k) == pytest.approx(expected)
    assert top_k_accuracy(logits, labels) == top_k_accuracy(logits, labels, 5)


def test_top_5_needs_six_classes() -> None:
    assert top_k_accuracy(np.eye(2), [0, 1]) is None
    assert top_k_accuracy(np.eye(5), np.arange(5)) is None
    assert top_k_accuracy(np.eye(6), np.arange(6)) == 1.0
