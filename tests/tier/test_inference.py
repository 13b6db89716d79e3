"""The fast forward passes against the plain model, on every architecture and on nets with nothing to fold."""

import copy
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tier.toys import images, labels, net, plain_net
from tier import models
from tier.config import ArchitectureName, Explain, InferenceKind, Model, Trajectory
from tier.explainers import attributions
from tier.inference import KINDS, ROUNDS, choose, fast, folded, images_per_second, usable
from tier.trajectories import trajectories

every_architecture = pytest.mark.parametrize("architecture", get_args(ArchitectureName))

BF16 = {"small": 0.06, "resnet18_cifar": 0.08, "resnet18_imagenet": 0.15, "mobilenet_v2": 0.6}
"""Largest change of the logits in bfloat16, root mean square, beside how much they vary between images.

Twice what was measured: a bfloat16 has 8 bits, and an untrained net of 53 layers amplifies what they lose.
"""


def logits(model: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(x)


def lifelike(model: nn.Module, size: int = 32) -> nn.Module:
    """Every BatchNorm with a scale and a shift of its own and the statistics of what it sees, in evaluation mode.

    So folding has all four vectors to get right, and the logits of a random deep net still depend on the image.
    """
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(torch.rand(module.num_features, generator=draw) + 0.5)
                module.bias.copy_(torch.randn(module.num_features, generator=draw) * 0.2)
                module.momentum = 1.0
        model.train()(images(24, size, size, seed=5))
    return model.eval()


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@every_architecture
def test_folded_is_the_model_without_batchnorms(architecture: Any) -> None:
    model, x = lifelike(net(architecture)), images(6, 32, 32)
    expected, made = logits(model, x), logits(fast(model, "folded"), x)
    assert norms(model) > 0 and norms(folded(model)) == 0
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert not torch.equal(logits(fast(lifelike(net(architecture, seed=3)), "folded"), x), made)


@every_architecture
def test_bf16_is_near_the_model_and_gives_float32(architecture: Any) -> None:
    model, x = lifelike(net(architecture)), images(6, 32, 32)
    expected, made = logits(model, x), logits(fast(model, "bf16"), x)
    assert made.dtype == torch.float32
    change, spread = made - expected, expected - expected.mean(0)
    assert 0 < change.square().mean().sqrt() < BF16[architecture] * spread.square().mean().sqrt()


@pytest.mark.parametrize("kind", KINDS)
@every_architecture
def test_the_model_is_left_as_found_and_need_not_be_evaluated(architecture: Any, kind: Any) -> None:
    model, x = net(architecture), images(3, 32, 32)
    expected = logits(fast(model, kind), x)
    model.train()
    next(model.children()).eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    run = fast(model, kind)
    if kind != "fp32":  # which is the model itself
        assert torch.equal(logits(run, x), expected)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) and value.dtype == state[name].dtype
               for name, value in model.state_dict().items())  # fmt: skip
    assert (run is model) == (kind == "fp32")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_does_not_follow_the_model(kind: Any) -> None:
    model, x = net(), images(3)
    run = fast(model, kind)
    before = logits(run, x)
    with torch.no_grad():
        next(model.body.parameters()).mul_(1.5)
    assert torch.equal(logits(run, x), before) == (kind != "fp32")


def test_a_net_with_nothing_to_fold() -> None:
    model, x = plain_net(), images(3)
    torch.testing.assert_close(logits(fast(model, "folded"), x), logits(model, x))
    change = logits(fast(model, "bf16"), x) - logits(model, x)
    assert 0 < change.abs().max() < 0.05 * logits(model, x).abs().max()


def test_the_last_layer_may_be_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    assert logits(fast(model, "bf16"), images(2)).dtype == torch.float32


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("affine", [True, False])
def test_a_convolution_with_a_bias(groups: int, affine: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, groups=groups), nn.BatchNorm2d(6, affine=affine), nn.Flatten()
    ).eval()  # fmt: skip
    model[1].running_mean, model[1].running_var = torch.arange(6.0) - 2, torch.arange(6.0) + 0.5
    x = images(2, 9, 9)
    assert norms(folded(model)) == 0
    torch.testing.assert_close(logits(fast(model, "folded"), x), logits(model, x), rtol=1e-4, atol=1e-5)


class Shared(nn.Module):
    """A convolution whose output is read twice, one that runs twice, a norm by batch statistics: none may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.twice_read, self.twice_run, self.alone = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.by_batch = nn.BatchNorm2d(3, track_running_stats=False)
        for norm in (self.norm1, self.norm2):
            norm.running_mean, norm.running_var = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.5, 2.0, 3.0])

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice_read(x)
        x = self.twice_run(self.norm1(x) + x)
        return self.by_batch(self.alone(self.norm2(self.twice_run(self.norm2(x))))).flatten(1)


def test_only_what_may_be_folded_is() -> None:
    model, x = Shared().eval(), images(3, 6, 6)
    torch.testing.assert_close(logits(fast(model, "folded"), x), logits(model, x))
    assert norms(folded(model)) == 3


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if float(x.sum()) > 0 else -x.flatten(1)


@pytest.mark.parametrize("kind", ["folded", "bf16"])
def test_a_model_whose_steps_depend_on_the_pixels_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="cannot be traced, use inference fp32"):
        fast(Branching(), kind)


def test_which_kinds_a_model_can_have() -> None:
    assert usable(net()) == usable(plain_net()) == KINDS
    assert usable(Branching()) == ("fp32",)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_of_groups_of_channels_stay(kind: Any) -> None:
    model = models.build(Model(width=8, norm="group"), 4, torch.full((3,), 0.5), torch.full((3,), 0.25)).eval()
    x = images(5, 32, 32)
    expected, made = logits(model, x), logits(fast(model, kind), x)
    torch.testing.assert_close(made, expected, rtol=0, atol=0.06 * float(expected.std(0).max()))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no inference named 'int8'; there are fp32, folded, bf16"):
        fast(net(), "int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inference"):
        Trajectory.model_validate({"inference": "int8"})


def test_auto_has_to_be_replaced_first() -> None:
    assert "auto" not in KINDS
    with pytest.raises(ValueError, match="auto has to be measured first; name one of fp32, folded, bf16"):
        fast(net(), "auto")


class TestSpeed:
    """Images per second of each kind, the least of several times."""

    def test_every_kind_is_measured(self) -> None:
        made = images_per_second(lifelike(net()), images(5))
        assert set(made) == set(KINDS) and all(np.isfinite(value) and value > 0 for value in made.values())

    def test_only_the_kinds_asked_for_and_fp32_are_measured(self) -> None:
        assert set(images_per_second(net(), images(2), kinds=["folded"])) == {"fp32", "folded"}

    def test_what_is_fast_is_timed_more_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        times = iter([0.04] * 30 + [0.01] * 1000)
        monkeypatch.setattr("tier.inference._timed", lambda run, sample: next(times))
        assert images_per_second(net(), images(1)) == pytest.approx(dict.fromkeys(KINDS, 100.0))

    def test_the_first_pass_and_what_slows_one_down_do_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steady = {"fp32": 0.3, "folded": 0.2, "bf16": 0.4}
        passes = [(kind, 9.0) for kind in steady] + [(kind, 2 * steady[kind]) for kind in steady]
        passes += [(kind, steady[kind]) for _ in range(ROUNDS) for kind in steady]
        times = iter([seconds for _, seconds in passes])
        monkeypatch.setattr("tier.inference._timed", lambda run, sample: next(times))
        made = images_per_second(net(), images(4))
        assert made == pytest.approx({kind: 4 / seconds for kind, seconds in steady.items()})


class TestChoice:
    """The fastest kind, of those that change little, if it gains enough."""

    @staticmethod
    def chosen(
        speed: tuple[float, ...], confidence: tuple[float, ...] = (0.0, 0.0), auc: tuple[float, ...] = (0.0, 0.0)
    ) -> str:
        """The choice at speeds relative to fp32 and errors of folded and bf16."""

        def by_kind(of_fp32: float, others: tuple[float, ...]) -> dict[InferenceKind, float]:
            return dict(zip(KINDS, (of_fp32, *others), strict=True))

        return choose(by_kind(1.0, speed), by_kind(0.0, confidence), by_kind(0.0, auc))

    def test_the_fastest(self) -> None:
        assert self.chosen((1.5, 2.0)) == "bf16"
        assert self.chosen((2.5, 2.0)) == "folded"

    @pytest.mark.parametrize("speed", [(0.5, 0.9), (1.09, 1.05), (1.0, 1.0)])
    def test_fp32_where_none_gains_a_tenth(self, speed: tuple[float, ...]) -> None:
        assert self.chosen(speed) == "fp32"
        assert self.chosen((*speed[:1], 1.11)) == "bf16"

    @pytest.mark.parametrize("change", [0.011, 1.0, float("nan")])
    def test_a_confidence_that_changes_too_much(self, change: float) -> None:
        assert self.chosen((1.5, 2.0), confidence=(0.01, change)) == "folded"
        assert self.chosen((1.5, 2.0), confidence=(change, change)) == "fp32"

    @pytest.mark.parametrize("change", [0.0051, -0.0051, float("nan")])
    def test_an_auc_that_changes_too_much_either_way(self, change: float) -> None:
        assert self.chosen((1.5, 2.0), auc=(-0.005, change)) == "folded"
        assert self.chosen((1.5, 2.0), auc=(change, 0.005)) == "bf16"
        assert self.chosen((1.5, 2.0), auc=(change, change)) == "fp32"

    def test_fp32_is_left_where_nothing_is_finite(self) -> None:
        nothing = dict.fromkeys(KINDS, float("nan"))
        assert choose(dict.fromkeys(KINDS, 1.0), nothing, nothing) == "fp32"


class TestTrajectories:
    def _paths(self, inference: Any) -> Any:
        model, x, y = lifelike(net()), images(6), labels(6)
        maps = attributions(Explain(), model, x, y).maps["gradient"]
        return trajectories(model, x, y, maps, Trajectory(inference=inference))

    @pytest.mark.parametrize(("kind", "tolerance"), [("folded", 1e-4), ("bf16", 0.1)])
    def test_the_setting_acts(self, kind: Any, tolerance: float) -> None:
        plain, made = self._paths("fp32"), self._paths(kind)
        for order in ("morf", "lerf"):
            change = abs(getattr(made, order) - getattr(plain, order)).max()
            assert 0 < change < tolerance

    def test_the_default_keeps_keys(self) -> None:
        assert Trajectory().changed() == Trajectory(inference="fp32").changed() == {}
        assert Trajectory(inference="bf16").changed() == {"inference": "bf16"}
