"""Four disjoint sets of a data set: target train, target test, shadow train, shadow test (SPEC 1, Table II).

Each set has its share of every class, to within one image. With `group_disjoint` every group belongs to one set only,
and the shares hold as far as the groups allow.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tier.config import Split

SETS = ("target_train", "target_test", "shadow_train", "shadow_test")
UNUSED = -1


class SplitError(ValueError):
    """The images cannot be split as asked; the message says what to do."""


@dataclass(frozen=True)
class Membership:
    """Which set each image is in: `sets` (N,) int8, an index into `SETS`, or -1 for unused.

    `duplicates` images were dropped because an earlier one has the same bytes, and `conflicts` because images with the
    same bytes have different labels; `notes` says so for the user.
    """

    sets: np.ndarray
    duplicates: int = 0
    conflicts: int = 0
    notes: tuple[str, ...] = ()

    def indices(self, name: str) -> np.ndarray:
        """The images of one set, ascending. Raises ValueError listing the sets when there is none of that name."""
        if name not in SETS:
            raise ValueError(f"unknown set '{name}'; choose one of {', '.join(SETS)}")
        return np.flatnonzero(self.sets == SETS.index(name))

    @property
    def sizes(self) -> dict[str, int]:
        """How many images each set has."""
        return {name: int((self.sets == k).sum()) for k, name in enumerate(SETS)}

    @property
    def matrix(self) -> np.ndarray:
        """(N, 4) bool, one column per set."""
        return self.sets[:, None] == np.arange(len(SETS))


@dataclass(frozen=True)
class AttackSplit:
    """Images that the attack model learns from and is tested on, ascending; members and non-members in both."""

    train: np.ndarray
    test: np.ndarray


def make(
    labels: np.ndarray, split: Split, images: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Membership:
    """Split images with these labels (N,) into the four sets.

    `images` (N, ...), if given, are searched for byte-identical ones: the first is kept, or none if their labels
    differ. `groups` (N,) numbers near-duplicates that `split.group_disjoint` keeps in one set. If the images left are
    fewer than asked, all sets shrink by the same factor. Raises SplitError when a class is too small to be in every
    set, when nothing is left, or when groups are asked for and there are none.
    """
    if split.group_disjoint and groups is None:
        raise SplitError(
            "this data has no groups to keep apart (a 'track' or 'group' column): set split.group_disjoint to false"
        )
    first = first_identical(images) if images is not None else np.arange(len(labels))
    usable, duplicates, conflicts = _without_duplicates(labels, first)
    rows = np.flatnonzero(usable)
    wanted = np.array([getattr(split, name) for name in SETS])
    classes, codes, counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
    _refuse_small_classes(classes, counts, int((wanted > 0).sum()))
    sizes = _shrunk(wanted, len(rows))
    rng = np.random.default_rng(split.seed)
    sets = np.full(len(labels), UNUSED, np.int8)
    if split.group_disjoint and groups is not None:
        sets[rows] = _by_group(codes, groups[rows], sizes, rng)
    else:
        sets[rows] = _by_class(codes, sizes, rng)
    notes = _duplicate_notes(duplicates, conflicts) + _size_notes(sets, wanted, split.group_disjoint)
    notes += _class_notes(codes, sets[rows], classes) + _leak_notes(sets, groups)
    return Membership(sets, duplicates, conflicts, tuple(notes))


def attack_split(
    membership: Membership,
    labels: np.ndarray,
    seed: int,
    holdout: float = 0.2,
    groups: np.ndarray | None = None,
    model: Literal["shadow", "target"] = "shadow",
) -> AttackSplit:
    """Members and non-members of the shadow (or `model="target"`), split 80/20 by membership and class (Table II).

    `labels` (N,) are those of the whole data set; `groups` (N,), if given, are kept on one side, and the shares hold as
    far as they allow. Raises SplitError when a part would be empty.
    """
    rng = np.random.default_rng(seed)
    train, test = [], []
    for name in (f"{model}_train", f"{model}_test"):
        rows = membership.indices(name)
        held = round(holdout * len(rows))
        if not 0 < held < len(rows):
            raise SplitError(f"{name} has {len(rows)} images, too few to hold {holdout:.0%} out: raise split.{name}")
        _, codes = np.unique(labels[rows], return_inverse=True)
        sizes = np.array([len(rows) - held, held])
        part = _by_class(codes, sizes, rng) if groups is None else _deal(codes, groups[rows], sizes, rng)
        if not (part == 1).any():
            raise SplitError(f"{name} has too few groups to hold {holdout:.0%} out: set split.group_disjoint to false")
        train.append(rows[part == 0])
        test.append(rows[part == 1])
    return AttackSplit(np.sort(np.concatenate(train)), np.sort(np.concatenate(test)))


def halves(labels: np.ndarray, seed: int, number: int, groups: np.ndarray | None = None) -> np.ndarray:
    """A random half of images with these labels (N,), its share of every class to within one: (N,) bool.

    Half 2k + 1 is the complement of half 2k, so that over whole pairs every image is in as many halves as out of them.
    Where there are `groups` (N,), each is in one half with all its images, and the sizes hold as far as that allows.
    """
    _, codes = np.unique(labels, return_inverse=True)
    rng = np.random.default_rng([seed, number // 2])
    if groups is None:
        inside = _by_class(codes, np.array([len(labels) // 2]), rng) == 0
    else:
        inside = _deal(codes, groups, np.array([1, 1]), rng) == 0
    return ~inside if number % 2 else inside


def partition(labels: np.ndarray, seed: int, parts: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Which of so many disjoint parts each image with these labels (N,) is in, (N,) integers.

    Each part has its share of every class to within one image, so that some lack a class with fewer images than parts.
    Where there are `groups` (N,), each is in one part with all its images, and the shares hold as far as that allows.
    Raises SplitError when there are fewer images or groups than parts.
    """
    units = len(labels) if groups is None else len(np.unique(groups))
    if parts > units:
        what = "members" if groups is None else "groups of members"
        raise SplitError(f"{units} {what} are too few for {parts} parts: lower that number")
    _, codes = np.unique(labels, return_inverse=True)
    sizes = np.diff(np.linspace(0, len(labels), parts + 1).astype(np.int64))
    rng = np.random.default_rng([seed, 3])
    if groups is None:
        return _by_class(codes, sizes, rng)
    dealt = _deal(codes, groups, sizes, rng)
    if len(np.unique(dealt)) < parts:
        raise SplitError(f"{units} groups of members do not fill {parts} parts: lower that number")
    return dealt


def with_canaries(labels: np.ndarray, sets: Membership, split: Split, classes: int) -> np.ndarray:
    """The labels (N,) with those of `split.canaries` target members and as many non-members exchanged.

    Raises SplitError when a set has fewer images.
    """
    rows = canaries(sets, split)
    return exchanged(labels, rows, classes, np.random.default_rng([split.seed, 1])) if len(rows) else labels


def canaries(sets: Membership, split: Split) -> np.ndarray:
    """The rows of the mislabelled target members, then of the mislabelled non-members; empty without canaries."""
    if not split.canaries:
        return np.zeros(0, np.int64)
    rng = np.random.default_rng([split.seed, 2])
    chosen = []
    for name in ("target_train", "target_test"):
        rows = sets.indices(name)
        if len(rows) < split.canaries:
            raise SplitError(f"{name} has {len(rows)} images, too few for {split.canaries} canaries: lower that number")
        chosen.append(rng.choice(rows, split.canaries, replace=False))
    return np.concatenate(chosen)


def exchanged(labels: np.ndarray, rows: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The labels (N,) with those of `rows` exchanged for other classes, each as likely as any other."""
    changed = labels.copy()
    changed[rows] = (labels[rows] + rng.integers(1, classes, len(rows))) % classes
    return changed


def first_identical(images: np.ndarray) -> np.ndarray:
    """For each image (N, ...) the index of the first one with the same bytes, (N,) int64."""
    seen: dict[bytes, int] = {}
    digests = (hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest() for image in images)
    return np.fromiter((seen.setdefault(digest, k) for k, digest in enumerate(digests)), np.int64, len(images))


def _without_duplicates(labels: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Which images stay, (N,) bool; how many were dropped as repeats, and because their copies' labels differ."""
    differs = labels != labels[first]
    conflicting = np.isin(first, first[differs])
    repeated = (first != np.arange(len(first))) & ~conflicting
    return ~repeated & ~conflicting, int(repeated.sum()), int(conflicting.sum())


def _refuse_small_classes(classes: np.ndarray, counts: np.ndarray, needed: int) -> None:
    if len(classes) == 0:
        raise SplitError("no image is left to split: check the data source and data.limit")
    small = [f"{label} ({count})" for label, count in zip(classes, counts, strict=True) if count < needed]
    if small:
        raise SplitError(
            f"{len(small)} classes have fewer than {needed} images, one for each set: label (images) "
            f"{', '.join(small[:20])}. Add images, merge or remove these classes, raise data.limit, or set the "
            "shadow sizes to 0"
        )


def _shrunk(wanted: np.ndarray, available: int) -> np.ndarray:
    """The sizes (S,), all scaled by the same factor if they do not fit. Raises SplitError when a set would be empty."""
    total = int(wanted.sum())
    sizes = wanted if total <= available else wanted * available // total
    empty = [name for name, want, size in zip(SETS, wanted, sizes, strict=True) if want and not size]
    if empty:
        raise SplitError(
            f"{available} images are too few for sets of {_sizes(wanted)}: nothing is left for {', '.join(empty)}"
        )
    return np.asarray(sizes)


def stratified_counts(sizes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How many images of each class each set gets, (S, K) int64: its share, rounded down or up, with exact set sizes.

    `sizes` (S,) add up to at most the images of the classes, `counts` (K,). The unused rest is a set like the others,
    so that rows and columns of shares both add up to whole numbers. Rounding such a matrix is a network flow, hence
    always possible; going class by class, giving the units left to the sets that lack most, finds it (Gale and Ryser).
    All in integers: no tie is decided by a rounding error.
    """
    total = int(counts.sum())
    rows = np.append(sizes, total - sizes.sum()).astype(np.int64)
    result = rows[:, None] * counts // total  # (S + 1, K)
    lacking = rows - result.sum(1)
    fraction = rows[:, None] * counts % total
    for k, left in enumerate(counts - result.sum(0)):
        favoured = np.lexsort((-fraction[:, k], -lacking))[:left]
        result[favoured, k] += 1
        lacking[favoured] -= 1
    return np.asarray(result[:-1])


def _by_class(codes: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A set for each image of class codes (N,), drawn at random within its class, (N,) int8, or wider for many sets."""
    sets = np.full(len(codes), UNUSED, np.min_scalar_type(-len(sizes)))
    for k, quota in enumerate(stratified_counts(sizes, np.bincount(codes)).T):
        drawn = rng.permutation(np.flatnonzero(codes == k))
        for s, chosen in enumerate(np.split(drawn, np.cumsum(quota))[:-1]):
            sets[chosen] = s
    return sets


def _by_group(codes: np.ndarray, groups: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A set for each image, (N,) int8, such that no group is in two.

    Every group is dealt to one set; then each set draws its share of every class from its own groups. Where these hold
    too few of a class, other classes fill up the set; where they hold too few at all, every set shrinks by one factor.
    """
    dealt = _deal(codes, groups, sizes, rng)
    pools = np.array([np.bincount(codes[dealt == s], minlength=codes.max() + 1) for s in range(len(sizes))])  # (S, K)
    asked = sizes > 0
    if (pools.sum(1)[asked] == 0).any():
        raise SplitError(
            f"{len(np.unique(groups))} groups are too few to fill the sets: set split.group_disjoint to false"
        )
    tightest = min(np.flatnonzero(asked), key=lambda s: pools[s].sum() / sizes[s])
    if pools[tightest].sum() < sizes[tightest]:
        sizes = np.maximum(sizes * pools[tightest].sum() // sizes[tightest], asked)
    quotas = np.minimum(stratified_counts(sizes, np.bincount(codes)), pools)
    sets = np.full(len(codes), UNUSED, np.int8)
    for s, quota in enumerate(quotas):
        for k, count in enumerate(_filled(quota, pools[s], int(sizes[s]))):
            sets[rng.permutation(np.flatnonzero((codes == k) & (dealt == s)))[:count]] = s
    return sets


def _deal(codes: np.ndarray, groups: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A set for every group, given to each of its images, (N,) int64: all images, in proportion to the set sizes.

    Large groups first, each to the set that lacks most of the group's classes, then most images; ties at random.
    """
    _, members = np.unique(groups, return_inverse=True)
    contents = np.zeros((members.max() + 1, codes.max() + 1), np.int64)  # (G, K)
    np.add.at(contents, (members, codes), 1)
    shares = sizes / sizes.sum()
    targets = np.outer(shares, contents.sum(0))  # (S, K)
    held = np.zeros_like(targets)
    choice = np.empty(len(contents), np.int64)
    shuffled = rng.permutation(len(contents))
    for group in shuffled[np.argsort(-contents[shuffled].sum(1), kind="stable")]:
        content = contents[group]
        present = np.flatnonzero(content)
        lack = np.full(len(sizes), -np.inf)
        overall = np.full(len(sizes), -np.inf)
        for s in np.flatnonzero(sizes):
            lack[s] = (content[present] * (1 - held[s, present] / targets[s, present])).sum()
            overall[s] = 1 - held[s].sum() / targets[s].sum()
        best = np.lexsort((rng.permutation(len(sizes)), -np.round(overall, 9), -np.round(lack, 9)))[0]
        choice[group] = best
        held[best] += content
    return np.asarray(choice[members])


def _filled(quota: np.ndarray, pool: np.ndarray, size: int) -> np.ndarray:
    """The quota (K,) raised to `size` in all, each unit to the class least over its quota that has images left."""
    result = quota.copy()
    for _ in range(size - int(result.sum())):
        open_ = np.flatnonzero(result < pool)
        result[open_[np.argmin((result[open_] + 1) / np.maximum(quota[open_], 1))]] += 1
    return result


def _duplicate_notes(duplicates: int, conflicts: int) -> list[str]:
    notes = []
    if duplicates:
        notes.append(f"{duplicates} byte-identical images dropped, the first of each kept")
    if conflicts:
        notes.append(f"{conflicts} byte-identical images with different labels dropped, none kept")
    return notes


def _size_notes(sets: np.ndarray, wanted: np.ndarray, by_group: bool) -> list[str]:
    sizes = np.array([(sets == s).sum() for s in range(len(SETS))])
    if (sizes == wanted).all():
        return []
    what = "images or groups" if by_group else "images"
    return [f"too few {what} for sets of {_sizes(wanted)}: all shrink by one factor, to {_sizes(sizes)}"]


def _class_notes(codes: np.ndarray, sets: np.ndarray, classes: np.ndarray) -> list[str]:
    """Say where a set lacks a class, or has a share of it that is more than one image off."""
    notes, worst = [], 0.0
    counts = np.bincount(codes)
    for s in np.unique(sets[sets != UNUSED]):
        held = np.bincount(codes[sets == s], minlength=len(counts))
        worst = max(worst, float(np.abs(held - held.sum() * counts / counts.sum()).max()))
        if absent := [str(label) for label in classes[held == 0]]:
            shown = ", ".join(absent[:20]) + (" ..." if len(absent) > 20 else "")
            notes.append(f"{SETS[s]} holds no image of {len(absent)} classes: label {shown}")
    if worst > 1 + 1e-9:
        notes.append(f"the groups do not allow exact class shares: a set is up to {worst:.0f} images off in a class")
    return notes


def _leak_notes(sets: np.ndarray, groups: np.ndarray | None) -> list[str]:
    """Say how many test images have a near-duplicate in the same model's training set."""
    if groups is None:
        return []
    shared = {}
    for model in ("target", "shadow"):
        train, test = (sets == SETS.index(f"{model}_{part}") for part in ("train", "test"))
        shared[f"{model}_test"] = int(np.isin(groups[test], groups[train]).sum())
    if not any(shared.values()):
        return []
    counts = " and ".join(f"{count} images of {name}" for name, count in shared.items())
    return [f"groups are not kept apart: {counts} share their group with a training image of the same model"]


def _sizes(sizes: np.ndarray) -> str:
    return " / ".join(map(str, sizes))
