"""Each kind of task in PyTorch: from a batch to the model's inputs and targets, the loss and the score of each sample.

harness/work/tasks.py declares them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

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
from torch_runner.graphs import GraphBatch, packed

Batch = Mapping[str, Tensor]
"""The task's arrays for some samples, by name; their first axes count the samples. With them those that all samples
share, where the task has any."""
Inputs = Any
"""A tensor, or a named tuple of tensors."""


class Task(nn.Module, ABC):
    """A module, as it may hold constants, which a compiled graph does not copy then."""

    details: Mapping[str, Any] = MappingProxyType({})
    """For `Result.details`."""
    units: Mapping[str, float] = MappingProxyType({})
    """For `Result.units`."""
    room: Room | None = None
    """Of a sample of the batches that the task is given, where samples are packed."""

    @abstractmethod
    def inputs(self, batch: Batch) -> Inputs:
        """What the model takes; images are NCHW."""

    def inputs_of_samples(self, batch: Batch) -> Inputs:
        """The same with a first axis of samples in every tensor, so that each sample can be taken out."""
        return self.inputs(batch)

    def batch_of_one(self, sample: Inputs) -> Inputs:
        """What the model takes of one sample; from its part of `inputs_of_samples`."""
        return sample[None]

    @abstractmethod
    def targets(self, batch: Batch) -> Tensor:
        """What the outputs are compared with."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each sample, [batch]."""

    @abstractmethod
    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Over the batch, with `label_smoothing` of a target given to all classes alike."""

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each sample, [batch]; the metric is made of their mean. For a metric of the whole test set: what it is
        made of, [batch, ...]."""

    def answers(self, outputs: Tensor) -> Tensor:
        """What the model says of each thing that a sample asks for: the class, from 0."""
        return outputs.argmax(-1)

    def further_scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The same of the task's further metrics, by their names."""
        return {}


class Classification(Task):
    """Outputs are logits [batch, classes], targets are labels [batch]."""

    further_metrics: tuple[Metric, ...] = ()

    def targets(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(in_full_precision(outputs), targets, reduction="none")

    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(in_full_precision(outputs), targets, label_smoothing=label_smoothing)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(-1) == targets

    def further_scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        if TOP_5 not in self.further_metrics:
            return {}
        of_labels = outputs.gather(-1, targets[:, None])
        return {TOP_5.name: (outputs > of_labels).sum(-1) < 5}


class ImageClassification(Classification):
    """uint8 images [batch, height, width, channels]."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: Tensor, std: Tensor, further_metrics: tuple[Metric, ...], image_size: int | None = None
    ) -> None:
        """`image_size`: height and width of what the model sees, the centre; None for all of an image."""
        super().__init__()
        self.further_metrics = further_metrics
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.image_size = image_size

    def inputs(self, batch: Batch) -> Tensor:
        images = batch["images"]
        return self.normalised(images if self.image_size is None else centre_of(images, self.image_size))

    def normalised(self, images: Tensor) -> Tensor:
        """Of mean 0 and standard deviation 1 in each channel, with the strides of channels_last."""
        return ((images.to(self.mean.dtype) / 255 - self.mean) / self.std).movedim(-1, -3)


class GeneratedClassification(Classification):
    """Inputs that are drawn: features, or channels x height x width."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def inputs(self, batch: Batch) -> Tensor:
        return batch["inputs"].to(self.dtype)


class NextToken(Task):
    """Outputs are logits [batch, positions, vocabulary], targets are tokens [batch, positions]."""

    def inputs(self, batch: Batch) -> Tensor:
        return as_indices(batch["tokens"][..., :-1])

    def targets(self, batch: Batch) -> Tensor:
        return as_indices(batch["tokens"][..., 1:])

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each sample the mean over its positions."""
        of_positions = F.cross_entropy(in_full_precision(outputs).flatten(0, 1), targets.flatten(), reduction="none")
        return of_positions.view_as(targets).mean(-1)

    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        of_positions = in_full_precision(outputs).flatten(0, 1)
        return F.cross_entropy(of_positions, targets.flatten(), label_smoothing=label_smoothing)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
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

    def inputs(self, batch: Batch) -> GraphBatch:
        """Of batches with one more axis before the samples, that axis comes first in every tensor."""
        if batch["node_count"].dim() == 1:
            return packed(batch, self.capacity(len(batch["node_count"])))
        shared = {name: batch[name] for name in SHARED_ARRAYS}
        parts = [{name: batch[name][i] for name in SAMPLE_ARRAYS} for i in range(len(batch["node_count"]))]
        return GraphBatch(*map(torch.stack, zip(*(self.inputs(part | shared) for part in parts), strict=True)))

    def inputs_of_samples(self, batch: Batch) -> GraphBatch:
        return self.inputs({**batch, **{name: batch[name][:, None] for name in SAMPLE_ARRAYS}})

    def batch_of_one(self, sample: GraphBatch) -> GraphBatch:
        return sample

    def targets(self, batch: Batch) -> Tensor:
        return batch["labels"]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of each graph the sum over the labels that it has, by the number of all questions: what other graphs of the
        batch have changes nothing."""
        return self._losses(outputs, targets, 0.0)

    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return self._losses(outputs, targets, label_smoothing).mean()

    def _losses(self, outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        logits = in_full_precision(outputs)
        smoothed = targets.clamp(min=0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, smoothed, reduction="none")
        return torch.where(targets >= 0, losses, 0).mean(-1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[batch, questions]"""
        return in_full_precision(outputs)

    def answers(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()


def make_task(session: Session[Any], dtype: torch.dtype, given: Sequence[Given] = ()) -> Task:
    """To be moved to the device with the model.

    Args:
        dtype: of the inputs.
        given: the batches that it will be given, for a task whose samples differ in size. Of others it makes room for
            the largest that could be.
    """
    name, constants = session.benchmark.task.name, session.dataset.constants
    if name == "image_classification":
        mean, std = (torch.from_numpy(constants[name]).to(dtype) for name in ("mean", "std"))
        return ImageClassification(mean, std, session.benchmark.task.further_metrics, session.image_size)
    if name == "next_token":
        return NextToken()
    if name == "generated_classification":
        return GeneratedClassification(dtype)
    if name == "graph_classification":
        return GraphClassification(session.dataset, given)
    raise ConfigError(f"{session.benchmark.name}: torch_runner/task.py has no task {name}")


def centre_of(images: Tensor, size: int) -> Tensor:
    """[..., height, width, channels] to [..., size, size, channels]."""
    height, width = images.shape[-3:-1]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size, :]


def to_device(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """32-bit integers become 64-bit ones, which PyTorch takes as labels and indices; 16 bits without a sign become the
    same bits with one, as PyTorch gathers no rows of the former (`as_indices`). On the CPU, what can be written to is
    not copied."""
    known = {name: array.view(np.int16) if array.dtype == np.uint16 else array for name, array in arrays.items()}
    placed = {
        name: torch.as_tensor(array, device=device) if array.flags.writeable else torch.tensor(array, device=device)
        for name, array in known.items()
    }
    return {name: tensor.long() if tensor.dtype == torch.int32 else tensor for name, tensor in placed.items()}


def as_indices(tokens: Tensor) -> Tensor:
    """From as many bits as the vocabulary takes. Those of 16 bits have no sign, whatever their type (`to_device`)."""
    return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()


def in_float64(inputs: Inputs) -> Inputs:
    """For a reference on the very same inputs; integers, such as tokens, stay what they are."""
    return tree_map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, inputs)


def samples_of(inputs: Inputs) -> list[Inputs]:
    """One by one along the first axis."""
    leaves, structure = tree_flatten(inputs)
    return [tree_unflatten(list(own), structure) for own in zip(*leaves, strict=True)]


def in_layout(images: Tensor, memory_format: torch.memory_format) -> Tensor:
    """[batch, channels, height, width], also by its strides: of one channel both layouts are contiguous, and
    convolutions go by the strides. Nothing is copied where that is all."""
    if memory_format == torch.channels_last:
        return in_layout(images.movedim(1, -1), torch.contiguous_format).movedim(-1, 1)
    return images.contiguous().flatten(1).unflatten(1, images.shape[1:])


def in_full_precision(outputs: Tensor) -> Tensor:
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
