"""An original file with its SHA-256: taken from the folder, or downloaded. torchvision's downloader knows MD5 only."""

import hashlib
import os
import secrets
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DataError
from harness.work.datasets import NETWORK_TIMEOUT_S

READ_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class HashedOriginal:
    """A file as its authors publish it."""

    name: str
    sha256: str
    url: str


def ensure_original(original: HashedOriginal, folder: Path) -> Path:
    """The verified file; downloaded where it is not there. Raises DataError, also where what lies there is another
    file: nothing of the user's is overwritten."""
    path = folder / original.name
    by_hand = (
        f"Download {original.url} on a machine with a network, copy it to {folder}/ and run the same command again. "
        f"Or measure on the sample: --data sample."
    )
    if not path.exists():
        try:
            _download(original, path)
        except OSError as error:
            raise DataError(f"{path} is missing, and it cannot be downloaded: {error}. {by_hand}") from error
    if (found := sha256_of(path)) != original.sha256:
        raise DataError(f"{path}: its SHA-256 is {found}, not {original.sha256}. Delete it. {by_hand}")
    return path


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def _download(original: HashedOriginal, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with (
            urllib.request.urlopen(original.url, timeout=NETWORK_TIMEOUT_S) as response,
            temporary.open("xb") as file,
        ):
            while block := response.read(READ_AT_ONCE):
                file.write(block)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
