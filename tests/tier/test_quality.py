"""Quality of maps: against Quantus on shared draws, slow re-derivations, maps whose score is known, and the traps."""

import math
import sys
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from torch import Tensor, nn

from tests.tier import toys
from tier import experiment, quality, stats
from tier.config import (
    FAITHFULNESS,
    LOCALISATION,
    QUALITY_CONTROLS,
    Baseline,
    Experiment,
    InferenceKind,
    Model,
    Quality,
)
from tier.experiment import inputs
from tier.inference import fast
from tier.quality import (
    chance,
    distances,
    drops,
    localisation,
    pearson,
    permutation,
    pseudo_values,
    shares,
    steps,
    subsets,
    sufficiency,
)
from tier.store import Store
from tier.summary import JUDGED

SMALL = Quality(runs=12, subset_size=40, features_in_step=24, threshold=0.9)


def maps(count: int = 6, side: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, side, side)).astype(np.float32)


def subjects(count: int = 6, masked: bool = True) -> quality.Subjects:
    model, x = toys.smooth_net().eval(), toys.images(count)
    with torch.no_grad():
        predicted = model(x).argmax(1).numpy()
    masks = np.zeros((count, 16, 16), bool)
    masks[:, 4:9, 5:12] = True
    return quality.Subjects(model, x, toys.labels(count), predicted, np.arange(count), masks if masked else None)


class Sum(nn.Module):
    """Its first logit is a weighted sum of all features, so that the drop of every set is known."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)  # (C, H, W)

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weights).flatten(1).sum(1)
        return torch.stack([score, -score], 1)


# ---- against Quantus


def reference(model: nn.Module, x: Tensor, y: Tensor, stack: np.ndarray, settings: Quality, sets: np.ndarray) -> dict:
    """Quantus's scores on our draws, run by run and image by image, and with our order of equal values."""
    pytest.importorskip("quantus")
    order = steps(stack, x.shape[1], 1)[0][:, :, 0]
    data = {"x_batch": x.numpy(), "y_batch": y.numpy(), "a_batch": stack[:, None], "channel_first": True}
    draws = mock.patch.object(np.random, "choice", side_effect=sets.transpose(1, 0, 2).reshape(-1, sets.shape[2]))
    sort = mock.patch.object(np, "argsort", return_value=order)
    with draws, sort:
        return {
            name: np.array(metric(model=model, batch_size=len(x), **data))
            for name, metric in quality.quantus_metrics(settings).items()
        }


@pytest.mark.parametrize("baseline", ["black", "white", "mean"])
@pytest.mark.parametrize("architecture", ["smooth", "small"])
def test_scores_are_those_of_quantus_on_shared_draws(baseline: str, architecture: str) -> None:
    settings = Quality.model_validate({**dict(SMALL), "baseline": baseline})
    model = toys.smooth_net().eval() if architecture == "smooth" else toys.net()
    x, y, stack = toys.images(6), toys.labels(6), maps()
    stack[1] = np.round(stack[1])  # ties between pixels
    stack[2] = np.maximum(stack[2], 0)
    sets = subsets(range(6), 768, settings)
    theirs = reference(model, x, y, stack, settings, sets)
    ours = quality.correlation(stack, sets, drops(model, x, y, sets, settings.baseline))
    np.testing.assert_allclose(ours, theirs["faithfulness_correlation"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(
        quality.estimate(model, x, y, stack, settings), theirs["faithfulness_estimate"], atol=1e-5, rtol=0
    )
    with torch.no_grad():
        near = sufficiency(stack, model(x).argmax(1).numpy(), settings.threshold, settings.distance)
    np.testing.assert_allclose(near.quantus, theirs["sufficiency_quantus"], atol=1e-5, rtol=0)


def test_maps_without_ties_give_quantus_own_scores_in_its_own_order() -> None:
    """Without our order of equal values put in: channels of a pixel tie, but stay in one step of whole pixels."""
    pytest.importorskip("quantus")
    model, x, y, stack = toys.smooth_net().eval(), toys.images(6), toys.labels(6), maps(seed=5)
    theirs = quality.quantus_metrics(SMALL)["faithfulness_estimate"](
        model=model, x_batch=x.numpy(), y_batch=y.numpy(), a_batch=stack[:, None], channel_first=True, batch_size=6
    )
    np.testing.assert_allclose(quality.estimate(model, x, y, stack, SMALL), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("threshold", [0.5, 0.75, 0.9, 1.0])
def test_sufficiency_is_quantus_to_the_letter_beside_ours(threshold: float, constant: bool) -> None:
    settings = Quality(threshold=threshold)
    stack = np.abs(maps(12, seed=3)) ** 3
    stack[:, 0, 0] = 0.0 if constant else stack[:, 0, 0]
    x = toys.images(12)
    model = toys.net()
    pytest.importorskip("quantus")
    with np.errstate(invalid="ignore"):
        theirs = quality.quantus_metrics(settings)["sufficiency_quantus"](
            model=model, x_batch=x.numpy(), y_batch=np.zeros(12, int), a_batch=stack[:, None], channel_first=True
        )
    with torch.no_grad():
        predicted = model(x).argmax(1).numpy()
    found = sufficiency(stack, predicted, threshold, "seuclidean")
    np.testing.assert_allclose(found.quantus, theirs, atol=1e-12)
    assert found.constant == int(constant)
    if constant:  # the trap: every image 0, and nothing is said
        assert not np.any(theirs)
        assert threshold < 0.9 or np.nanmax(found.values) > 0
    defined = found.neighbours > 0
    assert np.isnan(found.values[~defined]).all()
    if not constant:
        np.testing.assert_allclose(found.values[defined], found.quantus[defined])


def test_quantus_as_the_engine() -> None:
    pytest.importorskip("quantus")
    of, stack = subjects(), maps()
    stack[3] = 0.0
    settings = Quality.model_validate({**dict(SMALL), "engine": "quantus"})
    state = repr(np.random.get_state())  # noqa: NPY002
    mode = of.model.training
    first, _ = quality.measure(of, stack, np.zeros((6, 12)), settings)
    again, _ = quality.measure(of, stack, np.zeros((6, 12)), settings)
    assert repr(np.random.get_state()) == state and of.model.training == mode  # noqa: NPY002
    ours, _ = quality.measure(of, stack, quality.probe(of, SMALL).fallen, SMALL)
    assert list(ours) == list(first)
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
        if name != "faithfulness_correlation":  # whose draws differ
            np.testing.assert_allclose(values, ours[name], atol=1e-5)
    assert np.isnan(first["faithfulness_correlation"][3]) and np.isnan(first["faithfulness_estimate"][3])


def test_without_quantus_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quantus", None)
    with pytest.raises(ValueError, match="pip install 'quantus"):
        quality.quantus_metrics(Quality())


def test_distances_that_quantus_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fails with quality.distance=cosine"):
        Quality(engine="quantus", distance="cosine")


# ---- faithfulness, slowly


@pytest.mark.parametrize("kind", ["fp32", "folded"])
def test_drops_against_one_image_at_a_time(kind: str) -> None:
    model, x, y = toys.net(), toys.images(5, height=12, width=10), toys.labels(5)
    rng = np.random.default_rng(0)
    sets = rng.integers(360, size=(5, 7, 30))  # with repeats
    before = x.clone()
    made = drops(model, x, y, sets, "mean", quality.in_parts(model, kind))  # type: ignore[arg-type]
    assert torch.equal(x, before)
    for image, run in product(range(5), range(7)):
        altered = x[image].flatten().clone()
        altered[sets[image, run]] = x[image].mean()
        with torch.no_grad():
            whole, less = (model(one.view(1, 3, 12, 10))[0, y[image]] for one in (x[image], altered))
        assert made[image, run] == pytest.approx(float(whole - less), abs=1e-5)


@pytest.mark.parametrize("kind", ["fp32", "folded", "bf16"])
def test_normalising_once_changes_no_bit(kind: InferenceKind) -> None:
    model, x, y = toys.net(), toys.images(9), toys.labels(9)
    sets = subsets(range(9), 768, SMALL)
    for baseline in get_args(Baseline):
        parts = drops(model, x, y, sets, baseline, quality.in_parts(model, kind))
        whole = drops(model, x, y, sets, baseline, quality.Parts(lambda pixels: pixels, fast(model, kind)))
        np.testing.assert_array_equal(parts, whole)


def test_drops_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = toys.smooth_net().eval(), toys.images(7), toys.labels(7)
    sets = subsets(range(7), 768, SMALL)
    whole = drops(model, x, y, sets)
    for rows in (1, 3, 20):
        monkeypatch.setattr(quality, "ROWS", rows)
        np.testing.assert_allclose(drops(model, x, y, sets), whole, atol=1e-6)
    pixels = (x * 255).to(torch.uint8)
    np.testing.assert_allclose(drops(model, pixels, y, sets), drops(model, pixels.float() / 255, y, sets), atol=1e-6)


def test_a_linear_model_is_explained_perfectly_by_its_own_terms() -> None:
    """With black (0) as baseline, the drop of a set is exactly the sum of weight times value over it."""
    x = toys.images(4, 8, 8)
    x[:, :, 0, 0] = 0.0
    weights = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1)).expand(3, 8, 8)
    x = x[:, :1].expand(4, 3, 8, 8).contiguous()  # grey, so that one value tells all channels of a pixel
    model, y = Sum(weights.contiguous()), torch.zeros(4, dtype=torch.long)
    own = (x * weights)[:, 0].numpy()
    settings = Quality(runs=20, subset_size=30, features_in_step=12)
    sets = subsets(range(4), 192, settings)
    fallen = drops(model, x, y, sets)
    np.testing.assert_allclose(quality.correlation(own, sets, fallen), 1.0, atol=1e-5)
    np.testing.assert_allclose(quality.correlation(-own, sets, fallen), -1.0, atol=1e-5)
    np.testing.assert_allclose(quality.estimate(model, x, y, own, settings), 1.0, atol=1e-5)
    np.testing.assert_allclose(quality.correlation(3 * own + 2, sets, fallen), 1.0, atol=1e-5)  # scale is no matter


def test_noise_maps_score_nothing_on_average() -> None:
    model, x, y = toys.smooth_net().eval(), toys.images(60), toys.labels(60)
    noise = quality.noise_maps(range(60), 16, 16, 0)
    settings = Quality(runs=40, subset_size=60, features_in_step=24)
    sets = subsets(range(60), 768, settings)
    for values in (
        quality.correlation(noise, sets, drops(model, x, y, sets)),
        quality.estimate(model, x, y, noise, settings),
    ):
        assert abs(values.mean()) < 3 * values.std() / math.sqrt(60)


@pytest.mark.parametrize("size", [1, 5, 6, 48, 200])
def test_steps_take_whole_pixels_highest_first(size: int) -> None:
    stack = maps(3, 4)
    stack[0] = np.round(stack[0])
    features, sums = steps(stack, 3, size)
    assert features.shape[1] == math.ceil(48 / size)
    for one, made, total in zip(stack, features, sums, strict=True):
        ranked = sorted(range(16), key=lambda p: (-one.ravel()[p], p))
        expected = [p + 16 * c for p in ranked for c in range(3)]
        assert made.ravel()[:48].tolist() == expected
        for step in range(features.shape[1]):
            group = expected[step * size : (step + 1) * size]
            assert set(made[step]) == set(group)
            assert total[step] == pytest.approx(sum(float(one.ravel()[f % 16]) for f in group), abs=1e-5)


def test_subsets_are_without_repeats_and_depend_on_seed_and_row_only() -> None:
    made = subsets([3, 8], 100, Quality(runs=5, subset_size=30))
    assert made.shape == (2, 5, 30) and made.min() >= 0 and made.max() < 100
    assert all(len(set(one)) == 30 for image in made for one in image)
    np.testing.assert_array_equal(made[1:], subsets([8], 100, Quality(runs=5, subset_size=30)))
    assert (made != subsets([3, 8], 100, Quality(runs=5, subset_size=30, seed=1))).any()
    many = subsets(range(300), 20, Quality(runs=10, subset_size=5))
    counts = np.bincount(many.ravel(), minlength=20)  # each feature in a quarter of 3,000 subsets
    assert np.abs(counts - 750).max() < 5 * math.sqrt(3000 * 0.25 * 0.75)
    with pytest.raises(ValueError, match=r"subset_size \(100\) has to be below the 100 features"):
        subsets([0], 100, Quality(subset_size=100))


@pytest.mark.parametrize(("size", "count"), [(384, "2 steps"), (768, "1 step"), (5000, "1 step")])
def test_too_few_steps_are_refused_in_words(size: int, count: str) -> None:
    settings, blank = Quality(features_in_step=size), np.zeros((6, 100))
    told = rf"features_in_step \({size}\) makes {count} of the 768 features.*: set it to 383 at most"
    with pytest.raises(ValueError, match=told):
        quality.probe(subjects(), settings)
    with pytest.raises(ValueError, match=told):
        quality.measure(subjects(), maps(), blank, settings)
    most = Quality(features_in_step=383)
    assert np.isfinite(quality.measure(subjects(), maps(), blank, most)[0]["faithfulness_estimate"]).all()


def test_pearson_against_scipy_and_without_spread() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 9))
    np.testing.assert_allclose(pearson(a, b), pearsonr(a, b, axis=1)[0])
    a[1] = 4.0
    b[2, 3] = np.nan
    assert np.isnan(pearson(a, b)).tolist() == [False, True, True, False, False]


# ---- sufficiency, slowly


@pytest.mark.parametrize("distance", ["seuclidean", "euclidean", "cosine"])
def test_sufficiency_against_a_loop(distance: str) -> None:
    stack = maps(9, 5, seed=2)
    stack[:, 2, 2] = 0.7  # constant: no variance
    stack[4] = 1.0  # degenerate
    predicted = np.array([0, 1, 0, 1, 0, 1, 0, 0, 1])
    sound = [i for i in range(9) if i != 4]
    flat = np.abs(stack.astype(float)).reshape(9, -1)
    kept = [p for p in range(25) if p != 12]
    spread = {p: np.var([flat[i, p] for i in sound], ddof=1) for p in kept}

    def apart(i: int, j: int) -> float:
        u, v = flat[i, kept], flat[j, kept]
        if distance == "cosine":
            return 1 - float(u @ v) / math.sqrt(float(u @ u) * float(v @ v))
        return math.sqrt(
            sum((flat[i, p] - flat[j, p]) ** 2 / (spread[p] if distance == "seuclidean" else 1) for p in kept)
        )

    largest = max(apart(i, j) for i in sound for j in sound)
    found = sufficiency(stack, predicted, 0.8, distance)  # type: ignore[arg-type]
    for i in range(9):
        near = [j for j in sound if i != 4 and j != i and apart(i, j) <= 0.8 * largest]
        assert found.neighbours[i] == len(near)
        expected = np.mean([predicted[i] == predicted[j] for j in near]) if near else np.nan
        np.testing.assert_allclose(found.values[i], expected)


def test_sufficiency_depends_on_threshold_and_tells_nothing_at_the_largest() -> None:
    stack, predicted = np.abs(maps(20)), np.arange(20) % 3
    near = sufficiency(stack, predicted, 1.0, "seuclidean")
    np.testing.assert_allclose(near.values, chance(predicted))  # all are neighbours
    swept = quality.sweep(stack, predicted, Quality(threshold=0.6, thresholds=(0.05, 1.0)))
    assert swept["threshold"] == [0.05, 0.6, 1.0]
    assert swept["mean"][0] is None and swept["alone"][0] == 1.0 and swept["neighbours"][0] == 0.0
    assert swept["mean"][2] == pytest.approx(chance(predicted).mean()) and swept["neighbours"][2] == 19.0


def test_maps_that_name_the_class_are_sufficient() -> None:
    predicted = np.arange(12) % 3
    stack = 0.01 * np.abs(maps(12, 8)) + (np.arange(64).reshape(8, 8) % 3 == predicted[:, None, None])
    assert sufficiency(stack, predicted, 0.3, "seuclidean").values.tolist() == [1.0] * 12


def test_equal_or_missing_maps_have_no_distances() -> None:
    assert np.isnan(distances(np.ones((3, 4, 4)), "seuclidean")).all()
    values, neighbours = shares(np.full((3, 3), np.nan), np.zeros(3, int), 1.0)
    assert np.isnan(values).all() and neighbours.tolist() == [0, 0, 0]
    same = np.repeat(np.arange(16.0).reshape(1, 4, 4), 3, 0)
    assert sufficiency(same, np.zeros(3, int), 0.1, "seuclidean").values.tolist() == [1.0, 1.0, 1.0]


def neighbourhood(n: int, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane, some far off: who is near whom, and classes that have nothing to do with it."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 2)) * np.where(np.arange(n) % 9 == 0, 6, 1)[:, None]
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    return (apart < 0.6) & ~np.eye(n, dtype=bool), rng.integers(classes, size=n)


def test_pseudo_values_are_the_derivative_of_the_mean_by_the_weight_of_an_image() -> None:
    near, predicted = neighbourhood(30, 1)
    near[:, 4] = near[4] = False  # an image alone
    found: np.ndarray = np.asarray(near.any(1))

    def mean(weights: np.ndarray) -> float:
        same = np.equal.outer(predicted, predicted)
        share = [
            (weights * same[i])[near[i]].sum() / weights[near[i]].sum() if found[i] else 0.0 for i in range(30)
        ]  # fmt: skip
        return float(sum(weights[i] * share[i] for i in range(30) if found[i]) / weights[found].sum())

    made = pseudo_values(near, predicted)
    assert np.isnan(made[4]) and np.nanmean(made) == pytest.approx(mean(np.ones(30)))
    for k in np.flatnonzero(found):
        step = np.zeros(30)
        step[k] = 1e-5
        slope = (mean(np.ones(30) + step) - mean(np.ones(30) - step)) / 2e-5
        assert made[k] == pytest.approx(mean(np.ones(30)) + found.sum() * slope, abs=1e-6)


def test_neither_interval_nor_permutation_takes_chance_for_more_than_it_is() -> None:
    """120 images, classes that have nothing to do with maps: the shares' own interval is wrong far too often."""
    wrong = dict.fromkeys(("shares", "pseudo", "permutation"), 0)
    for seed in range(150):
        near, predicted = neighbourhood(120, seed)
        values, _ = shares(np.where(near, 0.0, 1.0), predicted, 0.5)
        expected = chance(predicted)
        double = 2 * expected - expected.mean()
        for name, lead in (("shares", values - expected), ("pseudo", pseudo_values(near, predicted) - double)):
            low, high = stats.seed_mean_interval([lead[:, None] - np.nanmean(lead) + np.nanmean(values - expected)])
            wrong[name] += not low[0] <= 0 <= high[0]
        dealt = permutation(near, predicted, {"all": np.ones(120, bool)}, seed, 199)["all"]
        wrong["permutation"] += min(dealt["above"], dealt["below"]) <= 0.025  # type: ignore[type-var, operator]
    assert wrong["shares"] > 0.1 * 150
    assert wrong["pseudo"] <= 0.08 * 150 and wrong["permutation"] <= 0.1 * 150


def test_permutation_against_every_order_of_the_classes() -> None:
    near = np.zeros((6, 6), bool)
    for i, j in ((0, 1), (1, 2), (3, 4)):
        near[i, j] = near[j, i] = True
    predicted, member = np.array([0, 0, 1, 1, 1, 2]), np.array([True, True, True, False, False, False])

    def lead(classes: tuple[int, ...], group: np.ndarray) -> float:
        kept = [i for i in range(6) if near[i].any() and group[i]]
        share = [np.mean([classes[i] == classes[j] for j in range(6) if near[i, j]]) for i in kept]
        return float(
            np.mean(share) - np.mean([np.mean([classes[i] == classes[j] for j in range(6) if j != i]) for i in kept])
        )

    groups = {"all": np.ones(6, bool), "members": member, "nobody": np.zeros(6, bool)}
    made = permutation(near, predicted, groups, 0, 3000)
    for name in ("all", "members"):
        every = np.array([lead(order, groups[name]) for order in permutations(predicted.tolist())])
        own = lead(tuple(predicted), groups[name])
        assert made[name]["over"] == pytest.approx(own)
        assert made[name]["above"] == pytest.approx((every >= own - 1e-12).mean(), abs=0.03)
        assert made[name]["below"] == pytest.approx((every <= own + 1e-12).mean(), abs=0.03)
    assert set(made["nobody"].values()) == {None}
    same = near | near.T
    assert permutation(same, predicted, groups, 0, 50) == permutation(same, predicted, groups, 0, 50)


def test_maps_that_name_the_class_are_rare_among_permutations() -> None:
    near, _ = neighbourhood(60, 3)
    predicted = np.array([min([i, *np.flatnonzero(row)]) % 4 for i, row in enumerate(near)])
    made = permutation(near, predicted, {"all": np.ones(60, bool)}, 0, 199)["all"]
    assert made["above"] == pytest.approx(0.005) and made["over"] > made["high"]  # type: ignore[operator]


# ---- localisation


def slow_localisation(one: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    inside = {(y, x) for y, x in product(*map(range, mask.shape)) if mask[y, x]}
    ranked = sorted(product(*map(range, mask.shape)), key=lambda at: -one[at])
    top = set(ranked[: len(inside)])
    largest = set(sorted(ranked, key=lambda at: -abs(one[at]))[: len(inside)])
    return {
        "pointing_game": float(ranked[0] in inside),
        "mask_mass": sum(abs(one[at]) for at in inside) / sum(abs(one[at]) for at in ranked),
        "mask_iou": len(largest & inside) / len(largest | inside),
        "mask_iou_signed": len(top & inside) / len(top | inside),
        "mask_mass_positive": sum(max(one[at], 0) for at in inside) / sum(max(one[at], 0) for at in ranked),
    }


def test_localisation_against_sets_of_pixels() -> None:
    stack, masks = maps(8, 7), np.random.default_rng(1).random((8, 7, 7)) < 0.3
    made = localisation(stack, masks)
    for i in range(8):
        for name, value in slow_localisation(stack[i].astype(float), masks[i]).items():
            assert made[name][i] == pytest.approx(value), name


def test_localisation_of_known_maps() -> None:
    mask = np.zeros((1, 6, 6), bool)
    mask[0, 1:3, 1:4] = True
    on, off = mask.astype(float), 1.0 - mask
    assert {name: values[0] for name, values in localisation(on, mask).items()} == dict.fromkeys(quality.LOCALISED, 1.0)
    assert all(values[0] == 0 for values in localisation(off, mask).values())
    tied = on.copy()
    tied[0, 5, :] = 1.0  # six of twelve highest pixels lie inside
    made = localisation(tied, mask)
    assert made["pointing_game"][0] == 0.5 and made["mask_iou"][0] == pytest.approx(3 / 9)
    flat, nowhere = np.ones((1, 6, 6)), np.zeros((1, 6, 6), bool)
    for values in (*localisation(flat, mask).values(), *localisation(on, nowhere).values()):
        assert np.isnan(values[0])
    signs = np.where(np.arange(36).reshape(6, 6) % 2, 1.0, -1.0)  # all on the object, 2 of 6 against the class
    signed = {name: values[0] for name, values in localisation(on * signs, mask).items()}
    assert signed["mask_iou"] == signed["mask_mass"] == signed["pointing_game"] == 1.0
    assert signed["mask_iou_signed"] == pytest.approx(4 / (12 - 4))  # two rank below all that is 0 beside it
    negative = localisation(-1.0 - maps(1, 6) ** 2, mask)
    assert np.isnan(negative["mask_mass_positive"][0]) and negative["mask_mass"][0] > 0


def test_expected_localisation_is_what_noise_scores() -> None:
    masks = np.zeros((2, 8, 8), bool)
    masks[0, :2, :3], masks[1, 2:7, 1:8] = True, True
    expected = quality.expected_localisation(masks)
    drawn = [
        localisation(quality.noise_maps([7, 9], 8, 8, seed), masks) for seed in range(800)
    ]  # fmt: skip
    for name, values in expected.items():
        many = np.stack([one[name] for one in drawn])
        assert np.all(np.abs(many.mean(0) - values) < 4 * many.std(0) / math.sqrt(800)), name
    void = quality.expected_localisation(np.stack([np.zeros((8, 8), bool), np.ones((8, 8), bool)]))
    assert all(np.isnan(values).all() for values in void.values())


# ---- controls and the whole


def test_edges_are_where_colours_change() -> None:
    x = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    x[0, 1, :, 4:] = 255
    made = quality.edge_maps(x)
    assert made.shape == (1, 8, 8) and made.dtype == np.float32
    assert set(np.flatnonzero(made[0].max(0)).tolist()) == {3, 4}
    assert made[0, 2, 3] == pytest.approx(math.sqrt(0.5) / 3, rel=1e-5)  # one channel of three


def test_probe_and_measure_name_the_same_columns_and_say_what_is_wrong() -> None:
    of, stack = subjects(), maps()
    stack[2], stack[:, 0, 0] = 0.0, 0.0
    probes = quality.probe(of, SMALL)
    found, notes = quality.measure(of, stack, probes.fallen, SMALL)
    assert set(found) == set(JUDGED)
    own = [name for name in JUDGED if name != "mask_iou_signed"]
    assert set(probes.controls) == {f"{name}_{control}" for name in own for control in QUALITY_CONTROLS}
    for control in QUALITY_CONTROLS:  # which have no negative value
        np.testing.assert_array_equal(
            probes.controls[f"mask_mass_positive_{control}"], probes.controls[f"mask_mass_{control}"]
        )
    assert set(probes.sweeps) == set(QUALITY_CONTROLS) and probes.fallen.shape == (6, 12)
    for name, values in found.items():
        assert values.shape == (6,)
        if name != "sufficiency_quantus":
            assert np.isnan(values[2])
    assert not found["sufficiency_quantus"].any()
    assert "1 of 6 maps are constant" in notes[0] and "1 pixel is constant over the 6 images" in notes[1]
    np.testing.assert_allclose(probes.controls["sufficiency_random"], chance(of.predicted))
    assert probes.controls["mask_mass_random"] == pytest.approx(35 / 256)
    blind = subjects(masked=False)
    assert set(quality.measure(blind, stack, probes.fallen, SMALL)[0]) == {*FAITHFULNESS, "sufficiency_quantus"}


def test_a_model_that_cannot_be_folded_is_asked_in_fp32() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = toys.smooth_net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x if bool(x.sum() > 0) else -x)
            return out

    assert quality.inference_of(Branching().eval(), Quality()) == "fp32"
    assert quality.inference_of(toys.net(), Quality()) == "folded"


# ---- the stages


def tiny(**settings: Any) -> Experiment:
    """A run of seconds with 40 members; 6 of them and 6 non-members are judged."""
    small = {
        "data.signs.classes": 4, "data.signs.images": 400, "data.image_size": 16, "split.target_train": 40,
        "split.target_test": 40, "split.shadow_train": 0, "split.shadow_test": 0, "train.epochs": 2,
        "train.threads": 1, "train.batch_size": 20, "quality.images": 6, "quality.runs": 10,
        "quality.subset_size": 60, "quality.features_in_step": 48, "explain.name": "gradcam",
    }  # fmt: skip
    return Experiment(model=Model(width=4)).set(small | settings)


def test_the_stage_judges_the_stored_maps_beside_controls_that_explainers_share(tmp_path: Path) -> None:
    store, e = Store(str(tmp_path)), tiny()
    found = experiment.ensure(store, "quality", e)
    frame = found.frame("scores.parquet")
    columns = [f"{name}{suffix}" for suffix in ("", "_random", "_edges") for name in JUDGED]
    columns = [name for name in columns if name not in quality.TWICE]
    columns += ["sufficiency_pseudo", "sufficiency_edges_pseudo"]
    assert set(frame) == {"index", "member", "label", "correct", *columns}
    assert frame["member"].tolist() == [True] * 6 + [False] * 6
    assert found.metrics["images"] == 12 and found.metrics["refused"] == {} and found.metrics["inference"] == "folded"
    assert set(found.metrics["sweeps"]) == {"map", "random", "edges"}
    assert set(found.metrics["permutation"]) == {"all", "members", "nonmembers"}
    np.testing.assert_allclose(frame["sufficiency_pseudo"].mean(), frame["sufficiency"].mean(), atol=1e-6)

    source = experiment.dataset(e.data)
    held = experiment.ensure(store, "maps", e).arrays("maps.safetensors")
    places = [list(held["index"]).index(index) for index in frame["index"]]
    maps_of, masks = held["gradcam"][places], source.masks[frame["index"]]  # type: ignore[index]
    for place, row in enumerate(frame.to_dict("records")):
        if not math.isnan(row["mask_mass"]):
            inside = float(np.abs(maps_of[place])[masks[place]].sum() / np.abs(maps_of[place]).sum())
            assert row["mask_mass"] == pytest.approx(inside, rel=1e-4)
        assert row["mask_mass_random"] == pytest.approx(masks[place].mean())
    model = experiment.model_of(store, e)
    x, y = torch.from_numpy(source.images[frame["index"]]), torch.from_numpy(source.labels[frame["index"]])
    plain = quality.estimate(model, x, y, maps_of, e.quality)
    np.testing.assert_allclose(frame["faithfulness_estimate"], plain, atol=1e-3)  # folded against fp32

    experiment.ensure(store, "quality", tiny(**{"explain.name": "gradient"}))
    assert len(store.ls("probes")) == 1 and len(store.ls("quality")) == 2
    other = experiment.pin(store, tiny(**{"quality.threshold": 0.5}))
    assert experiment.key("quality", other) != found.key


def test_data_without_masks_are_refused_localisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = experiment.dataset(tiny().data)
    monkeypatch.setattr(inputs, "dataset", lambda *args: replace(source, masks=None))
    found = experiment.ensure(Store(str(tmp_path)), "quality", tiny())
    assert found.metrics["refused"] == dict.fromkeys(quality.LOCALISED, quality.NO_MASKS)
    assert set(LOCALISATION) < set(quality.LOCALISED)
    frame = found.frame("scores.parquet")
    assert not [name for name in frame if str(name).startswith(("pointing", "mask"))]
    assert frame["faithfulness_estimate"].notna().any()
