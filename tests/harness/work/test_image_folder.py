"""Image folders: pixels as torchvision makes them, which images and classes are taken, and every way a folder can be
wrong or a run can end."""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from harness.errors import DataError
from harness.work import array_files, datasets, image_folder
from harness.work.array_files import Pieces
from harness.work.benchmarks.imagenet100 import BENCHMARK
from harness.work.datasets import DataFiles, DataSource, fetch, load, read_manifest, verify
from harness.work.image_folder import centre, read_image_folder
from harness.work.imagenet_classes import CMC, ClassList
from tests.made.image_folders import cut, flip, make_old, put_images

SIZE = 8
NAMES = ("n3", "n1", "n2")
THREE = ClassList(title="the list of three", names=NAMES, indices=(7, 5, 6), train_count=12, test_count=6)
read = partial(read_image_folder, classes=THREE, size=SIZE, constants={"mean": np.zeros(3, np.float32)})
SOURCE = DataSource(
    benchmark="three",
    read=read,
    source="not said",
    sample=lambda: datasets.NO_DATA,
    sample_source="none",
    needs_torchvision=False,
)


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """Four images in each class to train, two to test."""
    folder = DataFiles(data_dir=tmp_path, benchmark="three").originals
    put_images(folder, NAMES, train=4, val=2)
    return folder


def source_in(data_dir: Path) -> str:
    return verify(SOURCE, "real", data_dir).source


def sha256_in(data_dir: Path) -> str:
    return verify(SOURCE, "real", data_dir).sha256


# The list of classes


def test_the_list_is_cmcs_with_the_places_among_the_thousand_names_in_their_order() -> None:
    assert (CMC.sha256, len(CMC.names)) == ("79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397", 100)
    index_of = dict(zip(CMC.names, CMC.indices, strict=True))
    ordered = [index_of[name] for name in sorted(CMC.names)]
    assert ordered == sorted(set(CMC.indices)) and ordered[0] >= 0 and ordered[-1] < 1000
    # bonnet, Chihuahua, tabby, laptop, gyromitra
    known = {"n02869837": 452, "n02085620": 151, "n02123045": 281, "n03642806": 620, "n13037406": 993}
    assert {name: index_of[name] for name in known} == known


# Pixels


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("mode", "size"),
    [("RGB", (500, 375)), ("RGB", (257, 256)), ("RGB", (160, 213)), ("L", (300, 300)), ("CMYK", (300, 411))],
)
def test_the_pixels_are_those_of_torchvisions_presets(mode: str, size: tuple[int, int]) -> None:
    from torchvision import transforms

    noise = np.random.RandomState(1).randint(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    image = Image.fromarray(noise, "RGBA").convert("RGB").convert(mode)
    pixels = centre(image, 256)
    stored = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(256)])(image.convert("RGB"))
    np.testing.assert_array_equal(pixels, np.asarray(stored))
    assert pixels.dtype == np.uint8
    evaluated = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])(image.convert("RGB"))
    np.testing.assert_array_equal(pixels[16:240, 16:240], np.asarray(evaluated))


# Which images, in which order


def test_labels_are_places_in_the_list_and_the_images_are_shuffled(tmp_path: Path, originals: Path) -> None:
    """The images have one colour each; JPEG keeps it almost. What does not matter: files that are no images, further
    classes, and a link in place of the folder."""
    for name in ("n1.xml", ".n1_9.JPEG"):
        (originals / "train" / "n1" / name).write_text("no image")
    put_images(originals, ("n9", "n0"))
    originals.symlink_to(shutil.move(originals, originals.parent / "elsewhere"))
    dataset = fetch(SOURCE, tmp_path)
    assert (dataset.train["images"].shape, dataset.train["images"].dtype) == ((12, SIZE, SIZE, 3), np.uint8)
    for part, folder, count in ((dataset.train, "train", 4), (dataset.test, "val", 2)):
        order = np.random.RandomState(image_folder.SHUFFLE_SEED).permutation(3 * count)
        assert part["labels"].tolist() == [index // count for index in order] and part["labels"].dtype == np.int32
        paths = [path for name in NAMES for path in sorted((originals / folder / name).glob(f"{name}_?.JPEG"))]
        for image, index in zip(part["images"], order, strict=True):
            assert np.abs(np.asarray(Image.open(paths[index]), int)[0, 0] - image[0, 0]).max() < 3
    assert source_in(tmp_path) == "ImageNet (ILSVRC2012), the 3 classes of the list of three"


def test_several_processes_make_the_same_as_one(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(originals / "train" / "n1" / "n1_2.JPEG")
    alone = read(originals)
    images = np.concatenate(list(alone.train["images"].pieces))
    monkeypatch.setattr(image_folder, "IMAGES_PER_PROCESS", 6)
    monkeypatch.setattr(image_folder, "IMAGES_AT_ONCE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    together = read(originals)
    np.testing.assert_array_equal(np.concatenate(list(together.train["images"].pieces)), images)
    for incoming in (alone, together):
        with pytest.raises(DataError, match="1 of 18 images cannot be read"):
            incoming.conclude()


def test_fewer_images_and_other_classes_are_another_data_set_and_named(tmp_path: Path, originals: Path) -> None:
    fetch(SOURCE, tmp_path)
    whole = sha256_in(tmp_path)
    title = "ImageNet (ILSVRC2012), the 3 classes of the list of three"
    for name in NAMES:
        (originals / "train" / name / f"{name}_2.JPEG").unlink()
    assert fetch(SOURCE, tmp_path).train_count == 9
    assert sha256_in(tmp_path) != whole
    assert source_in(tmp_path) == f"{title}, 9 of 12 images to train, 6 of 6 images to test"
    for part in ("train", "val"):  # as many other classes are taken
        (originals / part / "n2").rename(originals / part / "n8")
    assert fetch(SOURCE, tmp_path).train_count == 9
    digest = hashlib.sha256(b"n1\nn3\nn8\n").hexdigest()
    assert source_in(tmp_path).endswith(f"the 3 classes of a list of their own (SHA-256 of the names {digest[:8]})")
    assert read_manifest(DataFiles(data_dir=tmp_path, benchmark="three")).classes_sha256 == digest


# Wrong folders


@pytest.mark.parametrize(
    ("gone", "complaints"),
    [
        ("*", ("has no folder train and no folder val", "ln -s /path/to/imagenet", "--data sample")),
        ("val", ("has no folder val. ImageNet is never downloaded",)),
        ("train/n2", ("has 2 class folders, and of the 3 of the list of three 1 are missing:\n  n2\n",)),
        ("val/*", ("val: 3 of 3 class folders are missing:\n  n3\n  n1\n  n2", "valprep.sh")),
        ("val/n2/*", ("val: 1 of 3 class folders have no images:\n  n2\n",)),
    ],
)
def test_a_wrong_folder_is_said_with_the_way_out_and_nothing_is_written(
    gone: str, complaints: tuple[str, ...], tmp_path: Path, originals: Path
) -> None:
    for path in originals.glob(gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError) as caught:
        fetch(SOURCE, tmp_path)
    assert str(caught.value).startswith(str(originals))
    assert all(complaint in str(caught.value) for complaint in complaints)
    assert not (tmp_path / "three").exists()


def test_damaged_images_are_all_named_and_the_data_set_stays_what_it_was(tmp_path: Path, originals: Path) -> None:
    fetch(SOURCE, tmp_path)
    before = sha256_in(tmp_path)
    for path in sorted((originals / "train").glob("*/*"))[1:]:
        cut(path)
    shutil.copy(originals / "val" / "n2" / "n2_0.JPEG", originals / "train" / "n2" / "n2_4.JPEG")
    (originals / "val" / "n1" / "n1_0.JPEG").write_text("not an image")
    with pytest.raises(DataError) as caught:
        fetch(SOURCE, tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{originals}: 12 of 19 images cannot be read:"
    assert len(lines) == 13 and lines[11] == "  and 2 more"
    assert all(line.startswith(f"  {originals}/train/n") and "truncated" in line for line in lines[1:11])
    assert lines[12].startswith("Replace or remove them, and run the same command again.")
    assert sha256_in(tmp_path) == before
    assert [path for path in (tmp_path / "three").iterdir() if path.suffix == ".tmp"] == []


# The disk, and runs that end early


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    tmp_path: Path, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 18 * SIZE * SIZE * 3 + 18 * 4 + 3 * 4
    heard: list[tuple[str, int]] = []
    advanced: list[int] = []

    def fetch_with(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
        fetch(SOURCE, tmp_path, tell=lambda *told: heard.append(told), advance=advanced.append)

    with pytest.raises(DataError, match=r"0\.0 GB are needed there, and 0\.0 GB are free\. Free space"):
        fetch_with(needed - 1)
    assert heard == [] and list((tmp_path / "three").iterdir()) == []
    fetch_with(needed)
    assert heard == [(f"writing 12 to train and 6 to test, 3.54e-06 GB, to {tmp_path}/three", needed)]
    assert sum(advanced) == needed


def test_an_interrupted_or_killed_run_leaves_what_was_there(
    tmp_path: Path, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    def fetch_one_image_less(**more: Any) -> None:
        max((originals / "train").glob("*/*.JPEG"), key=lambda path: path.stem[-1]).unlink()
        fetch(SOURCE, tmp_path, **more)

    with pytest.raises(KeyboardInterrupt):
        fetch(SOURCE, tmp_path, advance=interrupt)
    assert list((tmp_path / "three").iterdir()) == []
    with pytest.raises(DataError, match="the data set three is not here"):
        load(SOURCE, "real", tmp_path)
    fetch(SOURCE, tmp_path)
    before = sha256_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fetch_one_image_less(advance=interrupt)
    assert sha256_in(tmp_path) == before
    # What a killed run leaves goes away once nobody writes to it.
    left, _ = array_files.write_pieces(np.zeros(3), tmp_path / "three" / "train.images.npy", lambda _: None)
    fetch_one_image_less()
    assert left.exists()
    make_old(left)
    fetch_one_image_less()
    assert not left.exists()
    monkeypatch.setattr(Path, "replace", interrupt)  # of arrays of two data sets none is made
    with pytest.raises(KeyboardInterrupt):
        fetch_one_image_less()
    with pytest.raises(DataError, match="the data set three is not here"):
        load(SOURCE, "real", tmp_path)


# What is there already


def test_what_is_there_is_verified_and_not_made_again(
    tmp_path: Path, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made is decoded in two calls, one for each part."""
    heard: list[str] = []
    decode = Mock(wraps=image_folder.decode)
    monkeypatch.setattr(image_folder, "decode", decode)
    for state, calls, words in (
        ("new", 2, "writing 12 to train"),
        ("there", 2, "is there already: verifying 0.0 GB"),
        ("damaged", 4, "makes it anew: "),
        ("of other files", 6, "writing 12 to train"),
    ):
        if state == "damaged":
            flip(tmp_path / "three" / "train.images.npy")
        if state == "of other files":
            (originals / "val" / "n1" / "n1_0.JPEG").rename(originals / "val" / "n1" / "n1_9.JPEG")
        heard.clear()
        fetch(SOURCE, tmp_path, tell=lambda sentence, _bytes: heard.append(sentence))
        assert decode.call_count == calls and [one for one in heard if one.startswith(words)]
        verify(SOURCE, "real", tmp_path)


# A large set is verified in part


def test_of_a_large_array_a_job_verifies_some_blocks_and_the_command_all(
    tmp_path: Path, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images to train: 12 x 192 bytes, 36 blocks, of which number 20 is wrong; to test: 18 blocks; labels: one."""
    for module in (array_files, datasets):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(datasets, "VERIFIED_WHOLE_BYTES", 1000)
    fetch(SOURCE, tmp_path)
    flip(tmp_path / "three" / "train.images.npy", -(36 - 20) * 64)
    drawn = {19, 21}
    asked_for: list[tuple[int, int]] = []

    def sample(blocks: Sequence[int], count: int) -> list[int]:
        asked_for.append((len(blocks), count))
        return sorted({*blocks} & drawn)

    monkeypatch.setattr(random, "sample", sample)
    verify(SOURCE, "real", tmp_path)
    assert asked_for == [(36, 8), (18, 8)]
    drawn |= {20}
    for everything in (False, True):
        with pytest.raises(DataError, match=r"train\.images\.npy: the SHA-256 of its block 20 \(of 36"):
            verify(SOURCE, "real", tmp_path, everything=everything)


# Memory


def peak_of(work: Callable[[], object]) -> int:
    """Of this process, in MB above what is there before."""

    def found(name: str) -> int:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
        return int(line.split()[1]) // 1024

    Path("/proc/self/clear_refs").write_text("5")  # from now on
    before = found("VmRSS")
    work()
    return found("VmHWM") - before


def test_a_large_set_is_written_verified_and_gathered_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 MB in blocks of 8 MB, 16 MB of rows at a time: a full copy, or a map that is held, takes 128 MB more, as the
    last peak shows."""
    mb, count = 2**20, 128
    for module, name in (
        (array_files, "BLOCK_BYTES"),
        (datasets, "BLOCK_BYTES"),
        (array_files, "GATHERED_AT_ONCE_BYTES"),
    ):
        monkeypatch.setattr(module, name, 8 * mb)
    pieces = (np.full((1, mb), number, np.uint8) for number in range(count))
    arrays = {"images": Pieces(shape=(count, mb), dtype=np.dtype(np.uint8), pieces=pieces)}
    test = {"images": np.zeros((1, mb), np.uint8)}
    found = datasets.Incoming(train=arrays, test=test, constants={}, classes_sha256="", made_of="", conclude=str)
    source = replace(SOURCE, read=lambda _: found)
    assert peak_of(lambda: fetch(source, tmp_path)) < 40
    assert peak_of(lambda: verify(source, "real", tmp_path)) < 40
    mapped = load(source, "real", tmp_path).train["images"]

    def gather_all() -> None:
        for rows in np.random.RandomState(0).permutation(count).reshape(-1, 16):
            assert (array_files.gather(mapped, rows)[:, 5] == rows).all()

    assert peak_of(gather_all) < 60
    assert peak_of(lambda: mapped[:, ::4].sum()) > 120


# The benchmark itself


def test_imagenet100_from_an_image_folder(tmp_path: Path) -> None:
    source = BENCHMARK.data
    assert source.by_hand and not source.needs_torchvision
    put_images(DataFiles(data_dir=tmp_path, benchmark="imagenet100").originals, train=1, size=(300, 260))
    dataset = fetch(source, tmp_path)
    assert dataset.train["images"].shape == dataset.test["images"].shape == (100, 256, 256, 3)
    np.testing.assert_array_equal(dataset.constants["mean"], np.array([0.485, 0.456, 0.406], np.float32))
    np.testing.assert_array_equal(dataset.constants["std"], np.array([0.229, 0.224, 0.225], np.float32))
    assert sorted(dataset.train["labels"].tolist()) == list(range(100))
    assert verify(source, "real", tmp_path).source == (
        "ImageNet (ILSVRC2012), the 100 classes of CMC's list, 100 of 126,689 images to train, "
        "100 of 5,000 images to test"
    )
