"""The keys of every preset and the code behind every stage, as last confirmed.

`python -m tests.tier.golden` rewrites `golden.json`. Do that only after raising the version of each stage in
`tier.experiment.STAGES` whose results changed, or after making sure that they did not.
"""

import ast
import hashlib
import json
from pathlib import Path

from tier import experiment, presets
from tier.config import Experiment

FILE = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).resolve().parents[2] / "tier"
INPUT = ("splits.py", "data/*.py", "runtime.py")
TRAINING = (*INPUT, "training.py", "perturbation.py", "models/*.py", "defenses/*.py", "explainers/base.py")
EXPLAINING = (
    *INPUT, "trajectories.py", "perturbation.py", "imputation.py", "inference.py", "explainers/*.py", "stats.py",
    "models/*.py", "gallery.py",
)  # fmt: skip
SOURCES = {
    "split": INPUT,
    "warmup": TRAINING,
    "train": (*TRAINING, "metrics.py", "attacks/gap.py", "attacks/loss.py"),
    "maps": EXPLAINING,
    "trajectory": EXPLAINING,
    "divergence": ("divergence.py", *EXPLAINING),
    "inference": (*EXPLAINING, "attacks/agp.py", "metrics.py"),
    "gallery": EXPLAINING,
    "inspect": EXPLAINING,
    "verdict": (*EXPLAINING, "attacks/agp.py"),
    "fidelity": ("fidelity.py", *EXPLAINING),
    "probes": ("quality.py", *EXPLAINING),
    "quality": ("quality.py", *EXPLAINING),
    "alpha": (*EXPLAINING, "attacks/agp.py", "metrics.py"),
    "attack": (*EXPLAINING, "attacks/agp.py", "metrics.py"),
    "battery": (*EXPLAINING, "signals.py", "attacks/*.py", "metrics.py", "defenses/augmentation.py"),
    "audit": ("attacks/agp.py", "metrics.py", "stats.py"),
    "path": (*TRAINING, *EXPLAINING, "attacks/agp.py", "metrics.py"),
    "report": (),
}


def keys() -> dict[str, dict[str, str]]:
    """For each preset, defense and shipped explainer (the first is not named) the key of each stage.

    The preset's data are pinned, or have a stand-in fingerprint.
    """
    found = {}
    for preset in presets.PRESETS.values():
        for defense in preset.compared:
            for explainer in preset.explainers if defense in preset.defenses else preset.explainers[:1]:
                e = preset.run(defense).set({"explain.name": explainer})
                if e.data.fingerprint is None:
                    e = e.set({"data.fingerprint": "0" * 64})
                run = " ".join([preset.name, defense.name, *({explainer} - {preset.explainers[0]})])
                found[run] = {stage: experiment.key(stage, e) for stage in experiment.STAGES}
    return found


def code() -> dict[str, str]:
    """For each stage a hash of its code: of the syntax tree, so that comments and docstrings do not count."""
    return {stage: _hash(stage, patterns) for stage, patterns in SOURCES.items()}


def _hash(stage: str, patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256(_pipeline(stage).encode())
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(_bare(path.read_text()).encode())
    return digest.hexdigest()


def _pipeline(stage: str) -> str:
    """The stage's function in experiment.py, and all there that is no stage's own: helpers and constants."""
    tree = ast.parse((ROOT / "experiment.py").read_text())
    others = {f"_{name}" for name in experiment.STAGES} - {f"_{stage}"}
    names = {  # what decides when, not what
        "STAGES", "find", "ensure", "pin", "key", "_compute", "_device", "Unmeasured", "_undecided",
        "_settled", "_pinned", "_auto", "_with_inference", "_with_fingerprint",
    }  # fmt: skip
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name not in others | names]
    constants = [n for n in tree.body if isinstance(n, ast.Assign)]
    return _bare("\n".join(ast.unparse(node) for node in [*constants, *kept]))


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def defaults() -> dict[str, object]:
    """Every default of the settings: keys leave defaults out, so changing one changes what old keys mean."""
    return Experiment().model_dump(mode="json", by_alias=True)


if __name__ == "__main__":
    FILE.write_text(
        json.dumps({"keys": keys(), "code": code(), "defaults": defaults()}, indent=1, sort_keys=True) + "\n"
    )
