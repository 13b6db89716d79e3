"""Distillation against Hinton et al.'s formulas, who teaches whom, and students that resume exactly."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tier.toys import images, labels, net, plain_net, problem
from tests.tier.training_runs import ARCHITECTURES, QUICK, SMALL, assert_same_weights, column, differ, trained
from tier import config, defenses
from tier.config import Defense, Distillation
from tier.defenses.distillation import STUDENT_SEED, DistillationDefense, divergence, soft_targets
from tier.training import Problem, State, fit, start


def settings(weight: float = 1.0, parts: int = 1, temperature: float = 2.0, **more: Any) -> Defense:
    return Defense(
        name="distillation",
        distillation=Distillation(weight=weight, parts=parts, temperature=temperature),
        **more,
    )


def softmax(z: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(value / temperature) for value in z]
    return [power / sum(powers) for power in powers]


def thirds(count: int) -> Tensor:
    """Three models, each of which saw a third: `(3, count)` bool."""
    return torch.arange(count) % 3 == torch.arange(3).unsqueeze(1)


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_against_the_paper(weight: float, temperature: float) -> None:
    """T^2 sum q log(q / p) at temperature T, q the mean of those that never saw the image, and the cross-entropy."""
    teachers, student, x, y = [plain_net(seed=s) for s in (1, 2, 3)], plain_net(seed=4), images(5), labels(5)
    seen = thirds(9)
    defense = DistillationDefense(Distillation(weight=weight, temperature=temperature, parts=3))
    defense.teach(teachers, seen)
    index = torch.tensor([7, 0, 3, 8, 4])
    defense.begin(index, 0)
    terms = {name: term.item() for name, term in defense.loss(student, x, y, 0).items()}
    kl, ce = 0.0, 0.0
    answers = [teacher(x).tolist() for teacher in teachers]
    for b, (place, z) in enumerate(zip(index.tolist(), student(x).tolist(), strict=True)):
        knowing = [softmax(answer[b], temperature) for m, answer in enumerate(answers) if place % 3 != m]
        assert len(knowing) == 2
        q = [(first + second) / 2 for first, second in zip(*knowing, strict=True)]
        p = softmax(z, temperature)
        kl += sum(a * math.log(a / c) for a, c in zip(q, p, strict=True)) / 5
        ce -= math.log(softmax(z)[int(y[b])]) / 5
    assert terms["distillation"] == pytest.approx(temperature**2 * kl, rel=1e-4)
    assert terms["ce"] == pytest.approx(ce, rel=1e-5)
    assert terms["loss"] == pytest.approx(weight * temperature**2 * kl + (1 - weight) * ce, rel=1e-4)


def test_when_hot_it_matches_logits() -> None:
    """Eq. 4: for a high temperature and logits of mean 0 the gradient is (z - v) / K, times T^2 / T^2."""
    draw = torch.Generator().manual_seed(0)
    z, v = (torch.randn(1, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    z, v = z - z.mean(), v - v.mean()
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(divergence(z, (v / 1e4).softmax(1), 1e4), z)
    torch.testing.assert_close(gradient, (z - v).detach() / 6, rtol=1e-3, atol=1e-6)


def test_the_student_that_says_the_same_has_no_loss() -> None:
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    loss = divergence(z, (z.detach() / 3).softmax(1), 3.0)
    assert abs(loss.item()) < 1e-12
    assert torch.autograd.grad(loss, z)[0].abs().max() < 1e-12


def test_certain_teachers_give_finite_gradients() -> None:
    answers = torch.tensor([[[900.0, 0.0, -900.0]]])
    logits = torch.zeros(1, 3, requires_grad=True)
    loss = divergence(logits, soft_targets(answers, torch.ones(1, 1, dtype=torch.bool), 1.0), 1.0)
    assert loss.item() == pytest.approx(math.log(3))
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


class _Telling(nn.Module):
    """A teacher that is sure of one class, and keeps what it was asked and how."""

    def __init__(self, sure: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(30.0))
        self.sure, self.asked = sure, torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        self.asked = x
        return self.weight * nn.functional.one_hot(torch.full((len(x),), self.sure), 4)


def test_nobody_teaches_an_image_it_was_trained_on() -> None:
    teachers = [_Telling(0), _Telling(1), _Telling(2)]
    defense = DistillationDefense(Distillation(parts=3, temperature=1.0))
    defense.teach([teacher.train() for teacher in teachers], thirds(9))
    index, x = torch.tensor([4, 8]), images(2)
    defense.begin(index, 0)
    free = torch.zeros(2, 4, requires_grad=True)
    optimizer = torch.optim.SGD([free], 1.0)
    for _ in range(300):
        optimizer.zero_grad()
        defense.loss(lambda x: free, x, labels(2), 0)["loss"].backward()
        optimizer.step()
    expected = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.5, 0.5, 0.0, 0.0]])  # 4 was the second's, 8 the third's
    torch.testing.assert_close(free.softmax(1).detach(), expected, rtol=0, atol=0.02)
    assert all(teacher.asked is x and teacher.weight.grad is None for teacher in teachers)


def test_a_single_teacher_teaches_what_it_has_seen() -> None:
    defense = DistillationDefense(Distillation(parts=1))
    defense.teach([plain_net()], torch.ones(1, 4, dtype=torch.bool))
    defense.begin(torch.arange(4), 0)
    terms = defense.loss(plain_net(), images(), labels(), 0)
    assert float(terms["loss"].detach()) == pytest.approx(0.0, abs=1e-5)


def test_refusals() -> None:
    defense = DistillationDefense(Distillation(parts=2))
    none = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="2 parts has that many teachers, not 1"):
        defense.teach([plain_net()], none[:1])
    none[:, 1] = True
    with pytest.raises(ValueError, match="seen by every teacher"):
        defense.teach([plain_net(), plain_net()], none)


def test_off_is_plain_training() -> None:
    for off in (settings(0.0), settings(0.0, base_augmentation="standard")):
        assert_same_weights(trained(off), trained(off.plain))
    assert settings(0.0, parts=3).canonical() == Defense()


def taught(
    defense: Defense,
    data: Problem | None = None,
    model: config.Model = SMALL,
    train: config.Train = QUICK,
    until: int | None = None,
    stored: tuple[Any, Any] | None = None,
) -> State:
    """A student of untrained teachers, each of which counts as trained on its part; `stored`: from a checkpoint."""
    data, parts = data or problem(), defense.distillation.parts
    made = defenses.build(defense)
    seen = torch.arange(len(data.members)) % parts == torch.arange(parts).unsqueeze(1)
    made.teach([net(model.architecture, seed=s, width=model.width) for s in range(parts)], seen)
    train = made.settings(train)
    state = start(data, model, train)
    if stored is not None:
        state.load(*stored)
    return fit(data, state, made, train, until=until)


def test_a_student_begins_and_goes_elsewhere_than_its_teacher() -> None:
    assert defenses.build(settings()).settings(QUICK).seed == QUICK.seed + STUDENT_SEED
    first = start(problem(), SMALL, QUICK)
    assert differ(first, start(problem(), SMALL, defenses.build(settings()).settings(QUICK)))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_student_learns_what_its_teachers_say(parts: int) -> None:
    state = taught(settings(parts=parts), train=QUICK.model_copy(update={"epochs": 8}))
    said = column(state, "distillation")
    assert said[-1] < 0.7 * said[0]
    assert column(state, "loss") == said


@pytest.mark.parametrize("defense", [settings(0.7, 3), settings(1.0, base_augmentation="standard")])
def test_resumes_exactly(defense: Defense) -> None:
    half = taught(defense, until=2)
    resumed = taught(defense, stored=(half.tensors(), json.loads(json.dumps(half.events))))
    assert_same_weights(resumed, taught(defense))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: Any) -> None:
    train = config.Train(epochs=2, batch_size=8, learning_rate=1e-3, threads=1)
    model = config.Model(architecture=architecture, width=4)
    state = taught(settings(0.5, 2), problem(16, height=32, width=32), model, train)
    assert all(math.isfinite(value) for value in column(state, "distillation"))
