"""Figures of merit against scikit-learn and against counting."""

import itertools
import json
import time

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve, top_k_accuracy_score

from tests import clock
from tier import metrics
from tier.metrics import auc, balanced_accuracy, best_threshold, report, top_k_accuracy
from tier.stats import gap_interval, seed_interval

Run = tuple[np.ndarray, np.ndarray, float | None]


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
    cases: list[tuple[list[float], list[float]]] = [([1.0], []), ([], [1.0]), ([], [])]
    for groups in cases:
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


class TestRoc:
    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize(("n", "m"), [(40, 60), (1, 5), (1, 1)])
    def test_against_scikit_learn(self, n: int, m: int, ties: bool) -> None:
        members, nonmembers = _scores(n, m, ties)
        fpr, tpr, thresholds = metrics.roc(members, nonmembers)
        truth, scores = [1] * n + [0] * m, np.concatenate([members, nonmembers])
        expected_fpr, expected_tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
        np.testing.assert_allclose(fpr, expected_fpr)
        np.testing.assert_allclose(tpr, expected_tpr)
        for point in zip(fpr, tpr, thresholds, strict=True):  # thresholds mean what the rates say
            assert point[:2] == pytest.approx(((nonmembers > point[2]).mean(), (members > point[2]).mean()))
        assert auc(members, nonmembers) == pytest.approx(np.trapezoid(tpr, fpr))

    @pytest.mark.parametrize(
        "figure",
        [
            metrics.roc, best_threshold, metrics.cross_fitted_balanced_accuracy, metrics.auc_interval,
            lambda a, b: metrics.tpr_at_fpr(a, b, 0.1), lambda a, b: metrics.tnr_at_fnr(a, b, 0.1),
            lambda a, b: metrics.balanced_accuracy_interval(a, b, 0.0),
        ],
    )  # fmt: skip
    def test_nan_and_empty_groups_are_refused(self, figure: object) -> None:
        for groups, reason in ((([np.nan, 1.0], [0.0, 1.0]), "NaN"), (([1.0, 2.0], []), "empty")):
            with pytest.raises(ValueError, match=reason):
                figure(*groups)  # type: ignore[operator]


class TestThreshold:
    @pytest.mark.parametrize("ties", [False, True])
    def test_no_threshold_is_better(self, ties: bool) -> None:
        members, nonmembers = _scores(40, 60, ties)
        made = best_threshold(members, nonmembers)
        tried = np.concatenate([members, nonmembers, [-10.0, 10.0]])
        best = max(balanced_accuracy(members, nonmembers, threshold) for threshold in tried)
        assert balanced_accuracy(members, nonmembers, made) == pytest.approx(best)

    def test_lies_between_the_scores_it_parts(self) -> None:
        assert best_threshold([4.0, 5.0], [1.0, 2.0]) == 3.0
        close = np.nextafter(1.0, 2.0)
        assert balanced_accuracy([close], [1.0], best_threshold([close], [1.0])) == 1.0

    def test_is_finite_whatever_the_scores(self) -> None:
        for members, nonmembers in (([1.0, 2.0], [1.0, 3.0]), ([0.0], [1.0]), ([5.0] * 3, [5.0] * 3)):
            assert np.isfinite(best_threshold(members, nonmembers))
        assert balanced_accuracy([5.0] * 3, [5.0] * 3, best_threshold([5.0] * 3, [5.0] * 3)) == 0.5

    @pytest.mark.parametrize(
        ("members", "nonmembers"),
        [([np.inf, np.inf], [-np.inf, -np.inf]), ([np.inf, np.inf], [0.0, 1.0]), ([2.0, 3.0], [-np.inf, -np.inf]),
         ([1e308, np.inf], [-1e308, -np.inf])],
    )  # fmt: skip
    def test_between_infinite_scores_is_finite(self, members: list[float], nonmembers: list[float]) -> None:
        made = best_threshold(members, nonmembers)  # without a warning: inf - inf is not computed
        assert np.isfinite(made) and balanced_accuracy(members, nonmembers, made) == 1.0

    def test_cross_fitting_does_not_profit_from_noise(self) -> None:
        rng = np.random.default_rng(0)
        fitted, crossed = [], []
        for _ in range(40):
            members, nonmembers = rng.normal(size=(2, 40))
            fitted.append(balanced_accuracy(members, nonmembers, best_threshold(members, nonmembers)))
            crossed.append(metrics.cross_fitted_balanced_accuracy(members, nonmembers))
        assert np.mean(fitted) > 0.55
        assert abs(np.mean(crossed) - 0.5) < 0.015

    def test_cross_fitting_finds_what_is_there_and_is_seeded(self) -> None:
        members, nonmembers = np.random.default_rng(1).normal([[7.0], [3.0]], 1.0, (2, 400))
        made = [metrics.cross_fitted_balanced_accuracy(members, nonmembers, seed=s) for s in (0, 0, 1)]
        assert made[0] == made[1]
        assert all(value == pytest.approx(0.977, abs=0.01) for value in made)
        assert metrics.cross_fitted_balanced_accuracy([2.0, 2.0], [1.0, 1.0]) == 1.0
        with pytest.raises(ValueError, match="at least two"):
            metrics.cross_fitted_balanced_accuracy([2.0], [1.0, 1.0])


class TestRates:
    @staticmethod
    def slow(members: np.ndarray, nonmembers: np.ndarray, level: float) -> tuple[int, int]:
        """The most members found over all thresholds that keep within the level, and the false alarms then."""
        best = (0, 0)
        for threshold in [-np.inf, *members, *nonmembers]:
            alarms = sum(1 for score in nonmembers if score > threshold)
            found = sum(1 for score in members if score > threshold)
            if alarms <= level * len(nonmembers) + 1e-9 and (found, -alarms) > (best[0], -best[1]):
                best = (found, alarms)
        return best

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("level", [0.01, 0.02, 0.1, 0.5])
    def test_against_counting(self, level: float, ties: bool) -> None:
        members, nonmembers = _scores(150, 100, ties)
        made = metrics.tpr_at_fpr(members, nonmembers, level)
        found, alarms = self.slow(members, nonmembers, level)
        assert made.refused is None
        assert (made.true_positives, made.value) == (found, found / 150)
        assert made.false_positives is not None and alarms <= made.false_positives <= level * 100
        assert (made.true_positives, made.false_positives) == (
            (members > made.threshold).sum(),
            (nonmembers > made.threshold).sum(),
        )

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("level", [0.01, 0.1])
    def test_true_negatives_against_counting(self, level: float, ties: bool) -> None:
        members, nonmembers = _scores(100, 150, ties)
        made = metrics.tnr_at_fnr(members, nonmembers, level)
        cleared, _ = self.slow(-nonmembers, -members, level)
        assert (made.true_negatives, made.value) == (cleared, cleared / 150)
        assert (made.true_negatives, made.false_negatives) == (
            (nonmembers <= made.threshold).sum(),
            (members <= made.threshold).sum(),
        )

    def test_the_number_of_false_alarms_allowed(self) -> None:
        scores = np.arange(3000.0)
        assert metrics.tpr_at_fpr(scores, scores, 0.001).false_positives == 3
        assert metrics.tpr_at_fpr(scores[:2999], scores[:2999], 0.001).false_positives == 2
        assert metrics.tpr_at_fpr(scores[:1000], scores[:1000], 0.001).false_positives == 1

    def test_ties_cost_the_attacker(self) -> None:
        nonmembers = np.append(np.zeros(95), [1.0] * 5)  # one percent is one alarm, but five come together
        made = metrics.tpr_at_fpr([1.0, 1.0, 2.0], nonmembers, 0.01)
        assert (made.true_positives, made.false_positives) == (1, 0)

    @pytest.mark.parametrize(("count", "level"), [(999, 0.001), (99, 0.01), (1, 0.5)])
    def test_what_cannot_be_resolved_is_refused(self, count: int, level: float) -> None:
        few, many = np.arange(float(count)), np.arange(5000.0)
        made = metrics.tpr_at_fpr(many, few, level)
        assert made[:4] == (None, None, None, None)
        assert made.refused is not None and "non-members; there are" in made.refused
        assert metrics.tpr_at_fpr(few, many, level).refused is None
        refused = metrics.tnr_at_fnr(few, many, level).refused
        assert refused is not None and " members; there are" in refused
        assert metrics.tnr_at_fnr(many, few, level).refused is None

    @pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 2.0])
    def test_a_level_is_a_rate(self, level: float) -> None:
        with pytest.raises(ValueError, match="between 0 and 1"):
            metrics.tpr_at_fpr([1.0], [1.0], level)

    @pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 50), (3, 50), (50, 50), (1, 1000), (499, 1000)])
    def test_clopper_pearson_against_scipy(self, k: int, n: int) -> None:
        for confidence in (0.95, 0.9):
            expected = binomtest(k, n).proportion_ci(confidence, method="exact")
            made = metrics.clopper_pearson(k, n, confidence)
            assert made == pytest.approx((expected.low, expected.high), abs=1e-9)

    @pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 5), (6, 5)])
    def test_impossible_counts_are_refused(self, k: int, n: int) -> None:
        with pytest.raises(ValueError, match="successes"):
            metrics.clopper_pearson(k, n)


class TestBootstrap:
    @pytest.mark.parametrize("ties", [False, True])
    def test_against_resampling_images(self, ties: bool) -> None:
        members, nonmembers = _scores(120, 90, ties)
        groups = {"members": members, "nonmembers": nonmembers}
        for made, statistic in (
            (metrics.auc_interval(members, nonmembers, 4000), auc),
            (metrics.balanced_accuracy_interval(members, nonmembers, 0.0, 4000), balanced_accuracy),
        ):
            expected = seed_interval([groups], lambda g, f=statistic: f(**g), resamples=4000)  # type: ignore[misc]
            assert made == pytest.approx(expected, abs=0.012)

    def test_does_not_depend_on_the_piece_size_much_and_is_seeded(self) -> None:
        members, nonmembers = _scores(50, 60, ties=True)
        whole, again, pieces = (metrics.auc_interval(members, nonmembers, cells=c) for c in (10**6, 10**6, 100))
        assert whole == again
        assert pieces == pytest.approx(whole, abs=0.02)

    @pytest.mark.timed
    def test_is_fast(self) -> None:
        members, nonmembers = _scores(1000, 1000, ties=False)

        def both() -> None:
            metrics.auc_interval(members, nonmembers)
            metrics.balanced_accuracy_interval(members, nonmembers, 0.0)

        clock.within(1.0, lambda: clock.took(both, time.process_time))


class TestReport:
    KEYS = frozenset({
        "balanced_accuracy", "balanced_accuracy_calibrated", "auc", "interval", "auc_interval", "tpr_at_0.001",
        "tpr_interval_at_0.001", "counts_at_0.001", "tpr_at_0.01", "tpr_interval_at_0.01", "counts_at_0.01",
        "tnr_at_0.001", "tnr_interval_at_0.001", "tnr_counts_at_0.001", "threshold", "members", "nonmembers", "refused",
    })  # fmt: skip

    def test_holds_every_figure(self) -> None:
        members, nonmembers = _scores(1200, 1500, ties=False)
        made = report(members, nonmembers, 0.2)
        assert set(made) == self.KEYS
        assert json.loads(json.dumps(made, allow_nan=False)) == made
        assert made["refused"] == {}
        assert made["auc"] == auc(members, nonmembers)
        assert made["balanced_accuracy"] == balanced_accuracy(members, nonmembers, 0.2)
        assert made["interval"][0] < made["balanced_accuracy"] < made["interval"][1]
        assert made["auc_interval"][0] < made["auc"] < made["auc_interval"][1]
        for name, allowed in (("0.01", 15), ("0.001", 1)):
            counts = made[f"counts_at_{name}"]
            threshold = np.sort(nonmembers)[-1 - allowed]
            assert counts == {"true_positives": int((members > threshold).sum()), "false_positives": allowed}
            assert made[f"tpr_at_{name}"] == counts["true_positives"] / 1200
            exact = binomtest(counts["true_positives"], 1200).proportion_ci(method="exact")
            assert made[f"tpr_interval_at_{name}"] == pytest.approx([exact.low, exact.high])
        counts = made["tnr_counts_at_0.001"]
        cleared = int((nonmembers < np.sort(members)[1]).sum())
        assert counts == {"true_negatives": cleared, "false_negatives": 1}
        assert made["tnr_at_0.001"] == cleared / 1500
        exact = binomtest(cleared, 1500).proportion_ci(method="exact")
        assert made["tnr_interval_at_0.001"] == pytest.approx([exact.low, exact.high])
        assert (made["members"], made["nonmembers"], made["threshold"]) == (1200, 1500, 0.2)

    @pytest.mark.parametrize("groups", [([1.0, 2.0], []), ([], [1.0]), ([], []), ([np.nan], [1.0, 2.0])])
    def test_one_membership_class_is_undefined(self, groups: tuple[list[float], list[float]]) -> None:
        made = report(*groups, threshold=0.0)
        assert set(made) == self.KEYS
        assert all(made[name] is None for name in metrics.FIGURES)
        assert all(made["refused"][name].startswith("undefined") for name in metrics.FIGURES)
        json.dumps(made, allow_nan=False)

    def test_constant_scores_tell_nothing(self) -> None:
        for threshold in (-1.0, 3.0, 4.0):
            made = report([3.0] * 1000, [3.0] * 1000, threshold)
            assert [made[n] for n in ("auc", "balanced_accuracy", "balanced_accuracy_calibrated")] == [0.5] * 3
            assert (made["tpr_at_0.001"], made["tpr_at_0.01"], made["tnr_at_0.001"]) == (0.0, 0.0, 0.0)

    def test_missing_scores_are_left_out_and_counted(self) -> None:
        members, nonmembers = _scores(300, 200, ties=False)
        made = report(np.append(members, [np.nan] * 3), np.append(np.nan, nonmembers), 0.0)
        expected = report(members, nonmembers, 0.0)
        assert made["refused"].pop("scores") == "4 of 504 scores are missing and left out"
        assert made == expected

    def test_few_images_have_their_rates_refused(self) -> None:
        members, nonmembers = _scores(1000, 999, ties=False)
        made = report(members, nonmembers, 0.0)
        assert made["tpr_at_0.001"] is None
        reason = "a rate of 0.001 needs at least 1,000 non-members; there are 999"
        assert made["refused"] == dict.fromkeys(("tpr_at_0.001", "tpr_interval_at_0.001", "counts_at_0.001"), reason)
        small = report(members[:50], nonmembers[:50], 0.0)
        unresolved = {name for rate in metrics.RATES for name in (rate.value, rate.interval, rate.counts)}
        assert len(unresolved) == 9
        assert all(small[name] is None for name in unresolved)
        assert set(small["refused"]) == unresolved
        single = report([1.0], [0.0], 0.5)
        assert single["auc"] == 1.0
        assert single["balanced_accuracy_calibrated"] is None and "balanced_accuracy_calibrated" in single["refused"]

    @pytest.mark.parametrize("threshold", [None, float("nan")])
    def test_without_a_threshold_nothing_is_transferred(self, threshold: float | None) -> None:
        made = report([1.0, 2.0], [0.0, 1.0], threshold)
        assert made["balanced_accuracy"] is None and made["interval"] is None and made["threshold"] is None
        assert made["refused"]["balanced_accuracy"] == "no threshold was transferred"
        json.dumps(made, allow_nan=False)

    def test_intervals_cover_the_truth(self) -> None:
        """For unit normals a half apart the AUC is Phi(0.5 / sqrt 2) = 0.638, balanced accuracy Phi(1/4) = 0.599."""
        rng, inside = np.random.default_rng(0), np.zeros(2)
        for _ in range(200):
            members, nonmembers = rng.normal(0.5, 1, 100), rng.normal(0, 1, 100)
            low, high = metrics.auc_interval(members, nonmembers)
            below, above = metrics.balanced_accuracy_interval(members, nonmembers, 0.25)
            inside += [low <= 0.6382 <= high, below <= 0.5987 <= above]
        assert (inside >= 180).all() and (inside <= 198).all()


class TestReportOfSeeds:
    """Models of several seeds, attacked over the same images."""

    @staticmethod
    def runs(thresholds: tuple[float | None, ...] = (0.0, 0.1, 0.2)) -> list[Run]:
        rng = np.random.default_rng(0)
        return [(rng.normal(0.3 + 0.3 * i, 1, 1000), rng.normal(0, 1, 1000), t) for i, t in enumerate(thresholds)]

    def test_figures_and_counts_are_means(self) -> None:
        runs = self.runs()
        leaves, made = [report(*run) for run in runs], metrics.report_seeds(runs)
        assert list(made) == [*leaves[0], "seeds"]
        assert json.loads(json.dumps(made, allow_nan=False)) == made
        for name in (
            "auc", "balanced_accuracy", "balanced_accuracy_calibrated", "tpr_at_0.001", "tpr_at_0.01", "tnr_at_0.001"
        ):  # fmt: skip
            assert made[name] == pytest.approx(np.mean([leaf[name] for leaf in leaves]))
        for rate in metrics.RATES:
            right, wrong = made[rate.counts].values()
            assert right == pytest.approx(1000 * made[rate.value]) and wrong == 1000 * rate.level
            low, high = made[rate.interval]
            assert low < made[rate.value] < high
        assert (made["members"], made["nonmembers"], made["threshold"], made["refused"]) == (1000, 1000, None, {})
        assert made["seeds"] == 3

    def test_intervals_resample_seeds_then_the_same_images(self) -> None:
        runs = [(a[:120], b[:120], 0.1) for a, b, _ in self.runs()]
        made = metrics.report_seeds(runs, resamples=2000)
        rng, slow = np.random.default_rng(1), []
        for _ in range(1500):
            inside, outside = rng.integers(120, size=120), rng.integers(120, size=120)
            drawn = [(runs[i][0][inside], runs[i][1][outside]) for i in rng.integers(3, size=3)]
            rates = [metrics.tpr_at_fpr(a, b, 0.01).value for a, b in drawn]
            accuracies = [balanced_accuracy(a, b, 0.1) for a, b in drawn]
            slow.append([np.mean([auc(a, b) for a, b in drawn]), np.mean(accuracies), np.mean(rates)])
        area, accuracy, rate = np.quantile(slow, [0.025, 0.975], axis=0).T
        assert made["auc_interval"] == pytest.approx(list(area), abs=0.015)
        assert made["interval"] == pytest.approx(list(accuracy), abs=0.015)
        assert made["tpr_interval_at_0.01"] == pytest.approx(list(rate), abs=0.025)
        assert made["threshold"] == 0.1

    @pytest.mark.parametrize("shift", [0.3, 9.0])  # where much is found, or everything
    def test_equal_models_are_worth_one(self, shift: float) -> None:
        rng = np.random.default_rng(2)
        run = (rng.normal(shift, 1, 1000), rng.normal(0, 1, 1000), 0.2)
        one, three = report(*run), metrics.report_seeds([run] * 3)
        for name in ("auc_interval", "interval", *(rate.interval for rate in metrics.RATES)):
            (low, high), (least, most) = three[name], one[name]
            assert high - low >= 0.9 * (most - least), name  # pooled they would be 0.58 as wide
        for rate in metrics.RATES:
            (low, high), (least, most) = three[rate.interval], one[rate.interval]
            assert low <= least + 1e-12 and high >= most - 1e-12
        assert three["auc_interval"] == one["auc_interval"]  # the very same resamples

    def test_one_seed_is_its_report(self) -> None:
        run = self.runs()[0]
        assert metrics.report_seeds([run]) == report(*run)

    def test_what_one_seed_refuses_is_refused(self) -> None:
        runs = self.runs(thresholds=(0.0, None))
        short = [(a, b[:500], t) for a, b, t in runs]
        made = metrics.report_seeds(short)
        assert made["balanced_accuracy"] is None and made["refused"]["interval"] == "no threshold was transferred"
        assert made["tpr_at_0.001"] is None and "there are 500" in made["refused"]["tpr_interval_at_0.001"]
        assert made["auc"] is not None and made["tpr_at_0.01"] is not None
        nobody = metrics.report_seeds([runs[0], (np.full(1000, np.nan), runs[0][1], 0.0)])
        assert all(nobody[name] is None for name in metrics.FIGURES)
        with pytest.raises(ValueError, match="no runs"):
            metrics.report_seeds([])
        with pytest.raises(ValueError, match="the same images"):
            metrics.report_seeds([runs[0], short[0]])

    def test_images_without_a_score_from_some_seed_are_not_resampled(self) -> None:
        (a, b, t), other = self.runs()[:2]
        missing = a.copy()
        missing[:400] = np.nan
        made = metrics.report_seeds([(missing, b, t), other])
        assert made["members"] == 600 and "400 of 2000 scores" in made["refused"]["scores"]
        assert made["auc"] == pytest.approx((auc(a[400:], b) + auc(*other[:2])) / 2)
        mirror = other[0].copy()
        mirror[400:] = np.nan
        apart = metrics.report_seeds([(missing, b, t), (mirror, b, t)])
        assert apart["auc_interval"] is None and "no image" in apart["refused"]["auc_interval"]
        json.dumps(apart, allow_nan=False)


class TestSubsets:
    """The most exposed images, and classes."""

    def test_the_vulnerable_tenth_is_the_most_exposed(self) -> None:
        rng = np.random.default_rng(1)
        exposed, member = rng.permutation(200).astype(float), np.arange(200) % 2 == 0
        scores = rng.normal(size=200) + 3 * member * (exposed >= 180)
        made = metrics.vulnerable_decile(scores, member, exposed, 1.5, least=10)
        rows = exposed >= 180
        assert made == report(scores[rows & member], scores[rows & ~member], 1.5)
        assert made["members"] + made["nonmembers"] == 20
        assert made["auc"] > 0.9 > report(scores[member], scores[~member], 1.5)["auc"]

    @pytest.mark.parametrize(("images", "chosen"), [(2000, 250), (2500, 250), (4000, 400), (300, 150), (3, 1)])
    def test_so_many_that_a_rate_of_one_percent_can_be_given(self, images: int, chosen: int) -> None:
        assert metrics.most_exposed(np.random.default_rng(0).normal(size=images)).sum() == chosen

    def test_the_rate_is_given_for_every_seed_of_an_even_split(self) -> None:
        member = np.arange(2000) < 1000
        for seed in range(300):
            exposure = np.random.default_rng(seed).normal(size=2000)
            assert (metrics.most_exposed(exposure) & ~member).sum() >= 100

    def test_membership_does_not_choose(self) -> None:
        exposure, scores = np.random.default_rng(0).normal(size=(2, 2000))
        for share in (0.1, 0.5, 0.9):
            member = np.random.default_rng(5).random(2000) < share
            made = metrics.vulnerable_decile(scores, member, exposure, 0.0)
            assert made["members"] == (member & metrics.most_exposed(exposure)).sum()
            assert made["members"] + made["nonmembers"] == 250

    def test_unknown_exposure_is_not_ranked(self) -> None:
        exposed = np.array([np.nan, 3.0, 2.0, 1.0, np.nan, 0.0])
        made = metrics.vulnerable_decile(np.arange(6.0), np.arange(6) % 2 == 0, exposed, 0.0)
        assert (made["members"], made["nonmembers"]) == (1, 1)  # images 1 and 2
        nobody = metrics.vulnerable_decile(np.arange(6.0), np.arange(6) % 2 == 0, np.full(6, np.nan), 0.0)
        assert (nobody["members"], nobody["nonmembers"], nobody["auc"]) == (0, 0, None)

    def test_lengths_must_agree(self) -> None:
        with pytest.raises(ValueError, match="one value per image"):
            metrics.vulnerable_decile([1.0, 2.0], [True, False], [1.0], 0.0)
        with pytest.raises(ValueError, match="one value per image"):
            metrics.class_leaks([1.0, 2.0], [True, False], [1], 0.0)

    def test_classes_against_a_loop(self) -> None:
        rng = np.random.default_rng(3)
        label, member, scores = rng.integers(4, size=200), np.arange(200) < 100, rng.normal(size=200)
        scores += member * label
        scores[:3] = np.nan
        member[label == 2] = True  # a class without non-members
        made = metrics.class_leaks(scores, member, label, 0.5)
        assert {row["label"] for row in made} == {0, 1, 3}
        assert [row["balanced_accuracy"] for row in made] == sorted(
            (row["balanced_accuracy"] for row in made), reverse=True
        )
        for row in made:
            here = (label == row["label"]) & ~np.isnan(scores)
            a, b = scores[here & member], scores[here & ~member]
            assert row["balanced_accuracy"] == pytest.approx(balanced_accuracy(a, b, 0.5))
            found, alarms = int((a > 0.5).sum()), int((b > 0.5).sum())
            assert (row["true_positives"], row["false_positives"]) == (found, alarms)
            assert (row["members"], row["nonmembers"]) == (len(a), len(b))
            assert row["interval"] == list(gap_interval(found / len(a), alarms / len(b), len(a), len(b)))
        json.dumps(made, allow_nan=False)
        assert metrics.class_leaks(scores, member, label, None) == []
