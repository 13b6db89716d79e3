"""What a TIER training step costs over a plain one, beside the limit of 13 forward units against 3.

Prints a line per net and precision: `CONFIG precision plain_img_s P tier_img_s T tier_over_plain R naive_over_plain N`.
Plain, TIER and naive steps are interleaved in one run on the same batch; each figure is a median. `naive` reads
Algorithm 1 line by line: a forward pass of its own for the attribution, one pass per level.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tier.config import Model, Tier
from tier.defenses.tier import consistency, drop_variance, tier_loss
from tier.models import build
from tier.perturbation import mask_levels, ranks
from tier.runtime import autocast, device, session

CONFIGS = {
    "small": (Model(architecture="small", width=16), 128),
    "resnet18_imagenet": (Model(architecture="resnet18_imagenet"), 128),
    "resnet18_cifar": (Model(architecture="resnet18_cifar"), 64),
}
TIER = Tier(warmup=0)


def naive_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Algorithm 1 as it stands: attribution from a pass of its own, then the clean pass, then one pass per level."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).float().gather(1, y.unsqueeze(1)).sum(), leaf)
    places = ranks(gradient.abs().mean(1))
    clean = model(x).float()
    perturbed = torch.stack([model(mask_levels(x, places, [level], TIER.fill)[0]).float() for level in TIER.levels])
    terms = consistency(clean, perturbed) + TIER.beta * drop_variance(clean, perturbed, y, TIER)
    return F.cross_entropy(clean, y) + TIER.lambda_ * terms


def measure(name: str, precision: str, rounds: int) -> str:
    """The line of one net at one precision."""
    config, batch = CONFIGS[name]
    where = device()
    model = build(config, 43, torch.full((3,), 0.5), torch.full((3,), 0.25)).to(where)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(batch, 3, 32, 32, generator=draw).to(where).contiguous(memory_format=torch.channels_last)
    y = torch.randint(43, (batch,), generator=draw).to(where)
    weights = list(model.parameters())
    losses: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: F.cross_entropy(model(x).float(), y),
        "tier": lambda: tier_loss(model, x, y, 0, TIER)[0],
        "naive": lambda: naive_loss(model, x, y),
    }
    times: dict[str, list[float]] = {kind: [] for kind in losses}
    for turn in range(rounds + 2):
        for kind, loss in losses.items():
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            with autocast("bf16" if precision == "bf16" else "fp32", where):
                total = loss()
            if kind == "naive":
                total.backward()
            else:  # as the training loop does
                torch.autograd.backward(total, inputs=weights)
            optimizer.step()
            if where.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                times[kind].append(time.perf_counter() - began)
    step = {kind: statistics.median(values) for kind, values in times.items()}
    return (
        f"{name} {precision} plain_img_s {batch / step['plain']:.0f} tier_img_s {batch / step['tier']:.0f} "
        f"tier_over_plain {step['tier'] / step['plain']:.2f} naive_over_plain {step['naive'] / step['plain']:.2f}"
    )


def main() -> None:
    """Measure every net at both precisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--configs", nargs="*", default=list(CONFIGS), choices=list(CONFIGS))
    options = parser.parse_args()
    with session(options.threads):
        for name in options.configs:
            for precision in ("fp32", "bf16"):
                print(measure(name, precision, options.rounds), flush=True)


if __name__ == "__main__":
    main()
