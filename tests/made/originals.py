"""Data sets in the formats of their authors: small, with made-up content and checksums of their own."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.work.datasets import DataFiles
from harness.work.declared import benchmark


def write_idx(path: Path, values: NDArray[np.uint8]) -> str:
    """Writes it and returns its MD5."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes()))
    return md5_of(path)


def put_mnist(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """Six images to train and three to test; torchvision takes them for the real ones."""
    from torchvision.datasets import MNIST

    draw = np.random.RandomState(5)
    values = {
        "train-images-idx3-ubyte.gz": draw.randint(0, 256, (6, 28, 28)).astype(np.uint8),
        "train-labels-idx1-ubyte.gz": draw.randint(0, 10, 6).astype(np.uint8),
        "t10k-images-idx3-ubyte.gz": draw.randint(0, 256, (3, 28, 28)).astype(np.uint8),
        "t10k-labels-idx1-ubyte.gz": draw.randint(0, 10, 3).astype(np.uint8),
    }
    assert [name for name, _ in MNIST.resources] == list(values), "torchvision names the files differently"
    folder = DataFiles(data_dir=data_dir, benchmark="mnist").originals
    monkeypatch.setattr(MNIST, "resources", [(name, write_idx(folder / name, v)) for name, v in values.items()])
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/first/", "http://127.0.0.1:9/second/"])
    return values


class PythonTwoPickler(pickle.Pickler):
    """Writes a dtype as numpy under Python 2 did, as in the real archive: 0 and 1 for `align` and `copy`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.dtype):
            return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)
        return NotImplemented


def put_cifar10(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive. Image i of batch b has a red plane of 10 b + i, a green one of 100, a blue one that counts its
    pixels; batch 5 is the one to test on. The labels of batch b are b and b + 1."""
    from torchvision.datasets import CIFAR10

    def batch(number: int) -> dict[str, Any]:
        rows = [
            np.concatenate([np.full(1024, 10 * number + i), np.full(1024, 100), np.arange(1024) % 256])
            for i in range(2)
        ]
        return {"data": np.array(rows, np.uint8), "labels": [number, number + 1]}

    path = DataFiles(data_dir=data_dir, benchmark="cifar10").originals / "cifar-10-python.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for number, (name, _) in enumerate(CIFAR10.train_list + CIFAR10.test_list):
            content = io.BytesIO()
            PythonTwoPickler(content, protocol=2).dump(batch(number))
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5_of(path))
    return path


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def put_weights(data_dir: Path, model: str, state: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state as torchvision publishes it, under a name with its checksum; torchvision takes it for the real one."""
    import torch
    from torchvision import models

    published = benchmark("imagenet100").model(model).published
    assert published
    folder = data_dir / "originals" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "saved")
    sha256 = hashlib.sha256((folder / "saved").read_bytes()).hexdigest()
    path = (folder / "saved").rename(folder / f"{model}-{sha256[:8]}.pth")
    monkeypatch.setattr(models.get_weight(published.weights).value, "url", f"http://127.0.0.1:9/{path.name}")
    return path
