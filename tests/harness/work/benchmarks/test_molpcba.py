"""The reader of OGB's format on zips made here."""

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.errors import DataError
from harness.work.benchmarks import molpcba
from harness.work.benchmarks.molpcba import BENCHMARK, PCBA, read_zip
from harness.work.datasets import DataFiles, content_sha256, digest_of, fetch, verify
from tests.made.image_folders import flip

CARBON, OXYGEN = "5,0,4,5,3,0,2,0,0", "7,0,2,5,1,0,2,0,0"


LABELS = [",".join(["1.0", "", "0"] + ["nan"] * 125), ",".join(["0"] * 128), ",".join(["1"] * 128)]
FILES = {
    "raw/num-node-list": "2\n1\n3\n",
    "raw/num-edge-list": "1\n0\n2\n",
    "raw/node-feat": "\n".join([CARBON, OXYGEN, CARBON, CARBON, CARBON, OXYGEN]) + "\n",
    "raw/edge-feat": "0,0,0\n1,0,1\n0,0,0\n",
    "raw/edge": "0,1\n2,0\n0,1\n",
    "raw/graph-label": "\n".join(LABELS) + "\n",
    "split/scaffold/train": "2\n0\n",
    "split/scaffold/valid": "",
    "split/scaffold/test": "1\n",
}


def made_zip(folder: Path) -> Path:
    path = folder / "pcba.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"pcba/{name}.csv.gz", gzip.compress(content.encode()))
    return path


def test_ogbs_format(tmp_path: Path) -> None:
    """Three graphs: C-O, C, and O(2)=C(0)-C(1), of which the last and the first are to train on, in this order."""
    found = read_zip(made_zip(tmp_path))
    numbers = {name: array.tolist() for name, array in found.train.items() if name != "labels"}
    assert numbers == {"node_start": [3, 0], "node_count": [3, 2], "edge_start": [2, 0], "edge_count": [4, 2]}
    assert found.test["node_start"].tolist() == [2]
    assert found.test["edge_count"].tolist() == [0]
    assert found.train["labels"][0].tolist() == [1] * 128
    assert found.train["labels"][1].tolist() == [1, -1, 0] + [-1] * 125
    assert found.shared["receivers"].tolist() == [0, 1, 0, 0, 1, 2]
    assert found.shared["senders"].tolist() == [1, 0, 1, 2, 0, 0]
    # Rows of one table: types begin at 0, stereo at 5, conjugated at 11; the double bond's code is 1, conjugated 1.
    assert found.shared["bonds"].tolist()[2:] == [[0, 5, 11], [1, 5, 12], [0, 5, 11], [1, 5, 12]]
    assert found.shared["atoms"][1].tolist() == [7, 119, 126, 141, 149, 158, 166, 170, 172]
    types = {name: array.dtype.str for name, array in found.shared.items()}
    assert types == {"atoms": "|u1", "bonds": "|u1", "senders": "<i2", "receivers": "<i2"}


def test_fetched_mapped_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared arrays are a part of the data set's checksum."""
    files, source = DataFiles(data_dir=tmp_path, benchmark="molpcba"), BENCHMARK.data
    files.originals.mkdir(parents=True)
    path = made_zip(files.originals)
    monkeypatch.setattr(molpcba, "PCBA", replace(PCBA, sha256=digest_of(path, "sha256")))
    fetched, expected = fetch(source, tmp_path), read_zip(path)
    assert verify(source, "real", tmp_path).sha256 == content_sha256(expected)
    for name, array in fetched.shared.items():
        np.testing.assert_array_equal(array, expected.shared[name])
    flip(files.array("shared", "senders"))
    with pytest.raises(DataError, match="SHA-256 of its block 0"):
        verify(source, "real", tmp_path)
