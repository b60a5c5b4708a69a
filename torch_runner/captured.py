"""What a model's layers see in one forward and one backward pass: their inputs, and the gradients by their outputs.

From these two a layer's weight gradient can be had sample by sample, or its norm without the gradient, or a weighted
sum.

harness/work/graphs.py says what is made of packed graphs, and what `by_sample`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

from harness.work.applies import unknown_layer
from harness.work.graphs import GraphBatch, Places
from harness.work.task_kinds import Inputs
from torch_runner.graphs import places_of, side_by_side
from torch_runner.models.gpt import LayerNorm, Positions, TiedHead
from torch_runner.models.molpcba import CodeTable, GraphNorm, Root
from torch_runner.task import Task

Tensors = dict[str, Tensor]
Capture = Callable[[Inputs, Tensor], tuple[Tensors, Tensors]]
"""(inputs [batch, ...], targets [batch, ...]) -> by layer, its input and the gradient of the summed losses by its
output; of packed graphs, by rows."""


PATCH_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""Memory for the patches of outer_product. On a CPU a larger piece would come from the system anew, page by page, in
every step (glibc's M_MMAP_THRESHOLD); on a GPU this only bounds the memory."""
SCALES = (LayerNorm, GraphNorm)
"""A weight for each feature."""
KNOWN = (nn.Conv2d, nn.Linear, nn.Embedding, Positions, *SCALES, Root, TiedHead)
"""Layers whose weight gradients can be made of what they see."""


class Problem(Protocol):
    """The model and its loss, as use case 3 has them."""

    model: nn.Module
    params: Tensors
    device: torch.device
    bf16: bool
    task: Task

    def batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]: ...
    def apply(self, params: Tensors, inputs: Tensor) -> Tensor: ...


def capture_layers(problem: Problem, layers: Mapping[str, nn.Module], *, traced: bool) -> Capture:
    """By hooks on the model's layers; the weights' own gradients are never computed.

    `traced`: the gradient is that by a zero which is added to the layer's output, since torch.compile takes no
    torch.autograd.grad.
    """
    model = problem.model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    layer_inputs: Tensors = {}
    outputs: Tensors = {}
    zeros: Tensors = {}

    def capture(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            layer_inputs[name] = arguments[0].detach()
            if traced:
                outputs[name] = output + zeros[name] if zeros else output
            else:
                outputs[name] = output if output.requires_grad else output.requires_grad_()
            return outputs[name]

        return hook

    for name, module in layers.items():
        module.register_forward_hook(capture(name))
    of_graphs = [name for name, module in layers.items() if getattr(module, "rows", None) == "graphs"]

    def losses_of(inputs: Inputs, targets: Tensor) -> Tensor:
        """[batch]"""
        with torch.autocast(problem.device.type, torch.bfloat16, enabled=problem.bf16):
            model_outputs = model(inputs)
        return problem.task.losses(model_outputs, targets)

    def forget() -> None:
        for kept in (layer_inputs, outputs, zeros):
            kept.clear()

    def without_padding(captured: Tensors, batch_size: int) -> Tensors:
        """Behind the graphs there may be one more, that of the padding."""
        return captured | {name: captured[name][:batch_size] for name in of_graphs}

    def differentiate(inputs: Inputs, targets: Tensor) -> tuple[Tensors, Tensors]:
        losses = losses_of(inputs, targets)
        of_layers = [outputs[name] for name in layers]
        output_gradients = torch.autograd.grad(losses, of_layers, torch.ones_like(losses))
        seen, of_outputs = dict(layer_inputs), dict(zip(layers, output_gradients, strict=True))
        forget()
        return without_padding(seen, len(targets)), without_padding(of_outputs, len(targets))

    def loss_and_inputs(added: Tensors, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensors]:
        zeros.update(added)
        return losses_of(inputs, targets).sum(), dict(layer_inputs)

    def differentiate_traced(inputs: Inputs, targets: Tensor) -> tuple[Tensors, Tensors]:
        losses_of(inputs, targets)  # for the outputs' shapes; the compiler drops it
        no_change = {name: torch.zeros_like(output) for name, output in outputs.items()}
        output_gradients, seen = grad(loss_and_inputs, has_aux=True)(no_change, inputs, targets)
        forget()
        return without_padding(seen, len(targets)), without_padding(output_gradients, len(targets))

    return differentiate_traced if traced else differentiate


def places_in(inputs: Inputs, task: Task) -> Mapping[str, Places]:
    """Of the rows of packed graphs; of other inputs there are none."""
    return places_of(inputs, task.room) if isinstance(inputs, GraphBatch) and task.room else {}


def by_sample(
    module: nn.Module, layer_input: Tensor, gradient: Tensor, places: Mapping[str, Places]
) -> tuple[Tensor, Tensor]:
    """Both with a first axis of samples, also of packed graphs. A table of codes is then a dense layer, which sees how
    often each code is there."""
    of_rows = places.get(getattr(module, "rows", ""))
    if of_rows is None:
        return layer_input, gradient
    seen, gradient = side_by_side(layer_input, of_rows), side_by_side(gradient, of_rows)
    if isinstance(module, CodeTable):
        counts = gradient.new_zeros(*seen.shape[:-1], module.num_embeddings)
        seen = counts.scatter_add(-1, seen, torch.ones_like(seen, dtype=gradient.dtype))
    return seen, gradient


def require_known(formulation: str, name: str, module: nn.Module) -> None:
    """Raises Refused."""
    if not isinstance(module, KNOWN):
        raise unknown_layer(formulation, KNOWN, type(module), name or "model")


def weight_of(name: str, module: nn.Module) -> str:
    """The name of the weight that a layer's product has; another layer's where they share it."""
    return f"{module.shares if isinstance(module, TiedHead) else name}.weight"


def patches_of(module: nn.Conv2d, images: Tensor) -> Tensor:
    """What the kernel sees at each position: [samples, channels * window, positions].

    By strides and one copy: F.unfold starts a kernel for each image on CUDA (aten/src/ATen/native/cuda/Im2Col.cu). As
    Opacus does it (opacus/utils/tensor_utils.py, unfold2d).
    """
    assert not isinstance(module.padding, str)
    rows, columns = module.padding
    images = F.pad(images, (columns, columns, rows, rows))
    batch, channels, height, width = images.shape
    of_batch, of_channel, of_row, of_column = images.stride()
    window = [
        (size - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, dilation, stride in zip(
            (height, width), module.kernel_size, module.dilation, module.stride, strict=True
        )
    ]
    steps = [
        *(dilation * step for dilation, step in zip(module.dilation, (of_row, of_column), strict=True)),
        *(stride * step for stride, step in zip(module.stride, (of_row, of_column), strict=True)),
    ]
    seen = images.as_strided((batch, channels, *module.kernel_size, *window), (of_batch, of_channel, *steps))
    return seen.reshape(batch, -1, math.prod(window))


def layer_gradients(module: nn.Module, layer_input: Tensor, output_gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    """Per-sample gradients of one layer's weight, and of its bias where it has one."""
    if isinstance(module, nn.Conv2d):
        by_position = output_gradient.flatten(2)
        weight = convolution_gradients(module, layer_input.to(output_gradient.dtype), by_position)
        return weight, None if module.bias is None else by_position.sum(2)
    gradient = output_gradient.flatten(1, -2) if output_gradient.dim() > 2 else output_gradient.unsqueeze(1)
    if isinstance(module, CodeTable):
        return torch.bmm(layer_input.transpose(1, 2), gradient), None
    if isinstance(module, nn.Embedding):
        tokens, gradient = layer_input.flatten(1), gradient.to(module.weight.dtype)
        table = gradient.new_zeros(len(gradient), *module.weight.shape)
        return table.scatter_add(1, tokens.unsqueeze(-1).expand_as(gradient), gradient), None
    if isinstance(module, Positions):
        return F.pad(gradient, (0, 0, 0, len(module.weight) - gradient.shape[1])), None
    if isinstance(module, Root):
        return gradient.sum(1, keepdim=True), None
    if isinstance(module, SCALES):
        bias = gradient.sum(1) if getattr(module, "bias", None) is not None else None
        return (module.normalised(layer_input).view_as(gradient) * gradient).sum(1), bias
    seen = layer_input.to(gradient.dtype).view(*gradient.shape[:2], -1)
    weight = torch.bmm(gradient.transpose(1, 2), seen)
    return weight, None if getattr(module, "bias", None) is None else gradient.sum(1)


def convolution_gradients(module: nn.Conv2d, layer_input: Tensor, output_gradient: Tensor) -> Tensor:
    """[batch, *weight] from the layer's input and its output's gradient [batch, features, positions].

    The patches are made for a slice of the batch at a time, so that their memory is used again and stays small.
    """
    assert not isinstance(module.padding, str)
    batch_size, features, positions = output_gradient.shape
    patch_size = module.weight[0].numel()
    slice_size = max(1, PATCH_BYTES[layer_input.device.type] // (patch_size * positions * layer_input.element_size()))
    weight = layer_input.new_empty(batch_size, features, patch_size)
    for first in range(0, batch_size, slice_size):
        rows = slice(first, first + slice_size)
        patches = patches_of(module, layer_input[rows])
        torch.bmm(output_gradient[rows], patches.transpose(1, 2), out=weight[rows])
    return weight.view(-1, *module.weight.shape)
