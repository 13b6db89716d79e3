"""ROAD against a sparse system built pixel by pixel, the blur against SciPy's (Rong et al. 2022, section 4)."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

from tests.tier.toys import images, labels, net
from tier.config import OperatorName, Trajectory
from tier.imputation import blurred, linear, road
from tier.perturbation import ranks
from tier.runtime import as_pixels
from tier.trajectories import trajectories


def slow_linear(image: NDArray[np.float64], gone: NDArray[np.bool_]) -> NDArray[np.float64]:
    """One image `(C, H, W)` with each pixel that is gone the weighted mean of its neighbours, by a direct solve."""
    channels, height, width = image.shape
    unknown = [(int(row), int(column)) for row, column in np.argwhere(gone)]
    place = {pixel: index for index, pixel in enumerate(unknown)}
    matrix, right = lil_matrix((len(unknown), len(unknown))), np.zeros((len(unknown), channels))
    for (row, column), index in place.items():
        weights = {
            (row + down, column + right_): 1 / 6 if down == 0 or right_ == 0 else 1 / 12
            for down, right_ in itertools.product((-1, 0, 1), repeat=2)
            if (down, right_) != (0, 0) and 0 <= row + down < height and 0 <= column + right_ < width
        }
        matrix[index, index] = 1.0
        for neighbour, weight in weights.items():
            share = weight / sum(weights.values())
            if neighbour in place:
                matrix[index, place[neighbour]] = -share
            else:
                right[index] += share * image[:, neighbour[0], neighbour[1]]
    made = image.copy()
    made[:, gone] = spsolve(matrix.tocsc(), right).reshape(len(unknown), channels).T
    return made


def check(x: Tensor, gone: Tensor) -> None:
    """`linear` of a batch against the slow solve of each image; what is not gone stays bit for bit."""
    made = linear(x, gone)
    for b in range(len(x)):
        expected = slow_linear(x[b].double().numpy(), gone[b].numpy())
        np.testing.assert_allclose(made[b].numpy(), expected, atol=1e-5, rtol=0)
    kept = ~gone.unsqueeze(1).expand_as(x)
    assert torch.equal(made[kept], x[kept])
    assert made.dtype == x.dtype


def drawn(share: float, *shape: int) -> Tensor:
    """A mask that removes a share of the pixels at random and leaves each image at least one."""
    gone = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < share
    gone[:, -1, 0] = False
    return gone


class TestLinear:
    @pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 1.0])
    @pytest.mark.parametrize(
        "shape", [(3, 16, 16), (1, 16, 16), (2, 7, 12), (2, 12, 7), (2, 1, 9), (2, 9, 1), (2, 2, 2)]
    )
    def test_random_masks(self, shape: tuple[int, int, int], share: float) -> None:
        check(images(*shape), drawn(share, *shape))

    def test_nested_masks_as_a_removal_path_makes_them(self) -> None:
        x = images(2, 12, 12)
        smooth = blurred(torch.rand(2, 12, 12, generator=torch.Generator().manual_seed(5)), 2.0)
        places = ranks(smooth).view(2, 12, 12)
        for level in range(1, 10):
            check(x, places < round(level / 10 * 144))

    def test_a_checkerboard(self) -> None:
        board = (torch.arange(9).view(-1, 1) + torch.arange(8)) % 2 == 0
        check(images(2, 9, 8), torch.stack([board, ~board]))

    def test_a_region_without_a_known_neighbour_is_reached_through_others(self) -> None:
        gone = torch.zeros(1, 9, 9, dtype=torch.bool)
        gone[:, 1:8, 1:8] = True
        check(images(1, 9, 9), gone)
        gone[:] = True
        gone[:, 0, 0] = False  # one pixel decides them all
        x = images(1, 9, 9)
        torch.testing.assert_close(linear(x, gone), x[:, :, :1, :1].expand_as(x))

    def test_single_pixels_at_the_middle_an_edge_and_a_corner(self) -> None:
        x = torch.zeros(1, 1, 3, 4)
        x[0, 0, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        x[0, 0, 1] = torch.tensor([5.0, 6.0, 7.0, 8.0])
        for (row, column), value in {
            (1, 1): (2 + 5 + 7 + 0) / 6 + (1 + 3) / 12,
            (0, 1): ((1 + 3 + 6) / 6 + (5 + 7) / 12) / (3 / 6 + 2 / 12),
            (0, 0): ((2 + 5) / 6 + 6 / 12) / (2 / 6 + 1 / 12),
        }.items():
            gone = torch.zeros(1, 3, 4, dtype=torch.bool)
            gone[0, row, column] = True
            assert linear(x, gone)[0, 0, row, column].item() == pytest.approx(value, rel=1e-6)

    @pytest.mark.parametrize("size", [(1, 1), (5, 7)])
    def test_without_a_pixel_left_an_image_becomes_its_mean(self, size: tuple[int, int]) -> None:
        x, gone = images(3, *size), drawn(0.5, 3, *size)
        gone[1] = True
        made = linear(x, gone)
        torch.testing.assert_close(made[1], x[1].mean((1, 2), keepdim=True).expand(-1, *size))
        assert torch.equal(made[::2], linear(x[::2], gone[::2]))
        torch.testing.assert_close(linear(x[1:2], gone[1:2]), made[1:2])

    def test_nothing_gone_and_no_image(self) -> None:
        x = images(2)
        assert torch.equal(linear(x, torch.zeros(2, 16, 16, dtype=torch.bool)), x)
        assert linear(x[:0], torch.zeros(0, 16, 16, dtype=torch.bool)).shape == (0, 3, 16, 16)

    def test_a_plane_is_continued_inside_the_image(self) -> None:
        plane = torch.arange(8.0).view(-1, 1) * 0.05 + torch.arange(9.0) * 0.03
        gone = torch.zeros(1, 8, 9, dtype=torch.bool)
        gone[:, 2:6, 1:8] = True
        torch.testing.assert_close(linear(plane.expand(1, 3, 8, 9), gone), plane.expand(1, 3, 8, 9))

    def test_the_batch_and_the_layout_do_not_matter(self) -> None:
        x, gone = images(40, 16, 16), drawn(0.7, 40, 16, 16)  # more than one solve takes
        alone = torch.cat([linear(x[b : b + 1], gone[b : b + 1]) for b in range(40)])
        torch.testing.assert_close(linear(x, gone), alone, atol=1e-6, rtol=0)
        assert torch.equal(linear(as_pixels(x), gone), linear(x, gone))

    def test_many_solves_give_what_one_gives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, gone = images(7), drawn(0.6, 7, 16, 16)
        gone[3] = True  # and one image that has nothing to solve
        expected = linear(x, gone)
        monkeypatch.setattr("tier.imputation._BAND", 1)
        torch.testing.assert_close(linear(x, gone), expected, atol=1e-6, rtol=0)


class TestRoad:
    def test_noise_has_the_stated_spread_and_is_the_same_for_every_image_and_mask(self) -> None:
        x = images(3, 40, 40)
        x[2] = 0.0
        gone, more = drawn(0.5, 3, 40, 40), drawn(0.8, 3, 40, 40)
        noise, again = road(x, gone, 0.01, 0) - linear(x, gone), road(x, more, 0.01, 0) - linear(x, more)
        for b in range(3):
            assert noise[b][:, gone[b]].std().item() == pytest.approx(0.01, rel=0.05)
            assert noise[b][:, gone[b]].mean().abs() < 0.001
            both = gone[0] & gone[b] & more[b]
            torch.testing.assert_close(noise[0][:, both], noise[b][:, both], atol=1e-6, rtol=0)
            torch.testing.assert_close(noise[0][:, both], again[b][:, both], atol=1e-6, rtol=0)
        assert road(x, gone, 0.01, 0)[2].min() < 0  # not clipped
        assert not torch.allclose(noise[0, 0][gone[0]], noise[0, 1][gone[0]], atol=1e-3)  # each channel its own

    def test_only_the_seed_decides_the_noise(self) -> None:
        x, gone = images(2), drawn(0.5, 2, 16, 16)
        torch.manual_seed(1)
        first = road(x, gone, 0.01, 0)
        torch.manual_seed(2)
        assert torch.equal(road(x, gone, 0.01, 0), first)
        assert not torch.equal(road(x, gone, 0.01, 1), first)
        kept = ~gone.unsqueeze(1).expand_as(x)
        assert torch.equal(first[kept], x[kept])


@pytest.mark.parametrize("operator", ["road", "blur"])
def test_trajectories_follow_the_replaced_images(operator: OperatorName) -> None:
    model, x, y = net(), images(3, 9, 11), labels(3)
    maps = torch.randn(3, 9, 11, generator=torch.Generator().manual_seed(8))
    settings = Trajectory(operator=operator, noise=0.0, blur=1.5, alpha=0.0, levels=(0.0, 0.3, 0.8))
    made = trajectories(model, x, y, maps.numpy(), settings, batch_size=2)
    for b, (order, path) in itertools.product(range(3), (("morf", made.morf), ("lerf", made.lerf))):
        removal = maps[b].flatten().argsort(descending=order == "morf")
        for column, count in enumerate((0, 30, 79)):  # of 99 pixels
            gone = torch.zeros(99, dtype=torch.bool).index_fill(0, removal[:count], True).view(9, 11).numpy()
            image = x[b].double().numpy()
            if operator == "road":
                changed = slow_linear(image, gone) if count else image
            else:
                changed = np.where(gone, gaussian_filter(image, (0, 1.5, 1.5)), image)
            with torch.no_grad():
                expected = model(torch.from_numpy(changed).float()[None]).log_softmax(1)[0, y[b]]
            assert path[b, column] == pytest.approx(expected.item(), abs=1e-4)


class TestBlurred:
    @pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 6.5])
    @pytest.mark.parametrize("shape", [(2, 3, 16, 16), (1, 3, 7, 12), (2, 1, 1, 5), (1, 3, 1, 1)])
    def test_against_scipy(self, shape: tuple[int, ...], sigma: float) -> None:
        x = torch.rand(shape, generator=torch.Generator().manual_seed(6))
        expected = gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode="reflect", truncate=4.0)
        np.testing.assert_allclose(blurred(x, sigma).numpy(), expected, atol=1e-6)

    def test_a_constant_stays(self) -> None:
        x = torch.full((1, 3, 9, 11), 0.3)
        torch.testing.assert_close(blurred(x, 2.0), x)
