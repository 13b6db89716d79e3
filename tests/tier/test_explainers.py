"""Maps against captum, and the contract: whole batches, deterministic, the model left as found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captum.attr import LayerAttribution, LayerGradCam, Saliency
from torch import Tensor, nn

from tests.tier.toys import images, labels, net, plain_net
from tier.config import ArchitectureName, Explain
from tier.explainers import REGISTRY, default_layer, degenerate, explain
from tier.explainers.cam import gradcam
from tier.explainers.gradient import gradient

every_architecture = pytest.mark.parametrize(
    ("architecture", "layer"),
    [
        ("small", "body.block3"),
        ("resnet18_cifar", "body.layer4.1"),
        ("resnet18_imagenet", "body.layer2.1"),
        ("mobilenet_v2", "body.features.6"),
    ],
)
every_explainer = pytest.mark.parametrize("name", sorted(REGISTRY))


@every_architecture
def test_gradient_is_captum_s_saliency(architecture: ArchitectureName, layer: str) -> None:
    model, x, y = net(architecture), images(2, 32, 40), labels(2)
    signed = Saliency(model).attribute(x.clone().requires_grad_(), target=y, abs=False).detach()
    for reduction, expected in (("mean_abs", signed.abs().mean(1)), ("abs_mean", signed.mean(1).abs())):
        made = gradient(model, x, y, reduction)  # type: ignore[arg-type]
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
        assert torch.equal(explain(Explain(channel_reduction=reduction), model, x, y), made)  # type: ignore[arg-type]


def test_gradient_is_the_slope_of_the_logit() -> None:
    model, x, y = plain_net().double(), images(1, 6, 6).double(), torch.tensor([2])
    slopes = torch.zeros(3, 6, 6, dtype=torch.float64)
    for place in torch.cartesian_prod(torch.arange(3), torch.arange(6), torch.arange(6)).tolist():
        step = torch.zeros_like(x)
        step[0, place[0], place[1], place[2]] = 1e-4
        with torch.no_grad():
            slopes[tuple(place)] = (model(x + step) - model(x - step))[0, 2] / 2e-4
    torch.testing.assert_close(gradient(model, x, y)[0], slopes.abs().mean(0), rtol=1e-4, atol=1e-6)


@every_architecture
def test_gradcam_is_captum_s_at_the_last_layer_of_at_least_4x4(architecture: ArchitectureName, layer: str) -> None:
    model, x, y = net(architecture), images(2, 32, 32), labels(2)
    assert default_layer(model, x) == layer
    coarse = LayerGradCam(model, model.get_submodule(layer)).attribute(x, target=y, relu_attributions=True).detach()
    assert min(coarse.shape[2:]) >= 4
    expected = LayerAttribution.interpolate(coarse, (32, 32), "bilinear").squeeze(1)
    made = explain(Explain(name="gradcam"), model, x, y)
    assert made.max() > 0
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
    assert torch.equal(gradcam(model, x, y, layer), made)


def test_gradcam_at_a_chosen_layer_of_an_image_that_is_not_square() -> None:
    model, x, y = net(), images(2, 32, 48), labels(2)
    coarse = LayerGradCam(model, model.body.block1).attribute(x, target=y, relu_attributions=True).detach()
    expected = LayerAttribution.interpolate(coarse, (32, 48), "bilinear").squeeze(1)
    made = explain(Explain(name="gradcam", cam_layer="body.block1"), model, x, y)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


def _everything(model: nn.Module) -> dict[str, Any]:
    """What an explainer could leave behind."""
    return {
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            name: [len(getattr(module, kind)) for kind in vars(module) if kind.endswith("hooks")]
            for name, module in model.named_modules()
        },
        "gradients": {
            name: None if weight.grad is None else weight.grad.clone().tolist()
            for name, weight in model.named_parameters()
        },
        "trainable": {name: weight.requires_grad for name, weight in model.named_parameters()},
        "state": {name: value.clone().tolist() for name, value in model.state_dict().items()},
    }


@every_explainer
def test_the_model_is_left_as_found(name: Any) -> None:
    model, x, y = net(), images(2), labels(2)
    model.train()
    model.body.block1.eval()
    model.body.block2.bn1.eval()
    model.body.fc.requires_grad_(False)
    model.body.block3.conv1.weight.grad = torch.ones_like(model.body.block3.conv1.weight)
    before, pixels = _everything(model), x.clone()
    made = explain(Explain(name=name), model, x, y)
    assert _everything(model) == before
    assert torch.equal(x, pixels)
    assert not x.requires_grad
    assert not made.requires_grad
    model.eval()
    torch.testing.assert_close(explain(Explain(name=name), model, x, y), made)  # maps are those of evaluation mode


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("body.block9", "no layer 'body.block9'; candidates are body.block1, body.block2, body.block3"),
        ("body.fc", r"layer 'body.fc' gives \(2, 4\), not feature maps"),
    ],
)
def test_a_wrong_layer_is_refused_and_leaves_the_model_as_found(layer: str, message: str) -> None:
    model = net().train()
    before = _everything(model)
    with pytest.raises(ValueError, match=message):
        explain(Explain(name="gradcam", cam_layer=layer), model, images(2), labels(2))
    assert _everything(model) == before


def test_an_unknown_explainer_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no explainer named 'lrp'; there are gradient, gradcam"):
        explain(Explain.model_construct(name="lrp"), net(), images(1), labels(1))


@every_explainer
def test_maps_do_not_depend_on_the_batch_and_repeat(name: Any) -> None:
    model, x, y = net(), images(3, 16, 24), labels(3)
    made = explain(Explain(name=name), model, x, y)
    assert made.shape == (3, 16, 24)
    assert (made >= 0).all()
    assert torch.equal(explain(Explain(name=name), model, x, y), made)
    for b in range(3):
        alone = explain(Explain(name=name), model, x[b : b + 1], y[b : b + 1])
        torch.testing.assert_close(alone[0], made[b], rtol=1e-4, atol=1e-4 * float(made.max()))


@every_explainer
def test_gradients_may_be_off_outside(name: Any) -> None:
    model, x, y = net(), images(2), labels(2)
    expected = explain(Explain(name=name), model, x, y)
    with torch.no_grad():
        assert torch.equal(explain(Explain(name=name), model, x, y), expected)
        assert not torch.is_grad_enabled()


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@every_explainer
def test_maps_follow_the_weights_and_the_class(name: Any) -> None:
    x, y = images(6), labels(6)
    made = explain(Explain(name=name), net(seed=0), x, y)
    others = [explain(Explain(name=name), net(seed=1), x, y), explain(Explain(name=name), net(seed=0), x, (y + 1) % 4)]
    for other in others:
        assert _correlation(made, other) < 0.9
    # a different last layer alone, with every feature as it was, moves the map too (Adebayo et al. 2018)
    model = net(seed=0)
    model.body.fc.load_state_dict(net(seed=1).body.fc.state_dict())
    assert _correlation(made, explain(Explain(name=name), model, x, y)) < 0.9


@every_explainer
def test_a_model_that_ignores_its_input_has_degenerate_maps(name: Any) -> None:
    model = net()
    nn.init.zeros_(model.body.fc.weight)
    assert degenerate(explain(Explain(name=name), model, images(3), labels(3))).all()
    assert not degenerate(explain(Explain(name=name), net(), images(3), labels(3))).all()


def test_degenerate_maps() -> None:
    maps = torch.rand(6, 4, 5)
    maps[1], maps[2] = 0.0, -2.5
    maps[3, 0, 0], maps[4, 3, 4] = float("nan"), float("inf")
    maps[5] = 0.0
    maps[5, 1, 1] = 1e-30
    assert degenerate(maps).tolist() == [False, True, True, True, True, False]


class TestDefaultLayer:
    def test_goes_up_as_images_shrink(self) -> None:
        model = net()
        assert default_layer(model, images(1, 32, 32)) == "body.block3"
        assert default_layer(model, images(1, 24, 48)) == "body.block2"
        assert default_layer(model, images(1, 8, 8)) == "body.block1"
        assert default_layer(net("resnet18_imagenet"), images(1, 8, 8)) == "body.relu"

    def test_too_small_an_image_is_refused(self) -> None:
        model = net()
        before = _everything(model)
        with pytest.raises(ValueError, match="no layer keeps a 4x4 map at input size 6x20"):
            default_layer(model, images(1, 6, 20))
        assert _everything(model) == before

    @pytest.mark.parametrize("build", [plain_net])
    def test_any_model_will_do(self, build: Callable[[], nn.Module]) -> None:
        model = build()
        assert default_layer(model, images(1, 12, 12)) == "3"  # the last activation before pooling to 2x2
        assert explain(Explain(name="gradcam"), model, images(2, 12, 12), labels(2)).shape == (2, 12, 12)
