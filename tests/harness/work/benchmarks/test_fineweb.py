"""fineweb's shards in their own format: right, damaged, and others."""

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from harness.errors import DataError
from harness.work.benchmarks import enwik8, fineweb
from harness.work.datasets import DataFiles, Original, fetch, load, verify

TRAIN = np.arange(3 * 1024 + 700, dtype=np.uint16) * 11
"""Up to 41,481; above 32,767 a sign would show."""
TEST = np.arange(2 * 1024 + 1, dtype=np.uint16)
SOURCE = fineweb.BENCHMARK.data


def shard(tokens: np.ndarray, magic: int = 20240520, version: int = 1, count: int | None = None) -> bytes:
    header = struct.pack("<3i", magic, version, len(tokens) if count is None else count)
    return header.ljust(1024, b"\0") + tokens.astype("<u2").tobytes()


def put_shards(data_dir: Path, monkeypatch: pytest.MonkeyPatch, train: bytes, test: bytes) -> Path:
    """Where `main.py data` looks for them; their own checksums are taken for the right ones."""
    folder = DataFiles(data_dir=data_dir, benchmark="fineweb").originals
    folder.mkdir(parents=True)
    for name, content in (("TRAIN", train), ("TEST", test)):
        original: Original = getattr(fineweb, name)
        (folder / original.name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        monkeypatch.setattr(fineweb, name, Original(name=original.name, sha256=sha256, urls=()))
    return folder


def test_what_is_fetched_are_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fineweb, "TEST_WINDOWS", 1)
    put_shards(tmp_path, monkeypatch, shard(TRAIN), shard(TEST))
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
    identity = verify(SOURCE, "real", tmp_path)
    assert identity and identity.source.startswith("FineWeb-10B in GPT-2's tokens")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (shard(TRAIN)[:1000], r"has 1,000 bytes, and a shard's header alone has 1,024"),
        (pickle.dumps([{"a": 1}] * 2000).ljust(2000, b"0"), "begins with "),
        (shard(TRAIN, magic=20240801), "begins with 20240801, and a shard of GPT-2's tokens with 20240520"),
        (shard(TRAIN, version=2), "is a shard of version 2; this code reads 1"),
        (shard(TRAIN)[:-2], "has 8,566 bytes; with the 3,772 tokens that its header names it has 8,568"),
        (shard(TRAIN, count=-1), "with the -1 tokens"),
    ],
)
def test_a_damaged_shard_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        fineweb.read_shard(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("fetch again: python main.py data --benchmark fineweb")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (np.append(TRAIN, 50_257), TEST, "fineweb, train: token 50257; GPT-2's tokenizer has 0 to 50256"),
        (TRAIN, TEST[:1024], "fineweb, test: 1,024 tokens, and a window takes 1,025"),
    ],
)
def test_tokens_of_another_tokenizer_and_less_than_a_window_are_refused(
    train: np.ndarray, test: np.ndarray, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_shards(tmp_path, monkeypatch, shard(train), shard(test))
    with pytest.raises(DataError, match=message):
        fetch(SOURCE, tmp_path)


def test_the_sample_has_a_token_for_each_byte_of_the_text() -> None:
    dataset = SOURCE.sample()
    train, test = dataset.train["tokens"], dataset.test["tokens"]
    assert train.dtype == test.dtype == np.uint16 and train.shape[1] == test.shape[1] == 1025
    assert dataset.train_count >= 512 and dataset.test_count >= 2
    text = enwik8.sample_text()
    assert bytes(train[0].astype(np.uint8)) == text[:1025] and train.max() < 128
    assert bytes(test[0].astype(np.uint8)) == text[27_004 : 27_004 + 1025]


def test_the_sizes() -> None:
    """Six of the smallest heads; and in all 124,373,760 parameters, as tests/harness/work/test_gpt.py counts them."""
    small = fineweb.size_of(fineweb.Sizes(layers=2, width=384, positions=128))
    assert (small.layers, small.width, small.heads, small.positions, small.vocabulary) == (2, 384, 6, 128, 50_304)
    gpt2 = fineweb.BENCHMARK.model("gpt2")
    assert gpt2.parameter_count == 124_373_760 and fineweb.size_of(fineweb.Sizes()).heads == 12
    # 6 N + 12 L C T floating-point operations for each token, N without the positions.
    of_token = 6 * (124_373_760 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert 6 * gpt2.multiply_adds / 1024 == pytest.approx(of_token, rel=1e-3)
