"""What removed pixels become: their neighbours' weighted mean (ROAD), or the blurred image.

ROAD is the noisy linear imputation of Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution
Methods" (ICML 2022), section 4: each removed pixel is the weighted mean of its 8 neighbours, removed ones among them,
which is a linear system in the removed pixels that all channels share, plus Gaussian noise.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solveh_banded
from torch import Tensor

from tier.runtime import generator

# (rows down, columns right, weight): half of the 8 neighbours, the others being their mirror images
NEIGHBOURS = ((0, 1, 1 / 6), (1, -1, 1 / 12), (1, 0, 1 / 6), (1, 1, 1 / 12))
_BAND = 2**22  # bytes of the banded matrix of one solve: about what a processor's cache holds
_TRUNCATE = 4.0  # standard deviations at which the blur ends, as in scipy.ndimage


def road(x: Tensor, gone: Tensor, noise: float, seed: int) -> Tensor:
    """Noisy linear imputation: `x` `(B, C, H, W)` with the pixels `gone` `(B, H, W)` replaced.

    `noise` is the standard deviation of what is added to each replaced value; as in the authors' code it is drawn for
    each channel and the result is not clipped to [0, 1]. Every image, level and order has the same draws, so that they
    can be compared and one image's values do not depend on the others.
    """
    filled = linear(x, gone)
    if noise == 0:
        return filled
    draws = torch.randn(x.shape[1:], generator=generator("imputation", seed)).to(x)
    return torch.where(gone.unsqueeze(1), filled + noise * draws, x)


def linear(x: Tensor, gone: Tensor) -> Tensor:
    """ROAD without noise: `x` `(B, C, H, W)` with the pixels `gone` `(B, H, W)` set to their neighbours' mean.

    The weights, 1/6 for the 4 edge neighbours and 1/12 for the diagonal ones, are scaled at borders so that those of
    the neighbours inside the image sum to 1. An image without a pixel left has no solution and becomes its own mean per
    channel. Any other mask determines its pixels, since a path of neighbours leads from each to one that is left.

    Multiplied by its sum of weights, each equation has a symmetric, positive definite matrix, whose band is as wide as
    the image when the removed pixels are numbered row by row: LAPACK's banded Cholesky factorisation solves it exactly
    in float64, on the CPU whatever the tensors' device. Tried besides: conjugate gradients over the batch in PyTorch,
    whose 16 to 64 rounds of small operations gained 1.4x on a sparse direct solve, where this gains 4x to 7x.
    """
    if x.shape[-1] > x.shape[-2]:  # the shorter side decides the band's width
        return linear(x.mT, gone.mT).mT
    empty = gone.flatten(1).all(1)[:, None, None]  # (B, 1, 1)
    filled = torch.where((gone & empty).unsqueeze(1), x.mean((2, 3), keepdim=True), x)
    solved = gone & ~empty
    if not bool(solved.any()):
        return filled
    pixels = filled.detach().permute(0, 2, 3, 1).cpu().double().numpy()  # (B, H, W, C)
    masks = solved.cpu().numpy()
    height, width = masks.shape[1:]
    step = max(1, _BAND // (8 * height * width * (width + 2)))
    values = np.concatenate([_solve(pixels[i : i + step], masks[i : i + step]) for i in range(0, len(masks), step)])
    made = filled.permute(0, 2, 3, 1).contiguous()  # a copy where x has its channels first
    made = made.masked_scatter(solved.unsqueeze(-1), torch.from_numpy(values).to(x))
    return made.permute(0, 3, 1, 2)


def _solve(pixels: NDArray[np.float64], gone: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The values of the R removed pixels of some images as one banded system, `(B, H, W, C)`, `(B, H, W)` -> `(R, C)`.

    Pixels of two images are no neighbours, so the images' systems follow one another on the diagonal.
    """
    number = np.cumsum(gone).reshape(gone.shape) - 1  # of each removed pixel: its row in the system
    known = np.where(gone[..., None], 0.0, pixels)
    right = np.zeros_like(pixels)
    total = np.zeros(gone.shape[1:])  # (H, W), each pixel's sum of weights
    pairs = []
    for here, there, weight in _neighbours(*gone.shape[1:]):
        for one, other in ((here, there), (there, here)):
            right[:, *one] += weight * known[:, *other]
            total[one] += weight
        both = gone[:, *here] & gone[:, *there]
        first = number[:, *here][both]
        pairs.append((first, number[:, *there][both] - first, weight))
    width = max(int(distance.max(initial=0)) for _, distance, _ in pairs)
    band = np.zeros((int(gone.sum()), width + 1))  # row i: the diagonal and what is below it, as LAPACK stores it
    band[:, 0] = np.broadcast_to(total, gone.shape)[gone]
    for first, distance, weight in pairs:
        band[first, distance] = -weight
    solution: NDArray[np.float64] = solveh_banded(
        band.T, right[gone], overwrite_ab=True, overwrite_b=True, lower=True, check_finite=False
    )
    return solution


def _neighbours(height: int, width: int) -> list[tuple[tuple[slice, slice], tuple[slice, slice], float]]:
    """Of each neighbour in NEIGHBOURS: the pixels `(H, W)` that have it, the neighbours themselves, its weight."""
    return [
        (
            (slice(0, height - down), slice(max(0, -right), width - max(0, right))),
            (slice(down, height), slice(max(0, right), width - max(0, -right))),
            weight,
        )
        for down, right, weight in NEIGHBOURS
    ]


def blurred(x: Tensor, sigma: float) -> Tensor:
    """`x` `(..., H, W)` under a Gaussian blur of `sigma` pixels.

    As scipy.ndimage.gaussian_filter does in two dimensions, it ends at 4 sigma, and borders reflect (c b a | a b c).
    """
    down, right = (_blur_matrix(size, sigma).to(x) for size in x.shape[-2:])
    return down @ x @ right.T


def _blur_matrix(size: int, sigma: float) -> Tensor:
    """The blur of one row of pixels as a matrix, `(size, size)` float64; its rows sum to 1."""
    radius = int(_TRUNCATE * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    places = (torch.arange(size).unsqueeze(1) + offsets) % (2 * size)  # (size, 2 radius + 1)
    places = torch.where(places < size, places, 2 * size - 1 - places)
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(
        1, places, (weights / weights.sum()).expand_as(places)
    )
