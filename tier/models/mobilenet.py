"""MobileNetV2 (Sandler et al. 2018): torchvision's, with every activation out of place."""

from torch import nn
from torchvision.models import mobilenet_v2

CAM_CANDIDATES = tuple(f"features.{index}" for index in range(19))


def mobilenet(classes: int) -> nn.Module:
    """An untrained MobileNetV2 without in-place operations."""
    model = mobilenet_v2(weights=None, num_classes=classes)
    for module in model.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = False
    return model
