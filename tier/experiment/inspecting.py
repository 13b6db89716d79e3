"""Stages `gallery`, `inspect` and `verdict`: what is shown of single images."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier import gallery, uploads
from tier.config import EXPLAINER_SETTINGS, Experiment, Explain, ExplainerName
from tier.context import Context
from tier.experiment import auditing, explaining, inputs
from tier.experiment.runs import GALLERY, evaluated, model_of, undefended
from tier.experiment.stages import Files, ensure
from tier.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

FAMILY_HEADS: tuple[ExplainerName, ...] = tuple(dict.fromkeys(Explain(name=n).family[0] for n in EXPLAINER_SETTINGS))


def compute_gallery(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What pages show of the first images of either group: maps, removal steps, curves."""
    from tier import runtime

    of = evaluated(store, e, context)
    paths = ensure(store, "trajectory", e, context, ["samples.parquet"]).frame("samples.parquet")
    rows = of.first(GALLERY)
    with runtime.session(e.train.threads):
        maps = explaining.attributions(store, e, of, context)[rows]
        frame, _ = _looks(e, of.model, of.images[rows], of.labels[rows], maps)
        layer = explaining.cam_layer(e, of)
    curves = paths.iloc[rows].reset_index(drop=True)
    frame = pd.concat([curves[["index", "member"]], frame, curves.drop(columns=["index", "member"])], axis=1)
    metrics = {"height": maps.shape[1], "width": maps.shape[2], "cam_layer": layer}
    return {"gallery.parquet": frame}, metrics | {"degenerate_maps": int(gallery.degenerate(maps).sum())}


def _looks(
    e: Experiment, model: "nn.Module", images: "Tensor", labels: "Tensor", maps: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray]:
    """Predictions, maps and removal steps of a few images as columns, and the log probabilities `(N, K)`."""
    import torch

    from tier import explainers, runtime, trajectories

    where = runtime.device()
    x, y = runtime.as_pixels(images.to(where)), labels.to(where)
    target = explainers.explained_class(model, x, y, e.explain)
    steps = trajectories.removal_steps(torch.from_numpy(maps).to(where), x, e.trajectory)
    with torch.inference_mode():
        log_p = model(x).double().log_softmax(1).cpu().numpy()
    columns = {"label": labels.numpy(), "predicted": log_p.argmax(1), "confidence": np.exp(log_p.max(1))}
    columns |= {"target": target.cpu().numpy()}
    frame = pd.DataFrame(columns).astype({"confidence": np.float32})
    coded = gallery.encode(maps, {order: step.cpu().numpy() for order, step in steps.items()})
    return frame.assign(**coded), log_p


def compute_inspect(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """One image under every explainer at its default settings, with its curves."""
    import torch

    from tier import explainers, runtime, trajectories

    pixels, member, label = _inspected(store, e, context)
    model = model_of(store, e, context)
    image, y = torch.from_numpy(pixels[None]), torch.tensor([label])
    frames, gaps = [], {}
    step = context.step("explaining the image")
    with runtime.session(e.train.threads):
        for family in FAMILY_HEADS:
            view = e.with_(explain=Explain(name=family))
            found = explainers.attributions(view.explain, model, image, y)
            gaps[family] = explainers.mean_gap(view.explain, model, image, found)
            for name, maps in found.maps.items():
                frame, log_p = _looks(view, model, image, y, maps)
                paths = trajectories.trajectories(model, image, y, maps, e.trajectory)
                for order, names in gallery.columns(len(e.trajectory.levels)).items():
                    values = getattr(paths, order)[0].astype(np.float32)
                    frame = frame.assign(**dict(zip(names, values, strict=True)))
                frames.append(frame.assign(explainer=name))
            step(len(frames) / len(EXPLAINER_SETTINGS))
        layer = explainers.default_layer(model, runtime.as_pixels(image.to(runtime.device())))
    table = pd.concat(frames, ignore_index=True).assign(index=-1 if e.inspect.row is None else e.inspect.row)
    table["member"] = pd.array([member] * len(table), dtype="boolean")
    first = table.iloc[0]
    metrics = {
        "label": label,
        "predicted": int(first["predicted"]),
        "confidence": float(first["confidence"]),
        "probabilities": np.exp(log_p[0]).tolist(),
        "loss": float(-log_p[0, label]),
        "height": pixels.shape[1],
        "width": pixels.shape[2],
        "cam_layer": layer,
        "completeness_gap": gaps["integrated_gradients"],
    }
    return {"inspect.parquet": table}, metrics


def _inspected(store: Store, e: Experiment, context: Context) -> tuple[np.ndarray, bool | None, int]:
    """The image asked for: pixels `(3, H, W)` uint8, whether it is a member (None: neither), the class explained.

    Raises ValueError when the row is none of the target's, the upload is no longer kept or has another size than the
    model's images, and when there is no such class.
    """
    asked = e.inspect
    if (asked.row is None) == (asked.upload is None):
        raise ValueError("inspect one image: either a row of the data set or an upload")
    if asked.row is not None:
        problem, rows = inputs.model_sets(e.data, e.split)
        found = np.flatnonzero(rows == asked.row)
        if not len(found):
            raise ValueError(
                f"row {asked.row} is neither a member nor a non-member of the target; choose another image"
            )
        images, labels, member = inputs.joined(problem)
        place = int(found[0])
        label = int(labels[place]) if asked.label is None else _known_class(asked.label, problem.classes)
        return images[place].numpy().copy(), bool(member[place]), label
    pixels, side = uploads.read(store, str(asked.upload)), e.data.image_size
    if pixels.shape[1:] != (side, side):
        size = f"{pixels.shape[1]} x {pixels.shape[2]}"
        raise ValueError(f"the uploaded image has {size} pixels, the model sees {side} x {side}: upload it again")
    if asked.label is None:
        return pixels, None, _predicted(store, undefended(e), pixels, context)
    classes = ensure(store, "train", e, context).metrics["classes"]
    return pixels, None, _known_class(asked.label, classes)


def _known_class(label: int, classes: int) -> int:
    if label >= classes:
        raise ValueError(f"inspect.label is {label}, but the model knows the classes 0 to {classes - 1} only")
    return label


def _predicted(store: Store, e: Experiment, pixels: np.ndarray, context: Context) -> int:
    """The class that a model sees in one image `(3, H, W)`."""
    import torch

    from tier import runtime

    model = model_of(store, e, context)
    with runtime.session(e.train.threads), torch.inference_mode():
        return int(model(runtime.as_pixels(torch.from_numpy(pixels[None]).to(runtime.device()))).argmax(1))


def judged(e: Experiment) -> bool:
    """Whether the undefended model says which class of the image is explained."""
    return e.inspect.upload is not None and e.inspect.label is None


def while_kept(store: Store, e: Experiment) -> str | None:
    """Until when a result of an uploaded image is kept: as long as the image."""
    return None if e.inspect.upload is None else uploads.expiry(store, e.inspect.upload)


def compute_verdict(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """What the audit's classifiers think of an uploaded image, and which share of their own scores lies below.

    Raises ValueError for an image of the data set, which some of them have seen, and for settings of the explainer
    other than those at which `inspect` explains.
    """
    from tier.attacks import agp

    if e.inspect.upload is None:
        raise ValueError(
            "a verdict is for an uploaded image: classifiers of the audit were trained on those of the data set; their "
            "cross-fitted scores are in scores.parquet of the stage audit"
        )
    if e.explain != Explain(name=e.explain.name):
        raise ValueError(
            f"single images are explained at the default settings of {e.explain.name}, and this audit uses others: set "
            "all of explain but its name back to the defaults"
        )
    seen = ensure(store, "inspect", e, context)
    table = seen.frame("inspect.parquet")
    new = agp.Features(
        *auditing.paths_in(table[table["explainer"] == e.explain.name], e),
        np.array([seen.metrics["loss"]]),
        np.array([seen.metrics["predicted"]]),
        ensure(store, "train", e, context).metrics["classes"],
    )
    context.step("asking the audit")(0.0)
    features, table = auditing.features_of(store, e, context)
    scores = agp.score_new(features, table["member"].to_numpy(bool), e.audit, new)[0]
    own = ensure(store, "audit", e, context, ["scores.parquet"]).frame("scores.parquet")
    return {}, {"score": float(scores.mean()), "folds": scores.tolist(), **_below(own, scores)}


def _below(own: pd.DataFrame, scores: np.ndarray) -> dict[str, float]:
    """Shares of members and of non-members with a lower score than a new image, whose score per fold is given.

    Each classifier's score is compared with those that it gave itself, and the shares are averaged: among scores of
    single classifiers the mean of several would always stand nearer to the middle.
    """
    from tier.stats import share_below

    member, fold, known = (own[name].to_numpy() for name in ("member", "fold", "score"))
    groups = {"members_below": member.astype(bool), "nonmembers_below": ~member.astype(bool)}
    return {
        name: float(np.mean([share_below(known[group & (fold == i)], score) for i, score in enumerate(scores)]))
        for name, group in groups.items()
    }
