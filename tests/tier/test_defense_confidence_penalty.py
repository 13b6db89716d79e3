"""The confidence penalty against the sums that Pereyra et al. write down."""

import math
from typing import Any

import pytest
import torch

from tests.tier.toys import images, labels, plain_net
from tests.tier.training_runs import (
    ARCHITECTURES,
    assert_same_weights,
    column,
    differ,
    interrupted,
    of_architecture,
    trained,
)
from tier import defenses
from tier.config import ConfidencePenalty, Defense
from tier.defenses.confidence_penalty import entropy


def penalty(weight: float, **settings: Any) -> Defense:
    return Defense(name="confidence_penalty", confidence_penalty=ConfidencePenalty(weight=weight), **settings)


@pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
def test_against_the_paper(weight: float) -> None:
    """Section 3: the loss is -sum of log p(y | x) - beta H(p(y | x)), here as means over the batch."""
    net, x, y = plain_net(), images(), labels()
    slow_ce, slow_entropy = [], []
    for row, label in zip(net(x).tolist(), y.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        p = [math.exp(z) / total for z in row]
        slow_ce.append(-math.log(p[label]))
        slow_entropy.append(-sum(q * math.log(q) for q in p))
    terms = defenses.build(penalty(weight)).loss(net, x, y, 0)
    assert terms.keys() == {"loss", "ce", "entropy"}
    assert terms["ce"].item() == pytest.approx(sum(slow_ce) / 4, rel=1e-5)
    assert terms["entropy"].item() == pytest.approx(sum(slow_entropy) / 4, rel=1e-5)
    assert terms["loss"].item() == pytest.approx((sum(slow_ce) - weight * sum(slow_entropy)) / 4, rel=1e-4)


def test_its_gradient_is_that_of_the_paper() -> None:
    """Eq. 2: dH / dz_i = p_i (-log p_i - H)."""
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy(logits), logits)
    p = logits.detach().softmax(1)[0]
    h = -float((p * p.log()).sum())
    torch.testing.assert_close(gradient[0], p * (-p.log() - h))


def test_a_certain_prediction_has_no_entropy_and_a_finite_gradient() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy(logits), logits)
    assert entropy(logits).item() == pytest.approx(math.log(3) / 2)
    assert torch.isfinite(gradient).all()


def test_off_is_plain_training() -> None:
    for off in (penalty(0.0), penalty(0.0, base_augmentation="standard")):
        plain = trained(off.plain)
        assert_same_weights(trained(off), plain)
        assert column(trained(off), "loss") == column(plain, "loss")
    assert penalty(0.0).canonical() == Defense()
    assert differ(trained(penalty(0.3)), trained(Defense()))


def test_a_negative_total_is_no_divergence() -> None:
    state = trained(penalty(5.0))
    assert max(column(state, "loss")) < 0 < min(column(state, "entropy"))


@pytest.mark.parametrize("after", [1, 3])
def test_resumes_exactly(after: int) -> None:
    assert_same_weights(interrupted(penalty(0.3), after), trained(penalty(0.3)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: Any) -> None:
    assert len(column(of_architecture(penalty(0.3), architecture), "entropy")) == 2
