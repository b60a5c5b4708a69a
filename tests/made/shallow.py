"""ResNet-18 of CIFAR-10 with one block in each stage instead of two: all kinds of its layers, sooner compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torchvision.models.resnet import BasicBlock, ResNet

from jax_runner.layers import Sequential
from jax_runner.models import cifar10 as jax_cifar10
from torch_runner.models import cifar10 as torch_cifar10

LAYERS_OF_BATCH_NORM = 12
"""The stem's, two in each of four blocks, and one beside each of the three that change the shape."""


@contextmanager
def shallow_resnet() -> Iterator[None]:
    """In both frameworks."""
    with (
        mock.patch.object(jax_cifar10, "Sequential", lambda first, _second: Sequential(first)),
        mock.patch.object(torch_cifar10, "resnet18", lambda num_classes: ResNet(BasicBlock, [1, 1, 1, 1], num_classes)),
    ):
        yield
