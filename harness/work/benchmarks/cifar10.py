"""CIFAR-10: 32 x 32 colour images, ten classes."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.work.datasets import Dataset, DataSource, Original, ensure_originals, labelled_images
from harness.work.declared import BatchNorm, Benchmark, Layer, Model
from harness.work.tasks import IMAGE_CLASSIFICATION

SAMPLE_SEED = 20261121
SAMPLE_TRAIN_COUNT = 2048
SAMPLE_TEST_COUNT = 512


def _read_cifar10(folder: Path) -> Dataset:
    """A tar archive with five pickled batches to train on and one to test on."""
    from torchvision.datasets import CIFAR10

    original = Original(name=CIFAR10.filename, md5=CIFAR10.tgz_md5, urls=(CIFAR10.url,))
    path = ensure_originals([original], folder)[original.name]
    with tarfile.open(path) as archive:
        names = [name for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
        batches = [_read_batch(archive, f"{CIFAR10.base_folder}/{name}") for name in names]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return labelled_images(images, labels, sum(len(own) for _, own in batches[: len(CIFAR10.train_list)]))


def _read_batch(archive: tarfile.TarFile, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images [n, 32, 32, 3] and labels. A row of `data` holds the red plane, then the green and the blue."""
    member = archive.extractfile(name)
    assert member is not None
    batch = pickle.load(member, encoding="latin1")  # of an archive whose checksum was verified
    images = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images, np.uint8), np.array(batch["labels"], np.int32)


def _sample_cifar10() -> Dataset:
    """Images that show their class, made in whole numbers only: bit for bit the same on every machine.

    Each class has a pattern of 8 x 8 random colours, each 4 x 4 pixels large. An image is the pattern of its
    class over the pattern of another one (8 to 12 sixteenths against the rest), both moved by up to 6 pixels
    in each direction around the edges, with its own brightness and noise in every pixel. A small CNN learns
    it in a few epochs; a linear classifier, which does not see through the moves, stays well below.
    """
    # RandomState, because numpy promises its stream for ever; that of default_rng may change.
    draw = np.random.RandomState(SAMPLE_SEED)
    count = SAMPLE_TRAIN_COUNT + SAMPLE_TEST_COUNT
    patterns = draw.randint(0, 256, (10, 8, 8, 3)).astype(np.int16).repeat(4, axis=1).repeat(4, axis=2)
    labels = draw.randint(0, 10, count)
    others = (labels + draw.randint(1, 10, count)) % 10
    weights = draw.randint(8, 13, count).astype(np.int16)[:, np.newaxis, np.newaxis, np.newaxis]
    images = _moved(patterns, labels, draw) * weights + _moved(patterns, others, draw) * (16 - weights)
    images //= 16
    images += draw.randint(-30, 31, count).astype(np.int16)[:, np.newaxis, np.newaxis, np.newaxis]
    images += draw.randint(-60, 61, images.shape, dtype=np.int8)
    pixels = np.clip(images, 0, 255).astype(np.uint8)
    return labelled_images(pixels, labels.astype(np.int32), SAMPLE_TRAIN_COUNT)


def _moved(patterns: NDArray[np.int16], classes: NDArray[np.int64], draw: np.random.RandomState) -> NDArray[np.int16]:
    """The pattern of each class, [n, 32, 32, 3], moved around the edges by up to 6 pixels."""
    down, right = draw.randint(-6, 7, (2, len(classes), 1))
    pixels = np.arange(32)
    rows, columns = (pixels + down) % 32, (pixels + right) % 32
    moved: NDArray[np.int16] = patterns[
        classes[:, np.newaxis, np.newaxis], rows[:, :, np.newaxis], columns[:, np.newaxis, :]
    ]
    return moved


BENCHMARK = Benchmark(
    name="cifar10",
    task=IMAGE_CLASSIFICATION,
    models=(
        Model(name="cnn", words="a small CNN", layers=frozenset({Layer.CONVOLUTION}), parameter_count=605_226),
        Model(
            name="resnet18",
            words="ResNet-18",
            layers=frozenset({Layer.CONVOLUTION_WITHOUT_BIAS, Layer.BATCH_NORM, Layer.DENSE}),
            parameter_count=11_173_962,
            multiply_adds=555_422_720,
            batch_norm=BatchNorm(),
        ),
    ),
    data=DataSource(
        benchmark="cifar10",
        read=_read_cifar10,
        source="CIFAR-10 (Krizhevsky, 2009)",
        sample=_sample_cifar10,
        sample_source="generated class-dependent images",
    ),
)
