"""A training set that is too large for the device goes there in chunks: the samples of consecutive steps, in the order
of the steps, gathered on the host and copied between timed windows into the place of the chunk before.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.work.array_files import gather

CHUNK_BYTES = 2**30
"""5,461 images of 256 x 256, so that the process that gathers them stays small; and less than the 2^31 elements over
which an index must have 64 bits. A training set of more is not placed on the device as a whole."""
LEAST_STEPS = 4
"""Of a chunk, however large a batch is: made of whole calls, it still has the two steps of the check."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """One rank's chunks. Step s lies in chunk s // steps, and in it in slot s % steps."""

    arrays: Arrays
    """The training set; may be mapped from a file."""
    order: NDArray[np.int32]
    """This rank's part: [all steps, its share of the batch]."""
    steps: int
    """In a chunk."""
    devices: int = 1
    """Of this rank. Each has its own samples, one device after the other."""

    def gathered(self, number: int) -> dict[str, NDArray[Any]]:
        """The samples of chunk `number`, [devices * steps * share of a device, ...]. Behind the last step come the
        first ones again, so that all chunks have one shape."""
        steps = np.arange(number * self.steps, (number + 1) * self.steps) % len(self.order)
        of_devices = np.split(self.order[steps], self.devices, axis=1)
        rows = np.concatenate([of_device.ravel() for of_device in of_devices])
        return {name: gather(array, rows) for name, array in self.arrays.items()}

    @property
    def slots(self) -> NDArray[np.int32]:
        """The order of a chunk, [steps, share of the batch]: which of its device's samples each step sees."""
        share = self.order.shape[1] // self.devices
        of_device = np.arange(self.steps * share, dtype=np.int32).reshape(self.steps, share)
        return np.tile(of_device, (1, self.devices))

    def number_of(self, step: int) -> int:
        return step // self.steps

    def steps_left(self, step: int) -> int:
        """In the chunk of `step`, from `step` on."""
        return self.steps - step % self.steps


def is_resident(arrays: Arrays) -> bool:
    """Whether the training set lies on the device as a whole."""
    return sum(array.nbytes for array in arrays.values()) <= CHUNK_BYTES


def steps_in_chunk(arrays: Arrays, order: NDArray[np.int32]) -> int:
    """How many steps fit into CHUNK_BYTES; all of them where the whole training set does.

    Args:
        order: this rank's part.
    """
    if is_resident(arrays):
        return len(order)
    share: int = order.shape[1]
    return min(len(order), max(LEAST_STEPS, CHUNK_BYTES // (share * sample_bytes(arrays))))


def sample_bytes(arrays: Arrays) -> int:
    return sum(array.itemsize * math.prod(array.shape[1:]) for array in arrays.values())


def steps_in_call(steps_per_epoch: int, at_most: int) -> int:
    """The largest number of steps of which an epoch has a whole number."""
    return max(count for count in range(1, min(at_most, steps_per_epoch) + 1) if steps_per_epoch % count == 0)
