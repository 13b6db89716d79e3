"""A faster forward pass for evaluating many altered images: BatchNorm folded into convolutions, or bfloat16 as well.

For confidences only. Gradients, and so maps, are always taken from the model itself.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tier.config import Inference, InferenceKind

Forward = Callable[[Tensor], Tensor]
"""Pixels `(B, C, H, W)` in [0, 1] -> logits `(B, K)` float32."""

KINDS: tuple[InferenceKind, ...] = get_args(InferenceKind)
ROUNDS, SECONDS = 5, 2.0  # every kind is timed so often, and more often until so much time is spent
TIMED = 250  # images in a batch that is timed, as `tier.trajectories` takes them

# Measured on the shipped models of the drawn signs, 300 + 300 images: `folded` moved no confidence by more than 3e-6
# and the audit's AUC by less than 0.0001. `bf16` moved some by 0.04 to 0.05 and the AUC by up to 0.012, or up to 0.021
# with another seed of the classifier, mostly downwards on models that leak: enough to make a defense look better.
LARGEST_CONFIDENCE_CHANGE = 0.01  # along the removal paths; less is not seen in an image's curve
LARGEST_AUC_CHANGE = 0.005  # a fifth of the half width of its 95 % interval on as many images
LEAST_GAIN = 1.1  # a smaller gain in speed is not worth other bits than those of stored results


def fast(model: nn.Module, kind: Inference) -> Forward:
    """The model's forward pass for pixels in [0, 1], in another arithmetic: `(B, C, H, W)` -> logits `(B, K)` float32.

    `fp32` is the model itself, to be called while it is in evaluation mode. `folded` is a copy whose BatchNorms became
    part of the convolutions before them; `bf16` is that copy with convolutions in bfloat16, and linear layers in
    float32, so that confident predictions do not tie. The model is left as found. Raises ValueError for an unknown
    kind, for `auto`, which `tier.experiment.pin` replaces, and for a model whose steps depend on the pixels, which
    cannot be folded.
    """
    if kind == "auto":
        raise ValueError(f"inference auto has to be measured first; name one of {', '.join(KINDS)} instead")
    if kind not in KINDS:
        raise ValueError(f"no inference named '{kind}'; there are {', '.join(KINDS)}")
    if kind == "fp32":
        return model
    copied = folded(model)
    if kind == "bf16":
        _halve(copied)
    return lambda x: copied(x).float()


def folded(model: nn.Module) -> fx.GraphModule:
    """A copy in evaluation mode without the BatchNorms that directly follow a convolution.

    Only where the convolution runs once and nothing else reads its output. Raises ValueError as `fast`.
    """
    try:
        copied = fx.symbolic_trace(copy.deepcopy(model).eval())
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:  # what tracing raises depends on the step
        raise ValueError(f"this model's forward pass cannot be traced, use inference fp32: {error}") from error
    modules = dict(copied.named_modules())
    calls = [str(node.target) for node in copied.graph.nodes if node.op == "call_module"]
    for node in list(copied.graph.nodes):
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or node.op != "call_module" or before.op != "call_module":
            continue
        norm, convolution = modules[str(node.target)], modules[str(before.target)]
        alone = len(before.users) == 1 and calls.count(str(before.target)) == 1
        if alone and isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and _fixed(norm):
            copied.set_submodule(str(before.target), fuse_conv_bn_eval(convolution, norm))
            node.replace_all_uses_with(before)
            copied.graph.erase_node(node)
    copied.delete_all_unused_submodules()
    copied.recompile()
    return copied.to(memory_format=torch.channels_last)


def _fixed(norm: nn.BatchNorm2d) -> bool:
    """Whether it uses stored statistics; without them it would use the batch's."""
    return norm.running_mean is not None and norm.running_var is not None


def _halve(model: nn.Module) -> None:
    """Convolutions in bfloat16; every layer with weights gets its input in the type of its weights."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(torch.bfloat16)
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_pre_hook(_in_its_own_type)


def _in_its_own_type(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return (inputs[0].to(weight.dtype), *inputs[1:])


def usable(model: nn.Module) -> tuple[InferenceKind, ...]:
    """The kinds that `fast` makes of a model: all, or fp32 alone where its steps depend on the pixels."""
    try:
        folded(model)
    except ValueError:
        return ("fp32",)
    return KINDS


def images_per_second(
    model: nn.Module, sample: Tensor, kinds: Sequence[InferenceKind] = KINDS
) -> dict[InferenceKind, float]:
    """The speed of each kind, and of fp32, on this machine for batches like `sample` `(B, C, H, W)` in [0, 1].

    Call it while the model is in evaluation mode, with the threads to be used. Raises ValueError as `fast`.
    """
    candidates = {kind: fast(model, kind) for kind in dict.fromkeys(("fp32", *kinds))}
    seconds: dict[InferenceKind, float] = dict.fromkeys(candidates, float("inf"))
    with torch.inference_mode():
        for run in candidates.values():
            _timed(run, sample)  # the first is slower
        rounds, spent = 0, 0.0
        while rounds < ROUNDS or spent < SECONDS:
            for kind, run in candidates.items():  # in turn, so that other work on the machine slows all of them
                spent += (took := _timed(run, sample))
                seconds[kind] = min(seconds[kind], took)
            rounds += 1
    return {kind: len(sample) / value for kind, value in seconds.items()}


def _timed(run: Forward, sample: Tensor) -> float:
    began = time.perf_counter()
    run(sample).cpu()  # waits for an accelerator
    return time.perf_counter() - began


def choose(
    speed: Mapping[InferenceKind, float],
    confidence_change: Mapping[InferenceKind, float],
    auc_change: Mapping[InferenceKind, float],
) -> InferenceKind:
    """The fastest kind whose errors against fp32 are allowed, if it gains enough over fp32; else fp32.

    `speed` in images per second, fp32 among them; `confidence_change` the largest of any confidence; `auc_change` that
    of the audit, of either sign. An error that is NaN is not allowed.
    """
    fit = [
        kind
        for kind in speed
        if confidence_change[kind] <= LARGEST_CONFIDENCE_CHANGE and abs(auc_change[kind]) <= LARGEST_AUC_CHANGE
    ]
    best: InferenceKind = max(fit, key=lambda kind: speed[kind], default="fp32")
    return best if speed[best] >= LEAST_GAIN * speed["fp32"] else "fp32"
