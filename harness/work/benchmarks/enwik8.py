"""enwik8: the first 100 MB of an English Wikipedia dump, byte by byte, with two sizes of GPT."""

import zipfile
from pathlib import Path

import numpy as np

from harness.plan import Frozen
from harness.work.datasets import Dataset, DataSource, Original, ensure_originals
from harness.work.declared import Benchmark
from harness.work.gpt import GptSize
from harness.work.tasks import NEXT_BYTE
from harness.work.windows import as_dataset, cut_to, tokens_of

VOCABULARY = 256
"""Bytes."""
SIZES = {
    "gpt_nano": GptSize(layers=4, width=128, heads=4, positions=64, vocabulary=VOCABULARY),
    "gpt_mini": GptSize(layers=6, width=384, heads=6, positions=256, vocabulary=VOCABULARY),
}
"""nanoGPT's settings for a CPU, and its "baby GPT" (karpathy/nanoGPT, README.md, config/train_shakespeare_char.py)."""
STORED_POSITIONS = 256
"""Of a window on the disk. For a model with fewer positions it is cut."""

ORIGINAL = Original(
    name="enwik8.zip",
    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    urls=("http://mattmahoney.net/dc/enwik8.zip", "https://mattmahoney.net/dc/enwik8.zip"),
)
TRAIN_SHARE = 0.9
"""Of the text, from its start; the next twentieth, which others validate on, is left out."""
TEST_SHARE = 0.05
"""Of the text, from its end."""

SAMPLE = Path(__file__).parent.parent / "sample"
SAMPLE_FILES = ("us_constitution.txt", "us_bill_of_rights.txt", "gettysburg_address.txt")
SAMPLE_STRIDE = 32
"""Of the sample's windows to train on, which overlap: it is short."""
SAMPLE_TEST_SHARE = 0.1


def _read(folder: Path) -> Dataset:
    """A zip archive with one file."""
    path = ensure_originals([ORIGINAL], folder)[ORIGINAL.name]
    with zipfile.ZipFile(path) as archive:
        return as_windows(archive.read("enwik8"), TRAIN_SHARE, TEST_SHARE)


def _sample() -> Dataset:
    return as_windows(sample_text(), 1 - SAMPLE_TEST_SHARE, SAMPLE_TEST_SHARE, SAMPLE_STRIDE)


def sample_text() -> bytes:
    return b"".join((SAMPLE / name).read_bytes() for name in SAMPLE_FILES)


def as_windows(text: bytes, train_share: float, test_share: float, stride: int | None = None) -> Dataset:
    """`train_share` from the start, `test_share` from the end; uint8 [windows, STORED_POSITIONS + 1].

    Args:
        stride: of the windows to train on.
    """
    tokens = np.frombuffer(text, np.uint8)
    train = tokens[: round(len(tokens) * train_share)]
    test = tokens[len(tokens) - round(len(tokens) * test_share) :]
    return as_dataset(train, test, STORED_POSITIONS, stride)


def for_model(dataset: Dataset, model: str, _sizes: Frozen) -> Dataset:
    """In windows of as many tokens as the model has positions."""
    return cut_to(dataset, SIZES[model].positions)


BENCHMARK = Benchmark(
    name="enwik8",
    task=NEXT_BYTE,
    models=tuple(size.model(name) for name, size in SIZES.items()),
    data=DataSource(
        benchmark="enwik8",
        read=_read,
        source="enwik8: the first 10^8 bytes of the English Wikipedia dump of 2006-03-03 (Mahoney)",
        sample=_sample,
        sample_source="founding documents of the United States",
    ),
    for_model=for_model,
    units=tokens_of,
)
