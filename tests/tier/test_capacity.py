"""The capacity plan: its sums against a count by hand, and what more machines and less work may do."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from tier import training
from tier.capacity import (
    MONITOR,
    SEVEN,
    Accelerator,
    Cost,
    Machine,
    Part,
    Plan,
    by_phase,
    elapsed,
    hours,
    longest_training,
    work,
)
from tier.presets import TABLE_II

NAMES = (
    "train plain", "train tier", "train dpsgd", "explain smoothgrad", "explain gradcam", "explain integrated_gradients",
    "explain shap", "explain lime", "forward", "level mean", "level road", "guard", "guard fit", "learn", "tune",
)  # fmt: skip
COSTS = {name: Cost(1e-3 * i, 1e-4 * (i % 3), 1e9 * i, 0.5 * i) for i, name in enumerate(NAMES, 1)}
CORES = Machine("2 cores", 2, 0.1)
GPU = Machine("1 GPU", 16, 3.0, 1)
GTSRB = TABLE_II["gtsrb"]


def by_hand(seeds: int) -> dict[str, float]:
    """How often each cost occurs for GTSRB: 1,500 images in each of the four sets, model by model."""
    counts = dict.fromkeys(NAMES, 0.0)
    defenses, epochs, levels = ("none", "tier_full", "dpsgd_eps100", "memguard"), 100, 9
    for defense in defenses:
        models = [3000] * 16  # the images of each reference model, half of them members
        for _ in range(seeds):
            models += [3000, 3000]  # the target, and a shadow with its defense
        for images in models:
            if defense == "memguard":  # no training: the undefended model is there
                counts["guard fit"] += images
                counts["forward"] += images + 2 * images
                counts["guard"] += 2 * images
                continue
            for epoch in range(epochs):
                warm = defense == "tier_full" and epoch < 5
                kind = {"none": "plain", "tier_full": "tier", "dpsgd_eps100": "dpsgd"}[defense]
                counts["train plain" if warm else f"train {kind}"] += images / 2
                counts["forward"] += 1000  # 500 members and non-members are looked at
            counts["forward"] += 2 * images
        for _ in range(seeds):
            rows = {"smoothgrad": 25, "gradcam": 1, "integrated_gradients": 32, "shap": 25, "lime": 300}
            for family, passes in rows.items():
                counts[f"explain {family}"] += 6000
                counts["guard"] += 6000 * passes if defense == "memguard" else 0
            for _ in range(7):  # explainers
                for _ in range(4):  # alphas
                    counts["tune"] += 0.8 * 600
                paths = [600] * 4 + [3000]  # the shadow at four alphas, then at the best
                attacks = 1 if defense == "none" else 2
                for _ in range(attacks):
                    paths.append(3000)
                    counts["learn"] += 0.8 * 3000
                for images in paths:
                    counts["forward"] += images  # untouched
                    counts["level road"] += images * levels * 2
                    counts["guard"] += images * (1 + levels * 2) if defense == "memguard" else 0
            for _ in range(18):  # target, shadow and references on both sides' images
                views = 8 if defense == "tier_full" else 1
                counts["forward"] += 6000 * views
                counts["guard"] += 6000 if defense == "memguard" else 0
    return counts


def totals(parts: list[Part]) -> dict[str, float]:
    found = dict.fromkeys(NAMES, 0.0)
    for part in parts:
        found[part.cost] += part.count
    return found


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_work_of_one_data_set_is_what_a_count_by_hand_gives(seeds: int) -> None:
    assert totals(work(GTSRB, Plan(seeds=seeds))) == pytest.approx(by_hand(seeds))


def test_as_many_images_are_looked_at_after_an_epoch_as_training_looks_at() -> None:
    """The plan counts them, and the page Trade-off says how many a curve over epochs is of."""
    assert MONITOR == training.MONITOR


def test_hours_are_counts_times_costs() -> None:
    counts, parts = by_hand(3), work(GTSRB)
    seconds = sum(count * (COSTS[name].seconds + COSTS[name].cores) for name, count in counts.items())
    assert hours(parts, COSTS, CORES) == pytest.approx(seconds / 2 / 3600)
    slow = sum(
        count * max(COSTS[name].flops / (67e12 * 0.25), COSTS[name].calls * 1e-5) + count * COSTS[name].cores / 16
        for name, count in counts.items()
    )
    assert hours(parts, COSTS, GPU) == pytest.approx(slow / 3600)


def test_phases_add_up() -> None:
    parts = work(GTSRB)
    assert sum(by_phase(parts, COSTS, GPU).values()) == pytest.approx(hours(parts, COSTS, GPU))


def test_a_pass_takes_its_operations_or_its_calls() -> None:
    gpu = Accelerator({"bf16": 1000.0, "fp32": 100.0}, 0.5, 0.1)
    assert gpu.seconds(Cost(9.0, flops=200.0, calls=1.0)) == pytest.approx(4.0)
    assert gpu.seconds(Cost(9.0, flops=200.0, calls=1.0, precision="bf16")) == pytest.approx(0.4)
    assert gpu.seconds(Cost(9.0, flops=200.0, calls=70.0)) == pytest.approx(7.0)


def test_more_gpus_never_take_longer_and_end_at_the_longest_training() -> None:
    sets = {name: (split, COSTS) for name, split in TABLE_II.items()}
    taken = [elapsed(sets, Machine("", 16 * n, 3.0 * n, n)) for n in (1, 2, 10, 100, 10_000, 10_000_000)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[1] > taken[2]
    assert taken[-1] == max(longest_training(split, COSTS, GPU) for split in TABLE_II.values()) > 0
    assert elapsed(sets, Machine("", 4, 0.0)) == pytest.approx(elapsed(sets, CORES) / 2)


def test_what_is_linear_scales_linearly() -> None:
    parts = work(GTSRB)
    once, double = (hours(work(GTSRB, Plan(seeds=n, references=0)), COSTS, GPU) for n in (1, 2))
    assert double == pytest.approx(2 * once)
    dearer = {name: replace(cost, seconds=3 * cost.seconds, cores=3 * cost.cores) for name, cost in COSTS.items()}
    assert hours(parts, dearer, CORES) == pytest.approx(3 * hours(parts, COSTS, CORES))
    training = [totals(work(GTSRB, Plan(epochs=epochs)))["train dpsgd"] for epochs in (10, 40)]
    assert training[1] == 4 * training[0]
    references = [by_phase(work(GTSRB, Plan(references=n)), COSTS, CORES)["references"] for n in (8, 16)]
    assert references[1] == pytest.approx(2 * references[0])
    sizes = {f"{side}_{part}": 15_000 for side in ("target", "shadow") for part in ("train", "test")}
    ten = GTSRB.model_copy(update=sizes)
    maps = [by_phase(work(split), COSTS, CORES)["maps"] for split in (GTSRB, ten)]
    assert maps[1] == pytest.approx(10 * maps[0])


def test_less_is_planned_less() -> None:
    whole = hours(work(GTSRB), COSTS, CORES)
    for less in (
        Plan(seeds=1), Plan(references=6), Plan(epochs=50), Plan(explainers=SEVEN[:6]), Plan(same_shadow=False),
        Plan(operator="mean"), Plan(defenses=("none", "tier_full")), Plan(levels=5), Plan(alphas=1),
    ):  # fmt: skip
        assert hours(work(GTSRB, less), COSTS, CORES) < whole
    shared = totals(work(GTSRB, Plan(explainers=("smoothgrad",))))
    both = totals(work(GTSRB, Plan(explainers=("smoothgrad", "vargrad"))))
    assert both["explain smoothgrad"] == shared["explain smoothgrad"]  # one family, the same passes
    assert both["level road"] == 2 * shared["level road"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        Machine("none", 0, 1.0)
    with pytest.raises(ValueError, match="'relaxloss' is not measured"):
        work(GTSRB, Plan(defenses=("relaxloss",)))


def test_the_plan_needs_no_torch() -> None:
    code = "import sys, tier.capacity; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    place = Path(__file__).resolve().parents[2] / "bench" / "capacity.py"
    spec = importlib.util.spec_from_file_location("bench_capacity", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operations_are_counted_with_and_without_gradients(bench: ModuleType) -> None:
    layer, x = nn.Conv2d(3, 8, 3, padding=1), torch.rand(5, 3, 16, 16)
    once = 2 * 5 * 16 * 16 * 8 * 3 * 9  # a multiplication and an addition for each weight, place and image

    def inference() -> None:
        with torch.inference_mode():
            layer(x)

    def by_pixels() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(layer(leaf).sum(), leaf)

    assert bench.counted(inference) == (once, 1)
    assert bench.counted(by_pixels)[0] == 2 * once  # back to the pixels only
    assert bench.counted(lambda: layer(x).sum().backward())[0] == 2 * once  # back to the weights only


def test_tables_hold_the_plan(bench: ModuleType) -> None:
    costs, plan = dict.fromkeys(bench.NETS, COSTS), Plan()
    rows = [*bench.hour_rows(costs, "cifar", [CORES, GPU], plan)]
    assert [row[0] for row in rows] == [*bench.PAPER, "all", "money"]
    total = sum(hours(work(split), COSTS, CORES) for split in TABLE_II.values())
    assert rows[-2][1] == f"{total:,.1f}"
    assert rows[-1][1] == f"{0.1 * total:,.0f}"
    assert set(bench.PAPER) == set(TABLE_II)
    phases = [*bench.phase_rows(costs, "cifar", [CORES], plan)]
    assert sum(float(row[1].split(" ")[0].replace(",", "")) for row in phases) == pytest.approx(total, rel=1e-3)
    assert bench.table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
