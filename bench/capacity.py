"""What each stage costs an image on one core, and from that the hours and the price of the paper's whole comparison.

Prints Markdown tables: CPU seconds per image and stage for each net; hours on 2 cores, one GPU and ten GPUs of each of
the paper's data sets (Table II); hours by phase; money. Seconds are of the processor (`time.process_time`), one thread,
fp32, images of 32x32: other work on the machine hardly counts. GPUs are not measured but estimated: from counted
operations at a share of a stated peak, or from the number of operator calls, whichever is longer. Every assumption is
an argument; prices are assumptions too and nobody's offer.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tier import config, defenses, presets, training
from tier.attacks import agp
from tier.capacity import PASSES, SEVEN, Accelerator, Cost, Machine, Plan, Precision, by_phase, elapsed, hours, work
from tier.defenses import memguard
from tier.explainers import explain_family
from tier.explainers.base import inspecting
from tier.explainers.lime import keep_draws, regress, removal_scores, superpixels
from tier.imputation import road
from tier.perturbation import ranks, removed
from tier.runtime import as_pixels, session
from tier.trajectories import trajectories

NETS: tuple[config.ArchitectureName, ...] = ("small", "mobilenet_v2", "resnet18_imagenet", "resnet18_cifar")
PAPER = {"cifar10": "resnet18", "cifar100": "resnet18", "cinic10": "resnet18", "gtsrb": "resnet18",
         "openforensics": "mobilenet_v2"}  # fmt: skip
BATCH, ROWS = 128, 250  # images of a step, and of a batch of maps or paths
STEMS = ("cifar", "imagenet")
CLASSES = 100  # the most of Table II's sets


class Counter(TorchDispatchMode):
    """Counts floating-point operations, and the operators called but for views, which cost next to nothing.

    With PyTorch's formulas; its own `FlopCounterMode` refuses `torch.autograd.grad` by a leaf, which TIER needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.calls = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:  # in inference mode compound operators come whole
                made = func.decompose(*args, **named)
            if made is not NotImplemented:
                return made
        out = func(*args, **named)
        self.flops += 0 if formula is None else formula(*args, **named, out_val=out)
        self.calls += not func.is_view
        return out


def counted(run: Callable[[], object]) -> tuple[float, float]:
    """Floating-point operations and operator calls of a piece of work."""
    with Counter() as counter:
        run()
    return counter.flops, counter.calls


def processor_seconds(run: Callable[[], object], rounds: int) -> float:
    """The median over rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measured(run: Callable[[], object], images: int, shared: int, rounds: int, precision: Precision = "fp32") -> Cost:
    """The cost of each of `images` in `run`, whose calls `shared` images share where it really runs."""
    flops, calls = counted(run)  # the first run is slower, and is not timed
    return Cost(processor_seconds(run, rounds) / images, 0.0, flops / images, calls / shared, precision)


def pictures(count: int) -> tuple[Tensor, Tensor]:
    """Smooth random images, uint8 `(count, 3, 32, 32)`, in which superpixels find regions, and labels `(count,)`."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=draw)
    x = F.interpolate(coarse, (32, 32), mode="bilinear").mul(255).to(torch.uint8)
    return x, torch.randint(CLASSES, (count,), generator=draw)


# ---- what is measured on a net


def training_costs(net: config.Model, count: int, rounds: int) -> Iterator[tuple[str, Cost]]:
    """A step of `count` images, as the loop takes it, optimizer included: plain, TIER Full, DP-SGD."""
    pixels, labels = pictures(count)
    problem = training.Problem(pixels, labels, pixels, labels, CLASSES)
    for kind, name in (("plain", "none"), ("tier", "tier_full"), ("dpsgd", "dpsgd_eps100")):
        run = config.Experiment(model=net, defense=config.Defense(name=name, tier=config.Tier(warmup=0)))
        defense = defenses.build(run.defense)
        settings = defense.settings(run.train)
        state = training.start(problem, run.net, settings)
        model, optimizer = defense.prepare(state.model, state.optimizer, problem)
        model.train()
        weights = list(model.parameters())
        defense.begin(torch.arange(count), 0)

        def gradients(
            model: nn.Module = model, defense: defenses.Defense = defense, weights: Sequence[Tensor] = weights
        ) -> None:
            x = as_pixels(pixels)
            if defense.augmentation is not None:
                x = as_pixels(defenses.augmentation.augment(x, defense.augmentation, torch.Generator().manual_seed(0)))
            loss = defense.loss(model, x, labels, 0)["loss"]
            torch.autograd.backward(loss, inputs=weights)

        flops, calls = counted(gradients)  # without the optimizer, which on a GPU is a few calls for all weights
        optimizer.step()

        def step(optimizer: Any = optimizer, gradients: Callable[[], None] = gradients) -> None:
            optimizer.zero_grad(set_to_none=True)
            gradients()
            optimizer.step()

        seconds = processor_seconds(step, rounds) / count
        together = count if kind == "dpsgd" else BATCH  # DP-SGD goes through a batch in pieces
        precision: Precision = "fp32" if kind == "dpsgd" else "bf16"  # what a GPU is asked for
        yield f"train {kind}", Cost(seconds, 0.0, flops / count, calls / together, precision)


def explaining_costs(model: nn.Module, rounds: int) -> Iterator[tuple[str, Cost]]:
    """The maps of each family, with as many images as fill its passes."""
    for family in ("smoothgrad", "gradcam", "integrated_gradients", "shap"):
        settings = config.Explain(name=family)
        count = 32 if PASSES[family] == 1 else 256 // PASSES[family]
        x, y = pictures(count)
        pixels = as_pixels(x)
        shared = ROWS if PASSES[family] == 1 else count

        def maps(settings: config.Explain = settings, x: Tensor = pixels, y: Tensor = y) -> None:
            explain_family(settings, model, x, y)

        yield f"explain {family}", measured(maps, count, shared, rounds if PASSES[family] > 1 else 5 * rounds)
    yield "explain lime", lime_cost(model, rounds)


def lime_cost(model: nn.Module, rounds: int, count: int = 2) -> Cost:
    """LIME's passes, and beside them what cannot leave the cores: superpixels and regressions."""
    settings = config.Explain(name="lime")
    pixels, y = pictures(count)
    x = as_pixels(pixels)
    segments = superpixels(x, settings.segments, settings.compactness)
    kept = keep_draws(settings.perturbations, int(segments.max()) + 1, settings.seed)
    scores = removal_scores(model, x, y, segments, kept, settings.baseline).double()

    def besides() -> None:
        superpixels(x, settings.segments, settings.compactness)
        regress(kept, scores, segments.amax((1, 2)) + 1, settings.kernel_width, settings.ridge)

    passes = measured(lambda: removal_scores(model, x, y, segments, kept, settings.baseline), count, count, rounds)
    return Cost(passes.seconds, processor_seconds(besides, 3) / count, passes.flops, passes.calls)


def path_costs(model: nn.Module, solving: float, count: int, rounds: int) -> Iterator[tuple[str, Cost]]:
    """A bare pass, and a level of a removal path with the order's share in it; ROAD adds `solving` on the cores."""
    x, y = pictures(count)
    maps = torch.randn(count, 32, 32, generator=torch.Generator().manual_seed(1)).numpy()
    settings = config.Trajectory()
    passes = 2 * len(settings.levels) - 1

    def bare() -> None:
        with inspecting(model), torch.inference_mode():
            model(as_pixels(x))

    yield "forward", measured(bare, count, ROWS, 5 * rounds)
    level = measured(lambda: trajectories(model, x, y, maps, settings), count * passes, ROWS * passes, rounds)
    yield "level mean", level
    yield "level road", Cost(level.seconds, solving, level.flops, level.calls)


# ---- what does not depend on the net


def solving_seconds(rounds: int, count: int = 64) -> float:
    """ROAD's linear systems of one image at one level, the mean over levels of 10 to 90 %."""
    pixels, _ = pictures(count)
    x = as_pixels(pixels)
    smooth = F.avg_pool2d(torch.rand(count, 1, 32, 32, generator=torch.Generator().manual_seed(2)), 5, 1, 2)[:, 0]
    places = ranks(smooth).view(count, 32, 32)
    gone = [places < removed(level, 1024) for level in config.Trajectory().levels if level > 0]

    def levels() -> None:
        for mask in gone:
            road(x, mask, 0.01, 0)

    levels()
    return processor_seconds(levels, rounds) / (count * len(gone))


def guard_costs(rounds: int, count: int = 250) -> Iterator[tuple[str, Cost]]:
    """MemGuard: an answer, and the fit of its classifier for each image that it learns from."""
    draw = torch.Generator().manual_seed(0)
    sure, unsure = (scale * torch.randn(count, CLASSES, generator=draw) for scale in (5.0, 2.0))
    settings = config.MemGuard()
    began = time.process_time()
    layers = memguard.fit_membership(sure.softmax(1), unsure.softmax(1), settings.hidden, 0)
    fit = (time.process_time() - began) / (2 * count)
    pixels, _ = pictures(count)
    x, both = as_pixels(pixels), torch.cat([sure[: count // 2], unsure[: count // 2]])

    def answers() -> None:
        memguard.answer(x[: len(both)], both, layers, settings.distortion, settings.steps, settings.rounds, 0)

    yield "guard", Cost(cores=processor_seconds(answers, rounds) / len(both))
    yield "guard fit", Cost(cores=fit)


def learning_costs(count: int = 1000) -> Iterator[tuple[str, Cost]]:
    """The attack's classifier for each row it learns from: its fits and figures, and the fits that try one alpha."""
    draw, levels = np.random.default_rng(0), len(config.Trajectory().levels)
    member = np.arange(count) % 2 == 0
    shift = 0.5 * member[:, None]
    morf, lerf = (-np.exp(draw.normal(size=(count, levels)) - shift) for _ in range(2))
    features = agp.Features(
        morf, lerf,
        np.exp(draw.normal(size=count) - shift[:, 0]), draw.integers(CLASSES, size=count), CLASSES,
    )  # fmt: skip
    settings = config.Audit()

    def learn() -> None:
        attack = agp.fit(features, member, settings)
        agp.cross_fitted(features, member, settings)
        few = np.arange(count // 4)  # attack-test beside attack-train
        attack.importance(features.take(few), member[few], 0.0)

    yield "learn", Cost(cores=processor_seconds(learn, 1) / count)
    tune = processor_seconds(lambda: agp.best_features({0.0: features}, member, settings), 1)
    yield "tune", Cost(cores=tune / count)


def net_costs(name: config.ArchitectureName, common: dict[str, Cost], solving: float) -> dict[str, Cost]:
    """Every cost of one net."""
    net = config.Model(architecture=name, width=16)
    large = name == "resnet18_cifar"
    model = training.start(training.Problem(*pictures(32), *pictures(32), CLASSES), net, config.Train()).model
    rounds = 1 if large else 3
    costs = dict(training_costs(net, 24 if large else 96, rounds))
    costs |= dict(explaining_costs(model, rounds))
    return costs | dict(path_costs(model, solving, 10 if large else 96, rounds)) | common


# ---- tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def cost_rows(costs: Mapping[str, Mapping[str, Cost]], epochs: int, references: int) -> list[list[str]]:
    """Milliseconds of a core per image and stage, by net; in brackets what stays on the cores beside a GPU."""

    def cell(cost: Cost) -> str:
        total = 1000 * (cost.seconds + cost.cores)
        return f"{total:.3g}" + (f" ({1000 * cost.cores:.3g})" if cost.cores and cost.seconds else "")

    rows = [[name, *(cell(of[name]) for of in costs.values())] for name in next(iter(costs.values()))]
    for kind in ("plain", "tier", "dpsgd"):
        seconds = [references * epochs * of[f"train {kind}"].seconds for of in costs.values()]
        rows.append([f"{references} references {kind}, {epochs} epochs, s", *(f"{value:,.1f}" for value in seconds)])
    return rows


def hour_rows(
    costs: Mapping[str, Mapping[str, Cost]], stem: str, machines: Sequence[Machine], plan: Plan
) -> Iterator[list[str]]:
    """Hours by data set, then of all, then their price."""
    sets = sets_of(costs, stem)
    for name, (split, of) in sets.items():
        yield [name, *(f"{hours(work(split, plan), of, machine):,.1f}" for machine in machines)]
    totals = [elapsed(sets, machine, plan) for machine in machines]
    yield ["all", *(f"{total:,.1f}" for total in totals)]
    yield ["money", *(f"{total * machine.price:,.0f}" for total, machine in zip(totals, machines, strict=True))]


def phase_rows(
    costs: Mapping[str, Mapping[str, Cost]], stem: str, machines: Sequence[Machine], plan: Plan
) -> Iterator[list[str]]:
    """Hours of all data sets by phase, with their share."""
    sets = sets_of(costs, stem)
    found = [[by_phase(work(split, plan), of, machine) for split, of in sets.values()] for machine in machines]
    for phase in found[0][0]:
        cells = []
        for of in found:
            part = sum(one[phase] for one in of)
            cells.append(f"{part:,.1f} ({part / sum(sum(one.values()) for one in of):.0%})")
        yield [phase, *cells]


def sets_of(costs: Mapping[str, Mapping[str, Cost]], stem: str) -> dict[str, tuple[config.Split, Mapping[str, Cost]]]:
    """The paper's data sets with their sizes and the costs of the net that it names, ResNet-18 with a stem."""
    nets = {name: f"{net}_{stem}" if net == "resnet18" else net for name, net in PAPER.items()}
    return {name: (presets.TABLE_II[name], costs[net]) for name, net in nets.items()}


def cuts(plan: Plan) -> dict[str, Plan]:
    """The plan as it is, and with one thing less each."""
    without = tuple(name for name in SEVEN if name != "lime")
    return {
        "everything": plan,
        "no reference models": replace(plan, references=0),
        "references 6": replace(plan, references=6),
        "one seed": replace(plan, seeds=1),
        "without DP-SGD": replace(plan, defenses=("none", "tier_full", "memguard")),
        "without LIME": replace(plan, explainers=without),
        "mean instead of ROAD": replace(plan, operator="mean"),
        "undefended shadow only": replace(plan, same_shadow=False),
        "one seed, no references, without LIME": replace(plan, seeds=1, references=0, explainers=without),
    }


def doubt_rows(costs: Mapping[str, Mapping[str, Cost]], machine: Machine, plan: Plan) -> Iterator[list[str]]:
    """Hours of all data sets on one GPU when one assumption about it is another."""
    gpu = machine.gpu
    doubts = {
        "as assumed": machine,
        "calls twice as fast": replace(machine, gpu=replace(gpu, call=gpu.call / 2)),
        "calls half as fast": replace(machine, gpu=replace(gpu, call=2 * gpu.call)),
        "half the utilisation": replace(machine, gpu=replace(gpu, utilisation=gpu.utilisation / 2)),
        "twice the utilisation": replace(machine, gpu=replace(gpu, utilisation=2 * gpu.utilisation)),
        "fp32 work at the peak of bf16": replace(
            machine, gpu=replace(gpu, peak=dict.fromkeys(gpu.peak, max(gpu.peak.values())))
        ),
        "a quarter of the cores": replace(machine, cores=max(1, machine.cores // 4)),
    }
    for name, other in doubts.items():
        yield [name, *(f"{elapsed(sets_of(costs, stem), other, plan):,.1f}" for stem in STEMS)]


def arguments() -> argparse.Namespace:
    """Assumptions, each with its default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak-bf16", type=float, default=989e12, help="dense operations a second, maker's figure")
    parser.add_argument("--peak-fp32", type=float, default=67e12, help="the same in fp32: DP-SGD, maps and paths")
    parser.add_argument("--utilisation", type=float, default=0.25, help="share of the peak that is reached")
    parser.add_argument("--call", type=float, default=1e-5, help="seconds of one operator call on the GPU")
    parser.add_argument("--gpu-cores", type=int, default=16, help="cores beside each GPU")
    parser.add_argument("--core-price", type=float, default=0.05, help="of a core, an hour")
    parser.add_argument("--gpu-price", type=float, default=3.0, help="of a GPU with its cores, an hour")
    parser.add_argument("--seeds", type=int, default=Plan().seeds)
    parser.add_argument("--epochs", type=int, default=Plan().epochs)
    return parser.parse_args()


def machines_of(options: argparse.Namespace) -> list[Machine]:
    """2 cores, one GPU, ten GPUs."""
    peak: dict[Precision, float] = {"bf16": options.peak_bf16, "fp32": options.peak_fp32}
    gpu = Accelerator(peak, options.utilisation, options.call)
    several = [(count, f"{count} GPU{'s' if count > 1 else ''}") for count in (1, 10)]
    return [
        Machine("2 cores", 2, 2 * options.core_price),
        *(Machine(name, n * options.gpu_cores, n * options.gpu_price, n, gpu) for n, name in several),
    ]


def main() -> None:
    """Measure every net, then plan."""
    options = arguments()
    began = time.process_time()
    with session(1):
        common = dict(guard_costs(2)) | dict(learning_costs())
        solving = solving_seconds(3)
        costs: dict[str, Mapping[str, Cost]] = {name: net_costs(name, common, solving) for name in NETS}
    plan, machines = Plan(seeds=options.seeds, epochs=options.epochs), machines_of(options)
    names = [machine.name for machine in machines]
    print("Milliseconds of a core per image:\n")
    print(table(["stage", *NETS], cost_rows(costs, plan.epochs, plan.references)))
    for stem in STEMS:
        print(f"\nHours, ResNet-18 with the {stem} stem:\n")
        print(table(["data set", *names], [*hour_rows(costs, stem, machines, plan)]))
    for stem in STEMS:
        print(f"\nHours by phase, {stem} stem:\n")
        print(table(["phase", *names], [*phase_rows(costs, stem, machines, plan)]))
    rows = [
        [what, *(f"{elapsed(sets_of(costs, stem), machine, less):,.1f}" for stem in STEMS for machine in machines[:2])]
        for what, less in cuts(plan).items()
    ]
    print("\nHours of all data sets with less:\n")
    print(table(["what", *(f"{name}, {stem} stem" for stem in STEMS for name in names[:2])], rows))
    print("\nHours of all data sets on one GPU when an assumption is another:\n")
    print(table(["what", *(f"{stem} stem" for stem in STEMS)], [*doubt_rows(costs, machines[1], plan)]))
    print(f"\nMeasured in {time.process_time() - began:.0f} s of a processor.")


if __name__ == "__main__":
    main()
