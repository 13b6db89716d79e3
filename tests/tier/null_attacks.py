"""The attacks where there is nothing to find: models that know nothing of any image, members chosen at random.

Everything but the weights is real: splits, shadow, reference models, order of the images, features, thresholds.
`python -m tests.tier.null_attacks` prints the table of docs/attack.md.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.tier.test_experiment import attacked
from tier import experiment, training
from tier.attacks import ATTACKS
from tier.config import Defense
from tier.experiment import training as training_stages
from tier.metrics import auc, auc_interval
from tier.store import Store
from tier.summary import as_markdown

SEEDS = 20


def areas(seed: int) -> dict[str, tuple[float, float, float]]:
    """Per attack its AUC on the target with the 95 % interval; each seed has splits and models of its own."""
    e = attacked(Defense(), **{"train.epochs": 1, "train.seed": seed, "split.seed": seed})
    with tempfile.TemporaryDirectory() as folder, ignorant(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no trajectory feature separates")
        store = Store(folder)
        battery = experiment.ensure(store, "battery", e).frame("scores.parquet")
        learnt = experiment.ensure(store, "attack", e).frame("scores.parquet")
    target = learnt[learnt["set"] == "target"]
    member = battery["member"].to_numpy(bool)
    found = {name: (battery[name].to_numpy(), member) for name in ATTACKS if name != "agp"}
    found["agp"] = target["score"].to_numpy(), target["member"].to_numpy(bool)
    return {name: (auc(s[m], s[~m]), *auc_interval(s[m], s[~m])) for name, (s, m) in found.items()}


@contextmanager
def ignorant() -> Iterator[None]:
    """Right after its training every model forgets: random weights, and statistics that no image has touched."""
    fit, made = training_stages._fit, iter(range(10_000))

    def fit_and_forget(*arguments: Any, **options: Any) -> "training.State":
        state = fit(*arguments, **options)
        forget(state.model, next(made))
        return state

    training_stages._fit = fit_and_forget
    try:
        yield
    finally:
        training_stages._fit = fit


def forget(model: nn.Module, seed: int) -> None:
    """Weights that depend on `seed` alone."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * (0.3 if weight.ndim > 1 else 0.1))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        for name, values in model.named_buffers():
            if name.endswith(("normalize.mean", "normalize.std")):
                values.fill_(0.5)


def table(seeds: int = SEEDS) -> dict[str, dict[str, float]]:
    """Per attack over the seeds: the mean AUC, and how many 95 % intervals hold 0.5."""
    runs = [areas(seed) for seed in range(seeds)]
    return {
        name: {
            "mean_auc": float(np.mean([run[name][0] for run in runs])),
            "hold": sum(run[name][1] <= 0.5 <= run[name][2] for run in runs),
        }
        for name in runs[0]
    }


def as_text(found: dict[str, dict[str, float]], seeds: int = SEEDS) -> str:
    """The table as Markdown."""
    body = [[name, f"{of['mean_auc']:.3f}", f"{of['hold']:.0f} of {seeds}"] for name, of in found.items()]
    return as_markdown([["attack", "mean AUC", "intervals that hold 0.5"], *body])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.stdout.write(as_text(table()) + "\n")
