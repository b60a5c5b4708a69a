"""ImageNet-100: 100 classes of ImageNet (ILSVRC2012), with four models that everybody knows, as in torchvision."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.errors import DataError
from harness.plan import Frozen
from harness.work.datasets import Dataset, DataSource
from harness.work.declared import BatchNorm, Benchmark, Model, Reference
from harness.work.tasks import IMAGE_CLASSIFICATION

STORED_SIZE = 256
"""Height and width of the images as they are kept: the shorter side resized to it, its centre cut out."""
CLASSES = 100
SAMPLE_SEED = 20261122
SAMPLE_TRAIN_COUNT = 256
SAMPLE_TEST_COUNT = 64
SAMPLE_CLASSES = 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, which pretrained weights ask for."""


class Sizes(Frozen):
    image_size: int = Field(default=224, ge=32, le=STORED_SIZE)
    """Height and width of what a model sees."""


def _read_imagenet100(_originals: Path) -> Dataset:
    raise DataError("imagenet100: its reader is not written yet; measure on the sample: --data sample")


def _sample_imagenet100() -> Dataset:
    """Images of the real shape that show their class, made in whole numbers only: a pattern of 8 x 8 random colours for
    each class, each 32 x 32 pixels large and moved around the edges, under noise in every pixel."""
    draw = np.random.RandomState(SAMPLE_SEED)
    count = SAMPLE_TRAIN_COUNT + SAMPLE_TEST_COUNT
    patterns = draw.randint(0, 256, (SAMPLE_CLASSES, 8, 8, 3), dtype=np.int64).astype(np.int16)
    labels = draw.randint(0, SAMPLE_CLASSES, count)
    images = np.empty((count, STORED_SIZE, STORED_SIZE, 3), np.uint8)
    for index, label in enumerate(labels):
        down, right = draw.randint(-STORED_SIZE // 8, STORED_SIZE // 8 + 1, 2)
        enlarged = patterns[label].repeat(STORED_SIZE // 8, axis=0).repeat(STORED_SIZE // 8, axis=1)
        noise = draw.randint(-60, 61, enlarged.shape, dtype=np.int8)
        images[index] = np.clip(np.roll(enlarged, (down, right), (0, 1)) + noise, 0, 255)
    return as_dataset(images, labels.astype(np.int32), SAMPLE_TRAIN_COUNT)


def as_dataset(images: NDArray[np.uint8], labels: NDArray[np.int32], train_count: int) -> Dataset:
    return Dataset(
        train={"images": images[:train_count], "labels": labels[:train_count]},
        test={"images": images[train_count:], "labels": labels[train_count:]},
        constants={"mean": np.array(MEAN, np.float32), "std": np.array(STD, np.float32)},
    )


def _torchvisions(*, parameter_count: int, multiply_adds: int, accuracy: float) -> Reference:
    """As torchvision's weights IMAGENET1K_V1 say of themselves (`meta`: num_params, _ops, acc@1)."""
    return Reference(
        source="torchvision, IMAGENET1K_V1",
        outputs=1000,
        parameter_count=parameter_count,
        multiply_adds=multiply_adds,
        accuracy=accuracy,
    )


BENCHMARK = Benchmark(
    name="imagenet100",
    task=IMAGE_CLASSIFICATION,
    models=(
        Model(
            name="resnet50",
            reference=_torchvisions(parameter_count=25_557_032, multiply_adds=4_089_000_000, accuracy=0.76130),
            batch_norm=BatchNorm(),
            parameter_count=23_712_932,
            multiply_adds=4_087_300_000,
        ),
        Model(
            name="vit_b_16",
            reference=_torchvisions(parameter_count=86_567_656, multiply_adds=17_564_000_000, accuracy=0.81072),
            has_attention=True,
            parameter_count=85_875_556,
            multiply_adds=17_563_000_000,
        ),
        Model(
            name="mobilenet_v3_small",
            reference=_torchvisions(parameter_count=2_542_856, multiply_adds=57_000_000, accuracy=0.67668),
            batch_norm=BatchNorm(epsilon=1e-3, momentum=0.01),
            has_depthwise=True,
            parameter_count=1_620_356,
            multiply_adds=55_600_000,
        ),
        Model(
            name="efficientnet_b0",
            reference=_torchvisions(parameter_count=5_288_548, multiply_adds=386_000_000, accuracy=0.77692),
            batch_norm=BatchNorm(),
            has_depthwise=True,
            parameter_count=4_135_648,
            multiply_adds=384_700_000,
        ),
    ),
    data=DataSource(
        benchmark="imagenet100",
        read=_read_imagenet100,
        source="ImageNet (ILSVRC2012), the 100 classes of CMC's list",
        sample=_sample_imagenet100,
        sample_source="generated class-dependent images of 256 x 256",
    ),
    sizes=Sizes,
)
