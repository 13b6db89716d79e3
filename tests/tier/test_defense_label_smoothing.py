"""Label smoothing against the sum over classes that Szegedy et al. write down."""

import math
from typing import Any

import pytest
import torch
from torch import nn

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
from tier.config import Defense, LabelSmoothing
from tier.defenses.label_smoothing import LabelSmoothingDefense


def smoothing(amount: float, **settings: Any) -> Defense:
    return Defense(name="label_smoothing", label_smoothing=LabelSmoothing(amount=amount), **settings)


@pytest.mark.parametrize("amount", [0.1, 0.5, 0.9])
def test_against_the_paper(amount: float) -> None:
    """Section 7: q'(k) = (1 - a) [k = y] + a / K, and the loss is -sum over k of q'(k) log p(k)."""
    net, x, y = plain_net(), images(), labels()
    slow_loss, slow_ce = [], []
    for row, label in zip(net(x).tolist(), y.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        log_p = [z - math.log(total) for z in row]
        target = [(1 - amount) * (k == label) + amount / len(row) for k in range(len(row))]
        slow_loss.append(-sum(q * p for q, p in zip(target, log_p, strict=True)))
        slow_ce.append(-log_p[label])
    terms = defenses.build(smoothing(amount)).loss(net, x, y, 0)
    assert terms.keys() == {"loss", "ce"}
    assert terms["loss"].item() == pytest.approx(sum(slow_loss) / 4, rel=1e-5)
    assert terms["ce"].item() == pytest.approx(sum(slow_ce) / 4, rel=1e-5)


def test_the_least_loss_is_the_smoothed_label() -> None:
    """At the logits log q' the gradient is 0: more confidence does not pay."""
    amount, classes = 0.2, 5
    target = torch.full((classes,), amount / classes)
    target[2] += 1 - amount
    logits = target.log().unsqueeze(0).requires_grad_()
    terms = LabelSmoothingDefense(LabelSmoothing(amount=amount)).loss(nn.Identity(), logits, torch.tensor([2]), 0)
    (gradient,) = torch.autograd.grad(terms["loss"], logits)
    assert gradient.abs().max() < 1e-7
    assert not terms["ce"].requires_grad  # it is told, not trained on


def test_off_is_plain_training() -> None:
    for off in (smoothing(0.0), smoothing(0.0, base_augmentation="standard")):
        plain = trained(off.plain)
        assert_same_weights(trained(off), plain)
        assert column(trained(off), "loss") == column(plain, "loss")
    assert smoothing(0.0).canonical() == Defense()
    assert differ(trained(smoothing(0.1)), trained(Defense()))


def test_the_hard_loss_is_told_beside_the_soft_one() -> None:
    state = trained(smoothing(0.3))
    assert all(loss != ce for loss, ce in zip(column(state, "loss"), column(state, "ce"), strict=True))


@pytest.mark.parametrize("after", [1, 3])
def test_resumes_exactly(after: int) -> None:
    assert_same_weights(interrupted(smoothing(0.3), after), trained(smoothing(0.3)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: Any) -> None:
    assert len(column(of_architecture(smoothing(0.3), architecture), "ce")) == 2
