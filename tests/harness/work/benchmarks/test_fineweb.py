"""fineweb's shards in their own format, and its sizes."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.work.benchmarks import fineweb
from harness.work.datasets import DataFiles, fetch, load, verify

TRAIN = np.arange(3 * 1024 + 700, dtype=np.uint16) * 11
"""Up to 41,481; above 32,767 a sign would show."""
TEST = np.arange(2 * 1024 + 1, dtype=np.uint16)
SOURCE = fineweb.BENCHMARK.data


def shard(tokens: np.ndarray) -> bytes:
    header = struct.pack("<3i", 20240520, 1, len(tokens))
    return header.ljust(1024, b"\0") + tokens.astype("<u2").tobytes()


def test_what_is_fetched_are_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From shards where `main.py data` looks for them; their own checksums are taken for the right ones."""
    monkeypatch.setattr(fineweb, "TEST_WINDOWS", 1)
    folder = DataFiles(data_dir=tmp_path, benchmark="fineweb").originals
    folder.mkdir(parents=True)
    for name, content in (("TRAIN", shard(TRAIN)), ("TEST", shard(TEST))):
        original = replace(getattr(fineweb, name), sha256=hashlib.sha256(content).hexdigest(), urls=())
        (folder / original.name).write_bytes(content)
        monkeypatch.setattr(fineweb, name, original)
    fetch(SOURCE, tmp_path)
    dataset = load(SOURCE, "real", tmp_path)
    train, test = dataset.train["tokens"], dataset.test["tokens"]
    assert (train.shape, test.shape, train.dtype, test.dtype) == ((3, 1025), (1, 1025), np.uint16, np.uint16)
    np.testing.assert_array_equal(train[:, :-1].ravel(), TRAIN[: 3 * 1024])
    np.testing.assert_array_equal(train[:, -1], TRAIN[1024 : 3 * 1024 + 1 : 1024])
    np.testing.assert_array_equal(test[0], TEST[:1025])
    short = fineweb.for_model(dataset, "gpt2", fineweb.Sizes(positions=64))
    assert short.train["tokens"].shape == (48, 65) and fineweb.BENCHMARK.units(short) == {"tokens": 64.0}
    assert fineweb.BENCHMARK.outputs(short) == 64 * 50_304
    assert verify(SOURCE, "real", tmp_path).source.startswith("FineWeb-10B in GPT-2's tokens")


def test_the_sizes() -> None:
    """Six of the smallest heads; and in all as many parameters as Hugging Face's `gpt2`, 124,439,808, less its biases,
    and 47 rows more of 768 in the padded vocabulary."""
    small = fineweb.size_of(fineweb.Sizes(layers=2, width=384, positions=128))
    assert (small.layers, small.width, small.heads, small.positions, small.vocabulary) == (2, 384, 6, 128, 50_304)
    gpt2 = fineweb.BENCHMARK.model("gpt2")
    biases = 12 * (3 * 768 + 768 + 4 * 768 + 768 + 2 * 768) + 768
    assert gpt2.parameter_count == 124_439_808 - biases + 47 * 768 == 124_373_760
    # 6 N + 12 L C T floating-point operations for each token, N without the positions.
    of_token = 6 * (124_373_760 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert 6 * gpt2.multiply_adds / 1024 == pytest.approx(of_token, rel=1e-3)
