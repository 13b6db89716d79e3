"""A store with made-up but plausible results in the exact schemas of the stages, for tests of pages only."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
from scipy.stats import norm

from tier import experiment, figures, gallery, presets
from tier import metrics as merits
from tier.config import STRENGTHS, Experiment, Inspect
from tier.experiment import inputs
from tier.presets import Preset
from tier.store import Store

LEVELS = np.arange(10) / 10
IMAGES = 60  # of each kind
# how far apart members and non-members come under an explainer, against the plain gradient
EXPLAINERS = dict(zip(figures.EXPLAINERS, (1.0, 0.9, 0.7, 0.8, 0.6, 1.2, 1.1, 0.0), strict=True))
# test accuracy, audit balanced accuracy and how far members' curves lie above non-members'
FINAL = {
    "none": (0.60, 0.90, 0.14), "augmentation": (0.68, 0.64, 0.04), "tier_reg": (0.55, 0.78, 0.09),
    "dpsgd_eps100": (0.25, 0.51, 0.0), "dpsgd_tuned": (0.45, 0.56, 0.01), "memguard": (0.60, 0.70, 0.06),
    "early_stopping": (0.45, 0.55, 0.02), "label_smoothing": (0.63, 0.82, 0.1), "relaxloss": (0.58, 0.60, 0.03),
    "confidence_penalty": (0.61, 0.86, 0.12), "distillation": (0.62, 0.74, 0.07),
    "ensemble_partition": (0.48, 0.66, 0.05),
}  # fmt: skip


def strength(one: Experiment) -> tuple[float, float, float]:
    """Made-up test accuracy, leak and distance of a run."""
    defense = one.defense.canonical()
    if defense.name in FINAL and defense.name != "tier_reg":
        accuracy, leak, distance = FINAL[defense.name]
    else:
        lam, beta = defense.tier.lambda_, defense.tier.beta
        accuracy, leak, distance = FINAL["tier_reg"] if defense.name == "tier_reg" else (0.66, 0.62, 0.03)
        accuracy, leak, distance = accuracy - 0.008 * lam - 0.02 * beta, leak - 0.004 * lam, distance * 0.9
    if defense.name in STRENGTHS and not defense.regularizes:  # a sweep of a rival moves both
        base = presets.get("signs").defense(defense.name).strength
        accuracy, leak = accuracy - 0.02 * (defense.strength / base - 1), leak - 0.03 * (defense.strength / base - 1)
    generator = np.random.default_rng(one.train.seed)
    return accuracy + generator.normal(0, 0.005), max(leak + generator.normal(0, 0.005), 0.5), distance


def events(one: Experiment) -> pd.DataFrame:
    accuracy, leak, _ = strength(one)
    epochs = one.train.epochs
    done = np.arange(1, epochs + 1) / epochs
    acts = one.defense.canonical().regularizes
    return pd.DataFrame({
        "epoch": np.arange(1, epochs + 1), "loss": 3 * np.exp(-3 * done), "ce": 2.5 * np.exp(-3 * done),
        "kl": 0.3 * done if acts else np.nan, "var": 0.1 * done if acts else np.nan,
        "train_accuracy": 1 - 0.95 * np.exp(-4 * done), "test_accuracy": accuracy * (1 - 0.9 * np.exp(-4 * done)),
        "gap_balanced_accuracy": 0.5 + 0.7 * (leak - 0.5) * done**2, "loss_auc": 0.5 + (leak - 0.5) * done**2,
        "seconds": 1.0,
    })  # fmt: skip


def curves(distance: float, generator: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """curves.parquet, difference.parquet and samples.parquet of a trajectory."""
    member = np.arange(2 * IMAGES) < IMAGES
    samples = pd.DataFrame({"index": np.arange(2 * IMAGES) * 7 + 3, "member": member})
    means, differences = [], []
    for order, slope in (("morf", 4.0), ("lerf", 2.0)):
        base = 0.75 * np.exp(-slope * LEVELS)[None] + distance * member[:, None]
        p = np.clip(base + generator.normal(0, 0.12, (2 * IMAGES, 10)), 1e-4, 1 - 1e-4)
        for i in range(10):
            samples[f"{order}_{i}"] = np.log(p[:, i]).astype(np.float32)
        for kind in (True, False):
            mean, error = p[member == kind].mean(0), 1.96 * p[member == kind].std(0) / np.sqrt(IMAGES)
            part = {
                "order": order,
                "level": LEVELS,
                "member": kind,
                "mean": mean,
                "low": mean - error,
                "high": mean + error,
            }
            means.append(pd.DataFrame(part | {"n": IMAGES}))
        change, error = p[member].mean(0) - p[~member].mean(0), 1.96 * p.std(0) * np.sqrt(2 / IMAGES)
        part = {"order": order, "level": LEVELS, "difference": change, "low": change - error, "high": change + error}
        differences.append(pd.DataFrame(part | {"null_low": -error, "null_high": error}))
    return pd.concat(means, ignore_index=True), pd.concat(differences, ignore_index=True), samples


def profile(distance: float) -> pd.DataFrame:
    levels = np.arange(1, 8) / 10
    parts = []
    for unit, n in (("sample", 1500), ("batch", 4)):
        sign = np.linspace(1, -0.3, 7)
        member, other = 2 + 6 * levels + 8 * distance * sign, 2 + 6 * levels
        part = {"unit": unit, "level": levels}
        for word, mean in (("member", member), ("nonmember", other)):
            part |= {f"{word}_mean": mean, f"{word}_sd": 2.0, f"{word}_n": n, f"{word}_low": mean - 0.1}
            part |= {f"{word}_high": mean + 0.1}
        tested = unit == "sample"
        t = (member - other) / 0.07
        for name, value in {
            "t": t, "t_df": 2997.0, "t_p": np.exp(-np.abs(t)), "ks": np.abs(t) / 50, "ks_p": np.exp(-np.abs(t)),
            "cohen_d": (member - other) / 2, "t_p_holm": np.minimum(7 * np.exp(-np.abs(t)), 1),
            "ks_p_holm": np.minimum(7 * np.exp(-np.abs(t)), 1),
        }.items():  # fmt: skip
            part[name] = value if tested else np.nan
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def metrics(one: Experiment) -> dict[str, dict[str, object]]:
    """The made-up figures of each stage; a report holds them all."""
    accuracy, leak, _ = strength(one)
    layer = "blocks.5" if one.explain.name.startswith("gradcam") else None
    members, nonmembers = one.split.target_train, one.split.target_test
    audited = {
        "crossfit_balanced_accuracy": leak, "crossfit_balanced_accuracy_low": leak - 0.02,
        "crossfit_balanced_accuracy_high": leak + 0.02, "crossfit_auc": leak + 0.04, "crossfit_auc_low": leak + 0.02,
        "crossfit_auc_high": leak + 0.06, "audit_balanced_accuracy": leak - 0.01, "audit_auc": leak + 0.03,
        "audit_balanced_accuracy_low": leak - 0.06, "audit_balanced_accuracy_high": leak + 0.04,
        "audit_auc_low": leak - 0.02, "audit_auc_high": leak + 0.08, "features": ["morf_0", "lerf_1", "lerf_2"],
    }  # fmt: skip
    trained = {
        "train_accuracy": 0.99 if one.defense.canonical().name == "none" else 0.85, "test_accuracy": accuracy,
        "test_top5": min(accuracy + 0.2, 1.0), "test_loss": 2 - 2 * accuracy, "loss_auc": leak - 0.01,
        "gap_balanced_accuracy": 0.5 + 0.6 * (leak - 0.5), "seconds_per_epoch": 1.0, "epochs": one.train.epochs,
        "members": members, "nonmembers": nonmembers, "classes": 24, "parameters": 3,
    }  # fmt: skip
    name = one.defense.name
    if one.defense.private:
        trained |= {"defense": {"epsilon": 100.0 if name == "dpsgd_eps100" else 4321.0, "delta": 1e-5}}
    trained |= {"epochs": one.epochs, "seconds_per_epoch": {"none": 1.0, "tier_full": 4.8}.get(name, 1.3)}
    parts: dict[str, dict[str, object]] = {
        "train": trained,
        "trajectory": {"degenerate_maps": 0, "cam_layer": layer, "images": members + nonmembers},
        "divergence": {"images": members + nonmembers, "profile_degenerate_maps": 0},
        "audit": audited,
    }
    sizes = {name: getattr(one.split, name) for name in ("target_train", "target_test", "shadow_train", "shadow_test")}
    return parts | {
        "report": {k: v for part in parts.values() for k, v in part.items()} | {"sizes": sizes, "notes": []}
    }


STAGES = ("train", "trajectory", "divergence", "audit", "report")


def add(
    store: Store, one: Experiment, stages: tuple[str, ...] = STAGES, told: Mapping[str, object] | None = None
) -> None:
    """Write made-up results of one run; `told` replaces some of the figures, in whichever stage has them."""
    plain = one.canonical()
    distance = strength(one)[2] * EXPLAINERS[one.explain.name]
    seeds = [one.train.seed, list(EXPLAINERS).index(one.explain.name)]
    means, differences, samples = curves(distance, np.random.default_rng(seeds))
    scores = pd.DataFrame({"index": samples["index"], "member": samples["member"], "fold": 0})
    scores["score"] = np.where(samples["member"], 1.0, -1.0) * np.where(np.arange(len(samples)) % 5, 1, -1)
    files = {
        "train": {"events.parquet": events(one), "weights.safetensors": {"w": np.zeros(3, np.float32)}},
        "trajectory": {"curves.parquet": means, "difference.parquet": differences, "samples.parquet": samples},
        "divergence": {"profile.parquet": profile(distance)},
        "audit": {"scores.parquet": scores},
        "report": {},
    }
    for stage in stages:
        record = {
            "version": 1, "config": {}, "experiment": plain.changed(), "parents": {}, "seconds": 3.0,
            "fingerprint": plain.data.fingerprint,
            "metrics": {name: (told or {}).get(name, value) for name, value in metrics(one)[stage].items()},
        }  # fmt: skip
        store.write(stage, experiment.key(stage, one), files[stage], record)


def add_path(store: Store, one: Experiment) -> None:
    """Write a made-up early-stopping path."""
    known = events(one)
    audit = np.full(len(known), np.nan)
    stops = np.linspace(len(known) / 10, len(known), 10).round().astype(int) - 1
    audit[stops] = 0.5 + (strength(one)[1] - 0.5) * (np.arange(1, 11) / 10) ** 2
    frame = known[["epoch", "train_accuracy", "test_accuracy", "gap_balanced_accuracy", "loss_auc"]].assign(
        audit_balanced_accuracy=audit - 0.02, audit_balanced_accuracy_low=audit - 0.07, audit_auc=audit + 0.03,
        audit_balanced_accuracy_high=audit + 0.03, crossfit_balanced_accuracy=audit, crossfit_auc=audit + 0.03,
        crossfit_balanced_accuracy_low=audit - 0.02, crossfit_balanced_accuracy_high=audit + 0.02,
    )  # fmt: skip
    record = {"experiment": one.changed(), "metrics": {"epochs": one.train.epochs}, "seconds": 1.0}
    store.write("path", experiment.key("path", one), {"path.parquet": frame}, record)


def pinned(store: Store, preset: Preset) -> Preset:
    """The preset with a made-up fingerprint where it has none, which the store then remembers, as after a first run."""
    with mock.patch.object(inputs, "dataset", return_value=SimpleNamespace(fingerprint="0" * 64)):
        return preset.model_copy(update={"experiment": experiment.pin(store, preset.experiment, load=True)})


def fill(store: Store, preset: Preset) -> None:
    """Headline runs of all defenses and seeds, the grid of `tier_full`, both paths, seed 0 under every explainer."""
    preset = pinned(store, preset)
    for defense in preset.defenses:
        for seed in preset.seeds:
            add(store, preset.run(defense, seed))
    for _, _, one in preset.grid("tier_full"):
        add(store, one)
    for name in ("none", "augmentation"):
        add_path(store, preset.run(name))
    for defense in preset.defenses:
        for name in list(EXPLAINERS)[1:]:
            one = preset.run(defense, preset.seeds[0]).set({"explain.name": name})
            add(store, one, ("trajectory", "divergence", "audit", "report"))
    add_explanations(store, preset)
    add_qualities(store, preset)
    add_attacks(store, preset)


def add_rivals(store: Store, preset: Preset) -> None:
    """The rivals at their usual strength with all seeds, two more strengths of RelaxLoss, a battery on two of them."""
    preset = pinned(store, preset)
    for defense in preset.rivals:
        for seed in preset.seeds:
            add(store, preset.run(defense, seed), ("train", "report"))
    base = preset.defense("relaxloss").strength
    for _, one in preset.sweep("relaxloss", (base / 2, 2 * base)):
        add(store, one, ("train", "report"))
    for name in ("relaxloss", "dpsgd_tuned"):
        add_battery(store, preset.run(name))


PIXELS = 32  # of a side of the images that maps are made up for


def seen(one: Experiment, seed: int, label: int, explainers: Sequence[str]) -> pd.DataFrame:
    """Made-up columns of one image under several explainers: prediction, map, removal steps and curves."""
    generator = np.random.default_rng([seed, one.train.seed])
    maps = generator.normal(0, 1, (len(explainers), PIXELS, PIXELS))
    places = np.argsort(np.argsort(-maps.reshape(len(explainers), -1), axis=1), axis=1)
    counts = [max(1, round(level * PIXELS**2)) if level else 0 for level in LEVELS]
    steps = {
        order: np.searchsorted(counts, at, side="right").reshape(maps.shape).astype(np.uint8)
        for order, at in (("morf", places), ("lerf", PIXELS**2 - 1 - places))
    }
    frame = pd.DataFrame({"label": label, "predicted": label, "confidence": np.float32(0.8), "target": label,
                          **gallery.encode(maps, steps)})  # fmt: skip
    for order, slope in (("morf", 4.0), ("lerf", 2.0)):
        for i, level in enumerate(LEVELS):
            frame[f"{order}_{i}"] = np.log(0.8 * np.exp(-slope * level)).astype(np.float32)
    return frame.assign(explainer=list(explainers))


def add_inspect(store: Store, one: Experiment, asked: Inspect, score: float | None = None) -> None:
    """Write what one model makes of one image, and (`score`) what the audit says of an upload."""
    view = one.with_(inspect=asked)
    label = (asked.row or 0) % 24 if asked.label is None else asked.label
    table = seen(one, 0 if asked.row is None else asked.row, label, list(EXPLAINERS))
    table = table.assign(index=-1 if asked.row is None else asked.row, member=pd.array([None] * 8, dtype="boolean"))
    told = {
        "label": label, "predicted": label, "confidence": 0.8, "loss": 0.2, "height": PIXELS, "width": PIXELS,
        "probabilities": [0.8 if k == label else 0.2 / 23 for k in range(24)], "cam_layer": "stages.2",
    }  # fmt: skip
    record = {"experiment": view.canonical().changed(), "seconds": 1.0, "fingerprint": view.data.fingerprint}
    store.write("inspect", experiment.key("inspect", view), {"inspect.parquet": table}, record | {"metrics": told})
    if score is not None:
        shares = {"members_below": 0.25, "nonmembers_below": 0.75}
        verdict = record | {"metrics": {"score": score, "folds": [score] * 5, **shares}}
        store.write("verdict", experiment.key("verdict", view), {}, verdict)


ROWS = np.arange(2 * IMAGES) * 7 + 3  # of the data set: the images of every made-up result, members first
CLASSES = 24
LIKENESS = {"none": 0.0, "augmentation": 0.5, "tier_reg": 0.3, "tier_full": 0.1}  # share of a map that is the image's


def add_explanations(store: Store, preset: Preset) -> None:
    """Maps kept and fidelity of the headline runs of the first seed, under every explainer."""
    for defense in preset.defenses:
        for name in EXPLAINERS:
            add_gallery(store, preset.run(defense, preset.seeds[0]).set({"explain.name": name}))
            if defense.name != "none":
                add_fidelity(store, preset.fidelity(defense, preset.seeds[0], name))


def add_gallery(store: Store, one: Experiment) -> None:
    """Write made-up maps: a spot whose place belongs to the image, under noise that belongs to the model."""
    generator = np.random.default_rng([one.train.seed, len(one.defense.name)])
    place = np.random.default_rng(0).integers(6, PIXELS - 6, (len(ROWS), 2, 1, 1))
    y, x = np.mgrid[:PIXELS, :PIXELS]
    spot = np.exp(-((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2) / 30)
    maps = spot + (0.6 - LIKENESS[one.defense.name]) * generator.normal(0, 0.5, spot.shape)
    if one.explain.name in ("gradient", "vargrad", "gradcam", "gradcampp"):
        maps = np.abs(maps)
    maps[5] = 0.0  # an image under which no explainer finds anything
    label = ROWS % CLASSES
    predicted = np.where(generator.random(len(ROWS)) < 0.75, label, (label + 1) % CLASSES)
    steps = {order: np.full(maps.shape, len(LEVELS), np.uint8) for order in gallery.ORDERS}
    frame = pd.DataFrame({
        "index": ROWS, "member": np.arange(len(ROWS)) < IMAGES, "label": label, "predicted": predicted,
        "confidence": generator.uniform(0.3, 1, len(ROWS)).astype(np.float32), "target": label,
        **gallery.encode(maps, steps),
    })  # fmt: skip
    for order in gallery.ORDERS:
        for i, level in enumerate(LEVELS):
            frame[f"{order}_{i}"] = np.float32(-level)
    layer = "blocks.5" if one.explain.name.startswith("gradcam") else None
    told = {"height": PIXELS, "width": PIXELS, "cam_layer": layer, "degenerate_maps": 1}
    record = {"experiment": one.canonical().changed(), "metrics": told, "seconds": 1.0}
    store.write("gallery", experiment.key("gallery", one), {"gallery.parquet": frame}, record)


def add_fidelity(store: Store, one: Experiment) -> None:
    """Write made-up scores: pairs above the shuffled control by the model's likeness, the second seed above both."""
    generator = np.random.default_rng([3, len(one.defense.name), list(EXPLAINERS).index(one.explain.name)])
    frame = pd.DataFrame({"index": ROWS, "member": np.arange(len(ROWS)) < IMAGES, "label": ROWS % CLASSES})
    frame = frame.assign(correct=generator.random(len(ROWS)) < 0.6, agree=True)
    for ending, above in (("", LIKENESS[one.defense.name]), ("_shuffled", 0.0), ("_second_seed", 0.6)):
        for name, at, sign in (
            ("ssim", 0.2, 0.5),
            ("mse", 0.1, -0.1),
            ("cosine", 0.5, 0.4),
            ("cosine_unscaled", 0, 0.5),
        ):
            values = at + sign * above + generator.normal(0, 0.04, len(ROWS))
            values[5] = np.nan
            frame[f"{name}{ending}"] = values.astype(np.float32)
    record = {"experiment": one.canonical().changed(), "metrics": {}, "seconds": 1.0}
    store.write("fidelity", experiment.key("fidelity", one), {"scores.parquet": frame}, record)


# ---- quality of maps

# of each metric the value of a map, its spread, that of noise and of the edges
QUALITY = {
    "faithfulness_correlation": (0.06, 0.1, 0.0, 0.02), "faithfulness_estimate": (0.2, 0.15, 0.0, 0.1),
    "sufficiency": (0.12, 0.1, 0.06, 0.08), "pointing_game": (0.7, 0.3, 0.4, 0.6), "mask_mass": (0.55, 0.1, 0.4, 0.45),
    "mask_iou": (0.35, 0.1, 0.25, 0.3), "sufficiency_quantus": (0.0, 0.0, 0.0, 0.0),
    "mask_mass_positive": (0.56, 0.1, 0.4, 0.45), "mask_iou_signed": (0.3, 0.1, 0.25, 0.3),
}  # fmt: skip
LOCALISED = ("pointing_game", "mask_mass", "mask_iou", "mask_mass_positive", "mask_iou_signed")
TWICE = ("mask_mass_positive", "mask_iou_signed")  # their controls are those of mask_mass and mask_iou
# what is left of a map's lead over noise
SURVIVES = {"none": 1.0, "augmentation": 0.9, "tier_reg": 0.5, "tier_full": 0.3}


def add_qualities(store: Store, preset: Preset, masks: bool = True) -> None:
    """Quality of the maps of the headline runs of the first seed and the undefended control, under every explainer."""
    for run in [
        *(preset.run(defense, preset.seeds[0]) for defense in preset.defenses),
        preset.run("none", preset.seeds[1]),
    ]:
        for name in EXPLAINERS:
            add_quality(store, run.set({"explain.name": name}), masks)


def add_quality(store: Store, one: Experiment, masks: bool = True) -> None:
    """Write made-up scores: maps above noise by what the defense leaves, LIME not at all."""
    left = SURVIVES[one.defense.name] * EXPLAINERS[one.explain.name]
    place = [len(one.defense.name), one.train.seed]
    generator = np.random.default_rng([7, *place, list(EXPLAINERS).index(one.explain.name)])
    controls = np.random.default_rng([8, *place])
    member = np.arange(len(ROWS)) < IMAGES
    own = {"index": ROWS, "member": member, "label": ROWS % CLASSES, "correct": generator.random(len(ROWS)) < 0.6}
    of = {name: values for name, values in QUALITY.items() if masks or name not in LOCALISED}
    beside: dict[str, np.ndarray] = {}
    for name, (value, spread, noise, edges) in of.items():
        own[name] = (noise + left * (value - noise + 0.01 * member) + generator.normal(0, spread, len(ROWS))).astype(
            "f4"
        )
        own[name][5] = np.nan  # the image under which no explainer finds anything
        for control, at in (("random", noise), ("edges", edges)) if name not in TWICE else ():
            beside[f"{name}_{control}"] = (at + controls.normal(0, spread, len(ROWS))).astype(np.float32)
    own |= {"sufficiency_pseudo": own["sufficiency"], "sufficiency_edges_pseudo": beside["sufficiency_edges"]}
    dealt = {"over": 0.06 * left, "low": -0.02, "high": 0.02, "above": 0.001 if left > 0.5 else 0.4, "below": 0.6}
    levels = [0.2, 0.4, 0.6, 0.8, 1.0]
    missing = [None if level < 0.7 else 0.06 for level in levels]
    sweep = {"threshold": levels, "neighbours": [0.5, 3.0, 9.0, 60.0, 119.0], "alone": [0.9, 0.4, 0.1, 0.0, 0.0]}
    told = {
        "sweeps": {"map": sweep | {"mean": [0.5, 0.3, 0.06 + 0.06 * left, 0.08, 0.05]},
                   "random": sweep | {"mean": missing}, "edges": sweep | {"mean": [None, 0.2, 0.08, 0.06, 0.05]}},
        "chance": 0.05, "notes": ["1 of 120 maps are constant or not finite and have no score"],
        "refused": {} if masks else dict.fromkeys(LOCALISED, "the data set has no masks"),
        "permutation": dict.fromkeys(("all", "members", "nonmembers"), dealt),
        "degenerate_maps": 1, "images": len(ROWS), "inference": "folded",
    }  # fmt: skip
    record = {"experiment": one.canonical().changed(), "metrics": told, "seconds": 1.0}
    store.write("quality", experiment.key("quality", one), {"scores.parquet": pd.DataFrame(own | beside)}, record)


# ---- attacks from outside

PER_CLASS = 5  # members, and as many non-members, of each class that an attack is tried on: enough for a rate of 1 %
# how far members' attack scores lie above non-members', in standard deviations, from an undefended and a like shadow
EXPOSED = {"none": (1.2, 1.2), "augmentation": (0.4, 0.5), "tier_reg": (0.6, 1.0), "tier_full": (0.3, 0.7),
           "relaxloss": (0.2, 0.4), "dpsgd_tuned": (0.1, 0.2)}  # fmt: skip
CONSTANT = 3  # the trajectory feature that is the same for all images, so that the filter drops it
ATTACKED = np.concatenate([ROWS, ROWS.max() + 1 + np.arange(2 * CLASSES * PER_CLASS - len(ROWS))])


def attack_scores(distance: float, seed: Sequence[int]) -> pd.DataFrame:
    """Scores of the images of a target: index, member, label, score; members first among the images of `ROWS`."""
    more = np.arange(len(ATTACKED) - len(ROWS)) // CLASSES
    member = np.concatenate([np.arange(len(ROWS)) < IMAGES, more % 2 == 0])
    score = np.random.default_rng(seed).normal(0, 1, len(ATTACKED)) + distance * (member - 0.5)
    return pd.DataFrame({"index": ATTACKED, "member": member, "label": ATTACKED % CLASSES, "score": score})


def attack_leaf(scores: pd.DataFrame, threshold: float = 0.0, column: str = "score") -> dict[str, object]:
    member = scores["member"]
    return merits.report(scores[column][member], scores[column][~member], threshold)


def add_attack(store: Store, one: Experiment) -> None:
    """Write a made-up attack on one run from the shadow that `attack.shadow` names."""
    plain = one.canonical()
    same, place = one.attack.shadow == "same", list(EXPLAINERS).index(one.explain.name)
    distance = EXPOSED[plain.defense.name][same] * (0.5 + 0.5 * EXPLAINERS[one.explain.name])
    seed = [one.train.seed, place, same]
    target = attack_scores(distance, [*seed, len(plain.defense.name)])
    # what is left of the shadow does not depend on the target
    shadow = plain.defense.name if same else "none"
    rest = attack_scores(EXPOSED[shadow][same] * (0.5 + 0.5 * EXPLAINERS[one.explain.name]), [*seed, len(shadow)])
    rest = rest.assign(index=rest["index"] + 5000).groupby("member").head(IMAGES)
    levels, generator = len(LEVELS), np.random.default_rng(seed)
    names = [f"{order}_{i}" for order in ("morf", "lerf") for i in range(levels)] + ["loss", "predicted"]
    base = np.concatenate([0.75 * np.exp(-4 * LEVELS), 0.75 * np.exp(-2 * LEVELS)])
    t = distance * 6 * np.exp(-np.tile(LEVELS, 2) * 2) + generator.normal(0, 1, 2 * levels)
    t[CONSTANT] = np.nan
    p, blank = 2 * norm.sf(np.abs(t)), [np.nan, np.nan]
    kept = [*(np.nan_to_num(p, nan=1.0) < 0.05), True, True]
    weight = np.where(kept, generator.normal(0, 0.4, len(names)), 0.0)
    features = pd.DataFrame({
        "feature": names, "order": [*["morf"] * levels, *["lerf"] * levels, None, None],
        "level": [*LEVELS, *LEVELS, *blank], "kept": kept, "member_mean": [*(base + 0.01 * np.nan_to_num(t)), *blank],
        "nonmember_mean": [*base, *blank], "t": [*t, *blank], "p": [*p, *blank], "importance": np.abs(weight) / 10,
    })  # fmt: skip
    seen = ATTACKED[: len(ROWS)]
    reasons = pd.DataFrame(
        (weight * generator.normal(0, 1, (len(seen), len(names)))).astype(np.float32), columns=names
    ).assign(index=seen)
    told = {"attack_test": attack_leaf(rest, 0.05), "target": attack_leaf(target, 0.05), "alpha": 0.1,
            "validation_auc": {"0": 0.6, "0.1": 0.7}, "features_kept": int(sum(kept[:-2]))}  # fmt: skip
    files = {
        "scores.parquet": pd.concat([rest.assign(set="attack_test"), target.assign(set="target")], ignore_index=True),
        "features.parquet": features, "contributions.parquet": reasons,
    }  # fmt: skip
    record = {"experiment": plain.changed(), "metrics": told, "seconds": 3.0, "fingerprint": plain.data.fingerprint}
    store.write("attack", experiment.key("attack", one), files, record)


BATTERY = ("gap", "loss", "modified_entropy", "attribution_variance", "attribution_l1", "attribution_l2",
           "input_gradient_norm", "loss_mlp", "lira_offline", "lira_online", "rmia")  # fmt: skip


def add_battery(store: Store, one: Experiment) -> None:
    """Write a made-up battery: LiRA ahead, the maps at the end, and canaries where the split has some."""
    plain = one.canonical()
    distance = EXPOSED[plain.defense.name][1]
    frame = attack_scores(0, [0]).drop(columns="score")
    member = frame["member"].to_numpy()
    exposure = np.random.default_rng(5).normal(0, 1, len(frame))
    frame = frame.assign(exposure=exposure)
    told: dict[str, object] = {}
    decile: dict[str, object] = {}
    canaries: dict[str, object] = {}
    for number, name in enumerate(BATTERY):
        scores = attack_scores(distance * (0.2 + 0.12 * number), [number, one.train.seed, len(plain.defense.name)])
        values = np.sign(scores["score"] + 1.0) if name == "gap" else scores["score"] + 0.3 * exposure * (member - 0.5)
        frame[name] = values
        sign = -1 if name in ("attribution_l1", "input_gradient_norm") else 1
        told[name] = attack_leaf(frame, column=name) | {"sign": sign}
        decile[name] = merits.vulnerable_decile(frame[name], member, exposure, 0.0)
        if one.split.canaries:
            few = frame.groupby("member").head(one.split.canaries)
            canaries[name] = attack_leaf(few.assign(**{name: few[name] + few["member"]}), column=name)
    told |= {"vulnerable_decile": decile, "canaries": canaries}
    record = {"experiment": plain.changed(), "metrics": told, "seconds": 3.0, "fingerprint": plain.data.fingerprint}
    store.write("battery", experiment.key("battery", one), {"scores.parquet": frame}, record)


def add_attacks(store: Store, preset: Preset) -> None:
    """Both attackers under every explainer, and the battery, on the headline runs of the first seed."""
    for defense in preset.defenses:
        run = preset.run(defense, preset.seeds[0])
        for name in EXPLAINERS:
            for shadow in ("undefended", "same") if defense.name != "none" else ("undefended",):
                add_attack(store, run.set({"explain.name": name, "attack.shadow": shadow}))
        add_battery(store, run)
