"""Data sets and parity files that are damaged or forged: refused in words, or the same as before."""

import io
import json
import random
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import DataError, RecordError
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import read_parity, write_parity
from harness.work import datasets
from harness.work.datasets import DataFiles, DataSource, labelled_images
from tests.bad_inputs.campaign import Case, Cases, changed_file, changed_values, judged_text
from tests.made.report_records import record

A_CALL = b"{'descr': __import__('os').system('touch PWNED'), 'fortran_order': False, 'shape': ()}\n"
LARGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n"
IMAGES, LABELS = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8, 1), np.arange(6, dtype=np.int32)
SOURCE = DataSource(
    benchmark="mnist",
    read=lambda _: labelled_images(IMAGES, LABELS, 4),
    source="made",
    sample=lambda: labelled_images(IMAGES, LABELS, 4),
    sample_source="made",
    needs_torchvision=False,
)


def cases(draw: random.Random, folder: Path) -> Cases:
    datasets.fetch(SOURCE, folder)
    files = DataFiles(data_dir=folder, benchmark="mnist")
    damaged = [
        (path, name, changed)
        for path in (files.manifest, files.array("train", "images"), files.array("test", "labels"))
        for name, changed in _damages(draw, path.read_bytes(), 8)
    ]
    forged = changed_values(draw, json.loads(files.manifest.read_text()))
    for path, name, changed in (*damaged, *((files.manifest, name, changed) for name, changed in forged)):
        yield Case(f"{path.name}: {name}", partial(_judged_data, folder, path, changed))
    yield from _parity_cases(draw, folder)


def _damages(draw: random.Random, good: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    yield from (("empty", b""), ("deep", b"[" * 100_000))
    for _ in range(count):
        at = draw.randrange(len(good))
        yield f"cut at {at}", good[:at]
        yield f"a bit at {at}", good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :]
        yield f"bytes at {at}", good[:at] + draw.randbytes(draw.randrange(1, 40)) + good[at:]


def _judged_data(folder: Path, path: Path, changed: bytes) -> str | None:
    with changed_file(path, changed):
        try:
            datasets.verify(SOURCE, "real", folder)
            datasets.load(SOURCE, "real", folder)
        except DataError as error:
            return judged_text("the terminal", str(error))
    return None


def _parity_cases(draw: random.Random, folder: Path) -> Cases:
    path = folder / "parity.npz"
    key = key_of(record("jax", "step.jit").measurement)
    metadata = ParityMetadata(key=key, outcome="ok", shapes={"loss": ()}, created_at="2026-11-20T10:00:00+00:00")
    write_parity(ParityNumbers(metadata=metadata, kept={"loss": np.array(1.0)}), path)
    good = path.read_bytes()
    files = {
        **dict(_damages(draw, good, 24)),
        "a .npy": _saved(np.zeros(3)),
        "pickled": _zipped(_saved(np.array([{}], dtype=object), allow_pickle=True)),
        "metadata": _zipped(_saved(np.array("[" * 50_000))),
        "numbers": _zipped(_saved(np.zeros(3))),
        "zeros that unpack to 3 GB": _bomb(),
    }
    for header in (b"(" * 9000, A_CALL, LARGE):
        files[repr(header[:60])] = _zipped(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    for name, content in files.items():
        yield Case(f"parity: {name}", partial(_judged_parity, path, content))


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
    content = _zipped(bytes(20 * 2**20))
    at = content.rindex(b"PK\x01\x02") + 24
    return content[:at] + (3 * 10**9).to_bytes(4, "little") + content[at + 4 :]


def _judged_parity(path: Path, content: bytes) -> str | None:
    path.write_bytes(content)
    try:
        read_parity(path)
    except RecordError as error:
        return judged_text("the terminal", str(error)) or ("numpy's advice" if "allow_pickle" in str(error) else None)
    return None
