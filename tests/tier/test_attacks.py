"""The audit on a toy that separates and on one that does not, its filter, its folds, and the two simplest attacks."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import logit
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from tier.attacks import agp, gap
from tier.attacks import loss as loss_attack
from tier.attacks.agp import AuditScores, Features, audit, figures, fit_score
from tier.config import Audit

QUICK = Audit(hidden=(8,))


def toy(members: int = 120, nonmembers: int = 120, gap: float = 3.0, seed: int = 0) -> tuple[Features, np.ndarray]:
    """Features of images in random order; members' confidence falls more slowly by `gap` standard deviations."""
    rng = np.random.default_rng(seed)
    n = members + nonmembers
    member = rng.permutation(np.arange(n) < members)
    level = gap * member + rng.normal(size=n)
    morf = -np.exp(-level[:, None] / 3) * np.linspace(0.1, 2.0, 5) - rng.uniform(0, 0.05, (n, 5))
    lerf = morf / 2 - rng.uniform(0, 0.05, (n, 5))
    return Features(morf, lerf, rng.exponential(size=n), rng.integers(0, 3, n), 3), member


def null(n: int = 400, seed: int = 1) -> tuple[Features, np.ndarray]:
    rng = np.random.default_rng(seed)
    paths = -rng.exponential(size=(2, n, 5))
    return Features(paths[0], paths[1], rng.exponential(size=n), rng.integers(0, 3, n), 3), np.arange(n) % 2 == 0


class TestFeatures:
    def test_are_confidences_loss_and_one_hot_class(self) -> None:
        morf, lerf = np.log([[0.9, 0.5], [0.8, 0.1]]), np.log([[0.9, 0.7], [0.8, 0.6]])
        features = Features(morf, lerf, np.array([0.1, 2.0]), np.array([2, 0]), 4)
        np.testing.assert_allclose(features.trajectory(), [[0.9, 0.5, 0.9, 0.7], [0.8, 0.1, 0.8, 0.6]])
        assert features.rest().tolist() == [[0.1, 0, 0, 1, 0], [2.0, 1, 0, 0, 0]]

    def test_stored_float32_paths_are_raised_to_float64(self) -> None:
        features = Features(*(np.zeros((2, 3), np.float32),) * 2, np.zeros(2), np.array([0, 1]), 2)  # type: ignore[arg-type]
        assert features.trajectory().dtype == np.float64


def welch_filter(table: np.ndarray, member: np.ndarray, level: float) -> np.ndarray:
    return agp.separating(agp.welch(table, member)[1], level)


class TestWelchFilter:
    def test_against_scipy_column_by_column(self) -> None:
        rng = np.random.default_rng(0)
        member = np.arange(60) < 25
        table = (
            rng.normal(size=(60, 40)) * np.where(member, 3.0, 1.0)[:, None] + rng.uniform(0, 2, 40) * member[:, None]
        )
        for level in (0.05, 0.5):
            expected = [stats.ttest_ind(c[member], c[~member], equal_var=False).pvalue < level for c in table.T]
            assert welch_filter(table, member, level).tolist() == expected
            assert expected != [stats.ttest_ind(c[member], c[~member]).pvalue < level for c in table.T]  # Student's t

    @pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
    def test_constant_columns_never_pass(self, value: float) -> None:
        member = np.arange(31) < 14
        table = np.stack([np.full(31, value), member * 1.0], 1)
        assert welch_filter(table, member, 0.999).tolist() == [False, True]

    def test_a_column_that_separates_perfectly_passes(self) -> None:
        member = np.arange(10) < 5
        assert welch_filter(np.where(member, 0.9, 0.1)[:, None], member, 0.05).tolist() == [True]

    def test_sees_training_rows_only(self) -> None:
        features, member = null(200)
        leaking = np.where(member, -0.1, -3.0)
        train, test = np.arange(100), np.arange(100, 200)
        leaking[train] = np.random.default_rng(2).permutation(leaking[train])  # separates on the test rows alone
        features.morf[:, 0] = leaking
        expected = welch_filter(features.trajectory()[train], member[train], QUICK.welch)
        _, kept = fit_score(features, member, train, test, QUICK)
        assert kept.tolist() == expected.tolist()
        assert not kept[0]


class TestAudit:
    def test_finds_members_that_separate(self) -> None:
        features, member = toy()
        scores = audit(features, member, QUICK)
        made = figures(scores, member)
        for name in ("audit", "crossfit"):
            assert made[f"{name}_balanced_accuracy"] > 0.9
            assert made[f"{name}_auc"] > 0.9
            assert made[f"{name}_auc_low"] <= made[f"{name}_auc"] <= made[f"{name}_auc_high"] <= 1.0
        assert scores.kept.any()

    def test_finds_nothing_where_there_is_nothing(self) -> None:
        found = []
        for seed in range(3):
            features, member = null(seed=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the filter may find nothing, and says so: tested below
                scores = audit(features, member, QUICK)
            made = figures(scores, member)
            found += [made["crossfit_balanced_accuracy"], made["crossfit_auc"]]
            assert made["crossfit_auc_low"] < 0.6
        assert all(0.38 < value < 0.62 for value in found)
        assert 0.45 < np.mean(found) < 0.55

    def test_shuffled_membership_of_separable_features_is_a_null_too(self) -> None:
        features, member = toy()
        shuffled = np.random.default_rng(3).permutation(member)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = audit(features, shuffled, QUICK)
        assert 0.35 < figures(scores, shuffled)["crossfit_auc"] < 0.65

    def test_no_row_is_scored_by_a_classifier_that_saw_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        features, member = toy(53, 71)
        calls: list[tuple[set[int], set[int]]] = []

        def spy(features: Features, member: np.ndarray, train: np.ndarray, test: np.ndarray, config: Audit) -> Any:
            calls.append((set(train.tolist()), set(test.tolist())))
            return np.full(len(test), float(len(calls))), np.ones(10, bool)

        monkeypatch.setattr(agp, "fit_score", spy)
        scores = audit(features, member, Audit(folds=5, holdout=0.2))
        everyone = set(range(124))
        assert len(calls) == 6
        for train, test in calls:
            assert train | test == everyone
            assert not train & test
            assert 0.35 < member[list(test)].mean() < 0.5  # stratified: 53 of 124 are members
        held, *folds = calls
        assert len(held[1]) == 25
        assert {i for i in everyone if scores.holdout[i] == 1.0} == held[1]
        assert {i for i in everyone if np.isnan(scores.holdout[i])} == held[0]
        assert set.union(*(test for _, test in folds)) == everyone
        assert sum(len(test) for _, test in folds) == 124
        for number, (_, test) in enumerate(folds):
            assert {i for i in everyone if scores.fold[i] == number} == test
            assert {i for i in everyone if scores.crossfit[i] == number + 2.0} == test

    def test_a_label_that_only_memory_knows_does_not_leak_into_scores(self) -> None:
        """One-hot classes that name rows: a classifier tells them apart only if it saw them."""
        rng = np.random.default_rng(0)
        n = 100
        member = np.arange(n) % 2 == 0
        flat = np.full((n, 3), -1.0)
        features = Features(flat, flat, np.ones(n), rng.permutation(n), n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = audit(features, member, Audit(hidden=(64,)))
        assert figures(scores, member)["crossfit_auc"] < 0.65

    def test_is_repeatable_and_seeded(self) -> None:
        features, member = toy(40, 40)
        first, again = audit(features, member, QUICK), audit(features, member, QUICK)
        other = audit(features, member, Audit(hidden=(8,), seed=1))
        np.testing.assert_array_equal(first.crossfit, again.crossfit)
        np.testing.assert_array_equal(first.holdout, again.holdout)
        assert (first.fold != other.fold).any()

    @pytest.mark.parametrize(("members", "nonmembers"), [(0, 50), (50, 0), (4, 50), (50, 4)])
    def test_too_few_of_one_class_are_refused(self, members: int, nonmembers: int) -> None:
        features, member = toy(members, nonmembers)
        with pytest.raises(ValueError, match=f"at least 5 members and non-members, got {min(members, nonmembers)}"):
            audit(features, member, QUICK)

    @pytest.mark.parametrize(
        ("config", "count"), [(QUICK, 5), (Audit(folds=2, holdout=0.5, hidden=(4,)), 8), (Audit(folds=7, hidden=()), 7)]
    )
    def test_few_images_are_enough(self, config: Audit, count: int) -> None:
        features, member = toy(count, count + 2)
        scores = audit(features, member, config)
        assert np.isfinite(scores.crossfit).all()
        assert set(scores.fold.tolist()) == set(range(config.folds))


class TestValidation:
    """Shares of rows to stop by that leave nothing to learn from, or nothing to stop by."""

    @pytest.mark.parametrize(("share", "held", "left"), [(0.001, 1, 159), (0.99, 159, 1), (0.999, 160, 0)])
    def test_are_refused_with_the_sizes(self, share: float, held: int, left: int) -> None:
        features, member = toy(100, 60)
        reason = (
            f"audit.validation is {share}: of 100 members and 60 non-members it sets {held} aside to stop by and "
            f"leaves {left} to learn from"
        )
        with pytest.raises(ValueError, match=reason):
            agp.fit(features, member, Audit(validation=share))

    @pytest.mark.parametrize("share", [0.01, 0.9, 0.98])
    def test_others_work_without_a_warning(self, share: float) -> None:
        features, member = toy(100, 60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(agp.fit(features, member, Audit(validation=share)).score(features)).all()


class TestScoreNew:
    def test_the_audit_s_own_rows_score_as_they_did_in_their_fold(self) -> None:
        features, member = toy(60, 45)
        scores = audit(features, member, QUICK)
        rows = np.random.default_rng(0).permutation(len(member))[:40]
        new = Features(
            features.morf[rows], features.lerf[rows], features.loss[rows], features.predicted[rows], features.classes
        )
        made = agp.score_new(features, member, QUICK, new)
        assert made.shape == (40, QUICK.folds)
        # one row at a time or many may be added up in another order
        np.testing.assert_allclose(made[np.arange(40), scores.fold[rows]], scores.crossfit[rows], rtol=1e-9, atol=1e-9)
        others = (np.arange(40), (scores.fold[rows] + 1) % QUICK.folds)
        assert np.abs(made[others] - scores.crossfit[rows]).min() > 1e-6  # of classifiers that saw the row

    def test_what_is_asked_about_teaches_nothing(self) -> None:
        features, member = toy(30, 30)
        new, _ = toy(5, 5, seed=3)
        together = agp.score_new(features, member, QUICK, new)
        far = Features(new.morf - 100.0, new.lerf - 100.0, new.loss + 50.0, new.predicted, 3)
        for i in range(10):
            of_one = (np.r_[a[i : i + 1], b] for a, b in ((new.morf, far.morf), (new.lerf, far.lerf)))
            rest = np.r_[new.loss[i], far.loss], np.r_[new.predicted[i], far.predicted]
            alone = agp.score_new(features, member, QUICK, Features(*of_one, *rest, 3))[0]
            np.testing.assert_allclose(alone, together[i], rtol=1e-9, atol=1e-9)


class TestFitScore:
    def test_without_a_separating_feature_it_warns_and_uses_loss_and_class(self) -> None:
        rng = np.random.default_rng(0)
        member = np.arange(1000) % 2 == 0
        flat, loss = np.full((1000, 4), -1.0), np.where(member, 0.1, 2.0) * rng.uniform(0.9, 1.1, 1000)
        features = Features(flat, flat, loss, rng.integers(0, 3, 1000), 3)
        train, test = np.arange(800), np.arange(800, 1000)
        with pytest.warns(UserWarning, match="loss and class only"):
            scores, kept = fit_score(features, member, train, test, QUICK)
        assert not kept.any()
        assert ((scores > 0) == member[test]).mean() > 0.95

    def test_dropped_features_do_not_act(self) -> None:
        features, member = toy()
        features.morf[:, 2] = -1.0
        train, test = np.arange(200), np.arange(200, 240)
        scores, kept = fit_score(features, member, train, test, QUICK)
        assert not kept[2]
        features.morf[test, 2] = -50.0
        np.testing.assert_array_equal(fit_score(features, member, train, test, QUICK)[0], scores)

    def test_higher_means_member(self) -> None:
        features, member = toy()
        train, test = np.arange(200), np.arange(200, 240)
        scores, _ = fit_score(features, member, train, test, QUICK)
        assert scores[member[test]].mean() > 0 > scores[~member[test]].mean()


@pytest.mark.parametrize("hidden", [(), (6,), (8, 5)])
def test_log_odds_are_the_logit_of_the_probability_and_do_not_saturate(hidden: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(200, 4))
    truth = (table[:, 0] + 0.5 * rng.normal(size=200) > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier(hidden, random_state=0, max_iter=60).fit(table, truth)
    made = agp._log_odds(model, table)
    np.testing.assert_allclose(made, logit(model.predict_proba(table)[:, 1]), rtol=1e-6, atol=1e-6)
    far, saturated = agp._log_odds(model, table * 1e6), model.predict_proba(table * 1e6)[:, 1]
    assert np.isfinite(far).all()
    assert len(np.unique(far)) > 1.2 * len(np.unique(saturated))
    assert (np.diff(saturated[np.argsort(far)]) >= 0).all()


def test_figures_are_those_of_the_held_out_and_of_all_rows() -> None:
    member = np.array([True, True, True, False, False, False])
    holdout = np.array([2.0, -1.0, np.nan, -3.0, np.nan, np.nan])
    crossfit = np.array([2.0, -1.0, 3.0, -3.0, 1.0, -2.0])
    made = figures(AuditScores(holdout, crossfit, np.zeros(6, np.int64), np.ones(4, bool)), member)
    assert made["audit_balanced_accuracy"] == pytest.approx((1 / 2 + 1) / 2)
    assert made["audit_auc"] == 1.0
    assert made["crossfit_balanced_accuracy"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert made["crossfit_auc"] == pytest.approx(8 / 9)
    assert len(made) == 12


def test_scaling_uses_training_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    features, member = toy(60, 60)
    seen: list[int] = []

    class Spy(StandardScaler):
        def fit(self, table: np.ndarray, *rest: Any) -> Any:
            seen.append(len(table))
            return super().fit(table, *rest)

    monkeypatch.setattr(agp, "StandardScaler", Spy)
    fit_score(features, member, np.arange(90), np.arange(90, 120), QUICK)
    assert seen == [90]


def test_gap_calls_correct_predictions_members() -> None:
    assert gap.score(np.array([1, 2, 3]), np.array([1, 0, 3])).tolist() == [1.0, -1.0, 1.0]


def test_the_loss_attack_is_higher_for_lower_losses_and_stays_finite() -> None:
    losses = np.array([5.0, 1.0, 1e-3, 1e-15, 1e-300, 0.0])
    made = loss_attack.score(losses)
    assert (np.diff(made) > 0).all()
    assert np.isfinite(made).all()
    assert made[1] == 0.0
