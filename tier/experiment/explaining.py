"""Stages `maps`, `trajectory`, `inference` and `divergence`: what is measured of a model along its explanations."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import gallery
from tier.config import EXPLAINER_SETTINGS, Audit, Experiment, Explain, Trajectory
from tier.context import Context
from tier.environment import cpu_model
from tier.experiment.runs import Evaluated, evaluated
from tier.experiment.stages import Files, ensure
from tier.store import Store

if TYPE_CHECKING:
    from tier.trajectories import Trajectories

CHEAP = ("gradient", "gradcam", "gradcampp")  # explainers of one pass, which most stages make anew
MEASURED = 300  # members, and as many non-members, on which the kinds of inference are compared
MAPS = "maps.safetensors"


def compute_maps(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Maps of the explainer and of all that the same passes give."""
    from tier import explainers, runtime

    of = evaluated(store, e, context)
    with runtime.session(e.train.threads):
        made = explainers.attributions(
            e.explain, of.model, of.images, of.labels, progress=context.step(f"explaining ({e.explain.name})")
        )
        gap = explainers.mean_gap(e.explain, of.model, of.images, made)
    place = {"index": of.rows, "member": of.member.astype(np.uint8), "target": made.target}
    flat = {name: int(gallery.degenerate(maps).sum()) for name, maps in made.maps.items()}
    metrics = {"degenerate_maps": flat, "images": len(of.rows)}
    return {MAPS: made.maps | place}, metrics | ({} if gap is None else {"completeness_gap": gap})


def attributions(store: Store, e: Experiment, of: Evaluated, context: Context) -> np.ndarray:
    """The maps `(N, H, W)` of the experiment's explainer: made anew where that is cheap, else read from `maps`."""
    from tier import explainers

    if e.explain.name in CHEAP:
        step = context.step("explaining")
        return explainers.attributions(e.explain, of.model, of.images, of.labels, progress=step).maps[e.explain.name]
    return ensure(store, "maps", e, context, [MAPS]).arrays(MAPS)[e.explain.name]


def read_maps(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """The `maps` that a stage reads, if it does."""
    return {} if e.explain.name in CHEAP else {"maps": ("maps", e)}


def cam_layer(e: Experiment, of: Evaluated) -> str | None:
    """The layer that a class activation map comes from; None for other explainers."""
    from tier import explainers, runtime

    if "cam_layer" not in EXPLAINER_SETTINGS[e.explain.name]:
        return None
    first = runtime.as_pixels(of.images[:1].to(runtime.device()))
    return e.explain.cam_layer or explainers.default_layer(of.model, first)


def compute_trajectory(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Log confidences of each image along MoRF and LeRF, and the curves of members and of non-members."""
    from tier import runtime, trajectories

    of = evaluated(store, e, context)
    rows = of.first(e.trajectory.images)
    member = of.member[rows]
    with runtime.session(e.train.threads):
        maps = attributions(store, e, of, context)[rows]
        step = context.step("following trajectories")
        paths = trajectories.trajectories(of.model, of.images[rows], of.labels[rows], maps, e.trajectory, progress=step)
        layer = cam_layer(e, of)
    samples = {"index": of.rows[rows], "member": member}
    for order, names in gallery.columns(len(e.trajectory.levels)).items():
        samples |= dict(zip(names, getattr(paths, order).T.astype(np.float32), strict=True))
    files = {
        "samples.parquet": pd.DataFrame(samples),
        "curves.parquet": trajectories.curves(paths, member, e.trajectory.levels),
        "difference.parquet": trajectories.differences(paths, member, e.trajectory.levels),
    }
    flat = int(gallery.degenerate(maps).sum())
    return files, {"degenerate_maps": flat, "cam_layer": layer, "images": len(rows)}


def compute_inference(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Speed and error of each kind of inference on the run's own model, and the kind to be used.

    The errors are changes against fp32 of confidences along the gradient's paths under the mean operator, and of the
    cross-fitted audit that learns from these paths.
    """
    from tier import explainers, inference, runtime, trajectories

    of = evaluated(store, e, context)
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    rows = of.first(MEASURED)
    images, labels, member = of.images[rows], of.labels[rows], of.member[rows]
    table = trained.frame("samples.parquet").iloc[rows]
    step, paths = context.step("measuring inference"), {}
    step(0.0)
    with runtime.session(e.train.threads):
        maps = explainers.attributions(Explain(), of.model, images, labels).maps["gradient"]
        batch = runtime.as_pixels(images[: inference.TIMED].to(runtime.device()))
        kinds = inference.usable(of.model)
        speed = inference.images_per_second(of.model, batch, kinds)
        for kind in kinds:
            paths[kind] = trajectories.trajectories(of.model, images, labels, maps, Trajectory(inference=kind))
            step(len(paths) / len(kinds))
    plain = paths["fp32"]
    change = {kind: _largest_change(made, plain) for kind, made in paths.items()}
    auc = {kind: _audit_auc(made, table, member, trained.metrics["classes"]) for kind, made in paths.items()}
    shift = {kind: value - auc["fp32"] for kind, value in auc.items()}
    return {}, {
        "chosen": inference.choose(speed, change, shift),
        "images_per_second": speed,
        "largest_confidence_change": change,
        "audit_auc_change": shift,
        "images": len(rows),
        "cpu": cpu_model(),
    }


def _largest_change(paths: "Trajectories", plain: "Trajectories") -> float:
    """The largest difference of a confidence, not of its logarithm, anywhere along the same paths."""
    both = ((getattr(paths, order), getattr(plain, order)) for order in gallery.ORDERS)
    return max(float(np.abs(np.exp(made) - np.exp(known)).max()) for made, known in both)


def _audit_auc(paths: "Trajectories", table: pd.DataFrame, member: np.ndarray, classes: int) -> float:
    """The AUC of a cross-fitted audit at its default settings, `table` being the images' rows of samples.parquet."""
    from tier.attacks import agp
    from tier.metrics import auc

    seen = agp.Features(
        paths.morf.astype(np.float32), paths.lerf.astype(np.float32),  # as they are stored
        table["loss"].to_numpy(np.float64), table["predicted"].to_numpy(np.int64), classes,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=agp.NOTHING_SEPARATES)  # the run's own audit says so
        scores = agp.audit(seen, member, Audit()).crossfit
    return auc(scores[member], scores[~member])


def compute_divergence(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """How far each image's prediction moves when the top pixels of its map are filled, and the profile of that."""
    from tier import divergence, explainers, runtime

    of = evaluated(store, e, context)
    with runtime.session(e.train.threads):
        if e.explain.name == "gradient":  # the paper's profile, with a reduction of its own
            plain = Explain(channel_reduction=e.divergence.channel_reduction)
            maps = explainers.attributions(plain, of.model, of.images, of.labels).maps["gradient"]
        else:
            maps = attributions(store, e, of, context)
        values = divergence.divergences(of.model, of.images, maps, e.divergence, progress=context.step("measuring KL"))
    columns = {f"kl_{i}": column.astype(np.float32) for i, column in enumerate(values.T)}
    files = {
        "profile.parquet": divergence.profile(values, of.member, e.divergence),
        "samples.parquet": pd.DataFrame({"index": of.rows, "member": of.member, **columns}),
    }
    return files, {"images": len(of.rows), "profile_degenerate_maps": int(gallery.degenerate(maps).sum())}
