"""Data sets as named arrays, the same for both frameworks: fetch() brings them on a login node, jobs load() them.

Jobs never download. A real data set is a folder with one .npy file for each array and a manifest with the checksum of
all of them. It is verified once per job, by the parent; the measurements' processes map it into memory. The sample
needs neither file nor network.
"""

import hashlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.files import write_atomically
from harness.plan import DataKind
from harness.results.record import DataIdentity

NETWORK_TIMEOUT_S = 30.0
"""Compute nodes often drop packets instead of refusing them; without a limit a download waits forever."""
MANIFEST_VERSION = 2
PARTS = ("train", "test", "constants")
HASHED_AT_ONCE_BYTES = 2**26

Arrays = Mapping[str, NDArray[Any]]
"""By name. The first axis of all arrays of a part counts its samples; they may be mapped from a file."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a task works on: the arrays that the task names (harness/work/tasks.py), to train and to test on."""

    train: Arrays
    test: Arrays
    constants: Arrays
    """Of the training set, such as the mean and the standard deviation of each channel of its images."""

    @property
    def train_count(self) -> int:
        return count_of(self.train)

    @property
    def test_count(self) -> int:
        return count_of(self.test)


NO_DATA = Dataset(train={}, test={}, constants={})
"""In the place of a data set where the inputs are drawn on the device."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where the data of a benchmark comes from."""

    benchmark: str
    read: Callable[[Path], Dataset]
    """From the folder with the original files; downloads those that are missing there."""
    source: str
    sample: Callable[[], Dataset]
    """Small, deterministic, in the real shapes and types."""
    sample_source: str


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
    def folder(self) -> Path:
        return self.data_dir / self.benchmark

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.json"

    def array(self, part: str, name: str) -> Path:
        return self.folder / f"{part}.{name}.npy"

    @property
    def way_out(self) -> str:
        return (
            f"Fetch it where there is a network: python main.py data --benchmark {self.benchmark}. "
            f"Or measure on the sample: --data sample."
        )


def load(source: DataSource | None, kind: DataKind, data_dir: Path) -> Dataset:
    """The data set; a real one is mapped into memory and not read. Never downloads.

    Raises:
        DataError: the real data is missing, or its files are not those of its manifest.
    """
    if source is None:
        return NO_DATA
    if kind == "sample":
        return source.sample()
    return _map_files(DataFiles(data_dir=data_dir, benchmark=source.benchmark))[0]


def verify(source: DataSource | None, kind: DataKind, data_dir: Path) -> DataIdentity | None:
    """Read all of the data once and compare it with its checksum. None where there is no data.

    Raises:
        DataError: as `load`, or the content is not what the manifest says.
    """
    if source is None:
        return None
    if kind == "sample":
        return DataIdentity(source=source.sample_source, kind=kind, sha256=content_sha256(source.sample()))
    files = DataFiles(data_dir=data_dir, benchmark=source.benchmark)
    dataset, manifest = _map_files(files)
    found, expected = content_sha256(dataset), manifest["sha256"]
    if found != expected:
        raise DataError(
            f"{files.folder}: its content has the SHA-256 {found}, but {files.manifest.name} says "
            f"{expected}: one of them was changed. {files.way_out}"
        )
    return DataIdentity(source=manifest["source"], kind=kind, sha256=expected)


def fetch(source: DataSource, data_dir: Path) -> Dataset:
    """Bring the real data set: download what is missing, verify, write the arrays and then their manifest.

    Original files that lie in the folder already are verified and used, so no network is needed then. The
    result is read back by load(), so what it returns is what jobs will get.

    Raises:
        DataError: no network (says how to do it by hand); a corrupt original; a full disk.
    """
    files = DataFiles(data_dir=data_dir, benchmark=source.benchmark)
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # RuntimeError where it does not fit the installed torch
        raise DataError(
            f"fetching needs torchvision, and it does not import: {error}. "
            f"Install both from one source: pip install torch torchvision"
        ) from error
    dataset = source.read(files.originals)
    try:
        for part, name, array in _all_arrays(dataset):
            _write_array(array, files.array(part, name))
        _write_manifest(dataset, source.source, files)
    except OSError as error:
        raise DataError(
            f"{files.folder}: cannot be written: {error.strerror or error}. "
            f"Free space, or name another folder as data_dir in experiments.yaml."
        ) from error
    return load(source, "real", data_dir)


def count_of(arrays: Arrays) -> int:
    """Raises DataError where the arrays do not have the same number of samples."""
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"the arrays of a data set differ in their number of samples: {counts}")
    return next(iter(counts.values()), 0)


def content_sha256(dataset: Dataset) -> str:
    """Over part, name, type, shape and bytes of each array, not over the files; reads a piece at a time."""
    digest = hashlib.sha256()
    for part, name, array in _all_arrays(dataset):
        digest.update(f"{part}.{name} {array.dtype.str} {array.shape}".encode())
        rows = max(1, HASHED_AT_ONCE_BYTES // max(1, array[:1].nbytes))
        for first in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[first : first + rows]).data)
    return digest.hexdigest()


def labelled_images(
    *,
    train_images: NDArray[np.uint8],
    train_labels: NDArray[np.int32],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.int32],
) -> Dataset:
    """For image classification: images [n, height, width, channels] and labels [n], from 0."""
    return Dataset(
        train={"images": train_images, "labels": train_labels},
        test={"images": test_images, "labels": test_labels},
        constants=channel_statistics(train_images),
    )


def channel_statistics(images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    """Mean and standard deviation of images / 255 in each channel: `mean` and `std`, [channels].

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
    return {"mean": np.array(means, np.float32), "std": np.array(stds, np.float32)}


def _all_arrays(dataset: Dataset) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Part, name and array, in an order that does not depend on how they were made."""
    for part in PARTS:
        for name, array in sorted(getattr(dataset, part).items()):
            yield part, name, array


def _map_files(files: DataFiles) -> tuple[Dataset, dict[str, Any]]:
    """The arrays, mapped, and the manifest."""
    manifest = read_manifest(files)
    parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in PARTS}
    for key, shape in manifest["shapes"].items():
        part, _, name = key.partition(".")
        path = files.array(part, name)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise DataError(f"{path}: the data set is not complete. {files.way_out}") from error
        except (OSError, ValueError, EOFError, struct.error) as error:
            raise DataError(f"{path}: truncated or corrupt ({error}). {files.way_out}") from error
        if part not in parts or list(array.shape) != shape:
            raise DataError(
                f"{path}: has the shape {list(array.shape)}, {files.manifest.name} says {shape}. {files.way_out}"
            )
        parts[part][name] = array
    return Dataset(**parts), manifest


def read_manifest(files: DataFiles) -> dict[str, Any]:
    """Raises DataError where there is none, or none that this code reads."""
    try:
        manifest = json.loads(files.manifest.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{files.manifest}: the data set {files.benchmark} is not here. {files.way_out}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{files.manifest}: not a manifest ({error}). {files.way_out}") from error
    wanted = {"version": int, "source": str, "sha256": str, "shapes": dict}
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(key), kind) for key, kind in wanted.items()):
        raise DataError(f"{files.manifest}: not a manifest: it must have {', '.join(wanted)}. {files.way_out}")
    if manifest["version"] != MANIFEST_VERSION:
        raise DataError(
            f"{files.manifest}: version {manifest['version']}; this code reads {MANIFEST_VERSION}. {files.way_out}"
        )
    return manifest


def _write_array(array: NDArray[Any], path: Path) -> None:
    """Written beside its place, synced and renamed, as harness/files.py does it with what fits into memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_manifest(dataset: Dataset, source: str, files: DataFiles) -> None:
    manifest = {
        "version": MANIFEST_VERSION,
        "benchmark": files.benchmark,
        "source": source,
        "sha256": content_sha256(dataset),
        "shapes": {f"{part}.{name}": list(array.shape) for part, name, array in _all_arrays(dataset)},
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


def ensure_originals(originals: Sequence[Original], folder: Path) -> dict[str, Path]:
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
