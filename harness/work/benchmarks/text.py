"""A small text, byte by byte: 500 lines of the Constitution of the United States (1787, public domain)."""

from pathlib import Path

import numpy as np

from harness.work.datasets import Dataset, DataSource
from harness.work.declared import Benchmark, Layer, Model
from harness.work.tasks import NEXT_TOKEN
from harness.work.windows import as_dataset, tokens_of

TEXT = Path(__file__).parent.parent / "sample" / "us_constitution.txt"
VOCABULARY = 256
"""Bytes."""
CONTEXT = 8
"""Tokens that a prediction is made from."""
FEATURES = 32
"""Of a token."""
HIDDEN = 128
WINDOW = 64
"""Tokens that a model predicts in each sample; one more is before them."""
STRIDE = 16
"""Of the windows to train on, which overlap. Those to test on do not."""
TEST_SHARE = 0.1
"""Of the text, from its end."""


def _read(_originals: Path | None = None) -> Dataset:
    tokens = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int32)
    train, test = np.split(tokens, [round(len(tokens) * (1 - TEST_SHARE))])
    return as_dataset(train, test, WINDOW, STRIDE)


BENCHMARK = Benchmark(
    name="text",
    task=NEXT_TOKEN,
    models=(
        Model(
            name="mlp",
            words="a text MLP",
            layers=frozenset({Layer.TABLE, Layer.DENSE}),
            parameter_count=74_112,
        ),
    ),
    data=DataSource(
        benchmark="text",
        read=_read,
        source="Constitution of the United States (1787)",
        sample=_read,
        sample_source="Constitution of the United States (1787)",
        needs_torchvision=False,
    ),
    units=tokens_of,
)
