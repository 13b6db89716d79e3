"""SmoothGrad and VarGrad: captum's on the same noise, and a variance that does not cancel."""

import pytest
import torch
from captum.attr import NoiseTunnel, Saliency
from torch import Tensor, nn

from tests.tier.toys import labels, net, pictures, plain_net
from tier.config import Explain
from tier.explainers import explain
from tier.explainers.gradient import gradient
from tier.explainers.noise import gradient_moments
from tier.runtime import generator

SAMPLES = 6


def _draws(seed: int = 0) -> Tensor:
    return 0.2 * torch.randn(SAMPLES, 3, 16, 24, generator=generator("explain", seed))


@pytest.mark.parametrize(("nt_type", "place"), [("smoothgrad", 0), ("vargrad", 1)])
@pytest.mark.parametrize("count", [3, 90])  # all copies in one pass, and two at a time
def test_moments_are_captum_s_on_the_same_noise(
    nt_type: str, place: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = net().double(), pictures(count, 16, 24).double(), labels(count)
    made = gradient_moments(model, x, y, SAMPLES, 0.2, seed=0)[place]
    drawn = _draws().double().repeat(count, 1, 1, 1)  # captum asks for all copies of the first image, then the second
    monkeypatch.setattr(torch, "normal", lambda _mean, deviation: drawn.view_as(deviation))
    expected = NoiseTunnel(Saliency(model)).attribute(
        x, nt_type=nt_type, nt_samples=SAMPLES, stdevs=0.2, target=y, abs=False
    )
    torch.testing.assert_close(made, expected.detach(), rtol=1e-6, atol=1e-7 * float(expected.abs().max()))


def test_maps_are_the_moments_over_the_copies_one_by_one() -> None:
    model, x, y = net(), pictures(2, 16, 24), labels(2)
    slopes = []
    for noise in _draws(seed=5):
        leaf = (x + noise).requires_grad_()
        model(leaf)[torch.arange(2), y].sum().backward()
        slopes.append(leaf.grad)
    stack = torch.stack([slope for slope in slopes if slope is not None]).double()
    config = Explain(name="smoothgrad", samples=SAMPLES, noise=0.2, seed=5)
    for settings, expected in (
        (config, stack.mean(0).sum(1)),
        (config.model_copy(update={"signed": False}), stack.mean(0).abs().sum(1)),
        (config.model_copy(update={"name": "vargrad"}), stack.var(0, correction=0).sum(1)),
    ):
        made = explain(settings, model, x, y)
        torch.testing.assert_close(made, expected.float(), rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_without_noise_the_mean_is_the_gradient_and_the_variance_vanishes() -> None:
    model, x, y = plain_net(), pictures(2), labels(2)
    mean, variance = gradient_moments(model, x, y, 4, 1e-9, seed=0)
    expected = gradient(model, x, y, "abs_mean")
    torch.testing.assert_close(mean.mean(1).abs(), expected, rtol=1e-4, atol=1e-5 * float(expected.max()))
    assert (variance >= 0).all()
    assert variance.max() < 1e-10 * float(expected.max()) ** 2


class Steep(nn.Module):
    """Logit 0 has slope 1000 + pixel: on noise, a large mean with a small, known variance."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([(1000 * x + x.square() / 2).sum((1, 2, 3))] * 2, 1)


@pytest.mark.parametrize("count", [1, 200])
def test_the_variance_does_not_cancel_beside_a_large_mean(count: int) -> None:
    variance = gradient_moments(Steep(), pictures(count, 16, 24), torch.zeros(count).long(), SAMPLES, 0.2, seed=0)[1]
    expected = _draws().var(0, correction=0).expand_as(variance)
    torch.testing.assert_close(variance, expected, rtol=2e-2, atol=1e-4)
