"""Every setting of an experiment, as frozen models, and the key under which a stage's result is stored.

A field that the paper leaves open is a field here, never a constant elsewhere; its comment names the section.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

DefenseName = Literal[
    "none", "augmentation", "tier_reg", "tier_full", "dpsgd_eps100", "dpsgd_tuned", "memguard", "early_stopping",
    "label_smoothing", "relaxloss", "confidence_penalty", "distillation", "ensemble_partition",
]  # fmt: skip
ExplainerName = Literal[
    "gradient", "smoothgrad", "vargrad", "gradcam", "gradcampp", "integrated_gradients", "shap", "lime"
]
ArchitectureName = Literal["small", "resnet18_cifar", "resnet18_imagenet", "mobilenet_v2"]
Fill = Literal["channel_mean", "scalar_mean", "zero"]
ChannelReduction = Literal["mean_abs", "abs_mean"]
Target = Literal["label", "predicted"]
OperatorName = Literal["mean", "zero", "blur", "road"]
InferenceKind = Literal["fp32", "folded", "bf16"]
Inference = Literal[InferenceKind, "auto"]  # auto: the fastest of them on the run's own model, measured once

MOST_LEVELS = 255  # the place at which a pixel goes is kept in 8 bits


def _rising_fractions(levels: tuple[float, ...]) -> tuple[float, ...]:
    if len(levels) > MOST_LEVELS:
        raise ValueError(f"at most {MOST_LEVELS} levels can be kept, not {len(levels)}")
    if not levels or any(not 0 <= level <= 1 for level in levels) or list(levels) != sorted(set(levels)):
        raise ValueError(
            f"levels are rising fractions of the pixels between 0 and 1, such as 0.05, 0.1, 0.2; not {levels}"
        )
    return levels


Levels = Annotated[tuple[float, ...], AfterValidator(_rising_fractions)]


class Config(BaseModel):
    """A frozen settings model that refuses unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True, allow_inf_nan=False
    )

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their default, nested, JSON-ready: what a key is made from."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class Signs(Config):
    """The procedural traffic signs (SPEC 1a)."""

    classes: int = Field(24, ge=2, le=24)
    images: int = Field(6000, ge=1)
    detail: float = Field(0.5, ge=0.0, le=1.0)  # 0: large redundant cues; 1: only fine glyphs tell the classes apart
    seed: int = Field(0, ge=0)


class Data(Config):
    """Where images come from. `source` is `signs`, a data set name, or a path to a class-per-folder tree or parquet."""

    source: str = "signs"
    image_size: int = Field(32, ge=8)
    limit: int | None = Field(None, ge=1)  # keep this many images, stratified by class
    without: str | None = None  # a further column of the data; images for which it is true are left out
    signs: Signs = Signs()
    fingerprint: str | None = None  # pinned by presets, so that results can be shown without the data


class Split(Config):
    """Sizes of the four disjoint sets (Table II) and how they are drawn."""

    target_train: int = Field(1500, ge=1)
    target_test: int = Field(1500, ge=1)
    shadow_train: int = Field(1500, ge=0)
    shadow_test: int = Field(1500, ge=0)
    group_disjoint: bool = False  # no group (a GTSRB track) in two sets
    seed: int = Field(0, ge=0)
    # whose training images: those of the target, of the attacker's shadow, or a random half of the target's members and
    # non-members together, on which reference models are trained (SPEC 5 and 8)
    role: Literal["target", "shadow", "reference"] = "target"
    reference: int = Field(0, ge=0)  # which half; 2k and 2k + 1 are complements
    canaries: int = Field(0, ge=0)  # target members, and as many non-members, whose label is exchanged for another
    parts: int = Field(1, ge=1)  # the members are dealt into so many parts, on one of which a sub-model is trained ...
    part: int = Field(0, ge=0)  # ... this one; all others of the model's images are then its non-members
    left_out: bool = False  # it is trained on all parts but this one instead

    @model_validator(mode="after")
    def _part_exists(self) -> "Split":
        if self.parts > 1 and self.part >= self.parts:
            raise ValueError(f"there is no part {self.part} of {self.parts}: they are counted from 0")
        return self

    def sets(self) -> "Split":
        """The settings that decide which image is in which of the four sets."""
        plain = Split()
        return self.model_copy(update={name: getattr(plain, name) for name in _OWN})

    def own(self) -> dict[str, Any]:
        """The settings that decide, given the four sets, what one model is trained on."""
        return {name: value for name, value in self.canonical().changed().items() if name in _OWN}

    def canonical(self) -> "Split":
        """The same training images with the settings that do not act at their default."""
        changes: dict[str, Any] = {} if self.role == "reference" else {"reference": 0}
        if self.role == "shadow":
            changes["canaries"] = 0
        if self.parts == 1:
            changes |= {"part": 0, "left_out": False}
        if self.parts == 2 and self.left_out:  # all but one of two is the other
            changes |= {"part": 1 - self.part, "left_out": False}
        return self.model_copy(update=changes)


_OWN = ("role", "reference", "canaries", "parts", "part", "left_out")


class Model(Config):
    """Architecture; `width` is the small net's first width."""

    architecture: ArchitectureName = "small"
    width: int = Field(24, ge=4)
    norm: Literal["batch", "group"] = "batch"  # DP-SGD needs group: a batch's statistics mix its images


class Augmentation(Config):
    """The semantic augmentation T (section V-E2); the paper gives no magnitudes."""

    flip: bool = True
    rotation: float = Field(15.0, ge=0.0, le=180.0)  # degrees, uniform in +-
    padding: int = Field(4, ge=0)  # pixels of the random crop's padding, at any image size


class Tier(Config):
    """The regularizer of Algorithm 1 and eq. 3, with its open points (SPEC 2)."""

    lambda_: float = Field(7.0, ge=0.0, alias="lambda")
    beta: float = Field(0.3, ge=0.0)
    levels: Levels = (0.05, 0.10, 0.20)
    warmup: int = Field(5, ge=0)
    confidence: Literal["logit", "probability"] = "logit"
    variance: Literal["batch", "levels"] = "batch"
    fill: Fill = "channel_mean"
    lambda_schedule: Literal["constant", "linear"] = "constant"
    ramp: int = Field(20, ge=1)  # epochs after the warm-up in which a linear schedule reaches lambda
    channel_reduction: ChannelReduction = "mean_abs"
    target: Target = "label"
    batchnorm: Literal["stacked", "per_level", "clean_statistics"] = "stacked"


class DpSgd(Config):
    """DP-SGD (Abadi et al. 2016): clipped per-image gradients and Gaussian noise, with Poisson-sampled batches."""

    epsilon: float | None = Field(100.0, gt=0.0)  # the budget for which the noise is found; None: `noise` is given
    noise: float | None = Field(None, ge=0.0)  # noise multiplier; the epsilon that it costs is then reported
    delta: float = Field(1e-5, gt=0.0, lt=1.0)
    clip: float = Field(1.0, gt=0.0)  # largest L2 norm of one image's gradient
    multiplicity: int = Field(1, ge=1)  # augmented copies of an image whose gradients are averaged (De et al. 2022)
    # how an image's gradient is clipped: held whole, or (ghost) weighted by its norm in a second backward pass, which
    # gives the same up to rounding, and with T up to which copies are drawn, and is faster on nets of many weights
    grad_sample_mode: Literal["hooks", "ghost"] = "hooks"
    batch_size: int | None = Field(None, ge=1)  # expected; None: the training's
    learning_rate: float | None = Field(None, gt=0.0)  # None: the training's
    optimizer: Literal["adamw", "sgd"] | None = None  # None: the training's
    momentum: float | None = Field(None, ge=0.0, lt=1.0)  # SGD only; None: the training's

    @model_validator(mode="after")
    def _one_of_both(self) -> "DpSgd":
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("DP-SGD takes epsilon, for which the noise is found, or noise: set the other to null")
        return self

    @model_validator(mode="after")
    def _can_average(self) -> "DpSgd":
        if self.grad_sample_mode == "ghost" and self.multiplicity > 1:
            raise ValueError(
                "defense.dpsgd.grad_sample_mode=ghost takes one copy of each image: set defense.dpsgd.multiplicity to "
                "1, or grad_sample_mode to hooks"
            )
        return self


class MemGuard(Config):
    """MemGuard (Jia et al. 2019): noise on the served confidences that keeps the predicted label."""

    distortion: float = Field(1.0, ge=0.0, le=2.0)  # most expected L1 distance of the served confidences; 0: off
    steps: int = Field(300, ge=1)  # of one search for noise, per answer
    # searches, each of which weighs the distortion ten times as much as the one before; measured on `signs`: three
    # save 1 % of the distortion and leak as much, in four times the time
    rounds: int = Field(1, ge=1)
    hidden: tuple[int, ...] = (64,)  # layers of the defender's own membership classifier; the paper has 256, 128, 64
    seed: int = Field(0, ge=0)


class EarlyStopping(Config):
    """Training that ends after a number of epochs; the learning rate's schedule is that of the whole run."""

    epochs: int = Field(10, ge=1)


class LabelSmoothing(Config):
    """Cross-entropy against softened labels (Szegedy et al. 2016)."""

    amount: float = Field(0.1, ge=0.0, lt=1.0)  # share of the target that all classes get alike; 0: off


class RelaxLoss(Config):
    """RelaxLoss (Chen et al. 2022): the training loss is held at a level instead of driven to 0."""

    alpha: float = Field(1.0, ge=0.0)  # that level; 0: off
    upper: float = Field(1.0, gt=0.0, le=1.0)  # most that a flattened posterior leaves the label
    # whose posteriors are flattened, of a batch below that level: of wrongly classified images, while all ascend (the
    # authors' code for images), or of all images, without ascent (Algorithm 1, their code for tables)
    flattens: Literal["wrong", "all"] = "wrong"


class ConfidencePenalty(Config):
    """A reward for the entropy of the predictions (Pereyra et al. 2017)."""

    weight: float = Field(0.1, ge=0.0)  # 0: off


class Distillation(Config):
    """A student that learns from a teacher's softened answers instead of from the labels."""

    temperature: float = Field(2.0, gt=0.0)
    weight: float = Field(1.0, ge=0.0, le=1.0)  # of the teacher's answers, the rest of the labels; 0: off
    # 1: one teacher of all members; more: as many teachers, each trained on all parts of the members but one, which it
    # teaches. On signs one teacher left a test accuracy of 0.68 and an audit of 0.80, two 0.40 and 0.55, four 0.48 and
    # 0.55
    parts: int = Field(4, ge=1)


class EnsemblePartition(Config):
    """Sub-models on disjoint parts of the members, whose standardised confidences are averaged (EPD)."""

    # 1: off. On signs the test accuracy and the audit were 0.49 and 0.82 with two, 0.45 and 0.80 with three, 0.37 and
    # 0.77 with five
    parts: int = Field(2, ge=1)
    standardize: bool = True


class Defense(Config):
    """Which defense trains the model, and with what strength."""

    name: DefenseName = "none"
    base_augmentation: Literal["none", "standard"] = "none"  # VI-D says all models are augmented; open whether None is
    augmentation: Augmentation = Augmentation()
    tier: Tier = Tier()
    dpsgd: DpSgd = DpSgd()
    memguard: MemGuard = MemGuard()
    early_stopping: EarlyStopping = EarlyStopping()
    label_smoothing: LabelSmoothing = LabelSmoothing()
    relaxloss: RelaxLoss = RelaxLoss()
    confidence_penalty: ConfidencePenalty = ConfidencePenalty()
    distillation: Distillation = Distillation()
    ensemble_partition: EnsemblePartition = EnsemblePartition()

    @property
    def augments(self) -> bool:
        """Whether training images go through T."""
        copied = self.private and self.dpsgd.multiplicity > 1
        return self.name in ("augmentation", "tier_full") or self.base_augmentation == "standard" or copied

    @property
    def regularizes(self) -> bool:
        """Whether TIER's terms act at all."""
        return self.name in ("tier_reg", "tier_full") and self.tier.lambda_ > 0

    @property
    def private(self) -> bool:
        """Whether it is DP-SGD."""
        return self.name in ("dpsgd_eps100", "dpsgd_tuned")

    @property
    def bare(self) -> "Defense":
        """No defense at all, with the base augmentation that every model has (SPEC 1)."""
        if self.base_augmentation == "none":
            return Defense()
        return Defense(base_augmentation=self.base_augmentation, augmentation=self.augmentation)

    @property
    def plain(self) -> "Defense":
        """Training without the defense, but with the same augmentation."""
        augmentation = self.augmentation if self.augments else Augmentation()
        return Defense(name="augmentation" if self.augments else "none", augmentation=augmentation)

    @property
    def strength(self) -> float:
        """The value of the setting that a sweep varies. Raises ValueError for a defense that has none."""
        part, field = strength_field(self.name)
        value = getattr(getattr(self, part), field)
        if value is None:
            raise ValueError(f"defense.{part}.{field} is not set, so '{self.name}' has no strength to vary")
        return float(value)

    def at(self, strength: float) -> "Defense":
        """The defense at another strength. Raises ValueError for one that has none, or when the value does not fit."""
        part, field = strength_field(self.name)
        settings = getattr(self, part)
        value = int(strength) if isinstance(getattr(settings, field), int) and strength == int(strength) else strength
        changed = type(settings).model_validate({**dict(settings), field: value})
        return Defense.model_validate({**dict(self), part: changed})

    def acts(self, epochs: int | None = None) -> bool:
        """Whether a run of `epochs` differs from training without the defense, but for its augmentation."""
        match self.name:
            case "none" | "augmentation":
                return False
            case "tier_reg" | "tier_full":
                return self.regularizes and (epochs is None or epochs > self.tier.warmup)
            case "early_stopping":
                return epochs is None or epochs > self.early_stopping.epochs
            case "ensemble_partition":
                return self.ensemble_partition.parts > 1
            case "dpsgd_eps100" | "dpsgd_tuned":
                return True
            case "distillation":
                return self.distillation.weight > 0
            case _:
                return self.strength > 0

    def canonical(self, epochs: int | None = None) -> "Defense":
        """The same run of `epochs` with every setting that does not act at its default.

        lambda = 0, and a run that ends within the warm-up, is plain training with the same augmentation, bit for bit
        (SPEC 2), and so is any other defense at strength 0. The base augmentation stays: undefended models that the
        run is compared with have it too.
        """
        if self.acts(epochs):
            part = DEFENSE_SETTINGS[self.name]
            kept: dict[str, Any] = {"name": self.name, part: getattr(self, part)}
            if self.regularizes and self.tier.lambda_schedule == "constant":
                kept[part] = self.tier.model_copy(update={"ramp": Tier().ramp})
        else:
            kept = {"name": "augmentation" if self.name in ("augmentation", "tier_full") else "none"}
        return Defense(
            augmentation=self.augmentation if self.augments else Augmentation(),
            base_augmentation=self.base_augmentation,
            **kept,
        )

    @property
    def trained(self) -> "Defense":
        """The same training under its simplest name, whatever it is augmented by: what its key is made from."""
        augmented = {"none": "augmentation", "tier_reg": "tier_full"}
        same = self.base_augmentation == "standard" and (self.name in augmented or self.name in augmented.values())
        if not same:
            return self
        name = augmented.get(self.name, self.name)
        return Defense.model_validate({**dict(self), "name": name, "base_augmentation": "none"})


DEFENSE_SETTINGS: dict[DefenseName, str] = {
    "tier_reg": "tier", "tier_full": "tier", "dpsgd_eps100": "dpsgd", "dpsgd_tuned": "dpsgd", "memguard": "memguard",
    "early_stopping": "early_stopping", "label_smoothing": "label_smoothing", "relaxloss": "relaxloss",
    "confidence_penalty": "confidence_penalty", "distillation": "distillation",
    "ensemble_partition": "ensemble_partition",
}  # fmt: skip
"""The part of `Defense` that acts on each defense, besides the augmentation."""

STRENGTHS: dict[DefenseName, str] = {
    "tier_reg": "lambda_", "tier_full": "lambda_", "dpsgd_eps100": "epsilon", "dpsgd_tuned": "noise",
    "memguard": "distortion", "early_stopping": "epochs", "label_smoothing": "amount", "relaxloss": "alpha",
    "confidence_penalty": "weight", "distillation": "parts", "ensemble_partition": "parts",
}  # fmt: skip
"""The setting of that part that says how strong the defense is: what a sweep varies."""


def strength_field(name: DefenseName) -> tuple[str, str]:
    """The part and field of `Defense` that a sweep of this defense varies. Raises ValueError when there is none."""
    if name not in STRENGTHS:
        raise ValueError(f"'{name}' has no strength to vary; choose one of {', '.join(STRENGTHS)}")
    return DEFENSE_SETTINGS[name], STRENGTHS[name]


class Train(Config):
    """The training loop's settings (section V-F: batch 128, 100 epochs)."""

    epochs: int = Field(100, ge=1)
    batch_size: int = Field(128, ge=1)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(2e-3, gt=0.0)
    momentum: float = Field(0.9, ge=0.0, lt=1.0)  # SGD only
    weight_decay: float = Field(5e-4, ge=0.0)
    schedule: Literal["constant", "cosine", "one_cycle"] = "one_cycle"
    gradient_clip: float | None = Field(None, gt=0.0)  # largest L2 norm of the gradient
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int = Field(2, ge=1)  # CPU threads; part of the key because sums depend on it
    processes: int = Field(1, ge=1)  # that share out each batch, each with so many threads or a GPU of its own
    seed: int = Field(0, ge=0)


class Explain(Config):
    """One explainer and its settings (SPEC 4); each comment names the explainers on which a setting acts."""

    name: ExplainerName = "gradient"
    target: Target = "label"
    channel_reduction: ChannelReduction = "mean_abs"  # gradient
    signed: bool = True  # smoothgrad, integrated_gradients, shap: the channels' sum, else the sum of absolute values
    cam_layer: str | None = None  # gradcam, gradcampp; None: the last layer whose map is at least 4x4
    samples: int = Field(25, ge=2)  # smoothgrad, vargrad: noisy copies; shap: draws
    noise: float = Field(0.15, gt=0.0)  # smoothgrad, vargrad: standard deviation, pixels being in [0, 1]
    steps: int = Field(32, ge=2)  # integrated_gradients: Gauss-Legendre nodes on the path
    baseline: Literal["zero", "mean"] = "zero"  # integrated_gradients, lime: black, or the image's mean per channel
    segments: int = Field(40, ge=2)  # lime: superpixels wanted
    compactness: float = Field(10.0, gt=0.0)  # lime: SLIC's weight of nearness against colour
    perturbations: int = Field(300, ge=10)  # lime: images with superpixels removed
    kernel_width: float = Field(0.25, gt=0.0)  # lime: of the exponential kernel on the cosine distance
    ridge: float = Field(1.0, ge=0.0)  # lime: weight of the squared coefficients
    seed: int = Field(0, ge=0)  # smoothgrad, vargrad, shap, lime

    @property
    def family(self) -> tuple[ExplainerName, ...]:
        """The explainers whose maps the same passes through the model give, this one among them."""
        return next((names for names in FAMILIES if self.name in names), (self.name,))

    def canonical(self) -> "Explain":
        """The same explainer with every setting that does not act at its default."""
        acting = {"name", "target", *EXPLAINER_SETTINGS[self.name]}
        return Explain.model_validate({name: value for name, value in dict(self).items() if name in acting})


FAMILIES: tuple[tuple[ExplainerName, ...], ...] = (("smoothgrad", "vargrad"), ("gradcam", "gradcampp"))
EXPLAINER_SETTINGS: dict[ExplainerName, tuple[str, ...]] = {
    "gradient": ("channel_reduction",),
    "smoothgrad": ("samples", "noise", "signed", "seed"),
    "vargrad": ("samples", "noise", "seed"),
    "gradcam": ("cam_layer",),
    "gradcampp": ("cam_layer",),
    "integrated_gradients": ("steps", "baseline", "signed"),
    "shap": ("samples", "signed", "seed"),
    "lime": ("segments", "compactness", "perturbations", "kernel_width", "ridge", "baseline", "seed"),
}
"""The settings that act on each explainer, besides `name` and `target`."""


class Trajectory(Config):
    """The removal order and operator of the MoRF / LeRF curves (section IV, eq. 1 and 2)."""

    levels: Levels = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    alpha: float = Field(0.1, ge=0.0)  # weight of the total variation
    sign: Literal["signed", "absolute"] = "signed"  # the same for maps that are never negative
    operator: OperatorName = "mean"
    blur: float = Field(2.0, gt=0.0)  # blur: standard deviation in pixels
    noise: float = Field(0.01, ge=0.0)  # road: standard deviation of what is added, pixels being in [0, 1]
    noise_seed: int = Field(0, ge=0)  # road
    inference: Inference = "fp32"  # forward passes along the paths; what is fastest differs between machines
    images: int | None = Field(None, ge=2)  # only so many members and non-members, the first of the seeded order

    def canonical(self) -> "Trajectory":
        """The same paths with every setting that does not act on the operator at its default."""
        acting = set(OPERATOR_SETTINGS[self.operator]) - ({"noise_seed"} if self.noise == 0 else set())
        idle = {name for names in OPERATOR_SETTINGS.values() for name in names} - acting
        return self.model_copy(update={name: getattr(Trajectory(), name) for name in idle})


OPERATOR_SETTINGS: dict[OperatorName, tuple[str, ...]] = {
    "mean": (), "zero": (), "blur": ("blur",), "road": ("noise", "noise_seed")
}  # fmt: skip
"""The settings that act on each operator."""


class Divergence(Config):
    """The attribution-guided perturbation profile (section V-A)."""

    levels: Levels = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    # V-A: absolute mean gradient across channels; of the explainers only the plain gradient has it
    channel_reduction: ChannelReduction = "abs_mean"
    fill: Fill = "channel_mean"
    batch: int = Field(128, ge=2)  # images per unit in the batch-mean tests


class Audit(Config):
    """The internal audit classifier (section VI-C) and how it is evaluated."""

    holdout: float = Field(0.2, gt=0.0, lt=1.0)
    folds: int = Field(5, ge=2)
    whole_groups: bool = False  # no group of near-duplicates (a track) is split between learning and scoring
    welch: float = Field(0.05, gt=0.0, lt=1.0)  # features that do not separate at this level are dropped
    hidden: tuple[int, ...] = (64,)  # the classifier's layers; the paper says no more than "attack model"
    penalty: float = Field(1e-3, ge=0.0)  # weight of its squared weights
    learning_rate: float = Field(3e-3, gt=0.0)
    batch_size: int = Field(128, ge=1)
    iterations: int = Field(150, ge=1)  # passes at the most
    patience: int = Field(15, ge=1)  # passes without gain on the validation rows before it stops
    validation: float = Field(0.15, gt=0.0, lt=1.0)
    seed: int = Field(0, ge=0)


def _weights(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or min(values) < 0 or len(set(values)) < len(values):
        raise ValueError(f"alphas are different numbers from 0 on, such as 0, 0.01, 0.1, 1; not {values}")
    return values


class Attack(Config):
    """The attack from outside (section IV, SPEC 5): learnt on a shadow model, tried on the target."""

    shadow: Literal["undefended", "same"] = "undefended"  # same: the attacker knows the defense and trains with it
    # weights of the total variation, of which shadow data choose one
    alphas: Annotated[tuple[float, ...], AfterValidator(_weights)] = (0.0, 0.01, 0.1, 1.0)
    trajectory: Trajectory = Trajectory(operator="road")  # its alpha is one of those above
    tuning: int = Field(300, ge=20)  # shadow members, and as many non-members, on which alpha is chosen
    holdout: float = Field(0.2, gt=0.0, lt=1.0)  # share of the shadow's images that the attack is tested on
    seed: int = Field(0, ge=0)  # of that split

    def canonical(self, plain: bool = False) -> "Attack":
        """The same attack with every setting that does not act at its default; `plain`: the target has no defense."""
        paths = self.trajectory.canonical().model_copy(update={"alpha": Trajectory().alpha})
        return self.model_copy(update={"trajectory": paths} | ({"shadow": "undefended"} if plain else {}))


class Battery(Config):
    """The attacks of a sceptic (SPEC 8) and the reference models that some of them need."""

    # trained on random halves of the target's images, in complementary pairs; six leave two on either side of each
    # image when one of them is taken for the target
    references: int = Field(16, ge=6, multiple_of=2)
    # lira, rmia, of a target trained with T: views of an image that models are asked about, first the plain one, then
    # under T; models trained without T do not remember such views, and are asked about the plain image alone
    queries: int = Field(8, ge=1)
    seed: int = Field(0, ge=0)  # of the other views
    variance: Literal["fixed", "per_image"] = "fixed"  # lira_online: one for all images, or each image's own
    # variance per_image: references on a side from which that beats a shared one (Carlini et al. 2022 find 64 in all)
    enough: int = Field(32, ge=3)
    mode: Literal["offline", "online"] = "offline"  # rmia
    gamma: float = Field(2.0, ge=1.0)  # rmia: by how much an image has to beat another
    a: float = Field(0.3, ge=0.0, le=1.0)  # rmia, offline: how much training on an image would raise its probability
    # attribution, explainer gradient: what it is the gradient of; Shokri et al. 2021 explain the probability
    output: Literal["logit", "probability"] = "probability"

    @model_validator(mode="after")
    def _can_act(self) -> "Battery":
        if self.variance == "per_image" and self.references // 2 < self.enough:
            raise ValueError(
                f"battery.variance=per_image needs battery.enough ({self.enough}) references on either side of an "
                f"image, and half of battery.references ({self.references}) are: raise that to {2 * self.enough}, or "
                "lower battery.enough"
            )
        return self

    def canonical(self, explainer: ExplainerName, augments: bool) -> "Battery":
        """The same attacks with every setting that does not act at its default; `augments`: the target saw T."""
        idle: dict[str, Any] = {} if augments and self.queries > 1 else {"seed": Battery().seed}
        idle |= {} if augments else {"queries": Battery().queries}
        idle |= {"enough": Battery().enough} if self.variance == "fixed" else {}
        idle |= {"output": Battery().output} if explainer != "gradient" else {}
        return self.model_copy(update=idle)


class Fidelity(Config):
    """What a defended model's maps are compared with besides the undefended model's (SPEC 7)."""

    images: int = Field(500, ge=2)  # members, and as many non-members, that are compared
    second_seed: int | None = Field(None, ge=0)  # of the undefended control; None: the one after the training seed
    shuffle: int = Field(0, ge=0)  # seed of the shuffled pairs


FAITHFULNESS = ("faithfulness_correlation", "faithfulness_estimate", "sufficiency")
LOCALISATION = ("pointing_game", "mask_mass", "mask_iou")
QUALITY_METRICS = (*FAITHFULNESS, *LOCALISATION)
"""The scores of a map; `tier.quality` says what they are."""
VARIANT_OF = {
    "sufficiency_quantus": "sufficiency", "mask_mass_positive": "mask_mass", "mask_iou_signed": "mask_iou",
}  # fmt: skip
"""Of a variant, which asks the same otherwise, the metric it stands beside."""
QUALITY_CONTROLS = ("random", "edges")
Baseline = Literal["black", "mean", "white"]
Distance = Literal["seuclidean", "euclidean", "cosine"]


def _thresholds(values: tuple[float, ...]) -> tuple[float, ...]:
    if any(not 0 < value <= 1 for value in values):
        raise ValueError(f"thresholds are shares of the largest distance, above 0 and at most 1; not {values}")
    return values


class Quality(Config):
    """How faithful maps are to the model (SPEC 7), with the settings of Quantus 0.6 unless a comment says otherwise.

    A feature is one channel of one pixel, so that an RGB image of 32x32 has 3,072.
    """

    images: int = Field(200, ge=2)  # members, and as many non-members, that are judged; all are one set
    engine: Literal["fast", "quantus"] = "fast"  # quantus: the reference, on the plain model
    inference: InferenceKind = "folded"  # fast; a model that cannot be folded is asked in fp32
    baseline: Baseline = "black"  # what replaces a feature: the image's least, mean or greatest value
    runs: int = Field(100, ge=3)  # faithfulness correlation
    subset_size: int = Field(224, ge=1)  # faithfulness correlation: features replaced at a time
    # faithfulness estimate: features replaced at a time; Quantus has 1, which costs a pass for each feature. A multiple
    # of the channels takes whole pixels: 32 at a time, 32 passes for an image of 32x32
    features_in_step: int = Field(96, ge=1)
    threshold: float = Field(0.6, gt=0.0, le=1.0)  # sufficiency: largest distance of a neighbour, of the set's largest
    distance: Distance = "seuclidean"  # sufficiency
    # sufficiency: further thresholds at which its mean is shown
    thresholds: Annotated[tuple[float, ...], AfterValidator(_thresholds)] = (0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9)
    seed: int = Field(0, ge=0)  # of the random subsets and the random maps

    @model_validator(mode="after")
    def _known_to_quantus(self) -> "Quality":
        if self.engine == "quantus" and self.distance != "seuclidean":
            raise ValueError(
                f"Quantus 0.6 fails with quality.distance={self.distance}: it works with seuclidean "
                "only; use that, or quality.engine=fast"
            )
        return self

    def canonical(self) -> "Quality":
        """The same scores with every setting that does not act at its default."""
        idle = {"inference": Quality().inference} if self.engine == "quantus" else {}
        return self.model_copy(update=idle)


class Inspect(Config):
    """One image under all explainers: a row of the data set, or an image that a user has brought."""

    row: int | None = Field(None, ge=0)
    upload: str | None = Field(None, pattern="^[0-9a-f]{64}$")  # sha256 of its size and pixels
    label: int | None = Field(None, ge=0)  # class explained; None: the row's, else what the undefended model predicts


class Experiment(Config):
    """Everything that one run's results depend on."""

    data: Data = Data()
    split: Split = Split()
    model: Model = Model()
    defense: Defense = Defense()
    train: Train = Train()
    explain: Explain = Explain()
    trajectory: Trajectory = Trajectory()
    divergence: Divergence = Divergence()
    audit: Audit = Audit()
    attack: Attack = Attack()
    battery: Battery = Battery()
    fidelity: Fidelity = Fidelity()
    quality: Quality = Quality()
    inspect: Inspect = Inspect()

    @property
    def net(self) -> Model:
        """The architecture that is built: DP-SGD has GroupNorm whatever `model.norm` says."""
        return self.model.model_copy(update={"norm": "group"}) if self.defense.private else self.model

    @property
    def epochs(self) -> int:
        """How many epochs are trained at the most."""
        stopped = self.defense.name == "early_stopping" and self.defense.acts(self.train.epochs)
        return self.defense.early_stopping.epochs if stopped else self.train.epochs

    def with_(self, **parts: Config) -> "Experiment":
        """A copy with whole parts replaced, validated."""
        return Experiment.model_validate({**dict(self), **parts})  # model_copy would not validate

    def canonical(self) -> "Experiment":
        """The same computation with each setting that does not act at its default, so that equal runs share a key."""
        model, train, divergence = self.model, self.train, self.divergence
        if model.architecture != "small":
            model = model.model_copy(update={"width": Model().width})
        if self.defense.private:
            model = model.model_copy(update={"norm": Model().norm})
        private = self.defense.dpsgd.optimizer if self.defense.private else None
        if (private or train.optimizer) != "sgd":
            train = train.model_copy(update={"momentum": Train().momentum})
        if self.explain.name != "gradient":
            divergence = divergence.model_copy(update={"channel_reduction": Divergence().channel_reduction})
        return self.with_(
            split=self.split.canonical(),
            model=model,
            defense=self.defense.canonical(train.epochs),
            train=train,
            explain=self.explain.canonical(),
            trajectory=self.trajectory.canonical(),
            quality=self.quality.canonical(),
            attack=self.attack.canonical(plain=self.defense.canonical(train.epochs).name == "none"),
            divergence=divergence,
        )

    def set(self, assignments: dict[str, Any]) -> "Experiment":
        """A validated copy with dotted fields replaced, e.g. `{"defense.tier.lambda": 9}`.

        Other data lose the fingerprint of the former data, unless one is set with them.
        Raises ValueError naming the field and the valid ones when a name is unknown or a value does not fit.
        """
        raw = self.model_dump(mode="json", by_alias=True)
        for path, value in assignments.items():
            node, parts = raw, path.split(".")
            for depth, part in enumerate(parts):
                if not isinstance(node, dict) or part not in node:
                    here = ".".join(parts[:depth]) or "the experiment"
                    valid = ", ".join(node) if isinstance(node, dict) else "no fields"
                    raise ValueError(f"unknown setting '{path}': {here} has {valid}")
                if depth == len(parts) - 1:
                    node[part] = value
                node = node[part]
        changed = Experiment.model_validate(raw)
        if changed.data != self.data and "data.fingerprint" not in assignments:
            return changed.with_(data=changed.data.model_copy(update={"fingerprint": None}))
        return changed


def stage_key(stage: str, version: int, config: dict[str, Any], parents: list[str], fingerprint: str | None) -> str:
    """The name of a stage's result: sha256 of the canonical JSON of all it depends on, 64 hex digits.

    `config` holds only what differs from the defaults, so a new field with a default keeps old keys.
    """
    content = {"stage": stage, "version": version, "config": config, "parents": parents, "data": fingerprint}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
