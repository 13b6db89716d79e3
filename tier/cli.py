"""Command line, `python -m tier`: presets, run, sweep, show, fidelity, quality, attack, reproduce, engine, store."""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tier import demo, engine, experiment, paper, presets, reproduce, watching
from tier.config import STRENGTHS, DefenseName, Experiment, strength_field
from tier.presets import Preset
from tier.store import Problem, Result, Store, StoreError
from tier.summary import (
    ATTACKERS,
    LEAK,
    LEAVES,
    PARTS,
    UTILITY,
    as_markdown,
    attack_rows,
    attack_runs,
    attack_sentence,
    attacks,
    battery_rows,
    battery_runs,
    fidelity_rows,
    fidelity_runs,
    levels_text,
    markdown,
    part_rows,
    quality_rows,
    quality_runs,
    rows,
    summarize,
    variant_rows,
    variant_runs,
)
from tier.summary import fidelity as fidelity_summary
from tier.summary import quality as quality_summary

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="TIER: train, explain, attack, compare.")
store_app = typer.Typer(no_args_is_help=True, help="Look at, check and clean the store of results.")
app.add_typer(store_app, name="store")
out = Console()
err = watching.err

StoreOption = Annotated[
    str | None, typer.Option("--store", help="Store URL; default: TIER_STORE, else store/ beside the code.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. defense.tier.lambda=9. Repeatable.")
]
DefenseOption = Annotated[list[str] | None, typer.Option("--defense", help="Only this defense. Repeatable.")]
ExplainerOption = Annotated[list[str] | None, typer.Option("--explainer", help="Only this explainer. Repeatable.")]
SeedOption = Annotated[list[int] | None, typer.Option("--seed", help="Only this training seed. Repeatable.")]
HereOption = Annotated[
    bool, typer.Option("--here", help="Compute in this process, one run after the other, instead of by the engine.")
]


@app.command("presets")
def list_presets() -> None:
    """List the named experiments and why each is as it is."""
    table = Table("preset", "what", "why")
    for preset in presets.known().values():
        table.add_row(preset.name, preset.title, preset.why)
    out.print(table)


@app.command()
def run(
    preset: str,
    settings: SetOption = None,
    defense: DefenseOption = None,
    seed: SeedOption = None,
    explainer: Annotated[list[str] | None, typer.Option(help="Explainer of the trajectories. Repeatable.")] = None,
    here: HereOption = False,
    store: StoreOption = None,
) -> None:
    """Compute a preset's runs: train, follow trajectories, measure KL, audit. What is stored already is not redone."""
    chosen = presets.get(preset)
    where = demo.open_store(store)
    runs = [
        (f"{name} seed {number} {view}", _explained(changed(chosen.run(name, number), settings), view))
        for name in defense or [d.name for d in chosen.defenses]
        for number in seed or chosen.seeds
        for view in explainer or chosen.explainers[:1]
    ]
    watching.compute(where, [(label, "report", e) for label, e in runs], here)
    for view in explainer or chosen.explainers[:1]:
        show(preset, [*(settings or []), f"explain.name={view}"], defense, seed, store=store)


@app.command()
def sweep(
    preset: str,
    over: Annotated[
        list[str] | None,
        typer.Option(help="lambda=0,3,7 or beta=0,0.3 for TIER, strength=1,2 for the others; default: the preset's."),
    ] = None,
    defense: Annotated[list[str] | None, typer.Option(help="Defense to vary; default: tier_full. Repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many training seeds, the preset's first.")] = 1,
    seed: Annotated[list[int] | None, typer.Option(help="These training seeds instead. Repeatable.")] = None,
    settings: SetOption = None,
    here: HereOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON of what is stored; compute nothing.")] = False,
    store: StoreOption = None,
) -> None:
    """Compute every combination of a defense's settings and seeds, then print each point.

    Finished points are kept, whatever happens to the others; start again to go on.
    """
    chosen, where = presets.get(preset), demo.open_store(store)
    names = [chosen.defense(name).name for name in dict.fromkeys(defense or ["tier_full"])]
    values, numbers = _over(over or [], names), seed or _seeds(chosen, seeds)
    options = _GRID_OPTIONS | {
        f"defense.{'.'.join(strength_field(n))}": "--over" for n in names if "strength" in _axes(n)
    }
    points = [replace(p, e=changed(p.e, settings, options)) for p in _points(chosen, names, values, numbers)]
    failure = None
    if not as_json:
        try:
            watching.compute(where, [(point.label, "report", point.e) for point in points], here)
        except ValueError as mistake:  # what did not fail is shown all the same
            failure = mistake
    again = ["python", "-m", "tier", "sweep", preset]
    given = {"over": over, "defense": names, "seed": numbers, "set": settings, "store": [store] if store else []}
    again += [f"--{name}={value}" for name, items in given.items() for value in items or []]
    _show_points(where, preset, points, shlex.join(again), as_json)
    if failure is not None:
        raise failure


@app.command()
def show(
    preset: str,
    settings: SetOption = None,
    defense: DefenseOption = None,
    seed: SeedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    store: StoreOption = None,
) -> None:
    """Print a preset's stored figures: means over seeds with 95 % intervals."""
    chosen = presets.get(preset)
    changed(chosen.experiment, settings)  # refuses what cannot be set
    summary = summarize(demo.open_store(store), chosen, settings=assignments(settings), defenses=defense, seeds=seed)
    absent = [name for name in defense or [d.name for d in chosen.compared] if name not in summary]
    missing = {name: f"not in this store: python -m tier run {preset} --defense {name}" for name in absent}
    if as_json:
        print(json.dumps({"preset": preset, "defenses": summary, "refused": missing}, indent=2))
        return
    if as_markdown:
        print(markdown(summary))
        return
    for columns in (UTILITY, LEAK):  # side by side they would be too wide
        _print_table(rows(summary, columns), 1)
    out.print("best attack: that of the highest AUC on the target, so somewhat flattered by the choice.")
    if missing:
        again = shlex.join(["python", "-m", "tier", "run", preset, *(f"--defense={name}" for name in missing)])
        out.print(f"Not in the store: {', '.join(missing)}. Compute with: {again}", soft_wrap=True, markup=False)


@app.command()
def fidelity(
    preset: str,
    settings: SetOption = None,
    defense: DefenseOption = None,
    explainer: ExplainerOption = None,
    seed: SeedOption = None,
    compute: Annotated[bool, typer.Option("--compute", help="Compute first what is not stored.")] = False,
    here: HereOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    in_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    store: StoreOption = None,
) -> None:
    """Print how like the undefended model's maps the defended models' are: means with 95 % intervals beside controls.

    The controls: the map of another image, and the undefended model of another training seed.
    """
    chosen = presets.get(preset)
    changed(chosen.experiment, settings, _OPTIONS | {"explain.name": "--explainer"})  # refuses what cannot be set
    where, wanted = demo.open_store(store), assignments(settings)
    runs = list(fidelity_runs(chosen, defense, explainer, seed, wanted))
    if compute:
        work = [(f"{name} seed {number} {view}", "fidelity", e) for name, view, number, e in runs]
        watching.compute(where, work, here)
    summary = fidelity_summary(where, chosen, defense, explainer, seed, wanted)
    again = _again("fidelity", preset, settings, seed, store)
    missing = _missing(summary, dict.fromkeys(one[:2] for one in runs), again)
    if as_json:
        print(json.dumps({"preset": preset, "defenses": summary, "refused": missing}, indent=2, allow_nan=False))
    elif in_markdown:
        print(as_markdown(fidelity_rows(summary)))
    else:
        _print_fidelity(summary)
        _print_missing(missing, again)


@app.command()
def quality(
    preset: str,
    settings: SetOption = None,
    defense: DefenseOption = None,
    explainer: ExplainerOption = None,
    seed: Annotated[list[int] | None, typer.Option(help="Training seed; default: the first. Repeatable.")] = None,
    compute: Annotated[bool, typer.Option("--compute", help="Compute first what is not stored.")] = False,
    here: HereOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    in_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    store: StoreOption = None,
) -> None:
    """Print how faithful maps are to their model, and whether they point at the object: means with 95 % intervals.

    The controls: a map of independent noise, and the edges of the image. Neither knows anything of the model.
    """
    chosen = presets.get(preset)
    changed(chosen.experiment, settings, _OPTIONS | {"explain.name": "--explainer"})  # refuses what cannot be set
    where, wanted = demo.open_store(store), assignments(settings)
    runs = list(quality_runs(chosen, defense, explainer, seed, wanted))
    if compute:
        work = [(f"{name} seed {number} {view}", "quality", e) for name, view, number, e in runs]
        watching.compute(where, work, here)
    everything = defense or [str(of.name) for of in chosen.compared]  # rivals are shown where they are stored
    summary = quality_summary(where, chosen, everything, explainer, seed, wanted)
    again = _again("quality", preset, settings, seed, store)
    missing = _missing(summary, dict.fromkeys(one[:2] for one in runs), again)
    views = explainer or chosen.explainers
    rivals = {} if defense else _missing(summary, ((of.name, view) for of in chosen.rivals for view in views), again)
    missing |= {place: f"{_NOT_BY_DEFAULT}, {reason}" for place, reason in rivals.items()}
    if as_json:
        print(json.dumps({"preset": preset, "defenses": summary, "refused": missing}, indent=2, allow_nan=False))
    elif in_markdown:
        print(as_markdown(quality_rows(summary)))
    else:
        _print_quality(summary)
        _print_missing({place: reason for place, reason in missing.items() if place not in rivals}, again)
        if rivals:
            names = dict.fromkeys(place.split(".")[0] for place in rivals)
            command = shlex.join([*again, "--defense", next(iter(names))])
            out.print(f"Not judged: {', '.join(names)}. Name one: {command}", soft_wrap=True, markup=False)


@app.command()
def attack(
    preset: str,
    settings: SetOption = None,
    defense: DefenseOption = None,
    explainer: ExplainerOption = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="Training seed; default: the preset's first. Repeatable.")
    ] = None,
    battery: Annotated[bool, typer.Option(help="Also mount the attacks that need no trajectories.")] = True,
    battery_explainer: Annotated[
        str | None, typer.Option(help="Whose maps attribution_* measure; default: the preset's own explainer.")
    ] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="Also with operators and levels that no defense has trained on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON of what is stored; compute nothing.")] = False,
    in_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown tables of what is stored; compute nothing.")
    ] = False,
    here: HereOption = False,
    store: StoreOption = None,
) -> None:
    """Attack a preset's models from outside and print what leaks; what is not stored is computed first.

    attack_test: the rest of a shadow model with the same defense. transfer and adaptive: the target, attacked from an
    undefended shadow model and from one with the same defense. Several seeds give means over those that are stored.
    --explainer chooses whose maps order the pixels; the other attacks stay as they are, see --battery-explainer.
    """
    chosen = presets.get(preset)
    changed(chosen.experiment, settings, _ATTACK_OPTIONS)  # refuses what cannot be set
    where, wanted = demo.open_store(store), assignments(settings)
    wanted |= {"explain.name": battery_explainer} if battery_explainer else {}
    failure = None
    if not (as_json or in_markdown):
        try:
            watching.compute(where, _attack_jobs(chosen, defense, explainer, seed, wanted, battery, variants), here)
        except ValueError as mistake:  # what did not fail is shown all the same
            failure = mistake
    extra = ["--store", store] if store else []
    summary = attacks(where, chosen, defense, explainer, seed, wanted, battery, extra, variants=variants)
    held = {name: of for name, of in summary.items() if of["explainers"] or of["battery"] or of.get("variants")}
    if as_json:
        missing = {f"{name}.{what}": why for name, of in summary.items() for what, why in of["refused"].items()}
        print(json.dumps({"preset": preset, "defenses": held, "refused": missing}, indent=2, allow_nan=False))
    elif in_markdown:
        print(*(as_markdown(rows) for rows in _attack_tables(held).values()), sep="\n\n")
    else:
        _print_attacks(held)
    if failure is not None:
        raise failure


@app.command("reproduce")
def paper_and_here(
    dataset: Annotated[str, typer.Option(help="One of the paper's data sets.")] = "gtsrb",
    table: Annotated[list[str] | None, typer.Option(help="Only this table, I to IX. Repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Training seeds; default: the presets' own.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only what is stored; compute nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON of every cell.")] = False,
    in_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Instead of the tables: what the paper leaves open, tried in turn.")
    ] = False,
    profiles: Annotated[
        bool, typer.Option("--profiles", help="Instead of the tables: stored KL divergences, by unit of the test.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for tables (CSV, LaTeX) and figures.")] = None,
    here: HereOption = False,
    store: StoreOption = None,
) -> None:
    """Run the paper's protocol and print its tables with our numbers beside, and whether the two agree.

    What is stored is not computed again, so the command can be stopped and started anew.
    """
    if (alternatives or profiles) and (table or seeds is not None or output is not None or alternatives == profiles):
        own = "--alternatives" if alternatives else "--profiles"
        raise ValueError(f"{own} prints its own table: leave --table, --seeds, --output and others of its kind out")
    of, where = reproduce.protocol(dataset), demo.open_store(store)
    if profiles:
        told = reproduce.profiles(where, of)
        if as_json:
            print(json.dumps({"dataset": dataset, "profiles": told}, indent=2, allow_nan=False))
        elif in_markdown:
            print(as_markdown(reproduce.profile_rows(told)))
        else:
            _print_table(reproduce.profile_rows(told), 3)
        return
    numbers = None if seeds is None else list(range(seeds))
    work = reproduce.alternative_jobs(of) if alternatives else reproduce.jobs(of, table, numbers)
    if not show:
        watching.compute(where, work, here)
    if alternatives:
        _print_alternatives(reproduce.alternatives(where, of), as_json, in_markdown)
        return
    found = reproduce.cells(where, of, table, numbers)
    if output is not None:
        for path in reproduce.write(output, where, of, found):
            err.print(f"wrote {path}", soft_wrap=True, markup=False)
    if as_json:
        meanings = {name: verdict.meaning for name, verdict in reproduce.VERDICTS.items()}
        head = {"dataset": dataset, "departures": of.departures, "verdicts": meanings}
        rows_ = [cell.row() for cell in found]
        print(json.dumps({**head, "counts": reproduce.counts(found), "cells": rows_}, indent=2, allow_nan=False))
        return
    mark = reproduce.VERDICTS["refused"].mark
    for name in dict.fromkeys(cell.number.place.table for cell in found):
        lines = reproduce.in_paper_form(found, name)
        heading, refused = f"Table {name}: {paper.TITLES[name]}", reproduce.refusals(found, name)
        if in_markdown:
            print(f"## {heading}\n\n{as_markdown(lines)}\n")
            for reason in refused:
                print(f"`{mark}` {reason}\n")
        else:
            out.print(heading)
            _print_table(lines, 1)
            for reason in refused:
                out.print(f"{mark} {reason}", soft_wrap=True, markup=False, highlight=False)
    if not in_markdown:
        again = ["python", "-m", "tier", "reproduce", "--dataset", dataset]
        again += [f"--table={name}" for name in table or []] + ([] if seeds is None else [f"--seeds={seeds}"])
        again += ["--store", store] if store else []
        _print_agreement(found, of, again)


@app.command("engine")
def start_engine(
    store: StoreOption = None,
    stay: Annotated[bool, typer.Option(help="Keep running without clients or work, until it is ended.")] = True,
) -> None:
    """Run the engine that computes what pages and commands ask for; ends where another one serves the store."""
    places = ["--store", demo.store_url(store), "--below", demo.demo_url()]
    raise typer.Exit(engine.main([*places, *(["--stay"] if stay else [])]))


@app.command("build-demo")
def build_demo(
    preset: Annotated[list[str] | None, typer.Option(help="Compute this preset; default: signs. Repeatable.")] = None,
    target: Annotated[str, typer.Option(help="Folder of the demo store.")] = str(demo.ASSETS),
    here: HereOption = False,
    store: StoreOption = None,
) -> None:
    """Compute the demo store: headline runs, grid, early-stopping paths; only changed keys are written.

    Results of the other shipped presets that the working store holds are exported too, and what reproductions gave.
    """
    work = demo.open_store(store, below=False)
    watching.compute(work, [job for name in preset or ["signs"] for job in demo.jobs(presets.get(name))], here)
    drawn = chain.from_iterable(map(reproduce.drawn, reproduce.PROTOCOLS.values()))
    for line in chain(demo.export(work, Store(target), also=drawn), reproduce.publish(work, Store(target))):
        out.print(line)


@store_app.command("ls")
def store_ls(stage: Annotated[str | None, typer.Option()] = None, store: StoreOption = None) -> None:
    """List stored results."""
    table = Table("stage", "key", "bytes", "created", "defense")
    for result in demo.open_store(store).ls(stage):
        chosen = result.record.get("experiment", {}).get("defense", {})
        table.add_row(
            result.stage,
            result.key[:12],
            f"{result.size:,}",
            str(result.record.get("created")),
            str(chosen.get("name", "none")),
        )
    out.print(table)


@store_app.command("verify")
def store_verify(store: StoreOption = None) -> None:
    """Check every stored file against its record, and that nothing is stored twice; exit code 1 if something is wrong.

    Changes nothing. What was found damaged earlier, and set aside to be computed anew, is listed, but no problem.
    """
    where = demo.open_store(store)
    results = Store(where.url, read_only=True, below=where.below).ls()  # which sets nothing aside
    problems = where.verify() + _misplaced(results)
    for problem in problems:
        said = f"{problem.stage} {problem.key[:12]}: {problem.reason} (in {problem.store})"
        err.print(said, markup=False, highlight=False, soft_wrap=True)
    for old in where.damaged():
        said = f"set aside {old.when or 'at some time'}: {old.stage} {old.key[:12]}: {old.reason}"
        out.print(said, markup=False, highlight=False, soft_wrap=True)
    out.print(f"{len(results)} results, {len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@store_app.command("gc")
def store_gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove abandoned writes, expired leases, old messages, and uploads with what was made of them; the rest stays."""
    removed = demo.open_store(store).gc(dry_run=dry_run)
    for garbage in removed:
        out.print(str(garbage))
    out.print(f"{len(removed)} {'would go' if dry_run else 'removed'}")


def _misplaced(results: Sequence[Result]) -> list[Problem]:
    """Results that are not where the computation belongs that their records describe, or are there a second time.

    The key of each is computed anew from its experiment. Where that cannot be (a result of another version of the
    code), two whose records describe the same computation are told.
    """
    held = {(result.stage, result.key) for result in results}
    first: dict[str, Result] = {}
    problems = []
    for result in results:
        if "config" not in result.record:  # a checkpoint, named by its run and epoch
            continue
        told = [result.record.get(name) for name in ("version", "config", "parents", "fingerprint")]
        known = first.setdefault(json.dumps([result.stage, *told], sort_keys=True), result)
        right = _right_key(result) or known.key
        if right != result.key:
            twice = (result.stage, right) in held
            reason = f"stored twice: the same computation as {right[:12]}" if twice else f"belongs at {right[:12]}"
            problems.append(Problem(result.store.url, result.stage, result.key, reason))
    return problems


def _right_key(result: Result) -> str | None:
    """The key of the computation that a record describes; None where it was made by another version of the stage."""
    stage = experiment.STAGES.get(result.stage)
    if stage is None or result.record.get("version") != stage.version:
        return None
    try:
        return experiment.key(result.stage, Experiment.model_validate(result.record["experiment"]))
    except (KeyError, ValueError):  # settings that this version does not have
        return None


def assignments(settings: list[str] | None) -> dict[str, Any]:
    """`["a.b=1"]` as `{"a.b": 1}`: values are JSON where they parse, else text. Raises ValueError without `=`."""
    parsed: dict[str, Any] = {}
    for item in settings or []:
        name, equals, text = item.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, not '{item}'")
        try:
            parsed[name.strip()] = json.loads(text)
        except json.JSONDecodeError:
            parsed[name.strip()] = text
    return parsed


_OPTIONS = {
    "train.seed": "--seed",
    "defense.name": "--defense",
    "fidelity.second_seed": "--seed; the control of each run is the preset's next seed",
}
_ATTACK_OPTIONS = _OPTIONS | {
    "explain.name": "--explainer, or --battery-explainer for the battery",
    "attack.shadow": "the rows transfer and adaptive, which show both",
    "attack.trajectory.alpha": "attack.alphas, of which shadow data choose one",
}
_GRID_OPTIONS = _OPTIONS | {"defense.tier.lambda": "--over", "defense.tier.beta": "--over"}


def changed(e: Experiment, settings: list[str] | None, options: dict[str, str] = _OPTIONS) -> Experiment:
    """The experiment with `--set` applied; refuses what has an option of its own, since every run would get it."""
    wanted = assignments(settings)
    for name in options.keys() & wanted.keys():
        raise ValueError(f"--set {name} would give every run the same one; use {options[name]}")
    return e.set(wanted) if wanted else e


def main() -> None:
    """Run the command line; a mistake in the input is one sentence and exit code 2, not a traceback."""
    try:
        app()
    except (ValueError, OSError, StoreError) as mistake:
        err.print(f"[red]error[/red]: {escape(_sentence(mistake))}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from mistake


def _sentence(mistake: Exception) -> str:
    if isinstance(mistake, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}, not {e['input']!r}" for e in mistake.errors())
    return str(mistake)


def _explained(e: Experiment, explainer: str) -> Experiment:
    return e.set({"explain.name": explainer})


def _again(
    command: str, preset: str, settings: list[str] | None, seeds: list[int] | None, store: str | None
) -> list[str]:
    """The command that computes what `command` has just looked for."""
    again = ["python", "-m", "tier", command, preset, "--compute"]
    again += [f"--set={item}" for item in settings or []] + [f"--seed={number}" for number in seeds or []]
    return again + (["--store", store] if store else [])


def _missing(
    summary: dict[str, dict[str, dict[str, Any]]], wanted: Iterable[tuple[str, str]], again: list[str]
) -> dict[str, str]:
    """By `defense.explainer` what is not stored, or not of every seed, and the command that computes it."""
    missing = {}
    for name, view in wanted:
        entry = summary.get(name, {}).get(view)
        if entry is None or "seeds" in entry["refused"]:
            what = "not in this store" if entry is None else f"seeds {entry['refused']['seeds']}"
            missing[f"{name}.{view}"] = f"{what}: {shlex.join([*again, '--defense', name, '--explainer', view])}"
    return missing


_NOT_BY_DEFAULT = "a rival, judged only when it is named"


def _print_missing(missing: dict[str, str], again: list[str]) -> None:
    if missing:
        out.print(f"Missing: {', '.join(missing)}. Compute with: {shlex.join(again)}", soft_wrap=True, markup=False)


def _print_fidelity(summary: dict[str, dict[str, Any]]) -> None:
    _print_table(fidelity_rows(summary), 2)
    out.print("mean: defended against undefended, all images; both right: images that both models get right.")
    out.print("Controls: against the undefended map of another image; two undefended models of different seeds.")
    notes: dict[str, list[str]] = {}
    for defense, views in summary.items():
        for explainer, entry in views.items():
            right = {f"both right, {name}": reason for name, reason in entry["correct"]["refused"].items()}
            for name, reason in (entry["refused"] | right).items():
                notes.setdefault(f"{name}: {reason}", []).append(f"{explainer} {defense}")
    everyone = sum(map(len, summary.values()))
    for note, whose in notes.items():
        out.print(f"{note} ({'all' if len(whose) == everyone else ', '.join(whose)})", soft_wrap=True, markup=False)


def _print_quality(summary: dict[str, dict[str, dict[str, Any]]]) -> None:
    _print_table([[*row[:6], *row[8:]] for row in quality_rows(summary)], 2)  # either group takes a wider terminal
    out.print("random: a map of independent noise, or what it is expected to score. edges: the image's Sobel edges.")
    out.print("change: against the undefended map of the same image; other seed: what another undefended seed changes.")
    notes: dict[str, list[str]] = {}
    for defense, views in summary.items():
        for explainer, entry in views.items():
            told = {f"seed {seed}: {note}" for seed, of in entry["notes"].items() for note in of}
            for note in [*sorted(told), *(f"{name}: {reason}" for name, reason in entry["refused"].items())]:
                notes.setdefault(note, []).append(f"{explainer} {defense}")
    everyone = sum(map(len, summary.values()))
    for note, whose in notes.items():
        out.print(f"{note} ({'all' if len(whose) == everyone else ', '.join(whose)})", soft_wrap=True, markup=False)


def _attack_jobs(
    preset: Preset,
    defenses: list[str] | None,
    explainers: list[str] | None,
    seeds: list[int] | None,
    settings: dict[str, Any],
    battery: bool,
    variants: bool,
) -> list[tuple[str, str, Experiment]]:
    """What `attack` computes, each computation once: without a defense both attackers are the same."""
    found: dict[tuple[str, Experiment], tuple[str, str, Experiment]] = {}
    for seed in seeds or preset.seeds[:1]:
        of = f" seed {seed}" if seeds else ""
        runs = [attack_runs(preset, defenses, explainers, seed, settings)]
        runs += [variant_runs(preset, defenses, seed, settings)] if variants else []
        for defense, view, attacker, e in chain(*runs):
            label = f"{defense}{of} {view} from the {ATTACKERS[attacker]} shadow"
            found.setdefault(("attack", e.canonical()), (label, "attack", e))
        for defense, e in battery_runs(preset, defenses, seed, settings) if battery else ():
            found.setdefault(("battery", e.canonical()), (f"{defense}{of}", "battery", e))
    return sorted(found.values(), key=lambda job: job[1] == "battery")


def _attack_tables(summary: dict[str, dict[str, Any]]) -> dict[str, list[list[str]]]:
    """The tables of `attack` by name, without those that have no line where that is nothing to wonder at."""
    tables = {"attacks": attack_rows(summary), "battery": battery_rows(summary)}
    more = {"parts": part_rows(summary), "variants": variant_rows(summary)}
    return tables | {name: table for name, table in more.items() if len(table) > 1}


_ATTACK_LEGENDS = {
    "attacks": (
        "attack_test: the rest of a shadow with the same defense (what the paper's Table V most likely is).\n"
        "transfer, adaptive: the target, attacked from an undefended shadow and from one with the same defense.\n"
        "Balanced accuracy: with the shadow's threshold; calibrated: with one found on half of the images themselves.\n"
        "false: non-members taken for members."
    ),
    "battery": "The attacks on the target, highest AUC first; agp under the explainer that does best on attack_test.",
    "parts": (
        "Most exposed: the images that reference models change most on by training on them, a tenth of all, or 250.\n"
        "Canaries: members that were trained on with a wrong label, against as many mislabelled non-members."
    ),
    "variants": (
        "The same attack with pixels removed otherwise. TIER trains on 5, 10 and 20 % with mean fill; standard is the "
        "first table's."
    ),
}


def _print_attacks(summary: dict[str, dict[str, Any]]) -> None:
    columns = {"attacks": 2, "battery": 1, "parts": 2, "variants": 4}  # that are printed once for rows that share them
    for name, table in _attack_tables(summary).items():
        _print_table(table, columns[name])
        out.print(_ATTACK_LEGENDS[name], soft_wrap=True, markup=False, highlight=False)
    for note in (*_attack_footer(summary), *_attack_notes(summary)):
        out.print(note, soft_wrap=True, markup=False)
    for defense, of in summary.items():
        if sentence := attack_sentence(of):
            out.print(f"{defense}: {sentence}", soft_wrap=True, markup=False, highlight=False)
    out.print("Of 100 images, half of them members.")


def _attack_footer(summary: dict[str, dict[str, Any]]) -> list[str]:
    """With what settings the attacks were made, each once."""
    lines: dict[str, list[str]] = {}
    for defense, of in summary.items():
        for view in of["explainers"].values():
            lines.setdefault(f"Pixels removed by {view['operator']}: {levels_text(view['levels'])}.", [])
        if of["battery"].keys() - {"agp"}:
            lines.setdefault(f"attribution_*: maps of {of['battery_explainer']}.", [])
        if of["queries"] is not None:
            lines.setdefault(f"LiRA and RMIA ask about {of['queries']} views of an image", []).append(defense)
        for note in of["notes"]:
            lines.setdefault(note, []).append(defense)
    seeds = {", ".join(map(str, of["seeds"])) for of in summary.values()}
    told = [line + (f" ({', '.join(whose)})" if whose else "") for line, whose in lines.items()]
    return [*told, *(f"Training seeds: {text}." for text in seeds)]


def _attack_notes(summary: dict[str, dict[str, Any]]) -> list[str]:
    """What the tables lack and why, each reason once with where it holds."""
    notes: dict[str, list[str]] = {}
    for defense, of in summary.items():
        leaves = {f"{view} {name}": entry[name] for view, entry in of["explainers"].items() for name in LEAVES}
        parts = {f"{name}, {part}": leaf for part in PARTS for name, leaf in of[part].items()}
        for place, leaf in (leaves | of["battery"] | parts).items():
            for name, reason in (leaf or {"refused": {}})["refused"].items():
                if name in ("scores", "balanced_accuracy", "auc", "tpr_at_0.01"):  # the others are in JSON only
                    notes.setdefault(f"{name}: {reason}", []).append(f"{defense} {place}")
        for name, reason in of["refused"].items():
            notes.setdefault(f"{name}: {reason}", []).append(defense)
    return [f"{note} ({', '.join(where[:4])}{' ...' if len(where) > 4 else ''})" for note, where in notes.items()]


def _print_table(lines: list[list[str]], names: int) -> None:
    """A table whose first `names` columns are printed once for the rows that share them."""
    table = Table()
    for place, name in enumerate(lines[0]):
        table.add_column(name, overflow="fold" if place < names else "ellipsis")  # a name is of use only as a whole
    for before, row in pairwise(lines):
        table.add_row(*([""] * names if row[:names] == before[:names] else row[:names]), *row[names:])
    out.print(table)


def _print_alternatives(table: pd.DataFrame, as_json: bool, in_markdown: bool) -> None:
    """What each open choice gives, in one of three forms."""
    lines = reproduce.alternative_rows(table)
    if as_json:
        print(json.dumps({"choices": json.loads(table.to_json(orient="records"))}, indent=2, allow_nan=False))
    elif in_markdown:
        print(as_markdown(lines))
    else:
        _print_table(lines, 1)


def _print_agreement(found: Sequence[reproduce.Cell], of: reproduce.Protocol, again: list[str]) -> None:
    """How often each verdict was reached, what it means, and in what the runs depart from the paper."""
    counts = reproduce.counts(found)
    for name, verdict in reproduce.VERDICTS.items():
        mark = f" ({verdict.mark})" if verdict.mark else ""
        out.print(f"{counts[name]} {name}{mark}: {verdict.meaning}", soft_wrap=True, markup=False, highlight=False)
    for departure in of.departures:
        out.print(f"Here: {departure}.", soft_wrap=True, markup=False, highlight=False)
    if counts["not computed"]:
        out.print(f"Compute with: {shlex.join(again)}", soft_wrap=True, markup=False, highlight=False)


@dataclass(frozen=True)
class _Point:
    """One run of a sweep, and the values that tell it from the others of its defense and seed."""

    defense: DefenseName
    values: dict[str, float]
    seed: int
    e: Experiment

    @property
    def label(self) -> str:
        return " ".join(
            [self.defense, *(f"{name} {value:.10g}" for name, value in self.values.items()), f"seed {self.seed}"]
        )


def _axes(name: DefenseName) -> tuple[str, ...]:
    """What `--over` can vary of a defense."""
    if name in demo.REGULARIZERS:
        return "lambda", "beta"
    return ("strength",) if name in STRENGTHS else ()


def _over(items: Sequence[str], names: Sequence[DefenseName]) -> dict[str, tuple[float, ...]]:
    """The values to go through by what is varied. Raises ValueError saying what can be, when an item does not fit."""
    for name in names:
        if not _axes(name):
            others = ", ".join(n for n in STRENGTHS if n not in demo.REGULARIZERS)
            raise ValueError(
                f"'{name}' has nothing to vary; choose tier_full or tier_reg (lambda, beta) or a defense with a "
                f"strength: {others}"
            )
    valid: dict[str, list[str]] = {}
    for name in names:
        for axis in _axes(name):
            valid.setdefault(axis, []).append(name)
    found: dict[str, tuple[float, ...]] = {}
    for item in items:
        axis, _, text = item.partition("=")
        values = _numbers(text)
        if axis not in valid or not values:
            listed = " or ".join(f"{name}=... ({', '.join(whose)})" for name, whose in valid.items())
            raise ValueError(f"--over takes {listed} with comma-separated numbers, not '{item}'")
        found[axis] = tuple(dict.fromkeys([*found.get(axis, ()), *values]))
    return found


def _numbers(text: str) -> tuple[float, ...]:
    """Comma-separated finite numbers; none where one is not."""
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError:
        return ()
    return values if all(map(math.isfinite, values)) else ()


def _seeds(preset: Preset, count: int) -> list[int]:
    """The first seeds of a preset, and beyond them those that follow its highest."""
    return [*preset.seeds, *range(max(preset.seeds) + 1, max(preset.seeds) + 1 + count)][:count]


def _points(
    preset: Preset, names: Sequence[DefenseName], over: dict[str, tuple[float, ...]], seeds: Sequence[int]
) -> Iterator[_Point]:
    """Every run of a sweep: the values given, else those of the preset."""
    given = {"lambdas": over.get("lambda", preset.lambdas), "betas": over.get("beta", preset.betas)}
    grid = preset.model_copy(update=given)
    for seed in seeds:
        for name in names:
            if name in demo.REGULARIZERS:
                for lam, beta, e in grid.grid(name, seed):
                    yield _Point(name, {"lambda": lam, "beta": beta}, seed, e)
            else:
                for strength, e in preset.sweep(name, over.get("strength"), seed):
                    yield _Point(name, {"strength": strength}, seed, e)


_POINT_FIGURES = ("test_accuracy", "crossfit_balanced_accuracy", "gap_balanced_accuracy")


def _show_points(store: Store, preset: str, points: Sequence[_Point], again: str, as_json: bool) -> None:
    """Print the stored points of a sweep and what is missing; `again` is the command that computes it."""
    found = {point.label: experiment.find(store, "report", point.e) for point in points}
    rows: list[dict[str, Any]] = [
        {"defense": point.defense, **point.values, "seed": point.seed}
        | {figure: result.metrics[figure] for figure in _POINT_FIGURES}
        for point in points
        if (result := found[point.label]) is not None
    ]
    missing = [label for label, result in found.items() if result is None]
    if as_json:
        refused = dict.fromkeys(missing, f"not in this store: {again}")
        print(json.dumps({"preset": preset, "points": rows, "refused": refused}, indent=2, allow_nan=False))
        return
    axes = list(dict.fromkeys(name for point in points for name in point.values))
    table = Table("defense", *axes, "seed", "test accuracy", "cross-fitted audit", "gap")
    for row in rows:
        values = [f"{row[name]:g}" if name in row else "" for name in axes]
        table.add_row(row["defense"], *values, str(row["seed"]), *(f"{row[name]:.3f}" for name in _POINT_FIGURES))
    out.print(table)
    out.print("Balanced accuracies of attacks: the internal audit on the target itself, and the gap attack.")
    if missing:
        out.print(f"Missing: {', '.join(missing)}. Compute with: {again}", soft_wrap=True, markup=False)
