"""CIFAR-10: its own archive, planes and all, without a network."""

from pathlib import Path

import numpy as np
import pytest

from harness.work.benchmarks.cifar10 import BENCHMARK
from harness.work.datasets import fetch
from tests.made.originals import put_cifar10

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
