"""Use cases 3 and 4: what a program of either framework does alike.

Outputs are never compared with each other: see harness/work/use_cases/per_sample_gradients.py, which has
the formulas and the formulations.

On several devices each takes its own part of the batch. Per-sample outputs stay where they were computed and nothing
moves between devices; sums are all-reduced (several_devices.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.clock import COLD_CALLS
from harness.measure.program import Program, Session
from harness.results.parity import Numbers
from harness.results.record import Check
from harness.work.use_cases import per_sample_gradients as work


class ProblemBase(ABC):
    """The model, its loss for one sample and for a batch, and the data."""

    task: Any

    def __init__(self, session: Session[Any]) -> None:
        measurement = session.measurement
        self.train = work.samples_of_use(
            session.dataset.train, work.Settings.model_validate(measurement.settings).max_nodes
        )
        self.shared = session.dataset.shared
        self.given = work.given_batches(self.train, measurement.variant.batch_size, session.world.device_count)

    @abstractmethod
    def placed(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """On the device."""

    def laid_out(self, inputs: Any) -> Any:
        """As the model takes them."""
        return inputs

    def batch(self, rows: NDArray[Any]) -> tuple[Any, Any]:
        """Inputs and targets, on the device."""
        batch = self.samples_at(rows)
        return self.laid_out(self.task.inputs(batch)), self.task.targets(batch)

    def samples(self, rows: NDArray[Any]) -> tuple[Any, Any]:
        """The same, and every array of the inputs has a first axis of samples."""
        batch = self.samples_at(rows)
        return self.laid_out(self.task.inputs_of_samples(batch)), self.task.targets(batch)

    def samples_at(self, rows: NDArray[Any]) -> dict[str, Any]:
        return self.placed({name: array[rows] for name, array in self.train.items()} | dict(self.shared))

    @abstractmethod
    def apply(self, params: Any, inputs: Any) -> Any: ...

    def batch_loss(self, params: Any, inputs: Any, targets: Any) -> Any:
        return self.task.mean_loss(self.apply(params, inputs), targets)


class PerSampleGradientsBase(Program):
    """See harness/measure/program.py."""

    problem: Any

    def __init__(self, session: Session[Any], *, joined: bool) -> None:
        """`joined`: add up over the devices what is a sum, where there are several."""
        measurement = session.measurement
        self.session = session
        self.output = work.Options.model_validate(measurement.variant.options).output
        self.settings = work.Settings.model_validate(measurement.settings)
        self.samples_per_step = self.batch_size = measurement.variant.batch_size
        self.rows = np.arange(self.batch_size)
        """Of the training set, in the batch that is timed."""
        self.own = session.world.rows(self.batch_size)
        self.communicates = joined and not session.is_alone and self.output not in work.PER_SAMPLE_OUTPUTS

    def own_batch(self, rows: NDArray[Any]) -> tuple[Any, Any]:
        """This device's part of the batch that is made of these rows, as the formulation takes it."""
        is_whole = self.session.mode.written.whole_batch
        own: tuple[Any, Any] = (self.problem.batch if is_whole else self.problem.samples)(rows[self.own])
        return own

    @abstractmethod
    def to_neutral(self, outputs: Any, *, in_place: bool = False) -> Numbers:
        """What a step gave, of this process's devices."""

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the output for the check's batch is what a float64 loop gives."""
        loop, batch_gradient = self.reference(np.unique(work.check_batch_rows(self.batch_size)))
        return work.check_gradients(
            actual=self.to_neutral(self.step()),
            loop=loop,
            batch_gradient=batch_gradient,
            output=self.output,
            batch_size=self.batch_size,
            clip_norm=self.settings.clip_norm,
            precision=self.session.measurement.variant.precision,
            own=self.own,
        )

    @abstractmethod
    def reference(self, rows: NDArray[Any]) -> tuple[Iterator[Numbers], Numbers]:
        """In float64: the gradient of each of these samples, computed when it is asked for, and that of their mean
        loss."""

    def parity(self) -> Numbers:
        """Outputs of the model and mean loss of the batch, and the output of the step, of all devices together."""
        self.settle()
        outputs, loss = self.forward(self.rows[self.own])
        for _ in range(COLD_CALLS):  # a CUDA graph is captured in the third call, which is what is timed
            gradients = None  # of a large model the batch's are gigabytes: no two of them at once
            gradients = self.step()
        numbers = self.to_neutral(gradients, in_place=True)
        if self.output in work.PER_SAMPLE_OUTPUTS:
            numbers = {name: self.session.of_all_ranks(value) for name, value in numbers.items()}
        return {
            "outputs": self.session.of_all_ranks(outputs),
            "loss": self.session.device.mean_over_ranks(loss),
        } | work.parity_names(self.output, numbers)

    @abstractmethod
    def forward(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The model's outputs for these samples, and their mean loss."""
