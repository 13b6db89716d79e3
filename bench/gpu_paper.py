"""CIFAR-100 as in the paper, on a GPU in under ten minutes: how fast it trains, and cells of Tables IV and V.

    bench/gpu_paper.sh [--images 10000] [--epochs 100] [--minutes 9] [--store FOLDER] [--peak FLOPS]

Trains none, TIER Full and a shadow model of each through the library's own stages, with ResNet-18's CIFAR stem in bf16,
then mounts the attack under one explainer. What is stored is not computed again; what the minutes do not suffice for is
left out and said. Prints for each training `NAME images_per_second R model_flops_utilisation U seconds S`, where U is
the share of `--peak` (the GPU's bf16 operations a second; by default an H100's) that the operations of the model's own
passes take, and for each cell `Table T DEFENSE QUANTITY paper P here H`. Without the images of CIFAR-100 under
TIER_DATA drawn signs stand in: the speed is the same, and no cell is compared.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.capacity import training_costs
from tier import data, experiment, paper, presets, runtime
from tier.capacity import Accelerator
from tier.config import DefenseName, Experiment
from tier.store import Result, Store

DEFENSES: tuple[DefenseName, ...] = ("none", "tier_full")
COSTS = {"none": "train plain", "tier_full": "train tier"}  # names of `training_costs`
TABLE_IV = {"train_accuracy": "train_accuracy", "test_top1": "test_accuracy", "test_top5": "test_top5",
            "test_loss": "test_loss"}  # fmt: skip


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


def speed(one: Work, result: Result, flops: float, peak: float | None) -> str:
    """The line of one training; `flops` of an image's step, forward and backward, after TIER's warm-up, as the time."""
    seconds = result.metrics["seconds_per_epoch"]
    rate = one.e.split.target_train / seconds
    share = "unknown" if peak is None else f"{rate * flops / peak:.3f}"
    total = seconds * one.e.train.epochs
    return f"{one.name} images_per_second {rate:.0f} model_flops_utilisation {share} seconds {total:.0f}"


def main() -> int:
    """Compute and print; the exit status is 1 when something was left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, help="in each of the four sets")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=9.0, help="no further stage is begun after these")
    parser.add_argument("--architecture", default="resnet18_cifar")
    parser.add_argument("--peak", type=float, help="operations a second; default: an H100's where there is a GPU")
    parser.add_argument("--store", help="folder of results; default: a new one that is removed")
    asked = parser.parse_args()
    drawn = not data.present("cifar100")
    peak = asked.peak or (Accelerator().peak["bf16"] if runtime.device().type == "cuda" else None)
    began, status = time.monotonic(), 0
    flops = dict(training_costs(presets.get("cifar100_paper").experiment.model.model_copy(
        update={"architecture": asked.architecture}), 8, 1))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        store = Store(asked.store or folder)
        for one in work(asked.images, asked.epochs, asked.architecture, drawn):
            if time.monotonic() - began > 60 * asked.minutes:
                print(f"{one.name} left out: {asked.minutes:g} minutes are over", flush=True)
                status = 1
                continue
            result = experiment.ensure(store, one.stage, one.e)
            if one.stage == "train":
                print(speed(one, result, flops[COSTS[one.defense]].flops, peak), flush=True)
            if not drawn and one.e.split.role == "target":
                print(*cells(one, result), sep="\n", flush=True)
    if drawn:
        print("no cell compared: CIFAR-100 is not under TIER_DATA, drawn signs stood in")
    return status


if __name__ == "__main__":
    sys.exit(main())
