"""An ensemble in one net against its sub-models one by one, and its answer against a slow re-derivation."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tier.toys import images, labels, net, pictures
from tests.tier.training_runs import ARCHITECTURES, assert_same_weights, trained
from tier import config, defenses, inference, models
from tier.config import EXPLAINER_SETTINGS, Defense, EnsemblePartition, Explain, ExplainerName
from tier.defenses.ensemble_partition import Ensemble, EnsemblePartitionDefense, standardized, widened
from tier.explainers import default_layer, explain
from tier.explainers.cam import layer_pass, mean_weights
from tier.models.blocks import Classifier

CLASSES = 4


def members(count: int = 6, side: int = 16) -> Tensor:
    return (images(count, side, side) * 255).to(torch.uint8)


def nobody() -> Tensor:
    raise AssertionError("the members are enough")


def sub_models(parts: int = 3, architecture: config.ArchitectureName = "small") -> list[Classifier]:
    """Nets that differ in their weights, their statistics and the pixels they are normalised by."""
    made = [net(architecture, CLASSES, seed) for seed in range(parts)]
    for number, model in enumerate(made):
        model.normalize.mean += 0.1 * number
        model.normalize.std *= 1 + 0.2 * number
    return made


def ensemble(
    subs: list[Classifier], standardize: bool = True, architecture: config.ArchitectureName = "small", side: int = 16
) -> Ensemble:
    settings = Defense(
        name="ensemble_partition", ensemble_partition=EnsemblePartition(parts=len(subs), standardize=standardize)
    )
    defense = defenses.build(settings)
    served = defense.serve(lambda: net(architecture, CLASSES, seed=9), CLASSES)
    defense.compose(served, subs, members(side=side), nobody)
    assert isinstance(served, Ensemble)
    assert not served.training
    return served


def slow(subs: list[Classifier], x: Tensor, scale: float | None) -> list[list[float]]:
    """Mean confidences, a sub-model and a class at a time; `scale` None: not standardised."""
    rows = []
    for image in x.split(1):
        total = [0.0] * CLASSES
        for sub in subs:
            z = sub(image).double().squeeze(0).tolist()
            if scale is not None:
                mean = sum(z) / CLASSES
                spread = math.sqrt(sum((value - mean) ** 2 for value in z) / CLASSES)
                z = [scale * (value - mean) / spread for value in z]
            powers = [math.exp(value) for value in z]
            total = [a + p / sum(powers) / len(subs) for a, p in zip(total, powers, strict=True)]
        rows.append(total)
    return rows


def mean_std(subs: list[Classifier], x: Tensor) -> float:
    return float(np.mean([np.std(sub(x).detach().double().numpy(), axis=1) for sub in subs]))


def test_standardised_confidences_are_averaged() -> None:
    subs, x = sub_models(), images(5, seed=3)
    served = ensemble(subs)
    scale = mean_std(subs, members().float() / 255)
    assert float(served.scale) == pytest.approx(scale, rel=1e-5)
    expected = slow(subs, x, scale)
    np.testing.assert_allclose(served(x).exp().detach(), expected, rtol=1e-4)
    np.testing.assert_allclose(served(x).exp().sum(1).detach(), 1.0, rtol=1e-6)
    assert not np.allclose(expected, slow(subs, x, None), rtol=0.01)


def test_without_standardising_confidences_are_averaged_as_they_are() -> None:
    subs, x = sub_models(), images(5, seed=3)
    served = ensemble(subs, standardize=False)
    np.testing.assert_allclose(served(x).exp().detach(), slow(subs, x, None), rtol=1e-4)
    assert float(served.scale) == 1.0


def test_how_sure_a_sub_model_is_does_not_show() -> None:
    """Ten times the logits of one sub-model, another offset: the same answer at the same scale."""
    subs, x = sub_models(), images(5, seed=3)
    served = ensemble(subs)
    before, scale = served(x), served.scale.clone()
    sure = subs[1].body.fc
    assert isinstance(sure, nn.Linear)
    with torch.no_grad():
        sure.weight *= 10
        sure.bias.copy_(10 * sure.bias + 3)
    again = ensemble(subs)
    again.scale.copy_(scale)
    torch.testing.assert_close(again(x), before, rtol=1e-4, atol=1e-5)
    plain = ensemble(subs, standardize=False)(x)
    assert (plain - ensemble(sub_models(), standardize=False)(x)).abs().max() > 0.1


def test_logits_without_a_difference_are_no_opinion() -> None:
    flat = torch.full((2, 3, 5), 7.0, dtype=torch.float64, requires_grad=True)
    made = standardized(flat)
    assert torch.equal(made, torch.zeros_like(made))
    made.sum().backward()
    assert flat.grad is not None and flat.grad.isfinite().all()


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "resnet18_cifar"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_side_by_side_is_one_by_one(architecture: Any, norm: Any) -> None:
    model = config.Model(architecture=architecture, width=4, norm=norm)
    colours = [torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.5, 0.3, 0.4]), torch.tensor([0.2, 0.4, 0.5])]
    subs = [models.build(model, CLASSES, c, c / 2, seed).eval() for seed, c in enumerate(colours)]
    served = Ensemble(models.build(model, CLASSES, torch.zeros(3), torch.ones(3)), 3, CLASSES, True).eval()
    served.fill([sub.state_dict() for sub in subs])
    x = images(2, 32, 32)
    torch.testing.assert_close(served.each(x), torch.stack([sub(x) for sub in subs], 1), rtol=1e-4, atol=1e-4)


def test_an_untrained_ensemble_is_copies_and_draws_nothing() -> None:
    one, x = net(), images()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    served = Ensemble(net(), 2, CLASSES, False).eval()
    assert torch.equal(torch.rand(1), expected)
    torch.testing.assert_close(served(x), one(x).log_softmax(1), rtol=1e-4, atol=1e-5)


def test_its_weights_are_enough_to_serve_it() -> None:
    subs, x = sub_models(), images()
    served = ensemble(subs)
    blank = EnsemblePartitionDefense(EnsemblePartition(parts=3)).serve(lambda: net(seed=7), CLASSES).eval()
    blank.load_state_dict(served.state_dict())
    assert torch.equal(blank(x), served(x))


@pytest.mark.parametrize("standardize", [True, False])
def test_gradients_are_those_of_the_sub_models_together(standardize: bool) -> None:
    subs, x, y = sub_models(), images(), labels()
    served = ensemble(subs, standardize)
    made = explain(Explain(), served, x, y)
    leaf = x.clone().requires_grad_()
    z = torch.stack([sub(leaf) for sub in subs]).double()
    if standardize:
        z = float(served.scale) * (z - z.mean(2, keepdim=True)) / z.std(2, correction=0, keepdim=True)
    score = z.softmax(2).mean(0).log().gather(1, y.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(score, leaf)
    expected = gradient.abs().mean(1)
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))


def test_sub_models_that_are_certain_keep_a_gradient() -> None:
    subs, x = sub_models(), images()
    for sub in subs:
        assert isinstance(sub.body.fc, nn.Linear)
        with torch.no_grad():
            sub.body.fc.weight *= 2
            sub.body.fc.bias.copy_(torch.tensor([25.0, 0.0, 0.0, 0.0]))
    served = ensemble(subs, standardize=False)
    assert (served(x).softmax(1)[:, 0] == 1).all()  # in float32
    made = explain(Explain(), served, x, torch.zeros(4, dtype=torch.int64))
    assert (made.flatten(1).amax(1) > 0).all()
    assert (served(x).double().log_softmax(1)[:, 0] < 0).all()  # confidences that do not tie


@pytest.mark.parametrize("name", EXPLAINER_SETTINGS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_explainer_explains_it(name: ExplainerName, architecture: Any) -> None:
    subs, x = sub_models(2, architecture), pictures(2, 32, 32)
    served = ensemble(subs, architecture=architecture, side=32)
    settings = Explain(name=name, samples=3, steps=4, segments=8, perturbations=20)
    maps = explain(settings, served, x, labels(2))
    assert maps.shape == (2, 32, 32) and maps.isfinite().all()
    if architecture == "mobilenet_v2":
        return  # untrained, its answers to pixels of 32x32 differ by rounding only
    assert (maps.flatten(1).std(1) > 0).all()
    one = explain(settings, subs[0], x, labels(2))
    assert (maps / maps.abs().max() - one / one.abs().max()).abs().max() > 0.01


def test_a_class_activation_map_weighs_the_maps_of_all_sub_models() -> None:
    subs, x, y = sub_models(), images(2, 32, 32), labels(2)
    served = ensemble(subs, side=32)
    layer = default_layer(served, x)
    assert layer == "nets.body.block3"
    features, slopes = layer_pass(served, x, y, layer)
    kept: list[Tensor] = []
    for sub in subs:
        sub.body.get_submodule("block3").register_forward_hook(lambda _m, _i, output: kept.append(output))
    z = torch.stack([sub(x) for sub in subs]).double()
    z = float(served.scale) * (z - z.mean(2, keepdim=True)) / z.std(2, correction=0, keepdim=True)
    score = z.softmax(2).mean(0).log().gather(1, y.unsqueeze(1)).sum()
    gradients = torch.autograd.grad(score, kept)
    torch.testing.assert_close(features, torch.cat(kept, 1), rtol=1e-3, atol=1e-3)
    expected = torch.cat(gradients, 1)
    torch.testing.assert_close(slopes, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
    coarse = sum((mean_weights(g) * a).sum(1, keepdim=True) for g, a in zip(gradients, kept, strict=True))
    assert isinstance(coarse, Tensor)
    wide = nn.functional.interpolate(coarse.relu(), (32, 32), mode="bilinear").squeeze(1).detach()
    made = explain(Explain(name="gradcam"), served, x, y)
    torch.testing.assert_close(made, wide, rtol=1e-2, atol=1e-3 * float(wide.max()))


def test_it_is_evaluated_in_every_arithmetic() -> None:
    served, x = ensemble(sub_models()), images()
    with torch.no_grad():
        torch.testing.assert_close(inference.fast(served, "folded")(x), served(x), rtol=1e-4, atol=1e-4)
        assert (inference.fast(served, "bf16")(x).exp() - served(x).exp()).abs().max() < 0.05


def test_one_part_is_plain_training() -> None:
    off = Defense(name="ensemble_partition", ensemble_partition=EnsemblePartition(parts=1))
    assert off.canonical() == Defense()
    assert not defenses.build(off).composed
    assert_same_weights(trained(off), trained(Defense()))


def test_refusals() -> None:
    defense = EnsemblePartitionDefense(EnsemblePartition(parts=3))
    with pytest.raises(ValueError, match="standardize to false"):
        defense.serve(lambda: net(classes=2), 2)
    allowed = EnsemblePartitionDefense(EnsemblePartition(parts=3, standardize=False))
    assert allowed.serve(lambda: net(classes=2), 2)(images()).shape == (4, 2)
    with pytest.raises(ValueError, match="3 parts has that many sub-models, not 2"):
        defense.compose(defense.serve(net, CLASSES), sub_models(2), members(), nobody)
    with pytest.raises(TypeError, match=r"'1', a LayerNorm"):
        widened(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm(4)), 2)


def test_two_classes_would_be_bare_votes() -> None:
    z = torch.tensor([[0.1, 0.3], [-5.0, 9.0]], dtype=torch.float64)
    torch.testing.assert_close(standardized(z), torch.tensor([[-1.0, 1.0]] * 2, dtype=torch.float64))


def test_the_scale_is_told() -> None:
    defense = EnsemblePartitionDefense(EnsemblePartition(parts=2))
    assert defense.figures() == {}
    served = defense.serve(net, CLASSES)
    assert isinstance(served, Ensemble)
    defense.compose(served, sub_models(2), members(), nobody)
    assert defense.figures() == {"scale": pytest.approx(float(served.scale))}
