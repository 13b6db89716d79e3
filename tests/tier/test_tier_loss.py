"""The TIER loss against a slow re-derivation of Algorithm 1 and eq. 3, option by option."""

import copy
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import Saliency
from scipy.special import log_softmax, softmax
from torch import Tensor, nn

from tests.tier.toys import images, labels, net, plain_net
from tier.config import Tier
from tier.defenses.tier import consistency, drop_variance, strength, tier_loss

EPOCH = 5  # the first after the default warm-up


def slow_masks(x: Tensor, attribution: Tensor, config: Tier) -> Tensor:
    """The masked images `(L, B, C, H, W)`, pixel by pixel."""
    batch, channels, height, width = x.shape
    made = x.detach().clone().repeat(len(config.levels), 1, 1, 1, 1)
    for index, level in enumerate(config.levels):
        for b in range(batch):
            values = attribution[b].flatten().tolist()
            order = sorted(range(len(values)), key=lambda i, values=values: (-values[i], i))
            for pixel in order[: max(1, round(level * height * width))]:
                for channel in range(channels):
                    fill = {
                        "channel_mean": x[b, channel].mean(), "scalar_mean": x[b].mean(), "zero": torch.tensor(0.0),
                    }[config.fill]  # fmt: skip
                    made[index, b, channel, pixel // width, pixel % width] = fill
    return made


def slow_attribution(model: nn.Module, x: Tensor, target: Tensor, config: Tier) -> Tensor:
    """A of Algorithm 1 by captum, reduced over channels."""
    signed = Saliency(model).attribute(x.clone().requires_grad_(), target=target, abs=False).detach()
    return signed.abs().mean(1) if config.channel_reduction == "mean_abs" else signed.mean(1).abs()


def slow_terms(clean: np.ndarray, masked: np.ndarray, y: list[int], config: Tier) -> dict[str, float]:
    """Eq. 3 from logits `(B, K)` and `(L, B, K)` in float64, by loops over levels and images."""
    levels, batch = masked.shape[:2]
    target = y if config.target == "label" else [int(row.argmax()) for row in clean]
    ce = -float(np.mean([log_softmax(clean[b])[y[b]] for b in range(batch)]))
    divergences, drops = [], [[0.0] * batch for _ in range(levels)]
    for level in range(levels):
        for b in range(batch):
            p, q = softmax(clean[b]), softmax(masked[level, b])
            divergences.append(sum(p[k] * math.log(p[k] / q[k]) for k in range(len(p))))
            f, g = (p, q) if config.confidence == "probability" else (clean[b], masked[level, b])
            drops[level][b] = float(f[target[b]] - g[target[b]])
    series = drops if config.variance == "batch" else [list(column) for column in zip(*drops, strict=True)]
    var = statistics.fmean(statistics.variance(values) for values in series)
    kl = statistics.fmean(divergences)
    return {"ce": ce, "kl": kl, "var": var, "loss": ce + config.lambda_ * (kl + config.beta * var)}


def _values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(term.detach()) for name, term in terms.items()}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"confidence": "probability"},
    {"variance": "levels"},
    {"confidence": "probability", "variance": "levels"},
    {"fill": "scalar_mean"},
    {"fill": "zero"},
    {"channel_reduction": "abs_mean"},
    {"target": "predicted"},
    {"target": "predicted", "confidence": "probability"},
    {"levels": (0.1,)},
    {"levels": (0.01, 0.3, 0.5, 0.9), "beta": 3.0, "lambda_": 0.5},
    {"beta": 0.0},
    {"batchnorm": "per_level"},
    {"batchnorm": "clean_statistics"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_against_algorithm_1(options: dict[str, Any]) -> None:
    config, model, x, y = Tier(**options), plain_net().train(), images(5, 9, 12), labels(5)
    clean = model(x).detach()
    target = y if config.target == "label" else clean.argmax(1)
    # each image on its own: without BatchNorm a batch is nothing but its images
    attribution = torch.cat([slow_attribution(model, x[b : b + 1], target[b : b + 1], config) for b in range(5)])
    masked = slow_masks(x, attribution, config)
    logits = torch.stack([model(level) for level in masked]).detach()
    expected = slow_terms(clean.double().numpy(), logits.double().numpy(), y.tolist(), config)
    total, terms = tier_loss(model, x, y, EPOCH, config)
    assert total is terms["loss"]
    assert _values(terms) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_options_change_something() -> None:
    """So that the comparison above could have failed for each."""
    model, x, y = plain_net(), images(5, 9, 12), labels(5)
    assert (model(x).argmax(1) != y).any()
    alike = {"batchnorm"}  # without BatchNorm
    losses = [float(tier_loss(model, x, y, EPOCH, Tier(**one))[0].detach()) for one in OPTIONS if not alike & set(one)]
    assert len({round(loss, 6) for loss in losses}) == len(losses)


@pytest.mark.parametrize("mode", ["stacked", "per_level", "clean_statistics"])
def test_batchnorm_options(mode: Any) -> None:
    config, x, y = Tier(batchnorm=mode), images(5), labels(5)
    model = net().train()
    by_hand = copy.deepcopy(model)
    attribution = slow_attribution(copy.deepcopy(model), x, y, config)  # in training mode, as the clean pass is
    masked = slow_masks(x, attribution, config)
    clean = by_hand(x).detach()
    after_clean = copy.deepcopy(by_hand.state_dict())
    if mode == "per_level":
        logits = torch.stack([by_hand(level) for level in masked]).detach()
    else:
        logits = by_hand(masked.flatten(0, 1)).detach().view(3, 5, -1)
    expected_state = after_clean if mode == "clean_statistics" else by_hand.state_dict()
    passes = {"stacked": 2, "per_level": 4, "clean_statistics": 1}[mode]

    expected = slow_terms(clean.double().numpy(), logits.double().numpy(), y.tolist(), config)
    assert _values(tier_loss(model, x, y, EPOCH, config)[1]) == pytest.approx(expected, rel=1e-3)
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert int(value) == passes
        else:
            torch.testing.assert_close(value, expected_state[name], rtol=1e-4, atol=1e-6)


def test_masked_levels_have_their_own_batch_statistics_or_share_them() -> None:
    x, y = images(5), labels(5)
    losses = {}
    for mode in ("stacked", "per_level", "clean_statistics"):
        model = net().train()
        losses[mode] = float(tier_loss(model, x, y, EPOCH, Tier(batchnorm=mode))[0].detach())
    assert losses["stacked"] == losses["clean_statistics"]
    assert losses["per_level"] != pytest.approx(losses["stacked"], rel=1e-4)


def _failing(model: nn.Module, at: int) -> None:
    """Make the model raise in its forward pass number `at`."""
    passes = []

    def hook(_module: nn.Module, _inputs: object) -> None:
        passes.append(1)
        if len(passes) == at:
            raise RuntimeError("broken pass")

    model.register_forward_pre_hook(hook)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("broken", [False, True])
def test_batchnorm_settings_come_back(momentum: float | None, broken: bool) -> None:
    model = net().train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = momentum
    if broken:
        _failing(model, 2)
        with pytest.raises(RuntimeError, match="broken"):
            tier_loss(model, images(), labels(), EPOCH, Tier(batchnorm="clean_statistics"))
    else:
        tier_loss(model, images(), labels(), EPOCH, Tier(batchnorm="clean_statistics"))
    for norm in norms:
        assert norm.momentum == momentum
        assert int(norm.num_batches_tracked) == 1


def _reference_gradient(model: nn.Module, x: Tensor, y: Tensor, config: Tier, detach: str) -> list[Tensor]:
    """Gradient of eq. 3 written out with torch; `detach` cuts one side of the KL."""
    masked = slow_masks(x, slow_attribution(model, x, y, config), config)
    clean, rows = model(x), torch.arange(len(x))
    kl, var = torch.zeros(()), torch.zeros(())
    for level in masked:
        logits = model(level)
        log_p, log_q = F.log_softmax(clean, 1), F.log_softmax(logits, 1)
        log_p, log_q = (log_p.detach() if detach == "p" else log_p), (log_q.detach() if detach == "q" else log_q)
        kl = kl + F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) / len(masked)
        drop = clean[rows, y] - logits[rows, y]
        var = var + ((drop - drop.mean()) ** 2).sum() / (len(x) - 1) / len(masked)
    total = F.cross_entropy(clean, y) + config.lambda_ * (kl + config.beta * var)
    return list(torch.autograd.grad(total, list(model.parameters())))


def test_the_gradient_goes_through_both_sides_of_the_kl() -> None:
    config, model, x, y = Tier(levels=(0.2, 0.5)), plain_net(), images(4, 8, 8), labels(4)
    total, _ = tier_loss(model, x, y, EPOCH, config)
    made = torch.autograd.grad(total, list(model.parameters()))
    expected = _reference_gradient(model, x, y, config, detach="nothing")
    for ours, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    for side in ("p", "q"):
        cut = _reference_gradient(model, x, y, config, detach=side)
        assert max(float((a - b).abs().max()) for a, b in zip(made, cut, strict=True)) > 1e-3


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """The mask is constant near the weights at hand, so a detached map leaves the gradient exact."""
    config, model, x, y = Tier(levels=(0.2, 0.5)), plain_net(), images(4, 8, 8), labels(4)
    weights = list(model.parameters())
    made = torch.autograd.grad(tier_loss(model, x, y, EPOCH, config)[0], weights)
    draw = torch.Generator().manual_seed(1)
    direction = [torch.randn(weight.shape, generator=draw) for weight in weights]
    values = []
    for step in (1e-2, -1e-2):
        with torch.no_grad():
            moved = copy.deepcopy(model)
            for weight, move in zip(moved.parameters(), direction, strict=True):
                weight += step * move
        masked = slow_masks(x, slow_attribution(model, x, y, config), config)  # the mask of the unmoved model
        with torch.no_grad():
            clean, logits = moved(x), torch.stack([moved(level) for level in masked])
        values.append(slow_terms(clean.double().numpy(), logits.double().numpy(), y.tolist(), config)["loss"])
    slope = sum(float((g * d).sum()) for g, d in zip(made, direction, strict=True))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-2, rel=2e-2)


class _Counted(torch.autograd.Function):
    """The identity, counting backward passes, and refusing to be differentiated twice."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _Counted.passes += 1
        return grad


class _Counting(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.sizes = model, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return _Counted.apply(self.model(x))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("mode", "sizes"), [("stacked", [4, 12]), ("clean_statistics", [4, 12]), ("per_level", [4, 4, 4, 4])]
)
def test_the_attribution_costs_one_backward_pass_and_no_second_derivative(mode: Any, sizes: list[int]) -> None:
    model, x, y = _Counting(plain_net()), images(4, 8, 8), labels(4)
    _Counted.passes = 0
    total, _ = tier_loss(model, x, y, EPOCH, Tier(batchnorm=mode))
    assert model.sizes == sizes
    assert _Counted.passes == 1
    total.backward()
    assert _Counted.passes == 1 + len(sizes)


def test_the_attribution_is_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    grad, found = torch.autograd.grad, []

    def spy(*arguments: Any, **options: Any) -> Any:
        found.append(grad(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(torch.autograd, "grad", spy)
    tier_loss(plain_net(), images(4, 8, 8), labels(4), EPOCH)
    assert [one.requires_grad for (one,) in found] == [False]


def test_both_ways_to_minimise_give_the_same_gradient() -> None:
    x, y = images(4), labels(4)
    first, second = net().train(), net().train()
    tier_loss(first, x, y, EPOCH)[0].backward()
    weights = list(second.parameters())
    torch.autograd.backward(tier_loss(second, x, y, EPOCH)[0], inputs=weights)
    for one, other in zip(first.parameters(), weights, strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_the_images_stay_as_they_are() -> None:
    x = images(4)
    before = x.clone()
    tier_loss(net().train(), x, labels(4), EPOCH)[0].backward()
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert x.grad is None


class TestWarmupAndSchedule:
    def test_constant(self) -> None:
        assert [strength(Tier(lambda_=7.0, warmup=5), epoch) for epoch in (0, 4, 5, 6, 99)] == [0, 0, 7, 7, 7]
        assert strength(Tier(lambda_=7.0, warmup=0), 0) == 7

    def test_linear_reaches_lambda_after_the_ramp(self) -> None:
        config = Tier(lambda_=8.0, warmup=2, lambda_schedule="linear", ramp=4)
        assert [strength(config, epoch) for epoch in range(8)] == [0, 0, 2, 4, 6, 8, 8, 8]

    @pytest.mark.parametrize(("config", "epoch"), [(Tier(), 0), (Tier(), 4), (Tier(lambda_=0.0), 50)])
    def test_plain_epochs_are_cross_entropy_alone(self, config: Tier, epoch: int) -> None:
        x, y, model, plain = images(4), labels(4), net().train(), net().train()
        total, terms = tier_loss(model, x, y, epoch, config)
        assert set(terms) == {"loss", "ce"}
        assert torch.equal(total, F.cross_entropy(plain(x), y))
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True)
        )

    def test_the_schedule_scales_both_terms(self) -> None:
        config = Tier(warmup=0, lambda_schedule="linear", ramp=10, lambda_=20.0)
        values = _values(tier_loss(plain_net(), images(4, 8, 8), labels(4), 2, config)[1])
        assert values["loss"] == pytest.approx(values["ce"] + 6.0 * (values["kl"] + 0.3 * values["var"]), rel=1e-5)


class TestDropout:
    @staticmethod
    def _model() -> nn.Sequential:
        return nn.Sequential(plain_net(classes=30), nn.Dropout(0.5), nn.Linear(30, 4)).train()

    def test_is_off_in_tier_s_passes_and_on_again(self) -> None:
        model, x, y = self._model(), images(4, 8, 8), labels(4)
        losses = [_values(tier_loss(model, x, y, EPOCH)[1]) for _ in range(2)]
        assert losses[0] == losses[1]
        assert losses[0] == _values(tier_loss(nn.Sequential(model[0], model[2]), x, y, EPOCH)[1])
        assert all(module.training for module in model.modules())

    def test_is_on_in_the_warm_up(self) -> None:
        model, x, y = self._model(), images(4, 8, 8), labels(4)
        assert len({float(tier_loss(model, x, y, 0)[0].detach()) for _ in range(4)}) > 1

    def test_comes_back_after_a_failure(self) -> None:
        model = self._model()
        _failing(model, 2)
        with pytest.raises(RuntimeError, match="broken"):
            tier_loss(model, images(4, 8, 8), labels(4), EPOCH)
        assert all(module.training for module in model.modules())

    def test_each_module_keeps_its_own_mode(self) -> None:
        model = nn.Sequential(net(), nn.Dropout(0.5), nn.Dropout(0.5)).train()
        model[0].body.block1.bn1.eval()
        model[1].eval()
        before = {name: module.training for name, module in model.named_modules()}
        tier_loss(model, images(4), labels(4), EPOCH)
        assert {name: module.training for name, module in model.named_modules()} == before


class TestCorners:
    @pytest.mark.parametrize("build", [plain_net, net])
    def test_a_batch_of_one_has_no_variance(self, build: Callable[[], nn.Module]) -> None:
        model = build().train()
        total, terms = tier_loss(model, images(1), labels(1), EPOCH)
        assert float(terms["var"].detach()) == 0.0
        total.backward()
        assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)
        assert max(float(weight.grad.abs().max()) for weight in model.parameters() if weight.grad is not None) > 0

    def test_a_batch_of_one_still_varies_over_levels_and_one_level_does_not(self) -> None:
        _, terms = tier_loss(plain_net(), images(1), labels(1), EPOCH, Tier(variance="levels"))
        assert float(terms["var"].detach()) > 0.0
        _, terms = tier_loss(plain_net(), images(4), labels(4), EPOCH, Tier(variance="levels", levels=(0.2,)))
        assert float(terms["var"].detach()) == 0.0

    @pytest.mark.parametrize("fill", ["channel_mean", "scalar_mean"])
    def test_constant_images_are_not_moved_by_their_mean(self, fill: Any) -> None:
        x = torch.tensor([0.0, 0.25, 1.0]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
        _, terms = tier_loss(plain_net(), x, labels(3), EPOCH, Tier(fill=fill))
        assert _values(terms)["kl"] == pytest.approx(0.0, abs=1e-9)
        assert _values(terms)["var"] == pytest.approx(0.0, abs=1e-9)

    def test_two_classes_and_grey_images(self) -> None:
        x = images(4)[:, :1].expand(-1, 3, -1, -1)
        total, _ = tier_loss(net(classes=2).train(), x, labels(4, 2), EPOCH)
        assert torch.isfinite(total)

    def test_certain_predictions_stay_finite(self) -> None:
        clean = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
        perturbed = torch.tensor([[[-300.0, 0.0, 300.0]]], requires_grad=True)
        kl = consistency(clean, perturbed)
        assert float(kl.detach()) == pytest.approx(600.0)
        kl.backward()
        assert clean.grad is not None
        assert torch.isfinite(clean.grad).all()

    def test_equal_predictions_cost_nothing(self) -> None:
        logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        same = logits.expand(3, -1, -1)
        assert float(consistency(logits, same)) == 0.0
        assert float(drop_variance(logits, same, labels(5), Tier())) == 0.0

    def test_an_equal_drop_of_all_images_has_no_variance_over_the_batch_but_over_levels(self) -> None:
        logits = torch.zeros(5, 4)
        perturbed = torch.stack([logits - 1.0, logits - 3.0])
        assert float(drop_variance(logits, perturbed, labels(5), Tier())) == 0.0
        assert float(drop_variance(logits, perturbed, labels(5), Tier(variance="levels"))) == pytest.approx(2.0)

    def test_a_diverged_model_has_no_map(self) -> None:
        model = plain_net()
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
        with pytest.raises(ValueError, match="NaN"):
            tier_loss(model, images(4), labels(4), EPOCH)
