"""The augmentation T against torchvision's affine transform, image by image, and against a plain padded crop."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

from tests.tier.toys import images
from tier.config import Augmentation
from tier.defenses.augmentation import augment


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _by_torchvision(x: Tensor, config: Augmentation, seed: int) -> Tensor:
    """The same flips, angles and shifts, drawn as `augment` draws them, through torchvision one image at a time."""
    draws = torch.rand(4, len(x), generator=_generator(seed))
    out = []
    for image, flip, turn, down, right in zip(x, *draws, strict=True):
        shift = [math.floor(float(draw) * (2 * config.padding + 1)) - config.padding for draw in (right, down)]
        image = TF.hflip(image) if config.flip and flip < 0.5 else image
        out.append(
            TF.affine(
                image,
                angle=-(2 * float(turn) - 1) * config.rotation,
                translate=[-shift[0], -shift[1]],
                scale=1.0,
                shear=[0.0],
                interpolation=InterpolationMode.BILINEAR,
            )
        )
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(16, 16), (12, 20), (15, 9)])
@pytest.mark.parametrize(
    "config",
    [
        Augmentation(),
        Augmentation(flip=False, rotation=180.0, padding=0),
        Augmentation(flip=True, rotation=0.0, padding=2),
        Augmentation(flip=False, rotation=40.0, padding=3),
    ],
)
def test_against_torchvision(config: Augmentation, shape: tuple[int, int]) -> None:
    x = images(12, *shape)
    made = augment(x, config, _generator(3))
    torch.testing.assert_close(made, _by_torchvision(x, config, 3), atol=2e-4, rtol=0)


def test_without_rotation_it_is_a_crop_of_the_padded_image_and_every_crop_occurs() -> None:
    x = images(1, 6, 7).expand(400, -1, -1, -1)
    made = augment(x, Augmentation(flip=False, rotation=0.0, padding=2), _generator())
    padded = F.pad(x[0], (2, 2, 2, 2))
    crops = torch.stack([padded[:, i : i + 6, j : j + 7] for i in range(5) for j in range(5)])
    errors = (made.unsqueeze(1) - crops).abs().amax((2, 3, 4))  # (400, 25)
    assert errors.amin(1).max() < 1e-5
    counts = errors.argmin(1).bincount(minlength=25)
    assert counts.min() > 0  # 16 expected of each
    assert counts.max() < 40


def test_half_of_the_images_are_flipped() -> None:
    x = images(1).expand(400, -1, -1, -1)
    made = augment(x, Augmentation(rotation=0.0, padding=0), _generator())
    flipped = (made - x.flip(3)).abs().amax((1, 2, 3)) < 1e-5
    kept = (made - x).abs().amax((1, 2, 3)) < 1e-5
    assert (flipped ^ kept).all()
    assert 150 < flipped.sum() < 250


def test_nothing_to_do_is_the_identity() -> None:
    x = images(5, 9, 16)
    made = augment(x, Augmentation(flip=False, rotation=0.0, padding=0), _generator())
    torch.testing.assert_close(made, x, atol=1e-5, rtol=0)


def test_the_generator_decides_and_each_setting_leaves_the_other_draws_alone() -> None:
    x, shifted = images(8), Augmentation(flip=False, rotation=0.0, padding=2)
    assert torch.equal(augment(x, shifted, _generator(1)), augment(x, shifted, _generator(1)))
    assert not torch.equal(augment(x, shifted, _generator(1)), augment(x, shifted, _generator(2)))
    states = []
    for config in (shifted, Augmentation(), Augmentation(padding=0)):
        draw = _generator(1)
        augment(x, config, draw)
        states.append(draw.get_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_input_stays_and_pixels_stay_pixels() -> None:
    x = images(20)
    before = x.clone()
    made = augment(x, Augmentation(), _generator())
    assert torch.equal(x, before)
    assert made.shape == x.shape
    assert made.min() >= 0.0
    assert made.max() <= 1.0 + 1e-6


def test_grey_stays_grey_and_black_stays_black() -> None:
    grey = images(6)[:, :1].expand(-1, 3, -1, -1)
    made = augment(grey, Augmentation(), _generator())
    assert torch.equal(made[:, 0], made[:, 1])
    assert torch.equal(made[:, 0], made[:, 2])
    assert torch.equal(augment(torch.zeros(4, 3, 8, 8), Augmentation(), _generator()), torch.zeros(4, 3, 8, 8))
