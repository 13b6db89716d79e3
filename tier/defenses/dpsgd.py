"""DP-SGD (Abadi et al. 2016): clipped per-image gradients plus Gaussian noise, on Poisson-sampled batches.

The guarantee is (epsilon, delta)-differential privacy for adding or removing one image, over all steps of a run:
Algorithm 1 of "Deep Learning with Differential Privacy". Gradients, clipping, noise and accounting are Opacus's. With
augmentation multiplicity K (De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification
through Scale", section 3.2), what is clipped is the mean gradient of K augmented copies, so an image still counts once.

What the guarantee does not cover: the seed that draws batches and noise has to stay secret, and settings tuned on the
same images cost privacy that nobody counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn, optim

from tier.config import Augmentation, DpSgd, Train
from tier.defenses.augmentation import augment
from tier.defenses.base import Defense, Terms
from tier.models.blocks import Normalize
from tier.runtime import as_pixels, generator

AnyHooks = TypeVar("AnyHooks", bound=GradSampleHooks)
ORDERS = [1.001, 1.002, 1.005, *(1 + x / 100 for x in range(1, 10)), *(1 + x / 10 for x in range(1, 100))]
ORDERS += [*range(12, 64), 80, 96, 128, 256]
"""Renyi orders over which epsilon is the least: Opacus's own, with some nearer to 1 for an epsilon of hundreds, and
larger ones for an epsilon below 1."""

HELD = 1 << 27  # weights times images whose gradients are held at once: 512 MB, enough for 12 images of a ResNet-18
ROWS = 128  # images and copies of a pass of a small net: more make it no faster, and a fifth slower where caches end
UNHELD = (
    1 << 17
)  # pixels of a pass that holds no gradients: 128 images of 32x32, for which ResNet-18 takes up to 2.2 GB


class DpSgdDefense(Defense):
    """DP-SGD inside the training loop; the loop's own gradient is nothing, the noisy one is made here.

    Weight decay stays as it is: it looks at the weights only, which are private already. The loop's gradient clipping
    is off, because it would come after the noise; so is bf16, in which a gradient's norm is only good to three digits.
    `augmentation` is T, applied here to each copy.
    """

    def __init__(self, config: DpSgd, augmentation: Augmentation | None = None) -> None:
        super().__init__(None)
        if config.multiplicity > 1 and augmentation is None:
            raise ValueError("defense.dpsgd.multiplicity above 1 needs an augmentation: the copies would be equal")
        self.config = config
        self.transform = augmentation
        self._train: Train | None = None
        self._told: dict[str, float] = {}

    def settings(self, train: Train) -> Train:
        """The training's settings with those of DP-SGD in their place; kept, since the noise depends on them."""
        own = {name: getattr(self.config, name) for name in ("batch_size", "learning_rate", "optimizer", "momentum")}
        changes = {name: value for name, value in own.items() if value is not None}
        self._train = train.model_copy(update={**changes, "precision": "fp32", "gradient_clip": None})
        return self._train

    def prepare(self, model: nn.Module, optimizer: optim.Optimizer, data: Any) -> tuple[nn.Module, optim.Optimizer]:
        """The same model, pixels shifted and scaled alike for any data, and its optimizer under Opacus's.

        Raises ValueError for a net that mixes the images of a batch and for a delta that would be no protection, and
        RuntimeError when `settings` has not been asked first.
        """
        if self._train is None:
            raise RuntimeError("the noise of DP-SGD depends on the training's settings: call settings() first")
        _refuse_mixing(model)
        _forget_pixels(model)
        members, size = len(data.members), min(self._train.batch_size, len(data.members))
        if self.config.delta >= 1 / members:
            raise ValueError(
                f"defense.dpsgd.delta is {self.config.delta:g}, but with {members:,} members anything from "
                f"{1 / members:g} up would allow one of them to be published outright; set it below that"
            )
        rate = size / members
        steps = self._train.epochs * steps_per_epoch(members, size)
        noise = self.config.noise
        if noise is None:
            noise = noise_for(self.config.epsilon, self.config.delta, rate, steps)
        self._optimizer = _NoisySum(
            optimizer, noise_multiplier=noise, max_grad_norm=self.config.clip, expected_batch_size=size
        )
        self._told = {"delta": self.config.delta, "noise_multiplier": noise, "clip": self.config.clip}
        self._told |= {"sample_rate": rate, "steps": steps}
        if noise > 0:
            self._told["epsilon"] = epsilon_of(noise, self.config.delta, rate, steps)
        self._seed, self._epoch = self._train.seed, -1
        return model, self._optimizer

    def batches(self, count: int, size: int, draw: torch.Generator) -> list[Tensor]:
        """Poisson sampling: each member is in each batch with probability size / count; a batch may be empty."""
        steps = steps_per_epoch(count, size)
        chosen = torch.rand(steps, count, generator=draw, dtype=torch.float64) < size / count
        return [row.nonzero().squeeze(1) for row in chosen]

    def begin(self, index: Tensor, epoch: int) -> None:
        """Noise and copies of an epoch come from generators of their own, so that a resumed run draws the same."""
        if epoch != self._epoch:
            self._epoch = epoch
            where = self._optimizer.params[0].device
            self._optimizer.generator = generator("privacy", self._seed, epoch, on=where)
            self._copies = generator("augmentation", self._seed, epoch)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, epoch: int) -> Terms:
        """The mean cross-entropy over images and copies, 0 for an empty batch; as a side effect, the clipped sum.

        The value has no graph: its backward does nothing. The images go through the net in pieces, so that memory does
        not grow with the batch.
        """
        weights = self._optimizer.params
        for weight in weights:
            weight.summed_grad = torch.zeros_like(weight)
        total = x.new_zeros(())
        if self.config.grad_sample_mode == "ghost":
            piece = max(1, UNHELD // x.shape[2:].numel())
            if self.transform is not None:
                x = augment(x, self.transform, self._copies)
            with hooked(_NormHooks(model, loss_reduction="sum", max_grad_norm=self.config.clip)) as hooks:
                for start in range(0, len(x), piece):
                    total += self._add_unheld(model, x[start : start + piece], y[start : start + piece], hooks)
        else:
            rows = min(ROWS, HELD // sum(weight.numel() for weight in weights))
            piece = max(1, rows // self.config.multiplicity)
            with hooked(_Hooks(model, loss_reduction="sum")):
                for start in range(0, len(x), piece):
                    total += self._add(model, x[start : start + piece], y[start : start + piece])
        mean = (total / max(1, len(x))).requires_grad_()
        return {"loss": mean, "ce": mean}

    def _add(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Add the clipped gradients of some images to the batch's sum; returns the sum of their losses."""
        copies = self.config.multiplicity
        rows = x.repeat_interleave(copies, 0)  # (B * K, C, H, W), the copies of an image next to each other
        if self.transform is not None:
            rows = augment(rows, self.transform, self._copies)
        leaf = as_pixels(rows).detach().requires_grad_()
        loss = F.cross_entropy(model(leaf).float(), y.repeat_interleave(copies), reduction="sum")
        torch.autograd.grad(loss, leaf)  # runs Opacus's hooks; asking for the weights' sum too would cost a third more
        for weight in self._optimizer.params:
            weight.grad_sample = weight.grad_sample.unflatten(0, (len(x), copies)).mean(1)  # (B, ...)
        self._optimizer.clip_and_accumulate()
        for weight in self._optimizer.params:
            weight.grad_sample = None
        return loss.detach() / copies

    def _add_unheld(self, model: nn.Module, x: Tensor, y: Tensor, hooks: "_NormHooks") -> Tensor:
        """As `_add`, of images under T already: the gradient of the losses weighted by how far each is clipped."""
        leaf = as_pixels(x).detach().requires_grad_()
        hooks.enable_hooks()
        weights = self._optimizer.params
        with _whole_precision():
            losses = F.cross_entropy(model(leaf).float(), y, reduction="none")
            torch.autograd.grad(losses.sum(), leaf, retain_graph=True)  # runs the hooks, which leave norms
            hooks.disable_hooks()
            summed = torch.autograd.grad((hooks.get_clipping_coef() * losses).sum(), weights)
        for weight, gradient in zip(weights, summed, strict=True):
            weight.summed_grad += gradient
        return losses.detach().sum()

    def cures(self, train: Train) -> list[str]:
        """The rate and the clip that act: the training's own are not used, or would come after the noise."""
        part = "train" if self.config.learning_rate is None else "defense.dpsgd"
        noisy = "defense.dpsgd.noise" if self.config.epsilon is None else "noise, by a larger defense.dpsgd.epsilon"
        return [f"a {part}.learning_rate below {train.learning_rate}", "a smaller defense.dpsgd.clip", f"less {noisy}"]

    def figures(self) -> dict[str, float]:
        """epsilon (not without noise: there is none), delta, noise_multiplier, clip, sample_rate and steps."""
        return dict(self._told)


class _NoisySum(DPOptimizer):
    """Opacus's optimizer, whose clipped sum is complete before the loop clears gradients and takes its step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.original_optimizer.zero_grad(set_to_none)

    def pre_step(self, closure: Any = None) -> bool:
        self.add_noise()
        for weight in self.params:
            weight.grad /= self.expected_batch_size  # not the batch's own size, which would tell how many were drawn
            weight.summed_grad = None
        return True


class _RowByRow:
    """For Opacus's hooks: every input laid out row by row.

    Opacus 1.6 strides through a convolution's input as if it were (`unfold2d`), and for one laid out channels last, as
    the loop's are, it silently returns other numbers than the gradient.
    """

    def capture_activations_hook(self, module: nn.Module, forward_input: Sequence[Tensor], output: Tensor) -> None:
        rows = [x.clone(memory_format=torch.contiguous_format) for x in forward_input]
        super().capture_activations_hook(module, rows, output)  # type: ignore[misc]


class _Hooks(_RowByRow, GradSampleHooks):
    """Opacus's hooks: backward passes leave each row's own gradient in `weight.grad_sample`."""


def convolution_norms(layer: nn.Conv2d, activations: Sequence[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
    """L2 norm of each image's gradient, (B,), of a convolution's weight and bias.

    An image's gradient is the sum over places q of backprops b_q (O) times patches a_q (P). Its squared norm is also
    the sum over places q, r of (b_q . b_r) (a_q . a_r), which takes fewer operations where places are few (Bu et al.
    2022, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential Privacy", section
    3); elsewhere the layer's gradients are made. Groups of channels are layers of their own. Raises ValueError for a
    layer that pads with anything but zeros.
    """
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise ValueError("norms are known of convolutions padded by a number of zeros: set grad_sample_mode to hooks")
    x = activations[0].to(backprops.dtype)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (B, C * kernel, Q)
    images, places = len(backprops), patches.shape[-1]
    a = patches.reshape(images * layer.groups, -1, places)  # (B * groups, P, Q)
    b = backprops.reshape(images * layer.groups, -1, places)  # (B * groups, O, Q)
    if places * (a.shape[1] + b.shape[1]) < a.shape[1] * b.shape[1]:
        squares = ((a.mT @ a) * (b.mT @ b)).sum((1, 2)).clamp(min=0)
    else:
        squares = (b @ a.mT).square().sum((1, 2))
    norms: dict[Tensor, Tensor] = {layer.weight: squares.unflatten(0, (images, layer.groups)).sum(1).sqrt()}
    if layer.bias is not None:
        norms[layer.bias] = backprops.flatten(2).sum(2).norm(dim=1)
    return norms


class _NormHooks(_RowByRow, GradSampleHooksFastGradientClipping):
    """Opacus's hooks of ghost clipping, for convolutions too: backward passes leave the norm of each row's gradient.

    Opacus has norms of linear layers and embeddings. Gradients of other layers are held, one layer's at a time.
    """

    NORM_SAMPLERS: ClassVar[dict[type, Any]] = {
        **GradSampleHooksFastGradientClipping.NORM_SAMPLERS,
        nn.Conv2d: convolution_norms,
    }


@contextmanager
def hooked(hooks: AnyHooks) -> Iterator[AnyHooks]:
    """The hooks on their model for a while; nothing of them stays on it, whatever happens in between."""
    try:
        yield hooks
    finally:
        hooks.cleanup()
        for module in hooks._module.modules():
            for name in ("activations", "max_batch_len"):
                module.__dict__.pop(name, None)


@contextmanager
def _whole_precision() -> Iterator[None]:
    """Convolutions of a GPU in fp32: in TF32 the gradient that is summed would be longer than the norm it is cut by."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def steps_per_epoch(count: int, size: int) -> int:
    """How many batches an epoch has: so many that each member is drawn once on average."""
    return max(1, round(count / size))


@lru_cache(maxsize=64)  # seconds each, and the same for every seed and reference model
def noise_for(epsilon: float | None, delta: float, rate: float, steps: int) -> float:
    """The least noise multiplier whose steps cost at most `epsilon` at `delta`, to 0.1 % of it, by Renyi accounting."""
    tolerance = 1e-3 * (epsilon or 0.0)
    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=rate,
            steps=steps,
            epsilon_tolerance=tolerance,
            alphas=ORDERS,
        )
    )


def epsilon_of(noise: float, delta: float, rate: float, steps: int) -> float:
    """What `steps` steps of a noise multiplier cost at `delta`, each image drawn with probability `rate`.

    Renyi divergences of the sampled Gaussian mechanism (Mironov et al. 2019), converted as by Balle et al. 2020.
    """
    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    return float(accountant.get_epsilon(delta, alphas=ORDERS))


def _refuse_mixing(model: nn.Module) -> None:
    mode = model.training
    errors = ModuleValidator.validate(model.train())
    model.train(mode)
    if errors:
        raise ValueError(
            f"DP-SGD needs a net that looks at each image by itself, with GroupNorm (model.norm = group): {errors[0]}"
        )


def _forget_pixels(model: nn.Module) -> None:
    """The members' own mean and spread of pixels would be published without noise; usual values take their place."""
    for module in model.modules():
        if isinstance(module, Normalize):
            module.mean.fill_(0.5)
            module.std.fill_(0.25)
