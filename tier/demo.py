"""The demo store: which results ship with the code, and how they are made small."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tier import experiment, presets
from tier.config import DefenseName, Experiment, Explain
from tier.experiment import WEIGHTS
from tier.presets import Preset
from tier.store import Store
from tier.summary import attack_runs, battery_runs, fidelity_runs, quality_runs, variant_runs

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets" / "store"

WHOLE = "signs"
SHIPPED = (WHOLE, "gtsrb", "gtsrb_tracks", "cifar100")
REGULARIZERS: tuple[DefenseName, ...] = ("tier_full", "tier_reg")
CANARIES = 100  # mislabelled members of the models that are trained with some: as few as can resolve a rate of 1 %
PUBLISHED = "reproduction"  # the stage of `tier.reproduce.publish`, whose results `export` leaves alone
REPORT_PARTS = ("split", "train", "trajectory", "divergence", "audit", "report")

Job = tuple[str, str, Experiment]
"""Label, stage, experiment."""

_PER_IMAGE = {  # what a stage knows of single images
    "train": ("samples.parquet",),
    "trajectory": ("samples.parquet",),
    "divergence": ("samples.parquet",),
    "audit": ("scores.parquet",),
    "attack": ("scores.parquet", "features.parquet", "contributions.parquet"),
    "battery": ("scores.parquet",),
}
_OF_HEADLINES = ("train", "audit")  # their per-image figures make intervals and scores, for every headline run


def store_url(url: str | None = None) -> str:
    """Where results are kept: `url`, else the environment variable TIER_STORE (any fsspec URL), else `store/` here."""
    return url or os.environ.get("TIER_STORE") or str(ROOT / "store")


def demo_url() -> str:
    """Where the demo store is: the environment variable TIER_DEMO_STORE, else `assets/store` here."""
    return os.environ.get("TIER_DEMO_STORE") or str(ASSETS)


def open_store(url: str | None = None, below: bool = True) -> Store:
    """The store at `store_url`, with the demo store looked up first."""
    return Store(store_url(url), below=Store(demo_url(), read_only=True) if below else None)


def headline(preset: Preset) -> Iterator[Job]:
    """Every defense and seed, each explainer for the first seed and for the undefended control of the next seed, the
    early-stopping paths; of `signs` also the images that pages show, how like defended maps are to undefended ones, and
    the attacks from outside.
    """
    for seed in preset.seeds:
        for defense in preset.defenses:
            e = preset.run(defense, seed)
            yield f"{defense.name} seed {seed}", "report", e
            for name in preset.explainers if seed == preset.seeds[0] else ():
                view = e.with_(explain=Explain.model_validate({"name": name}))
                yield f"{defense.name} seed {seed} {name}", "report", view
                if preset.name == WHOLE:
                    yield f"{defense.name} seed {seed} {name}", "gallery", view
    for seed in preset.seeds[1:2]:
        for name in preset.explainers:
            view = preset.run("none", seed).set({"explain.name": name})
            yield f"none seed {seed} {name}", "report", view
    for rival in preset.rivals if preset.name == WHOLE else ():
        for seed in preset.seeds:
            yield f"{rival.name} seed {seed}", "report", preset.run(rival, seed)
    for name in ("none", "augmentation"):
        for seed in preset.seeds:
            yield f"{name} seed {seed}", "path", preset.run(name, seed)
    if preset.name == WHOLE:
        yield from fidelity(preset)
        yield from attacks(preset)
        yield from quality(preset)


def fidelity(preset: Preset) -> Iterator[Job]:
    """Every defended run's maps against the undefended model's, for each explainer and seed."""
    for defense, explainer, seed, e in fidelity_runs(preset):
        yield f"{defense} seed {seed} {explainer}", "fidelity", e


def attacks(preset: Preset) -> Iterator[Job]:
    """Every defense of the first seed attacked from outside, under each explainer, and by the sceptic's battery.

    Under the first explainer also with operators and levels that no defense has seen (`summary.attack_variants`).
    """
    for defense, explainer, attacker, e in attack_runs(preset):
        yield f"{defense} {explainer}, {attacker}", "attack", e
    for defense, name, attacker, e in variant_runs(preset):
        yield f"{defense} {name}, {attacker}", "attack", e
    rivals = [rival.name for rival in preset.rivals]
    if rivals:
        for defense, explainer, attacker, e in attack_runs(preset, rivals, preset.explainers[:1]):
            yield f"{defense} {explainer}, {attacker}", "attack", e
    for defense, e in battery_runs(preset, [d.name for d in preset.compared]):
        yield defense, "battery", e
    for defense, e in battery_runs(preset, settings={"split.canaries": CANARIES}):
        yield f"{defense} with canaries", "battery", e


def quality(preset: Preset) -> Iterator[Job]:
    """Every defense of the first seed under each explainer: how faithful its maps are, and where they point.

    And the undefended model of the next seed, which tells what training noise alone does.
    """
    control = quality_runs(preset, ["none"], seeds=preset.seeds[1:2]) if len(preset.seeds) > 1 else ()
    for defense, explainer, seed, e in [*quality_runs(preset), *control]:
        yield f"{defense} seed {seed} {explainer}", "quality", e


def grid(preset: Preset) -> Iterator[Job]:
    """Every point of the lambda / beta grid with the first seed, Full first; the two paths through the usual lambda and
    beta, and each rival at each of its strengths, with every seed: the best of many with one seed each would be the
    luckiest.
    """
    for name in REGULARIZERS:
        for lam, beta, e in preset.grid(name, preset.seeds[0]):
            yield f"{name} lambda {lam:g} beta {beta:g}", "report", e
    for name in REGULARIZERS:
        usual = preset.defense(name).tier
        points = [*((lam, usual.beta) for lam in preset.lambdas), *((usual.lambda_, beta) for beta in preset.betas)]
        for seed in preset.seeds[1:]:
            for lam, beta in dict.fromkeys(points):
                yield f"{name} lambda {lam:g} beta {beta:g} seed {seed}", "report", preset.point(name, lam, beta, seed)
    for rival in preset.rivals:
        for seed in preset.seeds:
            for strength, e in preset.sweep(rival.name, None, seed):
                yield f"{rival.name} {strength:g} seed {seed}", "report", e


def jobs(preset: Preset) -> list[Job]:
    """All of the preset that the demo store can hold; the grid belongs to `signs` only."""
    return [*headline(preset), *(grid(preset) if preset.name == WHOLE else ())]


def export(work: Store, target: Store, names: Sequence[str] = SHIPPED, also: Iterable[Job] = ()) -> Iterator[str]:
    """Make `target` the demo store of the presets' results in `work`; yields a line for each change.

    Runs of `signs` with the first seed keep their weights, and per-image results for the first explainer, and so does
    the undefended run of the second, their control; other headline runs keep the per-image figures that intervals and
    scores need. Grid points keep metrics, events, KL profile and mean curves; those of rivals and of further seeds
    their report alone. Attacks and batteries on rivals, attacks in another form, batteries with canaries keep figures.
    Results that `work` does not have (yet) are passed over, and stay if `target` has them; what `target` has already,
    with the same files, is not written again. Results that neither a preset nor `also`, which ship without images and
    weights, asks for are removed, but for those of PUBLISHED.
    """
    wanted: set[tuple[str, str]] = set()
    for preset in map(presets.get, names):
        first = {experiment.key("train", e) for e in _kept_models(preset)}
        headlines = [(e, stage, True) for _, stage, e in headline(preset)]
        for e, stage, is_headline in [*headlines, *((e, stage, False) for _, stage, e in grid(preset))]:
            whole = preset.name == WHOLE and experiment.key("train", e) in first
            for part in _parts(preset, e, stage, is_headline):
                place = part, experiment.key(part, e)
                if place in wanted:
                    continue
                wanted.add(place)
                if part == "attack":
                    images = _looked_into(preset, e)
                elif part == "battery":
                    images = _scored(preset, e)
                else:
                    images = is_headline and part in _OF_HEADLINES
                    images = images or (whole and e.explain.name == preset.explainers[0])
                if _ship(work, target, place, keep_images=images, keep_weights=whole):
                    yield f"wrote {part} {place[1][:12]}"
    for _, stage, e in also:
        place = stage, experiment.key(stage, e)
        if place not in wanted and _ship(work, target, place, keep_images=False, keep_weights=False):
            yield f"wrote {stage} {place[1][:12]}"
        wanted.add(place)
    for old in target.ls():
        if (old.stage, old.key) not in wanted and old.stage != PUBLISHED:
            target.discard(old.stage, old.key)
            yield f"removed {old.stage} {old.key[:12]}, which no preset asks for"


def _parts(preset: Preset, e: Experiment, stage: str, is_headline: bool) -> tuple[str, ...]:
    """The stages of a result that ship: of rivals' strengths and further seeds the report, as no page shows more."""
    own = e.defense.name in {d.name for d in preset.defenses} and e.train.seed == preset.seeds[0]
    return REPORT_PARTS if stage == "report" and (is_headline or own) else (stage,)


def _kept_models(preset: Preset) -> list[Experiment]:
    """The runs whose weights ship: every defense at the first seed, and the undefended control of the next seed."""
    controls = [preset.run("none", seed) for seed in preset.seeds[1:2]]
    return [preset.run(defense, preset.seeds[0]) for defense in preset.defenses] + controls


def _looked_into(preset: Preset, e: Experiment) -> bool:
    """Whether pages show single images and features of an attack: on the preset's own defenses, in its own form."""
    own = preset.experiment.attack.trajectory
    return e.defense.name in {d.name for d in preset.defenses} and e.attack.trajectory == own


def _scored(preset: Preset, e: Experiment) -> bool:
    """Whether pages look into the scores of a battery: of the preset's own defenses, without canaries."""
    return e.split.canaries == 0 and e.defense.name in {d.name for d in preset.defenses}


def _ship(work: Store, target: Store, place: tuple[str, str], keep_images: bool, keep_weights: bool) -> bool:
    """Copy a result unless the target holds it with just the files that ship; whether anything was written."""
    found = work.find(*place)
    if found is None:
        return False
    omit = [*(() if keep_weights else (WEIGHTS,)), *(() if keep_images else _PER_IMAGE.get(place[0], ()))]
    there = target.find(*place)
    if there is not None and set(there.files) == {name for name in found.files if name not in omit}:
        return False
    if there is not None:
        target.discard(*place)
    work.export(*place, target, [name for name in omit if found.has(name)])
    return True
