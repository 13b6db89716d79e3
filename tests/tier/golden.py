"""The keys of every preset and the code behind every stage, as last confirmed.

`python -m tests.tier.golden` rewrites `golden.json`. Do that only after raising the version of each stage in
`tier.experiment.STAGES` whose results changed, or after making sure that they did not.
"""

import ast
import hashlib
import json
from pathlib import Path

from tier import experiment, presets

FILE = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).resolve().parents[2] / "tier"
TRAINING = (
    "training.py",
    "runtime.py",
    "perturbation.py",
    "models/*.py",
    "defenses/*.py",
    "splits.py",
    "data/signs.py",
)
EXPLAINING = ("trajectories.py", "perturbation.py", "explainers/*.py", "stats.py", "runtime.py")
SOURCES = {
    "split": ("splits.py",),
    "warmup": TRAINING,
    "train": (*TRAINING, "metrics.py"),
    "maps": ("explainers/*.py", "runtime.py"),
    "trajectory": EXPLAINING,
    "divergence": ("divergence.py", *EXPLAINING),
    "audit": ("attacks/agp.py", "metrics.py", "stats.py"),
    "path": (*TRAINING, *EXPLAINING, "attacks/agp.py", "metrics.py"),
    "report": (),
}


def keys() -> dict[str, dict[str, str]]:
    """For each preset and defense the key of each stage, with the preset's data pinned (or a stand-in fingerprint)."""
    found = {}
    for preset in presets.PRESETS.values():
        for defense in preset.defenses:
            e = preset.run(defense)
            if e.data.fingerprint is None:
                e = e.set({"data.fingerprint": "0" * 64})
            found[f"{preset.name} {defense.name}"] = {stage: experiment.key(stage, e) for stage in experiment.STAGES}
    return found


def code() -> dict[str, str]:
    """For each stage a hash of its code: of the syntax tree, so that comments and docstrings do not count."""
    return {stage: _hash(stage, patterns) for stage, patterns in SOURCES.items()}


def _hash(stage: str, patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256(_bare((ROOT / "experiment.py").read_text(), f"_{stage}").encode())
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(_bare(path.read_text()).encode())
    return digest.hexdigest()


def _bare(source: str, function: str | None = None) -> str:
    tree: ast.AST = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    if function is not None:
        (tree,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
    return ast.dump(tree)


if __name__ == "__main__":
    FILE.write_text(json.dumps({"keys": keys(), "code": code()}, indent=1, sort_keys=True) + "\n")
