"""The pipeline on one page: data -> split -> train -> maps -> trajectory -> audit, divergence, path -> report.

Beside it: fidelity compares two models' maps, quality judges one's, gallery and inspect keep what is shown of images.
"""

from tier.config import Attack
from tier.experiment import attacking, auditing, battery, explaining, inspecting, judging, reporting, training
from tier.experiment.runs import sources, undefended
from tier.experiment.stages import STAGES, Stage

STAGES |= {
    "split": Stage(1, lambda e: {"split": e.split.sets().changed()}, (), training.compute_split),
    "warmup": Stage(
        1,
        lambda e: {
            "model": e.model.changed(),
            "train": e.train.changed(),
            "augmentation": e.defense.augmentation.changed() if e.defense.augments else None,
            "epochs": e.defense.tier.warmup,
            **e.split.own(),
        },
        ("split",),
        training.compute_warmup,
    ),
    "train": Stage(
        1,
        lambda e: {
            "model": e.model.changed(),
            "train": e.train.changed(),
            "defense": e.defense.trained.changed(),
            **e.split.own(),
        },
        ("split",),
        training.compute_train,
        lambda e: {name: ("train", run) for name, run in sources(e).items()},
    ),
    "maps": Stage(
        2,
        lambda e: {"explain": e.explain.model_copy(update={"name": e.explain.family[0]}).changed()},
        ("train",),
        explaining.compute_maps,
    ),
    "trajectory": Stage(
        1,
        lambda e: {"explain": e.explain.changed(), "trajectory": e.trajectory.changed()},
        ("train",),
        explaining.compute_trajectory,
        explaining.read_maps,
    ),
    "inference": Stage(1, lambda e: {}, ("train",), explaining.compute_inference),
    "divergence": Stage(
        1,
        lambda e: (
            {"divergence": e.divergence.changed()}
            | ({} if e.explain.name == "gradient" else {"explain": e.explain.changed()})
        ),
        ("train",),
        explaining.compute_divergence,
        explaining.read_maps,
    ),
    "audit": Stage(1, lambda e: {"audit": e.audit.changed()}, ("trajectory",), auditing.compute_audit),
    "path": Stage(1, lambda e: {}, ("audit",), auditing.compute_path),
    "report": Stage(2, lambda e: {}, ("divergence", "audit"), reporting.compute_report),
    "gallery": Stage(1, lambda e: {}, ("trajectory",), inspecting.compute_gallery),
    "inspect": Stage(
        1,
        lambda e: {"inspect": e.inspect.changed(), "trajectory": e.trajectory.changed()},
        ("train",),
        inspecting.compute_inspect,
        lambda e: {"judge": ("train", undefended(e))} if inspecting.judged(e) else {},
        inspecting.while_kept,
    ),
    "verdict": Stage(1, lambda e: {}, ("inspect", "audit"), inspecting.compute_verdict, expires=inspecting.while_kept),
    "alpha": Stage(
        1,
        lambda e: {"attack": attacking.shadow_side(e), "audit": e.audit.changed(), "explain": e.explain.changed()},
        ("train",),
        attacking.compute_alpha,
        attacking.tuned_on,
    ),
    "attack": Stage(
        1,
        lambda e: {"attack": e.attack.changed(), "audit": e.audit.changed(), "explain": e.explain.changed()},
        ("train",),
        attacking.compute_attack,
        attacking.attackers,
    ),
    "battery": Stage(
        2,
        lambda e: {
            "battery": e.battery.canonical(e.explain.name, e.defense.augments).changed(),
            "attack": Attack(seed=e.attack.seed, holdout=e.attack.holdout).changed(),  # which rows teach
            "audit": e.audit.changed(),
            "explain": e.explain.changed(),
        },
        ("train",),
        battery.compute_battery,
        battery.referees,
    ),
    "fidelity": Stage(
        1,
        # which control is compared shows in the parents
        lambda e: {"fidelity": e.fidelity.model_copy(update={"second_seed": None}).changed(), "name": e.explain.name},
        ("maps", "train"),
        judging.compute_fidelity,
        judging.compared,
    ),
    "probes": Stage(
        1, lambda e: {"quality": e.quality.changed(), "target": e.explain.target}, ("train",), judging.compute_probes
    ),
    "quality": Stage(2, lambda e: {"name": e.explain.name}, ("maps", "train", "probes"), judging.compute_quality),
}
