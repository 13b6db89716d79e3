"""CIFAR-100 as in the paper, on a GPU in under ten minutes: how fast it trains, and cells of Tables IV and V.

    bench/gpu_paper.sh [--images 10000] [--epochs 100] [--minutes 9] [--store FOLDER] [--peak FLOPS]

Trains none, TIER Full and a shadow model of each through the library's own stages, with ResNet-18's CIFAR stem in bf16,
then mounts the attack under one explainer. What is stored is not computed again. Before each stage the time left is
compared with what the stage should take at the rate of the first training, and it is left out, and said, where that
does not suffice; a stage that the end comes upon is stopped at its next batch, and the rate so far is printed.

Prints for each training `NAME images_per_second R model_flops_utilisation U seconds S`, where U is the share of
`--peak` (the GPU's bf16 operations a second; by default an H100's) that the operations of the model's own passes take,
and for each cell `Table T DEFENSE QUANTITY paper P here H`. Without the images of CIFAR-100 under TIER_DATA drawn signs
stand in: the speed is the same, and no cell is compared. The exit status is 1 when something was left out.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.capacity import training_costs
from tier import data, experiment, paper, presets, runtime
from tier.capacity import Accelerator
from tier.config import DefenseName, Experiment
from tier.context import Cancelled, Context
from tier.store import Result, Store

DEFENSES: tuple[DefenseName, ...] = ("none", "tier_full")
COSTS = {"none": "train plain", "tier_full": "train tier"}  # names of `training_costs`
TABLE_IV = {"train_accuracy": "train_accuracy", "test_top1": "test_accuracy", "test_top5": "test_top5",
            "test_loss": "test_loss"}  # fmt: skip
STEP = 3.0  # a training step's operations over a forward pass's: forward, and backward at twice the cost


@dataclass(frozen=True)
class Work:
    """One stage to compute: what it is called, and whose it is."""

    name: str
    stage: str
    defense: DefenseName
    e: Experiment


def base(defense: DefenseName, images: int, epochs: int, architecture: str, drawn: bool) -> Experiment:
    """The paper's run on CIFAR-100, or on as many drawn signs."""
    preset = presets.get("cifar100_paper")
    sizes = {f"split.{name}": images for name in ("target_train", "target_test", "shadow_train", "shadow_test")}
    settings = {"train.epochs": epochs, "train.precision": "bf16", "model.architecture": architecture, **sizes}
    e = preset.run(defense).set({**settings, "explain.name": "gradcam", "attack.shadow": "same"})
    return e.set({"data.source": "signs", "data.signs.images": 4 * images}) if drawn else e


def work(images: int, epochs: int, architecture: str, drawn: bool) -> Iterator[Work]:
    """What is computed, most wanted first: both targets, the undefended attack, then TIER's."""
    runs = {defense: base(defense, images, epochs, architecture, drawn) for defense in DEFENSES}
    for defense, e in runs.items():
        yield Work(defense, "train", defense, e)
    for defense, e in runs.items():
        yield Work(f"{defense}_shadow", "train", defense, experiment.shadow(e, adaptive=True))
        yield Work(f"{defense}_attack", "attack", defense, e)


def cells(one: Work, result: Result) -> Iterator[str]:
    """The lines of Tables IV and V that a target or an attack answers to."""
    printed = {n.place: n.value for n in paper.of("cifar100", ["IV", "V"]) if n.place.defense == one.defense}
    if one.stage == "attack":
        leaf = result.metrics["attack_test"]
        rate = leaf["tpr_at_0.001"]
        ours = {"balanced_accuracy": leaf["balanced_accuracy"]}
        ours["tpr_percent_at_0.1_percent_fpr"] = None if rate is None else 100 * rate
        table, explainer = "V", one.e.explain.name
    else:
        ours = {name: result.metrics.get(metric) for name, metric in TABLE_IV.items()}
        table, explainer = "IV", None
    for place, value in printed.items():
        here = ours.get(place.quantity)
        if place.table == table and place.explainer == explainer and here is not None:
            yield f"Table {table} {one.defense} {place.quantity} paper {value:g} here {here:.3f}"


def speed(one: Work, result: Result, flops: Mapping[DefenseName, float], peak: float | None) -> str:
    """The line of one training; `flops` of an image's step, forward and backward, by defense, after TIER's warm-up.

    The time of an epoch is of those after the warm-up, too, where there are any; where there are none, it says so.
    """
    seconds, warm = result.metrics["seconds_per_epoch"], one.e.train.epochs <= _warmup(one)
    rate = one.e.split.target_train / seconds
    share = "unknown" if peak is None else f"{rate * flops['none' if warm else one.defense] / peak:.3f}"
    total = seconds * one.e.train.epochs
    told = f"{one.name} images_per_second {rate:.0f} model_flops_utilisation {share} seconds {total:.0f}"
    return f"{told} (warm-up only: trained without TIER's terms)" if warm else told


def _warmup(one: Work) -> int:
    """Epochs before TIER's terms act; 0 where there are none."""
    return one.e.defense.tier.warmup if one.e.defense.regularizes else 0


class Clock:
    """How long stages take, learnt from those that were computed, and the time that is left."""

    def __init__(self, end: float, flops: Mapping[DefenseName, float]) -> None:
        self.end, self.flops = end, flops  # on time.monotonic; an image's step, by defense
        self.took: dict[tuple[str, DefenseName], float] = {}
        self.step: float | None = None  # seconds of an image's step, undefended

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def expected(self, one: Work) -> float:
        """Seconds that a stage should take: as its like did, else from the first training; 0 before that."""
        if (seconds := self.took.get((one.stage, one.defense))) is not None or self.step is None:
            return seconds or 0.0
        like = [seconds for (stage, _), seconds in self.took.items() if stage == one.stage]
        sets = one.e.split
        if one.stage == "train":
            return self.step * sets.target_train * one.e.train.epochs * self.flops[one.defense] / self.flops["none"]
        images = sets.target_train + sets.target_test + sets.shadow_train + sets.shadow_test
        few = min(one.e.attack.tuning, sets.shadow_train) + min(one.e.attack.tuning, sets.shadow_test)
        copies = 1 + 2 * (len(one.e.attack.trajectory.levels) - 1)  # the image, and both orders of removal
        passes = images * (STEP + copies) + len(one.e.attack.alphas) * few * copies
        return max([self.step * passes / STEP, *like])

    def learn(self, one: Work, seconds: float) -> None:
        """What a computed stage took."""
        self.took[one.stage, one.defense] = seconds
        if self.step is None and one.stage == "train":
            relative = self.flops[one.defense] / self.flops["none"]
            self.step = seconds / (one.e.split.target_train * one.e.train.epochs * relative)


def compute(store: Store, one: Work, clock: Clock) -> Result | None:
    """The stage's result, or None, which is said, where the time does not suffice for it."""
    found = experiment.find(store, one.stage, one.e)
    if found is not None:
        if one.stage == "train":
            clock.learn(one, found.metrics["seconds_per_epoch"] * one.e.train.epochs)
        return found
    began, expected = time.monotonic(), clock.expected(one)
    if clock.left <= 0 or expected > clock.left:
        why = f"about {expected:.0f} seconds at the rate so far, {clock.left:.0f} are left"
        print(f"{one.name} left out: {why if clock.left > 0 else 'the time is over'}", flush=True)
        return None
    epochs: dict[int, float] = {}

    def note(event: Mapping[str, Any]) -> None:
        if event.get("step") == "training" and one.stage == "train":
            epochs[int(event["epoch"])] = float(event["seconds"])

    try:
        result = experiment.ensure(store, one.stage, one.e, Context(note, lambda: clock.left <= 0))
    except Cancelled:
        print(f"{one.name} stopped, the time is over{_so_far(one, epochs)}", flush=True)
        return None
    clock.learn(one, time.monotonic() - began)
    return result


def _so_far(one: Work, epochs: Mapping[int, float]) -> str:
    """The epochs of a training that was stopped and their rate: of those with TIER's terms, where there are any."""
    if not epochs:
        return ""
    acting = [seconds for epoch, seconds in epochs.items() if epoch > _warmup(one)] or list(epochs.values())
    rate = one.e.split.target_train / median(acting)
    return f" after {len(epochs)} of {one.e.train.epochs} epochs: images_per_second {rate:.0f}"


def stopped(number: int, frame: object) -> None:
    """End as after an error, so that the folder of results is removed."""
    print("stopped from outside: what stands above is what was measured", flush=True)
    sys.exit(1)


def main() -> int:
    """Compute and print; the exit status is 1 when something was left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="in each of the four sets")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=9.0, help="after these what still runs is stopped")
    parser.add_argument("--architecture", default="resnet18_cifar")
    parser.add_argument("--peak", type=float, help="operations a second; default: an H100's where there is a GPU")
    parser.add_argument("--store", help="folder of results; default: a new one that is removed")
    asked = parser.parse_args()
    drawn = not data.present("cifar100")
    peak = asked.peak or (Accelerator().peak["bf16"] if runtime.device().type == "cuda" else None)
    signal.signal(signal.SIGTERM, stopped)
    end, status = time.monotonic() + 60 * asked.minutes, 0
    costs = dict(training_costs(presets.get("cifar100_paper").experiment.model.model_copy(
        update={"architecture": asked.architecture}), 8, 1))  # fmt: skip
    flops = {defense: costs[COSTS[defense]].flops for defense in DEFENSES}
    clock, missing = Clock(end, flops), set[str]()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(asked.store or folder)
        for one in work(asked.images, asked.epochs, asked.architecture, drawn):
            if one.stage == "attack" and missing & {one.defense, f"{one.defense}_shadow"}:
                print(f"{one.name} left out: its models are", flush=True)
                result = None
            else:
                result = compute(store, one, clock)
            if result is None:
                missing.add(one.name)
                status = 1
                continue
            if one.stage == "train":
                print(speed(one, result, flops, peak), flush=True)
            if not drawn and one.e.split.role == "target":
                print(*cells(one, result), sep="\n", flush=True)
    if drawn:
        print("no cell compared: CIFAR-100 is not under TIER_DATA, drawn signs stood in")
    return status


if __name__ == "__main__":
    sys.exit(main())
