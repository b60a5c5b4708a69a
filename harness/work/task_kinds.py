"""Each kind of task as both frameworks have it: from a batch to the model's inputs and targets, the loss and the score
of each sample. harness/work/tasks.py declares them; the arithmetic is in each runner's task.py, in pure functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.work.datasets import Dataset
from harness.work.graphs import (
    SAMPLE_ARRAYS,
    Capacity,
    Given,
    Room,
    capacities_of,
    capacity_of_any,
    describe_packing,
    room_of,
    units_of,
)
from harness.work.tasks import TOP_5, Metric

Array = Any
"""Of a framework."""
Batch = Mapping[str, Any]
"""The task's arrays for some samples, by name; their first axes count the samples. With them those that all samples
share, where the task has any."""
Inputs = Any
"""An array, or a named tuple of arrays."""


class Task(ABC):
    details: Mapping[str, Any] = MappingProxyType({})
    """For `Result.details`."""
    units: Mapping[str, float] = MappingProxyType({})
    """For `Result.units`."""
    room: Room | None = None
    """Of a sample of the batches that the task is given, where samples are packed."""

    @abstractmethod
    def inputs(self, batch: Batch) -> Inputs:
        """What the model takes; images are NHWC in JAX and NCHW in PyTorch."""

    def inputs_of_samples(self, batch: Batch) -> Inputs:
        """The same with a first axis of samples in every array, so that each sample can be taken out."""
        return self.inputs(batch)

    def batch_of_one(self, sample: Inputs) -> Inputs:
        """What the model takes of one sample; from its part of `inputs_of_samples`."""
        return sample[None]

    @abstractmethod
    def targets(self, batch: Batch) -> Array:
        """What the outputs are compared with."""

    @abstractmethod
    def losses(self, outputs: Array, targets: Array) -> Array:
        """Of each sample, [batch]."""

    @abstractmethod
    def mean_loss(self, outputs: Array, targets: Array, label_smoothing: float = 0.0) -> Array:
        """Over the batch, with `label_smoothing` of a target given to all classes alike."""

    @abstractmethod
    def scores(self, outputs: Array, targets: Array) -> Array:
        """Of each sample, [batch]; the metric is made of their mean. For a metric of the whole test set: what it is
        made of, [batch, ...]."""

    def answers(self, outputs: Array) -> Array:
        """What the model says of each thing that a sample asks for: the class, from 0."""
        return outputs.argmax(-1)

    def further_scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        """The same of the task's further metrics, by their names."""
        return {}


class Classification(Task):
    """Outputs are logits [batch, classes], targets are labels [batch]."""

    further_metrics: tuple[Metric, ...] = ()

    def targets(self, batch: Batch) -> Array:
        return batch["labels"]

    def scores(self, outputs: Array, targets: Array) -> Array:
        return outputs.argmax(-1) == targets

    def further_scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        if TOP_5 not in self.further_metrics:
            return {}
        return {TOP_5.name: (outputs > self.of_labels(outputs, targets)).sum(-1) < 5}

    @abstractmethod
    def of_labels(self, outputs: Array, targets: Array) -> Array:
        """The labels' logits, [batch, 1]."""


class ImageClassification(Classification):
    """uint8 images [batch, height, width, channels]."""

    image_size: int | None
    """Height and width of what the model sees, the centre; None for all of an image."""

    def inputs(self, batch: Batch) -> Array:
        images = batch["images"]
        return self.normalised(images if self.image_size is None else centre_of(images, self.image_size))

    @abstractmethod
    def normalised(self, images: Array) -> Array:
        """Of mean 0 and standard deviation 1 in each channel."""


class NextToken(Task):
    """Outputs are logits [batch, positions, vocabulary], targets are tokens [batch, positions]. The loss of a sample is
    the mean over its positions."""

    def inputs(self, batch: Batch) -> Array:
        return self.as_indices(batch["tokens"][..., :-1])

    def targets(self, batch: Batch) -> Array:
        return self.as_indices(batch["tokens"][..., 1:])

    @abstractmethod
    def as_indices(self, tokens: Array) -> Array: ...

    def scores(self, outputs: Array, targets: Array) -> Array:
        """The perplexity is made of the mean loss."""
        return self.losses(outputs, targets)


class GraphClassification(Task):
    """Packed graphs (graphs.py); outputs are logits [batch, questions], targets are 1, 0 or, where they are missing, -1
    of the same shape."""

    def __init__(self, dataset: Dataset, given: Sequence[Given]) -> None:
        super().__init__()
        self.parts = (dataset.train, dataset.test)
        self.capacities = capacities_of(given)
        self.units, self.room = units_of(given), room_of(given)
        self.details = describe_packing(given, self.capacities)

    def capacity(self, graphs: int) -> Capacity:
        """Of the batches of so many graphs that were named, or of any."""
        return self.capacities.get(graphs) or capacity_of_any(self.parts, graphs)

    def inputs_of_samples(self, batch: Batch) -> Inputs:
        return self.inputs({**batch, **{name: batch[name][:, None] for name in SAMPLE_ARRAYS}})

    def batch_of_one(self, sample: Inputs) -> Inputs:
        return sample

    def targets(self, batch: Batch) -> Array:
        return batch["labels"]

    def losses(self, outputs: Array, targets: Array) -> Array:
        """Of each graph the sum over the labels that it has, by the number of all questions: what other graphs of the
        batch have changes nothing."""
        return self.smoothed_losses(outputs, targets, 0.0)

    def mean_loss(self, outputs: Array, targets: Array, label_smoothing: float = 0.0) -> Array:
        return self.smoothed_losses(outputs, targets, label_smoothing).mean()

    @abstractmethod
    def smoothed_losses(self, outputs: Array, targets: Array, label_smoothing: float) -> Array: ...


def centre_of(images: Array, size: int) -> Array:
    """[..., height, width, channels] to [..., size, size, channels]."""
    height, width = images.shape[-3:-1]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size, :]
