"""What both frameworks are asked in use case 5, and how their answers are checked."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import CheckFailed
from harness.work.closeness import OUTPUTS
from harness.work.datasets import NO_DATA, Dataset
from harness.work.declared import benchmark
from harness.work.use_cases.inference import (
    PREDICTED_SAMPLES,
    Requests,
    are_enough,
    centre,
    check_outputs,
    checked_rows,
)


def requests_of(count: int, batch_size: int, **sizes: int) -> Requests:
    """Image i of the test set is full of i."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 4, 4, 3))
    return Requests(
        benchmark=benchmark("mnist"),
        dataset=Dataset(train={}, test={"images": images, "labels": np.zeros(count, np.int32)}, constants={}),
        model="cnn",
        sizes=sizes,
        seed=0,
        batch_size=batch_size,
    )


def of_images(batch: dict[str, NDArray[np.uint8]]) -> list[int]:
    return batch["images"][:, 0, 0, 0].tolist()


def test_batches_go_through_the_test_set_and_begin_again() -> None:
    """Drawn inputs do not depend on how many are asked for."""
    requests = requests_of(5, batch_size=3)
    assert [of_images(batch) for batch in requests.timed(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert all(batch.keys() == {"images"} for batch in requests.timed(1)), "a model is not given the labels"
    image = np.arange(6 * 7).reshape(1, 6, 7, 1)  # of larger ones the centre
    assert centre(image, 4).flags.c_contiguous and (centre(image, 4) == image[:, 1:5, 1:5]).all()
    assert centre(image, 8).shape == (1, 6, 7, 1)
    assert requests_of(2, 1, image_size=2).timed(1)[0]["images"].shape == (1, 2, 2, 3)
    synthetic = benchmark("synthetic")
    drawn = replace(
        requests, benchmark=synthetic, dataset=NO_DATA, model="convnet", sizes=synthetic.sizes().model_dump()
    )
    first, second = drawn.timed(2)
    assert first["inputs"].shape == (3, 3, 32, 32) and first.keys() == {"inputs"}
    both = np.concatenate([first["inputs"], second["inputs"]])
    np.testing.assert_array_equal(drawn.samples(np.arange(6))["inputs"], both)
    assert np.unique(both[:, 0, 0, 0]).size == 6


def test_the_checks_batches_share_no_sample_and_repeat_few() -> None:
    assert [rows.tolist() for rows in checked_rows(6)] == [[0, 1, 2, 3, 0, 1], [4, 5, 6, 7, 4, 5]]
    assert [rows.tolist() for rows in checked_rows(1)] == [[0], [1]]
    requests = requests_of(9, batch_size=6)
    assert [of_images(batch) for batch in requests.checked()] == [rows.tolist() for rows in checked_rows(6)]
    assert of_images(requests.distinct()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert of_images(requests_of(9, batch_size=1).distinct()) == [0, 1]


def test_every_test_sample_is_predicted_once_in_whole_batches() -> None:
    predicted = [(rows.tolist(), of_images(batch)) for rows, batch in requests_of(5, batch_size=3).predicted()]
    assert predicted == [([0, 1, 2], [0, 1, 2]), ([3, 4], [3, 4, 2])]
    ((rows, batch),) = requests_of(2, batch_size=5).predicted()
    assert (rows.tolist(), of_images(batch)) == ([0, 1], [0, 1, 0, 1, 0])


def test_no_more_are_predicted_than_a_record_keeps() -> None:
    """Of 65,536 predictions two batches of 128 texts of 256 tokens are as many."""
    images = np.zeros((PREDICTED_SAMPLES + 5, 1, 1, 1), np.uint8)
    large = Dataset(train={}, test={"images": images}, constants={})
    asked = replace(requests_of(1, batch_size=1_000), dataset=large)
    assert sum(len(rows) for rows, _ in asked.predicted()) == PREDICTED_SAMPLES
    batch = np.zeros((128, 256), np.int64)
    assert not are_enough([]) and not are_enough([batch]) and are_enough([batch, batch])
    assert not are_enough([np.zeros(PREDICTED_SAMPLES, np.int64)])


# The check. Outputs of 8 samples share a large part, 100, and differ by about 1.

DRAW = np.random.RandomState(0)
REFERENCE = 100 + DRAW.standard_normal((8, 10))
RIGHT = [REFERENCE[rows] for rows in checked_rows(6)]


def test_the_errors_of_outputs_by_hand() -> None:
    """Right, and all a tenth of a per cent too large; the mean over samples grows with them."""
    for factor, precision, error in ((1.0, "fp32", 0.0), (1.001, "tf32", 1e-3)):
        checks = check_outputs([outputs * factor for outputs in RIGHT], REFERENCE, precision)
        assert [check.error for check in checks] == pytest.approx([error, error])
    assert [check.tolerance for check in check_outputs(RIGHT, REFERENCE, "fp32")] == [5e-5, 1e-3]


def test_what_tells_samples_apart_is_checked() -> None:
    """An error of all of it is hidden in the outputs as they are: 0.2 % of them. The first answer given again is that
    of a CUDA graph that does not read its input. One wrong sample is another's, or not finite."""
    flat = [np.full_like(outputs, 100.0) for outputs in RIGHT]
    assert np.linalg.norm(flat[0] - RIGHT[0]) / np.linalg.norm(RIGHT[0]) < OUTPUTS["bf16"].typical
    alone = [REFERENCE[:1], REFERENCE[1:2]]
    check_outputs(alone, REFERENCE[:2], "bf16")
    for outputs, reference in ((flat, REFERENCE), (RIGHT[:1] * 2, REFERENCE), (alone[:1] * 2, REFERENCE[:2])):
        with pytest.raises(CheckFailed, match="less their mean, worst sample"):
            check_outputs(outputs, reference, "bf16")
    for wrong in (RIGHT[1][2], np.nan, np.inf):
        second = RIGHT[1].copy()
        second[3] = wrong
        with pytest.raises(CheckFailed, match="worst sample, which is number 9|relative error inf"):
            check_outputs([RIGHT[0], second], REFERENCE, "bf16")
