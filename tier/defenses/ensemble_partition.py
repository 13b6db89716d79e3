"""Ensemble partition: sub-models on disjoint parts of the members, whose standardised confidences are averaged.

All that the TIER paper says of EPD, in its related work, is that it "partitions training data across sub-models and
standardizes confidence scores during inference". The rest is ours:

- Parts are disjoint, of equal size, and each has its share of every class. A class with fewer members than parts is
  missing from some parts.
- Standardised: a sub-model's logits z, over the classes of one image, become (z - mean) / standard deviation, times one
  scale for all images and sub-models: their mean standard deviation over the members. So how sure a sub-model is, which
  tells the image's own sub-model from the others, is no longer in the level of its answer; which classes it finds
  likely, and by how much compared with each other, still is.
- The softmax of that, averaged over the sub-models, is what is served, as log confidences.

Every image is a member of one part, so that one sub-model in M has seen it: averaging dilutes, it does not remove.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tier.config import Augmentation, EnsemblePartition
from tier.defenses.base import Defense
from tier.models.blocks import Classifier, Normalize
from tier.runtime import as_pixels

BATCH = 250
_TINY = 1e-12  # variance of logits below which a sub-model has no opinion


class EnsemblePartitionDefense(Defense):
    """A served model put together from sub-models that are trained plainly, each on its part."""

    composed = True

    def __init__(self, config: EnsemblePartition, augmentation: Augmentation | None = None) -> None:
        super().__init__(augmentation)
        self.config = config
        self._scale: float | None = None

    def serve(self, build: Callable[[], nn.Module], classes: int) -> nn.Module:
        """An untrained ensemble. Raises ValueError for two standardised classes."""
        net = build()
        assert isinstance(net, Classifier)
        return Ensemble(net, self.config.parts, classes, self.config.standardize)

    def compose(
        self, served: nn.Module, models: Sequence[nn.Module], members: Tensor, outsiders: Callable[[], Tensor]
    ) -> None:
        """Load the sub-models, and measure the scale on the members: no images beside the defender's own are needed."""
        assert isinstance(served, Ensemble)
        served.eval()  # measuring must not move the statistics of BatchNorm
        served.fill([model.state_dict() for model in models])
        if self.config.standardize:
            self._scale = mean_spread(served, members)
            served.scale.fill_(self._scale)

    def figures(self) -> dict[str, float]:
        """The scale to which sub-models' logits are brought, where they are standardised."""
        return {} if self._scale is None else {"scale": self._scale}


class Ensemble(nn.Module):
    """M nets of one architecture side by side in one net of grouped layers, and their answers in one.

    One module then gives the feature maps of all sub-models, `(B, M * D, h, w)`, so that a class activation map is that
    of the whole ensemble: all maps of that layer, weighted by how they move the served confidence.
    """

    scale: Tensor

    def __init__(self, net: Classifier, parts: int, classes: int, standardize: bool) -> None:
        """M copies of `net`, which is taken over and changed. Raises ValueError for two standardised classes."""
        super().__init__()
        if standardize and classes < 3:
            raise ValueError(
                "of two classes standardised confidences are bare votes, which have no gradient to explain: set "
                "defense.ensemble_partition.standardize to false"
            )
        self.parts, self.classes, self.standardize = parts, classes, standardize
        self.cam_candidates = tuple(f"nets.{name}" for name in net.cam_candidates)
        state = {name: value.clone() for name, value in net.state_dict().items()}
        self.nets = widened(net, parts)
        self.register_buffer("scale", torch.ones(()))
        self.fill([state] * parts)

    def fill(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load the sub-models' weights. Raises ValueError unless there are as many as parts."""
        if len(states) != self.parts:
            raise ValueError(f"an ensemble of {self.parts} parts has that many sub-models, not {len(states)}")
        wide = self.nets.state_dict()
        self.nets.load_state_dict(
            {name: _joined([state[name] for state in states], value) for name, value in wide.items()}
        )

    def each(self, x: Tensor) -> Tensor:
        """Every sub-model's own logits, `(B, C, H, W)` -> `(B, M, K)`."""
        return self.nets(torch.cat([x] * self.parts, 1)).unflatten(1, (self.parts, self.classes))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.each(x).double()  # certain sub-models would lose their gradient in float32
        if self.standardize:
            logits = standardized(logits) * self.scale
        return (logits.log_softmax(2).logsumexp(1) - math.log(self.parts)).float()  # (B, K)


def standardized(logits: Tensor) -> Tensor:
    """Logits `(..., K)` with mean 0 and standard deviation 1 over the classes."""
    centred = logits - logits.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + _TINY).sqrt()


def mean_spread(ensemble: Ensemble, images: Tensor) -> float:
    """Mean standard deviation over the classes of the sub-models' logits, of images uint8 `(N, C, H, W)`."""
    where, total = ensemble.scale.device, 0.0
    with torch.no_grad():
        for part in images.split(BATCH):
            total += float(ensemble.each(as_pixels(part.to(where))).double().std(2, correction=0).sum())
    return total / (len(images) * ensemble.parts)


class _Linears(nn.Module):
    """M linear layers side by side, `(B, M * I)` -> `(B, M * O)`."""

    def __init__(self, linear: nn.Linear, parts: int) -> None:
        super().__init__()
        self.parts, self.inputs, self.outputs = parts, linear.in_features, linear.out_features
        self.weight = nn.Parameter(linear.weight.detach().repeat(parts, 1))
        self.bias = nn.Parameter(linear.bias.detach().repeat(parts))

    def forward(self, x: Tensor) -> Tensor:
        # in the weights' type, also where convolutions before it compute in bfloat16
        rows = x.to(self.weight.dtype).unflatten(1, (self.parts, self.inputs))
        weight = self.weight.unflatten(0, (self.parts, self.outputs))
        return torch.einsum("bmi,moi->bmo", rows, weight).flatten(1) + self.bias


def widened(net: nn.Module, parts: int) -> nn.Module:
    """The net with every layer of it `parts` times side by side, channels of a sub-model together; its weights are to
    be loaded. Raises TypeError for a layer with weights that is of no known kind.
    """
    for name, module in list(net.named_modules()):
        if (wide := _wide(module, parts)) is not None:
            net.set_submodule(name, wide)
        elif [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            raise TypeError(f"an ensemble cannot hold the layer '{name}', a {type(module).__name__}")
    return net


def _wide(module: nn.Module, parts: int) -> nn.Module | None:
    """A layer that does for each of `parts` groups of channels what the given one does; None where it does so as is."""
    match module:
        case Normalize():
            return Normalize(module.mean.flatten().repeat(parts), module.std.flatten().repeat(parts))
        case nn.Conv2d():  # without drawing weights, which would move the global generator
            return skip_init(
                nn.Conv2d, module.in_channels * parts, module.out_channels * parts, module.kernel_size, module.stride,
                module.padding, module.dilation, module.groups * parts, module.bias is not None,
            )  # fmt: skip
        case nn.BatchNorm2d():
            return nn.BatchNorm2d(module.num_features * parts, module.eps, module.momentum)
        case nn.GroupNorm():
            return nn.GroupNorm(module.num_groups * parts, module.num_channels * parts, module.eps)
        case nn.Linear():
            return _Linears(module, parts)
    return None


def _joined(values: Sequence[Tensor], wide: Tensor) -> Tensor:
    """One tensor of every sub-model side by side, along the axis on which the wide one is longer.

    Where it is no longer, as a count of batches, the first one's is taken.
    """
    axes = [axis for axis, size in enumerate(wide.shape) if size != values[0].shape[axis]]
    return torch.cat(list(values), axes[0]) if axes else values[0]
