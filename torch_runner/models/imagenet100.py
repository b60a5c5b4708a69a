"""ImageNet-100: four models of torchvision, without its dropout and stochastic depth, as two frameworks cannot draw the
same ones.

In bf16, what a block adds to and what it adds are bf16; BatchNorm, LayerNorm and softmax compute in float32 inside.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision import models

from harness.work.benchmarks.imagenet100 import CLASSES, Sizes


def make_vit_b_16(sizes: Sizes) -> nn.Module:
    return with_residuals_in_half(models.vit_b_16(num_classes=CLASSES, image_size=sizes.image_size))


def with_residuals_in_half(model: models.VisionTransformer) -> models.VisionTransformer:
    """Under autocast the encoder's blocks add to what they are given in its own dtype. By itself autocast leaves class
    token and positions in float32, and with them all that is added to them, which Flax's layers do not."""
    model.encoder.layers.register_forward_pre_hook(in_dtype_of_autocast)
    return model


def in_dtype_of_autocast(_module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
    (tokens,) = arguments
    device = tokens.device.type
    return (tokens.to(torch.get_autocast_dtype(device)),) if torch.is_autocast_enabled(device) else (tokens,)


MODELS: dict[str, Callable[[Sizes], nn.Module]] = {
    "resnet50": lambda _sizes: models.resnet50(num_classes=CLASSES),
    "vit_b_16": make_vit_b_16,
    "mobilenet_v3_small": lambda _sizes: models.mobilenet_v3_small(num_classes=CLASSES, dropout=0.0),
    "efficientnet_b0": lambda _sizes: models.efficientnet_b0(
        num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0
    ),
}


def make_model(name: str, sizes: Sizes) -> nn.Module:
    """No activation overwrites an input that its own gradient needs: autograd would copy the input first."""
    model = MODELS[name](sizes)
    for module in model.modules():
        if isinstance(module, (nn.SiLU, nn.Hardswish)):
            module.inplace = False
    return model
