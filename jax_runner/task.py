"""Each kind of task in JAX: from a batch to the model's inputs and targets, the loss and the score of each sample.

harness/work/tasks.py declares them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
from jax import numpy as jnp

from harness.errors import ConfigError
from harness.measure.program import Session
from harness.work.datasets import Dataset
from harness.work.graphs import (
    SAMPLE_ARRAYS,
    SHARED_ARRAYS,
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
from jax_runner.graphs import GraphBatch, packed

Batch = Mapping[str, Any]
"""The task's arrays for some samples, by name; their first axes count the samples. With them those that all samples
share, where the task has any."""
Inputs = Any
"""An array, or a named tuple of arrays."""


class Task(Protocol):
    """Pure functions; to be jitted with the rest of the step."""

    details: Mapping[str, Any] = MappingProxyType({})
    """For `Result.details`."""
    units: Mapping[str, float] = MappingProxyType({})
    """For `Result.units`."""
    room: Room | None = None
    """Of a sample of the batches that the task is given, where samples are packed."""

    def inputs(self, batch: Batch) -> Inputs:
        """What the model takes; images are NHWC."""

    def inputs_of_samples(self, batch: Batch) -> Inputs:
        """The same with a first axis of samples in every array, so that each sample can be taken out."""
        return self.inputs(batch)

    def batch_of_one(self, sample: Inputs) -> Inputs:
        """What the model takes of one sample; from its part of `inputs_of_samples`."""
        return sample[None]

    def targets(self, batch: Batch) -> jax.Array:
        """What the outputs are compared with."""

    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Of each sample, [batch]."""

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        """Over the batch, with `label_smoothing` of a target given to all classes alike."""

    def scores(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Of each sample, [batch]; the metric is made of their mean. For a metric of the whole test set: what it is
        made of, [batch, ...]."""

    def answers(self, outputs: jax.Array) -> jax.Array:
        """What the model says of each thing that a sample asks for: the class, from 0."""
        return outputs.argmax(-1)

    def further_scores(self, outputs: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        """The same of the task's further metrics, by their names."""
        return {}


class Classification(Task):
    """Outputs are logits [batch, classes], targets are labels [batch]."""

    further_metrics: tuple[Metric, ...] = ()

    def targets(self, batch: Batch) -> jax.Array:
        return batch["labels"]

    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets)

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets, label_smoothing).mean()

    def scores(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return outputs.argmax(-1) == targets

    def further_scores(self, outputs: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        if TOP_5 not in self.further_metrics:
            return {}
        of_labels = jnp.take_along_axis(outputs, targets[:, None], axis=-1)
        return {TOP_5.name: (outputs > of_labels).sum(-1) < 5}


class ImageClassification(Classification):
    """uint8 images [batch, height, width, channels]."""

    def __init__(self, mean: Any, std: Any, further_metrics: tuple[Metric, ...], image_size: int | None = None) -> None:
        """`image_size`: height and width of what the model sees, the centre; None for all of an image."""
        self.mean, self.std = mean, std
        self.further_metrics = further_metrics
        self.image_size = image_size

    def inputs(self, batch: Batch) -> jax.Array:
        images = batch["images"]
        return self.normalised(images if self.image_size is None else centre_of(images, self.image_size))

    def normalised(self, images: jax.Array) -> jax.Array:
        """Of mean 0 and standard deviation 1 in each channel."""
        return (images.astype(self.mean.dtype) / 255 - self.mean) / self.std


class GeneratedClassification(Classification):
    """Inputs that are drawn: features, or channels x height x width."""

    def __init__(self, *, are_images: bool) -> None:
        self.are_images = are_images

    def inputs(self, batch: Batch) -> jax.Array:
        inputs = batch["inputs"]
        return jnp.moveaxis(inputs, -3, -1) if self.are_images else inputs


class NextToken(Task):
    """Outputs are logits [batch, positions, vocabulary], targets are tokens [batch, positions]."""

    def inputs(self, batch: Batch) -> jax.Array:
        return batch["tokens"][..., :-1].astype(jnp.int32)

    def targets(self, batch: Batch) -> jax.Array:
        return batch["tokens"][..., 1:].astype(jnp.int32)

    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Of each sample the mean over its positions."""
        return cross_entropy(in_full_precision(outputs), targets).mean(-1)

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets, label_smoothing).mean()

    def scores(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """The perplexity is made of the mean loss."""
        return self.losses(outputs, targets)


class GraphClassification(Task):
    """Packed graphs (graphs.py); outputs are logits [batch, questions], targets are 1, 0 or, where they are missing, -1
    of the same shape."""

    def __init__(self, dataset: Dataset, given: Sequence[Given]) -> None:
        self.parts = (dataset.train, dataset.test)
        self.capacities = capacities_of(given)
        self.units, self.room = units_of(given), room_of(given)
        self.details = describe_packing(given, self.capacities)

    def capacity(self, graphs: int) -> Capacity:
        """Of the batches of so many graphs that were named, or of any."""
        return self.capacities.get(graphs) or capacity_of_any(self.parts, graphs)

    def inputs(self, batch: Batch) -> GraphBatch:
        """Of batches with one more axis before the samples, that axis comes first in every array."""
        if batch["node_count"].ndim == 1:
            return packed(batch, self.capacity(len(batch["node_count"])))
        shared = {name: batch[name] for name in SHARED_ARRAYS}
        return jax.vmap(lambda own: self.inputs(own | shared))({name: batch[name] for name in SAMPLE_ARRAYS})

    def inputs_of_samples(self, batch: Batch) -> GraphBatch:
        return self.inputs({**batch, **{name: batch[name][:, None] for name in SAMPLE_ARRAYS}})

    def batch_of_one(self, sample: GraphBatch) -> GraphBatch:
        return sample

    def targets(self, batch: Batch) -> jax.Array:
        return batch["labels"]

    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Of each graph the sum over the labels that it has, by the number of all questions: what other graphs of the
        batch have changes nothing."""
        return self._losses(outputs, targets, 0.0)

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        return self._losses(outputs, targets, label_smoothing).mean()

    def _losses(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float) -> jax.Array:
        logits = in_full_precision(outputs)
        smoothed = jnp.maximum(targets, 0).astype(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        losses = jnp.maximum(logits, 0) - logits * smoothed + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        return jnp.where(targets >= 0, losses, 0).mean(-1)

    def scores(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """[batch, questions]"""
        return in_full_precision(outputs)

    def answers(self, outputs: jax.Array) -> jax.Array:
        return (outputs > 0).astype(jnp.int32)


def make_task(session: Session[Any], dtype: Any, given: Sequence[Given] = ()) -> Task:
    """
    Args:
        dtype: of the inputs.
        given: the batches that it will be given, for a task whose samples differ in size. Of others it makes room for
            the largest that could be.
    """
    name, constants = session.benchmark.task.name, session.dataset.constants
    if name == "image_classification":
        mean, std = (constants[name].astype(dtype) for name in ("mean", "std"))
        return ImageClassification(mean, std, session.benchmark.task.further_metrics, session.image_size)
    if name == "next_token":
        return NextToken()
    if name == "generated_classification":
        return GeneratedClassification(are_images=len(drawn_shape(session)) == 3)
    if name == "graph_classification":
        return GraphClassification(session.dataset, given)
    raise ConfigError(f"{session.benchmark.name}: jax_runner/task.py has no task {name}")


def centre_of(images: jax.Array, size: int) -> jax.Array:
    """[..., height, width, channels] to [..., size, size, channels]."""
    height, width = images.shape[-3:-1]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size, :]


def drawn_shape(session: Session[Any]) -> tuple[int, ...]:
    """Of one sample: features, or channels x height x width."""
    measurement, benchmark = session.measurement, session.benchmark
    assert benchmark.drawn
    return benchmark.drawn.shape(measurement.variant.model, benchmark.sizes.model_validate(measurement.sizes))


def cross_entropy(logits: jax.Array, labels: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
    """Logits [..., classes] and labels [...] to losses [...]. With smoothing a, the target is a distribution: a over
    all classes alike and 1 - a for the label, as PyTorch's F.cross_entropy has it.

    The label's logit is picked by comparing, not by indexing: the gradient of an indexed read is an array of zeros and
    a scatter, two kernels of a small step that XLA cannot fuse with the rest of it. On a CPU this is the slower one of
    the two where there are many classes.
    """
    logits -= jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    of_target = jnp.where(is_label, logits, 0).sum(-1)
    if label_smoothing:
        of_target = (1 - label_smoothing) * of_target + label_smoothing * logits.mean(-1)
    return jnp.log(jnp.exp(logits).sum(-1)) - of_target


def in_float64(inputs: Inputs) -> Inputs:
    """For a reference on the very same inputs; integers, such as tokens, stay what they are."""
    return jax.tree.map(
        lambda array: array.astype(jnp.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array, inputs
    )


def samples_of(inputs: Inputs) -> list[Inputs]:
    """One by one along the first axis."""
    leaves, structure = jax.tree.flatten(inputs)
    return [jax.tree.unflatten(structure, own) for own in zip(*leaves, strict=True)]


def in_full_precision(outputs: jax.Array) -> jax.Array:
    return outputs.astype(jnp.float32) if outputs.dtype in (jnp.bfloat16, jnp.float16) else outputs
