"""Data sets and parity files that are damaged or forged: refused in words, or the same as before."""

import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import DataError, RecordError
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import read_parity, write_parity
from harness.work import datasets
from harness.work.datasets import DataFiles, DataSource, labelled_images
from tests.bad_inputs.campaign import ODD_VALUES, Case, Cases, changed_file, judged_text, leaves, with_value
from tests.made.report_records import record


def _dataset() -> datasets.Dataset:
    images = np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8, 1)
    labels = np.arange(4, dtype=np.int32)
    return labelled_images(np.concatenate([images, images[:2]]), np.concatenate([labels, labels[:2]]), len(images))


SOURCE = DataSource(
    benchmark="mnist",
    read=lambda _: _dataset(),
    source="made",
    sample=_dataset,
    sample_source="made",
    needs_torchvision=False,
)


def cases(draw: random.Random, folder: Path) -> Cases:
    datasets.fetch(SOURCE, folder)
    files = DataFiles(data_dir=folder, benchmark="mnist")
    for path in (files.manifest, files.array("train", "images"), files.array("test", "labels")):
        for name, changed in _damages(draw, path.read_bytes()):
            yield _case(f"{path.name}: {name}", files, path, changed)
    content = json.loads(files.manifest.read_text())
    for keys in leaves(content):
        value = draw.choice([..., *ODD_VALUES])
        changed = json.dumps(with_value(content, keys, value)).encode()
        yield _case(f"manifest {'.'.join(map(str, keys))} = {str(value)[:40]!r}", files, files.manifest, changed)
    yield from _parity(draw, folder)


def _damages(draw: random.Random, good: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "deep", b"[" * 100_000
    for _ in range(8):
        at = draw.randrange(len(good))
        yield f"cut at {at}", good[:at]
        yield f"a bit at {at}", good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :]
        yield f"bytes at {at}", good[:at] + draw.randbytes(draw.randrange(1, 40)) + good[at:]


def _case(name: str, files: DataFiles, path: Path, changed: bytes | None) -> Case:
    def judged() -> str | None:
        with changed_file(path, changed):
            return _judged(files)

    return Case(name, judged)


def _judged(files: DataFiles) -> str | None:
    try:
        datasets.verify(SOURCE, "real", files.data_dir)
        datasets.load(SOURCE, "real", files.data_dir)
    except DataError as error:
        return judged_text("the terminal", str(error))
    return None


def _parity(draw: random.Random, folder: Path) -> Cases:
    path = folder / "parity.npz"
    key = key_of(record("jax", "step.jit").measurement)
    metadata = ParityMetadata(key=key, outcome="ok", shapes={"loss": ()}, created_at="2026-11-20T10:00:00+00:00")
    write_parity(ParityNumbers(metadata=metadata, kept={"loss": np.array(1.0)}), path)
    good = path.read_bytes()
    damages = [*_damages(draw, good), *_damages(draw, good), *_damages(draw, good)]
    makers: dict[str, Callable[[], bytes]] = {name: lambda content=content: content for name, content in damages}
    makers |= {f"entry {name}": lambda entry=entry: _zipped(entry) for name, entry in _entries().items()}
    makers |= {
        "a flag that says encrypted": lambda: _patched(good, 6, b"\x01\x00"),
        "compression 99": lambda: _patched(good, 8, b"\x63\x00"),
        "a .npy": lambda: _saved(np.zeros(3)),
        "pickled": lambda: _zipped(_saved(np.array([{}], dtype=object), allow_pickle=True)),
        "zeros that unpack to 3 GB": lambda: _bomb(),
    }
    for name, make in makers.items():
        yield Case(f"parity: {name}", lambda make=make: _judged_parity(path, make()))


def _entries() -> dict[str, bytes]:
    def header(text: str) -> bytes:
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()

    return {
        "cut off": b"\x93NUMPY\x01\x00\x10",
        "many brackets": header("(" * 9000),
        "10**30": header("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1" + "0" * 30 + ",)}\n"),
        "10**12": header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n"),
        "negative": header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"),
        "a call": header("{'descr': __import__('os').system('touch PWNED'), 'fortran_order': False, 'shape': ()}\n"),
        "objects": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n")
        + b"cos\nsystem\n(S'touch PWNED'\ntR.",
        "version 9": b"\x93NUMPY\x09\x00",
        "metadata": _saved(np.array("[" * 50_000)),
        "numbers": _saved(np.zeros(3)),
    }


def _saved(array: np.ndarray[Any, Any], *, allow_pickle: bool = False) -> bytes:
    output = io.BytesIO()
    np.save(output, array, allow_pickle=allow_pickle)
    return output.getvalue()


def _zipped(entry: bytes) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.npy", entry)
    return output.getvalue()


def _bomb() -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("metadata.npy", "w") as entry:
        for _ in range(20):
            entry.write(bytes(2**20))
    content = output.getvalue()
    at = content.rindex(b"PK\x01\x02") + 24
    return content[:at] + (3 * 10**9).to_bytes(4, "little") + content[at + 4 :]


def _patched(good: bytes, offset: int, value: bytes) -> bytes:
    """In the headers of the first entry: the local one and, two bytes further, that of the directory."""
    content = bytearray(good)
    content[offset : offset + 2] = value
    at = good.index(b"PK\x01\x02") + offset + 2
    content[at : at + 2] = value
    return bytes(content)


def _judged_parity(path: Path, content: bytes) -> str | None:
    path.write_bytes(content)
    try:
        read_parity(path)
    except RecordError as error:
        return judged_text("the terminal", str(error)) or ("numpy's advice" if "allow_pickle" in str(error) else None)
    return None
