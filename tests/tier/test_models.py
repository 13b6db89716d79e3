"""Architectures against torchvision with equal weights, and what hooks and Opacus ask of them."""

import copy
import math
from typing import Any

import numpy as np
import opacus
import pytest
import torch
import torchvision
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from tests.tier.toys import images, labels, net
from tier import config, models
from tier.config import ArchitectureName

ARCHITECTURES: tuple[ArchitectureName, ...] = ("small", "resnet18_cifar", "resnet18_imagenet", "mobilenet_v2")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_resnet18_is_torchvision_s(stem: str) -> None:
    ours = net(f"resnet18_{stem}", classes=7)  # type: ignore[arg-type]
    theirs = torchvision.models.resnet18(weights=None, num_classes=7)
    if stem == "cifar":
        theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    theirs.load_state_dict(ours.body.state_dict())
    theirs.eval()
    x = images(2, 32, 40)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs((x - 0.5) / 0.25))


def test_mobilenet_is_torchvision_s() -> None:
    ours = net("mobilenet_v2", classes=7)
    theirs = torchvision.models.mobilenet_v2(weights=None, num_classes=7)
    theirs.load_state_dict(ours.body.state_dict())
    theirs.eval()
    x = images(2, 32, 40)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs((x - 0.5) / 0.25))


def test_the_small_net_s_maps_and_weights() -> None:
    model = net(width=8, classes=5)
    sizes: dict[str, Any] = {}
    for name in ("stem", "block1", "block2", "block3"):
        model.body.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: sizes.update({name: tuple(out.shape[1:])})
        )
    model(images(1, 32, 32))
    assert sizes == {"stem": (8, 16, 16), "block1": (8, 16, 16), "block2": (16, 8, 8), "block3": (32, 4, 4)}
    convolutions = 9 * (3 * 8 + 2 * 8 * 8 + 8 * 16 + 16 * 16 + 16 * 32 + 32 * 32) + 8 * 16 + 16 * 32
    norms = 2 * (3 * 8 + 3 * 16 + 3 * 32)
    assert sum(weight.numel() for weight in model.parameters()) == convolutions + norms + 32 * 5 + 5


@every_architecture
def test_pixels_are_normalised_by_fixed_statistics(architecture: ArchitectureName) -> None:
    mean, std = torch.tensor([0.1, 0.5, 0.7]), torch.tensor([0.2, 0.3, 0.1])
    model = models.build(config.Model(architecture=architecture, width=4), 4, mean, std).eval()
    x = images(2, 32, 32)
    shifted = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.body(shifted))
    assert {"normalize.mean", "normalize.std"} <= set(model.state_dict())
    assert not any(name.startswith("normalize") for name, _ in model.named_parameters())


@every_architecture
def test_weights_depend_on_the_seed_alone(architecture: ArchitectureName) -> None:
    settings, half = config.Model(architecture=architecture, width=4), torch.full((3,), 0.5)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    first = models.build(settings, 4, half, half, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # type: ignore[index]  # noqa: NPY002
    torch.rand(5)
    again = models.build(settings, 4, half, half, seed=3).state_dict()
    other = models.build(settings, 4, half, half, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(
        torch.equal(first[name], other[name]) for name in first if first[name].dim() == 4 and "norm" not in name
    )


@every_architecture
def test_initial_weights_are_he_s(architecture: ArchitectureName) -> None:
    half = torch.full((3,), 0.5)
    model = models.build(config.Model(architecture=architecture, width=32), 10, half, half)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 2000:
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            assert float(module.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)
            assert module.bias is None
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            assert 0.9 * bound < float(module.weight.detach().abs().max()) <= bound
            assert (module.bias == 0).all()


@every_architecture
def test_one_image_alone_not_square_or_grey(architecture: ArchitectureName) -> None:
    model, x = net(architecture), images(3, 32, 48)
    with torch.no_grad():
        together = model(x)
        assert together.shape == (3, 4)
        torch.testing.assert_close(model(x[1:2]), together[1:2], rtol=1e-4, atol=1e-4)
        assert torch.isfinite(model(x[:, :1].expand(-1, 3, -1, -1))).all()
        channels_last = net(architecture).to(memory_format=torch.channels_last)
        torch.testing.assert_close(
            channels_last(x.contiguous(memory_format=torch.channels_last)), together, rtol=1e-4, atol=1e-4
        )


@every_architecture
def test_no_operation_works_in_place(architecture: ArchitectureName) -> None:
    model = net(architecture)
    assert not [name for name, module in model.named_modules() if getattr(module, "inplace", False)]
    outputs: list[tuple[Tensor, int]] = []
    for module in model.modules():
        module.register_forward_hook(lambda _m, _i, out: outputs.append((out, out._version)))
    x = images(2, 32, 32)
    model(x)
    assert len(outputs) > 10
    assert all(output._version == version for output, version in outputs)  # `out += identity` would raise it
    assert x._version == 0


@every_architecture
def test_cam_candidates_run_in_the_order_named(architecture: ArchitectureName) -> None:
    model = net(architecture)
    ran: list[str] = []
    for name in model.cam_candidates:
        model.get_submodule(name).register_forward_hook(lambda _m, _i, _o, name=name: ran.append(name))
    model(images(1, 32, 32))
    assert tuple(ran) == model.cam_candidates


@every_architecture
def test_opacus_gives_each_image_its_own_gradient(architecture: ArchitectureName) -> None:
    fixed = ModuleValidator.fix(net(architecture).train())
    assert ModuleValidator.validate(fixed) == []
    for module in fixed.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    x, y, plain = images(2, 32, 32), labels(2), copy.deepcopy(fixed)
    sampled = opacus.GradSampleModule(fixed, loss_reduction="sum")
    nn.functional.cross_entropy(sampled(x.clone().requires_grad_()), y, reduction="sum").backward()
    for b in range(2):
        loss = nn.functional.cross_entropy(plain(x[b : b + 1]), y[b : b + 1])
        alone = torch.autograd.grad(loss, list(plain.parameters()))
        for (name, weight), one in zip(fixed.named_parameters(), alone, strict=True):
            assert weight.grad_sample.shape == (2, *weight.shape)
            torch.testing.assert_close(
                weight.grad_sample[b], one, rtol=1e-3, atol=1e-3 * float(one.abs().max()), msg=name
            )
