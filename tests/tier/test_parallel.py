"""Training by several processes: the same as one process with the whole batch, and what happens when one is lost.

Sums are in another order, so float32 figures agree to its precision, 1e-7, and what training makes of that: over a few
epochs losses agree to a relative 1e-5 and weights to 1e-4. The processes themselves agree bit for bit.
"""

import json
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.tier.toys import problem
from tests.tier.training_runs import SMALL, assert_same_weights, column, trained
from tier import defenses, experiment, parallel, training
from tier.config import Defense, DefenseName, Experiment, LabelSmoothing, Model, RelaxLoss, Tier, Train
from tier.context import Cancelled
from tier.defenses.tier import drop_variance
from tier.store import Store
from tier.training import Diverged, Hooks, Problem, State, start

pytestmark = pytest.mark.xdist_group("parallel")  # the trainings that most tests look at are made once

MEMBERS = 23  # batches of 7, 7, 7 and 2: uneven for two processes, and one of three has nothing of the last
TRAIN = Train(epochs=4, batch_size=7, learning_rate=3e-3, threads=1)
FULL = Defense(name="tier_full", tier=Tier(warmup=1))
COUNTS = (7, 1)  # images of a batch of layers: an uneven share, and an empty one


def _tier(**settings: Any) -> Defense:
    return Defense(name="tier_full", tier=Tier(warmup=1, **settings))


RUNS: dict[str, tuple[Defense, Train, Model]] = {
    "plain": (Defense(), TRAIN, SMALL),
    "augmentation": (Defense(name="augmentation"), TRAIN.model_copy(update={"optimizer": "sgd"}), SMALL),
    "full": (FULL, TRAIN, SMALL),
    "per_level": (_tier(batchnorm="per_level"), TRAIN, SMALL),
    "clean_statistics": (_tier(batchnorm="clean_statistics", confidence="probability"), TRAIN, SMALL),
    "levels": (_tier(variance="levels"), TRAIN.model_copy(update={"gradient_clip": 0.5}), SMALL),
    "dropout": (
        Defense(name="label_smoothing", label_smoothing=LabelSmoothing(amount=0.1)),
        TRAIN.model_copy(update={"epochs": 1, "batch_size": MEMBERS}),
        Model(architecture="mobilenet_v2"),
    ),
}


def members(model: Model = SMALL) -> Problem:
    """Images so large that BatchNorm's variance over the last batch's two is never that of two values."""
    size = 64 if model.architecture == "mobilenet_v2" else 16
    return problem(MEMBERS, height=size, width=size)


def fitted(processes: int = 2, hooks: Hooks | None = None, **settings: Any) -> State:
    """A run of TIER by so many processes."""
    train, data = TRAIN.model_copy(update={"processes": processes, **settings}), members()
    return parallel.fit(data, start(data, SMALL, train), FULL, SMALL, train, hooks or Hooks())


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "tier.parallel" in each.cmdline()]


# ---- two processes that show what each of them has


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both processes of a group have computed, by name."""
    folder = tmp_path_factory.mktemp("shown")
    torch.multiprocessing.spawn(_show, (str(folder),), nprocs=2)
    return [safetensors.numpy.load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def _show(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    with parallel._group(Path(folder), rank, 2, timedelta(seconds=100)):
        for count in COUNTS:
            arrays |= {f"{count}.{name}": value for name, value in _layers(count, parallel.Group()).items()}
        for name, (defense, train, model) in RUNS.items():
            data = members(model)
            state = parallel._train(data, start(data, model, train), defenses.build(defense), train, Hooks(), None)
            arrays |= {f"{name}.{key}": value for key, value in state.tensors().items()}
            losses = [[event[term] or 0.0 for term in training.TERMS] for event in state.events]
            arrays[f"{name}.losses"] = np.array(losses)
            assert not any(isinstance(m, (parallel._BatchNorm, parallel._Dropout)) for m in state.model.modules())
    safetensors.numpy.save_file(arrays, f"{folder}/{rank}.safetensors")


def _batch(count: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A layer with BatchNorm of its own and dropout, images far from 0, and weights of the outputs in a loss."""
    draw = torch.Generator().manual_seed(count)
    norm, drop = nn.BatchNorm2d(3), nn.Dropout(0.4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.5, -2.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.0, -0.3]))
    x = 50 + torch.randn(count, 3, 4, 4, generator=draw) * torch.tensor([1.0, 3.0, 0.5]).view(3, 1, 1)
    return nn.Sequential(norm, drop), x, torch.randn(count, 3, 4, 4, generator=draw)


def _layers(count: int, group: parallel.Group) -> dict[str, np.ndarray]:
    net, x, weight = _batch(count)
    own = group.share(count)
    leaf = x[own].clone().requires_grad_()
    norm = net[0]
    with parallel.joined(net, group):
        torch.manual_seed(5)
        out = net(leaf)
        ((out * weight[own]).sum() * float(group.images > 0)).backward()
    logits = [each[own].requires_grad_() for each in _logits(count)]
    var = drop_variance(logits[0], torch.stack([logits[1], logits[2]]), _labels(count)[own], Tier(), group.join)
    (var * group.images / count).backward()
    made = {"out": out.detach(), "dx": leaf.grad, "mean": norm.running_mean, "var": norm.running_var}
    made |= {"dweight": norm.weight.grad, "dbias": norm.bias.grad, "drops": var.detach().view(1)}
    made |= {f"dlogits{i}": each.grad for i, each in enumerate(logits)}
    return {name: value[: group.images].numpy() if name in _SHARED else value.numpy() for name, value in made.items()}


_SHARED = ("out", "dx", "dlogits0", "dlogits1", "dlogits2")  # one row per image


def _logits(count: int) -> list[Tensor]:
    return [torch.randn(count, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def _labels(count: int) -> Tensor:
    return torch.arange(count) % 4


@pytest.mark.slow
class TestLayers:
    """BatchNorm, dropout and TIER's variance, shared out, against PyTorch's own on the joined batch."""

    @pytest.fixture(params=COUNTS)
    def both(self, request: pytest.FixtureRequest, shown: list[dict[str, Any]]) -> tuple[int, dict[str, np.ndarray]]:
        """Per image the rows of both, of weights the sum, of all else what both must have alike."""
        count, joined = request.param, {}
        for name in (name for name in shown[0] if name.startswith(f"{request.param}.")):
            parts, short = [each[name] for each in shown], name.split(".")[1]
            if short in _SHARED:
                joined[short] = np.concatenate(parts)
            elif short in ("dweight", "dbias"):
                joined[short] = parts[0] + parts[1]
            else:
                assert parts[0].tobytes() == parts[1].tobytes()
                joined[short] = parts[0]
        return count, joined

    def test_batch_norm_and_dropout(self, both: tuple[int, dict[str, np.ndarray]]) -> None:
        count, made = both
        net, x, weight = _batch(count)
        leaf = x.clone().requires_grad_()
        torch.manual_seed(5)
        out = net(leaf)
        (out * weight).sum().backward()
        norm = net[0]
        assert leaf.grad is not None and norm.running_mean is not None
        for name, value in {
            "out": out.detach(), "dx": leaf.grad, "dweight": norm.weight.grad, "dbias": norm.bias.grad,
            "mean": norm.running_mean, "var": norm.running_var,
        }.items():  # fmt: skip
            np.testing.assert_allclose(made[name], value.numpy(), rtol=1e-4, atol=2e-4, err_msg=name)
        assert len(made["out"]) == count and (made["out"] == 0).any()

    def test_the_variance_of_drops(self, both: tuple[int, dict[str, np.ndarray]]) -> None:
        count, made = both
        logits = [each.requires_grad_() for each in _logits(count)]
        var = drop_variance(logits[0], torch.stack([logits[1], logits[2]]), _labels(count), Tier())
        var.backward()
        np.testing.assert_allclose(made["drops"], [var.item()], rtol=1e-5)
        for i, each in enumerate(logits):
            assert each.grad is not None
            np.testing.assert_allclose(made[f"dlogits{i}"], each.grad.numpy(), rtol=1e-4, atol=1e-6)
        assert (count > 1) == (np.abs(made["dlogits0"]).max() > 0)


class TestTheSameTraining:
    @pytest.mark.parametrize("name", RUNS)
    def test_as_one_process_with_the_whole_batch(self, name: str, shown: list[dict[str, Any]]) -> None:
        defense, train, model = RUNS[name]
        data = members(model)
        alone = trained(defense, train, data, model)
        expected = [[event[term] or 0.0 for term in training.TERMS] for event in alone.events]
        assert len(expected) == train.epochs
        if model.architecture == "mobilenet_v2":  # in float64 one process differs as much: 1e-5 before the first step
            np.testing.assert_allclose(shown[0][f"{name}.losses"], expected, rtol=1e-4)
            return
        np.testing.assert_allclose(shown[0][f"{name}.losses"], expected, rtol=1e-5, atol=1e-6)
        for key, value in alone.tensors().items():
            if key.startswith("model."):
                np.testing.assert_allclose(shown[0][f"{name}.{key}"], value, rtol=1e-3, atol=1e-4, err_msg=key)

    @pytest.mark.parametrize("name", RUNS)
    def test_both_processes_hold_the_same(self, name: str, shown: list[dict[str, Any]]) -> None:
        mine, theirs = ({k: v for k, v in each.items() if k.startswith(f"{name}.")} for each in shown)
        assert mine.keys() == theirs.keys()
        assert len(mine) > 10
        assert [key for key in mine if mine[key].tobytes() != theirs[key].tobytes()] == []


# ---- real runs


@pytest.mark.slow
def test_three_processes_train_as_one_and_resume_to_the_same_bits() -> None:
    kept: dict[int, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    hooks = Hooks(checkpoint=lambda state: kept.update({state.epoch: (state.tensors(), list(state.events))}))
    unbroken = fitted(3, hooks=hooks)
    alone = fitted(1)
    np.testing.assert_allclose(column(unbroken, "loss"), column(alone, "loss"), rtol=1e-5)
    assert column(unbroken, "test_accuracy") == column(alone, "test_accuracy")
    assert children() == []

    train, data = TRAIN.model_copy(update={"processes": 3}), members()
    resumed = start(data, SMALL, train)
    arrays, events = kept[2]
    resumed.load(arrays, json.loads(json.dumps(events)))
    parallel.fit(data, resumed, FULL, SMALL, train)
    assert_same_weights(resumed, unbroken)
    assert column(resumed, "loss") == column(unbroken, "loss")


def test_cancelled_within_a_batch_and_all_of_them_end() -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        if children() and dist.is_initialized():  # past the start
            asked.append(len(children()))
        return len(asked) > 5

    with pytest.raises(Cancelled, match="epoch 2, batch 2"):
        fitted(hooks=Hooks(cancelled=cancelled))
    assert asked == [1] * 6
    assert children() == []
    assert not dist.is_initialized()


def test_cancelled_before_they_are_there() -> None:
    with pytest.raises(Cancelled, match="before"):
        fitted(hooks=Hooks(cancelled=lambda: True))
    assert children() == []


def test_a_killed_process_ends_the_run_with_an_error() -> None:
    kept: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        if event["epoch"] == 2:
            children()[0].send_signal(signal.SIGKILL)

    with pytest.raises(parallel.Lost, match=r"process 2 of 2 .* ended with status -9.*checkpoint is kept"):
        fitted(hooks=Hooks(event=kill, checkpoint=lambda state: kept.append(state.epoch)))
    assert kept == [1, 2]
    assert children() == []
    assert not dist.is_initialized()


@pytest.mark.slow
@pytest.mark.slow
def test_a_process_that_does_not_answer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_GRACE", 0.5)

    def halt(event: dict[str, Any]) -> None:
        children()[0].suspend()

    real = parallel._group
    monkeypatch.setattr(
        parallel, "_group", lambda folder, rank, size, _: real(folder, rank, size, timedelta(seconds=3))
    )
    with pytest.raises(parallel.Lost, match="does not answer"):
        fitted(hooks=Hooks(event=halt))
    assert children() == []


def test_a_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.sys, "executable", "/bin/false")
    with pytest.raises(parallel.Lost, match="process 2 of 2 of the training ended with status 1"):
        fitted()


def test_divergence_is_told_as_by_one_process() -> None:
    with pytest.raises(Diverged, match=r"a train\.learning_rate below"):
        fitted(learning_rate=1e30, schedule="constant")
    assert children() == []


@pytest.mark.parametrize(("kind", "error"), [("Diverged", Diverged), ("MemoryError", parallel.Lost)])
def test_what_befell_another_process_is_raised_here(kind: str, error: type[Exception], tmp_path: Path) -> None:
    class Ended:
        returncode = 1

        def poll(self) -> int:
            return self.returncode

    (tmp_path / "error-1.json").write_text(json.dumps({"kind": kind, "message": "no room"}))
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    with pytest.raises(error, match="no room"):
        parallel._explain(broken, [Ended()], tmp_path)  # type: ignore[list-item]
    own = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        parallel._explain(own, [Ended()], tmp_path)  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["dpsgd_eps100", "dpsgd_tuned", "distillation", "relaxloss"])
def test_some_defenses_need_one_process(name: Any) -> None:
    with pytest.raises(ValueError, match=f"'{name}' trains with train.processes = 1 only: .+"):
        parallel.refuse(Defense(name=name), 2)
    parallel.refuse(Defense(name=name), 1)


def test_what_is_off_is_plain_training() -> None:
    parallel.refuse(Defense(name="relaxloss", relaxloss=RelaxLoss(alpha=0.0)), 2)
    names: tuple[DefenseName, ...] = ("none", "tier_full", "memguard", "ensemble_partition", "early_stopping")
    for name in names:
        parallel.refuse(Defense(name=name), 2)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.SyncBatchNorm(3), nn.Dropout2d(), nn.BatchNorm2d(3, affine=False)]
)
def test_layers_that_would_see_a_share_only_are_refused(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match="would look at a share only"), parallel.joined(nn.Sequential(layer), None):  # type: ignore[arg-type]
        pass


# ---- in the pipeline


def _experiment(processes: int) -> Experiment:
    small = {
        "data.signs.classes": 4, "data.signs.images": 400, "data.image_size": 16, "split.target_train": 41,
        "split.target_test": 40, "split.shadow_train": 40, "split.shadow_test": 40, "train.epochs": 3,
        "train.threads": 1, "train.batch_size": 20, "train.processes": processes,
    }  # fmt: skip
    return Experiment(model=SMALL, defense=FULL).set(small)


def test_the_number_of_processes_is_part_of_the_key() -> None:
    pinned = {"data.fingerprint": "0"}
    one, two = (experiment.key("train", _experiment(n).set(pinned)) for n in (1, 2))
    assert one != two
    assert "processes" not in _experiment(1).train.changed()


def test_a_stage_trains_with_two(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    losses = {}
    for processes in (1, 2):
        trained = experiment.ensure(store, "train", _experiment(processes), need=["events.parquet"])
        losses[processes] = trained.frame("events.parquet")["loss"].to_numpy(float)
    np.testing.assert_allclose(losses[2], losses[1], rtol=1e-5)
    assert (losses[2] != losses[1]).any()
    refused = _experiment(2).with_(defense=Defense(name="distillation"))
    with pytest.raises(ValueError, match="its teachers answer in one process"):
        experiment.ensure(store, "train", refused)


@pytest.mark.slow
def test_nothing_is_left_when_a_daemon_that_trains_is_killed(tmp_path: Path) -> None:
    """Dask's workers are daemons, which may not have children by multiprocessing."""
    told = tmp_path / "child"
    worker = multiprocessing.get_context("spawn").Process(target=_train_for_long, args=(str(told),), daemon=True)
    worker.start()
    while not told.exists():
        assert worker.is_alive()
        time.sleep(0.1)
    child = psutil.Process(int(told.read_text()))
    assert child.is_running()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    child.wait(timeout=20)
    assert not child.is_running()


def _train_for_long(told: str) -> None:
    def tell(event: dict[str, Any]) -> None:
        part = Path(f"{told}.part")
        part.write_text(str(children()[0].pid))
        part.rename(told)

    fitted(hooks=Hooks(event=tell), epochs=100_000)
