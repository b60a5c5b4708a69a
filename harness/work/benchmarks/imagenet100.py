"""ImageNet-100: 100 classes of ImageNet (ILSVRC2012), and four well-known models, as torchvision has them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.plan import Frozen
from harness.work.datasets import Dataset, DataSource, Incoming, split
from harness.work.declared import BatchNorm, Benchmark, Layer, Model, Published
from harness.work.image_folder import read_image_folder
from harness.work.imagenet_classes import CMC
from harness.work.tasks import IMAGES_OF_MANY_CLASSES

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
    image_size: int = Field(default=224, ge=32, le=STORED_SIZE, multiple_of=16)
    """Height and width of what a model sees: whole patches of vit_b_16."""


def _constants() -> dict[str, NDArray[np.float32]]:
    return {"mean": np.array(MEAN, np.float32), "std": np.array(STD, np.float32)}


def _read_imagenet100(originals: Path) -> Incoming:
    """An ImageNet folder, or a link to one."""
    return read_image_folder(originals, CMC, size=STORED_SIZE, constants=_constants())


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
    return split({"images": images, "labels": labels.astype(np.int32)}, SAMPLE_TRAIN_COUNT, constants=_constants())


WITH_DEPTHWISE = frozenset(
    {
        *(Layer.CONVOLUTION, Layer.CONVOLUTION_WITHOUT_BIAS, Layer.DEPTHWISE),
        *(Layer.BATCH_NORM, Layer.DENSE),
    }
)
"""Convolutions with a bias are those of squeeze and excitation."""

BENCHMARK = Benchmark(
    name="imagenet100",
    task=IMAGES_OF_MANY_CLASSES,
    models=(
        Model(
            name="resnet50",
            words="ResNet-50",
            layers=frozenset({Layer.CONVOLUTION_WITHOUT_BIAS, Layer.BATCH_NORM, Layer.DENSE}),
            published=Published(weights="ResNet50_Weights.IMAGENET1K_V1", classifier="fc"),
            batch_norm=BatchNorm(),
            parameter_count=23_712_932,
            multiply_adds=4_087_341_056,
        ),
        Model(
            name="vit_b_16",
            words="ViT-B/16",
            layers=frozenset(
                {
                    *(Layer.PATCH_PROJECTION, Layer.TOKEN, Layer.ATTENTION, Layer.MULTI_HEAD),
                    *(Layer.LAYER_NORM, Layer.DENSE),
                }
            ),
            published=Published(weights="ViT_B_16_Weights.IMAGENET1K_V1", classifier="heads.head"),
            parameter_count=85_875_556,
            multiply_adds=17_563_137_024,
        ),
        Model(
            name="mobilenet_v3_small",
            words="MobileNetV3-Small",
            layers=WITH_DEPTHWISE,
            published=Published(weights="MobileNet_V3_Small_Weights.IMAGENET1K_V1", classifier="classifier.3"),
            batch_norm=BatchNorm(epsilon=1e-3, momentum=0.01),
            parameter_count=1_620_356,
            multiply_adds=55_588_800,
        ),
        Model(
            name="efficientnet_b0",
            words="EfficientNet-B0",
            layers=WITH_DEPTHWISE,
            published=Published(weights="EfficientNet_B0_Weights.IMAGENET1K_V1", classifier="classifier.1"),
            batch_norm=BatchNorm(),
            parameter_count=4_135_648,
            multiply_adds=384_662_752,
        ),
    ),
    data=DataSource(
        benchmark="imagenet100",
        read=_read_imagenet100,
        source="ImageNet (ILSVRC2012), the 100 classes of CMC's list",
        sample=_sample_imagenet100,
        sample_source="generated class-dependent images of 256 x 256",
        needs_torchvision=False,
        by_hand=True,
    ),
    classes=CMC,
    sizes=Sizes,
)
