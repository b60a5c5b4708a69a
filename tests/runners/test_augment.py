"""Crops and flips on the device: the same numbers in both frameworks, and those of PyTorch's own interpolation."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from harness.work.augmentation import draw_crops
from jax_runner import augment as jax_augment
from torch_runner import augment as torch_augment

IMAGES = np.random.default_rng(1).integers(0, 256, (24, 40, 36, 3), np.uint8)
CROPS = draw_crops(np.random.default_rng(2), 24, 40, 36)
SIZE = 20
ONE_ULP_OF_255 = float(np.spacing(np.float32(255)))


@cache
def cut(framework: str) -> np.ndarray:
    """In float32, JAX's as one jitted program."""
    if framework == "torch":
        batch = {"images": torch.from_numpy(IMAGES), "crops": torch.from_numpy(CROPS)}
        return torch_augment.augmented(batch, SIZE, torch.float32)["images"].numpy()
    jitted = jax.jit(lambda batch: jax_augment.augmented(batch, SIZE, jax.numpy.float32))
    return np.asarray(jitted({"images": IMAGES, "crops": CROPS})["images"])


def test_both_frameworks_cut_the_same() -> None:
    """Bit by bit."""
    assert cut("jax").shape == (24, SIZE, SIZE, 3)
    np.testing.assert_array_equal(cut("jax"), cut("torch"))


def test_a_crop_is_what_interpolating_the_cut_image_gives() -> None:
    assert 0 < CROPS[:, 4].sum() < 24
    for image, crop, found in zip(IMAGES, CROPS, cut("torch"), strict=True):
        top, left, height, width, flipped = map(int, crop)
        part = torch.from_numpy(image[top : top + height, left : left + width]).permute(2, 0, 1)[None].double()
        expected = F.interpolate(part, size=(SIZE, SIZE), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
        expected = expected.flip(1) if flipped else expected
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=ONE_ULP_OF_255)


@pytest.mark.parametrize(
    ("augment", "place", "dtype"),
    [(jax_augment, jax.numpy.asarray, "float32"), (torch_augment, torch.from_numpy, torch.float32)],
    ids=["jax", "torch"],
)
def test_the_whole_image_stays_as_it_is(augment: Any, place: Any, dtype: Any) -> None:
    """And flipped it is its mirror image; what has no crops is not touched."""
    crops = np.array([[0, 0, 40, 36, 0], [0, 0, 40, 36, 1]], np.int32)
    batch = {"images": IMAGES[:2], "crops": crops, "labels": np.array([3, 4])}
    found = augment.augmented({name: place(array) for name, array in batch.items()}, None, dtype)
    assert found.keys() == {"images", "labels"}
    np.testing.assert_allclose(np.asarray(found["images"]), [IMAGES[0], IMAGES[1][:, ::-1]], rtol=1e-7)
    assert augment.augmented(found, 7, None) is found
