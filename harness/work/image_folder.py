"""An image folder, as ImageNet comes: train/<class>/*.JPEG and val/<class>/*.JPEG. Read once, decoded by several
processes, and never in memory as a whole.

An image is kept as torchvision's presets for evaluation see it before they cut out its centre: RGB, its shorter side
resized (bilinear, antialiased), uint8.
"""

import hashlib
import multiprocessing
import os
import signal
import struct
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import DataError
from harness.work.array_files import Pieces
from harness.work.datasets import Arrays, Incoming
from harness.work.imagenet_classes import ClassList, names_sha256

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDERS = {"train": "train", "test": "val"}
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""As torchvision's ImageFolder has them. Other files are passed over."""
IMAGES_AT_ONCE = 16
MOST_PROCESSES = 32
IMAGES_PER_PROCESS = 250
"""Fewer are decoded sooner than another process has started."""
SHUFFLE_SEED = 20261122
SHOWN = 10
"""Of a longer list, in an error."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a part: path and label of each, in the order in which they are kept."""

    paths: tuple[str, ...]
    labels: NDArray[np.int32]


def read_image_folder(originals: Path, classes: ClassList, *, size: int, constants: Arrays) -> Incoming:
    """Images [n, size, size, 3] uint8 and labels [n] int32. Both parts are shuffled, the same way on every machine, so
    that the first images are of all classes.

    Args:
        classes: taken where the folder has all of them; any other folder must have as many classes of its own.

    Raises:
        DataError: a folder is missing or empty, or the classes are neither these nor as many; and once all images are
            written (`Incoming.conclude`), damaged ones.
    """
    _require_pillow()
    _require_folders(originals)
    names = _chosen_classes(originals, classes)
    parts = {part: _listing(originals / folder, names) for part, folder in FOLDERS.items()}
    damaged: list[str] = []
    arrays: dict[str, dict[str, NDArray[np.int32] | Pieces]] = {
        part: {
            "images": Pieces(
                shape=(len(listing.paths), size, size, 3),
                dtype=np.dtype(np.uint8),
                pieces=_decoded(listing.paths, size, damaged),
            ),
            "labels": listing.labels,
        }
        for part, listing in parts.items()
    }
    total = sum(len(listing.paths) for listing in parts.values())
    is_listed = names == classes.names
    title = classes.title if is_listed else f"a list of their own (SHA-256 of the names {names_sha256(names)[:8]})"
    source = f"ImageNet (ILSVRC2012), the {len(names)} classes of {title}"
    counts = {part: len(listing.paths) for part, listing in parts.items()}
    expected = {"train": classes.train_count, "test": classes.test_count}
    if is_listed and counts != expected:
        source += "".join(f", {counts[part]:,} of {expected[part]:,} images to {part}" for part in counts)

    def conclude() -> str:
        if damaged:
            raise DataError(
                f"{originals}: {len(damaged)} of {total:,} images cannot be read:\n"
                f"{_shown(damaged)}\n"
                f"Replace or remove them, and run the same command again. Or measure on the sample: --data sample."
            )
        return source

    return Incoming(
        train=arrays["train"],
        test=arrays["test"],
        constants=constants,
        classes_sha256=names_sha256(names),
        made_of=_made_of(parts, originals, size),
        conclude=conclude,
    )


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(f"decoding images needs Pillow, and it does not import: {error}. pip install pillow") from error


def _require_folders(originals: Path) -> None:
    missing = [name for name in FOLDERS.values() if not (originals / name).is_dir()]
    if missing:
        raise DataError(
            f"{originals}: has no folder {' and no folder '.join(missing)}. ImageNet is never downloaded, as its terms "
            f"are yours to accept:\n"
            f"  1. Find ImageNet (ILSVRC2012) on your cluster, or accept its terms and download it: "
            f"https://image-net.org/download.php\n"
            f"  2. Link the folder that has train/ and val/, with a folder for each class in both: "
            f"ln -s /path/to/imagenet {originals}\n"
            f"  3. Run the same command again.\n"
            f"Or measure on the sample: --data sample."
        )


def _chosen_classes(originals: Path, classes: ClassList) -> tuple[str, ...]:
    train, val = (originals / name for name in FOLDERS.values())
    of_train, of_val = _folders_in(train), _folders_in(val)
    wanted = classes.names
    missing = [name for name in wanted if name not in of_train]
    if missing:
        if len(of_train) != len(wanted):
            raise DataError(
                f"{train}: has {len(of_train):,} class folders, and of the {len(wanted)} of {classes.title} "
                f"{len(missing)} are missing:\n{_shown(missing)}\n"
                f"Unpack ImageNet with a folder for each class. It may have more classes than the {len(wanted)}, or "
                f"exactly {len(wanted)} others, which the records then name."
            )
        wanted = tuple(sorted(of_train))
    missing = [name for name in wanted if name not in of_val]
    if missing:
        hint = "Copy what is missing, and run the same command again."
        if not of_val:
            hint = (
                "Its images lie beside each other, as the archive has them. Sort them into class folders: valprep.sh "
                "of github.com/soumith/imagenetloader.torch does that."
            )
        raise DataError(f"{val}: {len(missing)} of {len(wanted)} class folders are missing:\n{_shown(missing)}\n{hint}")
    return wanted


def _folders_in(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}


def _listing(folder: Path, names: Sequence[str]) -> Listing:
    paths: list[str] = []
    labels: list[int] = []
    empty = []
    for label, name in enumerate(names):
        with os.scandir(folder / name) as entries:
            found = sorted(
                entry.path
                for entry in entries
                if not entry.name.startswith(".") and entry.name.lower().endswith(ENDINGS)
            )
        if not found:
            empty.append(name)
        paths += found
        labels += [label] * len(found)
    if empty:
        raise DataError(
            f"{folder}: {len(empty)} of {len(names)} class folders have no images:\n{_shown(empty)}\n"
            f"Copy what is missing, and run the same command again."
        )
    # RandomState, because numpy promises its stream for ever.
    order = np.random.RandomState(SHUFFLE_SEED).permutation(len(paths))
    return Listing(paths=tuple(paths[index] for index in order), labels=np.array(labels, np.int32)[order])


def _made_of(parts: dict[str, Listing], originals: Path, size: int) -> str:
    """The names of all files, and how they are kept."""
    digest = hashlib.sha256(f"{size}\n".encode())
    for listing in parts.values():
        for path, label in zip(listing.paths, listing.labels, strict=True):
            digest.update(f"{os.path.relpath(path, originals)} {label}\n".encode())
    return digest.hexdigest()


def _decoded(paths: Sequence[str], size: int, damaged: list[str]) -> Iterator[NDArray[np.uint8]]:
    """[n, size, size, 3], in the order of the paths; only so many are under way that memory stays small. Damaged images
    are added to `damaged`."""

    def noted(found: Decoded) -> NDArray[np.uint8]:
        images, of_batch = found
        damaged.extend(of_batch)
        return images

    batches = [paths[first : first + IMAGES_AT_ONCE] for first in range(0, len(paths), IMAGES_AT_ONCE)]
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, -(-len(paths) // IMAGES_PER_PROCESS))
    if processes <= 1:
        for batch in batches:
            yield noted(decode(batch, size))
        return
    # Spawned: PyTorch's threads, which an earlier download may have started, do not survive a fork.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_leave_interrupts)
    under_way: deque[Future[Decoded]] = deque()
    try:
        for batch in batches:
            under_way.append(pool.submit(decode, batch, size))
            if len(under_way) > 4 * processes:
                yield noted(under_way.popleft().result())
        while under_way:
            yield noted(under_way.popleft().result())
    except BrokenProcessPool as error:
        raise DataError(
            "a process that decodes images was killed; perhaps there was too little memory. Run the same command again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


Decoded = tuple[NDArray[np.uint8], list[str]]
"""Images [n, size, size, 3], and what is damaged."""


def decode(paths: Sequence[str], size: int) -> Decoded:
    """In the place of a damaged image are zeros."""
    import PIL.Image

    images = np.zeros((len(paths), size, size, 3), np.uint8)
    damaged = []
    for place, path in zip(images, paths, strict=True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of metadata, which some images of ImageNet have wrong
                with PIL.Image.open(path) as image:
                    place[:] = centre(image, size)
        except (OSError, ValueError, SyntaxError, struct.error, PIL.Image.DecompressionBombError) as error:
            damaged.append(f"{path}: {error}")
    return images, damaged


def centre(image: "Image", size: int) -> NDArray[np.uint8]:
    """RGB, the shorter side resized to `size`, the centre cut out: [size, size, 3]. By the same roundings as
    torchvision's Resize and CenterCrop."""
    import PIL.Image

    pixels = image.convert("RGB")
    width, height = pixels.size
    shorter = min(width, height)
    if shorter != size:
        resized = (size, size * height // width) if width <= height else (size * width // height, size)
        pixels = pixels.resize(resized, PIL.Image.Resampling.BILINEAR)
    left, top = (round((length - size) / 2) for length in pixels.size)
    return np.asarray(pixels.crop((left, top, left + size, top + size)))


def _shown(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return "\n".join(f"  {line}" for line in [*lines[:SHOWN], *more])
