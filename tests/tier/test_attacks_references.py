"""LiRA and RMIA against loops over the formulas of their papers."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from tier.attacks import lira, rmia


def world(n: int = 60, references: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Membership, log odds of the target and of the references, who trained on what; training raises confidence."""
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(n) < n // 2)
    half = np.stack([rng.permutation(np.arange(n) < n // 2) for _ in range(references // 2)])
    inside = np.concatenate([half, ~half])  # every image in as many references as out
    hard = rng.normal(1.0, 1.5, n)  # of each image
    logit = hard + 2.0 * np.vstack([member, inside]) + rng.normal(0, 0.8, (references + 1, n))
    return member, logit[0], logit[1:], inside


def slow_moments(values: list[list[float]], sd: str) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per image; `sd` "fixed": from squares within all images together."""
    means = [sum(v) / len(v) for v in values]
    squares = [sum((x - m) ** 2 for x in v) for v, m in zip(values, means, strict=True)]
    if sd == "fixed":
        shared = math.sqrt(sum(squares) / sum(len(v) - 1 for v in values))
        return means, [shared] * len(values)
    return means, [math.sqrt(s / (len(v) - 1)) for s, v in zip(squares, values, strict=True)]


class TestLira:
    def test_offline_against_the_paper(self) -> None:
        _, target, references, inside = world()
        n = len(target)
        outs = [[references[r, i] for r in range(len(references)) if not inside[r, i]] for i in range(n)]
        means, sds = slow_moments(outs, "fixed")
        made = lira.offline(target, references, inside)
        for i in range(n):
            below = norm.cdf(target[i], means[i], sds[i])  # 1 - Pr[Z > phi], the paper's score
            assert norm.cdf(made[i]) == pytest.approx(below, rel=1e-6)

    @pytest.mark.parametrize("variance", ["fixed", "per_image"])
    def test_online_against_the_paper(self, variance: Any) -> None:
        _, target, references, inside = world(references=30)
        n = len(target)
        sides = []
        for which in (True, False):
            held = [[references[r, i] for r in range(30) if inside[r, i] == which] for i in range(n)]
            sides.append(slow_moments(held, variance))
        made = lira.online(target, references, inside, variance, enough=2)
        for i in range(n):
            logs = [norm.logpdf(target[i], means[i], sds[i]) for means, sds in sides]
            assert made[i] == pytest.approx(logs[0] - logs[1], rel=1e-6, abs=1e-9)

    def test_an_image_with_too_few_references_shares_the_variance(self) -> None:
        _, target, references, inside = world(references=16)
        fixed, own = (lira.online(target, references, inside, v, enough=100) for v in ("fixed", "per_image"))
        np.testing.assert_array_equal(fixed, own)

    def test_below_two_references_there_is_no_score(self) -> None:
        _, target, references, inside = world()
        inside[:, 0], inside[:, 1] = True, False
        inside[0, 2], inside[1:, 2] = False, True
        assert np.flatnonzero(np.isnan(lira.offline(target, references, inside))).tolist() == [0, 2]
        assert np.flatnonzero(np.isnan(lira.online(target, references, inside))).tolist() == [0, 1, 2]
        assert np.flatnonzero(np.isnan(lira.exposure(references, inside))).tolist() == [0, 1, 2]
        inside[:] = True
        assert np.isnan(lira.offline(target, references, inside)).all()

    def test_certain_images_do_not_tie(self) -> None:
        _, _, references, inside = world()
        target = np.linspace(30, 60, 60)  # log p would round to 0 from 37 on
        same = np.broadcast_to(references[:, :1], references.shape), np.broadcast_to(inside[:, :1], inside.shape)
        for made in (lira.offline(target, *same), lira.online(target, *same)):
            assert (np.diff(made) > 0).all() or (np.diff(made) < 0).all()

    def test_references_that_all_agree_give_finite_scores(self) -> None:
        _, target, references, inside = world()
        references[:] = -0.5
        for made in (lira.offline(target, references, inside), lira.online(target, references, inside)):
            assert np.isfinite(made).all()

    def test_exposure_is_what_training_does(self) -> None:
        rng = np.random.default_rng(0)
        inside = np.stack([rng.permutation(np.arange(40) < 20) for _ in range(60)])
        effect = np.linspace(0, 5, 40)
        logit = rng.normal(0, 2, 40) + effect * inside + rng.normal(0, 0.5, inside.shape)
        made = lira.exposure(logit, inside)
        assert spearmanr(made, effect).statistic > 0.98

    def test_bad_shapes_and_values_are_refused(self) -> None:
        _, target, references, inside = world()
        for bad in (inside[:, :-1], inside.astype(float)):
            with pytest.raises(ValueError, match="flags of who trained on what"):
                lira.offline(target, references, bad)
        with pytest.raises(ValueError, match="each reference"):
            lira.online(target[:-1], references, inside)
        for value in (np.nan, np.inf, -np.inf):
            broken = target.copy()
            broken[3] = value
            with pytest.raises(ValueError, match="the target's log odds must be finite"):
                lira.offline(broken, references, inside)


def slow_rmia(
    target: np.ndarray, references: np.ndarray, inside: np.ndarray, z: np.ndarray, z_references: np.ndarray,
    mode: str, gamma: float, a: float,
) -> list[float]:  # fmt: skip
    """The share of z with (Pr(x|theta) / Pr(x)) / (Pr(z|theta) / Pr(z)) >= gamma, in plain probabilities."""

    def p(phi: float) -> float:
        return math.exp(phi) / (1 + math.exp(phi))

    def linear(values: list[float]) -> float:
        return ((1 + a) * sum(values) / len(values) + (1 - a)) / 2

    ratio_z = [p(z[j]) / linear([p(v) for v in z_references[:, j]]) for j in range(len(z))]
    shares = []
    for i in range(len(target)):
        out = [p(v) for v, flag in zip(references[:, i], inside[:, i], strict=True) if not flag]
        into = [p(v) for v, flag in zip(references[:, i], inside[:, i], strict=True) if flag]
        mean = linear(out) if mode == "offline" else (sum(out) / len(out) + sum(into) / len(into)) / 2
        ratio = p(target[i]) / mean
        shares.append(sum(ratio / other >= gamma for other in ratio_z) / len(z))
    return shares


class TestRmia:
    @pytest.mark.parametrize("mode", ["offline", "online"])
    @pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (2.0, 0.3), (1.2, 0.0), (1.0, 1.0)])
    def test_against_the_paper(self, mode: Any, gamma: float, a: float) -> None:
        _, target, references, inside = world()
        _, z, z_references, _ = world(25, seed=5)
        made = rmia.score(target, references, inside, z, z_references, mode, gamma, a)
        expected = np.array(slow_rmia(target, references, inside, z, z_references, mode, gamma, a))
        assert (np.floor(made * 26 + 1e-12) / 25).tolist() == pytest.approx(expected.tolist())

    @pytest.mark.parametrize("mode", ["offline", "online"])
    def test_ties_are_broken_by_the_gain_in_log_odds_and_nothing_else_changes(self, mode: Any) -> None:
        _, target, references, inside = world(200)
        _, z, z_references, _ = world(5, seed=5)
        made = rmia.score(target, references, inside, z, z_references, mode)
        shares = np.array(slow_rmia(target, references, inside, z, z_references, mode, 2.0, 0.3))
        p = 1 / (1 + np.exp(-references))
        into, out = (np.where(side, p, 0).sum(0) / side.sum(0) for side in (inside, ~inside))
        mean = (into + out) / 2 if mode == "online" else (1.3 * out + 0.7) / 2
        gain = target - np.log(mean / (1 - mean))
        assert len(np.unique(made)) == 200
        assert (np.argsort(made) == np.lexsort([gain, shares])).all()
        assert (made > 0).all() and (made < 1).all()

    @pytest.mark.parametrize("mode", ["offline", "online"])
    def test_certain_images_do_not_tie(self, mode: Any) -> None:
        """Of a p that rounds to 1 the gain says nothing more: it is 1 / Pr(x)."""
        _, _, references, inside = world()
        _, z, z_references, _ = world(9, seed=5)
        target = np.linspace(40, 50, 60)
        same = np.broadcast_to(references[:, :1], references.shape), np.broadcast_to(inside[:, :1], inside.shape)
        assert (np.diff(rmia.score(target, *same, z, z_references, mode)) > 0).all()

    def test_pr_x_and_its_complement_keep_their_digits(self) -> None:
        inside = np.zeros((3, 2), bool)
        phi = np.array([[-60.0, 60.0], [-61.0, 61.0], [-62.0, 62.0]])
        log_p, log_rest = rmia.log_marginal(phi, inside, "offline", 1.0)
        tiny = math.log(sum(math.exp(-v) for v in (60, 61, 62)) / 3)
        np.testing.assert_allclose([log_p[0], log_rest[1]], [tiny, tiny])
        np.testing.assert_allclose([log_p[1], log_rest[0]], [0, 0], atol=1e-12)

    def test_below_two_references_there_is_no_score(self) -> None:
        _, target, references, inside = world()
        _, z, z_references, _ = world(9, seed=5)
        inside[:, 0], inside[:, 1] = True, False
        offline, online = (rmia.score(target, references, inside, z, z_references, m) for m in ("offline", "online"))
        assert np.flatnonzero(np.isnan(offline)).tolist() == [0]
        assert np.flatnonzero(np.isnan(online)).tolist() == [0, 1]

    def test_bad_settings_are_refused(self) -> None:
        _, target, references, inside = world()
        _, z, z_references, _ = world(9, seed=5)
        for settings in ({"gamma": 0.0}, {"a": 1.5}, {"a": -0.1}):
            with pytest.raises(ValueError, match="gamma is above 0"):
                rmia.score(target, references, inside, z, z_references, **settings)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="0 images"):
            rmia.score(target, references, inside, z[:0], z_references[:, :0])
        with pytest.raises(ValueError, match="3 of 12 references"):
            rmia.score(target, references, inside, z, z_references[:3])
