"""Stages `audit` and `path`: what a run gives away to the defender's own attack, at its end and at each epoch."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import gallery
from tier.config import Experiment
from tier.context import Context
from tier.experiment import inputs
from tier.experiment.runs import sources
from tier.experiment.stages import Files, ensure
from tier.experiment.training import loop
from tier.store import Store

if TYPE_CHECKING:
    from tier.attacks import agp
    from tier.training import State

PATH_CHECKPOINTS = 10


def compute_audit(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The owner's own attack on the run: a score per image, by classifiers that have not seen it, and their figures."""
    from tier.attacks import agp

    context.step("auditing")(0.0)
    features, table = features_of(store, e, context)
    member = table["member"].to_numpy(bool)
    scores = agp.audit(features, member, e.audit)
    frame = pd.DataFrame(
        {
            "index": table["index"],
            "member": member,
            "fold": scores.fold,
            "score": scores.crossfit,
            "holdout": scores.holdout,
        }
    )
    names = [name for of_order in gallery.columns(len(e.trajectory.levels)).values() for name in of_order]
    kept = [name for name, passed in zip(names, scores.kept, strict=True) if passed]
    metrics = agp.figures(scores, member) | {"features": kept}
    return {"scores.parquet": frame}, metrics


def features_of(store: Store, e: Experiment, context: Context) -> tuple["agp.Features", pd.DataFrame]:
    """What an attacker sees of the images whose paths were followed, and their rows of train/samples.parquet."""
    from tier.attacks import agp

    paths = ensure(store, "trajectory", e, context, ["samples.parquet"]).frame("samples.parquet")
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    table = trained.frame("samples.parquet").set_index("index", drop=False).loc[paths["index"]].reset_index(drop=True)
    features = agp.Features(
        *paths_in(paths, e),
        table["loss"].to_numpy(np.float64),
        table["predicted"].to_numpy(np.int64),
        trained.metrics["classes"],
        _groups(e, table["index"].to_numpy()),
    )
    return features, table


def _groups(e: Experiment, rows: np.ndarray) -> np.ndarray | None:
    """The groups of images that the audit keeps whole, by rows of the data set; None where it need not."""
    if not e.audit.whole_groups:
        return None
    groups = inputs.dataset(e.data).groups
    if groups is None:
        raise ValueError("audit.whole_groups is set, but these images have no groups: leave it false")
    return groups[rows]


def paths_in(frame: pd.DataFrame, e: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """The log confidences along MoRF and along LeRF in a stage's table, `(N, L)` float64 each."""
    names = gallery.columns(len(e.trajectory.levels))
    return frame[names["morf"]].to_numpy(np.float64), frame[names["lerf"]].to_numpy(np.float64)


def compute_path(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The run replayed: what it would have been worth, and leaked, had it stopped at each epoch (SPEC 6)."""
    from tier import defenses, explainers, training, trajectories
    from tier.attacks import agp

    problem, places = inputs.model_sets(e.data, e.split)
    images, labels, member = inputs.joined(problem)
    stops = {round(e.train.epochs * (i + 1) / PATH_CHECKPOINTS) for i in range(PATH_CHECKPOINTS)}
    rows: list[dict[str, Any]] = []

    def look(state: "State") -> None:
        row = {"epoch": state.epoch, **training.evaluate(state.model, problem)}
        if state.epoch in stops:
            state.model.eval()
            maps = explainers.attributions(e.explain, state.model, images, labels).maps[e.explain.name]
            paths = trajectories.trajectories(state.model, images, labels, maps, e.trajectory)
            table = training.sample_table(state.model, problem)
            features = agp.Features(
                paths.morf.astype(np.float32), paths.lerf.astype(np.float32), table["loss"], table["predicted"],
                problem.classes, _groups(e, places),
            )  # fmt: skip
            row |= agp.figures(agp.audit(features, member, e.audit), member)
        rows.append(row)
        context.step("replaying the run")(state.epoch / e.train.epochs)

    defense = defenses.build(e.defense)
    if defense.composed or sources(e):
        raise ValueError(f"'{e.defense.name}' is made from several models and has no early-stopping path")
    settings = defense.settings(e.train)
    hooks = training.Hooks(checkpoint=look, cancelled=context.cancelled)
    state = training.start(problem, e.net, settings)
    loop(problem, state, defense, e.with_(train=settings), hooks)
    return {"path.parquet": pd.DataFrame(rows)}, {"epochs": state.epoch}
