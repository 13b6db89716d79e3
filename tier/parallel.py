"""One model trained by several processes: each batch is shared out, its gradient is that of the whole batch.

The calling process is rank 0: events, checkpoints and cancellation stay there. It starts the others, which follow it to
their end, by `python -m tier.parallel`: the workers of Dask are daemons, which multiprocessing allows no children.
Gradients are averaged by PyTorch's DistributedDataParallel, over gloo on CPUs and NCCL with one GPU for each process.
What looks at a whole batch does so here too: BatchNorm, dropout's and augmentation's draws, TIER's variance. So one
process and several compute the same but for the order of their sums.
"""

import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil
import safetensors.numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from tier import config, defenses, training
from tier.context import Cancelled
from tier.runtime import device

TIMEOUT = 600.0
"""Seconds after which rank 0 gives up a process that lives but does not answer, or does not start. The others wait for
rank 0, which may be held up by a slow store, as long as it lives."""

log = logging.getLogger(__name__)
_QUIET = training.Hooks()
_FOR_GOOD = timedelta(days=365)
_POLL = 0.1  # seconds between two looks at processes that start
_GRACE = 5.0  # seconds after a broken connection in which the process at its other end is seen to have ended
_one = threading.Lock()  # PyTorch has one default process group


class Lost(RuntimeError):
    """Another process of the training ended or does not answer; the last checkpoint stays. The message says which."""


# ---- what looks at a whole batch


class Group(training.Peers):
    """The processes of the default process group. A process whose share of a batch is empty takes its first image with
    a weight of 0, so that all processes take part in every exchange.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0
        self.count = 0  # images of the batch
        self.places = slice(0, 0)  # of them, this process'

    @property
    def images(self) -> int:
        """How many images of the batch this process has."""
        return self.places.stop - self.places.start

    def wrap(self, model: nn.Module) -> nn.Module:
        # Buffers are the same everywhere by themselves, and would change between the passes of one step if copied. To
        # look for unused weights keeps PyTorch from dealing gradients into other buckets after the first step, which
        # would change the order of sums between a run and its resumed self.
        where = [device()] if device().type == "cuda" else None
        known = inspect.signature(DistributedDataParallel).parameters
        copies = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.14
        options: dict[str, Any] = {copies: False, "find_unused_parameters": True}
        return DistributedDataParallel(model, where, **options)

    def share(self, count: int) -> slice:
        self.count = count
        self.places = slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)
        return self.places if self.images else slice(0, 1)

    def values(self, terms: defenses.Terms) -> dict[str, float]:
        parts = torch.stack([term.detach().double() for term in terms.values()]) * (self.images / self.count)
        dist.all_reduce(parts)
        return dict(zip(terms, parts.tolist(), strict=True))

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * (self.size * self.images / self.count)  # DistributedDataParallel divides by the size

    def join(self, figures: Tensor) -> Tensor:
        """Figures `(L, B)` of the share -> `(L, N)` of the whole batch, on every process, with their gradients."""
        around = (self.places.start, self.count - self.places.stop)
        whole: Tensor = _Sum.apply(nn.functional.pad(figures[:, : self.images], around))
        return whole


class _Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class _Normalize(torch.autograd.Function):
    """BatchNorm in training by the statistics of all processes' images (Ioffe and Szegedy 2015, Algorithm 1).

    `(B, C, ...)` -> normalised, mean `(C,)`, biased variance `(C,)`. `count` is how many values a channel has here, 0
    if this process' images do not count, `total` in all processes. Sums cross the processes in float64, so that the
    variance is as exact as if taken in two passes.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, count: int, total: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        # many times faster than var_mean, channels being last in memory
        sums = torch.stack(torch.batch_norm_update_stats(x.float(), None, None, 0.0)).double()
        sums[1].addcmul_(sums[0], sums[0])
        dist.all_reduce(sums.mul_(count))
        first, second = sums.div_(total)
        mean, var = first.to(weight.dtype), (second - first.square()).clamp_(min=0.0).to(weight.dtype)
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.count, ctx.total = eps, count, total
        ctx.mark_non_differentiable(mean, var)
        return nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            dy.to(x.dtype), x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
        )  # as if mean and variance were constants: dx is dy * weight / std, the others are sums over x
        sums = torch.stack([dweight, dbias])
        dist.all_reduce(sums if ctx.count else sums.zero_())
        if ctx.count:  # images that do not count leave the statistics alone
            slope, shift = sums * (-weight * (var + ctx.eps).rsqrt() / ctx.total)
            dx = dx + nn.functional.batch_norm(x, mean, var, slope, shift, False, 0.0, ctx.eps)
        return dx, dweight, dbias, None, None, None


class _BatchNorm(nn.BatchNorm2d):
    """BatchNorm over the images of all processes; it shares weights and buffers with the layer that it stands for."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(self, norm: nn.BatchNorm2d, group: Group) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self._parameters, self._buffers = dict(norm._parameters), dict(norm._buffers)
        self.train(norm.training)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        count = x.numel() // x.shape[1]
        total = count // max(self.group.images, 1) * self.group.count
        own = count if self.group.images else 0
        out, mean, var = _Normalize.apply(x, self.weight, self.bias, self.eps, own, total)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (total / (total - 1)), self.momentum)
        return out


class _Dropout(nn.Dropout):
    """Dropout that draws for the whole batch, as one process would, and takes its share."""

    def __init__(self, drop: nn.Dropout, group: Group) -> None:
        super().__init__(drop.p)
        self.train(drop.training)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty(self.group.count, *x.shape[1:]).bernoulli_(1 - self.p).div_(1 - self.p)
        return x * kept[self.group.places if self.group.images else slice(0, 1)]


@contextmanager
def joined(model: nn.Module, group: Group) -> Iterator[None]:
    """Have the model's layers look at the whole batch; they are the plain ones again when it ends.

    Raises ValueError for layers that would not: statistics or draws of a kind that our nets do not have.
    """
    plain: dict[str, nn.Module] = {}
    for name, module in list(model.named_modules()):
        if type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats and module.momentum:
            plain[name] = module
            model.set_submodule(name, _BatchNorm(module, group))
        elif type(module) is nn.Dropout and not module.inplace:
            plain[name] = module
            model.set_submodule(name, _Dropout(module, group))
        elif isinstance(module, (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)):
            raise ValueError(f"train.processes above 1: {type(module).__name__} ({name}) would look at a share only")
    try:
        yield
    finally:
        for name, module in plain.items():
            module.train(model.get_submodule(name).training)
            model.set_submodule(name, module)


# ---- rank 0


_ALONE = {
    "dpsgd_eps100": "its privacy is counted for Poisson-sampled batches drawn by one process",
    "dpsgd_tuned": "its privacy is counted for Poisson-sampled batches drawn by one process",
    "distillation": "its teachers answer in one process",
    "relaxloss": "it decides by the mean loss of a batch, of which each process sees a share",
}


def refuse(defense: config.Defense, processes: int) -> None:
    """Raise ValueError for a defense that several processes cannot train, and where there are too few GPUs.

    MemGuard and the ensemble are put together by one process from models that several may have trained.
    """
    if processes == 1:
        return
    if defense.acts() and defense.name in _ALONE:
        raise ValueError(f"'{defense.name}' trains with train.processes = 1 only: {_ALONE[defense.name]}")
    if device().type == "cuda" and torch.cuda.device_count() < processes:
        raise ValueError(
            f"train.processes = {processes} needs a GPU for each process, and there are {torch.cuda.device_count()}"
        )


def fit(
    problem: training.Problem,
    state: training.State,
    defense: config.Defense,
    model: config.Model,
    settings: config.Train,
    hooks: training.Hooks = _QUIET,
    until: int | None = None,
) -> training.State:
    """As `training.fit`, by `settings.processes` processes of `settings.threads` threads; `model` is the state's.

    Raises Lost when one of them ends, and what `training.fit` raises. Two trainings in one process take turns.
    """
    refuse(defense, settings.processes)
    made = defenses.build(defense)
    if settings.processes == 1:
        return training.fit(problem, state, made, settings, hooks, until)
    run = {
        "defense": defense.model_dump(mode="json", by_alias=True),
        "model": model.model_dump(mode="json", by_alias=True),
        "train": settings.model_dump(mode="json", by_alias=True),
        "classes": problem.classes, "events": state.events, "until": until,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_one)
        if dist.is_initialized():
            raise ValueError("this process is in a torch.distributed group already, so it cannot train with others")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tier-parallel-")))
        arrays = {"members": problem.members.numpy(), "labels": problem.member_labels.numpy()}
        safetensors.numpy.save_file(arrays, folder / "problem.safetensors")
        safetensors.numpy.save_file(state.tensors(), folder / "state.safetensors")
        (folder / "run.json").write_text(json.dumps(run))
        others = stack.enter_context(_others(folder, settings.processes, hooks.cancelled))
        try:
            with _group(folder, 0, settings.processes, timedelta(seconds=TIMEOUT)):
                return _train(problem, state, made, settings, hooks, until)
        except RuntimeError as error:
            _explain(error, others, folder)


def _train(
    problem: training.Problem,
    state: training.State,
    defense: defenses.Defense,
    settings: config.Train,
    hooks: training.Hooks,
    until: int | None,
) -> training.State:
    """What every process does in the group."""
    group = Group()
    if isinstance(defense, defenses.TierDefense):
        defense.join = group.join
    with joined(state.model, group):
        return training.fit(problem, state, defense, settings, hooks, until, group)


@contextmanager
def _group(folder: Path, rank: int, size: int, timeout: timedelta) -> Iterator[None]:
    """The default process group of PyTorch, on this machine's loopback interface, met through a file."""
    backend = "nccl" if device().type == "cuda" else "gloo"
    name = f"{backend.upper()}_SOCKET_IFNAME"
    chosen = os.environ.get(name)
    if chosen is None:
        os.environ[name] = _loopback()
    try:
        store = dist.FileStore(str(folder / "rendezvous"), size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    finally:
        if chosen is None:
            del os.environ[name]
    try:
        yield
    finally:
        dist.destroy_process_group()


def _loopback() -> str:
    addresses = psutil.net_if_addrs().items()
    return next(name for name, known in addresses if any(each.address == "127.0.0.1" for each in known))


@contextmanager
def _others(folder: Path, size: int, cancelled: Callable[[], bool]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The other processes, started and at the door of the group; killed when it ends, whatever they do.

    Raises Lost when one of them does not come, and Cancelled when asked to stop before they are there.
    """
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    others: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, size):
            command = [sys.executable, "-P", "-m", "tier.parallel", str(folder), str(rank), str(os.getpid())]
            with (folder / f"output-{rank}").open("wb") as output:
                others.append(
                    subprocess.Popen(
                        command,
                        env=os.environ | {"PYTHONPATH": path},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,  # Ctrl-C in the terminal is for rank 0, which then ends them
                    )
                )
        end = time.monotonic() + TIMEOUT
        while not all((folder / f"ready-{rank}").exists() for rank in range(1, size)):
            _lost(others, folder)
            if cancelled():
                raise Cancelled("stopped before the processes were there")
            if time.monotonic() > end:
                raise Lost(f"a process of the training has not started within {TIMEOUT:g} seconds")
            time.sleep(_POLL)
        yield others
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.wait()


def _lost(others: Sequence["subprocess.Popen[bytes]"], folder: Path) -> None:
    """Raise what the first process that has failed tells of itself: Diverged, or Lost."""
    for rank, other in enumerate(others, 1):
        if other.poll():
            place = f"process {rank + 1} of {len(others) + 1}"
            told = folder / f"error-{rank}.json"
            error = json.loads(told.read_text()) if told.exists() else None
            if error is not None and error["kind"] == training.Diverged.__name__:
                raise training.Diverged(error["message"])
            if error is not None:
                why = f"failed: {error['kind']}: {error['message']}"
            else:
                lines = (folder / f"output-{rank}").read_text(errors="replace").strip().splitlines()
                why = f"ended with status {other.returncode}{f': {lines[-1]}' if lines else ''}"
            raise Lost(f"{place} of the training {why}. The last checkpoint is kept; ask again to continue from it.")


def _explain(error: RuntimeError, others: Sequence["subprocess.Popen[bytes]"], folder: Path) -> NoReturn:
    """Raise what is behind an error of rank 0: what has befallen the others, if anything has."""
    end = time.monotonic() + _GRACE
    while isinstance(error, dist.DistError) or "gloo" in str(error):
        try:
            _lost(others, folder)
        except (Lost, training.Diverged) as reason:
            raise reason from error
        if time.monotonic() > end:
            raise Lost(f"a process of the training does not answer; the last checkpoint is kept ({error})") from error
        time.sleep(_POLL)
    raise error


# ---- the other ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part in a training as rank 1, 2, ...: `python -m tier.parallel FOLDER RANK PARENT`."""
    folder, rank, parent = arguments or sys.argv[1:]
    _follow(int(parent))
    try:
        _take_part(Path(folder), int(rank))
    except Exception as error:  # whatever it is, rank 0 is told and raises it
        log.exception("rank %s failed", rank)
        told = {"kind": type(error).__name__, "message": str(error)}
        with suppress(OSError):  # the folder is gone when rank 0 has ended
            part = Path(folder) / f"part-{rank}.json"
            part.write_text(json.dumps(told))
            part.rename(Path(folder) / f"error-{rank}.json")
        os._exit(1)  # at once: a group that is broken may wait for others when it is taken down
    return 0


def _take_part(folder: Path, rank: int) -> None:
    run = json.loads((folder / "run.json").read_text())
    arrays = safetensors.numpy.load_file(folder / "problem.safetensors")
    members, labels = torch.from_numpy(arrays["members"]), torch.from_numpy(arrays["labels"])
    problem = training.Problem(members, labels, members[:0], labels[:0], run["classes"])
    settings = config.Train.model_validate(run["train"])
    if device().type == "cuda":
        torch.cuda.set_device(rank)
    state = training.start(problem, config.Model.model_validate(run["model"]), settings)
    state.load(safetensors.numpy.load_file(folder / "state.safetensors"), run["events"])
    defense = defenses.build(config.Defense.model_validate(run["defense"]))
    (folder / f"ready-{rank}").touch()
    with _group(folder, rank, settings.processes, _FOR_GOOD):
        state = _train(problem, state, defense, settings, training.Hooks(), run["until"])


def _follow(parent: int) -> None:
    """End this process when rank 0's has ended."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=follow, name="follow rank 0", daemon=True).start()


if __name__ == "__main__":
    # Classes must belong to the module that others import, not to __main__.
    from tier.parallel import main as _main

    sys.exit(_main())
