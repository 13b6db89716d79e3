"""DP-SGD's two ways to clip an image's gradient: Opacus's, which holds it, against ghost clipping, which does not.

Prints for each net `NET hooks_over_ghost R hooks_ms H ghost_ms G`: milliseconds an image of one batch of 64 at 32x32 on
one thread, medians of interleaved rounds. Fails where the paper's net (ResNet-18, ImageNet stem) gains less than LEAST.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from tier import config, models
from tier.config import Train
from tier.defenses.dpsgd import DpSgdDefense
from tier.runtime import as_pixels
from tier.training import Problem

NETS: tuple[config.ArchitectureName, ...] = ("resnet18_imagenet", "resnet18_cifar", "mobilenet_v2")
MODES = ("hooks", "ghost")
IMAGES, SIDE, CLASSES, ROUNDS, LEAST = 64, 32, 43, 3, 3.0


def prepared(architecture: config.ArchitectureName, mode: str, data: Problem) -> tuple[DpSgdDefense, torch.nn.Module]:
    """The defense and its net, ready for a step."""
    half = torch.full((3,), 0.5)
    net = models.build(config.Model(architecture=architecture, norm="group"), CLASSES, half, half, 0)
    settings = config.DpSgd.model_validate({"epsilon": None, "noise": 0.5, "grad_sample_mode": mode})
    defense = DpSgdDefense(settings)
    defense.settings(Train(batch_size=IMAGES))
    net, _ = defense.prepare(net.to(memory_format=torch.channels_last), torch.optim.SGD(net.parameters(), 0.1), data)
    return defense, net.train()


def main() -> int:
    """Measure and print; the exit status is 1 where the gain is too small."""
    torch.set_num_threads(1)
    pixels = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (IMAGES,))
    data = Problem(pixels, labels, pixels, labels, CLASSES)
    x = as_pixels(pixels).contiguous(memory_format=torch.channels_last)
    gains = {}
    for architecture in NETS:
        ready = {mode: prepared(architecture, mode, data) for mode in MODES}
        taken: dict[str, list[float]] = {mode: [] for mode in MODES}
        for turn in range(ROUNDS + 1):  # the first warms up
            for mode, (defense, net) in ready.items():
                defense.begin(torch.arange(IMAGES), turn)
                began = time.perf_counter()
                defense.loss(net, x, labels, turn)
                taken[mode].append(1e3 * (time.perf_counter() - began) / IMAGES)
        hooks, ghost = (statistics.median(taken[mode][1:]) for mode in MODES)
        gains[architecture] = hooks / ghost
        print(f"{architecture} hooks_over_ghost {hooks / ghost:.2f} hooks_ms {hooks:.1f} ghost_ms {ghost:.1f}")
    return int(gains[NETS[0]] < LEAST)


if __name__ == "__main__":
    sys.exit(main())
