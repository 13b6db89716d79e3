"""The four architectures, built from a config and a seed."""

import torch
from torch import Tensor, nn

from tier.config import Model
from tier.models import mobilenet as _mobilenet
from tier.models import resnet as _resnet
from tier.models import small as _small
from tier.models.blocks import Classifier, Normalize, grouped, initialize


def build(config: Model, classes: int, mean: Tensor, std: Tensor, seed: int = 0) -> Classifier:
    """A freshly initialised classifier of pixels in [0, 1].

    `mean` and `std` are per channel, `(C,)`, of the training pixels. The result maps `(B, 3, H, W)` to logits
    `(B, classes)`. Equal arguments give equal weights on every platform.
    """
    body: nn.Module
    candidates: tuple[str, ...]
    # torchvision's MobileNetV2 initialises itself from the global generator; fork it so that nobody else is disturbed
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        if config.architecture == "small":
            body, candidates = _small.SmallResNet(classes, config.width), _small.CAM_CANDIDATES
        elif config.architecture == "mobilenet_v2":
            body, candidates = _mobilenet.mobilenet(classes), _mobilenet.CAM_CANDIDATES
        else:
            cifar = config.architecture == "resnet18_cifar"
            body, candidates = _resnet.ResNet18(classes, "cifar" if cifar else "imagenet"), _resnet.CAM_CANDIDATES
    if config.norm == "group":
        grouped(body)
    model = Classifier(Normalize(mean, std), body, candidates)
    initialize(model, torch.Generator().manual_seed(seed))
    return model
