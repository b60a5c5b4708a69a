"""Data sets as arrays, the same for both frameworks: fetch() brings them on a login node, jobs load() them.

Jobs never download. A real data set is one file of arrays and a manifest with their checksum; the sample
needs neither file nor network. A new benchmark is one entry in DATASETS, or in GENERATED where it has no data set.
"""

import gzip
import hashlib
import json
import os
import pickle
import secrets
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.files import write_atomically
from harness.settings import DataKind
from harness.suggest import valid_names

DIGITS = Path(__file__).parent / "sample" / "digits.npz"
NETWORK_TIMEOUT_S = 30.0
"""Compute nodes often drop packets instead of refusing them; without a limit a download waits forever."""
MANIFEST_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images and labels, as every loader gives them."""

    train_images: NDArray[np.uint8]
    """[n, height, width, channels]"""
    train_labels: NDArray[np.int32]
    """[n], from 0"""
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Dataset(Arrays):
    benchmark: str
    kind: DataKind
    mean: NDArray[np.float32]
    """[channels], of train_images / 255."""
    std: NDArray[np.float32]
    """[channels], of train_images / 255; the population's, as is usual for normalisation."""
    class_count: int
    source: str
    """Where the images come from, for the record."""
    sha256: str
    """Of the arrays' content (see content_sha256): the same on every machine that has the same data."""


@dataclass(frozen=True, kw_only=True)
class NoDataset:
    """What stands in the place of a data set where the runners make the inputs on the device, from the seed.

    Asked for what only a data set has, it raises DataError.
    """

    benchmark: str
    kind: DataKind
    source: str
    """What the inputs are, for the record."""

    def __getattr__(self, name: str) -> Any:
        if name in Dataset.__dataclass_fields__:
            raise DataError(
                f"the benchmark {self.benchmark} has no data set ({self.source}), and this use case needs one. "
                f"Exclude {{benchmark: {self.benchmark}, use_case: N}} under matrix.exclude in experiments.yaml."
            )
        raise AttributeError(name)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """All that a benchmark needs to have data."""

    read: Callable[[Path], Arrays]
    """From the folder with the original files; downloads those that are missing there."""
    source: str
    sample: Callable[[], Arrays]
    """Small, deterministic, in the real shapes and types."""
    sample_source: str
    class_count: int


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The file names of one real data set."""

    data_dir: Path
    benchmark: str

    @property
    def originals(self) -> Path:
        """Folder with the files as their authors publish them."""
        return self.data_dir / "originals" / self.benchmark

    @property
    def arrays(self) -> Path:
        return self.data_dir / self.benchmark / "arrays.npz"

    @property
    def manifest(self) -> Path:
        return self.data_dir / self.benchmark / "manifest.json"

    @property
    def way_out(self) -> str:
        return (
            f"Fetch it where there is a network: python main.py data --benchmark {self.benchmark}. "
            f"Or measure on the sample: --data sample."
        )


def load(benchmark: str, kind: DataKind, data_dir: Path) -> Dataset | NoDataset:
    """The data set, verified, or what stands for it where a benchmark has none. Never downloads.

    Raises:
        DataError: unknown benchmark; or the real data is missing, truncated or not what its manifest says.
    """
    if benchmark in GENERATED:
        return NoDataset(benchmark=benchmark, kind=kind, source=GENERATED[benchmark])
    return _load(benchmark, kind, data_dir)


def _load(benchmark: str, kind: DataKind, data_dir: Path) -> Dataset:
    loader = _loader(benchmark)
    if kind == "sample":
        arrays, source = loader.sample(), loader.sample_source
        sha256 = content_sha256(arrays)
    else:
        arrays, source, sha256 = _read_fetched(DataFiles(data_dir=data_dir, benchmark=benchmark))
    mean, std = channel_statistics(arrays.train_images)
    return Dataset(
        train_images=arrays.train_images,
        train_labels=arrays.train_labels,
        test_images=arrays.test_images,
        test_labels=arrays.test_labels,
        benchmark=benchmark,
        kind=kind,
        mean=mean,
        std=std,
        class_count=loader.class_count,
        source=source,
        sha256=sha256,
    )


def fetch(benchmark: str, data_dir: Path) -> Dataset:
    """Bring the real data set: download what is missing, verify, write the arrays and then their manifest.

    Original files that lie in the folder already are verified and used, so no network is needed then. The
    result is read back by load(), so what it returns is what jobs will get.

    Raises:
        DataError: unknown benchmark; no network (says how to do it by hand); a corrupt original; a full disk.
    """
    loader = _loader(benchmark)
    files = DataFiles(data_dir=data_dir, benchmark=benchmark)
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # RuntimeError where it does not fit the installed torch
        raise DataError(
            f"fetching needs torchvision, and it does not import: {error}. "
            f"Install both from one source: pip install torch torchvision"
        ) from error
    arrays = loader.read(files.originals)
    try:
        _write_arrays(arrays, files.arrays)
        _write_manifest(arrays, loader.source, files)
    except OSError as error:
        raise DataError(
            f"{files.arrays.parent}: cannot be written: {error.strerror or error}. "
            f"Free space, or name another folder as data_dir in experiments.yaml."
        ) from error
    return _load(benchmark, "real", data_dir)


def content_sha256(arrays: Arrays) -> str:
    """Over name, type, shape and bytes of each array; not of the file, which also holds a time."""
    digest = hashlib.sha256()
    for name in Arrays.__annotations__:
        array = np.ascontiguousarray(getattr(arrays, name))
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def channel_statistics(images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of images / 255 in each channel.

    From the counts of the 256 values, in whole numbers: exact, and so the same on every machine.
    """
    means, stds = [], []
    values = range(256)
    for channel in range(images.shape[-1]):
        counts = np.bincount(images[..., channel].ravel(), minlength=256).tolist()
        total = sum(counts)
        first = sum(count * value for count, value in zip(counts, values, strict=True))
        second = sum(count * value**2 for count, value in zip(counts, values, strict=True))
        means.append(first / total / 255)
        stds.append((second * total - first**2) ** 0.5 / total / 255)
    return np.array(means, np.float32), np.array(stds, np.float32)


def _loader(benchmark: str) -> Loader:
    if benchmark in DATASETS:
        return DATASETS[benchmark]
    if benchmark in GENERATED:
        raise DataError(f"the benchmark {benchmark} has no data set: {GENERATED[benchmark]}.")
    valid = valid_names(benchmark, [*DATASETS, *GENERATED])
    raise DataError(f"no data set for the benchmark {benchmark!r}; {valid}.")


def _read_fetched(files: DataFiles) -> tuple[Arrays, str, str]:
    """Arrays, source, checksum."""
    manifest = _read_manifest(files)
    try:
        # Opened here, as numpy leaves the file open where its content is corrupt.
        with files.arrays.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = Arrays(**{name: stored[name] for name in Arrays.__annotations__})
    except FileNotFoundError as error:
        raise DataError(f"{files.arrays}: the data set is not complete. {files.way_out}") from error
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise DataError(f"{files.arrays}: truncated or corrupt ({error}). {files.way_out}") from error
    found, expected = content_sha256(arrays), manifest["sha256"]
    if found != expected:
        raise DataError(
            f"{files.arrays}: its content has the SHA-256 {found}, but {files.manifest.name} says "
            f"{expected}: one of them was changed. {files.way_out}"
        )
    return arrays, manifest["source"], expected


def _read_manifest(files: DataFiles) -> dict[str, Any]:
    try:
        manifest = json.loads(files.manifest.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{files.manifest}: the data set {files.benchmark} is not here. {files.way_out}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{files.manifest}: not a manifest ({error}). {files.way_out}") from error
    wanted = {"version": int, "source": str, "sha256": str}
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(key), kind) for key, kind in wanted.items()):
        raise DataError(f"{files.manifest}: not a manifest: it must have {', '.join(wanted)}. {files.way_out}")
    if manifest["version"] != MANIFEST_VERSION:
        raise DataError(
            f"{files.manifest}: version {manifest['version']}; this code reads {MANIFEST_VERSION}. {files.way_out}"
        )
    return manifest


def _write_arrays(arrays: Arrays, path: Path) -> None:
    """Written beside its place, synced and renamed, as harness/files.py does it for text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            np.savez(file, **{name: getattr(arrays, name) for name in Arrays.__annotations__})
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_manifest(arrays: Arrays, source: str, files: DataFiles) -> None:
    shapes = {name: list(getattr(arrays, name).shape) for name in Arrays.__annotations__}
    manifest = {
        "version": MANIFEST_VERSION,
        "benchmark": files.benchmark,
        "source": source,
        "sha256": content_sha256(arrays),
        "shapes": shapes,
    }
    write_atomically(files.manifest, json.dumps(manifest, indent=1) + "\n", replace=True)


# The originals, with torchvision's downloader, mirrors and checksums.


@dataclass(frozen=True, kw_only=True)
class Original:
    """A file as its authors publish it."""

    name: str
    md5: str
    urls: tuple[str, ...]
    """Tried in this order."""


def _ensure_originals(originals: Sequence[Original], folder: Path) -> dict[str, Path]:
    """The verified files by name; downloaded where they are not there or are others."""
    problems = {original: problem for original in originals if (problem := _download_problem(original, folder))}
    if problems:
        todo = "\n".join(f"  {original.name}  (MD5 {original.md5})" for original in problems)
        raise DataError(
            "\n".join(problems.values()) + f"\nWithout a network: download on another machine\n{todo}\n"
            f"copy to {folder}/ and run the same command again. Or measure on the sample: --data sample."
        )
    return {original.name: folder / original.name for original in originals}


def _download_problem(original: Original, folder: Path) -> str | None:
    """None once the verified file lies in the folder."""
    from torchvision.datasets.utils import check_integrity, download_url

    path = folder / original.name
    if check_integrity(path, original.md5):
        return None
    state = "has a wrong checksum" if path.exists() else "is missing"
    reasons = []
    for url in original.urls:
        try:
            with _network_timeout(NETWORK_TIMEOUT_S):
                download_url(url, root=folder, filename=original.name, md5=original.md5)
        except (OSError, RuntimeError) as error:  # RuntimeError is torchvision's word for a wrong checksum
            reasons.append(f"  {url}: {error}")
        else:
            return None
    return "\n".join([f"{path} {state}, and it cannot be downloaded:", *reasons])


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """For every socket opened within; torchvision has no setting for it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _read_mnist(folder: Path) -> Arrays:
    """Four gzipped IDX files."""
    from torchvision.datasets import MNIST

    originals = [
        Original(name=name, md5=md5, urls=tuple(mirror + name for mirror in MNIST.mirrors))
        for name, md5 in MNIST.resources
    ]
    arrays = {name: _read_idx(path) for name, path in _ensure_originals(originals, folder).items()}
    return Arrays(
        train_images=arrays["train-images-idx3-ubyte.gz"][..., np.newaxis],
        train_labels=arrays["train-labels-idx1-ubyte.gz"].astype(np.int32),
        test_images=arrays["t10k-images-idx3-ubyte.gz"][..., np.newaxis],
        test_labels=arrays["t10k-labels-idx1-ubyte.gz"].astype(np.int32),
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """IDX: two zero bytes, the type (8: uint8), the number of axes; their lengths, big-endian; values."""
    try:
        with gzip.open(path) as file:
            content = file.read()
        zeros, kind, axes = struct.unpack_from(">HBB", content)
        if zeros != 0 or kind != 8:
            raise ValueError(f"starts with {content[:4].hex()}, not with 0000 08 and the number of axes")
        shape = struct.unpack_from(f">{axes}I", content, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: not an IDX file ({error}). Remove it and fetch again.") from error


def _read_cifar10(folder: Path) -> Arrays:
    """A tar archive with five pickled batches to train on and one to test on."""
    from torchvision.datasets import CIFAR10

    original = Original(name=CIFAR10.filename, md5=CIFAR10.tgz_md5, urls=(CIFAR10.url,))
    path = _ensure_originals([original], folder)[original.name]
    try:
        with tarfile.open(path) as archive:
            train = [_read_batch(archive, f"{CIFAR10.base_folder}/{name}") for name, _ in CIFAR10.train_list]
            test = [_read_batch(archive, f"{CIFAR10.base_folder}/{name}") for name, _ in CIFAR10.test_list]
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        tarfile.TarError,
        pickle.UnpicklingError,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not the archive of CIFAR-10 ({error}). Remove it and fetch again.") from error
    return Arrays(
        train_images=np.concatenate([images for images, _ in train]),
        train_labels=np.concatenate([labels for _, labels in train]),
        test_images=np.concatenate([images for images, _ in test]),
        test_labels=np.concatenate([labels for _, labels in test]),
    )


def _read_batch(archive: tarfile.TarFile, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images [n, 32, 32, 3] and labels. A row of `data` holds the red plane, then the green and the blue."""
    member = archive.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    batch = pickle.load(member, encoding="latin1")  # of an archive whose checksum was verified
    images = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images, np.uint8), np.array(batch["labels"], np.int32)


# The samples.

DIGITS_TRAIN_COUNT = 1536
"""The rest tests. Not shuffled: neighbours are often by one writer, who is then mostly on one side only."""


def _sample_mnist() -> Arrays:
    """Scanned 8 x 8 digits in MNIST's shape: pixels become 3 x 3, the border is 2; 0..16 becomes 0..255."""
    with np.load(DIGITS, allow_pickle=False) as digits:
        images, labels = digits["images"], digits["labels"].astype(np.int32)
    enlarged = (images.astype(np.uint16) * 255 // 16).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
    images = np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))[..., np.newaxis]
    return _split(images, labels, DIGITS_TRAIN_COUNT)


CIFAR10_SAMPLE_SEED = 20261121
CIFAR10_SAMPLE_TRAIN_COUNT = 2048
CIFAR10_SAMPLE_TEST_COUNT = 512


def _sample_cifar10() -> Arrays:
    """Images that show their class, made in whole numbers only: bit for bit the same on every machine.

    Each class has a pattern of 8 x 8 random colours, each 4 x 4 pixels large. An image is the pattern of its
    class over the pattern of another one (8 to 12 sixteenths against the rest), both moved by up to 6 pixels
    in each direction around the edges, with its own brightness and noise in every pixel. A small CNN learns
    it in a few epochs; a linear classifier, which does not see through the moves, stays well below.
    """
    # RandomState, because numpy promises its stream for ever; that of default_rng may change.
    draw = np.random.RandomState(CIFAR10_SAMPLE_SEED)
    count = CIFAR10_SAMPLE_TRAIN_COUNT + CIFAR10_SAMPLE_TEST_COUNT
    patterns = draw.randint(0, 256, (10, 8, 8, 3)).astype(np.int16).repeat(4, axis=1).repeat(4, axis=2)
    labels = draw.randint(0, 10, count)
    others = (labels + draw.randint(1, 10, count)) % 10
    weights = draw.randint(8, 13, count).astype(np.int16)[:, np.newaxis, np.newaxis, np.newaxis]
    images = _moved(patterns, labels, draw) * weights + _moved(patterns, others, draw) * (16 - weights)
    images //= 16
    images += draw.randint(-30, 31, count).astype(np.int16)[:, np.newaxis, np.newaxis, np.newaxis]
    images += draw.randint(-60, 61, images.shape, dtype=np.int8)
    return _split(np.clip(images, 0, 255).astype(np.uint8), labels.astype(np.int32), CIFAR10_SAMPLE_TRAIN_COUNT)


def _moved(patterns: NDArray[np.int16], classes: NDArray[np.int64], draw: np.random.RandomState) -> NDArray[np.int16]:
    """The pattern of each class, [n, 32, 32, 3], moved around the edges by up to 6 pixels."""
    down, right = draw.randint(-6, 7, (2, len(classes), 1))
    pixels = np.arange(32)
    rows, columns = (pixels + down) % 32, (pixels + right) % 32
    moved: NDArray[np.int16] = patterns[
        classes[:, np.newaxis, np.newaxis], rows[:, :, np.newaxis], columns[:, np.newaxis, :]
    ]
    return moved


def _split(images: NDArray[np.uint8], labels: NDArray[np.int32], train_count: int) -> Arrays:
    return Arrays(
        train_images=images[:train_count],
        train_labels=labels[:train_count],
        test_images=images[train_count:],
        test_labels=labels[train_count:],
    )


DATASETS = {
    "mnist": Loader(
        read=_read_mnist,
        source="MNIST (LeCun, Cortes, Burges)",
        sample=_sample_mnist,
        sample_source="8 x 8 scanned digits (Alpaydin and Kaynak, 1998), enlarged",
        class_count=10,
    ),
    "cifar10": Loader(
        read=_read_cifar10,
        source="CIFAR-10 (Krizhevsky, 2009)",
        sample=_sample_cifar10,
        sample_source="generated class-dependent images",
        class_count=10,
    ),
}

GENERATED = {"synthetic": "random inputs, made on the device from the seed"}
"""Benchmarks without a data set: nothing to fetch, and real and sample are the same."""
