"""CIFAR-10: 32 x 32 colour images, ten classes."""

from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet18

WIDTHS = (3, 32, 32, 64, 64, 128, 128, 256, 10)
POOLED_AFTER = (2, 4, 6)
"""Average pooling 2 x 2 stands behind these convolutions, counted from 1."""


class Cnn(nn.Module):
    """The 605,226-parameter network of the per-sample-gradient literature: eight 3 x 3 convolutions, mean over space.

    Source: Subramani et al. 2020 (arXiv 2010.09063), github.com/TheSalon/fast-dpsgd, pytorch.py.
    """

    def __init__(self) -> None:
        super().__init__()
        for number, (channels_in, channels_out) in enumerate(pairwise(WIDTHS), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(channels_in, channels_out, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images [batch, 3, 32, 32] to logits [batch, 10]."""
        hidden = images
        for number in range(1, len(WIDTHS)):
            hidden = self.get_submodule(f"conv{number}")(hidden)
            if number < len(WIDTHS) - 1:
                hidden = F.relu(hidden)
            if number in POOLED_AFTER:
                hidden = F.avg_pool2d(hidden, 2)
        return hidden.mean((2, 3))


def make_resnet18() -> nn.Module:
    """torchvision's ResNet-18 with the stem that CIFAR-10 asks for: 3 x 3, stride 1, no max pooling (He et al. 2015,
    4.2)."""
    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def make_model(name: str, _sizes: Any) -> nn.Module:
    return {"cnn": Cnn, "resnet18": make_resnet18}[name]()
