"""Parity files that are damaged or forged: refused in words, or the same as before."""

import io
import random
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import RecordError
from harness.results.parity import ParityMetadata, ParityNumbers, key_of
from harness.results.parity_file import read_parity, write_parity
from tests.bad_inputs.campaign import Case, Cases, judged_text
from tests.made.report_records import record

A_CALL = b"{'descr': __import__('os').system('touch PWNED'), 'fortran_order': False, 'shape': ()}\n"
LARGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n"


def cases(draw: random.Random, folder: Path) -> Cases:
    path = folder / "parity.npz"
    key = key_of(record("jax", "step.jit").measurement)
    metadata = ParityMetadata(key=key, outcome="ok", shapes={"loss": ()}, created_at="2026-11-20T10:00:00+00:00")
    write_parity(ParityNumbers(metadata=metadata, kept={"loss": np.array(1.0)}), path)
    good = path.read_bytes()
    files = {
        "empty": b"",
        "a .npy": _saved(np.zeros(3)),
        "pickled": _zipped(_saved(np.array([{}], dtype=object), allow_pickle=True)),
        "metadata": _zipped(_saved(np.array("[" * 50_000))),
        "numbers": _zipped(_saved(np.zeros(3))),
        "zeros that unpack to 3 GB": _bomb(),
    }
    for header in (b"(" * 9000, A_CALL, LARGE):
        files[repr(header[:60])] = _zipped(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    for _ in range(24):
        at = draw.randrange(len(good))
        files[f"cut at {at}"] = good[:at]
        files[f"a bit at {at}"] = good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :]
        files[f"bytes at {at}"] = good[:at] + draw.randbytes(draw.randrange(1, 40)) + good[at:]
    for name, content in files.items():
        yield Case(name, partial(_judged, path, content))


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


def _judged(path: Path, content: bytes) -> str | None:
    path.write_bytes(content)
    try:
        read_parity(path)
    except RecordError as error:
        return judged_text("the terminal", str(error)) or ("numpy's advice" if "allow_pickle" in str(error) else None)
    return None
