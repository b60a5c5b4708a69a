"""Use case 5: what a program of either framework does alike. The model is in evaluation: BatchNorm takes its running
statistics, if it was not folded into the convolutions. One call is one batch.

In bf16 and fp16 weights and inputs are stored in half precision, where training converts float32 weights in every call.
BatchNorm that is kept has its own numbers in float32.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.program import Answers, Infers, Session, on_device_or_cpu
from harness.results.parity import Numbers
from harness.results.record import Check
from harness.work.folding import folded
from harness.work.use_cases import inference as work
from harness.work.weights import WeightOf, inference_weight


class InferenceBase(Infers):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Any]) -> None:
        measurement = session.measurement
        self.session = session
        self.device = session.device.device
        self.options = work.Options.model_validate(measurement.variant.options)
        self.settings = work.Settings.model_validate(measurement.settings)
        draw = partial(inference_weight, draw=session.model.initial_weight)
        self.weight_of = session.weights_of(self.settings.weights, draw)
        self.requests = work.Requests.of(measurement, session.benchmark, session.dataset)
        self.on_host = self.options.inputs == "on_host"
        work.require_whole_inputs(session.benchmark.task, self.options)
        self.samples_per_step = measurement.variant.batch_size
        self.on_the_host: list[Any] = []
        """What comes to the device in turn, where inputs are on the host."""
        self.next_batch = 0
        self.inputs: Any = None
        """On the device."""

    @property
    def host_memory(self) -> dict[str, str]:
        """For the record."""
        where = "pinned" if self.session.device.on_gpu else "not pinned: without a GPU there is nothing to copy to"
        return {"host_memory": where} if self.on_host else {}

    def timed_weights(self, model: Any, without_batch_norm: Callable[[Any], list[str]]) -> WeightOf:
        """Those of the model that is timed, out of which BatchNorm is taken where it is folded."""
        batch_norm = self.session.model.batch_norm
        if not batch_norm or self.options.batch_norm == "kept":
            return self.weight_of
        return folded(self.weight_of, without_batch_norm(model), batch_norm.epsilon)

    @abstractmethod
    def take(self, batches: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Answer these from now on, in turn; of inputs that lie on the device, the only one."""

    @abstractmethod
    def outputs(self) -> Any:
        """Of the next step, which is the one that is timed, where it leaves them."""

    @abstractmethod
    def to_numpy(self, outputs: Any) -> NDArray[np.float64]: ...

    @abstractmethod
    def judged(self, outputs: Any, arrays: Mapping[str, NDArray[Any]]) -> tuple[Any, Any, Any]:
        """What the outputs say of these samples, the task's scores in float64, and its targets."""

    @abstractmethod
    def reference_on(self, device: Any) -> NDArray[np.float64]:
        """The outputs of the check's distinct samples in float64, with BatchNorm."""

    def answer_to(self, batch: Mapping[str, NDArray[Any]]) -> Any:
        self.take([batch])
        return self.outputs()

    def settle(self) -> None:
        self.take(self.requests.timed(work.HOST_BATCHES if self.on_host else 1))

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the program that is timed gives the outputs of the model in float64."""
        actual = [self.to_numpy(self.answer_to(batch)) for batch in self.requests.checked()]
        reference = on_device_or_cpu(self.session, self.reference_on)
        return work.check_outputs(actual, reference, self.session.measurement.variant.precision)

    def answers(self) -> Answers | None:
        if self.session.benchmark.data is None:
            return None
        labels, said = [], []
        for rows, batch in self.requests.predicted():
            arrays = {name: array[rows] for name, array in self.session.dataset.test.items()}
            of_batch, scores, targets = self.judged(self.answer_to(batch)[: len(rows)], arrays)
            labels.append(of_batch)
            said.append((scores, targets))
            if work.are_enough(labels):
                break
        self.settle()
        return Answers(
            np.concatenate(labels), *work.quality_of(said, self.session.benchmark.task.metric, self.settings)
        )

    def parity(self) -> Numbers:
        return {"outputs": self.to_numpy(self.outputs())}
