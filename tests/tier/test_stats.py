"""Tests, corrections and bootstrap intervals against scipy, textbook examples and loops."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tier.stats import cohen_d, compare, difference_bands, holm, mean_interval, seed_interval, seed_mean_interval


def _groups(n: int = 30, m: int = 45) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(0.5, 1.0, n), rng.normal(0.0, 2.0, m)


class TestCompare:
    @pytest.mark.parametrize("equal_variance", [True, False])
    def test_against_scipy_and_the_textbook(self, equal_variance: bool) -> None:
        a, b = _groups()
        made = compare(a, b, equal_variance)
        t = scipy_stats.ttest_ind(a, b, equal_var=equal_variance)
        ks = scipy_stats.ks_2samp(a, b)
        assert made[:5] == pytest.approx((t.statistic, t.df, t.pvalue, ks.statistic, ks.pvalue))
        # by hand: both t statistics, their degrees of freedom, and the largest gap of the distribution functions
        va, vb, n, m = a.var(ddof=1), b.var(ddof=1), len(a), len(b)
        pooled = ((n - 1) * va + (m - 1) * vb) / (n + m - 2)
        error = np.sqrt(pooled * (1 / n + 1 / m)) if equal_variance else np.sqrt(va / n + vb / m)
        welch = (va / n + vb / m) ** 2 / ((va / n) ** 2 / (n - 1) + (vb / m) ** 2 / (m - 1))
        assert made.t == pytest.approx((a.mean() - b.mean()) / error)
        assert made.t_df == pytest.approx(n + m - 2 if equal_variance else welch)
        assert made.t_p == pytest.approx(2 * scipy_stats.t.sf(abs(made.t), made.t_df))
        gaps = [abs((a <= v).mean() - (b <= v).mean()) for v in np.concatenate([a, b])]
        assert made.ks == pytest.approx(max(gaps))
        assert made.cohen_d == pytest.approx((a.mean() - b.mean()) / np.sqrt(pooled))

    def test_the_paper_s_direction_members_first(self) -> None:
        made = compare([3.0, 4.0, 5.0], [0.0, 1.0, 2.0], True)
        assert made.t > 0
        assert made.cohen_d == pytest.approx(3.0)

    @pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 10])
    def test_without_spread_the_t_test_is_undefined(self, n: int) -> None:
        # 0.1 has no exact mean for most n, so its computed variance is not exactly 0
        made = compare([0.1] * n, [0.3] * n, True)
        assert np.isnan([made.t, made.t_df, made.t_p, made.cohen_d]).all()
        assert made.ks == 1.0

    def test_spread_in_one_group_is_enough(self) -> None:
        made = compare([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], False)
        assert made.t == pytest.approx(-2.0 / np.sqrt(1 / 3))
        assert np.isfinite(made).all()

    def test_needs_two_values_per_group(self) -> None:
        with pytest.raises(ValueError, match="got 1 and 3"):
            compare([1.0], [1.0, 2.0, 3.0], True)


def test_cohen_d_of_a_known_case() -> None:
    assert cohen_d(np.array([2.0, 4.0, 6.0]), np.array([1.0, 3.0, 5.0])) == pytest.approx(0.5)


class TestHolm:
    def test_textbook(self) -> None:
        # Holm 1979's procedure on four tests: 4 * .005, 3 * .01, 2 * .03, and .04 raised to its predecessor's value
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])

    def test_against_rejecting_step_by_step(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(20):
            p = rng.uniform(0, 0.2, 7).round(2)
            corrected = holm(list(p))
            for level in (0.01, 0.05, 0.1, 0.5):
                rejected = set()
                for step, index in enumerate(np.argsort(p, kind="stable")):
                    if p[index] * (7 - step) > level:
                        break
                    rejected.add(index)
                assert {i for i, value in enumerate(corrected) if value <= level} == rejected

    def test_nan_stays_and_does_not_count(self) -> None:
        made = holm([float("nan"), 0.04, 0.01, float("nan")])
        assert made[1:3] == pytest.approx([0.04, 0.02])
        assert np.isnan([made[0], made[3]]).all()
        assert np.isnan(holm([float("nan")] * 2)).all()

    def test_never_above_one(self) -> None:
        assert holm([0.9, 0.8, 0.7]) == [1.0, 1.0, 1.0]


class TestMeanInterval:
    def test_against_resampling_rows(self) -> None:
        values = np.random.default_rng(3).exponential(size=(60, 3))
        low, high = mean_interval(values, resamples=4000)
        rng = np.random.default_rng(4)
        means = np.array([values[rng.integers(60, size=60)].mean(0) for _ in range(4000)])
        spread = values.std(0) / np.sqrt(60)
        assert (np.abs(low - np.quantile(means, 0.025, axis=0)) < 0.12 * spread).all()
        assert (np.abs(high - np.quantile(means, 0.975, axis=0)) < 0.12 * spread).all()

    def test_covers_the_mean_as_often_as_it_says(self) -> None:
        values = np.random.default_rng(5).normal(size=(50, 400))  # 400 studies of 50 values, true mean 0
        low, high = mean_interval(values)
        assert 0.90 < ((low <= 0) & (high >= 0)).mean() < 0.97  # slightly below 0.95 at n = 50

    def test_is_seeded_and_a_constant_has_no_width(self) -> None:
        values = np.random.default_rng(6).normal(size=(20, 2))
        values[:, 1] = 0.25
        low, high = mean_interval(values)
        again = mean_interval(values)
        assert (low == again[0]).all()
        assert low[1] == pytest.approx(0.25)
        assert high[1] == pytest.approx(0.25)
        assert (mean_interval(values, seed=1)[0] != low)[0]


class TestDifferenceBands:
    def test_against_loops(self) -> None:
        rng = np.random.default_rng(7)
        a, b = rng.normal(0.4, 1, (50, 2)), rng.normal(0, 1, (70, 2))
        made = difference_bands(a, b, resamples=3000)
        both, boot, null = np.concatenate([a, b]), [], []
        for _ in range(3000):
            boot.append(a[rng.integers(50, size=50)].mean(0) - b[rng.integers(70, size=70)].mean(0))
            order = rng.permutation(120)
            null.append(both[order[:50]].mean(0) - both[order[50:]].mean(0))
        tolerance = 0.12 * np.sqrt(1 / 50 + 1 / 70)
        np.testing.assert_allclose(made["difference"], a.mean(0) - b.mean(0))
        for name, values, share in (("low", boot, 0.025), ("high", boot, 0.975)):
            np.testing.assert_allclose(made[name], np.quantile(values, share, axis=0), atol=tolerance)
        for name, values, share in (("null_low", null, 0.025), ("null_high", null, 0.975)):
            np.testing.assert_allclose(made[name], np.quantile(values, share, axis=0), atol=tolerance)

    def test_a_real_difference_leaves_the_null_band_and_none_stays_inside(self) -> None:
        rng = np.random.default_rng(8)
        base = rng.normal(size=(80, 1))
        apart = difference_bands(base[:40] + 3.0, base[40:])
        assert apart["low"][0] > apart["null_high"][0]
        same = difference_bands(base, base[::-1])
        assert same["null_low"][0] < same["difference"][0] < same["null_high"][0]


class TestSeedInterval:
    @staticmethod
    def _difference(groups: dict[str, np.ndarray]) -> float:
        return float(groups["members"].mean() - groups["nonmembers"].mean())

    def test_one_seed_is_the_bootstrap_over_samples(self) -> None:
        rng = np.random.default_rng(9)
        members, nonmembers = rng.normal(1, 1, 100), rng.normal(0, 1, 150)
        made = seed_interval([{"members": members, "nonmembers": nonmembers}], self._difference, resamples=3000)
        error = np.sqrt(members.var() / 100 + nonmembers.var() / 150)
        centre = members.mean() - nonmembers.mean()
        assert made.low == pytest.approx(centre - 1.96 * error, abs=0.15 * error)
        assert made.high == pytest.approx(centre + 1.96 * error, abs=0.15 * error)

    def test_the_spread_between_seeds_counts(self) -> None:
        seeds = [{"members": np.full(5, float(level)), "nonmembers": np.zeros(4)} for level in (1, 6)]
        # a quarter of the resamples draw the lower seed twice, a quarter the higher
        assert seed_interval(seeds, self._difference) == (1.0, 6.0)
        assert seed_interval(seeds[:1], self._difference) == (1.0, 1.0)

    def test_groups_keep_their_sizes_and_the_seed_decides(self) -> None:
        rng = np.random.default_rng(10)
        seeds = [{"members": rng.normal(size=(7, 2)), "nonmembers": rng.normal(size=(3, 2))} for _ in range(2)]
        shapes = set()

        def statistic(groups: dict[str, np.ndarray]) -> float:
            shapes.add((groups["members"].shape, groups["nonmembers"].shape))
            return self._difference(groups)

        made = seed_interval(seeds, statistic, resamples=50)
        assert shapes == {((7, 2), (3, 2))}
        assert made == seed_interval(seeds, statistic, resamples=50)
        assert made != seed_interval(seeds, statistic, resamples=50, seed=1)


class TestSeedMeanInterval:
    @staticmethod
    def seeds() -> list[np.ndarray]:
        rng = np.random.default_rng(4)
        return [rng.normal(loc, 2.0, (n, 3)) * [1.0, 0.1, 5.0] for loc, n in ((0.0, 40), (1.0, 55), (4.0, 30))]

    @staticmethod
    def slow(columns: list[np.ndarray], resamples: int = 4000) -> tuple[float, float]:
        return seed_interval([{"all": c} for c in columns], lambda g: float(g["all"].mean()), resamples, seed=9)

    def test_each_column_against_seed_interval(self) -> None:
        seeds = self.seeds()
        low, high = seed_mean_interval(seeds, resamples=4000, seed=1)
        for column in range(3):
            expected = self.slow([values[:, column] for values in seeds])
            width = expected[1] - expected[0]
            assert (low[column], high[column]) == pytest.approx(expected, abs=0.06 * width)

    def test_one_seed_resamples_its_images_alone(self) -> None:
        (values, *_) = self.seeds()
        low, high = seed_mean_interval([values], resamples=4000)
        error = values.std(0) / np.sqrt(len(values))
        np.testing.assert_allclose(high - low, 2 * 1.96 * error, rtol=0.1)
        expected = mean_interval(values, resamples=4000)
        np.testing.assert_allclose(low, expected[0], atol=0.1 * error.max())
        np.testing.assert_allclose(high, expected[1], atol=0.1 * error.max())

    def test_missing_values_are_left_out(self) -> None:
        seeds = self.seeds()
        for values in seeds:
            values[::3, 1] = np.nan
        low, high = seed_mean_interval(seeds, resamples=4000, seed=1)
        expected = self.slow([values[np.isfinite(values[:, 1]), 1] for values in seeds])
        assert (low[1], high[1]) == pytest.approx(expected, abs=0.06 * (expected[1] - expected[0]))

    def test_a_seed_and_a_column_without_values(self) -> None:
        first, second, _ = self.seeds()
        first[:, 1] = np.nan
        first[:, 2] = second[:, 2] = np.nan
        low, high = seed_mean_interval([first, second, np.empty((0, 3))], resamples=2000)
        expected = mean_interval(second, resamples=4000)
        assert low[1] == pytest.approx(expected[0][1], abs=0.02) and high[1] == pytest.approx(expected[1][1], abs=0.02)
        assert np.isnan([low[2], high[2]]).all()
        assert np.isfinite([low[0], high[0]]).all()
        assert np.isnan(seed_mean_interval([np.empty((0, 3)), np.full((4, 3), np.nan)])).all()

    def test_a_constant_has_no_width_and_a_seed_is_reproducible(self) -> None:
        constant = np.full((10, 1), 0.25)
        assert [float(v[0]) for v in seed_mean_interval([constant, constant])] == pytest.approx([0.25, 0.25])
        seeds = self.seeds()
        np.testing.assert_array_equal(seed_mean_interval(seeds, seed=3), seed_mean_interval(seeds, seed=3))
        assert (np.stack(seed_mean_interval(seeds, seed=3)) != np.stack(seed_mean_interval(seeds, seed=4))).any()
