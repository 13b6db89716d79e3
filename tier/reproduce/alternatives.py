"""What the paper leaves open, tried one choice at a time: does any of them explain where ours differs?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tier import experiment, presets, summary
from tier.config import DefenseName, Experiment
from tier.demo import Job
from tier.reproduce.protocol import AUGMENTED, MODELS, Protocol, protocol
from tier.store import Store


@dataclass(frozen=True)
class Choice:
    """Settings that differ from the protocol's, and why they might matter; `defenses` are those that they concern."""

    name: str
    why: str
    settings: dict[str, Any] = field(default_factory=dict)
    defenses: tuple[DefenseName, ...] = MODELS


_DATASET = "gtsrb"  # on which all choices are tried
_CLASSES = 43
_TIER = presets.get(protocol(_DATASET).sweeps).defense("tier_full").tier
_BY_TRACK = {"split.group_disjoint": True, "audit.whole_groups": True}
_SMALL = {"model.architecture": "small", "model.width": 32}
CHOICES = (
    Choice("as in the tables", "the protocol as it is", {}, (*MODELS, AUGMENTED, "tier_reg")),
    Choice(
        "split by track",
        "near-identical frames of a track fall on both sides of a random split, which makes non-members look like "
        "members",
        _BY_TRACK,
    ),
    Choice(
        "AdamW, 0.001",
        "the paper names no optimizer",
        {"train.optimizer": "adamw", "train.learning_rate": 1e-3},
    ),
    Choice(
        "confidence as a probability",
        "the paper's confidence can be read as logit or probability",
        {"defense.tier.confidence": "probability"},
        ("tier_full",),
    ),
    Choice(
        "KL averaged over the classes",
        f"PyTorch's kl_div divides by the {_CLASSES} classes too unless told not to; this weighs the two terms as that "
        "would",
        {"defense.tier.lambda": _TIER.lambda_ / _CLASSES, "defense.tier.beta": _TIER.beta * _CLASSES},
        ("tier_full",),
    ),
    Choice(
        "variance over the levels",
        "Algorithm 1 takes the variance of the confidence's fall over the batch, the text over the levels",
        {"defense.tier.variance": "levels"},
        ("tier_full",),
    ),
    Choice(
        "lambda grows",
        "Algorithm 1 writes lambda with the index e of the epoch; here it grows over the 20 epochs after the warm-up",
        {"defense.tier.lambda_schedule": "linear"},
        ("tier_full",),
    ),
    Choice(
        "BatchNorm statistics of clean images",
        "running statistics that masked images share in may not fit the clean ones that models are tested on",
        {"defense.tier.batchnorm": "clean_statistics"},
        ("tier_full",),
    ),
    Choice(
        "beta 3.0",
        "the caption of Table VIII says 3.0, Table IX goes from 0 to 0.5",
        {"defense.tier.beta": 3.0},
        ("tier_full",),
    ),
    Choice(
        "flips, and crops of 4 pixels",
        "the paper's T flips, rotates and crops, by how much it does not say",
        {"defense.augmentation.flip": True, "defense.augmentation.padding": 4},
        ("augmentation", "tier_full"),
    ),
    Choice(
        "all models augmented",
        "the paper says that all models are trained with augmentation (VI-D); None is then what the tables call "
        "augmentation, and TIER Reg-only is TIER Full: the same runs, so that nothing new is trained",
        {"defense.base_augmentation": "standard"},
        ("none", "tier_reg"),
    ),
    Choice(
        "MobileNetV2",
        "the paper's other net",
        {"model.architecture": "mobilenet_v2"},
    ),
    Choice(
        "the small net",
        "not the paper's: its first blocks see half of each side and its last 4x4 places, where the ImageNet stem "
        "leaves a quarter and the last blocks one place; fewer weights too",
        _SMALL,
        ("none", "augmentation", "tier_reg", "tier_full"),
    ),
    Choice("the small net, split by track", "both at once", _SMALL | _BY_TRACK),
    Choice(
        "CIFAR stem, 10 epochs",
        "the paper does not say which stem; this one sees every place, which takes longer, so fewer epochs",
        {"model.architecture": "resnet18_cifar", "train.epochs": 10},
    ),
)
MEASURED = ("train_accuracy", "test_accuracy", "audit_balanced_accuracy", "audit_auc", "gap_balanced_accuracy")


def alternative_runs(of: Protocol) -> Iterator[tuple[Choice, DefenseName, Experiment]]:
    """Every choice with the defenses that it concerns, on the preset of the sweeps and its first seed."""
    preset = presets.get(of.sweeps)
    for choice in CHOICES if of.dataset == _DATASET else CHOICES[:1]:
        for defense in choice.defenses:
            yield choice, defense, preset.run(defense, preset.seeds[0]).set(choice.settings)


def alternative_jobs(of: Protocol) -> list[Job]:
    """The reports behind `measured_alternatives`."""
    return [(f"{choice.name}, {defense}", "report", e) for choice, defense, e in alternative_runs(of)]


def measured_alternatives(store: Store, of: Protocol) -> pd.DataFrame:
    """A line per choice and defense: choice, why, defense, key, and each of MEASURED with its interval (_low, _high).

    `key` is that of the run's report. Empty fields where the run is not in the store.
    """
    lines = []
    for choice, defense, e in alternative_runs(of):
        line: dict[str, Any] = {"choice": choice.name, "why": choice.why, "defense": defense}
        line["key"] = experiment.key("report", e)
        found = summary.of_runs(store, {e.train.seed: e})
        for name in MEASURED:
            low, high = (None, None) if found is None else found["intervals"][name] or (None, None)
            line |= {name: None if found is None else found[name], f"{name}_low": low, f"{name}_high": high}
        lines.append(line)
    return pd.DataFrame(lines)


def alternative_rows(table: pd.DataFrame) -> list[list[str]]:
    """Such lines as text, header first; runs that are not stored have dashes."""
    lines = [["choice", "defense", *MEASURED]]
    for row in table.to_dict("records"):
        lines.append([row["choice"], row["defense"], *(_cell(row, name) for name in MEASURED)])
    return lines


def _cell(row: dict[Any, Any], name: str) -> str:
    value, low, high = (None if pd.isna(row[key]) else float(row[key]) for key in (name, f"{name}_low", f"{name}_high"))
    return summary.interval_text(value, None if low is None or high is None else [low, high])
