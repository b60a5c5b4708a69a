"""Data sets as named arrays, the same for both frameworks: fetch() brings them on a login node, jobs load() them.

Jobs never download. A real data set is a folder with one .npy file for each array and a manifest with the checksums of
their blocks. It is verified once per job, by the parent; the measurements' processes map it into memory. It may be
larger than memory: neither fetch() nor verify() holds more of it than a piece. The sample needs neither file nor
network.
"""

import hashlib
import json
import math
import random
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.files import in_words, read_json, write_atomically
from harness.plan import DataKind, Frozen
from harness.printable import shortened
from harness.results.record import DataIdentity
from harness.work.array_files import (
    BLOCK_BYTES,
    Advance,
    Pieces,
    block_digests,
    first_changed_block,
    open_array,
    write_pieces,
)

NETWORK_TIMEOUT_S = 30.0
"""Compute nodes often drop packets instead of refusing them; without a limit a download waits forever."""
PARTS = ("train", "test", "constants", "shared")
VERIFIED_WHOLE_BYTES = 2**31
"""Of a larger array, a job verifies some blocks only; `main.py data --verify` verifies all."""
VERIFIED_BLOCKS = 8
LEFT_BEHIND_AFTER_S = 600.0
"""A temporary file that nobody has written to for so long is that of a process that was killed."""

Arrays = Mapping[str, NDArray[Any]]
"""By name. The first axis of all arrays of `train` counts its samples, and so does that of `test`; they may be mapped
from a file."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a task works on: the arrays that the task names (harness/work/tasks.py), to train and to test on."""

    train: Arrays
    test: Arrays
    constants: Arrays = field(default_factory=dict)
    """Of the training set, such as the mean and the standard deviation of each channel of its images."""
    shared: Arrays = field(default_factory=dict)
    """What the samples are made of where they differ in size, such as the nodes and edges of all graphs. Their axes
    count no samples; the arrays of `train` and `test` say what of them is whose. They lie on the device as a whole."""

    @property
    def train_count(self) -> int:
        return count_of(self.train)

    @property
    def test_count(self) -> int:
        return count_of(self.test)


NO_DATA = Dataset(train={}, test={})
"""In the place of a data set where the inputs are drawn on the device."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """A data set that is larger than memory, on its way to the disk: as `Dataset`, with arrays in pieces among the
    others."""

    train: Mapping[str, NDArray[Any] | Pieces]
    test: Mapping[str, NDArray[Any] | Pieces]
    constants: Arrays
    shared: Arrays = field(default_factory=dict)
    classes_sha256: str
    """Of the names of its classes, in the order of the labels."""
    made_of: str
    """A digest that is another one where the originals, or what is kept of them, are others. Known before they are
    read."""
    conclude: Callable[[], str]
    """Called when all arrays are written, and before they count: what the data set is, as `DataSource.source`. Raises
    DataError where an original turned out to be damaged."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where the data of a benchmark comes from."""

    benchmark: str
    read: Callable[[Path], Dataset | Incoming]
    """From the folder with the original files; downloads those that are missing there."""
    source: str
    sample: Callable[[], Dataset]
    """Small, deterministic, in the real shapes and types."""
    sample_source: str
    needs_torchvision: bool = True
    """To read or download."""
    by_hand: bool = False
    """Nobody but the user may bring the originals."""


class ArrayFile(Frozen):
    """What the manifest says of one array."""

    shape: tuple[int, ...]
    dtype: str
    """As `numpy.dtype.str` has it, such as `<i4`."""
    blocks: tuple[str, ...]
    """The SHA-256 of each block of BLOCK_BYTES."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Manifest(Frozen):
    """What lies in a data set's folder. Written when all of it is there."""

    version: Literal[3] = 3
    benchmark: str
    source: str
    sha256: str
    """Of `arrays`, so of their content."""
    classes_sha256: str | None
    made_of: str | None
    arrays: dict[str, ArrayFile]
    """By `part.name`."""


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


def _nobody(_bytes: int) -> None:
    return


def verify(
    source: DataSource | None, kind: DataKind, data_dir: Path, *, everything: bool = False, advance: Advance = _nobody
) -> DataIdentity | None:
    """Read the data once and compare it with its checksums. None where there is no data.

    Args:
        everything: else, of an array larger than VERIFIED_WHOLE_BYTES, only some blocks, drawn anew each time.

    Raises:
        DataError: as `load`, or the content is not what the manifest says.
    """
    if source is None:
        return None
    if kind == "sample":
        return DataIdentity(source=source.sample_source, kind=kind, sha256=content_sha256(source.sample()))
    files = DataFiles(data_dir=data_dir, benchmark=source.benchmark)
    dataset, manifest = _map_files(files)
    for part, name, array in _all_arrays(dataset):
        digests, path = manifest.arrays[f"{part}.{name}"].blocks, files.array(part, name)
        numbers: Sequence[int] = range(len(digests))
        if array.nbytes > VERIFIED_WHOLE_BYTES and not everything:
            numbers = random.sample(numbers, min(VERIFIED_BLOCKS, len(digests)))
        try:
            changed = first_changed_block(array, path, digests, numbers, advance)
        except (OSError, EOFError) as error:
            raise DataError(f"{path}: cannot be read ({error}). {files.way_out}") from error
        if changed is not None:
            raise DataError(
                f"{path}: the SHA-256 of its block {changed} (of {len(digests)}, each of {BLOCK_BYTES:,} bytes) is not "
                f"what {files.manifest.name} says: one of them was changed. {files.way_out}"
            )
    return DataIdentity(source=manifest.source, kind=kind, sha256=manifest.sha256)


def fetch(
    source: DataSource,
    data_dir: Path,
    *,
    tell: Callable[[str, int], object] = lambda _sentence, _bytes: None,
    advance: Advance = _nobody,
) -> Dataset:
    """Bring the real data set: download what is missing, verify, write the arrays and then their manifest.

    Original files that lie in the folder already are verified and used, so no network is needed then. The files come to
    their places when all are written, so an interrupted run leaves the data set as it was, or none. What is larger than
    memory and is there already, of these very originals, is verified and not made again.

    Args:
        tell: hears what will be done, and how many bytes of work that is, before `advance` hears of its progress.

    Raises:
        DataError: no network (says how to do it by hand); missing or corrupt originals; a full disk.
    """
    files = DataFiles(data_dir=data_dir, benchmark=source.benchmark)
    if source.needs_torchvision:
        require_torchvision()
    found = source.read(files.originals)
    nbytes = sum(array.nbytes for _, _, array in _all_arrays(found))
    if isinstance(found, Incoming) and _is_made_of(found.made_of, files):
        tell(f"is there already: verifying {nbytes / 1e9:.1f} GB in {files.folder}", nbytes)
        try:
            verify(source, "real", data_dir, everything=True, advance=advance)
            return load(source, "real", data_dir)
        except DataError as error:
            tell(f"makes it anew: {error}", 0)
    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        _remove_left_behind(files.folder)
        _require_room(files.folder, nbytes)
        counts = " and ".join(f"{next(iter(getattr(found, part).values())).shape[0]:,} to {part}" for part in PARTS[:2])
        tell(f"writing {counts}, {nbytes / 1e9:.3g} GB, to {files.folder}", nbytes)
        _write(found, source, files, advance)
    except OSError as error:
        raise DataError(
            f"{files.folder}: cannot be written: {error.strerror or error}. "
            f"Free space, or name another folder as data_dir in experiments.yaml."
        ) from error
    return load(source, "real", data_dir)


def require_torchvision() -> None:
    """Raises DataError where it cannot be imported."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # RuntimeError where it does not fit the installed torch
        raise DataError(
            f"fetching needs torchvision, and it does not import: {error}. "
            f"Install both from one source: pip install torch torchvision"
        ) from error


def count_of(arrays: Arrays) -> int:
    """Raises DataError where the arrays do not have the same number of samples."""
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"the arrays of a data set differ in their number of samples: {counts}")
    return next(iter(counts.values()), 0)


def content_sha256(dataset: Dataset) -> str:
    """Over part, name, type, shape and bytes of each array, not over the files."""
    return _sha256_of({f"{part}.{name}": _described(array) for part, name, array in _all_arrays(dataset)})


def _described(array: NDArray[Any]) -> ArrayFile:
    return ArrayFile(shape=array.shape, dtype=array.dtype.str, blocks=block_digests(array))


def _sha256_of(arrays: Mapping[str, ArrayFile]) -> str:
    """Over part, name, type, shape, and the digests of the blocks."""
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype} {array.shape}\n".encode())
        digest.update("".join(f"{block}\n" for block in array.blocks).encode())
    return digest.hexdigest()


def split(arrays: Arrays, train_count: int, **others: Arrays) -> Dataset:
    """The first samples are to train on, all others to test on. `others`: as those of Dataset."""
    return Dataset(
        train={name: array[:train_count] for name, array in arrays.items()},
        test={name: array[train_count:] for name, array in arrays.items()},
        **others,
    )


def labelled_images(images: NDArray[np.uint8], labels: NDArray[np.int32], train_count: int) -> Dataset:
    """For image classification: images [n, height, width, channels] and labels [n], from 0, as `split` takes them."""
    constants = channel_statistics(images[:train_count])
    return split({"images": images, "labels": labels}, train_count, constants=constants)


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


def _all_arrays(dataset: Dataset | Incoming) -> Iterator[tuple[str, str, Any]]:
    """Part, name and array, in an order that does not depend on how they were made."""
    for part in PARTS:
        for name, array in sorted(getattr(dataset, part).items()):
            yield part, name, array


def _map_files(files: DataFiles) -> tuple[Dataset, Manifest]:
    """The arrays, mapped, and the manifest."""
    manifest = read_manifest(files)
    parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in PARTS}
    for key, described in manifest.arrays.items():
        part, _, name = key.partition(".")
        path = files.array(part, name)
        try:
            array = open_array(path)
        except FileNotFoundError as error:
            raise DataError(f"{path}: the data set is not complete. {files.way_out}") from error
        except (OSError, ValueError, EOFError, struct.error) as error:
            raise DataError(f"{path}: truncated or corrupt ({error}). {files.way_out}") from error
        if (array.shape, array.dtype.str) != (described.shape, described.dtype):
            raise DataError(
                f"{path}: is {array.dtype.str} of the shape {list(array.shape)}, {files.manifest.name} says "
                f"{described.dtype} of {list(described.shape)}. {files.way_out}"
            )
        parts[part][name] = array
    return Dataset(**parts), manifest


def read_manifest(files: DataFiles) -> Manifest:
    """Raises DataError where there is none, or none that this code reads, or one that was changed."""
    try:
        manifest = Manifest.model_validate_json(read_json(files.manifest))
    except FileNotFoundError as error:
        raise DataError(f"{files.manifest}: the data set {files.benchmark} is not here. {files.way_out}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{files.manifest}: not a manifest: {in_words(error)}. {files.way_out}") from error
    if manifest.benchmark != files.benchmark:
        raise DataError(f"{files.manifest}: is of the data set {shortened(manifest.benchmark)}. {files.way_out}")
    if _sha256_of(manifest.arrays) != manifest.sha256:
        raise DataError(f"{files.manifest}: was changed: its checksums do not fit each other. {files.way_out}")
    return manifest


def _is_made_of(made_of: str, files: DataFiles) -> bool:
    try:
        return read_manifest(files).made_of == made_of
    except DataError:
        return False


def _require_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise DataError(
            f"{folder}: {nbytes / 1e9:.1f} GB are needed there, and {free / 1e9:.1f} GB are free. Free space, name "
            f"another folder as data_dir in experiments.yaml, or take a part (python main.py data --help)."
        )


def _remove_left_behind(folder: Path) -> None:
    for path in folder.glob(".*.tmp"):
        if time.time() - path.stat().st_mtime > LEFT_BEHIND_AFTER_S:
            path.unlink(missing_ok=True)


def _write(found: Dataset | Incoming, source: DataSource, files: DataFiles, advance: Advance) -> None:
    """All arrays beside their places; then there, and at last the manifest."""
    temporaries: dict[Path, Path] = {}
    described: dict[str, ArrayFile] = {}
    try:
        for part, name, array in _all_arrays(found):
            path = files.array(part, name)
            temporaries[path], blocks = write_pieces(array, path, advance)
            described[f"{part}.{name}"] = ArrayFile(shape=array.shape, dtype=array.dtype.str, blocks=blocks)
        manifest = Manifest(
            benchmark=files.benchmark,
            source=found.conclude() if isinstance(found, Incoming) else source.source,
            sha256=_sha256_of(described),
            classes_sha256=found.classes_sha256 if isinstance(found, Incoming) else None,
            made_of=found.made_of if isinstance(found, Incoming) else None,
            arrays=described,
        )
        files.manifest.unlink(missing_ok=True)
        for path, temporary in temporaries.items():
            temporary.replace(path)
        write_atomically(files.manifest, json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n", replace=True)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


# The originals, with torchvision's downloader, mirrors and checksums.


@dataclass(frozen=True, kw_only=True)
class Original:
    """A file as its authors publish it."""

    name: str
    md5: str | None = None
    sha256: str | None = None
    """One of the two at least; whichever is there is verified."""
    urls: tuple[str, ...]
    """Tried in this order."""

    @property
    def checksums(self) -> str:
        """For a message."""
        known = {"MD5": self.md5, "SHA-256": self.sha256}
        return ", ".join(f"{name} {value}" for name, value in known.items() if value)

    def is_at(self, path: Path) -> bool:
        """Whether this very file lies there."""
        if not path.is_file():
            return False
        expected = {"md5": self.md5, "sha256": self.sha256}
        return all(digest_of(path, name) == value for name, value in expected.items() if value)


def ensure_originals(originals: Sequence[Original], folder: Path) -> dict[str, Path]:
    """The verified files by name; downloaded where they are not there or are others."""
    problems = {original: problem for original in originals if (problem := _download_problem(original, folder))}
    if problems:
        todo = "\n".join(f"  {original.name}  ({original.checksums})" for original in problems)
        raise DataError(
            "\n".join(problems.values()) + f"\nWithout a network: download on another machine\n{todo}\n"
            f"copy to {folder}/ and run the same command again. Or measure on the sample: --data sample."
        )
    return {original.name: folder / original.name for original in originals}


def _download_problem(original: Original, folder: Path) -> str | None:
    """None once the verified file lies in the folder."""
    from torchvision.datasets.utils import download_url

    path = folder / original.name
    if original.is_at(path):
        return None
    state = "has a wrong checksum" if path.exists() else "is missing"
    reasons = []
    for url in original.urls:
        # Under another name: torchvision takes a file that is there for the right one where it knows no MD5.
        incoming = folder / f"{original.name}.incoming"
        incoming.unlink(missing_ok=True)
        try:
            with network_timeout(NETWORK_TIMEOUT_S):
                download_url(url, root=folder, filename=incoming.name, md5=original.md5)
        except (OSError, RuntimeError) as error:  # RuntimeError is torchvision's word for a wrong checksum
            reasons.append(f"  {url}: {error}")
        else:
            if original.is_at(incoming):
                incoming.replace(path)
                return None
            reasons.append(f"  {url}: what came is not the file with {original.checksums}")
    return "\n".join([f"{path} {state}, and it cannot be downloaded:", *reasons])


def digest_of(path: Path, algorithm: str) -> str:
    """In hex, of a file that may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@contextmanager
def network_timeout(seconds: float) -> Iterator[None]:
    """For every socket opened within; torchvision has no setting for it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
