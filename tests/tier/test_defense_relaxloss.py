"""RelaxLoss against Algorithm 1, image by image, and against the authors' code where that differs."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tier.training_runs import (
    ARCHITECTURES,
    QUICK,
    assert_same_weights,
    column,
    differ,
    interrupted,
    of_architecture,
    trained,
)
from tier.config import Defense, RelaxLoss
from tier.defenses.relaxloss import RelaxLossDefense, soft_labels

# right and sure, right by a hair, wrong, wrong and sure
LOGITS = [[4.0, 0.0, 1.0, -1.0], [0.2, 0.5, 0.4, 0.3], [1.0, 0.0, 0.5, 0.9], [-2.0, 3.0, 0.0, 1.0]]
LABELS = [0, 1, 3, 0]


def relaxing(alpha: float, **settings: Any) -> Defense:
    return Defense(name="relaxloss", relaxloss=RelaxLoss(alpha=alpha, **settings))


def terms_of(config: RelaxLoss, epoch: int) -> tuple[dict[str, Tensor], Tensor]:
    """The terms of the batch above, and the gradient of the total by its logits."""
    logits = torch.tensor(LOGITS, dtype=torch.float32, requires_grad=True)
    terms = RelaxLossDefense(config).loss(nn.Identity(), logits, torch.tensor(LABELS), epoch)
    (gradient,) = torch.autograd.grad(terms["loss"], logits)
    return terms, gradient


def probabilities(row: list[float]) -> list[float]:
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def slow_gradient(target: list[float], row: list[float]) -> list[float]:
    """Of the cross-entropy against a constant target that sums to 1: p - t, over the images of the batch."""
    return [(p - t) / len(LABELS) for p, t in zip(probabilities(row), target, strict=True)]


def one_hot(label: int) -> list[float]:
    return [float(k == label) for k in range(4)]


def flattened(row: list[float], label: int, upper: float = 1.0) -> list[float]:
    own = min(probabilities(row)[label], upper)
    return [own if k == label else (1 - own) / 3 for k in range(4)]


CE = sum(-math.log(probabilities(row)[label]) for row, label in zip(LOGITS, LABELS, strict=True)) / 4


@pytest.mark.parametrize("flattens", ["all", "wrong"])
@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_above_the_level_it_descends(epoch: int, flattens: Any) -> None:
    terms, gradient = terms_of(RelaxLoss(alpha=CE - 0.01, flattens=flattens), epoch)
    assert terms.keys() == {"loss", "ce", "relaxed"}
    assert terms["loss"].item() == terms["ce"].item() == pytest.approx(CE)
    assert terms["relaxed"].item() == 0
    slow = [slow_gradient(one_hot(label), row) for row, label in zip(LOGITS, LABELS, strict=True)]
    torch.testing.assert_close(gradient, torch.tensor(slow))


def test_below_it_ascends_in_even_epochs() -> None:
    for epoch in (0, 2):
        terms, gradient = terms_of(RelaxLoss(alpha=CE + 0.01), epoch)
        assert terms["loss"].item() == pytest.approx(-CE) and terms["ce"].item() == pytest.approx(CE)
        assert terms["relaxed"].item() == 1
        slow = [slow_gradient(one_hot(label), row) for row, label in zip(LOGITS, LABELS, strict=True)]
        torch.testing.assert_close(gradient, -torch.tensor(slow))


@pytest.mark.parametrize("upper", [1.0, 0.6])
def test_below_it_flattens_in_odd_epochs(upper: float) -> None:
    terms, gradient = terms_of(RelaxLoss(alpha=CE + 0.01, upper=upper, flattens="all"), 1)
    targets = [flattened(row, label, upper) for row, label in zip(LOGITS, LABELS, strict=True)]
    slow = [slow_gradient(target, row) for target, row in zip(targets, LOGITS, strict=True)]
    torch.testing.assert_close(gradient, torch.tensor(slow))
    loss = sum(-t * math.log(p) for ts, row in zip(targets, LOGITS, strict=True)
               for t, p in zip(ts, probabilities(row), strict=True))  # fmt: skip
    assert terms["loss"].item() == pytest.approx(loss / 4)
    own = gradient[range(4), LABELS]
    if upper == 1.0:
        assert own.abs().max() < 1e-7  # the label's probability stays: the target is a constant
    else:
        assert own[0] > 0.05 and own[1:].abs().max() < 1e-7  # only the sure one is pulled down


def test_the_wrong_ones_only_as_in_the_authors_code() -> None:
    terms, gradient = terms_of(RelaxLoss(alpha=CE + 0.01, flattens="wrong"), 1)
    slow, loss = [], 0.0
    for row, label in zip(LOGITS, LABELS, strict=True):
        p, target = probabilities(row), flattened(row, label)
        wrong = max(range(4), key=lambda k: row[k]) != label
        up = [-g for g in slow_gradient(one_hot(label), row)]
        flat = slow_gradient(target, row) if wrong else [0.0] * 4
        slow.append([a + b for a, b in zip(up, flat, strict=True)])
        loss += math.log(p[label]) - wrong * sum(t * math.log(q) for t, q in zip(target, p, strict=True))
    assert [max(range(4), key=lambda k: row[k]) == y for row, y in zip(LOGITS, LABELS, strict=True)].count(True) == 2
    torch.testing.assert_close(gradient, torch.tensor(slow))
    assert terms["loss"].item() == pytest.approx(loss / 4)


def test_flattening_leaves_a_flattened_posterior_alone() -> None:
    """Where the other classes are equal already, there is nothing left to do."""
    logits = torch.tensor([[3.0, 1.0, 1.0], [0.0, 5.0, 0.0]], requires_grad=True)
    y = torch.tensor([0, 1])
    soft = soft_labels(logits, y, 1.0)
    assert not soft.requires_grad
    torch.testing.assert_close(soft, logits.detach().softmax(1))
    torch.testing.assert_close(soft.sum(1), torch.ones(2))
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, soft), logits)
    assert gradient.abs().max() < 1e-7


def test_off_is_plain_training() -> None:
    plain = trained(Defense())
    assert_same_weights(trained(relaxing(0.0)), plain)
    assert column(trained(relaxing(0.0)), "loss") == column(plain, "loss")
    assert relaxing(0.0, upper=0.5).canonical() == Defense()
    assert_same_weights(trained(relaxing(1e-9)), plain)  # through the formula: no batch comes down to that
    assert differ(trained(relaxing(1.0)), plain)


@pytest.mark.parametrize("flattens", ["all", "wrong"])
def test_the_loss_of_training_is_held_at_the_level(flattens: Any) -> None:
    """Ascent makes the total negative, which is no divergence; plain training goes far below."""
    train = QUICK.model_copy(update={"epochs": 24, "schedule": "constant"})
    state = trained(relaxing(0.8, flattens=flattens), train)
    held = column(state, "ce")[12:]
    assert 0.6 < sum(held) / len(held) < 1.1
    assert column(trained(Defense(), train), "ce")[-1] < 0.3
    assert min(column(state, "loss")) < 0 and max(column(state, "relaxed")) > 0


@pytest.mark.parametrize("after", [1, 2, 3])
def test_resumes_exactly_in_the_same_parity(after: int) -> None:
    assert_same_weights(interrupted(relaxing(1.3), after), trained(relaxing(1.3)))
    assert max(column(trained(relaxing(1.3)), "relaxed")) > 0


@pytest.mark.parametrize("flattens", ["all", "wrong"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: Any, flattens: Any) -> None:
    assert column(of_architecture(relaxing(3.0, flattens=flattens), architecture), "relaxed") != [0, 0]
