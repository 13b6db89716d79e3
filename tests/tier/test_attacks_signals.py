"""What is measured on a model, against autograd on the probability itself and against float64 by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tier import toys
from tier import metrics
from tier.attacks import attribution
from tier.config import Explain
from tier.runtime import generator
from tier.signals import Output, gradient_statistics, log_odds, log_probabilities

OUTPUTS: tuple[Output, ...] = ("logit", "probability", "loss")


class Table(nn.Module):
    """A model that is linear in the pixels; its logits for image i are those asked for, times a scale."""

    def __init__(self, weights: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.weights, self.scale = nn.Parameter(weights), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x - 0.5).flatten(1) @ self.weights.T


def slow(model: nn.Module, x: Tensor, target: Tensor, output: Output) -> dict[str, list[float]]:
    """The statistics of each image's gradient, one image and one number at a time, in double precision."""
    model = model.double()
    found: dict[str, list[float]] = {"variance": [], "l1": [], "l2": []}
    for image, label in zip(x.double(), target.tolist(), strict=True):
        leaf = image[None].requires_grad_()
        logits = model(leaf)[0]
        p = logits.softmax(0)[label]
        value = {"logit": logits[label], "probability": p, "loss": -p.log()}[output]
        gradient = torch.autograd.grad(value, leaf)[0].flatten().tolist()
        mean = sum(gradient) / len(gradient)
        found["variance"].append(math.log(sum((g - mean) ** 2 for g in gradient) / len(gradient)))
        found["l1"].append(math.log(sum(abs(g) for g in gradient)))
        found["l2"].append(math.log(math.sqrt(sum(g * g for g in gradient))))
    model.float()
    return found


class TestGradientStatistics:
    @pytest.mark.parametrize("output", OUTPUTS)
    @pytest.mark.parametrize("kind", ["plain", "small"])
    def test_against_autograd_of_the_output_itself(self, output: Output, kind: str) -> None:
        model = toys.plain_net() if kind == "plain" else toys.net()
        x, y = toys.images(7), toys.labels(7)
        made, expected = gradient_statistics(model, x, y, output, batch_size=3), slow(model, x, y, output)
        for name in attribution.STATISTICS:
            np.testing.assert_allclose(made[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name)

    def test_of_the_predicted_class_where_that_is_explained(self) -> None:
        model, x, y = toys.plain_net(), toys.images(6), toys.labels(6)
        predicted = model(x).argmax(1)
        assert (predicted != y).any()
        made = gradient_statistics(model, x, y, "probability", Explain(target="predicted"))
        np.testing.assert_array_equal(made["l1"], gradient_statistics(model, x, predicted, "probability")["l1"])

    @pytest.mark.parametrize("output", ["probability", "loss"])
    def test_certain_predictions_neither_underflow_nor_tie(self, output: Output) -> None:
        """Ahead by 10 to 300: p is 1 in float32, 1 - p is 0 in float64, and the gradient is what mathematics says."""
        weights = torch.zeros(2, 12)
        weights[0, 0] = 1.0  # p = sigmoid(600 (pixel - 0.5))
        x = torch.full((30, 3, 2, 2), 0.5)
        ahead = torch.linspace(10, 299, 30)
        x[:, 0, 0, 0] += ahead / 600
        made = gradient_statistics(Table(weights, 600.0), x, torch.zeros(30, dtype=torch.int64), output)["l2"]
        steep = math.log(600) - 600 * (x[:, 0, 0, 0].double() - 0.5).numpy()
        np.testing.assert_allclose(made, steep, atol=1e-3)
        assert (np.diff(made) < 0).all()

    def test_the_probability_tells_members_that_the_model_is_certain_of_and_the_logit_does_not(self) -> None:
        """A linear model has the same logit gradient everywhere; what its certainty does shows in the probability's."""
        draw = torch.Generator().manual_seed(0)
        weights, member = torch.randn(5, 3 * 8 * 8, generator=draw), np.arange(200) < 100
        x = torch.rand(200, 3, 8, 8, generator=draw)
        model = Table(weights, 1.0)
        y = model(x).argmax(1)
        towards = (weights[y] - weights.mean(0)).view(-1, 3, 8, 8).sign()
        x = (x + 0.3 * towards * torch.from_numpy(member).view(-1, 1, 1, 1)).clamp(0, 1)
        assert model(x)[:100].softmax(1).gather(1, y[:100, None]).min() > 0.999  # saturates on members
        for name in attribution.STATISTICS:
            areas = {}
            for output in OUTPUTS[:2]:
                scores = -gradient_statistics(model, x, y, output)[name]
                areas[output] = metrics.auc(scores[member], scores[~member])
            assert areas["probability"] > 0.8 and abs(areas["logit"] - 0.5) < 0.15, (name, areas)

    def test_leaves_the_model_as_found_and_tells_progress(self) -> None:
        model = toys.net().train()
        told: list[float] = []
        gradient_statistics(model, toys.images(5), toys.labels(5), "loss", batch_size=2, progress=told.append)
        assert model.training and all(weight.grad is None for weight in model.parameters())
        assert told == [0.4, 0.8, 1.0]

    def test_a_model_of_nan_gives_nan(self) -> None:
        model = Table(torch.full((2, 12), float("nan")))
        made = gradient_statistics(model, torch.rand(3, 3, 2, 2), torch.zeros(3, dtype=torch.int64), "probability")
        assert all(np.isnan(values).all() for values in made.values())


class TestLogOdds:
    def test_are_those_of_the_probability(self) -> None:
        model, x, y = toys.plain_net(), toys.images(9), toys.labels(9)
        p = model(x).double().softmax(1)[torch.arange(9), y].detach().numpy()
        np.testing.assert_allclose(log_odds(model, x, y, batch_size=4), np.log(p / (1 - p)), atol=1e-5)
        log_p = log_probabilities(model, x)[np.arange(9), y]
        np.testing.assert_allclose(-np.logaddexp(0.0, -log_odds(model, x, y)), log_p, atol=1e-6)

    def test_tell_a_gap_of_40_from_one_of_50(self) -> None:
        weights = torch.zeros(3, 12)
        weights[0, 0] = 100.0
        x = torch.full((2, 3, 2, 2), 0.5)
        x[:, 0, 0, 0] = torch.tensor([0.9, 1.0])
        made = log_odds(Table(weights), x, torch.zeros(2, dtype=torch.int64))
        np.testing.assert_allclose(made, np.array([40.0, 50.0]) - math.log(2), atol=1e-4)

    def test_are_the_mean_over_views_of_which_the_first_is_the_image(self) -> None:
        model, x, y = toys.plain_net(), toys.images(9), toys.labels(9)
        asked: list[tuple[int, int, int]] = []

        def view(pixels: Tensor, query: int, batch: int) -> Tensor:
            asked.append((query, batch, len(pixels)))
            return (pixels + 0.1 * torch.rand(pixels.shape, generator=generator("queries", 0, query, batch))).clamp(
                0, 1
            )

        one = log_odds(model, x, y, view=view, batch_size=4)
        assert not asked
        np.testing.assert_array_equal(one, log_odds(model, x, y, batch_size=4))
        made = log_odds(model, x, y, 3, view, batch_size=4)
        assert asked == [(query, batch, size) for batch, size in enumerate((4, 4, 1)) for query in (1, 2)]
        views = [torch.cat([view(part, query, batch) for batch, part in enumerate(x.split(4))]) for query in (1, 2)]
        slow = [one, *(log_odds(model, copies, y, batch_size=4) for copies in views)]
        np.testing.assert_allclose(made, np.mean(slow, axis=0), atol=1e-9)
        np.testing.assert_array_equal(made, log_odds(model, x, y, 3, view, batch_size=4))  # asked the same again
