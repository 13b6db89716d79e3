"""Pictures: colours against matplotlib's norms, removal paths against what the model is fed, pixels never smoothed."""

import io
import itertools
import subprocess
import sys
import time
import warnings

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import CenteredNorm, Normalize
from numpy.typing import NDArray
from PIL import Image

from tests import clock
from tests.tier.toys import images
from tier import pictures
from tier.config import Explain, Trajectory
from tier.perturbation import OPERATORS, ranks, removal_importance, removed

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
WHITE = pictures.heat(np.array([[0.0]]), signed=True)[0, 0]
DARK = pictures.heat(np.array([[0.0]]), signed=False)[0, 0]


@pytest.fixture(autouse=True)
def _no_warning() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def signed_map(height: int = 9, width: int = 7) -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(height, width))


def pixels(height: int = 8, width: int = 5) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (3, height, width), dtype=np.uint8)


class TestHeat:
    @pytest.mark.parametrize("name", ["RdBu_r", "cividis"])
    def test_colours_are_matplotlibs_to_a_step_of_its_table(self, name: str) -> None:
        signed = name == "RdBu_r"
        values = signed_map(40, 40) if signed else np.abs(signed_map(40, 40))
        peak = float(np.abs(values).max())
        norm = CenteredNorm(halfrange=peak) if signed else Normalize(0, peak)
        scale = matplotlib.colormaps[name]
        step = np.abs(np.diff(scale(np.arange(256))[:, :3] * 255, axis=0)).max()
        assert np.abs(pictures.heat(values) - scale(norm(values))[..., :3] * 255).max() <= step + 0.5
        assert step < 6

    def test_red_is_for_and_blue_against_and_zero_between(self) -> None:
        against, zero, favour = pictures.heat(np.array([[-1.0, 0.0, 1.0]]))[0].astype(int)
        assert favour[0] > favour[2] + 50 and against[2] > against[0] + 50
        assert zero.min() > 240 and np.ptp(zero) == 0

    def test_opposite_maps_are_mirrored_around_zero(self) -> None:
        values = signed_map()
        scale = [tuple(colour) for colour in pictures.heat(np.linspace(-1, 1, 511)[None], 1.0, True)[0]]
        limit = pictures.limit_of([values])
        one, other = pictures.heat(values, limit, True), pictures.heat(-values, limit, True)
        one_places, other_places = (
            np.array([scale.index(tuple(colour)) for colour in picture.reshape(-1, 3)]) for picture in (one, other)
        )
        assert np.abs(one_places + other_places - 510).max() <= 1  # a colour may fill two neighbouring steps

    def test_shared_scale_keeps_strength_apart(self) -> None:
        strong, weak = signed_map(), signed_map() / 10
        assert (pictures.heat(strong) == pictures.heat(weak)).all()
        limit = pictures.limit_of([strong, weak])
        assert limit == np.abs(strong).max()
        shared = pictures.heat(weak, limit).astype(int)
        assert np.abs(shared - WHITE).max() < np.abs(pictures.heat(strong, limit).astype(int) - WHITE).max()

    def test_beyond_the_limit_is_the_end_of_the_scale(self) -> None:
        picture = pictures.heat(np.array([[-5.0, -1.0, 1.0, 5.0]]), limit=1.0)[0]
        assert (picture[0] == picture[1]).all() and (picture[2] == picture[3]).all()

    def test_absolute_is_the_magnitude_in_cividis(self) -> None:
        values = signed_map()
        assert (pictures.heat(values, absolute=True) == pictures.heat(np.abs(values))).all()
        assert (pictures.heat(values, signed=True, absolute=True) == pictures.heat(np.abs(values), signed=False)).all()

    def test_magnitudes_below_zero_count_as_zero(self) -> None:
        assert (pictures.heat(np.array([[-1e-9, 0.0, 1.0]]), signed=False)[0, :2] == DARK).all()

    @pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
    def test_a_constant_map_is_neutral_on_its_own_scale(self, value: float) -> None:
        assert (pictures.heat(np.full((4, 4), value), signed=True) == WHITE).all()
        assert (pictures.heat(np.full((4, 4), value), signed=False) == DARK).all()

    def test_a_constant_map_shows_its_value_on_a_shared_scale(self) -> None:
        assert not (pictures.heat(np.full((2, 2), 3.0), limit=3.0, signed=True) == WHITE).all(-1).any()

    def test_what_has_no_value_is_grey(self) -> None:
        values = signed_map()
        whole = pictures.heat(values)
        values[0] = [np.nan, np.inf, -np.inf, np.nan, np.nan, np.nan, np.nan]
        picture = pictures.heat(values, np.abs(signed_map()).max())
        assert (picture[0] == pictures.NO_VALUE).all() and (picture[1:] == whole[1:]).all()
        assert (pictures.heat(np.full((3, 3), np.nan)) == pictures.NO_VALUE).all()

    @pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
    def test_a_limit_that_is_none_gives_zeros_colour(self, limit: float) -> None:
        assert (pictures.heat(signed_map(), limit, True) == WHITE).all()

    @pytest.mark.parametrize("scale", [1e-300, 5e-324, 1e300])
    def test_extreme_values_neither_warn_nor_vanish(self, scale: float) -> None:
        picture = pictures.heat(np.array([[-1.0, 0.0, 1.0]]) * scale)
        assert (picture == pictures.heat(np.array([[-1.0, 0.0, 1.0]]))).all()
        assert (pictures.heat(np.array([[1e308, 0.0]]), 1e-10, True)[0, 1] == WHITE).all()

    @pytest.mark.parametrize("kind", [np.float16, np.float32, np.int8])
    def test_other_number_types(self, kind: type) -> None:
        values = np.array([[-100, 0, 50, 100]])
        assert (pictures.heat(values.astype(kind)) == pictures.heat(values.astype(float))).all()

    def test_refuses_what_is_no_map(self) -> None:
        with pytest.raises(ValueError, match="two dimensions"):
            pictures.heat(np.zeros((3, 4, 4)))


def test_limit_leaves_out_what_is_not_finite() -> None:
    assert pictures.limit_of([np.array([[np.nan, -2.0]]), np.array([[np.inf, 1.0]])]) == 2.0
    assert pictures.limit_of([np.full((2, 2), np.nan)]) == 0.0
    assert pictures.limit_of([]) == 0.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.0]], "all-zero map"), ([[2.0, 2.0]], "constant map"), ([[np.nan, 1.0]], "not a number"),
        ([[np.inf, 1.0]], "not a number"), ([[0.0, 1e-30]], None),
    ],
)  # fmt: skip
def test_flaw(values: list[list[float]], expected: str | None) -> None:
    assert pictures.flaw(np.array(values)) == expected


def test_has_sign_follows_the_explainers_settings() -> None:
    assert [
        name for name in ("gradient", "vargrad", "gradcam", "gradcampp") if pictures.has_sign(Explain(name=name))
    ] == []
    for name in ("smoothgrad", "integrated_gradients", "shap"):
        assert pictures.has_sign(Explain(name=name)) and not pictures.has_sign(Explain(name=name, signed=False))
    assert pictures.has_sign(Explain(name="lime"))


class TestImages:
    def test_channels_go_last(self) -> None:
        image = pixels()
        picture = pictures.image_rgb(image)
        for row, column in itertools.product(range(8), range(5)):
            assert (picture[row, column] == image[:, row, column]).all()

    def test_floats_and_grey(self) -> None:
        image = pixels()
        assert (pictures.image_rgb(image.astype(np.float32) / 255) == pictures.image_rgb(image)).all()
        grey = pictures.image_rgb(image[:1])
        assert grey.shape == (8, 5, 3) and (grey == image[0][..., None]).all()
        with pytest.raises(ValueError, match="height, width"):
            pictures.image_rgb(np.zeros((8, 5, 3), np.uint8))

    def test_overlay_runs_from_the_image_to_the_picture(self) -> None:
        image, picture = pictures.image_rgb(pixels()), pictures.heat(signed_map(8, 5))
        assert (pictures.overlay(image, picture, 0.0) == image).all()
        assert (pictures.overlay(image, picture, 1.0) == picture).all()
        half = pictures.overlay(image, picture, 0.5)
        assert half.dtype == np.uint8
        assert np.abs(half - (image.astype(float) + picture) / 2).max() <= 0.5
        with pytest.raises(ValueError, match="one shape"):
            pictures.overlay(image, picture[:4], 0.5)
        with pytest.raises(ValueError, match="opacity"):
            pictures.overlay(image, picture, 1.1)

    def test_enlarge_matches_pillows_nearest_neighbour(self) -> None:
        picture = pictures.image_rgb(pixels())
        expected = np.asarray(Image.fromarray(picture).resize((20, 32), Image.Resampling.NEAREST))
        assert (pictures.enlarge(picture, 4) == expected).all()

    @pytest.mark.parametrize("factor", [0, -1, 1.5])
    def test_enlarge_refuses_what_would_smooth(self, factor: float) -> None:
        with pytest.raises(ValueError, match="whole factors"):
            pictures.enlarge(pictures.image_rgb(pixels()), factor)  # type: ignore[arg-type]

    def test_row_has_transparent_gaps(self) -> None:
        one, two = pictures.image_rgb(pixels()), pictures.heat(signed_map(8, 5))
        joined = pictures.row([one, two], gap=3)
        assert joined.shape == (8, 13, 4)
        assert (joined[:, :5, :3] == one).all() and (joined[:, 8:, :3] == two).all()
        assert (joined[:, 5:8, 3] == 0).all() and (joined[:, [0, 4, 8, 12], 3] == 255).all()

    def test_row_with_a_background(self) -> None:
        joined = pictures.row([pictures.image_rgb(pixels())] * 2, 1, "#0072B2")
        assert (joined[:, 5] == (0, 0x72, 0xB2, 255)).all()

    def test_row_refuses_different_sizes_and_none(self) -> None:
        with pytest.raises(ValueError, match="one size"):
            pictures.row([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)])
        with pytest.raises(ValueError, match="none"):
            pictures.row([])

    def test_outline_hides_nothing(self) -> None:
        picture = pictures.image_rgb(pixels())
        framed = pictures.outlined(picture, "#D55E00", 2)
        assert framed.shape == (12, 9, 4) and (framed[2:-2, 2:-2, :3] == picture).all()
        frame = np.ones((12, 9), bool)
        frame[2:-2, 2:-2] = False
        assert (framed[frame] == (0xD5, 0x5E, 0, 255)).all()
        assert (pictures.outlined(picture, None, 2)[frame] == 0).all()

    @pytest.mark.parametrize("colour", ["#12345", "red", (1, 2), (0, 0, 256), (0, 0, -1)])
    def test_refuses_what_is_no_colour(self, colour: str | tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="a colour is"):
            pictures.colour_of(colour)

    @pytest.mark.parametrize("channels", [3, 4])
    def test_png_opens_to_the_same_pixels(self, channels: int) -> None:
        picture = np.random.default_rng(2).integers(0, 256, (6, 9, channels), dtype=np.uint8)
        data = pictures.png(picture)
        assert (np.asarray(Image.open(io.BytesIO(data))) == picture).all()
        assert data == pictures.png(picture.copy())

    def test_png_of_a_view(self) -> None:
        picture = pictures.image_rgb(pixels())[::2, ::-1]
        assert (np.asarray(Image.open(io.BytesIO(pictures.png(picture)))) == picture).all()

    @pytest.mark.timed
    def test_png_is_fast(self) -> None:
        picture = pictures.enlarge(pictures.heat(np.random.default_rng(0).normal(size=(32, 32))), 6)
        pictures.png(picture)

        def twenty() -> None:
            for _ in range(20):
                pictures.png(picture)

        clock.within(20 * 0.005, lambda: clock.took(twenty, time.process_time))


def steps_of(importance: torch.Tensor, descending: bool) -> NDArray[np.uint8]:
    """For each pixel of one map `(H, W)` the place of the first level that removes it, by loops."""
    places = ranks(importance[None], descending)[0].reshape(importance.shape)
    steps = np.full(importance.shape, len(LEVELS), np.uint8)
    for row, column in itertools.product(*map(range, importance.shape)):
        for place, level in enumerate(LEVELS):
            if places[row, column] < removed(level, importance.numel()):
                steps[row, column] = place
                break
    return steps


class TestRemovalPath:
    @pytest.mark.parametrize("fill", ["mean", "zero"])
    @pytest.mark.parametrize("descending", [True, False], ids=["morf", "lerf"])
    @pytest.mark.parametrize("shape", [(16, 16), (7, 9)])
    def test_equals_what_the_model_is_fed(self, shape: tuple[int, int], descending: bool, fill: str) -> None:
        image = (images(1, *shape, seed=3)[0] * 255).round().to(torch.uint8)
        x = image[None].float() / 255
        maps = torch.randn(1, *shape, generator=torch.Generator().manual_seed(4))
        maps[0, 0] = maps[0, 1]  # ties go by pixel index
        importance = removal_importance(maps, x, 0.1, "signed")
        places = ranks(importance, descending).view_as(importance)
        steps = steps_of(importance[0], descending)
        for place, level in enumerate(LEVELS):
            gone = places < removed(level, shape[0] * shape[1])
            expected = OPERATORS[fill](Trajectory())(x, gone)[0].numpy()
            assert np.allclose(pictures.masked(image.numpy(), steps, place, fill), expected, atol=1e-6, rtol=0)
            assert (steps <= place).sum() == gone.sum()

    def test_the_first_level_is_the_image_and_never_stays_never(self) -> None:
        image, steps = pixels(), np.full((8, 5), len(LEVELS), np.uint8)
        steps[0, 0] = 1
        assert (pictures.image_rgb(pictures.masked(image, steps, 0)) == pictures.image_rgb(image)).all()
        last = pictures.masked(image, steps, len(LEVELS) - 1)
        assert np.isclose(last[:, 0, 0], image.reshape(3, -1).mean(1) / 255, atol=1e-6).all()
        assert np.allclose(last[:, 1:], image[:, 1:] / 255, atol=1e-6)

    def test_refuses_what_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match="do not fit"):
            pictures.masked(pixels(), np.zeros((5, 8), np.uint8), 0)
        with pytest.raises(ValueError, match="'mean' or 'zero'"):
            pictures.masked(pixels(), np.zeros((8, 5), np.uint8), 0, "blur")
        with pytest.raises(ValueError, match="0 or more"):
            pictures.masked(pixels(), np.zeros((8, 5), np.uint8), -1)

    def test_strip_shows_every_level_and_outlines_the_current_one(self) -> None:
        image = pixels()
        steps = np.random.default_rng(5).integers(1, len(LEVELS) + 1, (8, 5)).astype(np.uint8)
        strip = pictures.strip(image, steps, LEVELS, "zero", 2, current=4, colour="#E69F00", gap=2)
        pitch = 5 * 2 + 6 + 2
        assert strip.shape == (8 * 2 + 6, pitch * len(LEVELS) - 2, 4)
        for place in range(len(LEVELS)):
            part = strip[:, place * pitch : place * pitch + 16]
            expected = np.where(steps <= place, 0, image).transpose(1, 2, 0).repeat(2, 0).repeat(2, 1)
            assert (part[3:-3, 3:-3, :3] == expected).all() and (part[3:-3, 3:-3, 3] == 255).all()
            assert (part[0] == ((0xE6, 0x9F, 0, 255) if place == 4 else (0, 0, 0, 0))).all()

    def test_strip_refuses_an_unknown_place(self) -> None:
        with pytest.raises(ValueError, match="no place 10 among 10"):
            pictures.strip(pixels(), np.zeros((8, 5), np.uint8), LEVELS, current=10)
        with pytest.raises(ValueError, match="among 0 levels"):
            pictures.strip(pixels(), np.zeros((8, 5), np.uint8), ())

    @pytest.mark.parametrize("lines", [1, 2, 3, 10])
    def test_folded_keeps_every_picture(self, lines: int) -> None:
        cells = [np.full((4, 3, 4), 10 * place + 1, np.uint8) for place in range(10)]
        made = pictures.folded(pictures.row(cells, gap=2), 10, lines, gap=2)
        across = -(-10 // lines)
        assert made.shape == (lines * 6 - 2, across * 5 - 2, 4)
        for place, cell in enumerate(cells):
            top, left = place // across * 6, place % across * 5
            assert (made[top : top + 4, left : left + 3] == cell).all()
        assert made[..., 3].astype(bool).sum() == 10 * 4 * 3  # the rest is transparent

    def test_folded_refuses_another_width(self) -> None:
        with pytest.raises(ValueError, match="no row of 5 pictures"):
            pictures.folded(np.zeros((4, 10, 4), np.uint8), 5, 1)


class TestLegend:
    def test_colour_bar_runs_from_end_to_end(self) -> None:
        bar = pictures.colour_bar(True, 101, 4)
        assert bar.shape == (4, 101, 3) and (bar == bar[0]).all()
        assert (bar[0, [0, 50, 100]] == pictures.heat(np.array([[-1.0, 0.0, 1.0]]))[0]).all()
        assert (pictures.colour_bar(False, 11)[0, [0, 10]] == pictures.heat(np.array([[0.0, 1.0]]))[0]).all()

    def test_says_what_colours_and_scale_mean(self) -> None:
        assert "Red" in pictures.legend_text(True, False) and "own scale" in pictures.legend_text(True, False)
        assert "Bright" in pictures.legend_text(False, True) and "share one scale" in pictures.legend_text(False, True)
        assert pictures.legend_text(True, True, absolute=True) == pictures.legend_text(False, True)


def test_the_import_is_light() -> None:
    code = (
        "import sys, tier.pictures, tier.sheets\n"
        "heavy = {'torch', 'streamlit', 'matplotlib', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import numpy as np; tier.pictures.heat(np.eye(3))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
