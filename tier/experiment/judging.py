"""Stages `fidelity`, `probes` and `quality`: two models' maps compared, and one's judged."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import gallery
from tier.config import Experiment
from tier.context import Context
from tier.experiment import inputs
from tier.experiment.explaining import MAPS
from tier.experiment.runs import evaluated, undefended
from tier.experiment.stages import Files, ensure
from tier.store import Store

if TYPE_CHECKING:
    from tier.quality import Subjects

_MODELS = ("reference", "second_seed")


def compute_fidelity(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The defended model's maps beside the undefended one's, and beside what chance would give (SPEC 7)."""
    from tier import fidelity

    name, runs = e.explain.name, {"own": e, **{n: other for n, (_, other) in compared(e).items() if n in _MODELS}}
    held = {n: ensure(store, "maps", run, context, [MAPS]).arrays(MAPS) for n, run in runs.items()}
    samples = {n: ensure(store, "train", runs[n], context, ["samples.parquet"]) for n in ("own", "reference")}
    tables = {n: result.frame("samples.parquet") for n, result in samples.items()}
    member = held["own"]["member"].astype(bool)
    kept = e.fidelity.images
    rows = np.concatenate([np.flatnonzero(member)[:kept], np.flatnonzero(~member)[:kept]])
    agree = {n: (held[n]["target"] == held["reference"]["target"])[rows] for n in ("own", "second_seed")}
    maps = {n: arrays[name][rows] for n, arrays in held.items()}
    context.step("comparing maps")(0.0)
    scores = fidelity.table(
        maps["own"], maps["reference"], maps["second_seed"], agree["own"], e.fidelity.shuffle, agree["second_seed"]
    )
    right = [(table["predicted"] == table["label"]).to_numpy()[rows] for table in tables.values()]
    frame = tables["own"].iloc[rows][["index", "member", "label"]].reset_index(drop=True)
    frame = frame.assign(correct=right[0] & right[1], agree=agree["own"])
    frame = pd.concat([frame, scores], axis=1)
    flat = {n: int(gallery.degenerate(values).sum()) for n, values in maps.items()}
    means = {str(column): _mean_or_none(frame[column]) for column in scores}
    return {"scores.parquet": frame}, means | {"degenerate_maps": flat, "images": len(rows)}


def _mean_or_none(values: pd.Series) -> float | None:
    return float(values.mean()) if values.notna().any() else None


def compared(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What fidelity reads of other runs: two undefended models of different seeds. Raises ValueError for equal ones."""
    second = e.fidelity.second_seed
    if second == e.train.seed:
        raise ValueError(
            f"fidelity.second_seed is {second}, the training seed: the control would be the reference itself; choose "
            "another, or none for the one after it"
        )
    reference = undefended(e)
    control = undefended(e, e.train.seed + 1 if second is None else second)
    return {
        "reference": ("maps", reference),
        "second_seed": ("maps", control),
        "reference train": ("train", reference),
    }


def compute_probes(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What `quality` needs of a model whatever the explainer: answers to random removals, the controls' scores."""
    from tier import quality, runtime

    of, frame, _ = _subjects(store, e, context)
    with runtime.session(e.train.threads):
        made = quality.probe(of, e.quality, context.step("removing pixels at random"))
        kind = quality.inference_of(of.model, e.quality)
    means = {name: quality.mean_or_none(values) for name, values in made.controls.items()}
    scores = pd.concat([frame, pd.DataFrame(made.controls, dtype=np.float32)], axis=1)
    files = {"fallen.safetensors": {"fallen": made.fallen.astype(np.float32)}, "scores.parquet": scores}
    return files, means | {"sweeps": made.sweeps, "notes": made.notes, "inference": kind, "images": len(frame)}


def compute_quality(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """How faithful maps are to the model and whether they point at the object, beside the controls (SPEC 7)."""
    from tier import quality, runtime

    of, frame, places = _subjects(store, e, context)
    probes = ensure(store, "probes", e, context, ["fallen.safetensors", "scores.parquet"])
    maps = ensure(store, "maps", e, context, [MAPS]).arrays(MAPS)[e.explain.name][places]
    fallen = probes.arrays("fallen.safetensors")["fallen"]
    with runtime.session(e.train.threads):
        found, notes = quality.measure(of, maps, fallen, e.quality, context.step("removing pixels by the map"))
    controls = probes.frame("scores.parquet").drop(columns=[*frame, *quality.TWICE], errors="ignore")
    beside, permuted = quality.dependence(of, maps, e.quality, frame["member"].to_numpy(bool))
    metrics: dict[str, Any] = {name: quality.mean_or_none(values) for name, values in found.items()}
    metrics |= {str(name): probes.metrics[str(name)] for name in controls} | {
        "sweeps": {"map": quality.sweep(maps, of.predicted, e.quality), **probes.metrics["sweeps"]},
        "chance": float(quality.chance(of.predicted).mean()),
        "notes": notes + probes.metrics["notes"],
        "permutation": permuted,
        "refused": {} if of.masks is not None else dict.fromkeys(quality.LOCALISED, quality.NO_MASKS),
        "degenerate_maps": int(gallery.degenerate(maps).sum()),
        "images": len(frame),
        "inference": probes.metrics["inference"],
    }
    own = pd.DataFrame(found | beside, dtype=np.float32)
    return {"scores.parquet": pd.concat([frame, own, controls], axis=1)}, metrics


def _subjects(store: Store, e: Experiment, context: Context) -> tuple["Subjects", pd.DataFrame, np.ndarray]:
    """The images that maps are judged on, their rows as a table, and their places among the model's images."""
    import torch

    from tier import quality

    of, masks = evaluated(store, e, context), inputs.dataset(e.data).masks
    places = of.first(e.quality.images)
    table = ensure(store, "train", e, context, ["samples.parquet"]).frame("samples.parquet").iloc[places]
    explained = torch.from_numpy(table[e.explain.target].to_numpy(np.int64, copy=True))
    rows = of.rows[places]
    subjects = quality.Subjects(
        of.model, of.images[places], explained, table["predicted"].to_numpy(np.int64), rows,
        None if masks is None else masks[rows],
    )  # fmt: skip
    frame = table[["index", "member", "label"]].reset_index(drop=True)
    return subjects, frame.assign(correct=(table["predicted"] == table["label"]).to_numpy()), places
