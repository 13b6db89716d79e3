"""The demo store: which results ship with the code, and how they are made small."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tier import experiment, presets
from tier.config import DefenseName, Experiment, Explain
from tier.presets import Preset
from tier.store import Result, Store

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets" / "store"

SHIPPED = ("signs", "gtsrb", "gtsrb_tracks", "cifar100")
REGULARIZERS: tuple[DefenseName, ...] = ("tier_full", "tier_reg")
REPORT_PARTS = ("split", "train", "trajectory", "divergence", "audit", "report")

Job = tuple[str, str, Experiment]
"""Label, stage, experiment."""

WEIGHTS, HALF_WEIGHTS = "weights.safetensors", "weights_fp16.safetensors"
_PER_IMAGE = {  # what a stage knows of single images
    "train": ("samples.parquet",),
    "trajectory": ("samples.parquet",),
    "divergence": ("samples.parquet",),
    "audit": ("scores.parquet",),
}


def store_url(url: str | None = None) -> str:
    """Where results are kept: `url`, else the environment variable TIER_STORE (any fsspec URL), else `store/` here."""
    return url or os.environ.get("TIER_STORE") or str(ROOT / "store")


def open_store(url: str | None = None, below: bool = True) -> Store:
    """The store at `store_url`, with the demo store (TIER_DEMO_STORE, else `assets/store`) looked up first."""
    demo = os.environ.get("TIER_DEMO_STORE") or ASSETS
    return Store(store_url(url), below=Store(demo, read_only=True) if below else None)


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
    return [*headline(preset), *(grid(preset) if preset.name == "signs" else ())]


def export(work: Store, target: Store, names: Sequence[str] = SHIPPED) -> Iterator[str]:
    """Make `target` the demo store of the presets' results in `work`; yields a line for each change.

    Runs of the first seed keep per-image results, those of `signs` also 16-bit weights; the other seeds keep the
    per-image figures that intervals need; grid points keep metrics, events, KL profile and mean curves. Results that
    `work` does not have (yet) are passed over; what `target` has already is not written again.
    """
    done: set[tuple[str, str]] = set()
    for preset in map(presets.get, names):
        first = {experiment.key("train", preset.run(d, preset.seeds[0])) for d in preset.defenses}
        headlines = [(e, stage, True) for _, stage, e in headline(preset)]
        for e, stage, is_headline in [*headlines, *((e, stage, False) for _, stage, e in grid(preset))]:
            of_first = experiment.key("train", e) in first
            for part in REPORT_PARTS if stage == "report" else (stage,):
                found = experiment.find(work, part, e)
                if found is None or (part, found.key) in done:
                    continue
                done.add((part, found.key))
                if target.find(part, found.key) is None:
                    keep = of_first or (is_headline and part in ("train", "audit"))
                    _copy(found, target, keep, halve=of_first and preset.name == "signs")
                    yield f"wrote {part} {found.key[:12]}"
    for old in target.ls():
        if (old.stage, old.key) not in done:
            target.discard(old.stage, old.key)
            yield f"removed {old.stage} {old.key[:12]}, which no preset asks for"


def _copy(found: Result, target: Store, keep_images: bool, halve: bool) -> None:
    if found.stage == "train" and halve:
        weights = {
            name: array.astype(np.float16) if array.dtype == np.float32 else array
            for name, array in found.arrays(WEIGHTS).items()
        }
        files = {name: found.frame(name) for name in found.files if name.endswith(".parquet")}
        record = {name: value for name, value in found.record.items() if name not in ("files", "omitted")}
        reason = f"{HALF_WEIGHTS} has them at half the size; computed again when asked for"
        target.write(found.stage, found.key, {**files, HALF_WEIGHTS: weights}, record | {"omitted": {WEIGHTS: reason}})
        return
    omit = () if keep_images else _PER_IMAGE.get(found.stage, ())
    found.store.export(found.stage, found.key, target, [name for name in (WEIGHTS, *omit) if found.has(name)])
