"""Networks with all kinds of their layers and few of each, sooner made and compiled: ResNet-18 of CIFAR-10 with one
block in each of the first two stages, and no more; ViT-B/16 with one block of half its width."""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from harness.plan import Framework

CHANNELS = 128
"""Of the last stage that is left."""
LAYERS_OF_BATCH_NORM = 6
"""The stem's, two in each of two blocks, and one beside the one that changes the shape."""


def shallow_resnet(framework: Framework) -> AbstractContextManager[Any]:
    """In this framework, which alone is imported."""
    return {"jax": _in_jax, "torch": _in_torch}[framework]()


def _in_jax() -> AbstractContextManager[Any]:
    from jax_runner.layers import Layers, Sequential
    from jax_runner.models import cifar10

    class Shallow(cifar10.ResNet18):
        def __init__(self, dtypes: dict[str, Any], batch_norm: Any) -> None:
            super().__init__(dtypes, batch_norm)
            self.layer3, self.layer4 = Sequential(), Sequential()
            self.fc = Layers(dtypes, batch_norm).linear(CHANNELS, 10)

    return mock.patch.multiple(cifar10, Sequential=lambda first, _second: Sequential(first), ResNet18=Shallow)


def _in_torch() -> AbstractContextManager[Any]:
    from torch import nn
    from torchvision.models.resnet import BasicBlock, ResNet

    from torch_runner.models import cifar10

    def shallow(num_classes: int) -> ResNet:
        model = ResNet(BasicBlock, [1, 1, 1, 1])
        model.layer3, model.layer4 = nn.Sequential(), nn.Sequential()
        model.fc = nn.Linear(CHANNELS, num_classes)
        return model

    return mock.patch.object(cifar10, "resnet18", shallow)


def shallow_vit(framework: Framework) -> AbstractContextManager[Any]:
    """The same of ViT-B/16."""
    if framework == "jax":
        from jax_runner.models import imagenet100

        own = {"depth": 1, "features": 384, "heads": 6, "hidden": 1536}
        return mock.patch.object(imagenet100, "VisionTransformer", partial(imagenet100.VisionTransformer, **own))
    from torchvision import models

    own = {"patch_size": 16, "num_layers": 1, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
    return mock.patch.object(models, "vit_b_16", partial(models.VisionTransformer, **own))
