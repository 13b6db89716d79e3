"""What summaries look up: the runs of a preset, stored or not, and the file of their results that has the scores."""

from collections.abc import Iterator, Sequence
from typing import Any

from tier.config import EXPLAINER_SETTINGS, Experiment
from tier.presets import Preset

ATTACKERS = {"transfer": "undefended", "adaptive": "same"}
"""Who attacks, and which shadow model they learn on (`attack.shadow`)."""
_BETWEEN = (0.0, *(round(0.15 + 0.1 * step, 2) for step in range(9)))  # 0.15 ... 0.95
SCORES = "scores.parquet"
"""The file of a result that has a row for each image, or for each pair of maps."""


def fidelity_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, int, Experiment]]:
    """(defense, explainer, seed, experiment) of every comparison asked for; None means all that the preset names.

    Raises ValueError for an explainer or defense that does not exist, and for `none`, which is the reference.
    """
    _refuse_unknown(explainers or ())
    compared = [defense.name for defense in preset.defenses if defense.name != "none"]
    for defense in defenses or compared:
        if defense == "none":
            raise ValueError(f"'none' is what the others are compared with; choose one of {', '.join(compared)}")
        for explainer in explainers or preset.explainers:
            for seed in seeds or preset.seeds:
                yield defense, explainer, seed, preset.fidelity(defense, seed, explainer).set(settings or {})


def quality_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, int, Experiment]]:
    """(defense, explainer, seed, experiment) of every `quality` asked for; None: all that the preset names, but of
    seeds the first alone.

    Raises ValueError for an explainer or defense that does not exist.
    """
    _refuse_unknown(explainers or ())
    for defense in defenses or [defense.name for defense in preset.defenses]:
        for explainer in explainers or preset.explainers:
            for seed in seeds or preset.seeds[:1]:
                e = preset.run(defense, seed).set({**(settings or {}), "explain.name": explainer})
                yield defense, explainer, seed, e


def attack_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, str, Experiment]]:
    """(defense, explainer, one of ATTACKERS, experiment) of every `attack` asked for; None: all that the preset names.

    `seed` is the preset's first by default. Without a defense both attackers are the same computation. Raises
    ValueError for an explainer or defense that does not exist, and for settings that name another model than that.
    """
    _refuse_unknown(explainers or ())
    for defense, e in battery_runs(preset, defenses, seed, settings):
        for explainer in explainers or preset.explainers:
            for attacker, kind in ATTACKERS.items():
                yield defense, explainer, attacker, e.set({"explain.name": explainer, "attack.shadow": kind})


def attack_variants(preset: Preset) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, settings) of the attack as it is and with other operators and levels, for `attack_runs`.

    TIER trains on 5, 10 and 20 % with mean fill; of the usual levels it has seen two. `road_between` removes shares
    that lie between those, in a way that no defense has seen; `mean` and `blur` are the usual levels filled otherwise.
    """
    usual: dict[str, Any] = {"attack.trajectory.levels": preset.experiment.attack.trajectory.levels}
    yield "standard", {}
    yield "road_between", {"attack.trajectory.operator": "road", "attack.trajectory.levels": _BETWEEN}
    for operator in ("mean", "blur"):
        yield operator, usual | {"attack.trajectory.operator": operator}


def variant_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, str, str, Experiment]]:
    """(defense, name of the variant, one of ATTACKERS, experiment) under the preset's first explainer."""
    for name, changes in attack_variants(preset):
        runs = attack_runs(preset, defenses, preset.explainers[:1], seed, {**(settings or {}), **changes})
        for defense, _, attacker, e in runs:
            yield defense, name, attacker, e


def battery_runs(
    preset: Preset,
    defenses: Sequence[str] | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[tuple[str, Experiment]]:
    """(defense, experiment) of every `battery` asked for. Raises as `attack_runs`.

    The maps that it measures are the preset's own unless the settings name an explainer (`explain.name`). The
    explainers of `attack_runs` do not matter here: another one's battery asks all reference models again.
    """
    number = preset.seeds[0] if seed is None else seed
    for defense in defenses or [defense.name for defense in preset.defenses]:
        e = preset.run(defense, number).set(settings or {})
        if (e.defense.name, e.train.seed, e.split.role) != (defense, number, "target"):
            raise ValueError("the attack is on the preset's targets: leave defense.name, train.seed, split.role alone")
        yield defense, e


def _refuse_unknown(explainers: Sequence[str]) -> None:
    for name in explainers:
        if name not in EXPLAINER_SETTINGS:
            raise ValueError(f"no explainer named '{name}'; there are {', '.join(EXPLAINER_SETTINGS)}")
