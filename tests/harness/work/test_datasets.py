"""Named arrays: the samples bit for bit, verified once and then mapped, and every way a file can be wrong."""

import json
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
from harness.work import datasets
from harness.work.array_files import first_changed_block
from harness.work.datasets import (
    NO_DATA,
    DataFiles,
    Dataset,
    DataSource,
    channel_statistics,
    content_sha256,
    count_of,
    fetch,
    load,
    verify,
)
from harness.work.declared import benchmark
from pipeline.data import fetch_command
from tests.made.image_folders import cut
from tests.made.originals import put_mnist

# Of the arrays: a sample that changes makes old and new records incomparable.
SAMPLES = {
    "mnist": ("de2cc32494727113eb32ef39de221edcee94dfd81729ebb4849632184536bfca", (28, 28, 1), 1536, 261),
    "cifar10": ("808cc9847f06a669ed732346d2170ac6c0a5c94d3c12d7789b5ea2e8b7d2618d", (32, 32, 3), 2048, 512),
    "imagenet100": ("f85a39ada8604309d2cdf5f5eb8964367fdf6c55520e47181e1f04fb31d81d2d", (256, 256, 3), 256, 64),
}


def source_of(name: str) -> DataSource:
    return benchmark(name).data


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_the_real_shapes_and_types_and_never_changes(name: str, tmp_path: Path) -> None:
    sha256, shape, train_count, test_count = SAMPLES[name]
    dataset = load(source_of(name), "sample", tmp_path)
    assert (dataset.train_count, dataset.test_count) == (train_count, test_count)
    for part, count in ((dataset.train, train_count), (dataset.test, test_count)):
        assert part["images"].shape == (count, *shape) and part["images"].dtype == np.uint8
        assert part["labels"].shape == (count,) and part["labels"].dtype == np.int32
        assert sorted(set(part["labels"].tolist())) == list(range(10))
    for name_of_constant in ("mean", "std"):
        constant = dataset.constants[name_of_constant]
        assert constant.shape == (shape[-1],) and constant.dtype == np.float32
    identity = verify(source_of(name), "sample", tmp_path)
    assert identity and (identity.kind, identity.sha256) == ("sample", sha256)
    assert list(tmp_path.iterdir()) == []


def test_channel_statistics_by_hand_and_by_numpy() -> None:
    # Channel 0: 0, 0, 255, 255: mean 1/2, standard deviation 1/2. Channel 1: 51 = 255/5 everywhere: mean 0.2, 0.
    images = np.array([[[[0, 51], [0, 51]], [[255, 51], [255, 51]]]], np.uint8)
    found = channel_statistics(images)
    assert found["mean"].tolist() == pytest.approx([0.5, 0.2])
    assert found["std"].tolist() == pytest.approx([0.5, 0.0])
    images = np.random.RandomState(1).randint(0, 256, (20, 7, 5, 3)).astype(np.uint8)
    found = channel_statistics(images)
    np.testing.assert_allclose(found["mean"], (images / 255).mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["std"], (images / 255).std((0, 1, 2)), rtol=1e-6)


# Any named arrays: here a text, whose samples are rows of tokens.

TEXT = Dataset(
    train={"tokens": np.arange(20, dtype=np.int32).reshape(5, 4), "weights": np.ones((5, 2, 2), np.float32)},
    test={"tokens": np.arange(8, dtype=np.int32).reshape(2, 4), "weights": np.zeros((2, 2, 2), np.float32)},
    constants={"vocabulary": np.array([20], np.int32)},
)


def text_source(dataset: Dataset = TEXT) -> DataSource:
    return DataSource(
        benchmark="text",
        read=lambda _folder: dataset,
        source="made up",
        sample=lambda: dataset,
        sample_source="made up, too",
    )


FILES = ["train.tokens.npy", "train.weights.npy", "test.tokens.npy", "test.weights.npy", "constants.vocabulary.npy"]


def test_fetched_arrays_lie_in_a_file_each_and_are_mapped(tmp_path: Path) -> None:
    fetch(text_source(), tmp_path)
    found = sorted(path.name for path in (tmp_path / "text").iterdir())
    assert found == sorted([*FILES, "manifest.json"])
    dataset = load(text_source(), "real", tmp_path)
    for part in ("train", "test", "constants"):
        for name, array in getattr(TEXT, part).items():
            mapped = getattr(dataset, part)[name]
            assert isinstance(mapped, np.memmap) and mapped.dtype == array.dtype
            np.testing.assert_array_equal(mapped, array)
    with pytest.raises(ValueError, match="read-only"):
        dataset.train["tokens"][0, 0] = 7
    assert (dataset.train_count, dataset.test_count) == (5, 2)


def test_verify_reads_each_array_once_and_load_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(text_source(), tmp_path)
    read: list[str] = []

    def recording(array: Any, path: Path, *others: Any) -> int | None:
        read.append(path.name)
        return first_changed_block(array, path, *others)

    monkeypatch.setattr(datasets, "first_changed_block", recording)
    load(text_source(), "real", tmp_path)
    load(text_source(), "sample", tmp_path)
    assert read == []
    identity = verify(text_source(), "real", tmp_path)
    assert identity and (identity.source, identity.kind) == ("made up", "real")
    assert identity.sha256 == content_sha256(TEXT)
    assert sorted(read) == sorted(FILES)


def test_the_checksum_sees_every_array_its_name_its_type_and_its_shape() -> None:
    def text(**changed: NDArray[Any]) -> Dataset:
        return replace(TEXT, train={**TEXT.train, **changed})

    other_value = TEXT.train["tokens"].copy()
    other_value[4, 3] += 1
    others = [
        text(tokens=other_value),
        text(tokens=TEXT.train["tokens"].reshape(5, 2, 2)),
        text(tokens=TEXT.train["tokens"].astype(np.uint32)),
        text(more=np.zeros(5)),
        replace(TEXT, train=TEXT.test, test=TEXT.train),
        replace(TEXT, constants={"words": TEXT.constants["vocabulary"]}),
    ]
    assert len({content_sha256(one) for one in [TEXT, *others]}) == 1 + len(others)
    reordered = replace(TEXT, train=dict(reversed(TEXT.train.items())))
    assert content_sha256(reordered) == content_sha256(TEXT)


def test_arrays_of_different_lengths_are_no_data_set() -> None:
    with pytest.raises(DataError, match=r"differ in their number of samples: \{'tokens': 5, 'labels': 4\}"):
        count_of({"tokens": np.zeros((5, 4)), "labels": np.zeros(4)})


def array_of(files: DataFiles) -> Path:
    return files.array("train", "tokens")


def change_manifest(files: DataFiles, **changed: Any) -> None:
    files.manifest.write_text(json.dumps(json.loads(files.manifest.read_text()) | changed))


def change_array(files: DataFiles, **changed: Any) -> None:
    arrays = json.loads(files.manifest.read_text())["arrays"]
    change_manifest(files, arrays=arrays | {"train.tokens": arrays["train.tokens"] | changed})


CORRUPT = "train.tokens.npy: truncated or corrupt"
OTHER_SHAPE = "train.tokens.npy: is <i4 of the shape [4, 4], manifest.json says <i4 of [5, 4]"
MISFIT = "manifest.json: was changed: its checksums do not fit each other"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda files: cut(array_of(files), -8), CORRUPT),
        (lambda files: cut(array_of(files), 9), CORRUPT),  # within the header
        (lambda files: array_of(files).unlink(), "train.tokens.npy: the data set is not complete"),
        (lambda files: array_of(files).write_bytes(array_of(files).read_bytes() + b"0"), CORRUPT),
        (lambda files: np.save(array_of(files), np.zeros((4, 4), np.int32)), OTHER_SHAPE),
        (lambda files: np.save(array_of(files), np.array([[{}] * 4] * 5, object)), CORRUPT),
        (lambda files: files.manifest.unlink(), "manifest.json: the data set text is not here"),
        (lambda files: files.manifest.write_text("{"), "manifest.json: not a manifest"),
        (lambda files: change_manifest(files, version=2), "manifest.json: not a manifest: version: Input should be 3"),
        (lambda files: change_manifest(files, sha256=None), "manifest.json: not a manifest: sha256"),
        (lambda files: change_manifest(files, sha256="5e" * 32), MISFIT),
        (lambda files: change_array(files, blocks=["5e" * 32]), MISFIT),
        (lambda files: change_array(files, shape=[4, 5]), MISFIT),
        (lambda files: change_array(files, blocks=[]), MISFIT),
    ],
)
def test_damaged_data_is_refused_by_load_and_verify_with_the_way_out_and_mended_by_fetch(
    damage: Callable[[DataFiles], object], says: str, tmp_path: Path
) -> None:
    fetch(text_source(), tmp_path)
    damage(DataFiles(data_dir=tmp_path, benchmark="text"))
    for read in (load, verify):
        with pytest.raises(DataError) as caught:
            read(text_source(), "real", tmp_path)
        words = (str(tmp_path / "text"), says, "python main.py data --benchmark text", "--data sample")
        assert all(word in str(caught.value) for word in words)
    fetch(text_source(), tmp_path)
    verify(text_source(), "real", tmp_path)


def test_the_command_says_what_it_fetched_and_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchvision.datasets import CIFAR10

    put_mnist(tmp_path, monkeypatch)
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    config = load_config(REPOSITORY / "experiments.yaml").model_copy(update={"data_dir": str(tmp_path)})
    assert fetch_command(config, ("synthetic", "cifar10", "mnist")) == 1
    output = capsys.readouterr().out
    assert "synthetic: nothing to fetch: random inputs, made on the device from the seed\n" in output
    assert f"{tmp_path / 'originals' / 'cifar10' / 'cifar-10-python.tar.gz'} is missing" in output
    assert "mnist: 6 images to train, 3 to test, 28 x 28 x 1; MNIST (LeCun, Cortes, Burges);" in output
    assert verify(source_of("mnist"), "real", tmp_path).sha256 in output
    assert fetch_command(config, ("mnist", "synthetic")) == 0


def test_without_torchvision_fetch_says_so_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r"needs torchvision.*pip install"):
        fetch(source_of("mnist"), tmp_path)
    assert fetch(source_of("text"), tmp_path).train_count > 0


def test_where_inputs_are_drawn_there_is_nothing_to_load_and_to_verify(tmp_path: Path) -> None:
    assert load(None, "real", tmp_path / "absent") is load(None, "sample", tmp_path / "absent") is NO_DATA
    assert verify(None, "real", tmp_path / "absent") is None
    assert (NO_DATA.train_count, NO_DATA.test_count) == (0, 0)
