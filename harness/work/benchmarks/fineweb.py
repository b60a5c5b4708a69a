"""FineWeb in GPT-2's tokens, with GPT-2's 124 million parameters: what llm.c and modded-nanogpt train."""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness.plan import Frozen
from harness.work.benchmarks.enwik8 import SAMPLE_STRIDE, SAMPLE_TEST_SHARE, sample_text
from harness.work.datasets import Dataset, DataSource, Original, ensure_originals
from harness.work.declared import Benchmark
from harness.work.gpt import GptSize
from harness.work.tasks import NEXT_TOKEN
from harness.work.windows import as_dataset, cut_to, logits_of, tokens_of

VOCABULARY = 50_304
"""Of GPT-2's tokenizer, 50,257, padded to a multiple of 128 (karpathy/nanoGPT, train.py). No text has the last 47."""
STORED_POSITIONS = 1024
"""Of a window on the disk. For a model with fewer positions it is cut."""
HEAD_WIDTH = 64
"""Features of an attention head, in all sizes of GPT-2."""


class Sizes(Frozen):
    """Of the model. The defaults are GPT-2's; others are for quick runs and tests."""

    layers: int = Field(default=12, ge=1)
    width: int = Field(default=768, ge=HEAD_WIDTH, le=25 * HEAD_WIDTH, multiple_of=HEAD_WIDTH)
    """Features of a token; a head has 64 of them."""
    positions: Literal[64, 128, 256, 512, 1024] = 1024
    """Tokens that it predicts in each sample."""


def size_of(sizes: Sizes) -> GptSize:
    return GptSize(
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.width // HEAD_WIDTH,
        positions=sizes.positions,
        vocabulary=VOCABULARY,
    )


REVISION = "889765ea1f903759787add96995d81171b632d0c"
URL = f"https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/{REVISION}"
"""The shards that modded-nanogpt downloads (data/cached_fineweb10B.py)."""


def _shard(name: str, sha256: str) -> Original:
    return Original(name=name, sha256=sha256, urls=(f"{URL}/{name}",))


TRAIN = _shard("fineweb_train_000001.bin", "771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e")
"""The checksums are those by which the shards are stored there (Git LFS)."""
TEST = _shard("fineweb_val_000000.bin", "5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640")
TEST_WINDOWS = 10_240
"""The first 10,485,760 tokens, on which modded-nanogpt validates."""

HEADER_BYTES = 1024
"""At the start of a shard. Tokens of 16 bits follow, little-endian (karpathy/llm.c, dev/data/data_common.py)."""


def read_shard(path: Path) -> NDArray[np.uint16]:
    """Its tokens, mapped into memory and not read."""
    return np.memmap(path, "<u2", "r", offset=HEADER_BYTES)


def _read(folder: Path) -> Dataset:
    paths = ensure_originals([TRAIN, TEST], folder)
    return as_windows(read_shard(paths[TRAIN.name]), read_shard(paths[TEST.name]))


def as_windows(train: NDArray[np.uint16], test: NDArray[np.uint16], stride: int | None = None) -> Dataset:
    """All of `train` and TEST_WINDOWS of `test`, or fewer: uint16 [windows, STORED_POSITIONS + 1].

    Args:
        stride: of the windows to train on.
    """
    return as_dataset(train, test[: TEST_WINDOWS * STORED_POSITIONS + 1], STORED_POSITIONS, stride)


def _sample() -> Dataset:
    """Byte by byte, as there is no tokenizer here: each byte is the token of its number, so that of 50,304 only 256 can
    occur. It has the real shapes and types, and says nothing on how well a model learns from GPT-2's tokens."""
    tokens = np.frombuffer(sample_text(), np.uint8).astype(np.uint16)
    train, test = np.split(tokens, [round(len(tokens) * (1 - SAMPLE_TEST_SHARE))])
    return as_windows(train, test, SAMPLE_STRIDE)


def for_model(dataset: Dataset, _model: str, sizes: Sizes) -> Dataset:
    """In windows of as many tokens as the model has positions."""
    return cut_to(dataset, sizes.positions)


BENCHMARK = Benchmark(
    name="fineweb",
    task=NEXT_TOKEN,
    models=(size_of(Sizes()).model("gpt2"),),
    data=DataSource(
        benchmark="fineweb",
        read=_read,
        source="FineWeb-10B in GPT-2's tokens (kjj0/fineweb10B-gpt2): its first shard to train, 10,485,760 tokens of "
        "its validation shard",
        sample=_sample,
        sample_source="founding documents of the United States, a token for each byte",
    ),
    sizes=Sizes,
    for_model=for_model,
    units=tokens_of,
    outputs=partial(logits_of, VOCABULARY),
)
