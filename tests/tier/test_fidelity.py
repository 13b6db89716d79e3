"""Fidelity against scikit-image and scikit-learn pair by pair, slow re-derivations, and what noise scores."""

import numpy as np
import pytest
from skimage.metrics import structural_similarity
from sklearn.metrics import mean_squared_error
from sklearn.metrics.pairwise import cosine_similarity

from tier import fidelity
from tier.fidelity import METRICS, cosine, mse, scores, shuffled, ssim, table, unit
from tier.gallery import degenerate


def maps(n: int = 6, height: int = 12, width: int = 9, seed: int = 0) -> np.ndarray:
    """Signed maps of very different scale, as gradients of confident and unsure models are."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, height, width)) * 10.0 ** rng.uniform(-6, 3, (n, 1, 1))


def slow_unit(one: np.ndarray) -> np.ndarray:
    out = np.empty(one.shape)
    low, high = min(one.ravel().tolist()), max(one.ravel().tolist())
    for y in range(one.shape[0]):
        for x in range(one.shape[1]):
            out[y, x] = (float(one[y, x]) - low) / (high - low)
    return out


def slow_ssim(a: np.ndarray, b: np.ndarray, window: int) -> float:
    """Equation 13 of Wang et al. 2004 at every place where the window fits, with sample variances."""
    values = []
    for y in range(a.shape[0] - window + 1):
        for x in range(a.shape[1] - window + 1):
            p, q = (z[y : y + window, x : x + window].ravel() for z in (a, b))
            (vp, vpq), (_, vq) = np.cov(p, q, ddof=1)
            luminance = (2 * p.mean() * q.mean() + 0.01**2) / (p.mean() ** 2 + q.mean() ** 2 + 0.01**2)
            values.append(luminance * (2 * vpq + 0.03**2) / (vp + vq + 0.03**2))
    return float(np.mean(values))


def test_unit_against_a_loop() -> None:
    stack = maps()
    made = unit(stack.astype(np.float32))
    assert made.dtype == np.float64
    for one, scaled in zip(stack.astype(np.float32), made, strict=True):
        np.testing.assert_allclose(scaled, slow_unit(one), atol=1e-12)
        assert scaled.min() == 0.0 and scaled.max() == 1.0


@pytest.mark.parametrize("shape", [(32, 32), (12, 9), (8, 8), (7, 7), (7, 20)])
def test_ssim_equals_scikit_image_one_by_one(shape: tuple[int, int]) -> None:
    a, b = unit(maps(5, *shape)), unit(maps(5, *shape, seed=1))
    a[2] = unit((a[2] + 0.1 * b[2])[None])[0]
    expected = [structural_similarity(p, q, data_range=1) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(ssim(a, b), expected, atol=1e-6)
    np.testing.assert_allclose(ssim(a, b), [slow_ssim(p, q, 7) for p, q in zip(a, b, strict=True)], atol=1e-6)


@pytest.mark.parametrize(("shape", "window"), [((6, 6), 5), ((5, 30), 5), ((30, 4), 3), ((3, 3), 3)])
def test_small_maps_take_the_largest_odd_window(shape: tuple[int, int], window: int) -> None:
    a, b = unit(maps(4, *shape)), unit(maps(4, *shape, seed=1))
    expected = [structural_similarity(p, q, data_range=1, win_size=window) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(ssim(a, b), expected, atol=1e-6)


def test_maps_without_a_window_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3x3 pixels, got 2x9"):
        ssim(unit(maps(2, 2, 9)), unit(maps(2, 2, 9)))


def test_scores_against_scikit_learn() -> None:
    a, b = maps(), maps(seed=1)
    made = scores(a, b)
    assert tuple(made) == METRICS
    for i, (p, q) in enumerate(zip(a, b, strict=True)):
        p1, q1 = slow_unit(p).reshape(1, -1), slow_unit(q).reshape(1, -1)
        assert made["mse"][i] == pytest.approx(mean_squared_error(p1[0], q1[0]))
        assert made["cosine"][i] == pytest.approx(cosine_similarity(p1, q1)[0, 0])
        assert made["cosine_unscaled"][i] == pytest.approx(cosine_similarity(p.reshape(1, -1), q.reshape(1, -1))[0, 0])
        assert made["ssim"][i] == pytest.approx(slow_ssim(slow_unit(p), slow_unit(q), 7))


def test_a_map_is_like_itself_and_unlike_its_opposite() -> None:
    stack = maps()
    same = scores(stack, 3.0 * stack)
    np.testing.assert_allclose(same["ssim"], 1.0)
    np.testing.assert_allclose(same["mse"], 0.0, atol=1e-12)
    np.testing.assert_allclose(same["cosine"], 1.0)
    np.testing.assert_allclose(same["cosine_unscaled"], 1.0)
    opposite = scores(stack, -stack)
    np.testing.assert_allclose(opposite["cosine_unscaled"], -1.0)
    assert (opposite["cosine"] > 0).all()  # scaling hides the sign: why the unscaled one is there
    for name, values in scores(stack, maps(seed=1)).items():
        np.testing.assert_allclose(values, scores(maps(seed=1), stack)[name], err_msg=name)  # symmetric


@pytest.mark.parametrize(("kind", "size"), [("normal", 32), ("normal", 64), ("laplace", 32)])
def test_independent_noise_scores_as_if_it_agreed(kind: str, size: int) -> None:
    """What SPEC 7 says of two independent noise maps, and why no score is shown without its controls."""
    a, b = getattr(np.random.default_rng(0), kind)(size=(2, 200, size, size))
    made = {name: float(values.mean()) for name, values in scores(a, b).items()}
    assert 0.91 <= round(made["cosine"], 2) <= 0.97
    assert 0.03 <= round(made["mse"], 2) <= 0.05
    assert abs(made["cosine_unscaled"]) < 0.01
    assert abs(made["ssim"]) < 0.05


def test_noise_that_is_never_negative_scores_lower_when_scaled() -> None:
    """The 0.91 to 0.97 are of signed maps: scaling leaves magnitudes nearly as they are, and the two cosines agree."""
    a, b = np.abs(np.random.default_rng(0).normal(size=(2, 200, 32, 32)))
    made = {name: float(values.mean()) for name, values in scores(a, b).items()}
    assert made["cosine"] == pytest.approx(2 / np.pi, abs=0.01)  # E|x|^2 / E x^2 of normal values
    assert made["cosine_unscaled"] == pytest.approx(2 / np.pi, abs=0.01)


def test_degenerate_maps_give_nan_and_leave_the_others_alone() -> None:
    a, b = maps(), maps(seed=1)
    plain = scores(a, b)
    a[0], a[1, 2, 3], b[2, 0, 0], b[3] = 0.25, np.nan, np.inf, 0.0
    assert degenerate(a).tolist() == [True, True, False, False, False, False]
    assert degenerate(b).tolist() == [False, False, True, True, False, False]
    made = scores(a, b)
    for name in METRICS:
        assert np.isnan(made[name][:4]).all(), name
        np.testing.assert_array_equal(made[name][4:], plain[name][4:], err_msg=name)
    assert np.isnan(unit(a)[:2]).all() and np.isfinite(unit(a)[2:]).all()
    zeros = np.zeros((3, 8, 8))
    assert all(np.isnan(values).all() for values in scores(zeros, zeros).values())


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e30])
def test_the_scale_of_float32_maps_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (2, 3, 8, 8)).astype(np.float64)
    tiny = (a * scale).astype(np.float32)
    if scale > 1e-40:  # below, float32 keeps whole multiples of its least value only
        np.testing.assert_allclose(scores(tiny, b)["ssim"], scores(a, b)["ssim"], atol=1e-5)
    np.testing.assert_allclose(cosine(tiny, tiny), 1.0)
    np.testing.assert_allclose(cosine(a * 1e-200, a * 1e-200), 1.0)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot be compared pair by pair"):
        mse(maps(6), maps(1))
    with pytest.raises(ValueError, match=r"\(N, H, W\)"):
        unit(np.zeros((4, 4)))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 17, 1000])
def test_shuffled_pairs_no_image_with_itself(n: int) -> None:
    for seed in range(30):
        partner = shuffled(n, seed)
        assert sorted(partner.tolist()) == list(range(n))
        assert (partner != np.arange(n)).all()
        np.testing.assert_array_equal(partner, shuffled(n, seed))
    if n > 4:
        assert len({tuple(shuffled(n, seed)) for seed in range(30)}) > 1


def test_shuffled_takes_every_other_image_alike() -> None:
    taken = np.array([shuffled(4, seed)[0] for seed in range(600)])
    counts = np.bincount(taken, minlength=4)
    assert counts[0] == 0 and (np.abs(counts[1:] - 200) < 60).all()


@pytest.mark.parametrize("n", [0, 1])
def test_one_image_has_no_other(n: int) -> None:
    with pytest.raises(ValueError, match=f"at least two images, got {n}"):
        shuffled(n, 0)


def test_table_holds_scores_and_both_controls() -> None:
    defended, reference, second = maps(), maps(seed=1), maps(seed=2)
    agree = np.array([True, True, False, True, True, True])
    frame = table(defended, reference, second, agree, seed=3)
    assert list(frame) == [f"{m}{s}" for s in ("", "_shuffled", "_second_seed") for m in METRICS]
    assert set(frame.dtypes) == {np.dtype(np.float32)}
    partner = shuffled(6, 3)
    for i in range(6):
        own = scores(defended[i : i + 1], reference[i : i + 1])
        other = scores(defended[i : i + 1], reference[partner[i]][None])
        control = scores(reference[i : i + 1], second[i : i + 1])
        for name in METRICS:
            expected = [own[name][0], other[name][0]] if agree[i] else [np.nan, np.nan]
            np.testing.assert_allclose(frame.loc[i, [name, f"{name}_shuffled"]].to_numpy(float), expected, rtol=1e-6)
            assert frame.loc[i, f"{name}_second_seed"] == pytest.approx(control[name][0], rel=1e-6)


def test_the_second_seed_knows_nothing_of_the_defense() -> None:
    reference, second = maps(seed=1), maps(seed=2)
    columns = [f"{name}_second_seed" for name in METRICS]
    first = table(maps(), reference, second, np.ones(6, bool), seed=0)
    other = table(maps(seed=5), reference, second, np.zeros(6, bool), seed=4)
    assert first[columns].equals(other[columns])
    masked = table(maps(), reference, second, np.ones(6, bool), 0, second_agree=np.arange(6) > 2)
    assert masked[columns].isna().all(axis=1).tolist() == [True] * 3 + [False] * 3
    assert masked["ssim"].notna().all()


@pytest.mark.parametrize("n", [2, 7, 23])
@pytest.mark.parametrize("shape", [(32, 32), (12, 9), (5, 30)])
def test_the_table_is_the_same_to_the_bit_however_many_maps_are_scored_at_a_time(
    monkeypatch: pytest.MonkeyPatch, n: int, shape: tuple[int, int]
) -> None:
    stacks = [maps(n, *shape, seed=seed).astype(np.float32) for seed in range(3)]
    stacks[0][1] = 0.5
    agree, most, made = np.arange(n) % 3 > 0, [], []
    real = fidelity.scores
    monkeypatch.setattr(fidelity, "scores", lambda a, b: most.append(len(a)) or real(a, b))  # type: ignore[func-returns-value]
    for chunk in (10**9, 5 * shape[0] * shape[1], 1):
        monkeypatch.setattr(fidelity, "CHUNK", chunk)
        made.append(table(*stacks, agree, 1, agree[::-1]).to_numpy().tobytes())
        assert max(most) == min(n, max(1, chunk // (shape[0] * shape[1])))
        most.clear()
    assert made[0] == made[1] == made[2]


def test_table_checks_its_flags() -> None:
    stack = maps()
    with pytest.raises(ValueError, match=r"agree has shape \(5,\)"):
        table(stack, stack, stack, np.ones(5, bool), 0)
    for n in (0, 1):
        with pytest.raises(ValueError, match="at least two images"):
            table(stack[:n], stack[:n], stack[:n], np.ones(n, bool), 0)
