"""The trained attack as an object: what it scores, what it shows of its features, how alpha is chosen."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.tier.test_attacks import QUICK, null, toy
from tier.attacks import agp, loss_mlp
from tier.attacks.agp import Features
from tier.config import Audit
from tier.metrics import auc, balanced_accuracy


def rows(features: Features, chosen: np.ndarray) -> Features:
    return Features(
        features.morf[chosen], features.lerf[chosen], features.loss[chosen], features.predicted[chosen],
        features.classes,
    )  # fmt: skip


def hiding(features: Features, place: int, seed: int = 0) -> Features:
    """Features where only one MoRF level is left as it was; the rest is noise."""
    rng = np.random.default_rng(seed)
    morf = rng.permuted(features.morf, axis=0)
    morf[:, place] = features.morf[:, place]
    return Features(morf, rng.permuted(features.lerf, axis=0), features.loss, features.predicted, features.classes)


class TestFit:
    def test_scores_as_fit_score_does_bit_by_bit(self) -> None:
        features, member = toy()
        train, test = np.arange(200), np.arange(200, 240)
        expected, kept = agp.fit_score(features, member, train, test, QUICK)
        attack = agp.fit(rows(features, train), member[train], QUICK)
        np.testing.assert_array_equal(attack.score(rows(features, test)), expected)
        np.testing.assert_array_equal(attack.kept, kept)

    def test_what_it_says_of_features_is_of_the_rows_it_learnt_from(self) -> None:
        features, member = toy(60, 50, gap=1.0)
        features.lerf[:, 2] = -1.0
        attack = agp.fit(features, member, QUICK)
        table = features.trajectory()
        assert len(attack.features) == 12
        names = list(attack.features)
        assert (names[0], names[5], names[10:]) == ("morf_0", "lerf_0", ["loss", "predicted"])
        for place in range(10):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the constant one
                test = stats.ttest_ind(table[member, place], table[~member, place], equal_var=False)
            assert attack.member_mean[place] == pytest.approx(table[member, place].mean())
            assert attack.nonmember_mean[place] == pytest.approx(table[~member, place].mean())
            if place == 7:
                assert np.isnan(attack.t[place]) and np.isnan(attack.p[place]) and not attack.kept[place]
            else:
                assert (attack.t[place], attack.p[place]) == pytest.approx((test.statistic, test.pvalue))
                assert attack.kept[place] == (test.pvalue < QUICK.welch)

    def test_an_empty_selection_warns_and_leaves_loss_and_class(self) -> None:
        features, member = toy()
        flat = np.full_like(features.morf, -1.0)
        told = np.where(member, 0.1, 2.0) * np.random.default_rng(0).uniform(0.9, 1.1, len(member))
        with pytest.warns(UserWarning, match="loss and class only"):
            attack = agp.fit(Features(flat, flat, told, features.predicted, 3), member, QUICK)
        assert not attack.kept.any()
        scores = attack.score(Features(flat, flat, told, features.predicted, 3))
        assert auc(scores[member], scores[~member]) > 0.85

    @pytest.mark.parametrize(("members", "nonmembers"), [(0, 50), (50, 0), (3, 50)])
    def test_too_few_of_a_group_are_refused(self, members: int, nonmembers: int) -> None:
        features, member = toy(members, nonmembers)
        with pytest.raises(ValueError, match="the attack learns from at least 4 members and non-members, got"):
            agp.fit(features, member, QUICK)
        with pytest.raises(ValueError, match="5 folds need at least 5 members"):
            agp.cross_fitted(features, member, QUICK)

    def test_four_of_each_are_enough(self) -> None:
        features, member = toy(4, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert np.isfinite(agp.fit(features, member, QUICK).score(features)).all()

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_cannot_learn_from_nan_but_scores_the_others(self, value: float) -> None:
        features, member = toy()
        attack = agp.fit(features, member, QUICK)
        features.loss[3] = value
        with pytest.raises(ValueError, match="NaN or infinite"):
            agp.fit(features, member, QUICK)
        if np.isnan(value):
            assert np.flatnonzero(np.isnan(attack.score(features))).tolist() == [3]

    def test_a_class_that_the_shadow_never_predicts_is_scored(self) -> None:
        features, member = toy()
        seen = Features(features.morf, features.lerf, features.loss, features.predicted % 2, 3)
        attack = agp.fit(seen, member, QUICK)
        new = Features(features.morf, features.lerf, features.loss, np.full(len(member), 2), 3)
        made = attack.score(new)
        assert np.isfinite(made).all()
        assert auc(made[member], made[~member]) > 0.9

    def test_other_levels_or_classes_are_refused(self) -> None:
        features, member = toy()
        attack = agp.fit(features, member, QUICK)
        for other in (
            Features(features.morf[:, :4], features.lerf[:, :4], features.loss, features.predicted, 3),
            Features(features.morf, features.lerf, features.loss, features.predicted, 4),
        ):
            with pytest.raises(ValueError, match="trained with 10 trajectory features and 3 classes"):
                attack.score(other)


class TestContributions:
    def test_are_the_score_less_that_with_the_feature_at_its_mean(self) -> None:
        features, member = toy(gap=1.0)
        features.lerf[:, 1] = -1.0
        attack = agp.fit(features, member, QUICK)
        one = rows(features, np.array([7]))
        made, own = attack.contributions(one)[0], attack.score(one)[0]
        means = features.trajectory().mean(0)
        for place in range(10):
            morf, lerf = one.morf.copy(), one.lerf.copy()
            (morf if place < 5 else lerf)[0, place % 5] = np.log(means[place])
            without = attack.score(Features(morf, lerf, one.loss, one.predicted, 3))[0]
            assert made[place] == pytest.approx(own - without, abs=1e-9)
        without = attack.score(Features(one.morf, one.lerf, np.array([features.loss.mean()]), one.predicted, 3))[0]
        assert made[10] == pytest.approx(own - without, abs=1e-9)
        assert made[6] == 0.0 and not attack.kept[6]
        table = attack._table(one.trajectory(), one.rest())
        table[0, -3:] = np.eye(3)[features.predicted].mean(0)
        assert made[11] == pytest.approx(own - attack._from_table(table)[0], abs=1e-9)

    def test_of_a_linear_attack_add_up(self) -> None:
        features, member = toy()
        attack = agp.fit(features, member, Audit(hidden=()))
        average = attack._from_table(attack.scale.mean_[None])[0]
        np.testing.assert_allclose(attack.contributions(features).sum(1), attack.score(features) - average, atol=1e-9)


class TestImportance:
    def test_names_the_feature_that_tells(self) -> None:
        features, member = toy(300, 300)
        features = hiding(features, 3)
        half = np.arange(600) < 300
        attack = agp.fit(rows(features, np.flatnonzero(half)), member[half], QUICK)
        made, low, high = attack.importance(rows(features, np.flatnonzero(~half)), member[~half], 0.0).T
        assert list(attack.features)[int(np.argmax(made))] == "morf_3"
        assert low[3] < made[3] < high[3] and low[3] > 0.2 and ((low <= made) & (made <= high)).all()
        assert made[3] > 0.3
        assert (made[:10][~attack.kept] == 0).all()
        assert (np.abs(np.delete(made, 3)) < 0.05).all()

    def test_is_the_mean_drop_and_seeded(self) -> None:
        features, member = toy(gap=1.0)
        attack = agp.fit(features, member, QUICK)
        threshold = float(np.quantile(attack.score(features), 0.8))  # far from where the attack would put it
        first, again, other = (attack.importance(features, member, threshold, 2, seed=s)[:, 0] for s in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()
        place = int(np.flatnonzero(attack.kept)[0])
        rng, own, drops = np.random.default_rng(0), attack.score(features), []
        for _ in range(2):  # the first feature that acts draws first
            order = rng.permutation(len(member))
            morf = features.morf.copy()
            morf[:, place] = features.morf[order, place]
            scores = attack.score(Features(morf, features.lerf, features.loss, features.predicted, 3))
            drops.append(
                balanced_accuracy(own[member], own[~member], threshold)
                - balanced_accuracy(scores[member], scores[~member], threshold)
            )
        assert first[place] == pytest.approx(np.mean(drops))

    def test_needs_both_groups(self) -> None:
        features, member = toy()
        attack = agp.fit(features, member, QUICK)
        with pytest.raises(ValueError, match="at least 1 members and non-members"):
            attack.importance(features, np.ones_like(member), 0.0)


class TestUntouched:
    """The first confidence of either path is the untouched image's: one feature, with no explanation in it."""

    def test_is_one_feature_of_both_paths(self) -> None:
        features, member = toy(gap=1.0)
        features.lerf[:, 0] = features.morf[:, 0]
        attack = agp.fit(features, member, QUICK)
        names = list(attack.features)
        assert names[0] == "untouched" and len(names) == 11 and not {"morf_0", "lerf_0"} & set(names)
        one = rows(features, np.array([7]))
        mean = np.log(features.trajectory()[:, 0].mean())
        morf, lerf = one.morf.copy(), one.lerf.copy()
        morf[0, 0] = lerf[0, 0] = mean
        without = attack.score(Features(morf, lerf, one.loss, one.predicted, 3))[0]
        assert attack.contributions(one)[0, 0] == pytest.approx(attack.score(one)[0] - without, abs=1e-9)

    def test_is_shuffled_in_both_at_once(self) -> None:
        told, member = toy(300, 300)
        features = hiding(told, 0)
        features.lerf[:, 0] = features.morf[:, 0]
        attack = agp.fit(features, member, QUICK)
        made = attack.importance(features, member, 0.0)[:, 0]
        assert made[0] > 0.3 and (np.abs(made[1:]) < 0.05).all()  # alone, neither could be missed


class TestBestFeatures:
    def test_chooses_the_set_that_tells_most(self) -> None:
        told, member = toy(gap=2.0)
        noise, _ = null(240)
        best, areas = agp.best_features({0.0: noise, 0.1: told, 1.0: hiding(noise, 2)}, member, QUICK)
        assert best == 0.1
        assert list(areas) == [0.0, 0.1, 1.0]
        assert areas[0.1] > 0.8 > areas[0.0]

    def test_of_equals_the_first(self) -> None:
        features, member = toy(40, 40)
        best, areas = agp.best_features({0.1: features, 0.01: features}, member, QUICK)
        assert best == 0.1
        assert areas[0.1] == areas[0.01]

    def test_validation_rows_are_not_learnt_from(self) -> None:
        """One-hot classes that name rows tell nothing unless they were seen."""
        rng = np.random.default_rng(0)
        member, flat = np.arange(100) % 2 == 0, np.full((100, 3), -1.0)
        _, areas = agp.best_features(
            {0.0: Features(flat, flat, np.ones(100), rng.permutation(100), 100)}, member, Audit(hidden=(64,))
        )
        assert areas[0.0] < 0.65

    def test_refusals(self) -> None:
        features, member = toy(4, 40)
        with pytest.raises(ValueError, match="no feature sets"):
            agp.best_features({}, member, QUICK)
        with pytest.raises(ValueError, match="5 folds need at least 5 members and non-members, got 4"):
            agp.best_features({0.0: features}, member, QUICK)


class TestCrossFitted:
    def test_scores_every_row_by_an_attack_that_did_not_see_it(self) -> None:
        features, member = toy()
        made = agp.cross_fitted(features, member, QUICK)
        np.testing.assert_array_equal(made, agp.audit(features, member, QUICK).crossfit)


class TestLossMlp:
    def test_sees_loss_and_class_and_is_silent_about_trajectories(self) -> None:
        rng = np.random.default_rng(0)
        member, predicted = np.arange(600) % 2 == 0, rng.integers(0, 3, 600)
        loss = np.where(member, 0.1, 1.0) * rng.exponential(size=600)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attack = agp.fit(loss_mlp.features(loss[:400], predicted[:400], 3), member[:400], QUICK)
        made = attack.score(loss_mlp.features(loss[400:], predicted[400:], 3))
        assert list(attack.features) == ["loss", "predicted"] and attack.kept.size == 0
        assert auc(made[member[400:]], made[~member[400:]]) > 0.8

    def test_is_agp_whose_filter_keeps_nothing(self) -> None:
        features, member = null(200)
        flat = np.full_like(features.morf, -1.0)
        with pytest.warns(UserWarning, match="loss and class only"):
            full = agp.fit(Features(flat, flat, features.loss, features.predicted, 3), member, QUICK)
        alone = agp.fit(loss_mlp.features(features.loss, features.predicted, 3), member, QUICK)
        np.testing.assert_array_equal(
            full.score(Features(flat, flat, features.loss, features.predicted, 3)),
            alone.score(loss_mlp.features(features.loss, features.predicted, 3)),
        )


class TestWholeGroups:
    """Tracks: twenty near-identical frames each, members' tracks no different from the others."""

    @staticmethod
    def tracks(count: int = 40, frames: int = 20) -> tuple[Features, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        groups = np.repeat(np.arange(count), frames)
        own = -rng.exponential(1.0, (count, 10))[groups] - 0.01 * rng.random((len(groups), 10))
        features = Features(own[:, :5], own[:, 5:], rng.exponential(size=len(groups)), groups % 3, 3)
        return features, groups % 2 == 0, groups

    def test_a_frame_does_not_give_its_track_away(self) -> None:
        features, member, groups = self.tracks()
        config = Audit(hidden=(64,), welch=0.9)
        apart = agp.audit(replace(features, groups=groups), member, config)
        mixed = agp.audit(features, member, config)
        assert auc(mixed.crossfit[member], mixed.crossfit[~member]) > 0.8  # that knowledge is worth so much
        assert auc(apart.crossfit[member], apart.crossfit[~member]) < 0.65

    def test_no_group_is_learnt_from_and_scored(self) -> None:
        features, member, groups = self.tracks()
        scores = agp.audit(replace(features, groups=groups), member, QUICK)
        for group in np.unique(groups):
            assert len(set(scores.fold[groups == group])) == 1
            assert len(set(np.isnan(scores.holdout[groups == group]))) == 1
        assert 0.1 < (~np.isnan(scores.holdout)).mean() < 0.3
        taken = replace(features, groups=groups).take(np.arange(0, len(groups), 2))
        assert taken.groups is not None
        np.testing.assert_array_equal(taken.groups, groups[::2])

    def test_too_few_groups_are_refused(self) -> None:
        features, member, groups = self.tracks(count=8)
        with pytest.raises(ValueError, match=r"5 folds of whole groups need as many groups, .* got 4"):
            agp.audit(replace(features, groups=groups), member, QUICK)
