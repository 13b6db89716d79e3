"""The pipeline: data -> split -> train -> maps -> trajectory -> audit, divergence, path -> report.

A stage is a pure function of its config, its parents and the data's fingerprint; `key` names its result, `find` looks
it up, `ensure` computes what is missing. `pipeline` lists the stages, `stages` keys and computes them, the other files
hold the functions they are computed by. Importing this package loads no torch: pages use `key` and `find` only.
"""

from tier.experiment.inputs import dataset, model_sets
from tier.experiment.pipeline import STAGES
from tier.experiment.runs import GALLERY, REFERENCE_SEED, WEIGHTS, model_of, reference, shadow, sources, undefended
from tier.experiment.stages import Files, Stage, Unmeasured, ensure, find, key, pin

__all__ = [
    "GALLERY",
    "REFERENCE_SEED",
    "STAGES",
    "WEIGHTS",
    "Files",
    "Stage",
    "Unmeasured",
    "dataset",
    "ensure",
    "find",
    "key",
    "model_of",
    "model_sets",
    "pin",
    "reference",
    "shadow",
    "sources",
    "undefended",
]
