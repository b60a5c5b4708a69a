"""MNIST: 28 x 28 grey images, ten digits."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.work.datasets import Dataset, DataSource, Original, ensure_originals, labelled_images
from harness.work.declared import Benchmark, Layer, Model
from harness.work.tasks import IMAGE_CLASSIFICATION

DIGITS = Path(__file__).parent.parent / "sample" / "digits.npz"
DIGITS_TRAIN_COUNT = 1536
"""The rest tests. Not shuffled: neighbours are often by one writer, who is then mostly on one side only."""


def _read_mnist(folder: Path) -> Dataset:
    """Four gzipped IDX files."""
    from torchvision.datasets import MNIST

    originals = [
        Original(name=name, md5=md5, urls=tuple(mirror + name for mirror in MNIST.mirrors))
        for name, md5 in MNIST.resources
    ]
    arrays = {name: read_idx(path) for name, path in ensure_originals(originals, folder).items()}
    images, labels = (
        np.concatenate([arrays[f"{part}-{kind}-ubyte.gz"] for part in ("train", "t10k")])
        for kind in ("images-idx3", "labels-idx1")
    )
    train_count = len(arrays["train-labels-idx1-ubyte.gz"])
    return labelled_images(images[..., np.newaxis], labels.astype(np.int32), train_count)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """IDX: two zero bytes, the type (8: uint8), the number of axes; their lengths, big-endian; values."""
    with gzip.open(path) as file:
        content = file.read()
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _sample_mnist() -> Dataset:
    """Scanned 8 x 8 digits in MNIST's shape: pixels become 3 x 3, the border is 2; 0..16 becomes 0..255."""
    with DIGITS.open("rb") as file, np.load(file, allow_pickle=False) as digits:
        images, labels = digits["images"], digits["labels"].astype(np.int32)
    enlarged = (images.astype(np.uint16) * 255 // 16).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
    images = np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))[..., np.newaxis]
    return labelled_images(images, labels, DIGITS_TRAIN_COUNT)


BENCHMARK = Benchmark(
    name="mnist",
    task=IMAGE_CLASSIFICATION,
    models=(
        Model(
            name="cnn",
            words="a small CNN",
            layers=frozenset({Layer.CONVOLUTION, Layer.DENSE}),
            parameter_count=26_010,
        ),
    ),
    data=DataSource(
        benchmark="mnist",
        read=_read_mnist,
        source="MNIST (LeCun, Cortes, Burges)",
        sample=_sample_mnist,
        sample_source="8 x 8 scanned digits (Alpaydin and Kaynak, 1998), enlarged",
    ),
)
