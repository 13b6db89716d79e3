"""MoRF and LeRF confidences against removing pixels one by one (section IV, eq. 1 and 2)."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from tests.tier.test_perturbation import slow_order, slow_total_variation
from tests.tier.toys import images, labels, net, plain_net
from tier.config import Explain, Trajectory
from tier.explainers import attributions, explain, explained_class
from tier.gallery import degenerate
from tier.trajectories import Trajectories, curves, differences, log_confidence, removal_steps, trajectories


def slow_trajectories(
    model: nn.Module, x: Tensor, y: Tensor, settings: Trajectory, explainer: Explain
) -> dict[str, np.ndarray]:
    """Eq. 2 for both orders, `(N, L)`, image by image and pixel by pixel."""
    made = {"morf": np.zeros((len(x), len(settings.levels))), "lerf": np.zeros((len(x), len(settings.levels)))}
    for b in range(len(x)):
        image, pixels = x[b], x[b, 0].numel()
        with torch.no_grad():
            predicted = model(x[b : b + 1]).argmax(1)
        target = y[b : b + 1] if explainer.target == "label" else predicted
        g = explain(explainer, model, x[b : b + 1], target)[0].double()
        g = g.abs() if settings.sign == "absolute" else g
        g = g / g.abs().max() if g.abs().max() > 0 else g
        importance = g - settings.alpha * torch.from_numpy(slow_total_variation(image))
        for order in made:
            removal = slow_order(importance, descending=order == "morf")
            for column, level in enumerate(settings.levels):
                count = max(1, round(level * pixels)) if level > 0 else 0
                changed = image.clone()
                for pixel in removal[:count]:
                    row, place = divmod(pixel, image.shape[2])
                    for channel in range(3):
                        mean = image[channel].mean() if settings.operator == "mean" else 0.0
                        changed[channel, row, place] = mean
                with torch.no_grad():
                    logits = model(changed.unsqueeze(0))[0].double().numpy()
                made[order][b, column] = log_softmax(logits)[y[b]]
    return made


def followed(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Trajectory,
    explainer: Explain,
    size: int = 250,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Trajectories:
    """Explain the images, then follow their trajectories."""
    maps = attributions(explainer, model, x, y).maps[explainer.name]
    return trajectories(model, x, y, maps, settings, size, progress)


@pytest.mark.parametrize(
    ("settings", "explainer"),
    [
        (Trajectory(), Explain()),
        (Trajectory(alpha=0.0), Explain(channel_reduction="abs_mean")),
        (Trajectory(alpha=1.0, sign="absolute"), Explain()),
        (Trajectory(operator="zero"), Explain()),
        (Trajectory(levels=(0.0, 0.01, 0.5, 1.0)), Explain(target="predicted")),
        (Trajectory(levels=(0.1, 0.3)), Explain(name="gradcam")),
    ],
)
def test_against_removing_pixel_by_pixel(settings: Trajectory, explainer: Explain) -> None:
    model, x, y = plain_net(), images(5, 9, 11), labels(5)
    expected = slow_trajectories(model, x, y, settings, explainer)
    made = followed(model, x, y, settings, explainer, 2)
    np.testing.assert_allclose(made.morf, expected["morf"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.lerf, expected["lerf"], rtol=1e-4, atol=1e-5)
    assert made.morf.dtype == made.lerf.dtype == np.float64


def test_steps_are_the_first_level_that_removes_a_pixel() -> None:
    settings, x = Trajectory(levels=(0.0, 0.2, 0.5), alpha=0.1), images(3, 5, 7)
    maps = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(1)) - 0.5
    made = removal_steps(maps, x, settings)
    for b in range(3):
        importance = maps[b].double() / maps[b].abs().max() - 0.1 * torch.from_numpy(slow_total_variation(x[b]))
        for order, steps in made.items():
            removal = slow_order(importance, descending=order == "morf")
            counts = [0, 7, 18]  # of 35 pixels
            expected = [next((i for i in range(3) if removal.index(p) < counts[i]), 3) for p in range(35)]
            assert steps[b].flatten().tolist() == expected
            assert steps.dtype == torch.uint8


def test_the_settings_and_the_orders_differ() -> None:
    """So that the comparison above could have failed for each."""
    model, x, y = plain_net(), images(5, 9, 11), labels(5)
    made = [
        followed(model, x, y, settings, explainer)
        for settings, explainer in [
            (Trajectory(), Explain()), (Trajectory(alpha=0.0), Explain()), (Trajectory(operator="zero"), Explain()),
            (Trajectory(), Explain(target="predicted")), (Trajectory(), Explain(channel_reduction="abs_mean")),
            (Trajectory(), Explain(name="gradcam")),
        ]
    ]  # fmt: skip
    columns = [tuple(paths.morf[:, 3].round(5)) for paths in made] + [tuple(made[0].lerf[:, 3].round(5))]
    assert len(set(columns)) == len(columns)


def test_removing_what_matters_most_hurts_more_than_removing_what_matters_least() -> None:
    model, x = net(), images(30)
    with torch.no_grad():
        y = model(x).argmax(1)
    made = followed(model, x, y, Trajectory(alpha=0.0), Explain())
    assert made.morf[:, 1].mean() < made.lerf[:, 1].mean()
    assert (made.morf[:, 0] == made.lerf[:, 0]).all()


@pytest.mark.parametrize("size", [1, 4, 7, 250])
def test_the_batch_size_does_not_matter_and_progress_is_told(size: int) -> None:
    model, x, y = net(), images(7), labels(7)
    told: list[float] = []
    made = followed(model, x, y, Trajectory(), Explain(), size, told.append)
    expected = followed(model, x, y, Trajectory(), Explain())
    np.testing.assert_allclose(made.morf, expected.morf, atol=1e-4)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) == -(-7 // size)


def test_uint8_pixels_are_255ths() -> None:
    model, y = net(), labels(3)
    raw = (images(3) * 255).to(torch.uint8)
    first = followed(model, raw, y, Trajectory(), Explain())
    second = followed(model, raw.float() / 255, y, Trajectory(), Explain())
    assert (first.morf == second.morf).all()


@pytest.mark.parametrize("target", ["label", "predicted"])
def test_the_model_is_evaluated_and_left_as_found(target: Any) -> None:
    model, x, y = net(), images(4), labels(4)
    expected = followed(model, x, y, Trajectory(), Explain(target=target))
    model.train()
    model.body.block1.eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    made = followed(model, x, y, Trajectory(), Explain(target=target))
    assert (made.morf == expected.morf).all()
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_constant_image_goes_by_pixel_index_and_is_not_moved_by_its_mean() -> None:
    model = net()
    made = followed(model, torch.full((1, 3, 16, 16), 0.5), labels(1), Trajectory(), Explain())
    np.testing.assert_allclose(made.morf, made.morf[:, :1].repeat(10, 1), atol=1e-5)


def test_degenerate_maps_are_ranked_by_pixel_index() -> None:
    model = plain_net()
    with torch.no_grad():
        model[-1].weight[1] = 0.0  # class 1 has the same logit for every image
    x, y = images(3, 8, 8), torch.tensor([0, 1, 2])
    made = followed(model, x, y, Trajectory(alpha=0.0), Explain())
    assert degenerate(attributions(Explain(), model, x, y).maps["gradient"]).tolist() == [False, True, False]
    assert made.morf[1].tolist() == made.lerf[1].tolist()
    assert made.morf[0].tolist() != made.lerf[0].tolist()


def test_nan_maps_are_refused() -> None:
    maps = np.zeros((2, 16, 16), np.float32)
    maps[1, 3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        trajectories(plain_net(), images(2), torch.zeros(2, dtype=torch.int64), maps, Trajectory())


def test_confident_predictions_do_not_tie() -> None:
    logits = torch.tensor([[0.0, 900.0], [0.0, 901.0], [30.0, 0.0], [31.0, 0.0]])
    made = log_confidence(logits, torch.zeros(4, dtype=torch.int64))
    assert made.dtype == torch.float64
    np.testing.assert_allclose(made, [log_softmax(row)[0] for row in logits.double().numpy()], rtol=1e-9)
    assert len(set(made.tolist())) == 4


def test_the_explained_class() -> None:
    model, x, y = net(), images(6), labels(6)
    assert torch.equal(explained_class(model, x, y, Explain()), y)
    with torch.no_grad():
        predicted = model(x).argmax(1)
    assert not torch.equal(predicted, y)
    assert torch.equal(explained_class(model, x, y, Explain(target="predicted")), predicted)


class TestTables:
    LEVELS = (0.0, 0.5)

    @staticmethod
    def _paths(gap: float) -> tuple[Trajectories, np.ndarray]:
        rng = np.random.default_rng(0)
        member = np.arange(90) % 3 == 0
        paths = [np.log(rng.uniform(0.2, 0.5, (90, 2)) + gap * member[:, None]) for _ in range(2)]
        return Trajectories(paths[0], paths[1]), member

    def test_curves_are_means_of_confidence_with_their_intervals(self) -> None:
        paths, member = self._paths(0.3)
        table = curves(paths, member, self.LEVELS).set_index(["order", "member", "level"])
        assert len(table) == 8
        for order, group, index in [("morf", True, 0), ("morf", False, 1), ("lerf", True, 1), ("lerf", False, 0)]:
            values = np.exp(getattr(paths, order))[member == group, index]
            row = table.loc[(order, group, self.LEVELS[index])]
            assert row["mean"] == pytest.approx(values.mean())
            error = values.std() / np.sqrt(len(values))
            assert row["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
            assert row["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)
            assert row["n"] == (30 if group else 60)

    def test_differences_have_an_interval_and_a_null_band(self) -> None:
        paths, member = self._paths(0.3)
        table = differences(paths, member, self.LEVELS).set_index(["order", "level"])
        assert len(table) == 4
        for order in ("morf", "lerf"):
            confidence = np.exp(getattr(paths, order))
            for index, level in enumerate(self.LEVELS):
                row = table.loc[(order, level)]
                assert row["difference"] == pytest.approx(
                    confidence[member, index].mean() - confidence[~member, index].mean()
                )
                assert row["null_low"] < 0 < row["null_high"] < row["low"] < row["difference"] < row["high"]

    def test_without_a_difference_the_null_band_holds_it(self) -> None:
        paths, member = self._paths(0.0)
        table = differences(paths, member, self.LEVELS)
        assert ((table["null_low"] < table["difference"]) & (table["difference"] < table["null_high"])).all()
