"""The demo store: which results ship with the code, and how they are made small."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tier import experiment, presets
from tier.config import DefenseName, Experiment, Explain
from tier.experiment import WEIGHTS
from tier.presets import Preset
from tier.store import Result, Store

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets" / "store"

WHOLE = "signs"
SHIPPED = (WHOLE, "gtsrb", "gtsrb_tracks", "cifar100")
REGULARIZERS: tuple[DefenseName, ...] = ("tier_full", "tier_reg")
REPORT_PARTS = ("split", "train", "trajectory", "divergence", "audit", "report")

Job = tuple[str, str, Experiment]
"""Label, stage, experiment."""

HALF_WEIGHTS = "weights_fp16.safetensors"
_PER_IMAGE = {  # what a stage knows of single images
    "train": ("samples.parquet",),
    "trajectory": ("samples.parquet",),
    "divergence": ("samples.parquet",),
    "audit": ("scores.parquet",),
}


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
    """Every defense and seed, each explainer and its maps for the first seed, and the early-stopping paths."""
    for seed in preset.seeds:
        for defense in preset.defenses:
            e = preset.run(defense, seed)
            yield f"{defense.name} seed {seed}", "report", e
            for name in preset.explainers if seed == preset.seeds[0] else ():
                view = e.with_(explain=Explain.model_validate({"name": name}))
                yield f"{defense.name} seed {seed} {name}", "report", view
                yield f"{defense.name} seed {seed} {name}", "maps", view
    for name in ("none", "augmentation"):
        for seed in preset.seeds:
            yield f"{name} seed {seed}", "path", preset.run(name, seed)


def grid(preset: Preset) -> Iterator[Job]:
    """Every point of the lambda / beta grid, Full first."""
    for name in REGULARIZERS:
        for lam, beta, e in preset.grid(name, preset.seeds[0]):
            yield f"{name} lambda {lam:g} beta {beta:g}", "report", e


def jobs(preset: Preset) -> list[Job]:
    """All of the preset that the demo store can hold; the grid belongs to `signs` only."""
    return [*headline(preset), *(grid(preset) if preset.name == WHOLE else ())]


def export(work: Store, target: Store, names: Sequence[str] = SHIPPED) -> Iterator[str]:
    """Make `target` the demo store of the presets' results in `work`; yields a line for each change.

    Runs of `signs` with the first seed keep per-image results and 16-bit weights; other headline runs the per-image
    figures that intervals need; grid points keep metrics, events, KL profile and mean curves. Results that
    `work` does not have (yet) are passed over, and stay if `target` has them; what `target` has already, with the same
    files, is not written again. Results that no preset asks for are removed.
    """
    wanted: set[tuple[str, str]] = set()
    for preset in map(presets.get, names):
        first = {experiment.key("train", preset.run(d, preset.seeds[0])) for d in preset.defenses}
        headlines = [(e, stage, True) for _, stage, e in headline(preset)]
        for e, stage, is_headline in [*headlines, *((e, stage, False) for _, stage, e in grid(preset))]:
            whole = preset.name == WHOLE and experiment.key("train", e) in first
            for part in REPORT_PARTS if stage == "report" else (stage,):
                place = part, experiment.key(part, e)
                if place in wanted:
                    continue
                wanted.add(place)
                keep = whole or (is_headline and part in ("train", "audit"))
                if _ship(work, target, place, keep, halve=whole and part == "train"):
                    yield f"wrote {part} {place[1][:12]}"
    for old in target.ls():
        if (old.stage, old.key) not in wanted:
            target.discard(old.stage, old.key)
            yield f"removed {old.stage} {old.key[:12]}, which no preset asks for"


def _ship(work: Store, target: Store, place: tuple[str, str], keep_images: bool, halve: bool) -> bool:
    """Copy a result unless the target holds it with just the files that ship; whether anything was written."""
    found = work.find(*place)
    if found is None:
        return False
    omit = [WEIGHTS, *(() if keep_images else _PER_IMAGE.get(place[0], ()))]
    ships = {name for name in found.files if name not in omit} | ({HALF_WEIGHTS} if halve else set())
    there = target.find(*place)
    if there is not None and set(there.files) == ships:
        return False
    if there is not None:
        target.discard(*place)
    if halve:
        _ship_half(found, target)
    else:
        work.export(*place, target, [name for name in omit if found.has(name)])
    return True


def _ship_half(found: Result, target: Store) -> None:
    weights = {
        name: array.astype(np.float16) if array.dtype == np.float32 else array
        for name, array in found.arrays(WEIGHTS).items()
    }
    files = {name: found.frame(name) for name in found.files if name.endswith(".parquet")}
    record = {name: value for name, value in found.record.items() if name not in ("files", "omitted")}
    reason = f"{HALF_WEIGHTS} has them at half the size; the exact ones are trained again when needed"
    target.write(found.stage, found.key, {**files, HALF_WEIGHTS: weights}, record | {"omitted": {WEIGHTS: reason}})
