"""Integrated Gradients and GradientSHAP: completeness, and captum's on the same draws."""

from typing import Any

import pytest
import torch
from captum.attr import GradientShap, IntegratedGradients
from torch import Tensor, nn

from tests.tier.toys import labels, net, pictures, plain_net
from tier.config import Explain
from tier.explainers import completeness_gap, explain
from tier.explainers.base import flat_baseline, input_gradient
from tier.explainers.integrated import integrated_gradients
from tier.explainers.shap import gradient_shap, path_draws

baselines = pytest.mark.parametrize("baseline", ["zero", "mean"])


def _logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)[torch.arange(len(x)), y]


@baselines
def test_integrated_gradients_are_captum_s_and_the_integral(baseline: Any) -> None:
    model, x, y = plain_net(), pictures(3, 8, 12), labels(3)
    start = flat_baseline(x, baseline).expand_as(x)
    expected = IntegratedGradients(model).attribute(x, baselines=start, target=y, n_steps=16)
    fine = torch.zeros_like(x)
    for step in range(400):  # midpoints
        fine += (x - start) * input_gradient(model, start + (step + 0.5) / 400 * (x - start), y) / 400
    for signed in (True, False):
        made = explain(Explain(name="integrated_gradients", steps=16, baseline=baseline, signed=signed), model, x, y)
        for channels in (expected.float(), fine):
            reduced = channels.sum(1) if signed else channels.abs().sum(1)
            torch.testing.assert_close(made, reduced, rtol=1e-3, atol=1e-3 * float(reduced.abs().max()))


@baselines
def test_the_completeness_gap_is_small_and_shrinks_with_the_steps(baseline: Any) -> None:
    model, x, y = plain_net().double(), pictures(4).double(), labels(4)
    change = _logits(model, x, y) - _logits(model, flat_baseline(x, baseline).expand_as(x), y)
    gaps = []
    for steps in (2, 4, 8, 32):
        maps = integrated_gradients(model, x, y, steps, baseline)
        gap = completeness_gap(model, x, y, maps, baseline)
        torch.testing.assert_close(gap, maps.sum((1, 2)) - change)
        gaps.append(float(gap.abs().max()))
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]
    assert gaps[3] < 1e-4 * float(change.abs().max())
    other = "mean" if baseline == "zero" else "zero"
    wrong = completeness_gap(model, x, y, integrated_gradients(model, x, y, 32, baseline), other)  # type: ignore[arg-type]
    assert wrong.abs().max() > 100 * gaps[3]


def test_the_completeness_gap_of_a_net_with_kinks_is_small() -> None:
    model, x, y = net(), pictures(4, 32, 32), labels(4)
    change = _logits(model, x, y) - _logits(model, torch.zeros_like(x), y)
    gap = completeness_gap(model, x, y, explain(Explain(name="integrated_gradients", steps=64), model, x, y))
    assert float(gap.abs().max()) < 0.03 * float(change.abs().max())


def test_the_gap_leaves_the_mode_as_found() -> None:
    model, x, y = net().train(), pictures(2), labels(2)
    statistics = model.body.block1.bn1.running_mean.clone()
    completeness_gap(model, x, y, torch.zeros(2, 16, 16))
    assert model.training
    assert torch.equal(model.body.block1.bn1.running_mean, statistics)


@pytest.mark.parametrize("signed", [True, False])
def test_gradient_shap_is_captum_s_on_the_same_draws(signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = plain_net(), pictures(3, 8, 12), labels(3)
    made = explain(Explain(name="shap", samples=5, seed=7, signed=signed), model, x, y)
    places, colours = path_draws(5, 3, seed=7)
    # captum asks for the draws of the first image, then of the second
    monkeypatch.setattr("numpy.random.uniform", lambda _low, _high, count: places.repeat(3).numpy())
    monkeypatch.setattr("numpy.random.choice", lambda _references, count: torch.arange(5).repeat(3).numpy())
    flat = colours.view(5, 3, 1, 1).expand(5, 3, 8, 12)
    found = GradientShap(model).attribute(x, flat, n_samples=5, stdevs=0.0, target=y).detach()
    expected = found.sum(1) if signed else found.abs().sum(1)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_gradient_shap_draws_are_uniform_and_follow_the_seed() -> None:
    places, colours = path_draws(2000, 3, seed=0)
    assert colours.shape == (2000, 3)
    for values in (places, *colours.T):
        assert values.min() >= 0 and values.max() <= 1
        assert abs(float(values.mean()) - 0.5) < 0.03
        assert abs(float(values.std()) - 12**-0.5) < 0.02
    assert not torch.equal(path_draws(5, 3, seed=1)[0], path_draws(5, 3, seed=0)[0])


def test_gradient_shap_sums_to_the_change_of_the_logit() -> None:
    x, y = pictures(3, 8, 8), labels(3)
    colours = path_draws(400, 3, seed=0)[1].view(400, 3, 1, 1).expand(400, 3, 8, 8)

    def change(model: nn.Module) -> Tensor:
        references = torch.stack([_logits(model, colours, label.expand(400)).mean() for label in y])
        return _logits(model, x, y) - references

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    made = gradient_shap(linear, x, y, 400, seed=0).sum((1, 2))
    torch.testing.assert_close(made, change(linear), rtol=1e-4, atol=1e-4)  # at every draw
    curved = plain_net()
    made, expected = gradient_shap(curved, x, y, 400, seed=0).sum((1, 2)), change(curved)
    assert float((made - expected).abs().max()) < 0.15 * float(expected.abs().max())  # in expectation only
