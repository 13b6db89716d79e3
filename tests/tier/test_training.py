"""The training loop: what equals what bit for bit, resuming, diverging, cancelling, and what it reports."""

import copy
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score, top_k_accuracy_score
from torch import Tensor, nn, optim

from tests.tier.toys import problem
from tier import config, defenses, training
from tier.config import Defense, DpSgd, Model, Tier, Train
from tier.context import Cancelled
from tier.defenses import TierDefense
from tier.runtime import generator
from tier.training import (
    Diverged,
    Hooks,
    Problem,
    State,
    evaluate,
    fit,
    learning_rate,
    monitor,
    predict,
    sample_table,
    start,
)

SMALL = Model(width=4)
# three batches an epoch, the last one shorter
QUICK = Train(epochs=3, batch_size=10, learning_rate=0.01, threads=1)
TIER = Tier(warmup=1)


def trained(
    defense: Defense, train: Train = QUICK, data: Problem | None = None, model: Model = SMALL, until: int | None = None
) -> State:
    data = data or problem()
    return fit(data, start(data, model, train), defenses.build(defense), train, until=until)


def assert_same_weights(first: State, second: State) -> None:
    a, b = first.tensors(), second.tensors()
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


def differ(first: State, second: State) -> bool:
    a, b = first.tensors(), second.tensors()
    return any(not np.array_equal(a[name], b[name]) for name in a)


def losses(state: State) -> list[float]:
    return [event["loss"] for event in state.events]


class TestEqualBitForBit:
    @pytest.mark.parametrize(("tier", "plain"), [("tier_full", "augmentation"), ("tier_reg", "none")])
    def test_lambda_zero_is_training_without_tier(self, tier: Any, plain: Any) -> None:
        ours = trained(Defense(name=tier, tier=Tier(lambda_=0.0, warmup=1)))
        theirs = trained(Defense(name=plain))
        assert_same_weights(ours, theirs)
        assert losses(ours) == losses(theirs)
        assert [event["kl"] for event in ours.events] == [None] * 3
        assert differ(trained(Defense(name=tier, tier=TIER)), theirs)

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    @pytest.mark.parametrize(("tier", "plain"), [("tier_full", "augmentation"), ("tier_reg", "none")])
    def test_runs_share_their_warm_up(self, tier: Any, plain: Any, optimizer: Any) -> None:
        train = QUICK.model_copy(update={"epochs": 4, "optimizer": optimizer})
        defense, data = Defense(name=tier, tier=Tier(warmup=2)), problem()
        warm = trained(Defense(name=plain), train, until=2)
        assert warm.epoch == 2
        shared = start(data, SMALL, train)
        shared.load(warm.tensors(), warm.events)
        fit(data, shared, defenses.build(defense), train)
        scratch = trained(defense, train)
        assert_same_weights(shared, scratch)
        assert losses(shared) == losses(scratch)
        assert [event["kl"] is None for event in scratch.events] == [True, True, False, False]

    @pytest.mark.parametrize(
        ("train", "width"),
        [
            ({"optimizer": "adamw"}, 4),
            ({"optimizer": "adamw"}, 7),
            ({"optimizer": "sgd"}, 4),
            ({"optimizer": "sgd", "momentum": 0.0}, 4),
            ({"optimizer": "adamw", "schedule": "cosine", "gradient_clip": 0.5}, 4),
            ({"optimizer": "sgd", "precision": "bf16"}, 4),
        ],
    )
    @pytest.mark.parametrize("name", ["augmentation", "tier_full"])
    def test_a_resumed_run_is_the_unbroken_run(self, name: Any, train: dict[str, Any], width: int) -> None:
        settings = QUICK.model_copy(update={"epochs": 4, **train})
        defense, data, model = Defense(name=name, tier=TIER), problem(), Model(width=width)
        unbroken = trained(defense, settings, data, model)
        first = trained(defense, settings, data, model, until=2)
        saved, events = first.tensors(), json.loads(json.dumps(first.events))
        fit(data, first, defenses.build(defense), settings)  # goes on: what was saved is a copy
        second = start(data, model, settings)
        second.load(saved, events)
        assert second.epoch == 2
        fit(data, second, defenses.build(defense), settings)
        assert_same_weights(second, unbroken)
        assert_same_weights(first, unbroken)
        assert losses(second) == losses(unbroken)

    def test_a_run_killed_in_mid_epoch_goes_on_from_its_checkpoint(self) -> None:
        data, defense = problem(), defenses.build(Defense(name="tier_full", tier=TIER))
        kept: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        asked = itertools.count()
        hooks = Hooks(
            checkpoint=lambda state: kept.append((state.tensors(), copy.deepcopy(state.events))),
            cancelled=lambda: next(asked) == 7,  # the second batch of the third epoch
        )
        with pytest.raises(Cancelled):
            fit(data, start(data, SMALL, QUICK), defense, QUICK, hooks)
        assert len(kept) == 2
        resumed = start(data, SMALL, QUICK)
        resumed.load(*kept[-1])
        fit(data, resumed, defense, QUICK)
        assert_same_weights(resumed, trained(Defense(name="tier_full", tier=TIER)))

    def test_the_same_settings_give_the_same_weights_whatever_was_drawn_before(self) -> None:
        first = trained(Defense(name="tier_full", tier=TIER))
        torch.rand(3)
        assert_same_weights(first, trained(Defense(name="tier_full", tier=TIER)))
        assert differ(first, trained(Defense(name="tier_full", tier=TIER), QUICK.model_copy(update={"seed": 1})))

    @pytest.mark.parametrize("lam", [0.0, 7.0])
    @pytest.mark.parametrize("base", ["none", "standard"])
    @pytest.mark.parametrize("name", ["none", "augmentation", "tier_reg", "tier_full"])
    def test_the_canonical_defense_is_the_same_computation(self, name: Any, base: Any, lam: float) -> None:
        defense = Defense(name=name, base_augmentation=base, tier=Tier(lambda_=lam, warmup=0))
        train = QUICK.model_copy(update={"epochs": 1})
        first, second = trained(defense, train), trained(defense.canonical(), train)
        assert_same_weights(first, second)
        assert losses(first) == losses(second)

    @pytest.mark.parametrize("name", ["none", "tier_full"])
    def test_dropout_draws_from_the_run_s_own_seed(self, name: Any) -> None:
        model, data = Model(architecture="mobilenet_v2"), problem(height=16, width=16)
        train, defense = QUICK.model_copy(update={"epochs": 2, "learning_rate": 1e-3}), Defense(name=name, tier=TIER)
        before = torch.get_rng_state()
        first = trained(defense, train, data, model, until=1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        resumed = start(data, model, train)
        resumed.load(first.tensors(), first.events)
        fit(data, resumed, defenses.build(defense), train)
        assert_same_weights(resumed, trained(defense, train, data, model))

    def test_loading_restores_layout_and_state_not_only_values(self) -> None:
        data = problem()
        first = trained(Defense(), data=data)
        second = start(data, SMALL, QUICK)
        second.load(first.tensors(), first.events)
        assert_same_weights(first, second)
        for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
            assert a.stride() == b.stride()
            assert first.optimizer.state[a].keys() == second.optimizer.state[b].keys()
            for slot, value in first.optimizer.state[a].items():
                assert second.optimizer.state[b][slot].stride() == value.stride()
                assert second.optimizer.state[b][slot].dtype == value.dtype


class TestDefenses:
    def test_terms_and_registry(self) -> None:
        with pytest.raises(ValueError, match="no defense named 'magic'; there are none, augmentation"):
            defenses.build(Defense.model_construct(name="magic"))
        assert isinstance(defenses.build(Defense(name="tier_reg")), TierDefense)
        assert defenses.build(Defense(name="none")).augmentation is None
        assert defenses.build(Defense(name="tier_reg")).augmentation is None
        for name in ("augmentation", "tier_full"):
            assert defenses.build(Defense(name=name)).augmentation == config.Augmentation()  # type: ignore[arg-type]
        standard = Defense(base_augmentation="standard", augmentation=config.Augmentation(rotation=3.0))
        assert defenses.build(standard).augmentation == config.Augmentation(rotation=3.0)

    def test_augmentation_and_its_settings_change_training(self) -> None:
        runs = [
            trained(Defense()),
            trained(Defense(name="augmentation")),
            trained(Defense(name="augmentation", augmentation=config.Augmentation(padding=1))),
        ]
        assert all(differ(a, b) for a, b in itertools.combinations(runs, 2))


class _Spy(defenses.Defense):
    """Plain training that notes each batch, or returns a loss of its own."""

    def __init__(self, losses: list[float] | None = None) -> None:
        super().__init__()
        self.noted: list[tuple[Tensor, Tensor]] = []
        self.losses = losses

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> dict[str, Tensor]:
        self.noted.append((x.clone(), y.clone()))
        terms = super().loss(model, x, y, epoch)
        if self.losses is not None:
            terms["loss"] = terms["loss"] * self.losses[len(self.noted) - 1]
        return terms


class TestDiverged:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_stops_at_once_with_advice_and_leaves_the_weights(self, bad: float) -> None:
        data, spy = problem(), _Spy([1.0, 1.0, 1.0, 1.0, bad])
        state, checkpoints = start(data, SMALL, QUICK), []
        after: list[dict[str, Tensor]] = []

        def cancelled() -> bool:
            after.append(copy.deepcopy(dict(state.model.named_parameters())))
            return False

        hooks = Hooks(checkpoint=lambda state: checkpoints.append(state.epoch), cancelled=cancelled)
        with pytest.raises(Diverged, match=r"diverged in epoch 2, batch 2 \(loss") as error:
            fit(data, state, spy, QUICK, hooks)
        assert len(spy.noted) == 5
        assert checkpoints == [1]
        assert all(torch.equal(weight, after[-1][name]) for name, weight in state.model.named_parameters())
        assert "learning_rate below 0.01" in str(error.value)
        assert "gradient_clip = 1" in str(error.value)
        assert "lambda" not in str(error.value)

    def test_does_not_advise_what_is_already_done(self) -> None:
        data, train = problem(), QUICK.model_copy(update={"gradient_clip": 1.0})
        with pytest.raises(Diverged) as error:
            fit(data, start(data, SMALL, train), _Spy([float("nan")]), train)
        assert "gradient_clip" not in str(error.value)

    @pytest.mark.parametrize(
        ("dpsgd", "named"),
        [
            (DpSgd(epsilon=None, noise=0.1, learning_rate=0.04), ("dpsgd.learning_rate below 0.04", "dpsgd.noise")),
            (DpSgd(), ("train.learning_rate below 0.01", "defense.dpsgd.epsilon")),
        ],
    )
    def test_names_the_settings_that_act_under_dpsgd(self, dpsgd: DpSgd, named: tuple[str, ...]) -> None:
        defense = defenses.build(Defense(name="dpsgd_eps100", dpsgd=dpsgd))
        told = "; ".join(defense.cures(defense.settings(QUICK)))
        assert all(name in told for name in (*named, "defense.dpsgd.clip"))
        assert "gradient_clip" not in told

    @pytest.mark.parametrize("defense", [Defense(name="none"), Defense(name="tier_reg", tier=Tier(warmup=0))])
    def test_a_huge_rate(self, defense: Defense) -> None:
        train = QUICK.model_copy(update={"optimizer": "sgd", "learning_rate": 1e30, "schedule": "constant"})
        with pytest.raises(Diverged, match=r"learning_rate below 1e\+30") as error:
            trained(defense, train)
        assert ("defense.tier.lambda" in str(error.value)) == (defense.name == "tier_reg")

    @pytest.mark.parametrize("defense", [Defense(name="none"), Defense(name="tier_reg", tier=Tier(warmup=0))])
    def test_a_checkpoint_never_holds_a_diverged_model(self, defense: Defense) -> None:
        """One batch an epoch: the step that ruins the weights is the epoch's last, after a finite loss."""
        train = QUICK.model_copy(
            update={"optimizer": "sgd", "learning_rate": 1e30, "batch_size": 24, "schedule": "constant"}
        )
        data, kept = problem(), []
        hooks = Hooks(checkpoint=lambda state: kept.append(copy.deepcopy(state.model)))
        with pytest.raises(Diverged):
            fit(data, start(data, SMALL, train), defenses.build(defense), train, hooks)
        for model in kept:
            assert torch.isfinite(predict(model, data.members)).all()

    def test_weights_ruined_by_the_last_step_are_reported_with_the_terms_that_acted(self) -> None:
        train = QUICK.model_copy(
            update={"optimizer": "sgd", "learning_rate": 1e30, "batch_size": 24, "schedule": "constant"}
        )
        data, told = problem(), []
        with pytest.raises(Diverged, match=r"epoch 1, last batch \(loss nan, ce nan\)"):
            fit(data, start(data, SMALL, train), defenses.build(Defense()), train, Hooks(event=told.append))
        assert told == []


class TestCancelled:
    @pytest.mark.parametrize("after", [0, 1, 4])
    def test_within_one_batch(self, after: int) -> None:
        data, spy, asked = problem(), _Spy(), itertools.count()
        with pytest.raises(Cancelled, match=f"epoch {after // 3 + 1}, batch {after % 3 + 1}"):
            fit(data, start(data, SMALL, QUICK), spy, QUICK, Hooks(cancelled=lambda: next(asked) >= after))
        assert len(spy.noted) == after


class TestBatches:
    @pytest.mark.parametrize(
        ("count", "size", "expected"),
        [
            (24, 10, [10, 10, 4]), (20, 10, [10, 10]), (21, 10, [10, 11]), (22, 10, [10, 10, 2]), (11, 10, [11]),
            (5, 10, [5]), (2, 10, [2]), (4, 1, [2, 2]), (5, 1, [2, 3]), (3, 2, [3]),
        ],
    )  # fmt: skip
    def test_no_batch_of_one(self, count: int, size: int, expected: list[int]) -> None:
        data, spy = problem(count), _Spy()
        data.members[:, 0, 0, 0] = torch.arange(count, dtype=torch.uint8)  # names the image
        train = QUICK.model_copy(update={"batch_size": size, "epochs": 1})
        fit(data, start(data, SMALL, train), spy, train)
        assert [len(x) for x, _ in spy.noted] == expected
        seen = torch.cat([(x[:, 0, 0, 0] * 255).round().long() for x, _ in spy.noted])
        assert sorted(seen.tolist()) == list(range(count))
        assert torch.equal(torch.cat([y for _, y in spy.noted]), data.member_labels[seen])

    def test_every_epoch_has_its_own_order(self) -> None:
        data, spy = problem(), _Spy()
        data.members[:, 0, 0, 0] = torch.arange(24, dtype=torch.uint8)
        fit(data, start(data, SMALL, QUICK), spy, QUICK)
        orders = [torch.cat([x[:, 0, 0, 0] for x, _ in spy.noted[i : i + 3]]).tolist() for i in (0, 3, 6)]
        assert orders[0] != orders[1] != orders[2] != orders[0]

    def test_one_image_is_refused(self) -> None:
        data = problem(1, classes=2)
        with pytest.raises(ValueError, match="at least two"):
            fit(data, start(data, SMALL, QUICK), _Spy(), QUICK)


class TestLearningRate:
    @pytest.mark.parametrize("steps", [2, 3, 4, 7, 10, 37, 100])
    @pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "constant"])
    def test_against_torch(self, schedule: Any, steps: int) -> None:
        settings = Train(schedule=schedule, learning_rate=0.02)
        dummy = optim.SGD([nn.Parameter(torch.zeros(1))], 0.02)
        theirs = {
            "one_cycle": lambda: optim.lr_scheduler.OneCycleLR(dummy, 0.02, total_steps=steps, cycle_momentum=False),
            "cosine": lambda: optim.lr_scheduler.CosineAnnealingLR(dummy, steps),
            "constant": lambda: optim.lr_scheduler.ConstantLR(dummy, 1.0),
        }[schedule]()
        for step in range(steps):
            expected = dummy.param_groups[0]["lr"]
            assert learning_rate(settings, step, steps) == pytest.approx(expected, rel=1e-6, abs=1e-12)
            dummy.step()
            if step < steps - 1:
                theirs.step()

    @pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "constant"])
    def test_a_single_step_has_a_usable_rate(self, schedule: Any) -> None:
        assert 0 < learning_rate(Train(schedule=schedule, learning_rate=0.02), 0, 1) <= 0.02

    def test_is_that_of_the_step_in_all_epochs(self) -> None:
        rates: list[float] = []
        data = problem()
        state = start(data, SMALL, QUICK)
        taken = state.optimizer.step
        state.optimizer.step = lambda *a: (rates.append(state.optimizer.param_groups[0]["lr"]), taken(*a))[1]  # type: ignore[assignment, method-assign, misc]
        fit(data, state, _Spy(), QUICK)
        assert rates == [learning_rate(QUICK, step, 9) for step in range(9)]


class TestOptimizer:
    def test_settings_arrive(self) -> None:
        data = problem()
        adam = start(data, SMALL, Train(weight_decay=0.07)).optimizer
        assert isinstance(adam, optim.AdamW)
        assert adam.defaults["weight_decay"] == 0.07
        sgd = start(data, SMALL, Train(optimizer="sgd", momentum=0.8, weight_decay=0.06)).optimizer
        assert isinstance(sgd, optim.SGD)
        assert (sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (0.8, 0.06)
        assert sgd.defaults["nesterov"]

    @pytest.mark.parametrize("clip", [None, 0.01])
    def test_the_gradient_is_clipped_to_its_norm(self, clip: float | None) -> None:
        train = Train(
            epochs=1, batch_size=24, optimizer="sgd", momentum=0.0, weight_decay=0.0, learning_rate=1.0,
            schedule="constant", gradient_clip=clip, threads=1,
        )  # fmt: skip
        data = problem()
        state = start(data, SMALL, train)
        before = [weight.detach().clone() for weight in state.model.parameters()]
        fit(data, state, defenses.build(Defense()), train)
        moved = [(b - a.detach()).flatten() for a, b in zip(state.model.parameters(), before, strict=True)]
        norm = float(torch.cat(moved).norm())
        assert norm == pytest.approx(0.01, rel=1e-3) if clip else norm > 0.02

    def test_weights_that_are_frozen_stay(self) -> None:
        data = problem()
        state = start(data, SMALL, QUICK)
        frozen = state.model.get_parameter("body.fc.weight")
        frozen.requires_grad_(False)
        before = frozen.clone()
        fit(data, state, defenses.build(Defense(name="tier_reg", tier=TIER)), QUICK, until=2)
        assert torch.equal(frozen, before)


class TestStart:
    def test_pixels_are_normalised_by_the_members_own_statistics(self) -> None:
        data = problem()
        model: Any = start(data, SMALL, QUICK).model
        pixels = data.members.numpy().astype(np.float64) / 255
        np.testing.assert_allclose(model.normalize.mean.flatten(), pixels.mean((0, 2, 3)), rtol=1e-5)
        np.testing.assert_allclose(model.normalize.std.flatten(), pixels.std((0, 2, 3)), rtol=1e-3)

    def test_constant_images_can_be_trained_on(self) -> None:
        data = problem()
        data.members.fill_(128)
        state = trained(Defense(name="tier_full", tier=TIER), data=data)
        assert all(math.isfinite(loss) for loss in losses(state))

    def test_grey_images_that_are_not_square(self) -> None:
        data = problem(height=8, width=12)
        grey = Problem(
            data.members[:, :1].expand(-1, 3, -1, -1), data.member_labels, data.nonmembers, data.nonmember_labels, 4
        )
        state = trained(Defense(name="tier_full", tier=TIER), data=grey)
        assert predict(state.model, grey.members).shape == (24, 4)

    def test_the_seed_decides(self) -> None:
        data = problem()
        assert_same_weights(start(data, SMALL, QUICK), start(data, SMALL, QUICK))
        assert differ(start(data, SMALL, QUICK), start(data, SMALL, QUICK.model_copy(update={"seed": 1})))


class TestEvents:
    def test_one_per_epoch_with_every_field(self) -> None:
        told: list[dict[str, Any]] = []
        data = problem()
        state = fit(data, start(data, SMALL, QUICK), defenses.build(Defense(name="tier_reg", tier=TIER)), QUICK,
                    Hooks(event=told.append))  # fmt: skip
        assert told == state.events
        assert [event["epoch"] for event in told] == [1, 2, 3]
        fields = {"epoch", "loss", "ce", "kl", "var", "train_accuracy", "test_accuracy", "gap_balanced_accuracy",
                  "loss_auc", "seconds"}  # fmt: skip
        assert all(set(event) == fields for event in told)
        assert told[0]["kl"] is None
        assert told[0]["var"] is None
        for event in told[1:]:
            assert event["loss"] == pytest.approx(event["ce"] + 7.0 * (event["kl"] + 0.3 * event["var"]), rel=1e-4)
        assert told[-1]["seconds"] > 0

    def test_the_loss_is_the_mean_over_images(self) -> None:
        """Batches of unequal size: steps too small to move a weight, so that all batches see the same net."""
        train = QUICK.model_copy(update={"epochs": 1, "learning_rate": 1e-30, "weight_decay": 0.0})
        data = problem()
        model = start(data, SMALL, train).model.train()
        order = torch.randperm(24, generator=generator("order", 0, 0))
        total = 0.0
        for rows in (order[:10], order[10:20], order[20:]):
            logits = model(data.members[rows].float() / 255)
            total += float(F.cross_entropy(logits, data.member_labels[rows], reduction="sum").detach())
        assert trained(Defense(), train).events[0]["loss"] == pytest.approx(total / 24, rel=1e-5)

    def test_figures_are_those_of_the_model_after_the_epoch(self) -> None:
        data = problem()
        state = trained(Defense(), data=data)
        figures = monitor(state.model, data)
        assert {name: state.events[-1][name] for name in figures} == figures

    def test_training_goes_on_until_told_and_stops_when_the_defense_says(self) -> None:
        assert trained(Defense(), until=2).epoch == 2
        assert trained(Defense(), until=0).epoch == 0

        class Early(defenses.Defense):
            def should_stop(self, history: list[dict[str, Any]]) -> bool:
                return len(history) == 1

        data = problem()
        assert fit(data, start(data, SMALL, QUICK), Early(), QUICK).epoch == 1

    def test_training_learns(self) -> None:
        train = Train(epochs=15, batch_size=12, learning_rate=0.01, threads=1)
        state = trained(Defense(), train)
        assert state.events[-1]["train_accuracy"] > 0.9
        assert state.events[-1]["loss"] < 0.5 * state.events[0]["loss"]


def test_bf16_stays_close_to_fp32() -> None:
    runs = {}
    for precision in ("fp32", "bf16"):
        train = QUICK.model_copy(update={"precision": precision, "learning_rate": 1e-3})
        runs[precision] = trained(Defense(name="tier_full", tier=TIER), train)
    assert differ(runs["fp32"], runs["bf16"])
    assert losses(runs["bf16"]) == pytest.approx(losses(runs["fp32"]), rel=0.03)
    assert all(weight.dtype == torch.float32 for weight in runs["bf16"].model.parameters())


class TestEvaluate:
    @pytest.mark.parametrize(("classes", "limit"), [(4, None), (7, None), (7, 20)])
    def test_against_scikit_learn(self, classes: int, limit: int | None) -> None:
        data = problem(35, classes)
        state = trained(Defense(), data=data)
        made = evaluate(state.model, data, limit)
        count = limit or 35
        with torch.no_grad():
            state.model.eval()
            groups = [state.model(images[:count].float() / 255).double() for images in (data.members, data.nonmembers)]
        truth = [data.member_labels[:count].numpy(), data.nonmember_labels[:count].numpy()]
        right = [(logits.argmax(1).numpy() == y) for logits, y in zip(groups, truth, strict=True)]
        loss = [
            -np.log(np.array([float(logits[i].softmax(0)[y[i]]) for i in range(count)]))
            for logits, y in zip(groups, truth, strict=True)
        ]
        member = [1] * count + [0] * count
        assert made["train_accuracy"] == pytest.approx(accuracy_score(truth[0], groups[0].argmax(1)))
        assert made["test_accuracy"] == pytest.approx(accuracy_score(truth[1], groups[1].argmax(1)))
        assert made["test_loss"] == pytest.approx(loss[1].mean(), rel=1e-5)
        assert made["gap_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(member, np.concatenate(right)))
        assert made["loss_auc"] == pytest.approx(roc_auc_score(member, -np.concatenate(loss)))
        if classes < 6:
            assert made["test_top5"] is None
        else:
            expected = top_k_accuracy_score(truth[1], groups[1].numpy(), k=5, labels=np.arange(classes))
            assert made["test_top5"] == pytest.approx(expected)

    def test_monitor_looks_at_the_first_images(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = problem(35)
        model = start(data, SMALL, QUICK).model
        monkeypatch.setattr(training, "MONITOR", 20)
        expected = evaluate(model, data, 20)
        assert monitor(model, data) == {name: expected[name] for name in monitor(model, data)}
        assert monitor(model, data) != {name: evaluate(model, data)[name] for name in monitor(model, data)}

    def test_predict_evaluates_in_batches_and_gives_the_mode_back(self) -> None:
        data = problem(13)
        model = start(data, SMALL, QUICK).model
        state = copy.deepcopy(model.state_dict())
        model.train()
        made = predict(model, data.members, batch_size=5)
        assert model.training
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(made, model(data.members.float() / 255), rtol=1e-4, atol=1e-5)
        predict(model, data.members)
        assert not model.training
        assert made.dtype == torch.float32

    def test_the_sample_table(self) -> None:
        data = problem(20, classes=7)
        state = trained(Defense(), data=data)
        table = sample_table(state.model, data)
        logits = torch.cat([predict(state.model, data.members), predict(state.model, data.nonmembers)]).double()
        labels = torch.cat([data.member_labels, data.nonmember_labels])
        assert table["member"].tolist() == [True] * 20 + [False] * 20
        assert table["label"].tolist() == labels.tolist()
        assert table["predicted"].tolist() == logits.argmax(1).tolist()
        log_p = logits.log_softmax(1)
        np.testing.assert_allclose(table["log_confidence"], log_p[torch.arange(40), labels])
        np.testing.assert_array_equal(table["loss"], -table["log_confidence"])
        assert table["loss"].dtype == np.float64
        best = logits.topk(5).indices
        assert table["in_top5"].tolist() == [bool((best[i] == labels[i]).any()) for i in range(40)]
        assert not table["in_top5"].all()
