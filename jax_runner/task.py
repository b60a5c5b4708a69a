"""Each kind of task in JAX, to be jitted with the rest of the step. harness/work/task_kinds.py has what PyTorch does
alike.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from harness.errors import ConfigError
from harness.measure.program import Session
from harness.work import task_kinds
from harness.work.graphs import SAMPLE_ARRAYS, SHARED_ARRAYS, Given, GraphBatch
from harness.work.task_kinds import Batch, Inputs
from harness.work.tasks import Metric
from jax_runner.graphs import packed

Task = task_kinds.Task


class Classification(task_kinds.Classification):
    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets)

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets, label_smoothing).mean()

    def of_labels(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.take_along_axis(outputs, targets[:, None], axis=-1)


class ImageClassification(Classification, task_kinds.ImageClassification):
    def __init__(self, mean: Any, std: Any, further_metrics: tuple[Metric, ...], image_size: int | None = None) -> None:
        self.mean, self.std = mean, std
        self.further_metrics = further_metrics
        self.image_size = image_size

    def normalised(self, images: jax.Array) -> jax.Array:
        return (images.astype(self.mean.dtype) / 255 - self.mean) / self.std


class GeneratedClassification(Classification):
    """Inputs that are drawn: features, or channels x height x width."""

    def __init__(self, *, are_images: bool) -> None:
        self.are_images = are_images

    def inputs(self, batch: Batch) -> jax.Array:
        inputs = batch["inputs"]
        return jnp.moveaxis(inputs, -3, -1) if self.are_images else inputs


class NextToken(task_kinds.NextToken):
    def as_indices(self, tokens: jax.Array) -> jax.Array:
        return tokens.astype(jnp.int32)

    def losses(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets).mean(-1)

    def mean_loss(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
        return cross_entropy(in_full_precision(outputs), targets, label_smoothing).mean()


class GraphClassification(task_kinds.GraphClassification):
    def inputs(self, batch: Batch) -> GraphBatch:
        """Of batches with one more axis before the samples, that axis comes first in every array."""
        if batch["node_count"].ndim == 1:
            return packed(batch, self.capacity(len(batch["node_count"])))
        shared = {name: batch[name] for name in SHARED_ARRAYS}
        return jax.vmap(lambda own: self.inputs(own | shared))({name: batch[name] for name in SAMPLE_ARRAYS})

    def smoothed_losses(self, outputs: jax.Array, targets: jax.Array, label_smoothing: float) -> jax.Array:
        logits = in_full_precision(outputs)
        smoothed = jnp.maximum(targets, 0).astype(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        losses = jnp.maximum(logits, 0) - logits * smoothed + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        return jnp.where(targets >= 0, losses, 0).mean(-1)

    def scores(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return in_full_precision(outputs)

    def answers(self, outputs: jax.Array) -> jax.Array:
        return (outputs > 0).astype(jnp.int32)


def make_task(session: Session[Any], dtype: Any, given: Sequence[Given] = ()) -> Task:
    """`dtype` is that of the inputs; `given` are the batches that will come, where samples differ in size. Without them
    there is room for the largest that could be."""
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
