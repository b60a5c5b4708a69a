"""The crops that numpy draws: their rule, their place and their seed."""

import numpy as np
import pytest

from harness.work.augmentation import RATIO, crops_of_steps, draw_crops, largest_crop


def drawn(count: int, height: int = 256, width: int = 256, seed: int = 0) -> np.ndarray:
    return draw_crops(np.random.default_rng(seed), count, height, width)


def test_crops_lie_in_the_image_and_keep_to_the_rule() -> None:
    """Rounding moves a side by half a pixel, so the smallest crops, of 72 pixels, by 0.7 % each way."""
    top, left, height, width, flipped = drawn(50_000, 200, 256).T
    assert top.min() >= 0 and left.min() >= 0
    assert (top + height).max() <= 200 and (left + width).max() <= 256
    share = height * width / (200 * 256)
    assert share.min() > 0.078 and share.max() <= 1
    assert (width / height).min() > RATIO[0] * 0.98 and (width / height).max() < RATIO[1] * 1.02
    assert set(flipped) == {0, 1} and flipped.mean() == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.corrcoef([top + height / 2, left + width / 2, flipped]) - np.eye(3)).max() < 0.02


def test_areas_are_those_of_torchvision() -> None:
    """Uniform areas from 8 % to 100 % whose crop fits: the mean over as many draws of its own."""
    torchvision = pytest.importorskip("torchvision")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    crop_of, image = torchvision.transforms.RandomResizedCrop.get_params, torch.zeros(3, 100, 100)
    theirs = np.array([crop_of(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(20_000)])
    ours = drawn(20_000, 100, 100)[:, :4]
    for moment in (1, 2):
        np.testing.assert_allclose((ours**moment).mean(0), (theirs**moment).mean(0), rtol=0.03)
    np.testing.assert_allclose((ours[:, 2] * ours[:, 3]).mean(), (theirs[:, 2] * theirs[:, 3]).mean(), rtol=0.02)


def test_what_never_fits_is_cut_from_the_centre() -> None:
    """Of an image of 2000 x 2 pixels: an area of 8 % would be 15 pixels wide at least."""
    assert drawn(20, 2000, 2)[:, :4].tolist() == [[998, 0, 3, 2]] * 20
    assert [largest_crop(*image) for image in ((90, 30), (30, 90), (30, 40))] == [(40, 30), (30, 40), (30, 40)]


def test_a_crop_belongs_to_a_sample_and_an_epoch() -> None:
    """The same samples in batches of 2 and of 3; another epoch and another seed have others."""
    of_two = np.array([[0, 1], [2, 3], [4, 5], [5, 4], [3, 2], [1, 0]], np.int32)
    two = crops_of_steps(7, of_two, 3, 6, 32, 32)
    three = crops_of_steps(7, of_two.reshape(4, 3), 2, 6, 32, 32)
    assert two.shape == (6, 2, 5)
    np.testing.assert_array_equal(two.reshape(12, 5), three.reshape(12, 5))
    first, second = two[:3].reshape(6, 5), two[3:].reshape(6, 5)[::-1]
    assert (first[:, :4] != second[:, :4]).any(axis=1).all()
    assert not np.array_equal(two, crops_of_steps(8, of_two, 3, 6, 32, 32))
