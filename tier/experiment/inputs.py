"""The images of a config, and which of them a model has as members and non-members."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tier.config import Data, Split
from tier.context import Context
from tier.environment import data_root

if TYPE_CHECKING:
    from torch import Tensor

    from tier.data import Dataset
    from tier.splits import Membership
    from tier.training import Problem

KEPT_DATASETS = 2
_datasets: dict[tuple[Data, str | None], "Dataset"] = {}  # the last few read, for the next stage of the same process


def dataset(config: Data, context: Context = Context()) -> "Dataset":
    """The images of a config, read once per data root and process; verified against a pinned fingerprint."""
    from tier import data

    place = config.model_copy(update={"fingerprint": None}), data_root()
    if place not in _datasets:
        report = context.step("reading the images")
        found = data.load(place[0], place[1], lambda done, total: report(done / max(total, 1)))
        while len(_datasets) >= KEPT_DATASETS:
            del _datasets[next(iter(_datasets))]
        _datasets[place] = found
    data.verify(_datasets[place], config)
    return _datasets[place]


@lru_cache(maxsize=4)
def model_sets(data_config: Data, split_config: Split) -> tuple["Problem", np.ndarray]:
    """The members and non-members of the model that `split.role` names, in a seeded order; their rows, members first.

    Raises SplitError when the split has no such sets, or too few images for the canaries asked for.
    """
    import torch

    from tier import splits
    from tier.training import Problem

    source = dataset(data_config)
    sets = membership(source, split_config)
    rows = _part(source, _model_rows(source, sets, split_config), split_config)
    labels = splits.with_canaries(source.labels, sets, split_config, len(source.class_names))
    images = [torch.from_numpy(np.ascontiguousarray(source.images[index])) for index in rows]
    classes = [torch.from_numpy(labels[index]) for index in rows]
    return Problem(images[0], classes[0], images[1], classes[1], len(source.class_names)), np.concatenate(rows)


def _model_rows(source: "Dataset", sets: "Membership", config: Split) -> list[np.ndarray]:
    """Rows of the members and of the non-members of one model, each in a seeded order."""
    from tier import splits

    if config.role == "reference":
        pool = np.sort(np.concatenate([sets.indices("target_train"), sets.indices("target_test")]))
        groups = source.groups[pool] if config.group_disjoint and source.groups is not None else None
        inside = splits.halves(source.labels[pool], config.seed, config.reference, groups)
        return [pool[inside], pool[~inside]]
    rng = np.random.default_rng(config.seed)
    rows = [rng.permutation(sets.indices(f"{config.role}_{part}")) for part in ("train", "test")]
    if not all(map(len, rows)):
        raise splits.SplitError(f"there are no {config.role} images: set split.{config.role}_train and _test above 0")
    return rows


def _part(source: "Dataset", rows: list[np.ndarray], config: Split) -> list[np.ndarray]:
    """Of a model's members one part, and everything else as non-members, of which the other members come first."""
    from tier import splits

    if config.parts == 1:
        return rows
    groups = source.groups[rows[0]] if config.group_disjoint and source.groups is not None else None
    inside = splits.partition(source.labels[rows[0]], config.seed, config.parts, groups) == config.part
    if config.left_out:
        inside = ~inside
    return [rows[0][inside], np.concatenate([rows[0][~inside], rows[1]])]


def membership(source: "Dataset", config: Split) -> "Membership":
    """Which of the four sets each image is in. Raises SplitError as `splits.make` does."""
    from tier import splits

    return splits.make(source.labels, config, source.images, source.groups)


def joined(problem: "Problem") -> tuple["Tensor", "Tensor", np.ndarray]:
    """A model's members and non-members in one: images, labels, and which are members."""
    import torch

    images = torch.cat([problem.members, problem.nonmembers])
    labels = torch.cat([problem.member_labels, problem.nonmember_labels])
    return images, labels, np.arange(len(labels)) < len(problem.members)
