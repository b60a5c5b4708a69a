"""Use case 6, training steps of N models of one kind at once on one GPU: what a program of either framework does alike.

The models differ in their initial weights, and by option in their batches and in their learning rates. A batch size is
that of one model: a step does N times as many samples. The batch lies on the device, and each call uses it again.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.program import Phase, Program, Session
from harness.results.parity import PARITY_STEPS, Numbers
from harness.results.record import Check
from harness.work.use_cases import many_models as work


class ProblemBase:
    """N models, their learning rates and batches."""

    def __init__(self, session: Session[Any]) -> None:
        measurement, benchmark = session.measurement, session.benchmark
        options = work.Options.model_validate(measurement.variant.options)
        settings = work.Settings.model_validate(measurement.settings)
        self.session = session
        self.seed = measurement.seed
        self.count = options.models
        self.batch_size = measurement.variant.batch_size
        self.shared = options.batches == "same"
        self.separate_rates = options.learning_rates == "separate"
        self.lead = work.leading_axes(self.count, self.batch_size, options.batches)
        self.rates = work.learning_rates(settings.learning_rate, self.count, options.learning_rates)
        self.momentum = settings.momentum
        self.given = [] if benchmark.drawn else work.given_batches(session.dataset, self.lead)
        self.drawn = benchmark.drawn
        if self.drawn:
            sizes = benchmark.sizes.model_validate(measurement.sizes)
            self.drawn_shape = self.drawn.shape(measurement.variant.model, sizes)
            self.drawn_classes = self.drawn.classes(measurement.variant.model, sizes)

    def check_arrays(self) -> dict[str, NDArray[Any]]:
        """[models, batch, ...], or one batch for all: the same numbers in both frameworks."""
        if self.drawn:
            return work.drawn_batch(self.seed, self.lead, self.drawn_shape, self.drawn_classes)
        return {**work.first_batch(self.session.dataset, self.lead), **self.session.dataset.shared}


class ManyModelsBase(Program):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Any], problem: Any) -> None:
        self.session, self.problem = session, problem
        self.model_count = problem.count
        self.samples_per_step = problem.count * problem.batch_size
        self.units = problem.task.units

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the step that is timed does to every model what training it alone does."""
        self.reset()
        losses = [self.losses_of(self.step()) for _ in range(work.CHECK_STEPS)]
        actual = work.Course(losses=np.stack(losses), updates=self.updates())
        losses_alone, updates = zip(*self.alone(), strict=True)
        stacked = {name: np.stack([of_model[name] for of_model in updates]) for name in updates[0]}
        alone = work.Course(losses=np.array(losses_alone).T, updates=stacked)
        return work.check_course(actual, alone, self.session.measurement.variant.precision)

    def updates(self) -> Numbers:
        """What training has added to the models' weights."""
        return work.added_to_weights(self.weights(), self.problem.seed, self.session.model.initial_weight)

    def settle(self) -> None:
        """Where inputs are drawn, those that are timed come from the framework's own generator."""
        if self.problem.drawn:
            self.session.device.wait(self.draw())

    def phases(self) -> list[Phase]:
        """Together they do what the step does, in more time or in the same."""
        data_generation: list[Phase] = [("data_generation", self.draw)] if self.problem.drawn else []
        return [*data_generation, *self.phases_of_step()]

    def parity(self) -> Numbers:
        """Outputs, losses and gradients of the first step, and what five steps add to the weights; a first axis of
        models everywhere."""
        numbers = dict(self.first_step())
        for _ in range(PARITY_STEPS - 1):
            self.step()
        return numbers | {f"updates/{name}": value for name, value in self.updates().items()}

    @abstractmethod
    def losses_of(self, outputs: Any) -> NDArray[np.float64]:
        """Of a step's outputs, [models]."""

    @abstractmethod
    def weights(self) -> Numbers:
        """By neutral name, [models, ...]."""

    @abstractmethod
    def alone(self) -> Iterable[tuple[list[float], Numbers]]:
        """Losses and updates of CHECK_STEPS steps of every model by itself in float64; no two are on the device at
        once."""

    @abstractmethod
    def first_step(self) -> Numbers: ...

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def draw(self) -> Any:
        """Train on a new random batch from now on, made on the device."""

    @abstractmethod
    def phases_of_step(self) -> list[Phase]: ...


class ForwardOnlyBase(ManyModelsBase):
    """The outputs of all models on their batches; nothing is kept for a gradient."""

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the step that is timed gives what every model alone gives."""
        return work.check_forward(self.outputs(), self.outputs_alone(), self.session.measurement.variant.precision)

    @abstractmethod
    def outputs(self) -> NDArray[np.float64]:
        """[models, batch, ...], by the step that is timed."""

    @abstractmethod
    def outputs_alone(self) -> NDArray[np.float64]:
        """[models, batch, ...], in float64."""

    def construction(self) -> list[Phase]:
        return []

    def phases(self) -> list[Phase]:
        return []

    def parity(self) -> Numbers:
        return {"outputs": self.outputs()}
