"""Stage `battery`: every attack of a sceptic, with the shadow and the reference models that they need."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier.config import Experiment
from tier.context import Context
from tier.experiment import attacking, explaining, inputs
from tier.experiment.runs import evaluated, model_of, reference, shadow
from tier.experiment.stages import Files, ensure
from tier.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from tier.attacks import battery


def referees(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What the battery reads of other runs: a shadow with the same defense, its maps, and the reference models."""
    own = shadow(e, adaptive=True)
    found = {"shadow": ("train", own), **explaining.read_maps(e)}
    found |= {f"shadow {name}": of for name, of in explaining.read_maps(own).items()}
    return found | {f"reference {r}": ("train", reference(e, r)) for r in range(e.battery.references)}


def compute_battery(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """Every attack of a sceptic on the target, with signs, classifiers and thresholds found elsewhere (SPEC 8)."""
    from tier.attacks import ATTACKS, battery, lira
    from tier.metrics import report, vulnerable_decile

    (target, rows), (theirs, known) = (_signals(store, run, context) for run in (e, shadow(e, adaptive=True)))
    member, shadow_member = rows["member"].to_numpy(bool), known["member"].to_numpy(bool)
    target, theirs = _with_references(store, e, target, theirs, rows["index"].to_numpy(), ~shadow_member, context)
    train, test = attacking.attack_rows(e, known["index"].to_numpy())  # those of the attack with trajectories
    of = e.battery
    settings = battery.Settings(e.audit, of.variance, of.enough, of.mode, of.gamma, of.a)
    exposure = lira.exposure(*target.need("reference_phi", "reference_in"))
    frame = rows[["index", "member", "label"]].assign(exposure=exposure)
    output = of.output if e.explain.name == "gradient" else None
    metrics: dict[str, Any] = {"vulnerable_decile": {}, "canaries": {}, "output": output, "queries": _queries(e)}
    metrics["notes"] = _size_notes(member, shadow_member, target.need("reference_in")[0])
    canary = attacking.canaries(e, rows["index"].to_numpy())
    for name in (name for name in ATTACKS if name != "agp"):
        context.step(f"attacking ({name})")(0.0)
        found = battery.score(name, target, theirs, shadow_member, train, settings)
        frame[name] = found.scores
        metrics[name] = battery.leaf(found, member, shadow_member, test)
        if name.startswith("attribution"):
            metrics[name]["output"] = output
        metrics["vulnerable_decile"][name] = vulnerable_decile(found.scores, member, exposure, found.threshold)
        if canary.any():
            groups = found.scores[canary & member], found.scores[canary & ~member]
            metrics["canaries"][name] = report(*groups, found.threshold)
    return {"scores.parquet": frame}, metrics


def _size_notes(member: np.ndarray, shadow_member: np.ndarray, reference_in: np.ndarray) -> list[str]:
    """What is unlike between the target's training set and those of the models that attackers compare it with."""
    own = int(member.sum())
    others = {"the shadow": int(shadow_member.sum()), "each reference model": int(reference_in[0].sum())}
    cures = {
        "the shadow": "split.shadow_train equal to split.target_train",
        "each reference model": "split.target_test equal to split.target_train",
    }
    return [
        f"{who} is trained on {size:,} images and the target on {own:,}: confidences differ for that reason too, and "
        f"attacks that compare them lose; set {cures[who]}"
        for who, size in others.items()
        if abs(size - own) > 1
    ]


def _signals(store: Store, e: Experiment, context: Context) -> tuple["battery.Signals", pd.DataFrame]:
    """What can be measured on a model's own members and non-members, and their rows of train/samples.parquet.

    Raises ValueError when the model's outputs are not finite.
    """
    from tier import runtime, signals
    from tier.attacks import attribution, battery

    of = evaluated(store, e, context)
    trained = ensure(store, "train", e, context, ["samples.parquet"])
    rows = trained.frame("samples.parquet")
    data = of.model, of.images, of.labels
    with runtime.session(e.train.threads):
        said = _finite(signals.log_probabilities(of.model, of.images))
        if e.explain.name == "gradient":
            step = context.step("measuring the output's gradient")
            explained = signals.gradient_statistics(*data, e.battery.output, e.explain, progress=step)
        else:
            explained = attribution.log_statistics(explaining.attributions(store, e, of, context))
        step = context.step("measuring the loss's gradient")
        measured = battery.Signals(
            label=rows["label"].to_numpy(np.int64),
            predicted=rows["predicted"].to_numpy(np.int64),
            classes=trained.metrics["classes"],
            loss=np.logaddexp(0.0, -signals.log_odds(*data)),  # the stored one is rounded to 0 for certain predictions
            log_probabilities=said,
            explanation=explained,
            log_gradient_norm=signals.gradient_statistics(*data, "loss", progress=step)["l2"],
        )
    return measured, rows


def _finite(outputs: np.ndarray) -> np.ndarray:
    """What a model says, as it is. Raises ValueError where that is not finite."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model's outputs are not finite; did its training diverge? train it again with a smaller learning rate"
        )
    return outputs


def _with_references(
    store: Store,
    e: Experiment,
    target: "battery.Signals",
    theirs: "battery.Signals",
    rows: np.ndarray,
    outside: np.ndarray,
    context: Context,
) -> tuple["battery.Signals", "battery.Signals"]:
    """The signals of target and shadow with what they and the reference models say of both their images.

    `outside` `(M,)`: the shadow's non-members, which no model has seen. Of either image of the target half of the
    references have seen it, of the shadow's none; so the shadow is compared with one of each complementary pair.
    Raises ValueError when a model's outputs are not finite.
    """
    from tier import runtime, signals

    own = shadow(e, adaptive=True)
    runs = [reference(e, number) for number in range(e.battery.references)]
    asked = [inputs.joined(inputs.model_sets(run.data, run.split)[0])[:2] for run in (e, own)]
    said: list[list[np.ndarray]] = [[], []]
    step = context.step("asking the reference models")
    with runtime.session(e.train.threads):
        for run in (e, own, *runs):
            model = model_of(store, run, context)
            for kept, images in zip(said, asked, strict=True):
                kept.append(_finite(signals.log_odds(model, *images, _queries(e), _view(e))))
            step(len(said[0]) / (len(runs) + 2))
    tables = [ensure(store, "train", run, context, ["samples.parquet"]).frame("samples.parquet") for run in runs]
    inside = np.stack([table.set_index("index").loc[rows, "member"].to_numpy(bool) for table in tables])
    models, others = np.stack(said[0]), np.stack(said[1])  # (2 + R, N) and (2 + R, M): target, shadow, references
    half = others[2::2]
    return (
        replace(
            target, phi=models[0], reference_phi=models[2:], reference_in=inside, population_phi=others[0, outside],
            population_reference_phi=others[2:, outside],
        ),
        replace(
            theirs, phi=others[1], reference_phi=half, reference_in=np.zeros(half.shape, bool),
            population_phi=others[1, outside], population_reference_phi=half[:, outside],
        ),
    )  # fmt: skip


def _queries(e: Experiment) -> int:
    """How many views of an image are asked about: models trained without T do not remember any but the image."""
    return e.battery.queries if e.defense.augments else 1


def _view(e: Experiment) -> Callable[["Tensor", int, int], "Tensor"]:
    """A view under T of a batch of images, the same for every model: it depends on query, batch and seed only."""
    from tier import runtime
    from tier.defenses.augmentation import augment

    def view(pixels: "Tensor", query: int, batch: int) -> "Tensor":
        return augment(pixels, e.defense.augmentation, runtime.generator("queries", e.battery.seed, query, batch))

    return view
