"""DP-SGD: one step against a loop over images, sampling, accounting, resuming, and what stays on the model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from opacus.accountants import PRVAccountant
from opacus.validators import ModuleValidator
from scipy import integrate, optimize, stats
from torch import Tensor, nn

from tests.tier.toys import images, labels, plain_net, problem
from tests.tier.training_runs import ARCHITECTURES, QUICK, assert_same_weights, column, differ
from tier import config, defenses, experiment, models, training
from tier.config import Augmentation, Defense, DpSgd, Experiment, Train
from tier.context import Cancelled
from tier.defenses import dpsgd
from tier.defenses.augmentation import augment
from tier.defenses.dpsgd import DpSgdDefense, epsilon_of, noise_for, steps_per_epoch
from tier.runtime import as_pixels, generator
from tier.store import Store
from tier.training import Hooks, Problem, State

GROUPED = config.Model(width=4, norm="group")
GENTLE = DpSgd(epsilon=None, noise=0.05)
HALF = torch.full((3,), 0.5)
STILL = Augmentation(flip=False, rotation=0.0, padding=0)


def private(
    settings: DpSgd = GENTLE,
    train: Train = QUICK,
    data: Problem | None = None,
    model: config.Model = GROUPED,
    until: int | None = None,
    resume: tuple[dict[str, Any], list[dict[str, Any]]] | None = None,
    **of: Any,
) -> State:
    """A run as the pipeline makes it: the defense is asked for the loop's settings first."""
    data = data or problem()
    defense = defenses.build(Defense(name="dpsgd_tuned", dpsgd=settings, **of))
    chosen = defense.settings(train)
    state = training.start(data, model, chosen)
    if resume is not None:
        state.load(*resume)
    return training.fit(data, state, defense, chosen, until=until)


class Step:
    """One step of plain gradient descent at rate 1 on all of a batch, so that weights fall by the noisy gradient."""

    def __init__(
        self, net: nn.Module, x: Tensor, y: Tensor, settings: DpSgd, transform: Augmentation | None = None
    ) -> None:
        self.defense = DpSgdDefense(settings, transform)
        train = self.defense.settings(Train(batch_size=10, learning_rate=1.0, epochs=2, seed=3))
        sgd = torch.optim.SGD(net.parameters(), lr=1.0)
        data = Problem(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.zeros(40), x, y, 4)
        self.net, self.optimizer = self.defense.prepare(net, sgd, data)
        self.net.train()
        before = [weight.detach().clone() for weight in net.parameters()]
        self.defense.begin(torch.arange(len(x)), 1)
        terms = self.defense.loss(self.net, x, y, 1)
        self.loss = float(terms["loss"].detach())
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(terms["loss"], inputs=list(net.parameters()))
        assert all(weight.grad is None for weight in net.parameters())
        self.optimizer.step()
        self.fall = [old - new.detach() for old, new in zip(before, net.parameters(), strict=True)]
        self.train = train


def slow_gradients(net: nn.Module, x: Tensor, y: Tensor, draws: list[Tensor]) -> list[list[Tensor]]:
    """Image by image: the mean over its copies of the gradient of the loss; `draws` are (B, C, H, W), one per copy."""
    weights = list(net.parameters())
    found = []
    for image in range(len(y)):
        sums = [torch.zeros_like(weight) for weight in weights]
        for copy in draws:
            loss = F.cross_entropy(net(as_pixels(copy[image : image + 1])), y[image : image + 1])
            sums = [s + g for s, g in zip(sums, torch.autograd.grad(loss, weights), strict=True)]
        found.append([s / len(draws) for s in sums])
    return found


def norm(gradient: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in gradient))


def build(architecture: config.ArchitectureName, norm: Any = "group") -> nn.Module:
    model = config.Model(architecture=architecture, width=4, norm=norm)
    net = models.build(model, 4, torch.full((3,), 0.5), torch.full((3,), 0.25), 0)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # so that a step and the loop over images look at the same net
    return net


class TestNets:
    @pytest.mark.parametrize("architecture", ["small", "resnet18_cifar", "resnet18_imagenet", "mobilenet_v2"])
    def test_every_architecture_suits(self, architecture: Any) -> None:
        net = build(architecture).train()
        assert ModuleValidator.validate(net) == []
        assert not any(getattr(module, "inplace", False) for module in net.modules())
        assert ModuleValidator.validate(build(architecture, "batch").train())

    def test_batch_statistics_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"model\.norm = group.*BatchNorm"):
            private(model=config.Model(width=4))

    def test_the_pipeline_builds_what_suits(self) -> None:
        assert Experiment(defense=Defense(name="dpsgd_eps100")).net.norm == "group"

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_trains(self, architecture: Any, mode: Any) -> None:
        train = Train(epochs=1, batch_size=4, learning_rate=1e-3, threads=1)
        model = config.Model(architecture=architecture, width=4, norm="group")
        data = problem(8, height=32, width=32)
        state = private(GENTLE.model_copy(update={"grad_sample_mode": mode}), train, data, model)
        assert all(math.isfinite(value) for value in column(state, "loss"))
        assert differ(state, training.start(data, model, train))


class TestOneStep:
    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_against_a_loop_over_images(self, architecture: Any, mode: Any) -> None:
        x, y = as_pixels(images(5, 32, 32)), labels(5)
        self._compare(build(architecture), x, y, 1, None, mode)

    @pytest.mark.parametrize(("copies", "mode"), [(1, "hooks"), (3, "hooks"), (1, "ghost")])
    def test_the_mean_of_the_copies_is_clipped_once(self, copies: int, mode: Any) -> None:
        self._compare(build("small"), as_pixels(images(6)), labels(6), copies, Augmentation(), mode)

    def _compare(
        self, net: nn.Module, x: Tensor, y: Tensor, copies: int, transform: Augmentation | None, mode: Any
    ) -> None:
        rows = x.repeat_interleave(copies, 0)
        if transform is not None:
            rows = augment(rows, transform, generator("augmentation", 3, 1))
        draws = [rows[copy::copies] for copy in range(copies)]
        slow = slow_gradients(net, x, y, draws)
        lengths = sorted(map(norm, slow))
        clip = (lengths[2] + lengths[3]) / 2  # some images are clipped, some are not
        of = DpSgd(epsilon=None, noise=0.3, clip=clip, multiplicity=copies, grad_sample_mode=mode)
        step = Step(net, x, y, of, transform)
        draw = generator("privacy", 3, 1)
        for place, fall in enumerate(step.fall):
            clipped = sum(min(1.0, clip / norm(image)) * image[place] for image in slow)
            noise = torch.normal(0.0, 0.3 * clip, fall.shape, generator=draw)
            torch.testing.assert_close(fall, (clipped + noise) / 10, rtol=2e-3, atol=2e-5 * clip)

    def test_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = Step(build("small"), as_pixels(images(7)), labels(7), GENTLE)
        monkeypatch.setattr(dpsgd, "HELD", 3 * sum(weight.numel() for weight in build("small").parameters()))
        pieces = Step(build("small"), as_pixels(images(7)), labels(7), GENTLE)
        torch.testing.assert_close(pieces.fall, whole.fall, rtol=1e-4, atol=1e-6)
        assert pieces.loss == pytest.approx(whole.loss)

    def test_unheld_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ghost = DpSgd(epsilon=None, noise=0.05, grad_sample_mode="ghost")
        whole = Step(build("small"), as_pixels(images(7)), labels(7), ghost)
        x = as_pixels(images(7))
        monkeypatch.setattr(dpsgd, "UNHELD", 3 * x.shape[2] * x.shape[3])
        pieces = Step(build("small"), x, labels(7), ghost)
        torch.testing.assert_close(pieces.fall, whole.fall, rtol=1e-4, atol=1e-6)
        assert pieces.loss == pytest.approx(whole.loss)

    @pytest.mark.parametrize(("copies", "mode"), [(2, "hooks"), (1, "ghost")])
    def test_no_image_moves_the_sum_by_more_than_the_clip(self, copies: int, mode: Any) -> None:
        settings = DpSgd(epsilon=None, noise=0.0, clip=0.01, multiplicity=copies, grad_sample_mode=mode)
        x, y = as_pixels(images(6)), labels(6)
        falls = [
            Step(build("small"), x[:count], y[:count], settings, Augmentation(rotation=0.0, padding=0, flip=False)).fall
            for count in (6, 5)
        ]
        moved = 10 * norm([a - b for a, b in zip(*falls, strict=True)])
        assert 0.009 < moved <= 0.01 * (1 + 1e-3)

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_an_empty_batch_is_noise_alone(self, mode: Any) -> None:
        of = DpSgd(epsilon=None, noise=0.5, clip=2.0, grad_sample_mode=mode)
        step = Step(build("small"), as_pixels(images(0)), labels(0), of)
        draw = generator("privacy", 3, 1)
        for fall in step.fall:
            torch.testing.assert_close(fall, torch.normal(0.0, 1.0, fall.shape, generator=draw) / 10)
        assert step.loss == 0.0

    def test_copies_must_differ(self) -> None:
        with pytest.raises(ValueError, match="copies would be equal"):
            DpSgdDefense(DpSgd(multiplicity=2))

    def test_copies_have_to_be_held(self) -> None:
        with pytest.raises(ValueError, match="multiplicity to 1, or grad_sample_mode to hooks"):
            DpSgd(multiplicity=2, grad_sample_mode="ghost")


class TestNorms:
    @pytest.mark.parametrize("side", [3, 16])  # few places, whose products are taken, and many, whose gradient is
    @pytest.mark.parametrize(
        "how", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2}, {"bias": True}]
    )
    def test_of_a_convolution(self, side: int, how: dict[str, Any]) -> None:
        torch.manual_seed(0)
        layer = nn.Conv2d(8, 64, 3, **{"bias": False, **how})
        x = torch.randn(4, 8, side, side)
        width, places = 72 // layer.groups, layer(x)[0, 0].numel()
        assert (places * (width + 64 // layer.groups) < width * 64 // layer.groups) == (side == 3)
        out = layer(x)
        backprops = torch.randn_like(out)
        found = dpsgd.convolution_norms(layer, [x], backprops)
        assert set(found) == set(layer.parameters())
        for weight, norms in found.items():
            for image in range(4):
                own = torch.autograd.grad(layer(x[image : image + 1]), weight, backprops[image : image + 1])
                assert float(norms[image]) == pytest.approx(norm(list(own)), rel=1e-4)

    @pytest.mark.parametrize("how", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
    def test_other_paddings_are_refused(self, how: dict[str, Any]) -> None:
        layer = nn.Conv2d(3, 4, 3, **how)
        x = torch.randn(2, 3, 8, 8)
        with pytest.raises(ValueError, match="grad_sample_mode to hooks"):
            dpsgd.convolution_norms(layer, [x], layer(x))

    def test_dropout_is_the_same_in_both_passes(self) -> None:
        falls = []
        for mode in ("hooks", "ghost"):
            net = models.build(config.Model(architecture="mobilenet_v2", norm="group"), 4, HALF, HALF, 0)
            assert any(isinstance(module, nn.Dropout) and module.p > 0 for module in net.modules())
            torch.manual_seed(0)
            of = DpSgd(epsilon=None, noise=0.0, clip=0.1, grad_sample_mode=mode)  # type: ignore[arg-type]
            falls.append(Step(net, as_pixels(images(4, 32, 32)), labels(4), of).fall)
        torch.testing.assert_close(falls[1], falls[0], rtol=1e-3, atol=1e-6)


class TestSampling:
    COUNT, SIZE, EPOCHS = 200, 50, 300

    def _drawn(self) -> np.ndarray:
        """Which member is in which batch, `(epochs * 4, 200)` bool."""
        draw, defense = torch.Generator().manual_seed(0), DpSgdDefense(DpSgd())
        batches = [b for _ in range(self.EPOCHS) for b in defense.batches(self.COUNT, self.SIZE, draw)]
        drawn = np.zeros((len(batches), self.COUNT), bool)
        for row, batch in zip(drawn, batches, strict=True):
            row[batch.numpy()] = True
            assert len(batch) == row.sum()
        return drawn

    def test_each_member_with_the_same_probability_independently(self) -> None:
        drawn = self._drawn()
        assert drawn.shape == (4 * self.EPOCHS, self.COUNT)
        assert abs(drawn.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / drawn.size)
        sizes, often = drawn.sum(1), drawn.sum(0)
        # sizes vary as Binomial(200, 1/4) does (a shuffled pass has none), and so does how often a member is drawn
        assert sizes.var() == pytest.approx(37.5, rel=0.2)
        assert often.var() == pytest.approx(drawn.shape[0] * 0.25 * 0.75, rel=0.5)
        assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.01

    def test_a_full_batch_is_everybody(self) -> None:
        (batch,) = DpSgdDefense(DpSgd()).batches(5, 8, torch.Generator())
        assert batch.tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(("count", "size", "steps"), [(1000, 128, 8), (1000, 100, 10), (5, 8, 1), (7, 7, 1)])
    def test_steps_of_an_epoch(self, count: int, size: int, steps: int) -> None:
        assert steps_per_epoch(count, size) == steps

    def test_training_survives_empty_batches(self) -> None:
        train = QUICK.model_copy(update={"batch_size": 1, "epochs": 2})
        state = private(GENTLE, train, base_augmentation="standard")  # T of no image would fail
        drawn = DpSgdDefense(GENTLE).batches(24, 1, generator("order", 0, 0))
        assert any(len(batch) == 0 for batch in drawn)
        assert state.epoch == 2
        assert all(math.isfinite(value) for value in column(state, "loss"))


class TestPlain:
    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_without_noise_or_clipping_it_is_gradient_descent(self, mode: Any) -> None:
        settings = DpSgd(epsilon=None, noise=0.0, clip=1e6, grad_sample_mode=mode)
        plain = {"optimizer": "sgd", "momentum": 0.0, "schedule": "constant"}
        train = QUICK.model_copy(update={**plain, "batch_size": 24, "learning_rate": 0.1})
        data = problem()
        state = private(settings, train, data)
        net = models.build(GROUPED, 4, torch.full((3,), 0.5), torch.full((3,), 0.25), 0)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, weight_decay=train.weight_decay)
        before = net.state_dict()["body.fc.weight"].clone()
        for _ in range(train.epochs):
            optimizer.zero_grad()
            F.cross_entropy(net(as_pixels(data.members)), data.member_labels).backward()
            optimizer.step()
        for name, value in net.state_dict().items():
            torch.testing.assert_close(state.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)
        assert (net.state_dict()["body.fc.weight"] - before).abs().max() > 0.01

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_it_learns(self, mode: Any) -> None:
        train = QUICK.model_copy(update={"epochs": 20})
        found = column(private(DpSgd(epsilon=None, noise=0.02, grad_sample_mode=mode), train), "train_accuracy")
        assert found[-1] > 0.8


class TestLoop:
    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    @pytest.mark.parametrize(("copies", "mode"), [(1, "hooks"), (2, "hooks"), (1, "ghost")])
    def test_a_resumed_run_is_the_unbroken_run(self, copies: int, mode: Any, optimizer: Any) -> None:
        settings = DpSgd(epsilon=None, noise=0.3, multiplicity=copies, optimizer=optimizer, grad_sample_mode=mode)
        whole = private(settings)
        part = private(settings, until=2)
        again = private(settings, resume=(part.tensors(), json.loads(json.dumps(part.events))))
        assert_same_weights(again, whole)
        assert column(again, "loss") == column(whole, "loss")
        assert not [name for name in whole.tensors() if "_module" in name]

    def test_names_are_those_of_any_model(self) -> None:
        fresh = training.start(problem(), GROUPED, QUICK).model
        assert private().model.state_dict().keys() == fresh.state_dict().keys()

    def test_the_same_state_can_go_on(self) -> None:
        data, defense = problem(), defenses.build(Defense(name="dpsgd_tuned", dpsgd=GENTLE))
        train = defense.settings(QUICK)
        state = training.start(data, GROUPED, train)
        for until in (1, 3, None):
            training.fit(data, state, defense, train, until=until)
        assert_same_weights(state, private())

    def test_one_defense_can_train_twice(self) -> None:
        data, defense = problem(), defenses.build(Defense(name="dpsgd_tuned", dpsgd=GENTLE))
        train = defense.settings(QUICK.model_copy(update={"epochs": 1}))
        first, second = (training.fit(data, training.start(data, GROUPED, train), defense, train) for _ in range(2))
        assert_same_weights(first, second)

    def test_the_seed_draws_the_noise(self) -> None:
        assert_same_weights(private(), private())
        assert differ(private(), private(DpSgd(epsilon=None, noise=0.06)))

    @pytest.mark.parametrize("mode", ["hooks", "ghost"])
    def test_nothing_stays_on_the_model(self, mode: Any) -> None:
        seen = []

        def look(state: State) -> None:
            for module in state.model.modules():
                seen.append(bool(module._forward_hooks or module._backward_hooks or hasattr(module, "activations")))
            for name in ("grad_sample", "_norm_sample"):
                seen.extend(hasattr(weight, name) for weight in state.model.parameters())

        of = GENTLE.model_copy(update={"grad_sample_mode": mode})
        data, defense = problem(), defenses.build(Defense(name="dpsgd_tuned", dpsgd=of))
        train = defense.settings(QUICK)
        state = training.fit(data, training.start(data, GROUPED, train), defense, train, Hooks(checkpoint=look))
        training.evaluate(state.model, data)
        look(state)
        assert seen
        assert not any(seen)

    def test_nothing_stays_after_an_error(self) -> None:
        net = build("small").train()
        for hooks in (dpsgd._Hooks, dpsgd._NormHooks):
            with pytest.raises(IndexError), dpsgd.hooked(hooks(net)):
                F.cross_entropy(net(as_pixels(images(2))), torch.tensor([0, 7]))
        assert not any(module._forward_hooks or hasattr(module, "activations") for module in net.modules())

    def test_can_be_cancelled(self) -> None:
        data, defense = problem(), defenses.build(Defense(name="dpsgd_tuned", dpsgd=GENTLE))
        train = defense.settings(QUICK)
        with pytest.raises(Cancelled, match="epoch 1, batch 1"):
            training.fit(data, training.start(data, GROUPED, train), defense, train, Hooks(cancelled=lambda: True))

    def test_settings_in_their_place(self) -> None:
        own = DpSgd(batch_size=64, learning_rate=0.5, optimizer="sgd", momentum=0.5)
        made = DpSgdDefense(own).settings(Train(gradient_clip=1.0, precision="bf16", seed=4))
        changed = {"batch_size": 64, "learning_rate": 0.5, "optimizer": "sgd", "momentum": 0.5, "precision": "fp32"}
        assert made == Train(seed=4, gradient_clip=None, **changed)
        assert DpSgdDefense(DpSgd()).settings(Train(seed=4)) == Train(seed=4)

    def test_settings_come_first(self) -> None:
        net = build("small")
        with pytest.raises(RuntimeError, match="call settings"):
            DpSgdDefense(DpSgd()).prepare(net, torch.optim.SGD(net.parameters(), 0.1), problem())

    def test_the_members_pixels_are_not_published(self) -> None:
        assert private().model.get_buffer("normalize.mean").unique().tolist() == [0.5]
        assert private().model.get_buffer("normalize.std").unique().tolist() == [0.25]


class TestAugmentation:
    def test_equal_copies_are_one(self) -> None:
        one = Step(build("small"), as_pixels(images(4)), labels(4), GENTLE)
        settings = GENTLE.model_copy(update={"multiplicity": 3})
        three = Step(build("small"), as_pixels(images(4)), labels(4), settings, STILL)
        torch.testing.assert_close(three.fall, one.fall, rtol=1e-3, atol=1e-5)

    def test_only_where_it_is_asked_for(self) -> None:
        plain = Defense(name="dpsgd_tuned", dpsgd=GENTLE)
        copied = Defense(name="dpsgd_tuned", dpsgd=GENTLE.model_copy(update={"multiplicity": 2}))
        standard = plain.model_copy(update={"base_augmentation": "standard"})
        for defense, transformed in ((plain, False), (copied, True), (standard, True)):
            built = defenses.build(defense)
            assert isinstance(built, DpSgdDefense)
            assert built.augmentation is None  # the loop's own is off
            assert (built.transform is not None) == transformed == defense.augments
        assert differ(private(), private(base_augmentation="standard"))

    def test_the_copies_augmentation_is_part_of_the_key(self) -> None:
        turned = Augmentation(flip=False, padding=1)
        copied = Defense(name="dpsgd_tuned", dpsgd=DpSgd(multiplicity=2), augmentation=turned)
        assert copied.canonical().augmentation == turned
        single = Defense(name="dpsgd_tuned", augmentation=turned)
        assert single.canonical().augmentation == Augmentation()


def log_integral(values: np.ndarray, z: np.ndarray) -> float:
    """log of the integral of exp(values)."""
    top = values.max()
    return float(top + math.log(integrate.simpson(np.exp(values - top), x=z)))


def renyi(noise: float, rate: float, order: float) -> float:
    """The Renyi divergence of (1 - q) N(0, s^2) + q N(1, s^2) from N(0, s^2), by quadrature."""
    z = np.linspace(-12 * noise, order + 12 * noise, 20_001)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    values = order * ratio + stats.norm.logpdf(z, scale=noise)
    return log_integral(values, z) / (order - 1)


def slow_epsilon(noise: float, delta: float, rate: float, steps: int, orders: list[float]) -> float:
    return min(
        steps * renyi(noise, rate, a) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a in orders
    )


class TestAccounting:
    @pytest.mark.parametrize(("noise", "rate", "steps"), [(0.6, 0.128, 240), (1.0, 0.05, 500), (2.0, 0.2, 50)])
    def test_against_quadrature(self, noise: float, rate: float, steps: int) -> None:
        orders = [1.5, 2.0, 2.5, 3.2, 4.0, 5.5, 7.0, 9.0, 12.0, 16.0, 24.0]
        exact = slow_epsilon(noise, 1e-5, rate, steps, orders)
        ours = epsilon_of(noise, 1e-5, rate, steps)
        assert ours <= exact * (1 + 1e-6)  # the least over more orders
        assert ours == pytest.approx(exact, rel=0.05)

    @pytest.mark.parametrize(("noise", "steps"), [(0.5, 1), (4.0, 16), (10.0, 400)])
    def test_no_less_than_the_exact_cost_of_gaussian_noise(self, noise: float, steps: int) -> None:
        """Without sampling, k steps are one of noise s / sqrt(k), whose delta is known (Balle and Wang 2018, eq. 6)."""
        scale = math.sqrt(steps) / noise

        def excess(epsilon: float) -> float:
            kept = stats.norm.logcdf(-scale / 2 - epsilon / scale) + epsilon
            return float(stats.norm.cdf(scale / 2 - epsilon / scale) - np.exp(kept)) - 1e-5

        exact = optimize.brentq(excess, 1e-6, 200.0)
        assert exact <= epsilon_of(noise, 1e-5, 1.0, steps) < 1.15 * exact

    def test_no_less_than_the_numerical_accountant(self) -> None:
        tight = PRVAccountant()
        tight.history = [(0.8, 0.128, 240)]
        found = tight.get_epsilon(1e-5)
        assert found <= epsilon_of(0.8, 1e-5, 0.128, 240) < 1.15 * found

    def test_the_noise_for_an_epsilon_costs_it(self) -> None:
        for epsilon in (3.0, 100.0):
            noise = noise_for(epsilon, 1e-5, 0.128, 240)
            assert epsilon * (1 - 1e-3) <= epsilon_of(noise, 1e-5, 0.128, 240) <= epsilon

    def _told(self, settings: DpSgd) -> dict[str, float]:
        defense, net = DpSgdDefense(settings), build("small")
        defense.settings(Train(epochs=4, batch_size=6))
        defense.prepare(net, torch.optim.SGD(net.parameters(), 0.1), problem())
        return defense.figures()

    def test_what_is_told(self) -> None:
        told = self._told(DpSgd(epsilon=8.0, delta=1e-3, clip=0.7))
        noise = told["noise_multiplier"]
        assert told == {
            "epsilon": epsilon_of(noise, 1e-3, 0.25, 16), "delta": 1e-3, "noise_multiplier": noise, "clip": 0.7,
            "sample_rate": 0.25, "steps": 16,
        }  # fmt: skip
        assert 0 <= 8.0 - told["epsilon"] < 0.01

    def test_given_noise_is_priced(self) -> None:
        told = self._told(DpSgd(epsilon=None, noise=1.5, delta=1e-3))
        assert told["noise_multiplier"] == 1.5
        assert told["epsilon"] == epsilon_of(1.5, 1e-3, 0.25, 16)

    def test_without_noise_there_is_no_epsilon(self) -> None:
        assert "epsilon" not in self._told(DpSgd(epsilon=None, noise=0.0))

    @pytest.mark.parametrize("delta", [1 / 24, 0.5])
    def test_a_delta_that_protects_nobody_is_refused(self, delta: float) -> None:
        with pytest.raises(ValueError, match=r"with 24 members anything from 0\.0416667 up"):
            self._told(DpSgd(delta=delta))

    def test_a_net_of_other_layers(self) -> None:
        net = plain_net()
        step = Step(net, as_pixels(images(3)), labels(3), GENTLE)
        assert all(bool(fall.abs().max() > 0) for fall in step.fall)


def test_the_trained_model_explains_like_any_other(tmp_path: Path) -> None:
    small = {
        "data.signs.classes": 4, "data.signs.images": 200, "data.image_size": 32, "split.target_train": 20,
        "split.target_test": 20, "split.shadow_train": 20, "split.shadow_test": 20, "train.epochs": 2,
        "train.threads": 1, "train.batch_size": 10, "explain.name": "gradcam",
    }  # fmt: skip
    defense = Defense(name="dpsgd_eps100", dpsgd=DpSgd(multiplicity=2, delta=1e-3))
    e = Experiment(model=config.Model(width=4), defense=defense).set(small)
    store = Store(str(tmp_path))
    made = experiment.ensure(store, "maps", e, need=["maps.safetensors"])
    maps = made.arrays("maps.safetensors")["gradcam"]
    assert maps.shape == (40, 32, 32)
    assert np.isfinite(maps).all()
    assert maps.std() > 0
    trained = experiment.ensure(store, "train", e)
    assert trained.metrics["defense"]["epsilon"] == pytest.approx(100.0, rel=1e-3)
    assert trained.metrics["defense"]["steps"] == 4
