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
    in float64, on the CPU whatever the tensors' device. What was tried besides is in docs/attack.md.
    """
    if x.shape[-1] > x.shape[-2]:  # the shorter side decides the band's width
        return linear(x.mT, gone.mT).mT
    empty = gone.flatten(1).all(1)[:, None, None]  # (B, 1, 1)
    filled = torch.where((gone & empty).unsqueeze(1), x.mean((2, 3), keepdim=True), x)
    solved = gone & ~empty
    if not bool(solved.any()):
        return filled
    pixels = filled.detach().permute(0, 2, 3, 1).cpu().contiguous()  # (B, H, W, C)
    masks = solved.cpu().numpy()
    height, width = masks.shape[1:]
    right = _known_neighbours(filled.detach(), solved).permute(0, 2, 3, 1).cpu().contiguous().double().numpy()
    whole = torch.ones(1, 1, height, width, dtype=torch.float64)
    weights = _known_neighbours(whole, torch.zeros(1, height, width, dtype=torch.bool)).numpy()[0, 0] - 1 / 3
    step = max(1, _BAND // (8 * height * width * (width + 2)))
    room = np.empty(step * height * width * (width + 2))  # once for all: fresh memory costs as much as filling it
    for i in range(0, len(masks), step):
        part = slice(i, i + step)
        places, values = _solve(right[part], masks[part], weights, room)
        pixels[part].view(-1, pixels.shape[-1])[torch.from_numpy(places)] = torch.from_numpy(values).to(pixels.dtype)
    return pixels.permute(0, 3, 1, 2).to(x.device)


def _known_neighbours(x: Tensor, gone: Tensor) -> Tensor:
    """The weighted sum of each removed pixel's neighbours that are left, `(B, C, H, W)`, `(B, H, W)` -> `(B, C, H, W)`.

    The weights are those of (1 2 1) / 2 down and across, over 3, but for the pixel itself, which is 0 where removed.
    """
    known = x.masked_fill(gone.unsqueeze(1), 0.0)
    down, across = (_line(size).to(x) for size in x.shape[-2:])
    return down @ known @ across / 3


def _line(size: int) -> Tensor:
    """Each pixel of a line and half of its neighbours, as a matrix `(size, size)`."""
    beside = torch.full((size - 1,), 0.5, dtype=torch.float64)
    return torch.eye(size, dtype=torch.float64) + beside.diag(1) + beside.diag(-1)


def _solve(
    right: NDArray[np.float64], gone: NDArray[np.bool_], weights: NDArray[np.float64], room: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The R removed pixels of some images as one banded system: their places among all pixels `(R,)`, values `(R, C)`.

    `right` `(B, H, W, C)` is what the neighbours that are left add up to, `gone` `(B, H, W)`; `weights` `(H, W)` is the
    sum of each pixel's weights, `room` space for the matrix. Pixels of two images are no neighbours, so the images'
    systems follow one another on the diagonal.
    """
    height, width = gone.shape[1:]
    padded = np.zeros((len(gone), height + 1, width + 2), bool)  # a frame that is never removed; below is the next one
    padded[:, :height, 1:-1] = gone
    there = np.flatnonzero(padded)
    number = np.full(padded.size + width + 3, -1)  # of each removed pixel: its row in the system
    number[there] = np.arange(len(there))
    links = []
    for down, across, weight in NEIGHBOURS:
        other = number[there + down * (width + 2) + across]
        both = np.flatnonzero(other >= 0)
        links.append((both, other[both] - both, weight))
    breadth = max(int(distance.max(initial=0)) for _, distance, _ in links)
    places = np.flatnonzero(gone)
    flat = room[: len(there) * (breadth + 1)]
    flat[:] = 0.0
    for both, distance, weight in links:
        flat[both * (breadth + 1) + distance] = -weight
    band = flat.reshape(len(there), breadth + 1)  # row i: the diagonal and what is below it, as LAPACK has it
    band[:, 0] = weights.ravel()[places % weights.size]
    known = right.reshape(-1, right.shape[-1])[places]
    solution = solveh_banded(band.T, known, overwrite_ab=True, overwrite_b=True, lower=True, check_finite=False)
    return places, solution


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
