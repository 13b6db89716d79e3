"""MemGuard: noise on the served confidences that makes a membership classifier guess, and keeps the predicted label.

Source: Jia, Salem, Backes, Zhang, Gong, "MemGuard: Defending against Black-Box Membership Inference Attacks via
Adversarial Examples", CCS 2019 (arXiv 1909.10594), and the authors' code. The model is the plainly trained one. The
defender trains a membership classifier g on its ranked confidences; phase I searches each answer s for noise r with
g(s + r) on the other side of 0.5, phase II adds it with the probability that keeps the expected distortion in budget.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tier.config import Augmentation, MemGuard
from tier.defenses.base import Defense
from tier.explainers.base import inspecting
from tier.models.blocks import Classifier
from tier.runtime import as_pixels, generator

KEEP_LABEL = 10.0  # c2: weight of the loss that keeps the predicted label
FIRST_WEIGHT = 0.1  # c3 of the first search: weight of the distortion; each further search has it ten times as high
STEP = 0.1  # beta of Algorithm 1: length of a step, in logits
EPOCHS = 200  # of the membership classifier
BATCH = 128
RATE = 1e-3
_HASH_BITS = 53

Layers = tuple[Tensor, ...]
"""A membership classifier with ReLUs between: weight `(out, in)`, bias `(out,)`, weight, bias, ...; float64."""


# ---- the membership classifier g


def membership(confidences: Tensor, layers: Layers) -> Tensor:
    """g's log odds of membership, `(B,)`, of confidences `(B, K)`, which it sees in descending order.

    Ranked, as in the authors' code: attackers rank them, and g need not learn one class after the other.
    """
    out = confidences.sort(1, descending=True).values
    for weight, bias in _pairs(layers[:-2]):
        out = F.linear(out, weight, bias).relu()
    return F.linear(out, *layers[-2:]).squeeze(1)


def slope(confidences: Tensor, layers: Layers) -> tuple[Tensor, Tensor]:
    """`membership` and its derivative by the confidences, `(B,)` and `(B, K)`.

    By hand, since a served model answers in inference mode, where autograd records nothing.
    """
    out, order = confidences.sort(1, descending=True)
    active = []
    for weight, bias in _pairs(layers[:-2]):
        out = F.linear(out, weight, bias).relu()
        active.append(out > 0)
    odds = F.linear(out, *layers[-2:]).squeeze(1)
    back = layers[-2].expand(len(out), -1)
    for weight, on in zip(reversed(layers[:-2:2]), reversed(active), strict=True):
        back = (back * on) @ weight
    return odds, torch.empty_like(back).scatter_(1, order, back)


def _pairs(layers: Layers) -> list[tuple[Tensor, Tensor]]:
    return list(zip(layers[::2], layers[1::2], strict=True))


def fit_membership(members: Tensor, outsiders: Tensor, hidden: Sequence[int], seed: int) -> Layers:
    """The defender's classifier, trained on confidences `(N, K)` of members and of images that no model has seen.

    Adam on the cross-entropy; both groups weigh the same, so that 0.5 means that the classifier cannot tell.
    """
    x = torch.cat([members, outsiders]).double().sort(1, descending=True).values
    member = torch.cat([x.new_ones(len(members)), x.new_zeros(len(outsiders))])
    share = torch.where(member == 1, 0.5 * len(x) / len(members), 0.5 * len(x) / len(outsiders))
    layers = _initial((x.shape[1], *hidden, 1), seed, x.device)
    optimizer = optim.Adam(layers, RATE)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator("guard", seed, 1, epoch)).split(BATCH):
            rows = rows.to(x.device)
            odds = membership(x[rows], layers)
            loss = F.binary_cross_entropy_with_logits(odds, member[rows], share[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return tuple(layer.detach() for layer in layers)


def _initial(widths: Sequence[int], seed: int, where: torch.device) -> Layers:
    draw = generator("guard", seed, 0)
    layers: list[Tensor] = []
    for inputs, outputs in pairwise(widths):
        bound = math.sqrt(6 / (inputs + outputs))  # Glorot's, as in the authors' code
        weight = torch.empty(outputs, inputs, dtype=torch.float64).uniform_(-bound, bound, generator=draw)
        layers += [weight.to(where), torch.zeros(outputs, dtype=torch.float64, device=where)]
    return tuple(layer.requires_grad_() for layer in layers)


# ---- phase I: noise that takes g across 0.5


def search(logits: Tensor, layers: Layers, steps: int, rounds: int) -> Tensor:
    """Algorithm 1: noise on logits `(B, K)` float64 that turns g's opinion of each row and keeps its label; 0: none.

    Each round weighs the distortion ten times as much as the one before and begins anew; the last noise found counts.
    """
    found = torch.zeros_like(logits)
    rows, weight = torch.arange(len(logits), device=logits.device), FIRST_WEIGHT
    for _ in range(rounds):
        noise, hit = _round(logits[rows], layers, weight, steps)
        rows = rows[hit]
        found[rows] = noise[hit]
        weight *= 10
    return found


def _round(logits: Tensor, layers: Layers, weight: float, steps: int) -> tuple[Tensor, Tensor]:
    """Steps of gradient descent until g's opinion has turned, `(B, K)`; and the rows where it did, `(B,)` bool."""
    noise, hit = torch.zeros_like(logits), torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    rows = torch.arange(len(logits), device=logits.device)
    start, now, first = logits, logits, logits.softmax(1)
    top, sides = logits.argmax(1), None
    for step in range(steps + 1):
        p = now.softmax(1)
        odds, rise = slope(p, layers)
        if sides is None:
            sides = odds.sign()
        done = (odds * sides <= 0) & (now.argmax(1) == top)
        if done.any():
            noise[rows[done]], hit[rows[done]] = (now - start)[done], True
            left = ~done
            rows, start, now, first, top, sides = (v[left] for v in (rows, start, now, first, top, sides))
            p, odds, rise = p[left], odds[left], rise[left]
        if step == steps or not len(rows):
            break
        uphill = odds.sign().unsqueeze(1) * rise + weight * (p - first).sign()
        now = now - STEP * F.normalize(loss_gradient(now, p, uphill, top), dim=1, eps=1e-300)
    return noise, hit


def loss_gradient(logits: Tensor, p: Tensor, uphill: Tensor, top: Tensor) -> Tensor:
    """The direction of phase I's loss in logits `(B, K)`, up to a factor.

    The loss is |h| + c2 relu(best other logit - the predicted class's) + c3 |softmax - s|_1, h g's log odds; `uphill`
    is the slope of its first and last term in the confidences `p`, `top` the predicted class.

    The softmax's Jacobian is taken over the second largest confidence, so that certain predictions, where it is next
    to 0, have a direction too; for the same reason the predicted class gets minus the sum of the others.
    """
    place = top.unsqueeze(1)
    others = logits.scatter(1, place, -math.inf)
    best, rival = others.max(1, keepdim=True)
    direction = (others - best).exp() * (uphill - (p * uphill).sum(1, keepdim=True))
    push = torch.where(best > logits.gather(1, place), KEEP_LABEL / p.gather(1, rival), 0.0)
    direction = direction.scatter(1, place, -direction.sum(1, keepdim=True) - push)
    return direction.scatter_add(1, rival, push)


# ---- phase II: whether the noise is added


def probability(before: Tensor, after: Tensor, distortion: Tensor, budget: float) -> Tensor:
    """How likely noise is added, `(B,)`, given g's log odds without and with it and its L1 distortion.

    Not at all where g is no nearer to 0.5, else so often that the expected distortion is within the budget.
    """
    helps = (after.sigmoid() - 0.5).abs() < (before.sigmoid() - 0.5).abs()
    return torch.where(helps, (budget / distortion.clamp(min=1e-300)).clamp(max=1.0), 0.0)


def chance(x: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for each image `(B, C, H, W)` in [0, 1], float64, that looks random and is always the same.

    Asked again the model answers alike, so that averaging does not take the noise away. It hangs on the pixels
    as bytes: unlike confidences they do not depend on the batch, and a change too small to be seen makes no new draw.
    A multiply-shift hash (Dietzfelbinger et al. 1997) modulo 2^64.
    """
    pixels = (x.flatten(1) * 255).round().long()
    draw = generator("guard", seed, 2)
    factors = torch.randint(-(2**63), 2**63 - 1, (pixels.shape[1] + 1,), generator=draw).to(x.device)
    mixed = (pixels * factors[1:]).sum(1) + factors[0]
    return ((mixed >> 11) & (2**_HASH_BITS - 1)).double() / 2**_HASH_BITS


# ---- the served model


def answer(x: Tensor, logits: Tensor, layers: Layers, budget: float, steps: int, rounds: int, seed: int) -> Tensor:
    """Log of the served confidences, `(B, K)` float32, of images `(B, C, H, W)` whose logits `(B, K)` are known.

    Its gradient is that of the logits themselves: explanations are those of the model that is guarded.
    """
    with torch.no_grad():
        plain = logits.double()
        noise = search(plain, layers, steps, rounds)
        kept = chance(x, seed) < _probability(plain, plain + noise, layers, budget)
        served = (plain + torch.where(kept.unsqueeze(1), noise, 0.0)).log_softmax(1)
        served = _first(served.float(), logits.argmax(1))
    return _StraightThrough.apply(logits, served)


torch.fx.wrap("answer")  # one step of a traced model: it depends on the numbers that go through it


def _probability(plain: Tensor, noisy: Tensor, layers: Layers, budget: float) -> Tensor:
    s, changed = plain.softmax(1), noisy.softmax(1)
    distortion = (changed - s).abs().sum(1)
    return probability(membership(s, layers), membership(changed, layers), distortion, budget)


def _first(served: Tensor, predicted: Tensor) -> Tensor:
    """The same with the predicted class strictly first, where rounding made it tie with another."""
    place = predicted.unsqueeze(1)
    others = served.scatter(1, place, -math.inf).amax(1, keepdim=True)
    above = torch.nextafter(others, torch.full_like(others, math.inf))
    return served.scatter(1, place, torch.maximum(served.gather(1, place), above))


class _StraightThrough(torch.autograd.Function):
    """The second argument's values with the first one's gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, served: Tensor) -> Tensor:
        return served

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Guarded(Classifier):
    """A trained classifier that answers with guarded confidences; its layers keep their names.

    The membership classifier's weights are buffers; before `fit` they are 0, and answers are the plain ones.
    """

    straight_through = True  # explanations are those of the plain model, answers are not

    def __init__(self, plain: Classifier, classes: int, settings: MemGuard) -> None:
        super().__init__(plain.normalize, plain.body, ())
        self.cam_candidates = plain.cam_candidates
        self.settings = settings
        widths = (classes, *settings.hidden, 1)
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            self.register_buffer(f"guard_weight_{number}", torch.zeros(outputs, inputs, dtype=torch.float64))
            self.register_buffer(f"guard_bias_{number}", torch.zeros(outputs, dtype=torch.float64))

    @property
    def layers(self) -> Layers:
        """The membership classifier."""
        return tuple(value for name, value in self.named_buffers(recurse=False) if name.startswith("guard_"))

    def plain(self, x: Tensor) -> Tensor:
        """The logits that are guarded, `(B, C, H, W)` -> `(B, K)`."""
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Raises RuntimeError in training mode: what is guarded is trained plainly, and then served."""
        if self.training:
            raise RuntimeError("a guarded model is served, not trained: call eval() first")
        asked = self.settings
        return answer(x, self.plain(x), self.layers, asked.distortion, asked.steps, asked.rounds, asked.seed)

    def fit(self, members: Tensor, outsiders: Tensor) -> None:
        """Learn to tell images that the model was trained on from others, both uint8 `(N, C, H, W)`."""
        known, unknown = self._confidences(members), self._confidences(outsiders)
        found = fit_membership(known, unknown, self.settings.hidden, self.settings.seed)
        for layer, value in zip(self.layers, found, strict=True):
            layer.copy_(value)

    def _confidences(self, images: Tensor) -> Tensor:
        where = next(self.parameters()).device
        with inspecting(self), torch.no_grad():
            return torch.cat([self.plain(as_pixels(part.to(where))).double().softmax(1) for part in images.split(500)])


class MemGuardDefense(Defense):
    """The plainly trained model behind a guard."""

    composed = True

    def __init__(self, settings: MemGuard, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.guard = settings

    def serve(self, build: Callable[[], nn.Module], classes: int) -> nn.Module:
        plain = build()
        if not isinstance(plain, Classifier):
            raise TypeError(f"MemGuard guards a Classifier, not {type(plain).__name__}")
        return Guarded(plain, classes, self.guard)

    def compose(
        self, served: nn.Module, models: Sequence[nn.Module], members: Tensor, outsiders: Callable[[], Tensor]
    ) -> None:
        assert isinstance(served, Guarded)
        (plain,) = models
        served.load_state_dict(served.state_dict() | plain.state_dict())
        served.fit(members, outsiders())
