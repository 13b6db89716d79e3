"""The registry and the attacks that are one formula per image, against slow versions of their papers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import log_softmax

from tier import attacks
from tier.attacks import attribution, input_gradient, loss, modified_entropy

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
        explanations = np.random.default_rng(0).normal(0.3, 1, (5, 2, 3, 4)).astype(np.float32)
        made = attribution.log_statistics(explanations)
        assert made.keys() == attribution.STATISTICS.keys() == attribution.DEGREES.keys()
        for index, one in enumerate(explanations):
            values = [float(value) for value in one.ravel()]
            mean = sum(values) / 24
            assert made["variance"][index] == pytest.approx(math.log(sum((v - mean) ** 2 for v in values) / 24))
            assert made["l1"][index] == pytest.approx(math.log(sum(abs(v) for v in values)))
            assert made["l2"][index] == pytest.approx(math.log(math.sqrt(sum(v * v for v in values))))

    @pytest.mark.parametrize("name", list(attribution.STATISTICS))
    def test_degrees_say_how_they_grow(self, name: str) -> None:
        explanations = np.random.default_rng(1).normal(size=(6, 4, 4))
        one, three = (attribution.log_statistics(times * explanations)[name] for times in (1, 3))
        np.testing.assert_allclose(three - one, attribution.DEGREES[name] * math.log(3))

    @pytest.mark.parametrize("name", list(attribution.STATISTICS))
    def test_nan_gives_nan_alone_and_a_flat_one_is_finite(self, name: str) -> None:
        maps = np.zeros((3, 2, 2))
        maps[1, 0, 0] = np.nan
        made = attribution.log_statistics(maps)[name]
        assert np.isnan(made).tolist() == [False, True, False]

    def test_refuses_what_is_no_stack(self) -> None:
        with pytest.raises(ValueError, match=r"are \(N, \.\.\.\), one row per image, got shape \(4,\)"):
            attribution.log_statistics(np.ones(4))


class TestInputGradient:
    def test_a_flat_loss_points_to_a_member_and_tiny_norms_differ(self) -> None:
        made = input_gradient.score([7.0, 0.0, -46.0, -460.0, -1e4, np.nan])
        assert (np.diff(made[:-1]) > 0).all()
        assert np.isnan(made).tolist() == [False] * 5 + [True]


class TestCertainPredictions:
    """Two images whose label is ahead by 40 and by 50: both probabilities are 1 in double precision."""

    def test_do_not_tie(self) -> None:
        label = np.array([1, 1, 1])
        log_p = log_softmax(np.array([[0.0, 40.0, -3.0], [0.0, 50.0, -3.0], [0.0, 60.0, -3.0]]), axis=1)
        odds = np.array([40.0, 50.0, 60.0]) - math.log1p(math.exp(-3))
        assert (np.exp(log_p[:, 1]) == 1.0).all()
        for made in (loss.score(np.logaddexp(0.0, -odds)), modified_entropy.score(log_p, label)):
            assert (np.diff(made) > 9).all()
        np.testing.assert_allclose(loss.score(np.logaddexp(0.0, -odds)), odds)
