"""The nearest image against scikit-learn, ties, exclusion, and whole-number arithmetic."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from tier import neighbours


def pictures(count: int, seed: int = 0, shape: tuple[int, ...] = (3, 5, 4)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize("chunk", [1, 200, 32 << 20])
def test_the_nearest_is_scikit_learns(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CHUNK", chunk)
    images, queries = pictures(40), pictures(5, seed=1)
    rows = np.arange(3, 40, 2)
    flat = images.reshape(40, -1) / 255
    index = NearestNeighbors(n_neighbors=1).fit(flat[rows])
    distances, found = index.kneighbors(queries.reshape(5, -1) / 255)
    for query, distance, place in zip(queries, distances[:, 0], found[:, 0], strict=True):
        made = neighbours.nearest(query, images, rows)
        assert made is not None
        assert made.row == rows[place]
        assert made.distance == pytest.approx(distance / np.sqrt(60))  # root mean square instead of the norm


def test_an_image_is_its_own_nearest_unless_left_out() -> None:
    images = pictures(10)
    own = neighbours.nearest(images[4], images, np.arange(10))
    assert own == neighbours.Neighbour(4, 0.0)
    other = neighbours.nearest(images[4], images, np.arange(10), but=4)
    assert other is not None
    assert other.row != 4
    assert other.distance > 0


def test_black_against_white_is_one_and_does_not_overflow() -> None:
    black, white = np.zeros((3, 224, 224), np.uint8), np.full((1, 3, 224, 224), 255, np.uint8)
    assert neighbours.nearest(black, white, np.array([0])) == neighbours.Neighbour(0, 1.0)  # 9.8e9, more than 32 bits


def test_of_equal_distances_the_first_row_counts() -> None:
    images = np.stack([np.full((1, 2, 2), value, np.uint8) for value in (90, 110, 90)])
    found = neighbours.nearest(np.full((1, 2, 2), 100, np.uint8), images, np.array([2, 1, 0]))
    assert found is not None
    assert found.row == 2


def test_without_a_row_there_is_no_neighbour() -> None:
    images = pictures(3)
    assert neighbours.nearest(images[0], images, np.array([], int)) is None
    assert neighbours.nearest(images[0], images, np.array([0]), but=0) is None


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 4\)"):
        neighbours.nearest(np.zeros((3, 4, 4), np.uint8), pictures(3), np.arange(3))


def test_images_with_the_same_pixels_are_found() -> None:
    images = pictures(50)
    images[[7, 31]] = images[3]
    images[9] = images[3]
    images[9, 2, 4, 3] ^= 1  # differs in its last value only
    slow = [row for row in range(50) if np.array_equal(images[row], images[3])]
    assert neighbours.same(images[3], images).tolist() == slow == [3, 7, 31]
    assert not len(neighbours.same(255 - images[3], images))
    with pytest.raises(ValueError, match="cannot be compared"):
        neighbours.same(np.zeros((3, 4, 4), np.uint8), images)
