"""What the paper's whole comparison would take: how often each stage runs, and from measured costs hours and money.

Arithmetic only, without torch. Costs come from `bench/capacity.py`; what runs how often follows `tier.experiment`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tier.config import Attack, Battery, Defense, DefenseName, Explain, ExplainerName, Split, Tier, Train

MONITOR = 500  # members and non-members that are looked at after each epoch, as in tier.training
Kind = Literal["plain", "tier", "dpsgd"]
Precision = Literal["bf16", "fp32"]
SEVEN: tuple[ExplainerName, ...] = (
    "smoothgrad", "vargrad", "gradcam", "gradcampp", "integrated_gradients", "shap", "lime"
)  # fmt: skip
"""The paper's explainers."""

PASSES: dict[ExplainerName, int] = {
    "gradient": 1, "smoothgrad": Explain().samples, "gradcam": 1, "integrated_gradients": Explain().steps,
    "shap": Explain().samples, "lime": Explain().perturbations,
}  # fmt: skip
"""Rows of an image that go through the model for the maps of a family, by its first explainer."""


@dataclass(frozen=True)
class Cost:
    """What a stage takes of one image (or row): seconds of one core, and what a GPU would do in their place.

    `seconds` go to the GPU where there is one, `cores` stay on the machine's cores. `flops` are those of
    multiplications and additions, `calls` the operators called, shared by the images of a batch.
    """

    seconds: float = 0.0
    cores: float = 0.0
    flops: float = 0.0
    calls: float = 0.0
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Part:
    """A stage's share of the work: in which phase, under which defense, whose cost how many times."""

    phase: str
    defense: DefenseName
    cost: str
    count: float


@dataclass(frozen=True)
class Plan:
    """How much of the comparison is made. `defenses` are targets; an undefended one is there in any case."""

    seeds: int = 3
    epochs: int = Train().epochs
    explainers: tuple[ExplainerName, ...] = SEVEN
    defenses: tuple[DefenseName, ...] = ("none", "tier_full", "dpsgd_eps100", "memguard")
    references: int = Battery().references
    queries: int = Battery().queries
    alphas: int = len(Attack().alphas)
    tuning: int = Attack().tuning
    levels: int = len(Attack().trajectory.levels)  # the first of which is the untouched image
    operator: Literal["mean", "road"] = "road"
    same_shadow: bool = True  # the attack also from a shadow with the target's defense

    @property
    def families(self) -> list[ExplainerName]:
        """The first explainer of each family whose passes are made."""
        return list(dict.fromkeys(Explain(name=name).family[0] for name in self.explainers))

    @property
    def targets(self) -> list[DefenseName]:
        """The defenses, the undefended model first."""
        return list(dict.fromkeys(("none", *self.defenses)))


@dataclass(frozen=True)
class Accelerator:
    """A GPU: the most operations a second that its maker states, the share that is reached, seconds of a call.

    A pass takes as long as its operations at that share, or as its calls one after another, whichever is longer.
    """

    peak: Mapping[Precision, float] = field(default_factory=lambda: {"bf16": 989e12, "fp32": 67e12})
    utilisation: float = 0.25
    call: float = 1e-5

    def seconds(self, cost: Cost) -> float:
        """What the GPU takes in place of `cost.seconds`."""
        return max(cost.flops / (self.peak[cost.precision] * self.utilisation), cost.calls * self.call)


@dataclass(frozen=True)
class Machine:
    """So many cores and GPUs, and what all of them cost an hour. Raises ValueError for none, or less than none."""

    name: str
    cores: int
    price: float
    gpus: int = 0
    gpu: Accelerator = Accelerator()

    def __post_init__(self) -> None:
        if self.cores < 1 or self.gpus < 0 or self.price < 0:
            raise ValueError(f"{self.name}: at least one core, no fewer than 0 GPUs, a price from 0 on")

    def alone(self, cost: Cost) -> float:
        """Seconds of one image where nothing runs side by side."""
        return (self.gpu.seconds(cost) if self.gpus else cost.seconds) + cost.cores

    def spread(self, cost: Cost) -> float:
        """Seconds of one image where every core and GPU is busy with runs of its own; those of GPU and cores add up."""
        if self.gpus == 0:
            return (cost.seconds + cost.cores) / self.cores
        return self.gpu.seconds(cost) / self.gpus + cost.cores / self.cores


# ---- how often each stage runs


def work(split: Split, plan: Plan = Plan()) -> list[Part]:
    """Everything that one data set of these sizes (Table II) takes, in the order in which it is computed.

    Raises ValueError for a defense whose cost is not among those measured.
    """
    parts: list[Part] = []
    for defense in plan.targets:
        parts += _trainings(split, plan, defense)
        parts += _maps(split, plan, defense)
        parts += _paths(split, plan, defense)
        parts += _asking(split, plan, defense)
    return parts


def _kind(defense: DefenseName) -> Kind | None:
    """How its models are trained; None for MemGuard, which guards the undefended ones."""
    kinds: dict[DefenseName, Kind | None] = {
        "none": "plain", "augmentation": "plain", "tier_reg": "tier", "tier_full": "tier", "dpsgd_eps100": "dpsgd",
        "memguard": None,
    }  # fmt: skip
    if defense not in kinds:
        raise ValueError(f"the cost of '{defense}' is not measured; choose of {', '.join(kinds)}")
    return kinds[defense]


def _shadows(plan: Plan, defense: DefenseName) -> int:
    """Shadow models that exist for a defense alone: the undefended one, which all attacks use, counts as none's."""
    return 1 if defense == "none" or plan.same_shadow else 0


def _attacks(plan: Plan, defense: DefenseName) -> int:
    """Attacks on a target under one explainer: from the undefended shadow and from one with the defense."""
    return 1 if defense == "none" else 1 + _shadows(plan, defense)


def _trainings(split: Split, plan: Plan, defense: DefenseName) -> Iterator[Part]:
    """Targets, shadows and reference models; targets of all seeds share the latter."""
    own, theirs = (split.target_train, split.target_test), (split.shadow_train, split.shadow_test)
    pool = sum(own)
    half = (pool // 2, pool - pool // 2)
    models = (
        ("targets, shadows", own, plan.seeds),
        ("targets, shadows", theirs, plan.seeds * _shadows(plan, defense)),
        ("references", half, plan.references),
    )
    for phase, (members, others), count in models:
        if count:
            yield from _training(phase, defense, members, others, count, plan.epochs)


def _training(phase: str, defense: DefenseName, members: int, others: int, models: int, epochs: int) -> Iterator[Part]:
    kind = _kind(defense)
    looks = 2 * (members + others)  # the stage asks for every image twice when training has ended
    if kind is None:
        outsiders = others  # the guard learns from the other side's non-members: as many in Table II
        yield Part(phase, defense, "guard fit", models * (members + outsiders))
        yield Part(phase, defense, "forward", models * (members + outsiders + looks))
        yield Part(phase, defense, "guard", models * looks)
        return
    plain = min(Tier().warmup, epochs) if kind == "tier" else 0
    if plain:
        yield Part(phase, defense, "train plain", models * members * plain)
    yield Part(phase, defense, f"train {kind}", models * members * (epochs - plain))
    monitored = epochs * (min(MONITOR, members) + min(MONITOR, others))
    yield Part(phase, defense, "forward", models * (monitored + looks))


def _maps(split: Split, plan: Plan, defense: DefenseName) -> Iterator[Part]:
    """Each family's maps of all images of targets and shadows; a guarded model answers in every pass."""
    images = _own(split) + _shadows(plan, defense) * _theirs(split)
    for family in plan.families:
        yield Part("maps", defense, f"explain {family}", plan.seeds * images)
        if defense == "memguard":
            yield Part("maps", defense, "guard", plan.seeds * images * PASSES[family])


def _paths(split: Split, plan: Plan, defense: DefenseName) -> Iterator[Part]:
    """Removal paths, both orders, and the attack that learns from them, under every explainer.

    Two attacks may choose different alphas, so that the target's paths are counted for either. An upper bound.
    """
    runs = plan.seeds * len(plan.explainers)
    attacks, shadows = _attacks(plan, defense), _shadows(plan, defense)
    tuned = min(plan.tuning, split.shadow_train) + min(plan.tuning, split.shadow_test)
    followed = {
        "alpha": runs * shadows * plan.alphas * tuned,
        "paths": runs * (attacks * _own(split) + shadows * _theirs(split)),
    }
    for phase, images in followed.items():
        yield Part(phase, defense, "forward", images)
        yield Part(phase, defense, f"level {plan.operator}", images * 2 * (plan.levels - 1))
        if defense == "memguard":
            yield Part(phase, defense, "guard", images * (2 * plan.levels - 1))
    taught = 1 - Attack().holdout
    yield Part("alpha", defense, "tune", runs * shadows * plan.alphas * taught * tuned)
    yield Part("attacks", defense, "learn", runs * attacks * taught * _theirs(split))


def _asking(split: Split, plan: Plan, defense: DefenseName) -> Iterator[Part]:
    """LiRA and RMIA: target, a shadow with its defense and the references are asked about both sides' images, once.

    Of models trained with T about several views each.
    """
    if not plan.references:
        return
    views = plan.queries if Defense(name=defense).augments else 1
    asked = plan.seeds * (2 + plan.references) * (_own(split) + _theirs(split)) * views
    yield Part("asking references", defense, "forward", asked)
    if defense == "memguard":
        yield Part("asking references", defense, "guard", asked)


def _own(split: Split) -> int:
    return split.target_train + split.target_test


def _theirs(split: Split) -> int:
    return split.shadow_train + split.shadow_test


# ---- hours and money


def hours(parts: Sequence[Part], costs: Mapping[str, Cost], machine: Machine) -> float:
    """Hours that the work takes when all cores and GPUs are kept busy. Raises KeyError for a cost that is missing."""
    return sum(part.count * machine.spread(costs[part.cost]) for part in parts) / 3600


def by_phase(parts: Sequence[Part], costs: Mapping[str, Cost], machine: Machine) -> dict[str, float]:
    """Hours of each phase; they add up to `hours`."""
    phases = dict.fromkeys(part.phase for part in parts)
    return {phase: hours([part for part in parts if part.phase == phase], costs, machine) for phase in phases}


def longest_training(split: Split, costs: Mapping[str, Cost], machine: Machine, plan: Plan = Plan()) -> float:
    """Hours of the longest single training, below which more machines do not help."""
    members = max(split.target_train, split.shadow_train)
    each = [
        sum(part.count * machine.alone(costs[part.cost]) for part in _training("", defense, members, 0, 1, plan.epochs))
        for defense in plan.targets
    ]
    return max(each) / 3600


def elapsed(sets: Mapping[str, tuple[Split, Mapping[str, Cost]]], machine: Machine, plan: Plan = Plan()) -> float:
    """Hours from first to last of several data sets, each its sizes and costs: all of it, or the longest training."""
    total = sum(hours(work(split, plan), costs, machine) for split, costs in sets.values())
    return max(total, *(longest_training(split, costs, machine, plan) for split, costs in sets.values()))
