"""The KL profile of section V-A against scipy, image by image, and the tests of Tables I and III."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import rel_entr, softmax
from torch import Tensor, nn

from tests.tier.test_perturbation import slow_order
from tests.tier.toys import images, labels, net, plain_net
from tier.config import Divergence
from tier.divergence import batch_means, divergences, profile
from tier.explainers.gradient import gradient


def diverged(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Divergence,
    size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> np.ndarray:
    """The paper's profile: the label's gradient map, then the divergences."""
    maps = gradient(model, x, y, settings.channel_reduction).numpy()
    return divergences(model, x, maps, settings, size, progress)


TESTS = ["t", "t_df", "t_p", "ks", "ks_p", "cohen_d", "t_p_holm", "ks_p_holm"]


@pytest.mark.parametrize(
    "options",
    [{}, {"channel_reduction": "mean_abs"}, {"fill": "scalar_mean"}, {"fill": "zero"}, {"levels": (0.01, 0.9)}],
    ids=str,
)
def test_against_loops_and_scipy(options: dict[str, Any]) -> None:
    settings, model, x, y = Divergence(**options), plain_net(), images(4, 9, 11), labels(4)
    made = diverged(model, x, y, settings, 3)
    for b in range(4):
        image = x[b]
        order = slow_order(gradient(model, x[b : b + 1], y[b : b + 1], settings.channel_reduction)[0], True)
        with torch.no_grad():
            p = softmax(model(image.unsqueeze(0))[0].double().numpy())
        for column, level in enumerate(settings.levels):
            changed = image.clone()
            for pixel in order[: max(1, round(level * 99))]:
                for channel in range(3):
                    mean = {"channel_mean": image[channel].mean(), "scalar_mean": image.mean(), "zero": 0.0}
                    changed[channel, pixel // 11, pixel % 11] = mean[settings.fill]
            with torch.no_grad():
                q = softmax(model(changed.unsqueeze(0))[0].double().numpy())
            assert made[b, column] == pytest.approx(rel_entr(p, q).sum(), rel=1e-3, abs=1e-7)
    assert made.dtype == np.float64
    assert made.shape == (4, len(settings.levels))


def test_the_default_map_is_the_absolute_mean_gradient() -> None:
    model, x, y = plain_net(), images(4, 9, 11), labels(4)
    made = diverged(model, x, y, Divergence())
    assert (made == diverged(model, x, y, Divergence(channel_reduction="abs_mean"))).all()
    assert (made != diverged(model, x, y, Divergence(channel_reduction="mean_abs"))).any()


@pytest.mark.parametrize("size", [1, 4, 250])
def test_the_batch_size_does_not_matter_and_progress_is_told(size: int) -> None:
    model, x, y = net(), images(7), labels(7)
    told: list[float] = []
    made = diverged(model, x, y, Divergence(), size, told.append)
    np.testing.assert_allclose(made, diverged(model, x, y, Divergence()), rtol=1e-3, atol=1e-7)
    assert len(told) == -(-7 // size)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_the_model_is_evaluated_and_left_as_found() -> None:
    model, x, y = net(), images(4), labels(4)
    expected = diverged(model, x, y, Divergence())
    model.train()
    state = copy.deepcopy(model.state_dict())
    assert (diverged(model, x, y, Divergence()) == expected).all()
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_certain_prediction_stays_finite_and_a_constant_image_does_not_move() -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():  # bright images belong to class 0, dark ones to class 1, with probabilities of 0 in float64
        model[-1].weight.copy_(torch.tensor([[900.0], [-900.0]]).expand(2, 3))
        model[-1].bias.copy_(torch.tensor([-900.0, 900.0]))
    made = diverged(model, images(3, 9, 11), labels(3, 2), Divergence(fill="zero"))
    assert np.isfinite(made).all()
    assert made.max() > 745  # -log of the smallest number that float64 can tell from 0
    still = diverged(plain_net(), torch.full((1, 3, 8, 8), 0.5), labels(1), Divergence())
    np.testing.assert_allclose(still, 0.0, atol=1e-9)


def _values(members: int, nonmembers: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    member = np.zeros(members + nonmembers, bool)
    member[rng.permutation(members + nonmembers)[:members]] = True
    values = rng.exponential(1.0, (len(member), 3)) * np.array([1.0, 2.0, 3.0])
    return values + 0.2 * member[:, None] * np.array([1.0, 1.0, 0.0]), member


SETTINGS = Divergence(levels=(0.1, 0.2, 0.3), batch=5)


def _unit(table: pd.DataFrame, unit: str) -> pd.DataFrame:
    return table[table["unit"] == unit].reset_index(drop=True)


@pytest.mark.parametrize("unit", ["sample", "batch"])
def test_the_profile_against_scipy(unit: str) -> None:
    values, member = _values(63, 48)
    table = _unit(profile(values, member, SETTINGS), unit)
    groups = [values[member], values[~member]]
    if unit == "batch":  # means of 5 images each, in order, the rest left out: 12 and 9 batches
        groups = [np.array([g[i : i + 5].mean(0) for i in range(0, len(g) // 5 * 5, 5)]) for g in groups]
        assert [len(group) for group in groups] == [12, 9]
    assert table["level"].tolist() == [0.1, 0.2, 0.3]
    for level in range(3):
        row, (a, b) = table.loc[level], (groups[0][:, level], groups[1][:, level])
        for name, group in (("member", a), ("nonmember", b)):
            assert row[f"{name}_n"] == len(group)
            assert row[f"{name}_mean"] == pytest.approx(group.mean())
            assert row[f"{name}_sd"] == pytest.approx(group.std(ddof=1))
            error = group.std() / np.sqrt(len(group))
            assert row[f"{name}_low"] == pytest.approx(group.mean() - 1.96 * error, abs=0.5 * error)
            assert row[f"{name}_high"] == pytest.approx(group.mean() + 1.96 * error, abs=0.5 * error)
        t, ks = stats.ttest_ind(a, b, equal_var=unit == "batch"), stats.ks_2samp(a, b)
        assert (row["t"], row["t_df"], row["t_p"]) == pytest.approx((t.statistic, t.df, t.pvalue))
        assert (row["ks"], row["ks_p"]) == pytest.approx((ks.statistic, ks.pvalue))
        pooled = ((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2)
        assert row["cohen_d"] == pytest.approx((a.mean() - b.mean()) / np.sqrt(pooled))
    for name in ("t_p", "ks_p"):
        order, worst = np.argsort(table[name].to_numpy()), 0.0
        for place, level in enumerate(order):  # Holm, step by step
            worst = max(worst, min(1.0, (3 - place) * table[name][level]))
            assert table[f"{name}_holm"][level] == pytest.approx(worst)


@pytest.mark.parametrize(
    ("members", "nonmembers", "enough"),
    [(40, 40, True), (40, 39, False), (39, 60, False), (44, 41, True), (3, 4, False)],
)
def test_batch_tests_need_eight_batches_per_group(members: int, nonmembers: int, enough: bool) -> None:
    table = profile(*_values(members, nonmembers), SETTINGS)
    batch = _unit(table, "batch")
    assert bool(batch[TESTS].notna().all(axis=None)) is enough
    assert bool(batch[TESTS].isna().all(axis=None)) is not enough
    assert batch["member_n"].tolist() == [members // 5] * 3
    assert _unit(table, "sample")[TESTS].notna().all(axis=None)


def test_one_image_in_a_group_has_a_mean_but_no_tests() -> None:
    values = np.random.default_rng(0).exponential(size=(10, 3))
    member = np.arange(10) == 4
    row = _unit(profile(values, member, SETTINGS), "sample").loc[0]
    assert row["member_mean"] == values[4, 0]
    assert row[["member_sd", "member_low", "member_high", *TESTS]].isna().all()
    assert row["nonmember_mean"] == pytest.approx(np.delete(values[:, 0], 4).mean())


def test_batch_means() -> None:
    values = np.arange(14.0).reshape(7, 2)
    assert batch_means(values, 3).tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert batch_means(values, 8).shape == (0, 2)
