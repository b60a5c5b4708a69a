"""CIFAR-10: its own archive, planes and all, without a network."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from harness.errors import DataError
from harness.work.benchmarks.cifar10 import BENCHMARK
from harness.work.datasets import fetch
from tests.made.originals import md5_of, put_cifar10

SOURCE = BENCHMARK.data


def test_fetch_reads_planes_as_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_cifar10(tmp_path, monkeypatch)
    dataset = fetch(SOURCE, tmp_path)
    train, test = dataset.train, dataset.test
    assert train["images"].shape == (10, 32, 32, 3)
    assert train["labels"].tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert test["labels"].tolist() == [5, 6]
    assert train["labels"].dtype == test["labels"].dtype == np.int32
    assert train["images"][:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]
    assert (train["images"][..., 1] == 100).all()
    # Row 3, column 5 is pixel 3 * 32 + 5 = 101 of the plane.
    assert test["images"][0, 3, 5].tolist() == [50, 100, 101]


def test_an_archive_without_the_batches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    path = put_cifar10(tmp_path, monkeypatch)
    with tarfile.open(path, "w:gz"):
        pass
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5_of(path))
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: not the archive of CIFAR-10 .*fetch again"):
        fetch(SOURCE, tmp_path)
