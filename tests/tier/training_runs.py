"""Training of a few tiny batches, and what tests of any defense ask of it."""

import json

import numpy as np

from tests.tier.toys import problem
from tier import config, defenses
from tier.training import Problem, State, fit, start

SMALL = config.Model(width=4)
# three batches an epoch, the last one shorter
QUICK = config.Train(epochs=4, batch_size=10, learning_rate=0.01, threads=1)
ARCHITECTURES = ("small", "resnet18_imagenet", "mobilenet_v2")


def trained(
    defense: config.Defense,
    train: config.Train = QUICK,
    data: Problem | None = None,
    model: config.Model = SMALL,
    until: int | None = None,
) -> State:
    """A run of a defense to its end, or to an epoch."""
    data = data or problem()
    return fit(data, start(data, model, train), defenses.build(defense), train, until=until)


def interrupted(defense: config.Defense, after: int, train: config.Train = QUICK, model: config.Model = SMALL) -> State:
    """The same run from the checkpoint of epoch `after`, by a process that knows nothing else."""
    data = problem()
    first = trained(defense, train, data, model, until=after)
    second = start(data, model, train)
    second.load(first.tensors(), json.loads(json.dumps(first.events)))
    return fit(data, second, defenses.build(defense), train)


def of_architecture(defense: config.Defense, architecture: config.ArchitectureName) -> State:
    """Two epochs of two batches with a net of that architecture."""
    train = config.Train(epochs=2, batch_size=8, learning_rate=1e-3, threads=1)
    model = config.Model(architecture=architecture, width=4)
    return trained(defense, train, problem(16, height=32, width=32), model)


def assert_same_weights(first: State, second: State) -> None:
    """The same weights, statistics and optimizer tensors, bit for bit."""
    a, b = first.tensors(), second.tensors()
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


def differ(first: State, second: State) -> bool:
    """Whether any weight differs."""
    a, b = first.tensors(), second.tensors()
    return any(not np.array_equal(a[name], b[name]) for name in a)


def column(state: State, name: str) -> list[float]:
    """One figure of every epoch."""
    return [event[name] for event in state.events]
