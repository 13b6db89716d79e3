"""LIME for whole batches: which superpixels, when removed, lower the explained logit."""

from typing import Literal

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from skimage.segmentation import slic
from torch import Tensor, nn

from tier.config import Explain
from tier.explainers.base import flat_baseline, inspecting, passes
from tier.runtime import generator


def lime(model: nn.Module, x: Tensor, target: Tensor, config: Explain) -> Tensor:
    """LIME on superpixels (Ribeiro et al. 2016): `(B, C, H, W)` in [0, 1], `(B,)` -> `(B, H, W)`, signed.

    Each pixel carries its superpixel's coefficient in a weighted ridge regression of the logit on which superpixels are
    kept. All images share the draws, an image of K superpixels using the first K columns, so that a forward pass serves
    the whole batch and images of equal K share one regression.
    """
    segments = superpixels(x, config.segments, config.compactness)  # (B, H, W)
    counts = segments.amax((1, 2)) + 1
    kept = keep_draws(config.perturbations, int(counts.max()), config.seed)
    scores = removal_scores(model, x, target, segments.to(x.device), kept.to(x.device), config.baseline)
    coefficients = regress(kept, scores.double().cpu(), counts, config.kernel_width, config.ridge)  # (B, K)
    maps = coefficients.gather(1, segments.flatten(1)).view(segments.shape).to(x)
    # a flat image of the baseline's colour never changes: rounding in the scores must not look like an explanation
    unchanged = (x == flat_baseline(x, config.baseline)).flatten(1).all(1)
    return torch.where(unchanged.view(-1, 1, 1), torch.zeros_like(maps), maps)


def superpixels(x: Tensor, segments: int, compactness: float) -> Tensor:
    """Each image's SLIC superpixels (Achanta et al. 2012), `(B, C, H, W)` -> `(B, H, W)` int64 from 0 without gaps.

    SLIC gives about `segments` of them, or far fewer: white noise falls together into one. Colour images are compared
    in CIELAB.
    """
    pixels = x.detach().float().permute(0, 2, 3, 1).cpu().numpy()  # (B, H, W, C)
    found = Parallel()(delayed(_slic)(image, segments, compactness) for image in pixels)
    return torch.from_numpy(np.stack(list(found)))


def _slic(image: NDArray[np.float32], segments: int, compactness: float) -> NDArray[np.int64]:
    labels = slic(image, n_segments=segments, compactness=compactness, start_label=0, channel_axis=-1)
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape).astype(np.int64)


def keep_draws(perturbations: int, segments: int, seed: int) -> Tensor:
    """Which superpixels each perturbed image keeps, `(P, K)` bool: fair coins, but the first row keeps all.

    Every column has a generator of its own, so that a column does not depend on how many there are.
    """
    columns = [torch.rand(perturbations, generator=generator("explain", seed, column)) for column in range(segments)]
    kept = torch.stack(columns, 1) < 0.5
    kept[0] = True
    return kept


def removal_scores(
    model: nn.Module, x: Tensor, target: Tensor, segments: Tensor, kept: Tensor, baseline: Literal["zero", "mean"]
) -> Tensor:
    """The explained logit of each image with superpixels replaced by the baseline, `(B, P)` for `kept` `(P, K)`."""
    # worked with the channels last and every operand whole: the masks then cost a twentieth of the small net's pass
    images = x.permute(0, 2, 3, 1).contiguous()  # (B, H, W, C)
    filler = flat_baseline(x, baseline).permute(0, 2, 3, 1).expand_as(images).contiguous()
    places = segments.int().unsqueeze(-1).expand_as(images).reshape(-1)
    weights = kept.to(images.dtype)
    scores = []
    with inspecting(model), torch.inference_mode():
        for part in passes(len(kept), len(x)):
            keep = torch.stack([row.index_select(0, places) for row in weights[part]]).view(-1, *images.shape)
            # weights of 0 and 1 choose exactly, faster than `where`
            rows = torch.lerp(filler, images, keep).flatten(0, 1).permute(0, 3, 1, 2)  # (S * B, C, H, W)
            logits = model(rows).float()
            scores.append(logits.gather(1, target.repeat(len(keep)).unsqueeze(1)).view(len(keep), len(x)))
    return torch.cat(scores).T


def regress(kept: Tensor, scores: Tensor, counts: Tensor, kernel_width: float, ridge: float) -> Tensor:
    """Coefficients of each image's superpixels, `(B, K)` float64, 0 beyond the image's own count.

    `kept` is `(P, K)`, `scores` `(B, P)` float64, `counts` `(B,)`.
    """
    found = scores.new_zeros(len(scores), kept.shape[1])
    changes = scores - scores[:, :1]  # the intercept takes any constant; so scores that never change give exactly 0
    for count in counts.unique().tolist():
        rows = counts == count
        found[rows, :count] = changes[rows] @ ridge_operator(kept[:, :count], kernel_width, ridge).T
    return found


def ridge_operator(kept: Tensor, kernel_width: float, ridge: float) -> Tensor:
    """The matrix `(K, P)`, float64, from the scores of P perturbed images to the coefficients of K superpixels.

    Minimises sum_p w_p (score_p - intercept - kept_p . c)^2 + ridge |c|^2; the intercept is not penalised. By singular
    values, so that with `ridge` 0 and too few images the shortest solution is taken.
    """
    weights = kernel(kept, kernel_width)
    design = kept.double()
    design = design - (weights @ design) / weights.sum()
    root = weights.sqrt()
    left, sizes, right = torch.linalg.svd(root.unsqueeze(1) * design, full_matrices=False)
    real = sizes > sizes[0] * 1e-12  # below: nothing but rounding
    gains = torch.where(real, sizes / torch.where(real, sizes.square() + ridge, 1.0), 0.0)
    return (right.T * gains) @ left.T * root  # the scores' mean drops out, the columns of `design` being centred


def kernel(kept: Tensor, kernel_width: float) -> Tensor:
    """How near each perturbed image is to the whole one, `(P, K)` bool -> `(P,)`: exp(-d^2 / (2 width^2)).

    d is the cosine distance of `kept` from all ones, 1 where nothing is kept, as in the `lime` package.
    """
    distance = 1 - kept.double().mean(1).sqrt()  # cos(z, 1) = |z| / sqrt(|z| K) for zeros and ones
    return (-distance.square() / (2 * kernel_width**2)).exp()
