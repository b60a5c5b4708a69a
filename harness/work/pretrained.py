"""Weights that torchvision publishes, trained on ImageNet's 1,000 classes, as neutral arrays that both frameworks read.

fetch_weights() brings them on a login node: `data_dir/weights/<model>.npz` with a manifest beside it. Jobs verify them
once and read them in each measurement. Of the classifier only the rows of the benchmark's own classes are taken, so its
outputs are those of the 1,000 that belong to them.
"""

import hashlib
import json
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError, Refused
from harness.files import in_words, read_json, write_atomically
from harness.plan import Frozen
from harness.results.npz import read_npz
from harness.results.record import WeightsIdentity
from harness.work.datasets import (
    NETWORK_TIMEOUT_S,
    DataFiles,
    digest_of,
    network_timeout,
    read_manifest,
    require_torchvision,
)
from harness.work.declared import Published
from harness.work.declared import benchmark as declared_benchmark
from harness.work.imagenet_classes import ClassList
from harness.work.weights import WeightOf

NOT_WEIGHTS = "num_batches_tracked"
"""BatchNorm's count of batches, for a momentum that changes with it; here it is fixed."""
OF_IMAGE_SIZE = "pos_embedding"
"""The parameter whose shape follows the size of the images; to resample it would make another model."""


class WeightsManifest(Frozen):
    version: Literal[1] = 1
    weights: str
    """Their name in torchvision, such as ResNet50_Weights.IMAGENET1K_V1."""
    file: str
    """As torchvision publishes it; its name holds the first digits of its SHA-256."""
    sha256: str
    """Of names, shapes and values of all arrays."""
    top1_of_1000_percent: float
    """Accuracy on ImageNet's validation set that torchvision publishes; among 1,000 classes, so not to be compared with
    one among 100."""


@dataclass(frozen=True, kw_only=True)
class WeightsFiles:
    """The file names of one model's weights."""

    data_dir: Path
    benchmark: str
    model: str

    @property
    def originals(self) -> Path:
        """Folder with the files as torchvision publishes them."""
        return self.data_dir / "originals" / "weights"

    @property
    def arrays(self) -> Path:
        return self.data_dir / "weights" / f"{self.model}.npz"

    @property
    def manifest(self) -> Path:
        return self.arrays.with_suffix(".json")

    @property
    def way_out(self) -> str:
        return (
            f"Fetch them where there is a network: python main.py data --benchmark {self.benchmark}. "
            f"Or measure with weights: drawn."
        )


def fetch_weights(benchmark: str, model: str, data_dir: Path) -> WeightsManifest:
    """Bring the weights, unless they are here and whole: by torchvision's own download, or from its file where that is
    in the folder already.

    Raises:
        DataError: there are none of this model; no network (says how to do it by hand); a file that is not what its
            name says; a full disk.
    """
    _, published = _declared(benchmark, model)
    files = WeightsFiles(data_dir=data_dir, benchmark=benchmark, model=model)
    try:
        present = verified_content(files)
    except DataError:
        present = None
    if present is not None and present.weights == published.weights:
        return present
    require_torchvision()
    from torchvision import models

    weights = models.get_weight(published.weights)
    original = files.originals / Path(weights.url).name
    _require_right_hash(original)
    try:
        files.originals.mkdir(parents=True, exist_ok=True)
        with network_timeout(NETWORK_TIMEOUT_S):
            # From the file, if it is there; else it is downloaded beside it, checked, and renamed.
            state = weights.get_state_dict(model_dir=str(files.originals), check_hash=True, weights_only=True)
        loaded = models.get_model(model)
        loaded.load_state_dict(state)  # which knows how parameters were called in older files
    except (OSError, HTTPException, RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        if original.exists():
            raise DataError(f"{original}: cannot be read ({error}). Remove it, and try again.") from error
        raise DataError(
            f"{original} is missing, and it cannot be downloaded: {weights.url}: {error}\n"
            f"Without a network: download it on another machine, copy it to {files.originals}/ and run the same "
            f"command again. Without it: measure with weights: drawn."
        ) from error
    arrays = {
        name: tensor.numpy().astype(np.float32, copy=False)
        for name, tensor in loaded.state_dict().items()
        if not name.endswith(NOT_WEIGHTS)
    }
    manifest = WeightsManifest(
        weights=published.weights,
        file=original.name,
        sha256=content_sha256(arrays),
        top1_of_1000_percent=weights.meta["_metrics"]["ImageNet-1K"]["acc@1"],
    )
    try:
        _write(arrays, files)
        write_atomically(files.manifest, json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n", replace=True)
    except OSError as error:
        raise DataError(f"{files.arrays}: cannot be written: {error.strerror or error}. Free space.") from error
    return manifest


def _write(arrays: Mapping[str, Any], files: WeightsFiles) -> None:
    """Written beside its place, synced and renamed; without the manifest of what was there before."""
    files.arrays.parent.mkdir(parents=True, exist_ok=True)
    temporary = files.arrays.with_name(f".{files.arrays.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        files.manifest.unlink(missing_ok=True)
        temporary.replace(files.arrays)
    finally:
        temporary.unlink(missing_ok=True)


def verify_weights(benchmark: str, model: str, data_dir: Path) -> WeightsIdentity:
    """Read all of them once and compare them with their checksum.

    Raises:
        DataError: they are missing, damaged, or of classes that the data set in `data_dir` does not have.
    """
    classes, _ = _declared(benchmark, model)
    manifest = verified_content(WeightsFiles(data_dir=data_dir, benchmark=benchmark, model=model))
    of_data = read_manifest(DataFiles(data_dir=data_dir, benchmark=benchmark)).classes_sha256
    if of_data != classes.sha256:
        raise DataError(
            f"{benchmark}: the data set in {data_dir} has other classes than those of {classes.title}, whose outputs "
            f"are taken from the pretrained weights. Measure with weights: drawn."
        )
    return WeightsIdentity(
        source=f"torchvision's {manifest.weights}",
        sha256=manifest.sha256,
        top1_of_1000_percent=manifest.top1_of_1000_percent,
    )


def verified_content(files: WeightsFiles) -> WeightsManifest:
    """Raises DataError where the weights are missing or damaged."""
    manifest = _read_manifest(files)
    found = content_sha256(_read(files))
    if found != manifest.sha256:
        raise DataError(
            f"{files.arrays}: its content has the SHA-256 {found}, but {files.manifest.name} says {manifest.sha256}: "
            f"one of them was changed. {files.way_out}"
        )
    return manifest


def pretrained_weights(benchmark: str, model: str, data_dir: Path) -> WeightOf:
    """(name, shape) -> a copy of the values. Not verified: the job did that.

    Raises:
        DataError: they are missing or not readable. What is returned raises it for a name that they do not have or
            another shape, and Refused for images of another size than they were trained on.
    """
    classes, published = _declared(benchmark, model)
    files = WeightsFiles(data_dir=data_dir, benchmark=benchmark, model=model)
    _read_manifest(files)
    arrays = _read(files)
    rows = np.array(classes.indices)

    def weight_of(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if name not in arrays:
            raise DataError(f"{files.arrays}: {model} has no {name} there. {files.way_out}")
        values = arrays[name][rows] if name.rpartition(".")[0] == published.classifier else arrays[name].copy()
        if values.shape == shape:
            return values
        if name.endswith(OF_IMAGE_SIZE):
            raise Refused(
                f"the pretrained weights of {model} are for image_size 224: {name} has the shape {values.shape}, and "
                f"this size needs {shape}. Measure with image_size: 224 or with weights: drawn."
            )
        raise DataError(f"{files.arrays}: {name} has the shape {values.shape}, {model} needs {shape}. {files.way_out}")

    return weight_of


def content_sha256(arrays: Mapping[str, NDArray[np.float32]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _declared(benchmark: str, model: str) -> tuple[ClassList, Published]:
    """The classes of the benchmark, and what is published for the model."""
    declared = declared_benchmark(benchmark)
    published = declared.model(model).published
    if published is None or declared.classes is None:
        raise DataError(f"{benchmark}: there are no pretrained weights of {model}. Measure with weights: drawn.")
    return declared.classes, published


def _require_right_hash(original: Path) -> None:
    """Of a file that is there. torchvision checks only what it downloads."""
    expected = re.search(r"-([0-9a-f]{8,})\.", original.name)
    if not original.exists() or expected is None:
        return
    found = digest_of(original, "sha256")
    if not found.startswith(expected[1]):
        raise DataError(
            f"{original}: its SHA-256 begins with {found[: len(expected[1])]} and not, as its name says, with "
            f"{expected[1]}: damaged, or another file. Remove it and run the same command again."
        )


def _read_manifest(files: WeightsFiles) -> WeightsManifest:
    try:
        return WeightsManifest.model_validate_json(read_json(files.manifest))
    except FileNotFoundError as error:
        raise DataError(f"{files.manifest}: the weights of {files.model} are not here. {files.way_out}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{files.manifest}: not a manifest: {in_words(error)}. {files.way_out}") from error


def _read(files: WeightsFiles) -> dict[str, NDArray[np.float32]]:
    try:
        return read_npz(files.arrays)
    except FileNotFoundError as error:
        raise DataError(f"{files.arrays}: not there. {files.way_out}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{files.arrays}: truncated or corrupt ({error}). {files.way_out}") from error
