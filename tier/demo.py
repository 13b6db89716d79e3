"""The demo store: which results ship with the code, and how they are made small."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tier import experiment
from tier.config import Experiment, Explain
from tier.presets import Preset
from tier.store import Result, Store

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets" / "store"

Job = tuple[str, str, Experiment]
"""Label, stage, experiment."""

_HEAVY = {
    "train": ("weights.safetensors", "samples.parquet"),
    "trajectory": ("samples.parquet",),
    "divergence": ("samples.parquet",),
    "audit": ("scores.parquet",),
}
_PER_IMAGE = {"train": ("weights.safetensors",), "trajectory": ("samples.parquet",), "divergence": ("samples.parquet",)}


def store_url(url: str | None = None) -> str:
    """Where results are kept: `url`, else the environment variable TIER_STORE (any fsspec URL), else `store/` here."""
    return url or os.environ.get("TIER_STORE") or str(ROOT / "store")


def open_store(url: str | None = None, below: bool = True) -> Store:
    """The store at `store_url`, with the demo store (TIER_DEMO_STORE, else `assets/store`) looked up first."""
    demo = os.environ.get("TIER_DEMO_STORE") or ASSETS
    return Store(store_url(url), below=Store(demo, read_only=True) if below else None)


def headline(preset: Preset) -> Iterator[Job]:
    """Every defense and seed, each explainer for the first seed, maps and early-stopping paths."""
    for seed in preset.seeds:
        for defense in preset.defenses:
            e = preset.run(defense, seed)
            yield f"{defense.name} seed {seed}", "report", e
            if seed == preset.seeds[0]:
                for name in preset.explainers:
                    view = e.with_(explain=Explain.model_validate({"name": name}))
                    yield f"{defense.name} {name}", "report", view
                    yield f"{defense.name} {name}", "maps", view
    for name in ("none", "augmentation"):
        for seed in preset.seeds:
            yield f"{name} path seed {seed}", "path", preset.run(name, seed)


def grid(preset: Preset) -> Iterator[Job]:
    """Every point of the lambda / beta grid, Full first."""
    for name in ("tier_full", "tier_reg"):
        for lam, beta, e in preset.grid(name, preset.seeds[0]):
            yield f"{name} lambda {lam:g} beta {beta:g}", "report", e


def jobs(preset: Preset) -> list[Job]:
    """All that the demo store holds, in the order of its worth."""
    return [*headline(preset), *grid(preset)]


def export(work: Store, target: Store, preset: Preset) -> Iterator[str]:
    """Copy the demo's results from a working store, heavy files left out; yields a line for each change.

    Headline runs of the first seed keep weights (as 16-bit floats) and per-image results; the other seeds keep what
    intervals need; grid points keep metrics, events, the KL profile and mean curves. A result that the target has is
    not written again.
    """
    done: set[tuple[str, str]] = set()
    first = {experiment.key("train", preset.run(d, preset.seeds[0])) for d in preset.defenses}
    wanted = [(e, stage, True) for _, stage, e in headline(preset)] + [(e, s, False) for _, s, e in grid(preset)]
    for e, stage, is_headline in wanted:
        seed_one = experiment.key("train", e) in first
        for part in (
            ("split", "train", "trajectory", "divergence", "audit", "report") if stage == "report" else (stage,)
        ):
            found = experiment.find(work, part, e)
            if found is None or (part, found.key) in done:
                continue
            done.add((part, found.key))
            omit = () if seed_one else (_PER_IMAGE if is_headline else _HEAVY).get(part, ())
            if target.find(part, found.key) is None:
                _copy(found, target, omit, halve=seed_one and part == "train")
                yield f"wrote {part} {found.key[:12]}"
    for old in target.ls():
        if (old.stage, old.key) not in done:
            target.discard(old.stage, old.key)
            yield f"removed {old.stage} {old.key[:12]}, which no preset asks for"


def _copy(found: Result, target: Store, omit: tuple[str, ...], halve: bool) -> None:
    if not halve:
        found.store.export(found.stage, found.key, target, omit)
        return
    weights = {
        name: array.astype(np.float16) if array.dtype == np.float32 else array
        for name, array in found.arrays("weights.safetensors").items()
    }
    files = {name: found.frame(name) for name in found.files if name.endswith(".parquet")}
    record = {name: value for name, value in found.record.items() if name not in ("files", "omitted")}
    target.write(found.stage, found.key, {**files, "weights_fp16.safetensors": weights}, record)
