"""What attacks are worth: under each explainer, at other levels and operators, and beside each other."""

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from tier import experiment, tables
from tier.attacks import ATTACKS
from tier.config import Experiment
from tier.presets import Preset
from tier.store import Result, Store
from tier.summary.of_scores import PARTS, AttackResults, add_parts, attack_metrics, battery_metrics
from tier.summary.runs import ATTACKERS, SCORES, attack_runs, battery_runs, variant_runs

_MISSING = "not in this store"


def attacks(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None = None,
    explainers: Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
    battery: bool = True,
    extra: Sequence[str] = (),
    parts: bool = True,
    variants: bool = False,
) -> dict[str, dict[str, Any]]:
    """Per defense what the stored attacks are worth (SPEC 5 and 8), each leaf a `metrics.report`.

    - `explainers`: per explainer `attack_test` (the rest of a shadow with the same defense; what the paper's Table V
      most likely is), `transfer` and `adaptive` (the target, attacked from an undefended shadow and from one with the
      same defense), `transfer_attack_test` (the rest of the undefended shadow), `operator` and `levels`, and what each
      of ATTACKERS settled on: `alpha`, `features_kept`. None where only the other attacker's result is stored
    - `variants`, where asked for: the same for each of `attack_variants`, with the `explainer`
    - `battery`: per attack its leaf with `sign`; `agp` is the adaptive one of the explainer, named in `explainer`, that
      does best on attack-test: chosen without a look at the target
    - `vulnerable_decile` (`metrics.most_exposed`), `canaries`: leaves of the attacks in `battery` on these images
      alone, empty where there are none; `per_class`: for each attack the list of `metrics.class_leaks`
    - `queries`, `notes`, `battery_explainer`: how many views of an image LiRA and RMIA asked about, what the battery
      says of its own settings, and whose maps its attribution attacks measure
    - `seeds`, `seed` where there is one, and `refused`: what is not there and why, with the command that computes it,
      to which `extra` is added

    `seed`: the preset's first by default. Several give means over those that are stored (`metrics.report_seeds`); what
    attackers settled on is then a list, the exposure of an image its mean over them, and a class's interval that of the
    mean rates, for as many images as one seed has. Without `battery`, only `agp` is in it; without `parts`,
    `per_class` and agp's leaves on the parts are not made. Raises as `attack_runs`.
    """
    numbers = _asked_seeds(preset, seed)
    files = [SCORES] if len(numbers) > 1 else []
    command = _attack_command(preset, numbers, settings or {}, extra)
    runs = [attack_runs(preset, defenses, explainers, number, settings) for number in numbers]
    found, paths = _found_attacks(store, numbers, runs, files)
    others, explainer = _found_batteries(store, preset, defenses, numbers, settings, files, battery)
    out = {}
    for defense, held in others.items():
        own = [*command, "--defense", defense]
        views, refused = _views(found[defense], paths, numbers, own)
        made, reasons = _battery(views, battery_metrics(found[defense], held), own, battery)
        refused |= reasons | (_lacking("battery", held, numbers, own) if held else {})
        if parts:
            refused |= add_parts(made, found[defense], held)
        entry = {"explainers": views, **made, "battery_explainer": explainer, "seeds": numbers}
        if len(numbers) == 1:
            refused["intervals over seeds"] = "one seed only: the intervals resample images alone"
            entry["seed"] = numbers[0]
        out[defense] = entry | {"refused": refused}
    if variants:
        _add_variants(out, store, preset, numbers, settings, command, files)
    return out


def _found_batteries(
    store: Store,
    preset: Preset,
    defenses: Sequence[str] | None,
    seeds: Sequence[int],
    settings: dict[str, Any] | None,
    files: Sequence[str],
    asked: bool,
) -> tuple[dict[str, dict[int, Result]], str]:
    """What is stored of the batteries by defense and seed, nothing if they are not asked for; and whose maps it is."""
    found: dict[str, dict[int, Result]] = {}
    explainer = ""
    for seed in seeds:
        for defense, e in battery_runs(preset, defenses, seed, settings):
            result = experiment.find(store, "battery", e, files) if asked else None
            found.setdefault(defense, {}).update({} if result is None else {seed: result})
            explainer = e.explain.name
    return found, explainer


def _asked_seeds(preset: Preset, seed: int | Sequence[int] | None) -> list[int]:
    if seed is None:
        return [preset.seeds[0]]
    return [seed] if isinstance(seed, int) else list(dict.fromkeys(seed))


def _attack_command(preset: Preset, seeds: Sequence[int], settings: dict[str, Any], extra: Sequence[str]) -> list[str]:
    """The command that computes the attacks of these seeds under these settings."""
    command = ["python", "-m", "tier", "attack", preset.name]
    for seed in seeds:
        command += ["--seed", str(seed)]
    own = {"explain.name": "--battery-explainer"}  # which has an option
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items() if name not in own]
    options = [f"{own[name]}={value}" for name, value in settings.items() if name in own]
    return [*command, *extra, *sets, *options]


def _found_attacks(
    store: Store,
    seeds: Sequence[int],
    runs: Sequence[Iterable[tuple[str, str, str, Experiment]]],
    files: Sequence[str],
) -> tuple[dict[str, AttackResults], dict[str, dict[str, Any]]]:
    """What is stored of each seed's runs by defense and explainer or variant; and each one's operator and levels."""
    found: dict[str, AttackResults] = {}
    paths: dict[str, dict[str, Any]] = {}
    for seed, of_seed in zip(seeds, runs, strict=True):
        for defense, view, attacker, e in of_seed:
            here = found.setdefault(defense, {}).setdefault(view, {name: {} for name in ATTACKERS})[attacker]
            result = experiment.find(store, "attack", e, files)
            here |= {} if result is None else {seed: result}
            trajectory = e.attack.trajectory
            paths[view] = {"operator": trajectory.operator, "levels": list(trajectory.levels)}
    return found, paths


def _views(
    found: AttackResults, paths: dict[str, dict[str, Any]], seeds: Sequence[int], command: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Per explainer, of one defense, what is stored of it; and what is not."""
    views, refused = {}, {}
    for explainer, held in found.items():
        own = [*command, "--explainer", explainer, "--no-battery"]
        missing = [attacker for attacker in ATTACKERS if not held[attacker]]
        reason = f"{_MISSING}: {shlex.join(own)}"
        if len(missing) == len(ATTACKERS):
            refused[explainer] = reason
            continue
        refused |= {f"{explainer}.{attacker}": reason for attacker in missing}
        for attacker in (name for name in ATTACKERS if name not in missing):
            refused |= _lacking(f"{explainer}.{attacker}", held[attacker], seeds, own)
        views[explainer] = paths[explainer] | _view(held)
    return views, refused


def _view(held: dict[str, dict[int, Result]]) -> dict[str, Any]:
    """What is stored of one explainer, or variant, by both attackers."""
    of = {attacker: attack_metrics(results) for attacker, results in held.items()}
    return {
        "attack_test": of["adaptive"].get("attack_test"),
        "transfer": of["transfer"].get("target"),
        "adaptive": of["adaptive"].get("target"),
        "transfer_attack_test": of["transfer"].get("attack_test"),
        **{name: {who: of[who].get(name) for who in ATTACKERS} for name in ("alpha", "features_kept")},
    }


def _lacking(what: str, held: dict[int, Result], seeds: Sequence[int], command: list[str]) -> dict[str, str]:
    """Which of the seeds are not there, of something of which others are."""
    if not (missing := [seed for seed in seeds if seed not in held]):
        return {}
    return {f"{what}.seeds": f"{_MISSING}: seed {', '.join(map(str, missing))}: {shlex.join(command)}"}


def _battery(
    views: dict[str, dict[str, Any]], stored: dict[str, Any] | None, command: list[str], asked: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """`battery`, its notes, `vulnerable_decile` and `canaries` of one defense, and what is refused of them."""
    refused = {}
    if stored is None:
        refused["battery"] = f"{_MISSING}: {shlex.join(command)}" if asked else "not asked for"
        stored = {}
    of: dict[str, Any] = {}
    best = _strongest(views)
    if best is None:
        refused["battery.agp"] = "no attack learnt on a shadow with the same defense is in this store"
    else:
        of["agp"] = views[best]["adaptive"] | {"sign": 1, "explainer": best}
    of |= {name: stored[name] for name in ATTACKS if name in stored}
    parts = {name: dict(stored.get(name, {})) for name in PARTS}
    return {"battery": of, **parts, "queries": stored.get("queries"), "notes": stored.get("notes", [])}, refused


def _strongest(views: dict[str, dict[str, Any]]) -> str | None:
    """The explainer whose attack has the highest AUC on attack-test, the first of equal ones; as pages choose it."""
    return tables.strongest({name: of["attack_test"] for name, of in views.items()})


def _add_variants(
    out: dict[str, dict[str, Any]],
    store: Store,
    preset: Preset,
    seeds: Sequence[int],
    settings: dict[str, Any] | None,
    command: list[str],
    files: Sequence[str],
) -> None:
    """Put `variants`, and why some are not there, into each defense's entry."""
    runs = [variant_runs(preset, list(out), seed, settings) for seed in seeds]
    found, paths = _found_attacks(store, seeds, runs, files)
    for defense, variants in found.items():
        out[defense]["variants"] = {}
        own = [*command, "--defense", defense, "--explainer", preset.explainers[0], "--no-battery", "--variants"]
        for name, held in variants.items():
            if any(held.values()):
                view = {"explainer": preset.explainers[0], **paths[name], **_view(held)}
                out[defense]["variants"][name] = view
            for attacker, results in held.items():
                place = f"variants.{name}.{attacker}"
                told = {place: f"{_MISSING}: {shlex.join(own)}"} if not results else {}
                out[defense]["refused"] |= told or _lacking(place, results, seeds, own)
