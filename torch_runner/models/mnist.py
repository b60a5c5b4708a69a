"""MNIST: 28 x 28 grey images, ten digits."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Cnn(nn.Module):
    """The 26,010-parameter network of the per-sample-gradient literature.

    Source: Subramani et al. 2020 (arXiv 2010.09063), github.com/TheSalon/fast-dpsgd, pytorch.py.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.fc1 = nn.Linear(512, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images [batch, 1, 28, 28] to logits [batch, 10]."""
        hidden = F.max_pool2d(F.relu(self.conv1(images)), 2, stride=1)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2, stride=1)
        hidden = F.relu(self.fc1(hidden.flatten(1)))
        return self.fc2(hidden)


def make_model(name: str, _sizes: Any) -> nn.Module:
    return {"cnn": Cnn}[name]()
