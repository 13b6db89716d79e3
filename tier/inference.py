"""A faster forward pass for evaluating many altered images: BatchNorm folded into convolutions, or bfloat16 as well.

For confidences only. Gradients, and so maps, are always taken from the model itself.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tier.config import InferenceKind

Forward = Callable[[Tensor], Tensor]
"""Pixels `(B, C, H, W)` in [0, 1] -> logits `(B, K)` float32."""

KINDS: tuple[InferenceKind, ...] = get_args(InferenceKind)
ROUNDS = 5


@dataclass(frozen=True)
class Choice:
    """The fastest kind, and for each kind images per second and the largest change of a confidence against fp32."""

    kind: InferenceKind
    images_per_second: dict[InferenceKind, float]
    error: dict[InferenceKind, float]


def fast(model: nn.Module, kind: InferenceKind) -> Forward:
    """The model's forward pass for pixels in [0, 1], in another arithmetic: `(B, C, H, W)` -> logits `(B, K)` float32.

    `fp32` is the model itself, to be called while it is in evaluation mode. `folded` is a copy whose BatchNorms became
    part of the convolutions before them; `bf16` is that copy with convolutions in bfloat16, and linear layers in
    float32, so that confident predictions do not tie. The model is left as found. Raises ValueError for an unknown
    kind, and for a model whose steps depend on the pixels, which cannot be folded.
    """
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


def choose(model: nn.Module, sample: Tensor, allowed: float = 0.05, kinds: Sequence[InferenceKind] = KINDS) -> Choice:
    """The fastest of the kinds on this machine for batches like `sample` `(B, C, H, W)` in [0, 1].

    Kinds that change a confidence of the sample by more than `allowed` are measured but not chosen; fp32 always may be.
    What is fastest differs between machines: put the kind found into the settings before results are keyed. Call it
    while the model is in evaluation mode, with the threads to be used. Raises ValueError as `fast`.
    """
    candidates = {kind: fast(model, kind) for kind in dict.fromkeys(("fp32", *kinds))}
    seconds: dict[InferenceKind, float] = dict.fromkeys(candidates, float("inf"))
    with torch.inference_mode():
        confidence = {kind: run(sample).double().softmax(1) for kind, run in candidates.items()}  # the first is slower
        for _ in range(ROUNDS):  # in turn, so that other work on the machine slows all of them
            for kind, run in candidates.items():
                seconds[kind] = min(seconds[kind], _timed(run, sample))
    error = {kind: float((values - confidence["fp32"]).abs().max()) for kind, values in confidence.items()}
    fit = [kind for kind in candidates if error[kind] <= allowed]
    speed = {kind: len(sample) / value for kind, value in seconds.items()}
    return Choice(max(fit, key=lambda kind: speed[kind]), speed, error)


def _timed(run: Forward, sample: Tensor) -> float:
    began = time.perf_counter()
    run(sample).cpu()  # waits for an accelerator
    return time.perf_counter() - began
