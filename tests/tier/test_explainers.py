"""Maps against captum, and the contract: whole batches, deterministic, the model left as found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
import torch
from captum.attr import LayerAttribution, LayerGradCam, Saliency
from torch import Tensor, nn

from tests.tier.toys import degenerate, images, labels, net, pictures, plain_net, smooth_net
from tier.config import EXPLAINER_SETTINGS, FAMILIES, ArchitectureName, Explain, ExplainerName
from tier.explainers import (
    REGISTRY,
    attributions,
    default_layer,
    explain,
    explain_family,
    explained_class,
)
from tier.explainers.base import ROWS, flat_baseline, passes
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
NEVER_NEGATIVE = {"gradient", "vargrad", "gradcam", "gradcampp"}


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


def _lived_in(model: Any) -> Any:
    """The model with mixed modes, a frozen layer and a gradient that somebody may still need."""
    model.train()
    model.body.block1.eval()
    model.body.block2.bn1.eval()
    model.body.fc.requires_grad_(False)
    model.body.block3.conv1.weight.grad = torch.ones_like(model.body.block3.conv1.weight)
    return model


@every_explainer
def test_the_model_is_left_as_found(name: Any) -> None:
    model, x, y = _lived_in(net()), pictures(2), labels(2)
    before, pixels = _everything(model), x.clone()
    made = explain(Explain(name=name), model, x, y)
    assert _everything(model) == before
    assert torch.equal(x, pixels)
    assert not x.requires_grad
    assert not made.requires_grad
    model.eval()
    torch.testing.assert_close(explain(Explain(name=name), model, x, y), made)  # maps are those of evaluation mode


@every_explainer
def test_the_model_is_left_as_found_when_it_fails(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(features: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    model = _lived_in(net())
    before = _everything(model)
    monkeypatch.setattr(model.body.fc, "forward", fail)  # after the layers that carry hooks
    with pytest.raises(RuntimeError, match="out of memory"):
        explain(Explain(name=name), model, pictures(2), labels(2))
    assert _everything(model) == before


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
    with pytest.raises(ValueError, match="no explainer named 'lrp'; there are gradient, smoothgrad, vargrad, gradcam"):
        explain(Explain.model_construct(name="lrp"), net(), images(1), labels(1))


@every_explainer
def test_maps_do_not_depend_on_the_batch_and_repeat(name: Any) -> None:
    model, x, y = net(), pictures(3, 16, 24), torch.tensor([2, 0, 2])
    x[1] = images(1, 16, 24)[0]  # of white noise, a single superpixel
    made = explain(Explain(name=name), model, x, y)
    assert made.shape == (3, 16, 24)
    assert made.dtype == torch.float32
    assert (made >= 0).all() or name not in NEVER_NEGATIVE
    assert torch.equal(explain(Explain(name=name), model, x, y), made)
    for b in range(3):
        alone = explain(Explain(name=name), model, x[b : b + 1], y[b : b + 1])
        torch.testing.assert_close(alone[0], made[b], rtol=1e-4, atol=1e-4 * float(made.abs().max()))


@every_explainer
def test_gradients_may_be_off_outside(name: Any) -> None:
    model, x, y = net(), pictures(2), labels(2)
    expected = explain(Explain(name=name), model, x, y)
    with torch.no_grad():
        assert torch.equal(explain(Explain(name=name), model, x, y), expected)
        assert not torch.is_grad_enabled()


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@every_explainer
def test_maps_follow_the_weights_and_the_class(name: Any) -> None:
    x, y = pictures(6, seed=3), labels(6)
    made = explain(Explain(name=name), net(seed=0), x, y)
    others = [explain(Explain(name=name), net(seed=1), x, y), explain(Explain(name=name), net(seed=0), x, (y + 1) % 4)]
    for other in others:
        assert _correlation(made, other) < 0.9
    # a different last layer alone, with every feature as it was, moves the map too (Adebayo et al. 2018)
    model = net(seed=0)
    model.body.fc.load_state_dict(net(seed=1).body.fc.state_dict())
    assert _correlation(made, explain(Explain(name=name), model, x, y)) < 0.9


@every_explainer
def test_maps_of_redrawn_models_have_little_in_common(name: Any) -> None:
    """The model-randomisation check of Adebayo et al. 2018, image by image.

    Magnitudes keep what every such net shares (strides, borders), and VarGrad most of it.
    """
    x, y = pictures(4, 32, 32), labels(4)
    found = torch.stack([explain(Explain(name=name), net(seed=seed, width=8), x, y).flatten(1) for seed in range(5)])
    # of each image, between the first model's map and each other's; a map that Grad-CAM left empty has none
    correlations = torch.stack([torch.corrcoef(found[:, b])[0, 1:] for b in range(4)])
    limit = {"vargrad": 0.8, "gradient": 0.5}.get(name, 0.3)
    assert float(correlations.abs().nanmean()) < limit
    assert (correlations.isfinite().sum() >= 16) or name == "gradcam"


OTHER: dict[str, Any] = {
    "channel_reduction": "abs_mean", "signed": False, "cam_layer": "body.block1", "samples": 7, "noise": 0.4,
    "steps": 5, "baseline": "mean", "segments": 9, "compactness": 0.1, "perturbations": 50, "kernel_width": 1.0,
    "ridge": 20.0, "seed": 3,
}  # fmt: skip


@every_explainer
def test_exactly_the_settings_listed_act(name: Any) -> None:
    model, x, y = net(), pictures(2, 16, 24), labels(2)
    assert set(OTHER) == set(Explain.model_fields) - {"name", "target"}
    made = explain(Explain(name=name), model, x, y)
    for setting, value in OTHER.items():
        changed = explain(Explain(name=name, **{setting: value}), model, x, y)
        assert torch.equal(changed, made) == (setting not in EXPLAINER_SETTINGS[name]), setting


def test_every_name_is_registered() -> None:
    assert list(REGISTRY) == list(EXPLAINER_SETTINGS) == list(get_args(ExplainerName))


@every_explainer
def test_a_family_s_maps_are_those_of_its_members(name: Any) -> None:
    model, x, y = net(), pictures(2), labels(2)
    config = Explain(name=name, seed=4, samples=6, steps=4)
    family = explain_family(config, model, x, y)
    assert tuple(family) == config.family
    for member, maps in family.items():
        assert torch.equal(maps, explain(config.model_copy(update={"name": member}), model, x, y))
        assert not maps.requires_grad
    assert len({tuple(maps.flatten().tolist()) for maps in family.values()}) == len(family)


@contextmanager
def _rows(model: nn.Module) -> Iterator[list[int]]:
    """The images in each forward pass."""
    seen: list[int] = []
    handle = model.register_forward_pre_hook(lambda _module, inputs: seen.append(len(inputs[0])))
    yield seen
    handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_costs_no_more_passes_than_a_member(family: tuple[ExplainerName, ...]) -> None:
    model, x, y = net(), pictures(2), labels(2)
    costs = []
    for call in (explain, explain_family):
        with _rows(model) as seen:
            call(Explain(name=family[0]), model, x, y)
        costs.append(seen)
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    ("name", "draws"), [("smoothgrad", 25), ("integrated_gradients", 32), ("shap", 25), ("lime", 300)]
)
def test_passes_join_draws_up_to_a_bound(name: ExplainerName, draws: int) -> None:
    model = smooth_net()
    for batch in (1, 20, ROWS + 4):
        with _rows(model) as seen:
            explain(Explain(name=name), model, pictures(batch, 8, 8), labels(batch))
        assert sum(seen) == draws * batch
        assert max(seen) <= max(ROWS, batch)
        assert len(seen) == -(-draws // max(1, ROWS // batch))


def test_passes() -> None:
    assert list(passes(5, 128)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(passes(3, 1000)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert list(passes(300, 1)) == [slice(0, 256), slice(256, 300)]


@every_explainer
@pytest.mark.parametrize("channels", [1, 2])
def test_any_number_of_channels_and_an_odd_shape(name: Any, channels: int) -> None:
    model, x = smooth_net(channels), pictures(2, 11, 19, channels=channels)
    maps = explain(Explain(name=name), model, x, labels(2))
    assert maps.shape == (2, 11, 19)
    assert not degenerate(maps).all()  # Grad-CAM may find nothing for a class


@every_explainer
@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_flat_images_and_images_with_few_colours_are_explained_or_flagged(name: Any, baseline: Any) -> None:
    flat = torch.cat([torch.full((1, 3, 16, 16), value) for value in (0.0, 0.3, 1.0)])
    halves = pictures(1)
    halves[..., :8], halves[..., 8:] = 0.2, 0.7
    x = torch.cat([flat, halves])
    maps = explain(Explain(name=name, baseline=baseline), net(), x, labels(4))
    assert torch.isfinite(maps).all()
    assert not degenerate(maps)[3]
    if name in ("integrated_gradients", "lime"):  # nothing to add or to remove: no rounding error may pass for a map
        assert degenerate(maps).tolist() == [True, baseline == "mean", baseline == "mean", False]


@every_explainer
def test_a_model_that_ignores_its_input_has_degenerate_maps(name: Any) -> None:
    model = net()
    nn.init.zeros_(model.body.fc.weight)
    model.body.fc.bias.data = torch.tensor([1.1, -2.3, 30.7, 0.9])
    assert degenerate(explain(Explain(name=name), model, pictures(3), labels(3))).all()
    assert not degenerate(explain(Explain(name=name), net(), pictures(3), labels(3))).all()


@every_explainer
def test_a_model_of_nan_has_degenerate_maps(name: Any) -> None:
    model = net()
    model.body.block2.conv1.weight.data[0, 0, 0, 0] = float("nan")
    maps = explain(Explain(name=name), model, pictures(3), labels(3))
    assert maps.shape == (3, 16, 16)
    assert degenerate(maps).all()


@pytest.mark.parametrize("name", ["gradcam", "gradcampp"])
def test_a_class_that_no_feature_speaks_for_has_a_degenerate_map(name: Any) -> None:
    model = net()
    model.body.fc.weight.data = model.body.fc.weight.abs()
    model.body.fc.weight.data[1] *= -1
    maps = explain(Explain(name=name), model, pictures(3, 32, 32), torch.tensor([0, 1, 2]))
    assert (maps[1] == 0).all()
    assert degenerate(maps).tolist() == [False, True, False]


def test_the_mean_of_a_flat_image_is_its_colour_to_the_bit() -> None:
    x = torch.full((1, 3, 37, 41), 0.1) * torch.tensor([1.0, 3.0, 7.0]).view(1, 3, 1, 1)
    assert torch.equal(flat_baseline(x, "mean").expand_as(x), x)
    assert torch.equal(flat_baseline(x, "zero"), torch.zeros(1, 3, 1, 1))


def test_the_explained_class() -> None:
    model, x, y = net(), pictures(6, 32, 32), labels(6)
    assert torch.equal(explained_class(model, x, y, Explain()), y)
    assert torch.equal(explained_class(model, x, y, Explain(target="predicted")), model(x).argmax(1))


class TestAttributions:
    @every_explainer
    def test_do_not_depend_on_the_split_into_batches(self, name: Any) -> None:
        model, y = net().train(), labels(5)
        x = (pictures(5, 16, 24) * 255).to(torch.uint8)
        config = Explain(name=name, target="predicted", perturbations=40, samples=6)
        whole, split = attributions(config, model, x, y), attributions(config, model, x, y, batch_size=2)
        assert model.training
        expected = model.eval()(x / 255).argmax(1)
        assert whole.target.tolist() == split.target.tolist() == expected.tolist()
        assert whole.target.dtype == "int64"
        assert tuple(whole.maps) == config.family
        for member, maps in whole.maps.items():
            assert maps.shape == (5, 16, 24) and maps.dtype == "float32"
            peak = float(abs(maps).max())
            single = explain(config.model_copy(update={"name": member}), model, x / 255, expected)
            torch.testing.assert_close(torch.from_numpy(maps), single, rtol=1e-4, atol=1e-4 * peak)
            torch.testing.assert_close(torch.from_numpy(split.maps[member]), single, rtol=1e-4, atol=1e-4 * peak)

    def test_tell_how_far_they_are_and_take_floats(self) -> None:
        told: list[float] = []
        x = pictures(5)
        found = attributions(Explain(), net(), x, labels(5), batch_size=2, progress=told.append)
        assert told == [0.4, 0.8, 1.0]
        assert found.target.tolist() == labels(5).tolist()
        assert attributions(Explain(), net(), x[:0], labels(0)).maps["gradient"].shape == (0, 16, 16)


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
