"""MNIST: its own files without a network, and one that is missing."""

from pathlib import Path

import numpy as np
import pytest

from harness.errors import DataError
from harness.work.benchmarks.mnist import BENCHMARK
from harness.work.datasets import DataFiles, fetch, verify
from tests.made.originals import put_mnist

SOURCE = BENCHMARK.data


def test_fetch_reads_its_own_files_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals = put_mnist(tmp_path, monkeypatch)
    fetched = fetch(SOURCE, tmp_path)
    for part, name in ((fetched.train, "train"), (fetched.test, "t10k")):
        np.testing.assert_array_equal(part["images"], originals[f"{name}-images-idx3-ubyte.gz"][..., np.newaxis])
        assert part["labels"].tolist() == originals[f"{name}-labels-idx1-ubyte.gz"].tolist()
        assert part["labels"].dtype == np.int32
    identity = verify(SOURCE, "real", tmp_path)
    assert identity and (identity.source, identity.kind) == ("MNIST (LeCun, Cortes, Burges)", "real")


def test_without_a_network_fetch_says_which_file_to_copy_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_mnist(tmp_path, monkeypatch)
    folder, name = DataFiles(data_dir=tmp_path, benchmark="mnist").originals, "t10k-images-idx3-ubyte.gz"
    (folder / name).unlink()
    with pytest.raises(DataError) as caught:
        fetch(SOURCE, tmp_path)
    message = str(caught.value)
    mirrors = (f"http://127.0.0.1:9/{mirror}/{name}: " for mirror in ("first", "second"))
    for words in (f"{folder / name} is missing", *mirrors, f"copy to {folder}/", "--data sample"):
        assert words in message
    assert message.count("MD5") == 1, "only the missing file is asked for"
