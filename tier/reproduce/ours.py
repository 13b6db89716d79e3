"""What a store holds of each number that the paper prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tier import experiment, paper, presets, summary
from tier.config import DefenseName, Experiment
from tier.paper import SWEEPS, Place
from tier.presets import Preset
from tier.reproduce.protocol import AUGMENTED, TOO_FEW, Protocol, defenses, explainers, point
from tier.stats import Z
from tier.store import Store


@dataclass(frozen=True)
class Measured:
    """What this store has for a number: its value and 95 % interval, or why there is none; and what stands beside it.

    `beside` holds other readings of the same number, by what they are, as (value, interval).
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    refused: str | None = None
    seeds: tuple[int, ...] = ()
    beside: dict[str, tuple[float, tuple[float, float] | None]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        beside = {name: [value, interval and list(interval)] for name, (value, interval) in self.beside.items()}
        interval = None if self.interval is None else list(self.interval)
        return {
            "value": self.value, "interval": interval, "refused": self.refused, "seeds": list(self.seeds),
            "beside": beside,
        }  # fmt: skip

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> "Measured":
        """The inverse of `as_json`; other names are ignored."""
        return cls(
            told["value"],
            _pair(told["interval"]),
            told["refused"],
            tuple(told["seeds"]),
            {name: (value, _pair(interval)) for name, (value, interval) in told["beside"].items()},
        )


class Reader:
    """Reads from a store what answers to the places of one data set."""

    absent = "not in this store"  # why most numbers are refused

    def __init__(self, store: Store, of: Protocol, seeds: Sequence[int] | None) -> None:
        self.store, self.of, self.seeds = store, of, seeds
        self.main, self.sweeps = presets.get(of.main), presets.get(of.sweeps)

    def measured(self, place: Place) -> Measured:
        """What the store has for a place, or the reason why it has nothing."""
        match place.table:
            case "I" | "III":
                return self._divergence(place)
            case "II":
                return self._size(place)
            case "IV":
                return self._utility(place)
            case "V":
                return self._attack(place)
            case "VI":
                return self._of_maps(place, self._quality, QUALITY_CONTROLS)
            case "VII":
                return self._of_maps(place, self._likeness, _LIKENESS_CONTROLS)
            case _:
                return self._swept(place)

    def sources(self, place: Place) -> list[list[str]]:
        """Stage and key of each result that a place's number is made from."""
        seeds = self._seeds(self.sweeps if place.table in SWEEPS else self.main)
        stage = _STAGES[place.table]
        if place.table == "II":
            runs = [self.main.experiment]
        elif place.table in SWEEPS:
            runs = [self.sweeps.point(*point(place), seed=seed) for seed in seeds]
        elif place.explainer is not None:
            own = {"explain.name": place.explainer} | ({"attack.shadow": "same"} if stage == "attack" else {})
            runs = [self.main.run(str(place.defense), seed).set(own) for seed in seeds]
        else:
            runs = [self.main.run(str(place.defense), seed) for seed in seeds]
        if place.defense == "none" and place.table in _BESIDE_AUGMENTED:
            runs += [e.with_(defense=self.main.defense(AUGMENTED)) for e in runs]
        return [[stage, experiment.key(stage, e)] for e in runs]

    def conditions(self, place: Place) -> str:
        """Under what settings ours was made, in words."""
        swept = place.table in SWEEPS
        preset = self.sweeps if swept else self.main
        e = preset.point(*point(place)) if swept else preset.run(place.defense or "none")
        train, sets = e.train, e.split
        parts = [f"{sets.target_train} images in each set", *(["track-disjoint"] if sets.group_disjoint else [])]
        if place.table == "II":
            return ", ".join(parts)
        parts = [e.model.architecture, f"{train.epochs} epochs", f"batch {train.batch_size}", train.precision, *parts]
        if e.defense.name in _TIER:
            parts.append(
                f"lambda {e.defense.tier.lambda_:g}, beta {e.defense.tier.beta:g}, warm-up {e.defense.tier.warmup}"
            )
        if place.table in ("I", "III"):
            size, batch = e.split.target_train, e.divergence.batch
            parts.append(f"means of {batch} images, {size // batch} in each group")
        return ", ".join(parts)

    def _seeds(self, preset: Preset) -> tuple[int, ...]:
        return tuple(self.seeds or preset.seeds)

    # ---- Tables I and III

    def _divergence(self, place: Place) -> Measured:
        """Of the first seed, whose profile is one model's, as the paper's; the test compares means of batches."""
        assert place.defense is not None
        assert place.level is not None
        seed = self._seeds(self.main)[0]
        found = self._profile(place.defense, seed, place.level)
        if found is None:
            return Measured(refused=Reader.absent)
        value, interval = _profile_value(found, place.quantity)
        if value is None:
            return Measured(refused=TOO_FEW)
        beside: dict[str, tuple[float, tuple[float, float] | None]] = {}
        if place.quantity == "t_statistic":
            batches = self._printed_size(place.dataset) // self.main.experiment.divergence.batch
            beside[f"with as large a difference and {batches} batches"] = (
                value * math.sqrt(batches / float(found["member_n"])), None,
            )  # fmt: skip
        if place.defense == "none" and (other := self._profile(AUGMENTED, seed, place.level)) is not None:
            again, its = _profile_value(other, place.quantity)
            beside |= {} if again is None else {_AUGMENTED_TEXT: (again, its)}
        return Measured(value, interval, None, (seed,), beside)

    @staticmethod
    def _printed_size(dataset: str) -> int:
        """How many members the paper's target has (Table II)."""
        return int(next(n.value for n in paper.of(dataset, ["II"]) if n.place.quantity == "target_train"))

    def _profile(self, defense: DefenseName, seed: int, level: float) -> pd.Series | None:
        result = experiment.find(self.store, "divergence", self.main.run(defense, seed), ["profile.parquet"])
        if result is None:
            return None
        table = result.frame("profile.parquet")
        return table[(table["unit"] == "batch") & np.isclose(table["level"], level)].iloc[0]

    # ---- Table II

    def _size(self, place: Place) -> Measured:
        result = experiment.find(self.store, "split", self.main.experiment)
        if result is None:
            return Measured(refused=Reader.absent)
        sizes = {name: int(size) for name, size in result.metrics["sizes"].items()}
        held = [round(self.main.experiment.attack.holdout * sizes[name]) for name in ("shadow_train", "shadow_test")]
        sizes["attack_test"] = sum(held)
        sizes["attack_train"] = sizes["shadow_train"] + sizes["shadow_test"] - sum(held)
        size = float(sizes[place.quantity])
        return Measured(size, (size, size))

    # ---- Tables IV, VIII and IX

    def _utility(self, place: Place) -> Measured:
        assert place.defense is not None
        ours = self._summary(tuple(self.main.run(place.defense, seed) for seed in self._seeds(self.main)))
        measured = _of_summary(ours, place.quantity)
        if place.defense == "none" and measured.value is not None:
            runs = tuple(self.main.run(AUGMENTED, seed) for seed in self._seeds(self.main))
            other = _of_summary(self._summary(runs), place.quantity)
            if other.value is not None:
                return replace(measured, beside={_AUGMENTED_TEXT: (other.value, other.interval)})
        return measured

    def _swept(self, place: Place) -> Measured:
        runs = tuple(self.sweeps.point(*point(place), seed=seed) for seed in self._seeds(self.sweeps))
        return _of_summary(self._summary(runs), place.quantity)

    def _summary(self, runs: tuple[Experiment, ...]) -> dict[str, Any] | None:
        place = tuple(experiment.key("report", e) for e in runs)
        if place not in self._summaries:
            self._summaries[place] = summary.of_runs(self.store, {e.train.seed: e for e in runs})
        return self._summaries[place]

    @cached_property
    def _summaries(self) -> dict[tuple[str, ...], dict[str, Any] | None]:
        return {}

    # ---- Table V

    def _attack(self, place: Place) -> Measured:
        """On the rest of a shadow model with the same defense; beside it the target under the same attacker."""
        view = self._attacks.get(str(place.defense), {}).get("explainers", {}).get(place.explainer)
        if view is None or view["attack_test"] is None:
            return Measured(refused=Reader.absent)
        measured = _leaf(view["attack_test"], place.quantity)
        beside = {}
        target = _leaf(view["adaptive"], place.quantity)
        if target.value is not None:
            beside["on the target, threshold transferred"] = (target.value, target.interval)
        if place.defense == "none":
            other = self._attacks.get(AUGMENTED, {}).get("explainers", {}).get(place.explainer)
            again = Measured() if other is None else _leaf(other["attack_test"], place.quantity)
            if again.value is not None:
                beside[_AUGMENTED_TEXT] = (again.value, again.interval)
        return replace(measured, beside=beside, seeds=self._seeds(self.main))

    @cached_property
    def _attacks(self) -> dict[str, dict[str, Any]]:
        seeds = list(self._seeds(self.main))
        return summary.attacks(self.store, self.main, defenses("V"), explainers("V"), seeds, battery=False, parts=False)

    # ---- Tables VI and VII

    def _of_maps(
        self, place: Place, summed: dict[str, dict[str, dict[str, Any]]], controls: dict[str, str]
    ) -> Measured:
        """A mean score of maps, beside its controls (name in `summed` -> words)."""
        entry = summed.get(str(place.defense), {}).get(str(place.explainer))
        if entry is None:
            return Measured(refused=Reader.absent)
        of = entry[place.quantity]
        if of["mean"] is None:
            return Measured(refused=entry["refused"].get(place.quantity) or "not defined for any of these images")
        beside = {
            words: (of[name], _pair(of[f"{name}_interval"])) for name, words in controls.items() if of[name] is not None
        }
        if place.quantity == "cosine" and (unscaled := entry["cosine_unscaled"])["mean"] is not None:
            beside["of the maps as they are, not scaled"] = (unscaled["mean"], _pair(unscaled["interval"]))
        return Measured(of["mean"], tuple(of["interval"]), None, tuple(entry["seeds"]), beside)

    @cached_property
    def _quality(self) -> dict[str, dict[str, dict[str, Any]]]:
        return summary.quality(self.store, self.main, defenses("VI"), explainers("VI"), self._seeds(self.main))

    @cached_property
    def _likeness(self) -> dict[str, dict[str, dict[str, Any]]]:
        return summary.fidelity(self.store, self.main, defenses("VII"), explainers("VII"), self._seeds(self.main))


_BESIDE_AUGMENTED = ("I", "IV", "V")  # what the paper calls None may be augmented (VI-D)
QUALITY_CONTROLS = {"random": "of noise", "edges": "of the image's edges"}
_LIKENESS_CONTROLS = {
    "shuffled": "of maps of different images",
    "second_seed": "of two undefended models of different seeds",
}
_STAGES = {
    "I": "divergence", "II": "split", "III": "divergence", "IV": "report", "V": "attack", "VI": "quality",
    "VII": "fidelity", "VIII": "report", "IX": "report",
}  # fmt: skip
_TIER: tuple[DefenseName, ...] = ("tier_reg", "tier_full")
_AUGMENTED_TEXT = "trained with augmentation"
_OF_SUMMARY = {
    "train_accuracy": "train_accuracy", "test_top1": "test_accuracy", "test_top5": "test_top5",
    "test_loss": "test_loss", "audit_accuracy": "audit_balanced_accuracy", "audit_auc": "audit_auc",
}  # fmt: skip
_OF_PROFILE = {"t_statistic": "t", "t_p_value": "t_p", "ks_statistic": "ks", "ks_p_value": "ks_p"}


def _pair(interval: Sequence[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def _profile_value(row: pd.Series, quantity: str) -> tuple[float | None, tuple[float, float] | None]:
    """A number of Table I or III and its interval, from a row of `divergence/profile.parquet`.

    t is a standardized difference of means, whose standard error grows with it: Hedges and Olkin, Statistical Methods
    for Meta-Analysis (1985), chapter 5, in units of t.
    """
    if quantity in _OF_PROFILE:
        value = float(row[_OF_PROFILE[quantity]])
        if np.isnan(value):
            return None, None
        if quantity != "t_statistic":
            return value, None
        margin = Z * math.sqrt(1 + value**2 / (2 * float(row["t_df"])))
        return value, (value - margin, value + margin)
    group = quantity.removeprefix("kl_mean_")
    return float(row[f"{group}_mean"]), (float(row[f"{group}_low"]), float(row[f"{group}_high"]))


def _of_summary(told: dict[str, Any] | None, quantity: str) -> Measured:
    """A number of Table IV, VIII or IX from `summary.of_runs`."""
    if told is None:
        return Measured(refused=Reader.absent)
    name = _OF_SUMMARY[quantity]
    if told[name] is None:
        return Measured(refused=told["refused"].get(name, "not measured"))
    interval = told["intervals"][name]
    return Measured(told[name], interval and tuple(interval), None, tuple(told["seeds"]))


def _leaf(leaf: dict[str, Any] | None, quantity: str) -> Measured:
    """A number of Table V from a leaf of `summary.attacks`."""
    if leaf is None:
        return Measured(refused=Reader.absent)
    name, scale = ("balanced_accuracy", 1.0) if quantity == "balanced_accuracy" else ("tpr_at_0.001", 100.0)
    value, interval = leaf[name], leaf["interval" if scale == 1.0 else "tpr_interval_at_0.001"]
    if value is None:
        return Measured(refused=leaf["refused"].get(name, "not defined"))
    low_high = None if interval is None else (scale * interval[0], scale * interval[1])
    return Measured(scale * value, low_high)
