"""ResNet-18 of CIFAR-10 with one block in each of the first two stages, and no more: all kinds of its layers, sooner
compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from jax_runner.layers import Layers, Sequential
from jax_runner.models import cifar10 as jax_cifar10
from torch_runner.models import cifar10 as torch_cifar10

CHANNELS = 128
"""Of the last stage that is left."""
LAYERS_OF_BATCH_NORM = 6
"""The stem's, two in each of two blocks, and one beside the one that changes the shape."""


class ShallowInJax(jax_cifar10.ResNet18):
    def __init__(self, dtypes: dict[str, Any], batch_norm: Any) -> None:
        super().__init__(dtypes, batch_norm)
        self.layer3, self.layer4 = Sequential(), Sequential()
        self.fc = Layers(dtypes, batch_norm).linear(CHANNELS, 10)


def shallow_in_torch(num_classes: int) -> ResNet:
    model = ResNet(BasicBlock, [1, 1, 1, 1])
    model.layer3, model.layer4 = nn.Sequential(), nn.Sequential()
    model.fc = nn.Linear(CHANNELS, num_classes)
    return model


@contextmanager
def shallow_resnet() -> Iterator[None]:
    """In both frameworks."""
    with (
        mock.patch.object(jax_cifar10, "Sequential", lambda first, _second: Sequential(first)),
        mock.patch.object(jax_cifar10, "ResNet18", ShallowInJax),
        mock.patch.object(torch_cifar10, "resnet18", shallow_in_torch),
    ):
        yield
