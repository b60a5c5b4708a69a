"""enwik8's archive in its own format: right, damaged, and another one."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harness.errors import DataError
from harness.work.benchmarks import enwik8
from harness.work.datasets import DataFiles, Original, fetch, load, verify
from harness.work.declared import Nothing
from tests.made.image_folders import flip

TEXT = bytes(range(256)) * 80
"""20,480 bytes."""
SOURCE = enwik8.BENCHMARK.data


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `main.py data` looks for it; its own checksum is taken for the right one."""
    path = DataFiles(data_dir=tmp_path, benchmark="enwik8").originals / "enwik8.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik8", TEXT)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    original = Original(name="enwik8.zip", sha256=sha256, urls=("http://127.0.0.1:9/enwik8.zip",))
    monkeypatch.setattr(enwik8, "ORIGINAL", original)
    return path


def test_what_is_fetched_is_the_text(tmp_path: Path, archive: Path) -> None:
    fetch(SOURCE, tmp_path)
    dataset = load(SOURCE, "real", tmp_path)
    # 18,432 bytes are 71 windows of 256 and a rest; the last 1,024 are 3, as each needs one more byte.
    train, test = dataset.train["tokens"], dataset.test["tokens"]
    assert (train.shape, test.shape, train.dtype) == ((71, 257), (3, 257), np.uint8)
    assert bytes(train[:, :-1].ravel()) == TEXT[: 71 * 256]
    assert bytes(train[:, -1]) == TEXT[256 : 71 * 256 + 1 : 256]
    assert bytes(test[:, :-1].ravel()) == TEXT[-1024 : -1024 + 3 * 256]
    nano = enwik8.for_model(dataset, "gpt_nano", Nothing()).train["tokens"]
    assert nano.shape == (4 * 71, 65) and bytes(nano[:, 1:].ravel()) == TEXT[1 : 71 * 256 + 1]
    identity = verify(SOURCE, "real", tmp_path)
    assert identity and identity.source.startswith("enwik8: the first 10^8 bytes")


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path, archive: Path) -> None:
    flip(archive, 60)
    content = archive.read_bytes()
    with pytest.raises(DataError, match=f"wrong checksum, and it cannot .*(?s:.*)SHA-256 {enwik8.ORIGINAL.sha256}"):
        fetch(SOURCE, tmp_path)
    assert archive.read_bytes() == content  # whatever it is, it is not ours to remove
