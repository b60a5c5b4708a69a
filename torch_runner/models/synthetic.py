"""Random inputs, and small models in any size: one layer, a 4-layer MLP, a 4-layer ConvNet. No data set.

harness/work/benchmarks/synthetic.py has the sizes and the shapes.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from harness.work.benchmarks.synthetic import Sizes


class Linear(nn.Module):
    """One dense layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc = nn.Linear(sizes.in_features, sizes.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, features] to logits [batch, classes]."""
        return self.fc(inputs)


class Conv2d(nn.Module):
    """One 3 x 3 convolution, ReLU, and the mean over space."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.conv = nn.Conv2d(sizes.channels, sizes.hidden_channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, height, width] to logits [batch, classes]."""
        return F.relu(self.conv(images)).mean((2, 3))


class Mlp(nn.Module):
    """Four dense layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.in_features, sizes.hidden_features)
        self.fc2 = nn.Linear(sizes.hidden_features, sizes.hidden_features)
        self.fc3 = nn.Linear(sizes.hidden_features, sizes.hidden_features)
        self.fc4 = nn.Linear(sizes.hidden_features, sizes.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, features] to logits [batch, classes]."""
        hidden = F.relu(self.fc1(inputs))
        hidden = F.relu(self.fc2(hidden))
        hidden = F.relu(self.fc3(hidden))
        return self.fc4(hidden)


class ConvNet(nn.Module):
    """Four 3 x 3 convolutions, the second and third of stride 2, and the mean over space."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(sizes.channels, sizes.hidden_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(sizes.hidden_channels, sizes.hidden_channels, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(sizes.hidden_channels, sizes.hidden_channels, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(sizes.hidden_channels, sizes.classes, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, height, width] to logits [batch, classes]."""
        hidden = F.relu(self.conv1(images))
        hidden = F.relu(self.conv2(hidden))
        hidden = F.relu(self.conv3(hidden))
        return self.conv4(hidden).mean((2, 3))


def make_model(name: str, sizes: Sizes) -> nn.Module:
    return {"linear": Linear, "conv2d": Conv2d, "mlp": Mlp, "convnet": ConvNet}[name](sizes)
