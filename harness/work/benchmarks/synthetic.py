"""Random inputs, drawn from the seed, and small models in any size: one layer, a 4-layer MLP, a 4-layer ConvNet.

Shapes are neutral, as in harness/work/weights.py: features, or channels x height x width.
"""

from pydantic import Field

from harness.plan import Frozen
from harness.work.declared import Benchmark, Drawn, Layer, Model
from harness.work.tasks import GENERATED_CLASSIFICATION


class Sizes(Frozen):
    """The defaults hold the classical 256 to 512 features."""

    in_features: int = Field(default=256, ge=1)
    hidden_features: int = Field(default=512, ge=1)
    """Of the MLP's three inner layers."""
    out_features: int = Field(default=512, ge=1)
    """Classes of `linear` and `mlp`."""
    channels: int = Field(default=3, ge=1)
    image_size: int = Field(default=32, ge=1)
    """Height and width."""
    hidden_channels: int = Field(default=32, ge=1)
    """Of the ConvNet's three inner layers; classes of `conv2d`."""
    classes: int = Field(default=10, ge=1)
    """Of `convnet`."""


def input_shape(model: str, sizes: Sizes) -> tuple[int, ...]:
    """Of one sample."""
    features = (sizes.in_features,)
    image = (sizes.channels, sizes.image_size, sizes.image_size)
    return {"linear": features, "mlp": features, "conv2d": image, "convnet": image}[model]


def class_count(model: str, sizes: Sizes) -> int:
    return {
        "linear": sizes.out_features,
        "mlp": sizes.out_features,
        "conv2d": sizes.hidden_channels,
        "convnet": sizes.classes,
    }[model]


BENCHMARK = Benchmark(
    name="synthetic",
    task=GENERATED_CLASSIFICATION,
    models=(
        Model(name="linear", words="a dense layer", layers=frozenset({Layer.DENSE}), parameter_count=131_584),
        Model(name="conv2d", words="a convolution", layers=frozenset({Layer.CONVOLUTION}), parameter_count=896),
        Model(name="mlp", words="an MLP", layers=frozenset({Layer.DENSE}), parameter_count=919_552),
        Model(name="convnet", words="a small CNN", layers=frozenset({Layer.CONVOLUTION}), parameter_count=22_282),
    ),
    data=None,
    drawn=Drawn(words="random inputs, made on the device from the seed", shape=input_shape, classes=class_count),
    sizes=Sizes,
)
