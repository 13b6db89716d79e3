"""LIME for batches: captum's and scikit-learn's regressions, additive models, images of one superpixel."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import Lime
from captum.attr._core.lime import get_exp_kernel_similarity_function
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor, nn

from tests.tier.toys import degenerate, images, labels, net, pictures, smooth_net
from tier.config import Explain
from tier.explainers import explain
from tier.explainers.base import flat_baseline
from tier.explainers.lime import keep_draws, kernel, lime, regress, removal_scores, ridge_operator, superpixels


@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_maps_are_captum_s_image_by_image(baseline: Any) -> None:
    config = Explain(name="lime", perturbations=60, segments=12, baseline=baseline, ridge=0.5, kernel_width=0.4, seed=2)
    model, x, y = smooth_net(), pictures(3, 16, 24), labels(3)
    x[2] = pictures(1, 16, 24, seed=9)[0].round()  # a patchwork: other superpixels
    segments = superpixels(x, config.segments, config.compactness)
    assert len(set((segments.amax((1, 2)) + 1).tolist())) > 1
    near = get_exp_kernel_similarity_function("cosine", config.kernel_width)
    made = explain(config, model, x, y)
    for b in range(3):
        kept = keep_draws(config.perturbations, int(segments[b].max()) + 1, config.seed)

        def perturb(original: Any, kept: Tensor = kept, **_settings: Any) -> Iterator[Tensor]:
            yield from kept.long().split(1)

        def similar(original: Any, perturbed: Any, vector: Tensor, **_settings: Any) -> float:
            return near(torch.ones_like(vector), vector, None)

        explainer = Lime(model, SkLearnRidge(alpha=config.ridge), similarity_func=similar, perturb_func=perturb)
        expected = explainer.attribute(
            x[b : b + 1],
            baselines=flat_baseline(x[b : b + 1], baseline).expand(1, -1, 16, 24),
            target=int(y[b]),
            feature_mask=segments[b].expand(1, 3, -1, -1),
            n_samples=config.perturbations,
        )
        assert (expected[0] == expected[0, 0]).all()  # every channel has the superpixel's coefficient
        torch.testing.assert_close(made[b], expected[0, 0], rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("ridge", [0.0, 0.3, 10.0])
def test_coefficients_are_scikit_learn_s(ridge: float) -> None:
    kept = keep_draws(50, 9, seed=1)
    counts = torch.tensor([9, 4, 9, 1])
    scores = 20 + torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).double()
    made = regress(kept, scores, counts, 0.3, ridge)
    assert made.shape == (4, 9)
    for found, score, count in zip(made, scores, counts.tolist(), strict=True):
        design = kept[:, :count].numpy().astype(float)
        surrogate = Ridge(alpha=ridge) if ridge else LinearRegression()
        surrogate.fit(design, score.numpy(), sample_weight=kernel(kept[:, :count], 0.3).numpy())
        torch.testing.assert_close(found[:count], torch.from_numpy(surrogate.coef_), rtol=1e-8, atol=1e-9)
        assert (found[count:] == 0).all()


def test_more_superpixels_than_images_take_the_shortest_solution() -> None:
    kept = keep_draws(10, 30, seed=0)
    scores = torch.randn(1, 10, generator=torch.Generator().manual_seed(0)).double()
    made = regress(kept, scores, torch.tensor([30]), 0.5, ridge=0.0)
    surrogate = LinearRegression().fit(kept.numpy().astype(float), scores[0].numpy(), kernel(kept, 0.5).numpy())
    torch.testing.assert_close(made[0], torch.from_numpy(surrogate.coef_), rtol=1e-6, atol=1e-8)


def test_the_operator_solves_the_normal_equations() -> None:
    kept = keep_draws(40, 6, seed=0)
    weights, design = kernel(kept, 0.25).diag(), torch.cat([torch.ones(40, 1), kept], 1).double()
    penalty = torch.eye(7, dtype=torch.float64)
    penalty[0, 0] = 0  # the intercept
    expected = torch.linalg.solve(design.T @ weights @ design + 2.0 * penalty, design.T @ weights)[1:]
    torch.testing.assert_close(ridge_operator(kept, 0.25, 2.0), expected)


@pytest.mark.parametrize("width", [0.1, 0.25, 2.0])
def test_the_kernel_is_captum_s_on_the_superpixels_kept(width: float) -> None:
    kept = keep_draws(30, 7, seed=0)
    kept[5] = False
    near = get_exp_kernel_similarity_function("cosine", width)
    expected = [near(torch.ones(7), row.float(), None) for row in kept]
    torch.testing.assert_close(kernel(kept, width), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-7)


class Additive(nn.Module):
    """Logits that are weighted sums of the pixels, so that each superpixel adds its own share."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3, 16, 24, generator=draw) / 100)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bcij,kcij->bk", x, self.weight) + 5.0


@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_an_additive_model_s_shares_are_found(baseline: Any) -> None:
    model, x, y = Additive(), pictures(3, 16, 24), labels(3)
    config = Explain(name="lime", ridge=0.0, baseline=baseline)
    made = lime(model, x, y, config)
    segments = superpixels(x, config.segments, config.compactness)
    pixels = (model.weight.detach()[y] * (x - flat_baseline(x, baseline))).sum(1)  # (B, H, W)
    for b in range(3):
        for segment in segments[b].unique():
            here = segments[b] == segment
            torch.testing.assert_close(
                made[b][here], pixels[b][here].sum().expand(int(here.sum())), rtol=1e-3, atol=1e-4
            )


def test_removed_superpixels_are_replaced() -> None:
    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    x = pictures(2, 4, 6)
    segments = torch.arange(24).view(1, 4, 6).expand(2, 4, 6) // 8  # three superpixels
    kept = torch.tensor([[True, True, True], [False, True, False], [True, False, True]])
    for baseline, filler in (("zero", torch.zeros(2, 3, 1, 1)), ("mean", x.mean((2, 3), keepdim=True))):
        for pixel in (0, 30, 71):
            scores = removal_scores(Pixels(), x, torch.tensor([pixel] * 2), segments, kept, baseline)  # type: ignore[arg-type]
            channel, place = divmod(pixel, 24)
            for row, keep in enumerate(kept):
                expected = x.flatten(1)[:, pixel] if keep[place // 8] else filler[:, channel, 0, 0]
                torch.testing.assert_close(scores[:, row], expected)


def test_an_image_of_one_superpixel_has_a_degenerate_map() -> None:
    x = torch.cat([images(1, 32, 32), pictures(1, 32, 32)])
    assert int(superpixels(x, 40, 10.0)[0].max()) == 0  # white noise falls together
    maps = explain(Explain(name="lime"), net(), x, labels(2))
    assert degenerate(maps).tolist() == [True, False]
    assert torch.isfinite(maps).all()
    alone = explain(Explain(name="lime", ridge=0.0), net(), x[:1], labels(1))
    assert degenerate(alone).all() and torch.isfinite(alone).all()


class Wobbly(nn.Module):
    """A model whose logits depend on the place in the pass, by as little as another order of summation does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + 1e-6 * torch.arange(len(x)).view(-1, 1) / len(x)


@pytest.mark.parametrize(("baseline", "value"), [("zero", 0.0), ("mean", 0.3)])
def test_rounding_is_no_explanation_of_an_image_from_which_nothing_can_be_removed(baseline: Any, value: float) -> None:
    x = torch.cat([torch.full((1, 3, 16, 24), value), pictures(1, 16, 24)])
    maps = explain(Explain(name="lime", baseline=baseline), Wobbly(net()), x, labels(2))
    assert degenerate(maps).tolist() == [True, False]


@pytest.mark.parametrize("size", [(8, 8), (5, 30), (4, 4)])
def test_superpixels_are_numbered_without_gaps(size: tuple[int, int]) -> None:
    x = torch.cat([pictures(2, *size), images(2, *size), torch.full((1, 3, *size), 0.4)])
    segments = superpixels(x, 40, 10.0)
    assert segments.shape == (5, *size) and segments.dtype == torch.int64
    for labelled in segments:
        assert labelled.unique().tolist() == list(range(int(labelled.max()) + 1))
    assert torch.equal(superpixels(x.contiguous(memory_format=torch.channels_last), 40, 10.0), segments)


def test_superpixels_follow_the_colours() -> None:
    x = torch.full((1, 3, 16, 24), 0.1)
    x[..., 11:] = 0.9
    segments = superpixels(x, 8, 1.0)[0]
    left, right = segments[:, :11].unique().tolist(), segments[:, 11:].unique().tolist()
    assert not set(left) & set(right)


def test_draws_are_fair_and_a_column_does_not_depend_on_their_number() -> None:
    kept = keep_draws(2000, 12, seed=0)
    assert kept[0].all()
    assert torch.equal(keep_draws(2000, 5, seed=0), kept[:, :5])
    assert (kept.float().mean(0) - 0.5).abs().max() < 0.04
    assert torch.corrcoef(kept.float().T).fill_diagonal_(0).abs().max() < 0.1
    assert not torch.equal(keep_draws(2000, 12, seed=1), kept)
