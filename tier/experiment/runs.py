"""The experiments that belong to another (undefended, shadow, reference models, parts) and their trained models."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tier.config import Experiment
from tier.context import Context
from tier.experiment import inputs
from tier.experiment.stages import ensure
from tier.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

GALLERY = 64  # members, and as many non-members, whose maps are kept for viewing
SHADOW_SEED = 2000  # added to the target's training seed
REFERENCE_SEED = 1000  # added to a reference model's number, away from the seeds of targets
WEIGHTS = "weights.safetensors"


def model_of(store: Store, experiment: Experiment, context: Context = Context()) -> "nn.Module":
    """The served model with its exact weights, in evaluation mode; trained again where they are not stored."""
    import torch

    from tier import runtime

    trained = ensure(store, "train", experiment, context, [WEIGHTS])
    model = blank(experiment, trained.metrics["classes"])
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in trained.arrays(WEIGHTS).items()})
    return model.to(runtime.device()).to(memory_format=torch.channels_last).eval()


def blank(e: Experiment, classes: int) -> "nn.Module":
    """The served model of an experiment, its weights still to be loaded; pixels' mean and spread are among them."""
    import torch

    from tier import defenses, models

    defense = defenses.build(e.canonical().defense)
    return defense.serve(lambda: models.build(e.net, classes, torch.zeros(3), torch.ones(3)), classes)


def undefended(e: Experiment, seed: int | None = None) -> Experiment:
    """The same experiment without any defense, with the same training seed or another."""
    train = e.train if seed is None else e.train.model_copy(update={"seed": seed})
    return e.with_(defense=e.defense.bare, train=train)


def shadow(e: Experiment, adaptive: bool) -> Experiment:
    """The attacker's own model, trained on the shadow half: undefended, or (adaptive) with the target's defense.

    Its start weights and batch order are not the target's, which an attacker does not know.
    """
    train = e.train.model_copy(update={"seed": SHADOW_SEED + e.train.seed})
    split = e.split.model_copy(update={"role": "shadow"})
    return e.with_(split=split, defense=e.defense if adaptive else e.defense.bare, train=train)


def reference(e: Experiment, number: int) -> Experiment:
    """Reference model `number`, trained with the target's defense on a random half of the target's images.

    Its training seed depends on the number only, so that targets of every seed share their reference models.
    """
    split = e.split.model_copy(update={"role": "reference", "reference": number})
    return e.with_(split=split, train=e.train.model_copy(update={"seed": REFERENCE_SEED + number}))


def sources(e: Experiment) -> dict[str, Experiment]:
    """The models that a defense of several models is made from, by name; none for the others.

    MemGuard guards the plainly trained model, a student has it as teacher. With parts, an ensemble's models are trained
    on one each, a student's teachers on all but one each.
    """
    plain = e.with_(defense=e.defense.plain)
    made_of_many = e.defense.name in ("distillation", "ensemble_partition") and e.defense.acts()
    if made_of_many and e.split.parts > 1:
        raise ValueError(
            f"'{e.defense.name}' deals the members into parts itself: set split.parts back to 1, and the number of "
            f"parts with defense.{e.defense.name}.parts"
        )
    match e.defense.name:
        case "memguard":
            return {"guarded": plain}
        case "distillation":
            parts = e.defense.distillation.parts
        case "ensemble_partition":
            parts = e.defense.ensemble_partition.parts
        case _:
            return {}
    if parts == 1:
        return {"teacher": plain}
    own = {"parts": parts, "left_out": e.defense.name == "distillation"}
    split = {number: e.split.model_copy(update={**own, "part": number}) for number in range(parts)}
    return {f"part {number}": plain.with_(split=of) for number, of in split.items()}


@dataclass(frozen=True)
class Evaluated:
    """A trained model with its members and non-members, in this order."""

    model: "nn.Module"
    images: "Tensor"
    labels: "Tensor"
    member: np.ndarray  # (N,) bool
    rows: np.ndarray  # (N,) rows of the data set

    def first(self, count: int | None) -> np.ndarray:
        """Places of the first `count` members and non-members, or of all."""
        if count is None:
            return np.arange(len(self.member))
        return np.concatenate([np.flatnonzero(self.member)[:count], np.flatnonzero(~self.member)[:count]])


def evaluated(store: Store, e: Experiment, context: Context) -> Evaluated:
    """An experiment's trained model with all images that it is judged on."""
    problem, rows = inputs.model_sets(e.data, e.split)
    images, labels, member = inputs.joined(problem)
    return Evaluated(model_of(store, e, context), images, labels, member, rows)
