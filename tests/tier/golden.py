"""The keys of every preset and the code behind every stage, as last confirmed.

`python -m tests.tier.golden` rewrites `golden.json`. Do that only after raising the version of each stage in
`tier.experiment.STAGES` whose results changed, or after making sure that they did not.

What counts as a stage's code: its own function; all else that is no stage's function in the file of `tier/experiment/`
where that stands, and in those that this file imports, in turn; and the files named in `SOURCES`. `stages.py` does not
count, which decides when something is computed and not what, nor `pipeline.py`, whose table shows in the keys.
"""

import ast
import hashlib
import json
from pathlib import Path

from tier import experiment, presets
from tier.config import Experiment

FILE = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).resolve().parents[2] / "tier"
PIPELINE = ROOT / "experiment"
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
    digest = hashlib.sha256(pipeline(stage).encode())
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(_bare(path.read_text()).encode())
    return digest.hexdigest()


def pipeline(stage: str) -> str:
    """The stage's function, and all that is no stage's own in its file and in those that this imports."""
    functions = {name: (of.compute.__module__, of.compute.__name__) for name, of in experiment.STAGES.items()}
    others = {function for name, (_, function) in functions.items() if name != stage}
    files = _imported(functions[stage][0].removeprefix("tier.experiment."))
    nodes = [node for path in files for node in ast.parse(path.read_text()).body]
    kept = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name not in others]
    constants = [n for n in nodes if isinstance(n, ast.Assign | ast.AnnAssign)]
    return _bare("\n".join(ast.unparse(node) for node in [*constants, *kept]))


def _imported(name: str) -> list[Path]:
    """A file of the pipeline and those that it imports, directly or not, but for `stages.py`; in alphabetical order."""
    found, waiting = set(), [name]
    while waiting:
        if (one := waiting.pop()) in found or one == "stages":
            continue
        found.add(one)
        for node in ast.walk(ast.parse((PIPELINE / f"{one}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "tier.experiment":
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tier.experiment."):
                waiting.append(str(node.module).removeprefix("tier.experiment."))
    return [PIPELINE / f"{one}.py" for one in sorted(found)]


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
