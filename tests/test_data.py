"""The samples bit for bit, the original formats from files made here, and every way a file can be wrong."""

import gzip
import hashlib
import io
import pickle
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import data
from harness.config import load_config
from harness.data import Arrays, DataFiles, NoDataset, channel_statistics, content_sha256, fetch, load
from harness.errors import DataError
from harness.paths import REPOSITORY
from harness.settings import DataKind
from pipeline.fetch import fetch_command

# Of the arrays as first published: a sample that changes makes old and new records incomparable.
SAMPLES = {
    "mnist": ("789b6fca01979ca2beafe907627d5fc53c5410496a6070dc114cb2adb6eaae24", (28, 28, 1), 1536, 261),
    "cifar10": ("818ba002f0ee09373c0c11ce2a36cb9a16c5da87d0807053b63d850fbd3f4c2e", (32, 32, 3), 2048, 512),
}


@pytest.mark.parametrize("benchmark", SAMPLES)
def test_a_sample_has_the_real_shapes_and_types_and_never_changes(benchmark: str, tmp_path: Path) -> None:
    sha256, shape, train_count, test_count = SAMPLES[benchmark]
    dataset = load(benchmark, "sample", tmp_path)
    assert dataset.train_images.shape == (train_count, *shape)
    assert dataset.test_images.shape == (test_count, *shape)
    assert dataset.train_images.dtype == dataset.test_images.dtype == np.uint8
    assert dataset.train_labels.shape == (train_count,)
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32
    assert sorted(set(dataset.train_labels.tolist())) == sorted(set(dataset.test_labels.tolist())) == list(range(10))
    assert dataset.mean.shape == dataset.std.shape == (shape[-1],)
    assert dataset.mean.dtype == dataset.std.dtype == np.float32
    assert dataset.class_count == 10
    assert (dataset.benchmark, dataset.kind) == (benchmark, "sample")
    assert dataset.sha256 == sha256
    assert list(tmp_path.iterdir()) == []


def test_the_digits_are_enlarged_by_three_inside_a_border_of_two() -> None:
    with np.load(data.DIGITS) as digits:
        original, label = digits["images"][0], digits["labels"][0]
    dataset = load("mnist", "sample", Path("unused"))
    image = dataset.train_images[0, :, :, 0]
    assert dataset.train_labels[0] == label
    # Row 3, column 2 of the original covers rows 2 + 9 .. 2 + 11 and columns 2 + 6 .. 2 + 8.
    assert (image[11:14, 8:11] == int(original[3, 2]) * 255 // 16).all()
    assert not image[:2].any()
    assert not image[:, -2:].any()
    assert image.max() == int(original.max()) * 255 // 16


@pytest.mark.parametrize("benchmark", SAMPLES)
def test_a_class_can_be_told_from_the_pixels_but_not_trivially(benchmark: str) -> None:
    """Least squares on normalised pixels, a classifier with nothing to tune: above chance, below perfect."""
    dataset = load(benchmark, "sample", Path("unused"))

    def features(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        # Every second pixel will do, and keeps the least squares small.
        return ((images[:, ::2, ::2] / 255.0 - dataset.mean) / dataset.std).reshape(len(images), -1)

    train, targets = features(dataset.train_images), np.eye(10)[dataset.train_labels]
    weights = np.linalg.solve(train.T @ train + 100 * np.eye(train.shape[1]), train.T @ targets)
    accuracy = (features(dataset.test_images) @ weights).argmax(1) == dataset.test_labels
    assert 0.3 < accuracy.mean() < 0.97


def test_channel_statistics_by_hand() -> None:
    # Channel 0: 0, 0, 255, 255: mean 1/2, standard deviation 1/2. Channel 1: 51 = 255/5 everywhere: mean 0.2,
    # 0.
    images = np.array([[[[0, 51], [0, 51]], [[255, 51], [255, 51]]]], np.uint8)
    mean, std = channel_statistics(images)
    assert mean.tolist() == pytest.approx([0.5, 0.2])
    assert std.tolist() == pytest.approx([0.5, 0.0])


def test_channel_statistics_are_numpys() -> None:
    images = np.random.RandomState(1).randint(0, 256, (20, 7, 5, 3)).astype(np.uint8)
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, (images / 255).std((0, 1, 2)), rtol=1e-6)


def test_the_checksum_sees_one_pixel_one_label_and_the_shape() -> None:
    def arrays(pixel: int = 0, label: int = 0, shape: tuple[int, ...] = (1, 2, 2, 1)) -> Arrays:
        images = np.full(shape, pixel, np.uint8)
        labels = np.array([label], np.int32)
        return Arrays(train_images=images, train_labels=labels, test_images=images, test_labels=labels)

    checksums = [content_sha256(a) for a in (arrays(), arrays(pixel=1), arrays(label=1), arrays(shape=(1, 1, 4, 1)))]
    assert len(set(checksums)) == 4
    assert content_sha256(arrays()) == checksums[0]


# Files in the formats of the originals. Small, and with their own checksums in torchvision's place.


def write_idx(path: Path, values: NDArray[np.uint8]) -> str:
    """Writes it and returns its MD5."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes()))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def mnist_originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    from torchvision.datasets import MNIST

    draw = np.random.RandomState(5)
    values = {
        "train-images-idx3-ubyte.gz": draw.randint(0, 256, (6, 28, 28)).astype(np.uint8),
        "train-labels-idx1-ubyte.gz": draw.randint(0, 10, 6).astype(np.uint8),
        "t10k-images-idx3-ubyte.gz": draw.randint(0, 256, (3, 28, 28)).astype(np.uint8),
        "t10k-labels-idx1-ubyte.gz": draw.randint(0, 10, 3).astype(np.uint8),
    }
    assert [name for name, _ in MNIST.resources] == list(values), "torchvision names the files differently"
    folder = DataFiles(data_dir=tmp_path, benchmark="mnist").originals
    monkeypatch.setattr(MNIST, "resources", [(name, write_idx(folder / name, v)) for name, v in values.items()])
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/first/", "http://127.0.0.1:9/second/"])
    return values


class PythonTwoPickler(pickle.Pickler):
    """Writes a dtype as numpy under Python 2 did, as in the real archive: 0 and 1 for `align` and `copy`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.dtype):
            return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)
        return NotImplemented


def write_cifar10(path: Path, batches: dict[str, dict[str, Any]]) -> str:
    """Writes the archive and returns its MD5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in batches.items():
            content = io.BytesIO()
            PythonTwoPickler(content, protocol=2).dump(batch)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_fetch_reads_mnists_own_files_without_a_network(
    tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]
) -> None:
    fetched = fetch("mnist", tmp_path)
    loaded = load("mnist", "real", tmp_path)
    assert loaded.sha256 == fetched.sha256
    assert loaded.kind == "real"
    np.testing.assert_array_equal(loaded.train_images, mnist_originals["train-images-idx3-ubyte.gz"][..., np.newaxis])
    assert loaded.train_labels.tolist() == mnist_originals["train-labels-idx1-ubyte.gz"].tolist()
    assert loaded.test_images.shape == (3, 28, 28, 1)
    assert loaded.test_labels.tolist() == mnist_originals["t10k-labels-idx1-ubyte.gz"].tolist()
    assert loaded.train_labels.dtype == np.int32
    leftovers = [path.name for path in (tmp_path / "mnist").iterdir()]
    assert sorted(leftovers) == ["arrays.npz", "manifest.json"]


def test_fetch_twice_gives_the_same_checksum(tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]) -> None:
    assert fetch("mnist", tmp_path).sha256 == fetch("mnist", tmp_path).sha256


def test_fetch_reads_cifar10s_planes_as_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    # Image i of batch b: a red plane of 10 b + i, a green one of 100, a blue one that counts its pixels.
    def batch(number: int) -> dict[str, Any]:
        rows = [
            np.concatenate([np.full(1024, 10 * number + i), np.full(1024, 100), np.arange(1024) % 256])
            for i in range(2)
        ]
        return {"data": np.array(rows, np.uint8), "labels": [number, number + 1]}

    names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
    archive = DataFiles(data_dir=tmp_path, benchmark="cifar10").originals / "cifar-10-python.tar.gz"
    md5 = write_cifar10(archive, {name: batch(i) for i, name in enumerate(names)})
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5)
    fetch("cifar10", tmp_path)
    dataset = load("cifar10", "real", tmp_path)
    assert dataset.train_images.shape == (10, 32, 32, 3)
    assert dataset.train_labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert dataset.test_labels.tolist() == [5, 6]
    assert dataset.train_images[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]
    assert (dataset.train_images[..., 1] == 100).all()
    # Row 3, column 5 is pixel 3 * 32 + 5 = 101 of the plane.
    assert dataset.test_images[0, 3, 5].tolist() == [50, 100, 101]


def test_without_a_network_fetch_says_which_file_to_copy_where(
    tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]
) -> None:
    folder = DataFiles(data_dir=tmp_path, benchmark="mnist").originals
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path)
    message = str(caught.value)
    assert f"{folder / 't10k-images-idx3-ubyte.gz'} is missing" in message
    assert "http://127.0.0.1:9/first/t10k-images-idx3-ubyte.gz: " in message
    assert "http://127.0.0.1:9/second/t10k-images-idx3-ubyte.gz: " in message
    assert f"copy to {folder}/" in message
    assert message.count("MD5") == 1, "only the missing file is asked for"
    assert "--data sample" in message


def test_a_corrupt_original_is_named(tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]) -> None:
    path = DataFiles(data_dir=tmp_path, benchmark="mnist").originals / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz has a wrong checksum"):
        fetch("mnist", tmp_path)


def test_a_file_with_the_right_checksum_and_the_wrong_content_is_named(
    tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import MNIST

    path = DataFiles(data_dir=tmp_path, benchmark="mnist").originals / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"<html>please log in</html>"))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(MNIST, "resources", [(path.name, md5), *MNIST.resources[1:]])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not an IDX file \(starts with 3c68746d"):
        fetch("mnist", tmp_path)


def test_missing_data_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar10", "real", tmp_path)
    assert str(tmp_path / "cifar10" / "manifest.json") in str(caught.value)
    assert "python main.py data --benchmark cifar10" in str(caught.value)
    assert "--data sample" in str(caught.value)


def test_an_unknown_benchmark_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'cifar'; valid: mnist, cifar10, synthetic; did you mean cifar10"):
        load("cifar", "sample", tmp_path)


def damage_truncate(files: DataFiles) -> None:
    content = files.arrays.read_bytes()
    files.arrays.write_bytes(content[: len(content) // 2])


def damage_empty(files: DataFiles) -> None:
    files.arrays.write_bytes(b"")


def damage_flip_a_bit(files: DataFiles) -> None:
    content = bytearray(files.arrays.read_bytes())
    content[len(content) // 3] ^= 1
    files.arrays.write_bytes(bytes(content))


def damage_leave_an_array_out(files: DataFiles) -> None:
    np.savez(files.arrays, train_images=np.zeros((1, 28, 28, 1), np.uint8))


def damage_put_other_arrays(files: DataFiles) -> None:
    with np.load(files.arrays) as stored:
        arrays = dict(stored)
    arrays["train_labels"] = arrays["train_labels"][::-1]
    np.savez(files.arrays, **arrays)


def damage_put_pickled_objects(files: DataFiles) -> None:
    np.savez(files.arrays, **{name: np.array([{}], object) for name in Arrays.__annotations__})


def damage_remove_arrays(files: DataFiles) -> None:
    files.arrays.unlink()


def damage_manifest_is_not_json(files: DataFiles) -> None:
    files.manifest.write_text("{")


def damage_manifest_is_a_list(files: DataFiles) -> None:
    files.manifest.write_text("[]")


def damage_manifest_of_a_later_version(files: DataFiles) -> None:
    files.manifest.write_text(files.manifest.read_text().replace('"version": 1', '"version": 2'))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_truncate, "arrays.npz: truncated or corrupt"),
        (damage_empty, "arrays.npz: truncated or corrupt"),
        (damage_flip_a_bit, "arrays.npz: truncated or corrupt"),
        (damage_leave_an_array_out, "arrays.npz: truncated or corrupt"),
        (damage_put_other_arrays, "arrays.npz: its content has the SHA-256"),
        (damage_put_pickled_objects, "arrays.npz: truncated or corrupt"),
        (damage_remove_arrays, "arrays.npz: the data set is not complete"),
        (damage_manifest_is_not_json, "manifest.json: not a manifest"),
        (damage_manifest_is_a_list, "manifest.json: not a manifest"),
        (damage_manifest_of_a_later_version, "manifest.json: version 2; this code reads 1"),
    ],
)
def test_damaged_data_is_refused_and_the_way_out_named(
    damage: Any, says: str, tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]
) -> None:
    fetch("mnist", tmp_path)
    damage(DataFiles(data_dir=tmp_path, benchmark="mnist"))
    with pytest.raises(DataError) as caught:
        load("mnist", "real", tmp_path)
    assert says in str(caught.value)
    assert "python main.py data --benchmark mnist" in str(caught.value)


def test_fetch_mends_damaged_data(tmp_path: Path, mnist_originals: dict[str, NDArray[np.uint8]]) -> None:
    sha256 = fetch("mnist", tmp_path).sha256
    damage_truncate(DataFiles(data_dir=tmp_path, benchmark="mnist"))
    assert fetch("mnist", tmp_path).sha256 == sha256
    assert load("mnist", "real", tmp_path).sha256 == sha256


def test_importing_and_loading_pulls_no_framework() -> None:
    program = (
        "import sys; from pathlib import Path; from harness import data\n"
        "data.load('mnist', 'sample', Path('unused'))\n"
        "assert not {'torch', 'jax', 'torchvision', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def test_the_command_says_what_it_fetched_and_goes_on_after_a_failure(
    tmp_path: Path,
    mnist_originals: dict[str, NDArray[np.uint8]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    config = load_config(REPOSITORY / "experiments.yaml").model_copy(update={"data_dir": str(tmp_path)})
    assert fetch_command(config, ("cifar10", "mnist")) == 1
    output = capsys.readouterr().out
    assert f"{tmp_path / 'originals' / 'cifar10' / 'cifar-10-python.tar.gz'} is missing" in output
    assert "mnist: 6 images to train, 3 to test, 28 x 28 x 1;" in output
    assert load("mnist", "real", tmp_path).sha256 in output
    assert fetch_command(config, ("mnist",)) == 0


def test_without_torchvision_fetch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r"needs torchvision.*pip install"):
        fetch("mnist", tmp_path)


# Without a data set


@pytest.mark.parametrize("kind", ["real", "sample"])
def test_a_benchmark_without_a_data_set_loads_without_files(kind: DataKind, tmp_path: Path) -> None:
    dataset = load("synthetic", kind, tmp_path / "absent")
    assert isinstance(dataset, NoDataset)
    assert (dataset.benchmark, dataset.kind) == ("synthetic", kind)
    for name in ("train_images", "test_labels", "mean", "class_count"):
        with pytest.raises(DataError, match=r"synthetic has no data set .* matrix\.exclude in experiments\.yaml"):
            getattr(dataset, name)
    with pytest.raises(AttributeError):
        dataset.train_imgaes  # noqa: B018


def test_there_is_nothing_to_fetch_without_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(REPOSITORY / "experiments.yaml").model_copy(update={"data_dir": str(tmp_path)})
    assert fetch_command(config, ("synthetic",)) == 0
    assert capsys.readouterr().out == ("synthetic: nothing to fetch: random inputs, made on the device from the seed\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="the benchmark synthetic has no data set"):
        fetch("synthetic", tmp_path)
