"""Grad-CAM++ against the paper, derivative by derivative."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.tier.toys import labels, net, pictures
from tier.config import ArchitectureName, Explain
from tier.explainers import explain
from tier.explainers.cam import cams, default_layer, gradcam, gradcampp, layer_pass, plus_plus_weights


def _slow_weights(features: Tensor, slopes: Tensor) -> list[float]:
    """Eq. 5 and 19 for one image `(D, h, w)` in float64, a pixel at a time, with powers of S's slope."""
    weights = []
    for feature, slope in zip(features.double(), slopes.double(), strict=True):
        total = sum(feature.flatten().tolist())
        weight = 0.0
        for g in slope.flatten().tolist():
            denominator = 2 * g**2 + total * g**3
            alpha = g**2 / denominator if denominator else 0.0
            weight += alpha * max(0.0, g)
        weights.append(weight)
    return weights


@pytest.mark.parametrize("architecture", ["small", "resnet18_cifar", "mobilenet_v2"])
def test_gradcampp_is_the_paper_s_pixel_by_pixel(architecture: ArchitectureName) -> None:
    model, x, y = net(architecture), pictures(2, 32, 40), labels(2)
    features, slopes = layer_pass(model, x, y, default_layer(model, x))
    rows = []
    for b in range(2):
        weights = torch.tensor(_slow_weights(features[b], slopes[b]), dtype=torch.float64)
        rows.append(torch.einsum("d,dij->ij", weights, features[b].double()).clamp(min=0))
    coarse = torch.stack(rows).unsqueeze(1)
    expected = nn.functional.interpolate(coarse, (32, 40), mode="bilinear").squeeze(1).float()
    assert expected.max() > 0
    made = explain(Explain(name="gradcampp"), model, x, y)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))


def test_its_weights_are_those_of_exp_s_own_derivatives() -> None:
    """Autograd's second and third derivatives of Y = exp(S), S linear in A; exp(S) then scales every weight."""
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(3, 2, 3, generator=draw).double()
    head = torch.randn(3, 2, 3, generator=draw).double()
    expected = []
    for d in range(3):
        weight = 0.0
        for place in range(6):
            value = features[d].flatten()[place].clone().requires_grad_()
            mask = torch.zeros(3, 6, dtype=torch.float64)
            mask[d, place] = 1
            moved = (features.view(3, 6) * (1 - mask) + value * mask).view(3, 2, 3)
            derivative = (head * moved).sum().exp()
            orders = []
            for _ in range(3):
                (derivative,) = torch.autograd.grad(derivative, value, create_graph=True)
                orders.append(derivative.item())
            alpha = orders[1] / (2 * orders[1] + features[d].sum().item() * orders[2])
            weight += alpha * max(0.0, orders[0])
        expected.append(weight / math.exp((head * features).sum().item()))
    made = plus_plus_weights(features.unsqueeze(0), head.unsqueeze(0)).flatten()
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64))


def test_vanishing_denominators_and_gradients_leave_the_weights_finite() -> None:
    features = torch.ones(1, 2, 2, 2)  # sum 4
    slopes = torch.tensor([-0.5, 1.0, 0.0, 1e-30]).view(1, 1, 2, 2).repeat(1, 2, 1, 1)  # 2 + 4 * -0.5 = 0
    torch.testing.assert_close(plus_plus_weights(features, slopes), torch.full((1, 2, 1, 1), 1 / 6))
    assert (plus_plus_weights(features, torch.full_like(slopes, 1e-30)) > 0).all()  # g^2 would underflow


def test_both_maps_come_from_one_pass_at_the_chosen_layer() -> None:
    model, x, y = net(), pictures(2, 32, 48), labels(2)
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda _module, inputs: passes.append(len(inputs[0])))
    plain, plus_plus = cams(model, x, y, "body.block2")
    handle.remove()
    assert passes == [2]
    assert torch.equal(plain, gradcam(model, x, y, "body.block2"))
    assert torch.equal(plus_plus, gradcampp(model, x, y, "body.block2"))
    assert not torch.equal(plus_plus, gradcampp(model, x, y))
