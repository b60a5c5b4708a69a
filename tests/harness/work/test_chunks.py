"""A training set in chunks: which samples lie where, by hand."""

import numpy as np
import pytest

from harness.work import chunks
from harness.work.chunks import Chunks, sample_bytes, steps_in_call, steps_in_chunk

ARRAYS = {"images": np.arange(12, dtype=np.uint8).reshape(6, 2), "labels": np.arange(6, dtype=np.int32) * 10}
ORDER = np.array([[3, 1], [0, 2], [5, 4], [1, 0], [2, 3]], np.int32)


def test_samples_come_in_the_order_of_the_steps() -> None:
    """Two steps in a chunk; behind the fifth and last step comes the first one again."""
    cut = Chunks(arrays=ARRAYS, order=ORDER, steps=2)
    labels = [cut.gathered(number)["labels"].tolist() for number in range(3)]
    assert labels == [[30, 10, 0, 20], [50, 40, 10, 0], [20, 30, 30, 10]]
    assert cut.gathered(1)["images"].tolist() == [[10, 11], [8, 9], [2, 3], [0, 1]]
    assert cut.slots.tolist() == [[0, 1], [2, 3]]
    assert [(cut.number_of(step), cut.steps_left(step)) for step in range(4)] == [(0, 2), (0, 1), (1, 2), (1, 1)]


def test_every_step_finds_its_own_samples_on_its_device() -> None:
    cut = Chunks(arrays=ARRAYS, order=ORDER, steps=3, devices=2)
    for step, expected in enumerate(ORDER):
        of_devices = np.split(cut.gathered(cut.number_of(step))["labels"], 2)
        rows = cut.slots[step % cut.steps]
        assert [of_devices[device][row] for device, row in enumerate(rows)] == (expected * 10).tolist()


def test_a_chunk_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has 2 + 4 bytes, a step 12, the whole training set 36."""
    order = np.tile(ORDER, (4, 1))
    assert sample_bytes(ARRAYS) == 6
    for bound, steps in ((36, 20), (35, 4), (59, 20), (0, 4)):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", bound)
        assert steps_in_chunk(ARRAYS, order) == steps
    # An epoch is whole calls.
    assert [steps_in_call(*given) for given in ((989, 61), (12, 16), (12, 5), (7, 6))] == [43, 12, 4, 1]
    monkeypatch.setattr(chunks, "LEAST_STEPS", 1)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 35)
    assert steps_in_chunk(ARRAYS, order) == 2
