"""The order of pixels, masks and total variation, against plain loops over pixels (SPEC, notation and section 5)."""

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tier.toys import images
from tier.config import OPERATOR_SETTINGS, Experiment, Fill, OperatorName, Trajectory
from tier.perturbation import (
    OPERATORS,
    fill_value,
    mask_levels,
    ranks,
    removal_images,
    removal_importance,
    removed,
    total_variation,
)

SHAPES = [(1, 3, 6, 6), (3, 3, 5, 8), (2, 3, 1, 7)]


def slow_order(importance: Tensor, descending: bool) -> list[int]:
    """Pixel indices of one map `(H, W)` in the order of removal; equal pixels by index, whichever the direction."""
    values = importance.flatten().tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i] if descending else values[i], i))


def slow_total_variation(image: Tensor) -> np.ndarray:
    """Eq. 1's local total variation of one image `(C, H, W)`, by loops over pixels and neighbours."""
    channels, height, width = image.shape
    local = np.zeros((height, width))
    for row, column in itertools.product(range(height), range(width)):
        for down, right in itertools.product((-1, 0, 1), repeat=2):
            if (down, right) == (0, 0) or not (0 <= row + down < height and 0 <= column + right < width):
                continue
            for channel in range(channels):
                there, here = image[channel, row + down, column + right], image[channel, row, column]
                local[row, column] += abs(float(there) - float(here)) / channels
    return local / local.max() if local.max() > 0 else local


class TestRemoved:
    @pytest.mark.parametrize(
        ("level", "pixels", "expected"),
        [
            (0.0, 1024, 0), (0.05, 1024, 51), (0.1, 1024, 102), (0.2, 1024, 205), (0.7, 1024, 717), (1.0, 1024, 1024),
            (0.001, 64, 1), (1e-9, 1024, 1), (0.1, 1, 1), (0.1, 35, 4), (0.3, 35, 10),
        ],
    )  # fmt: skip
    def test_counts(self, level: float, pixels: int, expected: int) -> None:
        assert removed(level, pixels) == expected

    @pytest.mark.parametrize("level", [-0.1, 1.0001, float("nan"), float("inf"), 10.0])
    def test_refuses_what_is_no_fraction(self, level: float) -> None:
        with pytest.raises(ValueError, match="between 0 and 1"):
            removed(level, 100)


class TestRanks:
    @pytest.mark.parametrize("descending", [True, False])
    @pytest.mark.parametrize("shape", [(1, 4, 4), (5, 3, 7), (2, 1, 1)])
    def test_against_sorting_with_many_ties(self, shape: tuple[int, ...], descending: bool) -> None:
        importance = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0)).float()
        places = ranks(importance, descending)
        for one, place in zip(importance, places, strict=True):
            order = slow_order(one, descending)
            assert [int(place[pixel]) for pixel in order] == list(range(len(order)))

    @pytest.mark.parametrize("descending", [True, False])
    @pytest.mark.parametrize("value", [0.0, -3.5, float("inf")])
    def test_a_constant_map_goes_by_pixel_index_in_both_directions(self, value: float, descending: bool) -> None:
        # 40 x 40: past the size at which unstable sorts begin to reorder equal values
        places = ranks(torch.full((2, 40, 40), value), descending)
        assert torch.equal(places, torch.arange(1600).expand(2, -1))

    def test_the_sign_of_zero_does_not_matter(self) -> None:
        assert ranks(torch.tensor([[[-0.0, 0.0, -0.0, 0.0]]])).tolist() == [[0, 1, 2, 3]]

    def test_nan_is_refused(self) -> None:
        importance = torch.rand(2, 3, 3)
        importance[1, 2, 2] = float("nan")
        with pytest.raises(ValueError, match="NaN"):
            ranks(importance)


class TestMaskLevels:
    LEVELS = (0.0, 0.05, 0.1, 0.2, 0.9, 1.0)

    @pytest.mark.parametrize("fill", ["channel_mean", "scalar_mean", "zero"])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_against_loops(self, shape: tuple[int, int, int, int], fill: str) -> None:
        batch, channels, height, width = shape
        x = images(batch, height, width)
        importance = torch.rand(batch, height, width, generator=torch.Generator().manual_seed(1)).round(decimals=1)
        before = x.clone()
        made = mask_levels(x, ranks(importance), self.LEVELS, fill)  # type: ignore[arg-type]
        assert torch.equal(x, before)
        expected = torch.empty(len(self.LEVELS), *shape)
        for (index, level), b in itertools.product(enumerate(self.LEVELS), range(batch)):
            count = max(1, round(level * height * width)) if level > 0 else 0
            gone = set(slow_order(importance[b], True)[:count])
            for channel, pixel in itertools.product(range(channels), range(height * width)):
                row, column = divmod(pixel, width)
                mean = {"channel_mean": np.mean(x[b, channel].numpy().astype(np.float64)),
                        "scalar_mean": np.mean(x[b].numpy().astype(np.float64)), "zero": 0.0}[fill]  # fmt: skip
                expected[index, b, channel, row, column] = mean if pixel in gone else x[b, channel, row, column]
        torch.testing.assert_close(made, expected, atol=1e-6, rtol=0)

    def test_all_channels_of_exactly_the_stated_pixels_change(self) -> None:
        x = images(3, 5, 8)
        made = mask_levels(x, ranks(torch.rand(3, 5, 8)), (0.01, 0.05, 0.3, 0.9), "zero")
        changed = (made != x).all(2)
        assert torch.equal((made != x).any(2), changed)
        assert changed.sum((2, 3)).tolist() == [[n] * 3 for n in (1, 2, 12, 36)]

    def test_one_image_does_not_depend_on_the_others(self) -> None:
        x, importance = images(3), torch.rand(3, 16, 16)
        together = mask_levels(x, ranks(importance), (0.1, 0.5), "channel_mean")
        for b in range(3):
            alone = mask_levels(x[b : b + 1], ranks(importance[b : b + 1]), (0.1, 0.5), "channel_mean")
            torch.testing.assert_close(together[:, b : b + 1], alone)

    @pytest.mark.parametrize("fill", ["channel_mean", "scalar_mean"])
    def test_a_constant_grey_image_stays_as_it_is(self, fill: str) -> None:
        x = torch.full((1, 3, 7, 9), 0.25)
        made = mask_levels(x, ranks(torch.zeros(1, 7, 9)), (0.1, 1.0), fill)  # type: ignore[arg-type]
        torch.testing.assert_close(made, x.expand(2, -1, -1, -1, -1))


class TestOperators:
    @pytest.mark.parametrize(("name", "fill"), [("mean", "channel_mean"), ("zero", "zero")])
    def test_do_what_training_does(self, name: OperatorName, fill: Fill) -> None:
        x = images(2, 6, 9)
        places = ranks(torch.rand(2, 6, 9))
        for level in (0.1, 0.4, 1.0):
            gone = (places < removed(level, 54)).view(2, 6, 9)
            expected = mask_levels(x, places, (level,), fill)[0]
            assert torch.equal(OPERATORS[name](Trajectory())(x, gone), expected)

    def test_are_those_that_can_be_chosen(self) -> None:
        assert set(OPERATORS) == set(get_args(OperatorName)) == set(OPERATOR_SETTINGS)
        assert {name for names in OPERATOR_SETTINGS.values() for name in names} < set(Trajectory.model_fields)

    @pytest.mark.parametrize("name", get_args(OperatorName))
    def test_replace_what_is_gone_and_nothing_else(self, name: OperatorName) -> None:
        x = images(3, 6, 9)
        before, replace = x.clone(), OPERATORS[name](Trajectory())
        assert torch.equal(replace(x, torch.zeros(3, 6, 9, dtype=torch.bool)), x)
        gone = torch.rand(3, 6, 9, generator=torch.Generator().manual_seed(1)) < 0.4
        made = replace(x, gone)
        assert torch.equal((made != x).any(1), gone)
        assert torch.equal(x, before)

    @pytest.mark.parametrize("name", get_args(OperatorName))
    def test_one_image_does_not_depend_on_the_others(self, name: OperatorName) -> None:
        x, gone = images(5, 6, 9), torch.rand(5, 6, 9, generator=torch.Generator().manual_seed(1)) < 0.6
        replace = OPERATORS[name](Trajectory())
        alone = torch.cat([replace(x[b : b + 1], gone[b : b + 1]) for b in range(5)])
        torch.testing.assert_close(replace(x, gone), alone, atol=1e-6, rtol=0)

    @pytest.mark.parametrize(
        ("name", "changed", "differs"),
        [
            ("mean", {"blur": 1.0, "noise": 0.1, "noise_seed": 1}, False),
            ("zero", {"blur": 1.0, "noise": 0.1, "noise_seed": 1}, False),
            ("blur", {"noise": 0.1, "noise_seed": 1}, False), ("blur", {"blur": 1.0}, True),
            ("road", {"blur": 1.0}, False), ("road", {"noise": 0.1}, True), ("road", {"noise_seed": 1}, True),
        ],
    )  # fmt: skip
    def test_a_setting_acts_where_it_is_said_to(
        self, name: OperatorName, changed: dict[str, float], differs: bool
    ) -> None:
        x, gone = images(2), torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(1)) < 0.5
        plain = Trajectory(operator=name)
        other = Trajectory.model_validate({"operator": name, **changed})
        assert torch.equal(OPERATORS[name](plain)(x, gone), OPERATORS[name](other)(x, gone)) != differs
        assert (plain.canonical() == other.canonical()) != differs

    def test_the_seed_of_no_noise_does_not_act(self) -> None:
        first, second = (Trajectory(operator="road", noise=0.0, noise_seed=seed) for seed in (0, 1))
        assert first.canonical() == second.canonical() == first
        x, gone = images(2), torch.rand(2, 16, 16) < 0.5
        assert torch.equal(OPERATORS["road"](first)(x, gone), OPERATORS["road"](second)(x, gone))

    def test_a_canonical_experiment_keeps_what_acts(self) -> None:
        idle = Experiment(trajectory=Trajectory(operator="zero", blur=1.0, noise=0.5, noise_seed=3, alpha=0.5))
        assert idle.canonical().trajectory == Trajectory(operator="zero", alpha=0.5)
        acting = Trajectory(operator="road", noise=0.5, noise_seed=3, levels=(0.1, 0.2), sign="absolute")
        assert Experiment(trajectory=acting).canonical().trajectory == acting


@pytest.mark.parametrize("name", get_args(OperatorName))
@pytest.mark.parametrize("levels", [(0.0, 0.1, 0.5, 0.9), (0.001, 1.0)])
def test_the_path_is_the_operator_at_each_level(name: OperatorName, levels: tuple[float, ...]) -> None:
    x, settings = images(3, 6, 9), Trajectory(operator=name, levels=levels)
    places = ranks(torch.rand(3, 6, 9, generator=torch.Generator().manual_seed(1))).view(3, 6, 9)
    counts = [removed(level, 54) for level in levels]
    steps = torch.stack([places >= count for count in counts]).sum(0).to(torch.uint8)
    made = list(removal_images(x, steps, settings))
    assert len(made) == len(levels)
    for count, image in zip(counts, made, strict=True):
        assert torch.equal(image, OPERATORS[name](settings)(x, places < count))


def test_the_fill_is_the_images_own_mean() -> None:
    x = torch.stack([torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.9, 0.3, 0.0])])[:, :, None, None].expand(2, 3, 4, 4)
    torch.testing.assert_close(fill_value(x, "channel_mean").flatten(1), x[:, :, 0, 0])
    torch.testing.assert_close(fill_value(x, "scalar_mean").flatten(), torch.tensor([0.3, 0.4]))


class TestTotalVariation:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_against_loops(self, shape: tuple[int, int, int, int]) -> None:
        x = images(shape[0], shape[2], shape[3])
        made = total_variation(x)
        for one, image in zip(made, x, strict=True):
            np.testing.assert_allclose(one.numpy(), slow_total_variation(image), rtol=1e-5, atol=1e-6)

    def test_a_constant_image_has_none(self) -> None:
        assert torch.equal(total_variation(torch.full((2, 3, 5, 5), 0.7)), torch.zeros(2, 5, 5))

    def test_is_scaled_image_by_image(self) -> None:
        x = images(2)
        x[1] *= 0.01
        torch.testing.assert_close(total_variation(x).amax((1, 2)), torch.ones(2))

    def test_a_single_bright_pixel(self) -> None:
        x = torch.zeros(1, 3, 4, 4)
        x[:, :, 0, 0] = 1.0  # a corner: three neighbours see it once each, it sees three
        expected = torch.zeros(1, 4, 4)
        expected[0, 0, 0] = 1.0
        expected[0, 0, 1] = expected[0, 1, 0] = expected[0, 1, 1] = 1 / 3
        torch.testing.assert_close(total_variation(x), expected)


class TestRemovalImportance:
    @pytest.mark.parametrize("sign", ["signed", "absolute"])
    @pytest.mark.parametrize("alpha", [0.0, 0.01, 0.1, 1.0])
    def test_against_eq_1(self, alpha: float, sign: str) -> None:
        x = images(3, 5, 7)
        attribution = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(2)) * torch.tensor(
            [1.0, 1e-4, 50.0]
        ).view(3, 1, 1)
        made = removal_importance(attribution, x, alpha, sign)
        for b in range(3):
            g = attribution[b].numpy().astype(np.float64)
            g = (np.abs(g) if sign == "absolute" else g) / np.abs(g).max()
            np.testing.assert_allclose(made[b], g - alpha * slow_total_variation(x[b]), rtol=1e-4, atol=1e-6)

    def test_a_zero_map_is_ordered_by_variation_alone(self) -> None:
        x = images(1)
        torch.testing.assert_close(
            removal_importance(torch.zeros(1, 16, 16), x, 0.1, "signed"), -0.1 * total_variation(x)
        )

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_map_without_order_is_refused_when_it_is_ranked(self, bad: float) -> None:
        attribution = torch.rand(2, 16, 16)
        attribution[1, 3, 3] = bad
        with pytest.raises(ValueError, match="NaN"):
            ranks(removal_importance(attribution, images(2), 0.1, "signed"))


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("values", ["random", "ties", "constant", "signed zeros"])
def test_the_first_places_are_those_of_the_whole_order(values: str, descending: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    maps = {
        "random": torch.randn(4, 7, 9, generator=draw),
        "ties": torch.randint(-2, 3, (4, 7, 9), generator=draw).float(),
        "constant": torch.full((4, 7, 9), 0.25),
        "signed zeros": torch.tensor([0.0, -0.0, 1.0, -1.0]).repeat(16)[:63].expand(4, 63).reshape(4, 7, 9),
    }[values]
    whole, few = ranks(maps, descending), ranks(maps, descending, first=13)
    assert torch.equal(few < 13, whole < 13)
    assert torch.equal(few[few < 13], whole[whole < 13])
    assert (few[whole >= 13] == 63).all()
