"""Named arrays: the samples bit for bit, verified once and then mapped, and every way a file can be wrong."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import DataError
from harness.experiments.load import load_config
from harness.paths import REPOSITORY
from harness.results.record import DataIdentity
from harness.work.datasets import (
    NO_DATA,
    DataFiles,
    Dataset,
    DataSource,
    Original,
    channel_statistics,
    content_sha256,
    count_of,
    ensure_originals,
    fetch,
    load,
    verify,
)
from harness.work.declared import benchmark
from pipeline.data import fetch_command
from tests.made.image_folders import cut


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("mnist", "de2cc32494727113eb32ef39de221edcee94dfd81729ebb4849632184536bfca"),
        ("cifar10", "808cc9847f06a669ed732346d2170ac6c0a5c94d3c12d7789b5ea2e8b7d2618d"),
        ("imagenet100", "f85a39ada8604309d2cdf5f5eb8964367fdf6c55520e47181e1f04fb31d81d2d"),
        ("enwik8", "9b0aa1c4b6ec8ce41e544df56d64fccb485a57a87bace7a3ff7e25d3d5c9cc46"),
        ("fineweb", "d7fac0a39de47d3dd8cb23a668f09213388e67437202316ecfee62e9c4fc2dca"),
        ("text", "580433d9ade4ea894fe500e2ac03b818aa40586264ea8bb180fbe7eab80db79b"),
        ("molpcba", "a97c9eaa1c898fb3dffd01964c1c7f77af235d609533c0154fc77fa4fc277fd2"),
    ],
)
def test_a_sample_never_changes(name: str, sha256: str, tmp_path: Path) -> None:
    """Of names, shapes, types and content: a sample that changes makes old and new records incomparable."""
    assert content_sha256(load(benchmark(name).data, "sample", tmp_path)) == sha256
    identity = verify(benchmark(name).data, "sample", tmp_path)
    assert identity and (identity.kind, identity.sha256) == ("sample", sha256)
    assert list(tmp_path.iterdir()) == []


def test_channel_statistics_are_numpys() -> None:
    images = np.random.RandomState(1).randint(0, 256, (20, 7, 5, 3)).astype(np.uint8)
    found = channel_statistics(images)
    np.testing.assert_allclose(found["mean"], (images / 255).mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["std"], (images / 255).std((0, 1, 2)), rtol=1e-6)
    assert found["mean"].dtype == found["std"].dtype == np.float32


# Any named arrays: here a text, whose samples are rows of tokens.

TEXT = Dataset(
    train={"tokens": np.arange(20, dtype=np.int32).reshape(5, 4), "weights": np.ones((5, 2, 2), np.float32)},
    test={"tokens": np.arange(8, dtype=np.int32).reshape(2, 4), "weights": np.zeros((2, 2, 2), np.float32)},
    constants={"vocabulary": np.array([20], np.int32)},
)


SOURCE = DataSource(
    benchmark="text", read=lambda _folder: TEXT, source="made up", sample=lambda: TEXT, sample_source="made up, too"
)


def test_fetched_arrays_lie_in_a_file_each_are_mapped_and_verified(tmp_path: Path) -> None:
    fetch(SOURCE, tmp_path)
    files = {f"{part}.{name}.npy" for part in ("train", "test") for name in ("tokens", "weights")}
    files |= {"constants.vocabulary.npy", "manifest.json"}
    assert {path.name for path in (tmp_path / "text").iterdir()} == files
    dataset = load(SOURCE, "real", tmp_path)
    for part in ("train", "test", "constants"):
        for name, array in getattr(TEXT, part).items():
            mapped = getattr(dataset, part)[name]
            assert isinstance(mapped, np.memmap) and mapped.dtype == array.dtype
            np.testing.assert_array_equal(mapped, array)
    with pytest.raises(ValueError, match="read-only"):
        dataset.train["tokens"][0, 0] = 7
    assert (dataset.train_count, dataset.test_count) == (5, 2)
    read: list[int] = []
    identity = verify(SOURCE, "real", tmp_path, advance=read.append)
    assert identity == DataIdentity(source="made up", kind="real", sha256=content_sha256(TEXT))
    assert sum(read) == 4 * (20 + 20 + 8 + 8 + 1)


def test_the_checksum_sees_every_array_its_name_its_type_and_its_shape() -> None:
    tokens = TEXT.train["tokens"]
    changed: list[dict[str, NDArray[Any]]] = [
        {"tokens": tokens + (tokens == 19)},
        {"tokens": tokens.reshape(5, 2, 2)},
        {"tokens": tokens.astype(np.uint32)},
        {"more": np.zeros(5)},
    ]
    others = [
        *(replace(TEXT, train={**TEXT.train, **one}) for one in changed),
        replace(TEXT, train=TEXT.test, test=TEXT.train),
        replace(TEXT, constants={"words": TEXT.constants["vocabulary"]}),
    ]
    assert len({content_sha256(one) for one in [TEXT, *others]}) == 1 + len(others)
    assert content_sha256(replace(TEXT, train=dict(reversed(TEXT.train.items())))) == content_sha256(TEXT)
    with pytest.raises(DataError, match=r"differ in their number of samples: \{'tokens': 5, 'labels': 4\}"):
        count_of({"tokens": tokens, "labels": np.zeros(4)})


def change_manifest(files: DataFiles, old: str, new: str) -> None:
    files.manifest.write_text(files.manifest.read_text().replace(old, new))


CORRUPT = "train.tokens.npy: truncated or corrupt"
OTHER_SHAPE = "train.tokens.npy: is <i4 of the shape [4, 4], manifest.json says <i4 of [5, 4]"
MISFIT = "manifest.json: was changed: its checksums do not fit each other"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda files: cut(files.array("train", "tokens"), -8), CORRUPT),
        (lambda files: os.truncate(files.array("train", "tokens"), 1000), CORRUPT),  # with more behind it
        (lambda files: files.array("train", "tokens").unlink(), "train.tokens.npy: the data set is not complete"),
        (lambda files: np.save(files.array("train", "tokens"), np.zeros((4, 4), np.int32)), OTHER_SHAPE),
        (lambda files: np.save(files.array("train", "tokens"), np.array([[{}] * 4] * 5, object)), CORRUPT),
        (lambda files: files.manifest.unlink(), "manifest.json: the data set text is not here"),
        (lambda files: files.manifest.write_text("{"), "manifest.json: not a manifest"),
        (lambda files: change_manifest(files, '"version": 3', '"version": 2'), "not a manifest: version: Input should"),
        (lambda files: change_manifest(files, '"sha256": "', '"sha256": "5e'), MISFIT),
        (lambda files: change_manifest(files, '"<i4"', '"<u4"'), MISFIT),
    ],
)
def test_damaged_data_is_refused_by_load_and_verify_with_the_way_out_and_mended_by_fetch(
    damage: Callable[[DataFiles], object], says: str, tmp_path: Path
) -> None:
    fetch(SOURCE, tmp_path)
    damage(DataFiles(data_dir=tmp_path, benchmark="text"))
    for read in (load, verify):
        with pytest.raises(DataError) as caught:
            read(SOURCE, "real", tmp_path)
        words = (str(tmp_path / "text"), says, "python main.py data --benchmark text", "--data sample")
        assert all(word in str(caught.value) for word in words)
    fetch(SOURCE, tmp_path)
    verify(SOURCE, "real", tmp_path)


def test_the_command_says_what_it_fetched_and_goes_on_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(REPOSITORY / "experiments.yaml").model_copy(update={"data_dir": str(tmp_path)})
    assert fetch_command(config, ("synthetic", "imagenet100", "text")) == 1
    output = capsys.readouterr().out
    assert "synthetic: nothing to fetch: random inputs, made on the device from the seed\n" in output
    assert f"{tmp_path / 'originals' / 'imagenet100'}: has no folder train" in output
    assert verify(benchmark("text").data, "real", tmp_path).sha256 in output
    assert fetch_command(config, ("text", "synthetic")) == 0
    absent = tmp_path / "absent"  # where inputs are drawn there is nothing to load and to verify
    assert (load(None, "real", absent), verify(None, "real", absent), NO_DATA.train_count) == (NO_DATA, None, 0)


def test_without_torchvision_fetch_says_so_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r"needs torchvision.*pip install"):
        fetch(benchmark("mnist").data, tmp_path)
    assert fetch(benchmark("text").data, tmp_path).train_count > 0


# Downloads


def test_download_has_a_time_limit_on_its_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address, and nothing after them: behind a firewall that drops packets a connection would hang for ever."""
    limits: list[float | None] = []

    def hangs(url: str, **_: Any) -> None:
        limits.append(socket.getdefaulttimeout())
        raise TimeoutError("timed out")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", hangs)
    original = Original(name="a.zip", md5="0" * 32, urls=("https://one.example/a", "https://two.example/a"))
    with pytest.raises(DataError, match="https://two.example/a: timed out"):
        ensure_originals([original], tmp_path)
    assert limits == [30.0, 30.0]
    assert socket.getdefaulttimeout() is None
