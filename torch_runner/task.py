"""Each kind of task in PyTorch. harness/work/task_kinds.py has what JAX does alike."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from harness.errors import ConfigError
from harness.measure.program import Session
from harness.work import task_kinds
from harness.work.graphs import SAMPLE_ARRAYS, SHARED_ARRAYS, Given, GraphBatch
from harness.work.task_kinds import Batch, Inputs
from harness.work.tasks import Metric
from torch_runner.graphs import packed


class Task(nn.Module, task_kinds.Task):
    """A module, as it may hold constants, which a compiled graph does not copy then."""


class Classification(task_kinds.Classification, Task):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(in_full_precision(outputs), targets, reduction="none")

    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(in_full_precision(outputs), targets, label_smoothing=label_smoothing)

    def of_labels(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.gather(-1, targets[:, None])


class ImageClassification(task_kinds.ImageClassification, Classification):
    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: Tensor, std: Tensor, further_metrics: tuple[Metric, ...], image_size: int | None = None
    ) -> None:
        super().__init__()
        self.further_metrics = further_metrics
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.image_size = image_size

    def normalised(self, images: Tensor) -> Tensor:
        """With the strides of channels_last."""
        return ((images.to(self.mean.dtype) / 255 - self.mean) / self.std).movedim(-1, -3)


class GeneratedClassification(Classification):
    """Inputs that are drawn: features, or channels x height x width."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def inputs(self, batch: Batch) -> Tensor:
        return batch["inputs"].to(self.dtype)


class NextToken(task_kinds.NextToken, Task):
    def as_indices(self, tokens: Tensor) -> Tensor:
        """From as many bits as the vocabulary takes. Those of 16 bits have no sign, whatever their type
        (`to_device`)."""
        return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        of_positions = F.cross_entropy(in_full_precision(outputs).flatten(0, 1), targets.flatten(), reduction="none")
        return of_positions.view_as(targets).mean(-1)

    def mean_loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        of_positions = in_full_precision(outputs).flatten(0, 1)
        return F.cross_entropy(of_positions, targets.flatten(), label_smoothing=label_smoothing)


class GraphClassification(task_kinds.GraphClassification, Task):
    def inputs(self, batch: Batch) -> GraphBatch:
        """Of batches with one more axis before the samples, that axis comes first in every tensor."""
        if batch["node_count"].dim() == 1:
            return packed(batch, self.capacity(len(batch["node_count"])))
        shared = {name: batch[name] for name in SHARED_ARRAYS}
        parts = [{name: batch[name][i] for name in SAMPLE_ARRAYS} for i in range(len(batch["node_count"]))]
        return GraphBatch(*map(torch.stack, zip(*(self.inputs(part | shared) for part in parts), strict=True)))

    def smoothed_losses(self, outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        logits = in_full_precision(outputs)
        smoothed = targets.clamp(min=0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, smoothed, reduction="none")
        return torch.where(targets >= 0, losses, 0).mean(-1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return in_full_precision(outputs)

    def answers(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()


def make_task(session: Session[Any], dtype: torch.dtype, given: Sequence[Given] = ()) -> Task:
    """To be moved to the device with the model. `dtype` is that of the inputs; `given` are the batches that will come,
    where samples differ in size. Without them there is room for the largest that could be."""
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


def to_device(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """32-bit integers become 64-bit ones, which PyTorch takes as labels and indices; 16 bits without a sign become the
    same bits with one, as PyTorch gathers no rows of the former (`NextToken`). On the CPU, what can be written to is
    not copied."""
    known = {name: array.view(np.int16) if array.dtype == np.uint16 else array for name, array in arrays.items()}
    placed = {
        name: torch.as_tensor(array, device=device) if array.flags.writeable else torch.tensor(array, device=device)
        for name, array in known.items()
    }
    return {name: tensor.long() if tensor.dtype == torch.int32 else tensor for name, tensor in placed.items()}


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
