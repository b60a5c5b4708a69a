"""MNIST: its own files without a network, every way they can be wrong, and the digits of the sample."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import DataError
from harness.work.benchmarks.mnist import BENCHMARK, DIGITS
from harness.work.datasets import DataFiles, fetch, load, verify
from tests.made.originals import put_mnist

SOURCE = BENCHMARK.data
Originals = dict[str, NDArray[np.uint8]]


@pytest.fixture
def originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Originals:
    return put_mnist(tmp_path, monkeypatch)


def folder_in(data_dir: Path) -> Path:
    return DataFiles(data_dir=data_dir, benchmark="mnist").originals


def test_the_digits_are_enlarged_by_three_inside_a_border_of_two() -> None:
    with np.load(DIGITS) as digits:
        original, label = digits["images"][0], digits["labels"][0]
    train = SOURCE.sample().train
    image = train["images"][0, :, :, 0]
    assert train["labels"][0] == label
    # Row 3, column 2 of the original covers rows 2 + 9 .. 2 + 11 and columns 2 + 6 .. 2 + 8.
    assert (image[11:14, 8:11] == int(original[3, 2]) * 255 // 16).all()
    assert not image[:2].any()
    assert not image[:, -2:].any()
    assert image.max() == int(original.max()) * 255 // 16


def test_fetch_reads_its_own_files_without_a_network(tmp_path: Path, originals: Originals) -> None:
    fetched = fetch(SOURCE, tmp_path)
    np.testing.assert_array_equal(fetched.train["images"], originals["train-images-idx3-ubyte.gz"][..., np.newaxis])
    assert fetched.train["labels"].tolist() == originals["train-labels-idx1-ubyte.gz"].tolist()
    assert fetched.test["images"].shape == (3, 28, 28, 1)
    assert fetched.test["labels"].tolist() == originals["t10k-labels-idx1-ubyte.gz"].tolist()
    assert fetched.train["labels"].dtype == np.int32
    assert (fetched.train_count, fetched.test_count) == (6, 3)
    identity = verify(SOURCE, "real", tmp_path)
    assert identity and (identity.source, identity.kind) == ("MNIST (LeCun, Cortes, Burges)", "real")
    fetch(SOURCE, tmp_path)
    assert verify(SOURCE, "real", tmp_path) == identity


def test_without_a_network_fetch_says_which_file_to_copy_where(tmp_path: Path, originals: Originals) -> None:
    folder = folder_in(tmp_path)
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        fetch(SOURCE, tmp_path)
    message = str(caught.value)
    assert f"{folder / 't10k-images-idx3-ubyte.gz'} is missing" in message
    assert "http://127.0.0.1:9/first/t10k-images-idx3-ubyte.gz: " in message
    assert "http://127.0.0.1:9/second/t10k-images-idx3-ubyte.gz: " in message
    assert f"copy to {folder}/" in message
    assert message.count("MD5") == 1, "only the missing file is asked for"
    assert "--data sample" in message


def test_a_corrupt_original_is_named(tmp_path: Path, originals: Originals) -> None:
    path = folder_in(tmp_path) / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz has a wrong checksum"):
        fetch(SOURCE, tmp_path)


def test_the_model_is_declared() -> None:
    assert [model.name for model in BENCHMARK.models] == ["cnn"]
    assert set(load(SOURCE, "sample", Path("unused")).train) == set(BENCHMARK.task.arrays)
