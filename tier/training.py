"""The one training loop: any defense, checkpoints, exact resume, per-epoch events, cancellation within a batch.

All randomness of an epoch comes from generators seeded by (seed, epoch), so a resumed run is the unbroken run.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from tier import config, defenses, models
from tier.attacks import gap, loss
from tier.context import Cancelled
from tier.defenses.augmentation import augment
from tier.explainers.base import inspecting
from tier.metrics import auc, balanced_accuracy, top_k_accuracy
from tier.perturbation import NoOrder
from tier.runtime import as_pixels, autocast, device, generator, seeded, session

TERMS = ("loss", "ce", "kl", "var")  # columns of every run's events; a defense may add others
MONITOR = 500  # members and non-members whose accuracy and leak are measured after every epoch


class Diverged(ValueError):
    """The loss stopped being finite; the last good checkpoint stays. The message says what to change."""


@dataclass(frozen=True)
class Problem:
    """Members to train on and non-members to test on: uint8 images `(N, 3, H, W)`, labels `(N,)`, class count."""

    members: Tensor
    member_labels: Tensor
    nonmembers: Tensor
    nonmember_labels: Tensor
    classes: int


@dataclass
class State:
    """What a checkpoint holds: weights, optimizer tensors, events of the finished epochs."""

    model: nn.Module
    optimizer: optim.Optimizer
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        """How many epochs are finished."""
        return len(self.events)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Everything that resuming needs, as named arrays (safetensors holds them)."""
        named = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
        return {name: value.detach().cpu().numpy().copy() for name, value in named.items()}

    def load(self, arrays: dict[str, NDArray[Any]], events: list[dict[str, Any]]) -> None:
        """Continue from a checkpoint's arrays and events."""
        self.model.load_state_dict(
            {name.removeprefix("model."): torch.from_numpy(a.copy()) for name, a in arrays.items() if name[0] == "m"}
        )
        state = self.optimizer.state_dict()
        state["state"] = {}
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        for name, array in arrays.items():
            if name.startswith("optimizer."):
                _, index, slot = name.split(".")
                value, weight = torch.from_numpy(array.copy()), weights[int(index)].detach()
                if value.shape == weight.shape:  # laid out as the optimizer made it, so that it is computed with alike
                    value = torch.empty_like(weight, device="cpu").copy_(value)
                state["state"].setdefault(int(index), {})[slot] = value
        self.optimizer.load_state_dict(state)
        self.events = [dict(event) for event in events]


class Peers:
    """Whom the loop trains with: this one, nobody. `tier.parallel` has the processes that share out each batch."""

    leads = True
    """Whether this process judges the model after each epoch, and tells and keeps it."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as the loop trains it."""
        return model

    def share(self, count: int) -> slice:
        """Which places of the next batch of `count` images this process computes."""
        return slice(0, count)

    def values(self, terms: defenses.Terms) -> dict[str, float]:
        """The loss terms of the whole batch, given those of the share."""
        return {name: float(term.detach()) for name, term in terms.items()}

    def scaled(self, loss: Tensor) -> Tensor:
        """What is differentiated, so that the gradient is that of the whole batch's loss."""
        return loss


ALONE = Peers()


@dataclass(frozen=True)
class Hooks:
    """What the loop tells and asks: an event per epoch, a checkpoint per epoch, whether to stop, batch by batch."""

    event: Callable[[dict[str, Any]], None] = lambda event: None
    checkpoint: Callable[[State], None] = lambda state: None
    cancelled: Callable[[], bool] = lambda: False


def start(problem: Problem, model: config.Model, train: config.Train) -> State:
    """A fresh model, normalised by its members' own pixels, and its optimizer."""
    pixels = problem.members.float().div(255)
    net = models.build(
        model, problem.classes, pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3), train.seed
    )
    net = net.to(device()).to(memory_format=torch.channels_last)
    return State(net, _optimizer(net, train))


def fit(
    problem: Problem,
    state: State,
    defense: defenses.Defense,
    settings: config.Train,
    hooks: Hooks = Hooks(),
    until: int | None = None,
    peers: Peers = ALONE,
) -> State:
    """Train `state` to epoch `until` (all epochs by default), from wherever it is.

    Raises Cancelled within one batch of being asked to stop, and Diverged when the loss is no longer finite.
    """
    with session(settings.threads):
        where = device()
        images, labels = problem.members.to(where), problem.member_labels.to(where)
        model, optimizer = defense.prepare(state.model, state.optimizer, problem)
        net = peers.wrap(model)
        while state.epoch < (settings.epochs if until is None else until) and not defense.should_stop(state.events):
            began = time.perf_counter()
            with seeded("dropout", settings.seed, state.epoch, on=where):
                terms = _epoch(images, labels, net, optimizer, defense, settings, state.epoch, hooks, peers)
            seconds = time.perf_counter() - began
            figures = monitor(model, problem) if peers.leads else {}
            if math.isnan(figures.get("loss_auc", 0.0)):  # the last step broke the weights after a loss that was finite
                broken = {name: math.nan for name, value in terms.items() if value is not None}
                raise Diverged(_advice(broken, defense.cures(settings), f"epoch {state.epoch + 1}, last batch"))
            event = {"epoch": state.epoch + 1, **terms, **figures, "seconds": seconds}
            state.events.append(event)
            hooks.event(event)
            hooks.checkpoint(state)
    return state


def _epoch(
    images: Tensor,
    labels: Tensor,
    model: nn.Module,
    optimizer: optim.Optimizer,
    defense: defenses.Defense,
    settings: config.Train,
    epoch: int,
    hooks: Hooks,
    peers: Peers,
) -> dict[str, float | None]:
    """One pass over the members; returns the mean of each loss term, None for a term that did not act."""
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    noise = generator("augmentation", settings.seed, epoch)
    draw = generator("order", settings.seed, epoch)
    batches = defense.batches(len(images), settings.batch_size, draw) or _batches(
        len(images), settings.batch_size, draw
    )
    sums: dict[str, float] = {}
    for number, index in enumerate(batches):
        if hooks.cancelled():
            raise Cancelled(f"stopped in epoch {epoch + 1}, batch {number + 1}")
        rate = learning_rate(settings, epoch * len(batches) + number, settings.epochs * len(batches))
        for group in optimizer.param_groups:
            group["lr"] = rate
        own = peers.share(len(index))
        chosen = index[own].to(images.device)
        defense.begin(chosen, epoch)
        x = as_pixels(images[chosen])
        if defense.augmentation is not None:
            x = as_pixels(augment(x, defense.augmentation, noise, own, len(index)))
        place = f"epoch {epoch + 1}, batch {number + 1}"
        try:
            with autocast(settings.precision, images.device):
                terms = defense.loss(model, x, labels[chosen], epoch)
        except NoOrder as error:  # TIER ranks the gradient before there is a loss to look at
            raise Diverged(_advice({"loss": math.nan, "var": math.nan}, defense.cures(settings), place)) from error
        values = peers.values(terms)
        if not math.isfinite(values["loss"]):
            raise Diverged(_advice(values, defense.cures(settings), place))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(peers.scaled(terms["loss"]), inputs=weights)
        if settings.gradient_clip is not None:
            nn.utils.clip_grad_norm_(weights, settings.gradient_clip)
        optimizer.step()
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value * len(index)
    return {name: sums[name] / len(images) if name in sums else None for name in dict.fromkeys((*TERMS, *sums))}


def _batches(count: int, size: int, draw: torch.Generator) -> list[Tensor]:
    """A shuffled pass in batches; a last batch of one joins its neighbour, since BatchNorm cannot train on one."""
    if count < 2:
        raise ValueError("training needs at least two images: BatchNorm has no variance over one")
    batches = list(torch.randperm(count, generator=draw).split(max(size, 2)))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def learning_rate(settings: config.Train, step: int, steps: int) -> float:
    """The rate at a step: constant, half a cosine to 0, or one cycle (Smith 2018: 30 % up from 1/25, down to 4e-6)."""
    peak = settings.learning_rate
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "cosine":
        return _anneal(peak, 0.0, step / steps)
    rise = 0.3 * steps - 1
    if step <= rise:
        return _anneal(peak / 25, peak, step / rise)
    return _anneal(peak, peak / 25e4, min(1.0, (step - rise) / max(1.0, steps - 1 - rise)))


def _anneal(first: float, last: float, fraction: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * fraction)) / 2


def _optimizer(model: nn.Module, settings: config.Train) -> optim.Optimizer:
    weights, rate = list(model.parameters()), settings.learning_rate
    if settings.optimizer == "sgd":
        return optim.SGD(
            weights,
            rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.momentum > 0,
        )
    return optim.AdamW(weights, rate, weight_decay=settings.weight_decay)


def _advice(values: dict[str, float], cures: list[str], place: str) -> str:
    bad = ", ".join(f"{name} {value}" for name, value in values.items() if not math.isfinite(value))
    if "var" in values:
        cures = [*cures, "a smaller defense.tier.lambda or beta, or defense.tier.confidence = probability"]
    return f"training diverged in {place} ({bad}); the last checkpoint is kept. Try {'; or '.join(cures)}."


def predict(model: nn.Module, images: Tensor, batch_size: int = 500) -> Tensor:
    """Logits `(N, K)` float32 on the CPU of uint8 images, in evaluation mode; the model's modes come back."""
    where = next(model.parameters()).device
    with inspecting(model), torch.inference_mode():
        return torch.cat([model(as_pixels(part.to(where))).float().cpu() for part in images.split(batch_size)])


def monitor(model: nn.Module, problem: Problem) -> dict[str, float]:
    """Accuracy and the two simplest attacks on the first MONITOR members and non-members."""
    figures = evaluate(model, problem, MONITOR)
    return {name: figures[name] for name in ("train_accuracy", "test_accuracy", "gap_balanced_accuracy", "loss_auc")}


def evaluate(model: nn.Module, problem: Problem, limit: int | None = None) -> dict[str, Any]:
    """Utility and the gap and loss attacks, on the first `limit` images of each group or on all."""
    logits = predict(model, problem.members[:limit]), predict(model, problem.nonmembers[:limit])
    labels = problem.member_labels[:limit], problem.nonmember_labels[:limit]
    losses = [sample_losses(a, b).numpy() for a, b in zip(logits, labels, strict=True)]
    gaps = [gap.score(a.argmax(1).numpy(), b.numpy()) for a, b in zip(logits, labels, strict=True)]
    return {
        "train_accuracy": float((gaps[0] > 0).mean()),
        "test_accuracy": float((gaps[1] > 0).mean()),
        "test_top5": top_k_accuracy(logits[1].numpy(), labels[1].numpy()),
        "test_loss": float(losses[1].mean()),
        "gap_balanced_accuracy": balanced_accuracy(gaps[0], gaps[1]),
        "loss_auc": auc(loss.score(losses[0]), loss.score(losses[1])),
    }


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each image in float64, `(N, K)`, `(N,)` -> `(N,)`."""
    return F.cross_entropy(logits.double(), labels, reduction="none")


def sample_table(model: nn.Module, problem: Problem) -> dict[str, NDArray[Any]]:
    """Per image, members first: member, label, predicted, loss, log_confidence, in_top5."""
    logits = torch.cat([predict(model, problem.members), predict(model, problem.nonmembers)])
    labels = torch.cat([problem.member_labels, problem.nonmember_labels])
    losses = sample_losses(logits, labels).numpy()
    own = logits.gather(1, labels.unsqueeze(1))
    return {
        "member": np.arange(len(labels)) < len(problem.members),
        "label": labels.numpy(),
        "predicted": logits.argmax(1).numpy(),
        "loss": losses,
        "log_confidence": -losses,
        "in_top5": ((logits > own).sum(1) < 5).numpy(),
    }
