"""The registry and the attacks that are one formula per image, against slow versions of their papers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import log_softmax

from tier import attacks
from tier.attacks import attribution, input_gradient, modified_entropy

SPEC_0 = [
    "agp", "gap", "loss", "modified_entropy", "attribution_variance", "attribution_l1", "attribution_l2",
    "input_gradient_norm", "loss_mlp", "lira_offline", "lira_online", "rmia",
]  # fmt: skip


class TestRegistry:
    def test_has_the_names_of_the_specification(self) -> None:
        assert list(attacks.ATTACKS) == SPEC_0
        for name in SPEC_0:
            assert attacks.entry(name).needs

    def test_refuses_unknown_names_with_the_valid_ones(self) -> None:
        with pytest.raises(ValueError, match=r"no attack named 'lira'; there are agp, gap, .*, lira_online, rmia"):
            attacks.entry("lira")


class TestOriented:
    def test_finds_the_direction_of_members(self) -> None:
        member = np.array([True, True, False, False])
        assert attacks.oriented([3.0, 2.0, 1.0, 0.0], member) == 1
        assert attacks.oriented([0.0, 1.0, 2.0, 3.0], member) == -1
        assert attacks.oriented([1.0, 1.0, 1.0, 1.0], member) == 1
        assert attacks.oriented([np.nan, 1.0, 2.0, np.nan], member) == -1

    def test_needs_both_groups(self) -> None:
        with pytest.raises(ValueError, match="empty"):
            attacks.oriented([1.0, 2.0], [True, True])
        with pytest.raises(ValueError, match="empty"):
            attacks.oriented([1.0, np.nan], [True, False])


def slow_modified_entropy(p: list[float], label: int) -> float:
    """Song and Mittal's definition, term by term."""
    total = -(1 - p[label]) * math.log(p[label])
    for index, value in enumerate(p):
        if index != label:
            total -= value * math.log(1 - value)
    return total


class TestModifiedEntropy:
    def test_against_the_definition(self) -> None:
        rng = np.random.default_rng(0)
        log_p = log_softmax(rng.normal(0, 2, (200, 7)), axis=1)
        labels = rng.integers(0, 7, 200)
        expected = [slow_modified_entropy(list(np.exp(row)), int(y)) for row, y in zip(log_p, labels, strict=True)]
        np.testing.assert_allclose(np.exp(-modified_entropy.score(log_p, labels)), expected, rtol=1e-9)

    def test_two_classes(self) -> None:
        log_p = np.log([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
        for label in (0, 1):
            expected = [slow_modified_entropy(list(np.exp(row)), label) for row in log_p]
            made = modified_entropy.score(log_p, np.full(3, label))
            np.testing.assert_allclose(np.exp(-made), expected, rtol=1e-12)

    @pytest.mark.parametrize("gap", [5.0, 20.0, 40.0, 100.0, 800.0])
    def test_certain_predictions_keep_their_order(self, gap: float) -> None:
        """With p_y = 1 - q, q -> 0 and equal others: Mentr -> q^2 + q^2 / (K - 1), told apart long after p_y is 1."""
        logits = np.zeros((2, 5))
        logits[0, 2], logits[1, 2] = gap, gap + 0.01
        made = modified_entropy.score(log_softmax(logits, axis=1), np.array([2, 2]))
        log_q = math.log(4) - gap  # to first order in q
        if gap >= 40:
            assert made[0] == pytest.approx(-(2 * log_q + math.log(1.25)), rel=1e-9)
        assert made[1] - made[0] == pytest.approx(0.02, rel=0.05)

    def test_certain_and_wrong_is_lowest(self) -> None:
        logits = np.array([[60.0, 0.0, 0.0], [60.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        right, wrong, open_ = modified_entropy.score(log_softmax(logits, axis=1), np.array([0, 1, 0]))
        assert right > open_ > wrong
        q = Fraction(1)  # p_1 = p_2 = e^-60 / (1 + 2 e^-60); Mentr = 60 + (60 - log 2) to first order
        assert wrong == pytest.approx(-math.log(float(q) * 60 + 60 - math.log(2)), rel=1e-9)

    def test_needs_two_classes(self) -> None:
        with pytest.raises(ValueError, match="at least two classes"):
            modified_entropy.score(np.zeros((3, 1)), np.zeros(3, np.int64))
        with pytest.raises(ValueError, match="at least two classes"):
            modified_entropy.score(np.zeros(3), np.zeros(3, np.int64))


class TestAttribution:
    def test_against_loops(self) -> None:
        maps = np.random.default_rng(0).normal(0.3, 1, (5, 3, 4)).astype(np.float32)
        for index, one in enumerate(maps):
            pixels = [float(value) for value in one.ravel()]
            mean = sum(pixels) / 12
            assert attribution.statistic("variance", maps)[index] == pytest.approx(
                sum((v - mean) ** 2 for v in pixels) / 12
            )
            assert attribution.statistic("l1", maps)[index] == pytest.approx(sum(abs(v) for v in pixels))
            assert attribution.statistic("l2", maps)[index] == pytest.approx(math.sqrt(sum(v * v for v in pixels)))

    @pytest.mark.parametrize("name", list(attribution.STATISTICS))
    def test_both_signs(self, name: str) -> None:
        maps = np.random.default_rng(1).normal(size=(6, 4, 4))
        np.testing.assert_array_equal(attribution.score(name, maps, 1), -attribution.score(name, maps, -1))
        with pytest.raises(ValueError, match="1 or -1"):
            attribution.score(name, maps, 0)

    @pytest.mark.parametrize("name", list(attribution.STATISTICS))
    def test_a_map_with_nan_gives_nan_alone(self, name: str) -> None:
        maps = np.ones((3, 2, 2))
        maps[1, 0, 0] = np.nan
        assert np.isnan(attribution.statistic(name, maps)).tolist() == [False, True, False]

    def test_refuses_what_is_no_stack_of_maps(self) -> None:
        with pytest.raises(ValueError, match="there are variance, l1, l2"):
            attribution.statistic("l3", np.ones((1, 2, 2)))
        with pytest.raises(ValueError, match=r"are \(N, H, W\)"):
            attribution.statistic("l1", np.ones((2, 2)))


class TestInputGradient:
    def test_a_flat_loss_points_to_a_member_and_tiny_norms_differ(self) -> None:
        made = input_gradient.score([1e3, 1.0, 1e-20, 1e-200, 0.0])
        assert (np.diff(made) > 0).all()
        assert np.isfinite(made).all()
        np.testing.assert_array_equal(input_gradient.score([2.0, 3.0], -1), -input_gradient.score([2.0, 3.0]))

    def test_bad_norms(self) -> None:
        assert np.isnan(input_gradient.score([np.nan, 1.0])).tolist() == [True, False]
        with pytest.raises(ValueError, match="negative"):
            input_gradient.score([-1.0])
        with pytest.raises(ValueError, match="1 or -1"):
            input_gradient.score([1.0], 2)
