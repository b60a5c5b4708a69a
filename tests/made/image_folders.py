"""Image folders as ImageNet comes, small, with made-up images."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.work.imagenet_classes import CMC


def put_images(
    folder: Path, names: Sequence[str] = CMC.names, *, train: int = 2, val: int = 1, size: tuple[int, int] = (20, 16)
) -> None:
    """`train` and `val`: images in each class. Width and height are `size`; each image has a colour of its own."""
    from PIL import Image

    draw = np.random.RandomState(3)
    for part, count in (("train", train), ("val", val)):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                colour = tuple(draw.randint(0, 256, 3).tolist())
                Image.new("RGB", size, colour).save(folder / part / name / f"{name}_{number}.JPEG")


def cut(path: Path, end: int = -10) -> None:
    """Of a file, only what lies before `end`."""
    path.write_bytes(path.read_bytes()[:end])


def flip(path: Path, at: int = -1) -> None:
    """One bit of the byte `at`."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def make_old(path: Path) -> None:
    """As if nobody had written to it for a day."""
    os.utime(path, (path.stat().st_mtime - 86400,) * 2)
