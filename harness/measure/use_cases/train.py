"""Use cases 1 and 2: what a program of either framework does alike.

The data set lies on the device, or a chunk of it; a step gathers its batch there, by an order that numpy drew from the
seed, so both frameworks see the same batches. A schedule of rates and the crops of an augmentation are arrays as well.

On several devices each takes its own part of every batch, and the gradients are averaged (several_devices.py); of
sharded parameters each device keeps its part, but in the control without communication, where they are whole.
BatchNorm's statistics are the device's own; the first device's are what the evaluation in the record uses.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.program import Means, Session, Trains, on_device_or_cpu
from harness.results.parity import Numbers
from harness.results.record import Check
from harness.work.array_files import gather
from harness.work.chunks import Chunks, is_resident, steps_in_call, steps_in_chunk
from harness.work.graphs import Given
from harness.work.optimizers import Reference, Vector
from harness.work.use_cases import train as work

Batch = dict[str, NDArray[Any]]


class TrainingBase(Trains):
    """See harness/measure/program.py."""

    SEVERAL_STEPS: str
    """What a call of several steps is, for the check's name."""

    def __init__(self, session: Session[Any], *, joined: bool, steps_at_once: int | None) -> None:
        """
        Args:
            joined: average the gradients over the devices, where there are several.
            steps_at_once: that one call has, at most; None for all that are loaded.
        """
        measurement, train = session.measurement, session.dataset.train
        self.settings = settings = work.Settings.model_validate(measurement.settings)
        self.session = session
        self.world = session.world
        self.communicates = joined and not session.is_alone
        options = work.Options.model_validate(measurement.variant.options)
        self.is_sharded = self.communicates and options.parameters == "sharded"
        self.starting_weight = session.weights_of(settings.weights, session.model.initial_weight)
        self.samples_per_step = batch_size = measurement.variant.batch_size
        seed, balanced_by = measurement.seed, session.benchmark.task.balanced_by
        self.steps = work.steps_of(settings, seed, train, batch_size, balanced_by)
        self.order = self.steps.order
        self.own = self.world.rows(batch_size)
        """This rank's part of a batch."""
        own_order = self.order[:, self.own]
        loaded_steps = steps_in_chunk(train, own_order)
        at_most = min(steps_at_once or loaded_steps, loaded_steps)
        self.steps_per_call = steps_in_call(len(self.order) // settings.epochs, at_most)
        self.is_resident = is_resident(train)
        self.chunks = Chunks(
            arrays=train,
            order=own_order,
            steps=loaded_steps // self.steps_per_call * self.steps_per_call,
            devices=self.world.devices_per_rank,
        )
        self.chunk_there = 0

    @property
    def given(self) -> list[Given]:
        """The batches of each device and step, and of the evaluation."""
        train, test = self.session.dataset.train, self.session.dataset.test
        to_evaluate = work.evaluation_rows(self.settings, test, self.session.outputs_of_sample)
        of_devices = self.order.reshape(-1, self.samples_per_step // self.world.device_count)
        return [Given(arrays=train, batches=of_devices), Given(arrays=test, batches=to_evaluate)]

    def first_samples(self) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int32], NDArray[np.int32] | None]:
        """Those that come to the device first, the order of the steps among them, and the crops of this rank's part."""
        crops = None if self.steps.crops is None else self.steps.crops[:, self.own]
        if self.is_resident:
            return self.session.dataset.train, self.chunks.order, crops
        return self.chunks.gathered(0), self.chunks.slots, crops

    def load(self, first_step: int) -> int:
        if self.is_resident:
            return len(self.order) - first_step
        number = self.chunks.number_of(first_step)
        if number != self.chunk_there:
            self.bring(self.chunks.gathered(number))
            self.chunk_there = number
        return self.chunks.steps_left(first_step)

    @abstractmethod
    def bring(self, samples: Batch) -> None:
        """Into the place of the chunk before."""

    def own_samples(self, step: int) -> Batch:
        """This rank's part of a step's batch, on the host."""
        step %= len(self.order)
        batch = {name: gather(array, self.order[step, self.own]) for name, array in self.session.dataset.train.items()}
        return batch if self.steps.crops is None else batch | {"crops": self.steps.crops[step, self.own]}

    @abstractmethod
    def weights(self) -> Numbers:
        """By neutral name, as all of these."""

    @abstractmethod
    def statistics(self) -> Numbers:
        """BatchNorm's running ones."""

    @abstractmethod
    def moments(self) -> Mapping[str, Numbers]:
        """What AdamW keeps, by the names that the parity gate has for it."""

    def updates(self) -> Numbers:
        """What training has added to the weights, in which a difference would drown."""
        return {name: value - self.starting_weight(name, value.shape) for name, value in self.weights().items()}

    def mean_losses(self, kept: list[Any]) -> NDArray[np.float64]:
        """[steps], over all devices."""
        losses: NDArray[np.float64] = self.session.device.mean_over_ranks(self.losses(kept))
        return losses

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the program that is timed does what plain training in float64 does. Of several
        steps in one call, other programs of the same steps are checked so, and of the timed one its losses. It is left
        as if nothing had been trained."""
        precision = self.session.measurement.variant.precision
        reference = on_device_or_cpu(self.session, self.reference_on)
        work.require_finite(reference.losses, epoch=1)
        actual, name = self.checked_course()
        checks = work.check_training(
            actual, reference, precision, name, batch_norm=self.session.model.batch_norm is not None
        )
        if self.steps_per_call > 1:
            self.reset()
            losses = self.mean_losses([self.kept(self.step())])
            checks += work.check_first_losses(losses, reference.losses, precision, self.SEVERAL_STEPS)
        self.reset()
        return checks

    @abstractmethod
    def checked_course(self) -> tuple[work.Course, str]:
        """CHECK_STEPS steps from the initial weights, and what the program that made them is called."""

    @abstractmethod
    def reference_on(self, device: Any) -> work.Course:
        """By `plain_course` in float64. Every device computes the gradients of its own part of a batch."""

    def plain_course(
        self,
        initial: Vector,
        weight_decay: Vector,
        gradient_and_loss: Callable[[Vector, int], Vector],
        named: Callable[[Vector], Numbers],
    ) -> work.Course:
        """By the optimizer as it is written down.

        Args:
            initial: all weights as one vector.
            weight_decay: that of each.
            gradient_and_loss: of weights and a step, [weights + 1]; the means over all devices.
            named: a vector as tensors.
        """
        optimizer, losses = Reference(self.settings, initial, weight_decay), []
        for step in range(work.CHECK_STEPS):
            mean = gradient_and_loss(optimizer.weights, step)
            losses.append(mean[-1])
            optimizer.step(mean[:-1], self.steps.rate(step))
            if step == 0:
                gradients = named(optimizer.first_gradient())
        return work.Course(losses=np.array(losses), gradients=gradients, updates=named(optimizer.weights - initial))

    def evaluate(self) -> Means:
        """Every device does all that is evaluated of the test set."""
        test, metric = self.session.dataset.test, self.session.benchmark.task.metric
        sums, said = [], []
        evaluated = self.evaluator()
        for rows in work.evaluation_rows(self.settings, test, self.session.outputs_of_sample):
            batch = {name: np.asarray(array[rows[0] : rows[-1] + 1]) for name, array in test.items()}
            of_batch, scores, targets = evaluated(batch)
            sums.append(of_batch)
            if metric.of == "test_set":
                said.append((scores, targets))
        count = work.evaluation_count(self.settings, self.session.dataset.test_count)
        return Means.of_sums(sums, count, metric.of_test_set(said))

    @abstractmethod
    def evaluator(self) -> Callable[[Batch], tuple[Any, NDArray[Any], NDArray[Any]]]:
        """From a batch to the sums of its losses, scores and further scores, and to its scores and targets."""

    def parity(self) -> Numbers:
        """Of the first batch: outputs, mean loss, gradient (clipped, where it is), running statistics. Of the steps:
        losses, what they have added to the parameters, running statistics. Gradients and losses are means over the
        devices; statistics are rank 0's."""
        of_first, kept = self.first_steps()
        losses = self.mean_losses(kept)
        named = {**self.moments(), "updates": self.updates(), "statistics_after_steps": self.statistics()}
        of_steps = {f"{quantity}/{name}": value for quantity, own in named.items() for name, value in own.items()}
        return {"loss": losses[0], "losses_of_steps": losses, **of_first, **of_steps}

    @abstractmethod
    def first_steps(self) -> tuple[Numbers, list[Any]]:
        """Of the first batch: outputs, gradient and running statistics. And the losses of PARITY_STEPS steps, kept."""
