"""Splits: disjoint, of the asked sizes, stratified, group-disjoint, seeded, without duplicates."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from tier.config import Split
from tier.presets import TABLE_II
from tier.splits import SETS, UNUSED, SplitError, attack_split, first_identical, halves, make, stratified_counts

SEEDS = range(12)
TABLE = """dataset,target_train,target_test,shadow_train,shadow_test,attack_train,attack_test
cifar10,10000,10000,10000,10000,16000,4000
cifar100,10000,10000,10000,10000,16000,4000
cinic10,10000,10000,10000,10000,16000,4000
gtsrb,1500,1500,1500,1500,2400,600
openforensics,5000,5000,5000,5000,8000,2000
"""


def random_case(seed: int, fill: float = 0.8) -> tuple[np.ndarray, Split]:
    """Unbalanced labels and sizes that use a share of them."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 12))
    labels = np.repeat(np.arange(classes), rng.integers(8, 90, classes))
    parts = rng.dirichlet(np.ones(4) * 4) * fill * len(labels)
    sizes = np.maximum(parts.astype(int), 1)
    split = Split(**dict(zip(SETS, sizes.tolist(), strict=True)), seed=seed)
    return rng.permutation(labels), split


def random_groups(labels: np.ndarray, seed: int, largest: int = 9) -> np.ndarray:
    """Groups of 1 to `largest` images, each within one class, as tracks are."""
    rng = np.random.default_rng(seed)
    groups, following = np.empty(len(labels), np.int64), 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        numbers = np.repeat(np.arange(len(rows)), rng.integers(1, largest + 1, len(rows)))[: len(rows)]
        groups[rows] = following + numbers
        following += len(rows)
    return groups


def worst_share(labels: np.ndarray, sets: np.ndarray, usable: np.ndarray | None = None) -> float:
    """The largest distance, over sets and classes, from the set's proportional share of the class; slowly."""
    usable = np.ones(len(labels), bool) if usable is None else usable
    worst = 0.0
    for s in range(4):
        size = sum(1 for value in sets if value == s)
        for label in set(labels[usable].tolist()):
            share = size * sum(1 for row in labels[usable] if row == label) / usable.sum()
            held = sum(1 for value, row in zip(sets, labels, strict=True) if value == s and row == label)
            worst = max(worst, abs(held - share))
    return worst


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fill", [0.1, 0.8, 1.0])
def test_sizes_disjointness_and_shares(seed: int, fill: float) -> None:
    labels, split = random_case(seed, fill)
    membership = make(labels, split)
    found = [membership.indices(name) for name in SETS]
    assert [len(rows) for rows in found] == [getattr(split, name) for name in SETS]
    assert len(set(np.concatenate(found).tolist())) == sum(map(len, found))
    assert set(np.flatnonzero(membership.sets == UNUSED)) == set(range(len(labels))) - set(
        np.concatenate(found).tolist()
    )
    assert worst_share(labels, membership.sets) <= 1
    assert membership.sets.dtype == np.int8
    assert membership.matrix.sum(1).tolist() == (membership.sets >= 0).astype(int).tolist()
    assert not any("shrink" in note for note in membership.notes)


@pytest.mark.parametrize("seed", range(40))
def test_rounding_keeps_every_margin(seed: int) -> None:
    """Row sums exact, columns within what a class has, every entry within one of the exact share."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 30, rng.integers(1, 30))
    sizes = rng.multinomial(rng.integers(0, counts.sum() + 1), np.ones(4) / 4)
    result = stratified_counts(sizes, counts)
    assert result.sum(1).tolist() == sizes.tolist()
    assert (result.sum(0) <= counts).all()
    assert (result >= 0).all()
    assert np.abs(result - np.outer(sizes, counts) / counts.sum()).max() <= 1


def test_seed_decides_alone() -> None:
    labels, split = random_case(3)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 4, 4), dtype=np.uint8)
    again = make(labels, split, images)
    assert np.array_equal(make(labels, split, images).sets, again.sets)
    other = make(labels, split.model_copy(update={"seed": 99}), images)
    assert not np.array_equal(other.sets, again.sets)
    assert other.sizes == again.sizes


def test_indices_names_the_sets() -> None:
    labels, split = random_case(0)
    with pytest.raises(ValueError, match=r"unknown set 'train'.*target_train"):
        make(labels, split).indices("train")


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_stay_together(seed: int) -> None:
    labels, split = random_case(seed, 0.5)
    groups = random_groups(labels, seed)
    membership = make(labels, split.model_copy(update={"group_disjoint": True}), groups=groups)
    used = membership.sets != UNUSED
    for group in np.unique(groups[used]):
        assert len(set(membership.sets[used & (groups == group)].tolist())) == 1
    asked = np.array([getattr(split, name) for name in SETS])
    got = np.array(list(membership.sizes.values()))
    if (got == asked).all():
        assert not any("shrink" in note for note in membership.notes)
    else:
        factor = (got / asked).min()
        assert np.abs(got - factor * asked).max() <= 1 + 1e-9, "all sets shrink by one factor"
        assert any("all shrink by one factor" in note for note in membership.notes)


@pytest.mark.parametrize("seed", SEEDS)
def test_enough_small_groups_cost_nothing(seed: int) -> None:
    """With many small tracks, group-disjoint sets have the exact sizes and shares of a random split."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(5), rng.integers(200, 400, 5))
    groups = random_groups(labels, seed, largest=5)
    split = Split(target_train=120, target_test=120, shadow_train=120, shadow_test=120, group_disjoint=True, seed=seed)
    membership = make(labels, split, groups=groups)
    assert set(membership.sizes.values()) == {120}
    assert worst_share(labels, membership.sets) <= 1
    assert membership.notes == ()


def test_groups_across_classes() -> None:
    """A group may hold several classes (a person with several expressions); it still stays in one set."""
    rng = np.random.default_rng(5)
    labels, groups = rng.integers(0, 4, 800), rng.integers(0, 100, 800)
    split = Split(target_train=150, target_test=150, shadow_train=150, shadow_test=150, group_disjoint=True)
    membership = make(labels, split, groups=groups)
    assert set(membership.sizes.values()) == {150}
    sets = [set(groups[membership.indices(name)].tolist()) for name in SETS]
    assert len(set.union(*sets)) == sum(map(len, sets))


def test_groups_that_do_not_allow_the_shares_are_reported() -> None:
    labels = np.repeat([0, 1], [40, 160])
    groups = np.concatenate([np.repeat([0, 1], 20), 2 + np.arange(160)])  # class 0: two groups for four sets
    split = Split(target_train=40, target_test=40, shadow_train=40, shadow_test=40, group_disjoint=True)
    membership = make(labels, split, groups=groups)
    assert set(membership.sizes.values()) == {40}, "other classes fill the sets up"
    absent = [note for note in membership.notes if "holds no image of 1 classes: label 0" in note]
    assert len(absent) == 2
    assert any("do not allow exact class shares" in note for note in membership.notes)


def test_too_few_groups() -> None:
    labels = np.tile([0, 1], 30)
    split = Split(target_train=5, target_test=5, shadow_train=5, shadow_test=5, group_disjoint=True)
    with pytest.raises(SplitError, match="3 groups are too few"):
        make(labels, split, groups=np.repeat([0, 1, 2], 20))
    with pytest.raises(SplitError, match=r"no groups.*group_disjoint"):
        make(labels, split)


def test_random_split_says_how_much_it_leaks() -> None:
    labels = np.tile([0, 1], 200)
    groups = np.arange(400) // 10
    split = Split(target_train=100, target_test=100, shadow_train=100, shadow_test=100)
    membership = make(labels, split, groups=groups)
    expected = {}
    for model in ("target", "shadow"):
        train = set(groups[membership.indices(f"{model}_train")].tolist())
        expected[model] = sum(g in train for g in groups[membership.indices(f"{model}_test")].tolist())
    [note] = membership.notes
    assert f"{expected['target']} images of target_test and {expected['shadow']} images of shadow_test" in note


@pytest.mark.parametrize("seed", SEEDS)
def test_duplicates(seed: int) -> None:
    """The first of equal images with one label stays; none of equal images with several labels does."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 4, (300, 3, 1, 1), dtype=np.uint8)  # 64 different images
    labels = images[:, 0, 0, 0].astype(np.int64) % 2
    labels[rng.integers(0, 300, 10)] ^= 1
    split = Split(target_train=5, target_test=5, shadow_train=5, shadow_test=5, seed=seed)
    membership = make(labels, split, images)
    copies: dict[bytes, list[int]] = {}
    for row, image in enumerate(images):
        copies.setdefault(image.tobytes(), []).append(row)
    several = [rows for rows in copies.values() if len({int(labels[row]) for row in rows}) > 1]
    single = [rows for rows in copies.values() if len({int(labels[row]) for row in rows}) == 1]
    assert membership.conflicts == sum(map(len, several)) > 0
    assert membership.duplicates == sum(len(rows) - 1 for rows in single) > 0
    allowed = {rows[0] for rows in single}
    assert set(np.flatnonzero(membership.sets != UNUSED).tolist()) <= allowed
    usable = np.isin(np.arange(300), list(allowed))
    assert worst_share(labels, membership.sets, usable) <= 1
    assert f"{membership.duplicates} byte-identical images dropped" in membership.notes[0]
    assert f"{membership.conflicts} byte-identical images with different labels" in membership.notes[1]


def test_first_identical_compares_all_bytes() -> None:
    images = np.zeros((5, 3, 2, 2), np.uint8)
    images[1, 2, 1, 1] = 1
    images[3] = images[1]
    assert first_identical(images).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_shrinks_all_sets_by_one_factor(seed: int) -> None:
    labels, split = random_case(seed, 1.7)
    asked = np.array([getattr(split, name) for name in SETS])
    membership = make(labels, split)
    got = np.array(list(membership.sizes.values()))
    assert got.tolist() == [int(size) * len(labels) // int(asked.sum()) for size in asked]
    assert worst_share(labels, membership.sets) <= 1
    assert any(f"to {' / '.join(map(str, got))}" in note for note in membership.notes)


def test_equal_sets_stay_equal() -> None:
    split = Split(target_train=100, target_test=100, shadow_train=100, shadow_test=100)
    membership = make(np.tile([0, 1], 101), split)  # 202 images for 400
    assert set(membership.sizes.values()) == {50}


def test_duplicates_make_the_sets_shrink() -> None:
    images = np.arange(80, dtype=np.uint8).reshape(80, 1, 1, 1).repeat(3, 1)
    images[40:60] = images[:20]
    split = Split(target_train=20, target_test=20, shadow_train=20, shadow_test=20)
    membership = make(np.tile([0, 1], 40), split, images)
    assert membership.duplicates == 20
    assert set(membership.sizes.values()) == {15}


def test_no_shadow() -> None:
    membership = make(np.tile([0, 1], 10), Split(target_train=10, target_test=10, shadow_train=0, shadow_test=0))
    assert membership.sizes == {"target_train": 10, "target_test": 10, "shadow_train": 0, "shadow_test": 0}


def test_errors_say_what_to_do() -> None:
    split = Split(target_train=3, target_test=3, shadow_train=3, shadow_test=3)
    with pytest.raises(SplitError, match=r"1 classes have fewer than 4 images.*7 \(3\).*Add images"):
        make(np.repeat([0, 7], [20, 3]), split)
    with pytest.raises(SplitError, match="no image is left"):
        make(np.empty(0, np.int64), split)
    with pytest.raises(SplitError, match=r"8 images are too few.*nothing is left for shadow_test"):
        make(np.repeat([0, 1], 4), Split(target_train=900, target_test=900, shadow_train=900, shadow_test=3))
    identical = np.zeros((20, 3, 1, 1), np.uint8)
    with pytest.raises(SplitError, match="no image is left"):
        make(np.tile([0, 1], 10), split, identical)


def test_a_class_too_rare_for_a_set_is_reported() -> None:
    membership = make(
        np.repeat([0, 1], [996, 4]), Split(target_train=10, target_test=10, shadow_train=10, shadow_test=10)
    )
    assert any("target_train holds no image of 1 classes: label 1" in note for note in membership.notes)


@pytest.mark.parametrize("row", list(csv.DictReader(TABLE.splitlines())), ids=lambda row: row["dataset"])
def test_table_ii(row: dict[str, str]) -> None:
    """The presets have the paper's sizes, and the attack split of such sets has those of its last two columns."""
    split = TABLE_II[row["dataset"]]
    assert [getattr(split, name) for name in SETS] == [int(row[name]) for name in SETS]
    labels = np.arange(sum(int(row[name]) for name in SETS)) % 10
    attack = attack_split(make(labels, split), labels, seed=0)
    assert [len(attack.train), len(attack.test)] == [int(row["attack_train"]), int(row["attack_test"])]


def test_table_ii_is_complete() -> None:
    assert list(TABLE_II) == [row["dataset"] for row in csv.DictReader(TABLE.splitlines())]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", ["shadow", "target"])
def test_attack_split(seed: int, model: str) -> None:
    labels, split = random_case(seed)
    membership = make(labels, split)
    attack = attack_split(membership, labels, seed, model=model)  # type: ignore[arg-type]
    assert not set(attack.train.tolist()) & set(attack.test.tolist())
    for name in (f"{model}_train", f"{model}_test"):
        rows = membership.indices(name)
        held = np.intersect1d(rows, attack.test)
        assert len(held) == round(0.2 * len(rows))
        assert set(rows.tolist()) <= set(attack.train.tolist()) | set(attack.test.tolist())
        for label in np.unique(labels[rows]):
            share = len(held) * (labels[rows] == label).sum() / len(rows)
            assert abs((labels[held] == label).sum() - share) <= 1
    again = attack_split(membership, labels, seed, model=model)  # type: ignore[arg-type]
    assert np.array_equal(attack.test, again.test)


def test_attack_split_of_too_few() -> None:
    labels = np.tile([0, 1], 10)
    membership = make(labels, Split(target_train=10, target_test=10, shadow_train=0, shadow_test=0))
    with pytest.raises(SplitError, match="shadow_train has 0 images"):
        attack_split(membership, labels, 0)


needs_data = pytest.mark.skipif(not os.environ.get("TIER_DATA"), reason="TIER_DATA is not set")


@needs_data
@pytest.mark.parametrize("group_disjoint", [False, True])
def test_gtsrb(group_disjoint: bool) -> None:
    """1,500 members of real GTSRB (Table II); the tracks allow exact sizes and shares."""
    import pyarrow.parquet as pq

    files = sorted(Path(os.environ["TIER_DATA"], "gtsrb").glob("*.parquet"))
    if not files:
        pytest.skip("TIER_DATA has no gtsrb")
    table = pq.read_table(files[0], columns=["label", "track"])
    labels = table["label"].to_numpy()
    groups = np.unique(table["track"].to_numpy(), return_inverse=True)[1]
    membership = make(labels, TABLE_II["gtsrb"].model_copy(update={"group_disjoint": group_disjoint}), groups=groups)
    assert set(membership.sizes.values()) == {1500}
    assert worst_share(labels, membership.sets) <= 1
    shared = np.intersect1d(groups[membership.indices("target_train")], groups[membership.indices("target_test")])
    assert (len(shared) == 0) == group_disjoint
    assert bool(membership.notes) == (not group_disjoint)


@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_on_one_side_of_the_attack_split_and_in_one_half(seed: int) -> None:
    labels = np.repeat(np.arange(4), 120)
    groups = np.arange(480) // 6  # tracks of six frames
    sizes = Split(target_train=110, target_test=110, shadow_train=110, shadow_test=110, group_disjoint=True, seed=seed)
    membership = make(labels, sizes, groups=groups)
    parts = attack_split(membership, labels, seed, 0.2, groups)
    assert not set(groups[parts.train]) & set(groups[parts.test])
    rows = np.sort(np.concatenate([membership.indices("shadow_train"), membership.indices("shadow_test")]))
    np.testing.assert_array_equal(np.sort(np.concatenate([parts.train, parts.test])), rows)
    assert 0.1 < len(parts.test) / len(rows) < 0.35
    inside = halves(labels, seed, 4, groups)
    assert not set(groups[inside]) & set(groups[~inside])
    assert abs(inside.sum() - 240) <= 24
    np.testing.assert_array_equal(halves(labels, seed, 5, groups), ~inside)
