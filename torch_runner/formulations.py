"""N models of one kind at once, in each of the ways that PyTorch has for it (use case 6).

Every formulation keeps its inputs in the layout that it computes in, so that a step moves no data:

    separate modules     a list of N tensors [batch, ...]; images are channels_last, as in training
    stacked, dense       [models, batch, features]
    stacked, images      [batch, models * channels, height, width]: models side by side in the channels
    patches              [models * batch, ...]: models one after the other among the samples; images are channels_last
    vmap                 [models, batch, ...]
    one batch for all    [batch, ...] for everybody
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from harness.errors import Refused
from harness.measure.use_cases.many_models import ProblemBase
from harness.work.declared import Mode
from harness.work.task_kinds import Inputs
from torch_runner.compiler import in_mode
from torch_runner.models import for_vmap
from torch_runner.task import Task, in_layout, samples_of

Batches = Any
"""One tensor for all models, or a list of N: a formulation takes back what it has placed or drawn itself."""
Axes = tuple[int, ...]
Read = Callable[[Tensor], Tensor]
MakeModel = Callable[[], nn.Module]
PARALLEL_STREAMS = 32
"""CUDA runs no more at once than PyTorch's pool of streams has (c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""


class Formulation(Protocol):
    """N models as one thing."""

    def outputs(self, inputs: Batches) -> Batches:
        """[models, batch, classes], as one tensor or as a list of N."""

    def losses(self, inputs: Batches, targets: Batches) -> Batches:
        """[models], as one tensor or as a list of N: the mean over each model's batch."""

    def stacked(self, read: Read) -> dict[str, Tensor]:
        """`read` of every parameter, [models, ...] in neutral shape by neutral name."""

    def load(self, values: dict[str, Tensor]) -> None:
        """The other way, in place: compiled code and optimizers keep pointing at the parameters."""

    def parameters_of_models(self) -> list[list[Tensor]]:
        """By model where each has its own; else one list of parameters that begin with an axis of models."""

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Batches, Batches]:
        """A batch [models, batch, ...] or [batch, ...] in this formulation's layout."""

    def draw(self, lead: Axes, shape: Axes, classes: int, generator: torch.Generator) -> tuple[Batches, Batches]:
        """A random batch, drawn on the generator's device in this formulation's layout: normal inputs [*lead, *shape]
        and targets [*lead]; `lead` is (models, batch), or (batch,) for all."""


def make_formulation(
    name: str, make_model: MakeModel, task: Task, count: int, shared: bool, device: torch.device
) -> Formulation:
    """`shared`: all models see the same batch. Raises Refused where the model or the machine cannot do it."""
    if name == "streams" and device.type != "cuda":
        raise Refused("execution mode streams needs an NVIDIA GPU; PyTorch sees none here")
    makers: dict[str, Callable[[], Formulation]] = {
        "loop": lambda: SeparateModels(make_model, task, count, shared, device),
        "conv1d_loop": lambda: SeparateModels(lambda: with_conv1d(make_model()), task, count, shared, device),
        "streams": lambda: StreamedModels(make_model, task, count, shared, device),
        "grouped_conv1d": lambda: StackedModels(make_model, task, count, shared, device, dense=GroupedConv1d),
        "batched": lambda: StackedModels(make_model, task, count, shared, device, dense=BatchedLinear),
        "patches": lambda: PatchedModels(make_model, task, count, shared, device),
        "vmap": lambda: VmappedModels(make_model, task, count, shared, device),
    }
    return makers[name]()


class SeparateModels:
    """N modules, one after the other."""

    def __init__(self, make_model: MakeModel, task: Task, count: int, shared: bool, device: torch.device) -> None:
        models = [make_model() for _ in range(count)]
        self.task, self.shared = task, shared
        self.shapes = neutral_shapes(models[0])
        # PyTorch declares no overload with both.
        self.models = [model.to(device, memory_format=torch.channels_last) for model in models]  # type: ignore[call-overload]

    def outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [model(own) for model, own in zip(self.models, inputs, strict=True)]

    def losses(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        return [self.task.mean_loss(outputs, own) for outputs, own in zip(self.outputs(inputs), targets, strict=True)]

    def stacked(self, read: Read) -> dict[str, Tensor]:
        of_models = zip(*(model.parameters() for model in self.models), strict=True)
        return {
            name: torch.stack([read(parameter).reshape(shape) for parameter in parameters])
            for (name, shape), parameters in zip(self.shapes.items(), of_models, strict=True)
        }

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        for index, model in enumerate(self.models):
            for value, parameter in zip(values.values(), model.parameters(), strict=True):
                parameter.copy_(value[index].reshape(parameter.shape))

    def parameters_of_models(self) -> list[list[Tensor]]:
        return [list(model.parameters()) for model in self.models]

    def place(self, inputs: Inputs, targets: Tensor) -> tuple[list[Inputs], list[Tensor]]:
        if self.shared:
            return [tree_map(as_channels_last, inputs)] * len(self.models), [targets] * len(self.models)
        return [tree_map(as_channels_last, own) for own in samples_of(inputs)], list(targets)

    def draw(
        self, lead: Axes, shape: Axes, classes: int, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        inputs = normal((*lead, *shape[1:], shape[0]), generator).movedim(-1, -len(shape))
        return self.place(inputs, labels_like(lead, classes, generator))


class StreamedModels(SeparateModels):
    """The same loop with each model's work in a CUDA stream of its own; autograd runs its backward pass there too."""

    def __init__(self, make_model: MakeModel, task: Task, count: int, shared: bool, device: torch.device) -> None:
        super().__init__(make_model, task, count, shared, device)
        streams = [torch.cuda.Stream(device) for _ in range(min(count, PARALLEL_STREAMS))]
        self.streams = [streams[index % len(streams)] for index in range(count)]

    def losses(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        main = torch.cuda.current_stream()
        losses = []
        for model, stream, own, own_targets in zip(self.models, self.streams, inputs, targets, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                losses.append(self.task.mean_loss(model(own), own_targets))
        for stream in self.streams:
            main.wait_stream(stream)
        return losses

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Around a compiled backward pass: by itself autograd joins the streams. Inductor (seen in 2.14) computes
        gradients in them without a join, and leaves work in them behind the joins of the forward pass."""
        main = torch.cuda.current_stream()
        for stream in self.streams:
            main.wait_stream(stream)
        for stream in self.streams:
            stream.wait_stream(main)
        yield
        for stream in self.streams:
            main.wait_stream(stream)


class OneForAll(ABC):
    """One function of parameters [models, ...]."""

    def __init__(self, task: Task, count: int, shared: bool, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.task, self.count, self.shared = task, count, shared
        self.parameters = dict(parameters)

    @abstractmethod
    def outputs(self, inputs: Tensor) -> Tensor: ...

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return mean_losses(self.task, self.outputs(inputs), targets, self.shared)

    def stacked(self, read: Read) -> dict[str, Tensor]:
        return {name: read(parameter) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])

    def parameters_of_models(self) -> list[list[Tensor]]:
        return [list(self.parameters.values())]

    def draw(self, lead: Axes, shape: Axes, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.drawn_inputs(lead, shape, generator), labels_like(lead, classes, generator)

    @abstractmethod
    def drawn_inputs(self, lead: Axes, shape: Axes, generator: torch.Generator) -> Tensor: ...


class StackedModels(OneForAll):
    """One module whose layers hold the weights of all models, as [models, ...].

    The model's own forward pass runs on them: what stands between its layers works on activations of all models side by
    side as it does on those of one. Images are side by side for dense layers, too, as `flatten(1)` leaves them.
    """

    def __init__(
        self,
        make_model: MakeModel,
        task: Task,
        count: int,
        shared: bool,
        device: torch.device,
        *,
        dense: "type[BatchedLinear | GroupedConv1d]",
    ) -> None:
        model = make_model()
        is_dense = all(isinstance(layer, nn.Linear) for layer in layers_of(model))
        if dense is GroupedConv1d and not is_dense:
            raise Refused("execution mode grouped_conv1d is for models of dense layers only")
        self.side_by_side = dense is GroupedConv1d or not is_dense
        self.model = replace_layers(model, lambda layer: stacked_layer(layer, count, dense)).to(device)
        super().__init__(task, count, shared, self.model.named_parameters())

    def outputs(self, inputs: Tensor) -> Tensor:
        logits = self.model(inputs)
        if logits.dim() == 3:
            return logits
        return logits.unflatten(1, (self.count, -1)).transpose(0, 1)

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if (self.side_by_side or inputs.dim() > 3) and not self.shared:
            inputs = inputs.transpose(0, 1).flatten(1, 2)
        return inputs.contiguous(), targets

    def drawn_inputs(self, lead: Axes, shape: Axes, generator: torch.Generator) -> Tensor:
        if (self.side_by_side or len(shape) > 1) and not self.shared:
            return normal((lead[-1], self.count * shape[0], *shape[1:]), generator)
        return normal((*lead, *shape), generator)


class PatchedModels(OneForAll):
    """One module with every convolution as one batched matrix product of what its kernel sees at each position.

    Matrix units take products of any shape, and a convolution with as many groups as models by channels that are few.
    What it costs is memory: a kernel of 3 x 3 sees each pixel nine times.
    """

    def __init__(self, make_model: MakeModel, task: Task, count: int, shared: bool, device: torch.device) -> None:
        model = make_model()
        first, *_ = layers_of(model)
        if not isinstance(first, nn.Conv2d):
            raise Refused(
                "execution mode patches is for models that begin with a convolution; of dense ones it is batched"
            )
        layers = {layer: patched_layer(layer, count, for_all=shared and layer is first) for layer in layers_of(model)}
        self.model = replace_layers(model, layers.__getitem__).to(device)
        super().__init__(task, count, shared, self.model.named_parameters())

    def outputs(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs.unflatten(0, (self.count, -1))

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return as_channels_last(inputs if self.shared else inputs.flatten(0, 1)), targets

    def drawn_inputs(self, lead: Axes, shape: Axes, generator: torch.Generator) -> Tensor:
        return normal((math.prod(lead), *shape[1:], shape[0]), generator).movedim(-1, 1)


class VmappedModels(OneForAll):
    """torch.func: one model's function, vmapped over its stacked parameters."""

    def __init__(self, make_model: MakeModel, task: Task, count: int, shared: bool, device: torch.device) -> None:
        stacked, _ = stack_module_state([make_model() for _ in range(count)])
        parameters = ((name, nn.Parameter(value.detach().to(device))) for name, value in stacked.items())
        super().__init__(task, count, shared, parameters)
        self.model = make_model().to("meta")
        for_vmap(self.model)

    def outputs(self, inputs: Tensor) -> Tensor:
        in_dims = (0, None if self.shared else 0)
        return vmap(lambda own, x: functional_call(self.model, own, (x,)), in_dims)(self.parameters, inputs)

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, targets

    def drawn_inputs(self, lead: Axes, shape: Axes, generator: torch.Generator) -> Tensor:
        return normal((*lead, *shape), generator)


# Layers


class StackedLayer(nn.Module):
    """N layers of one kind: their weights and biases as [models, ...]."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, count: int) -> None:
        super().__init__()
        assert layer.bias is not None
        self.count, self.width_in = count, layer.weight.shape[1]  # features or channels that one of them sees
        self.weight = nn.Parameter(layer.weight.new_zeros(count, *layer.weight.shape))
        self.bias = nn.Parameter(layer.bias.new_zeros(count, *layer.bias.shape))


class BatchedLinear(StackedLayer):
    """N dense layers as one batched matrix product (baddbmm)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """[models, batch, features], or side by side [batch, models * features], to [models, batch, features out].

        An input that all models share, [batch, features], takes one ordinary product with all weights side by side.
        """
        if inputs.dim() == 2 and inputs.shape[1] == self.width_in:
            product = F.linear(inputs, self.weight.flatten(0, 1), self.bias.flatten())
            return product.unflatten(1, (self.count, -1)).transpose(0, 1)
        if inputs.dim() == 2:
            inputs = inputs.unflatten(1, (self.count, -1)).transpose(0, 1)
        return torch.baddbmm(self.bias.unsqueeze(1), inputs, self.weight.transpose(1, 2))


class BatchedLinearOfSamples(BatchedLinear):
    """The same from [models * batch, features] to [models * batch, features out]."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.unflatten(0, (self.count, -1))).flatten(0, 1)


class BatchedConv2d(StackedLayer):
    """N convolutions as one batched matrix product of the patches that their kernels see."""

    def __init__(self, layer: nn.Conv2d, count: int, *, for_all: bool) -> None:
        """`for_all`: the layer sees a batch that all models share."""
        if layer.groups != 1 or layer.padding_mode != "zeros" or layer.bias is None or layer.dilation != (1, 1):
            raise Refused(f"execution mode patches knows plain convolutions with a bias, not {layer}")
        assert not isinstance(layer.padding, str)
        super().__init__(layer, count)
        self.for_all = for_all
        self.window, self.stride, self.padding = layer.kernel_size, layer.stride, layer.padding

    def forward(self, images: Tensor) -> Tensor:
        """[models * batch, channels, height, width], or [batch, channels, ...] for all models, to the first; both
        channels_last."""
        patches = self.patches_of(images)
        *places, _ = patches.shape
        of_models = patches.reshape(1 if self.for_all else self.count, -1, patches.shape[-1]).expand(self.count, -1, -1)
        kernels = self.weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
        products = torch.baddbmm(self.bias.unsqueeze(1), of_models, kernels)
        return products.reshape(-1, *places[1:], products.shape[-1]).movedim(-1, 1)

    def patches_of(self, images: Tensor) -> Tensor:
        """What the kernel sees at each position: [samples, height, width, window * channels].

        Along the width first, then along the height, as jax_runner/layers.py::product_of_patches has it. F.unfold would
        start a kernel for each image on CUDA (aten/src/ATen/native/cuda/Im2Col.cu).
        """
        (above, beside), (down, right) = self.padding, self.stride
        padded = F.pad(images, (beside, beside, above, above)).movedim(1, -1)
        height, width = (
            (side - extent) // step + 1
            for side, extent, step in zip(padded.shape[1:3], self.window, self.stride, strict=True)
        )
        columns = [padded[:, :, first : first + right * (width - 1) + 1 : right] for first in range(self.window[1])]
        in_a_row = torch.stack(columns, 3)
        rows = [in_a_row[:, first : first + down * (height - 1) + 1 : down] for first in range(self.window[0])]
        return torch.stack(rows, 3).flatten(3)


class GroupedConv1d(StackedLayer):
    """N dense layers as one convolution with a kernel of 1 and N groups."""

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, models * features], or [batch, features] for all models, to [batch, models * features out]."""
        groups = 1 if inputs.shape[1] == self.width_in else self.count
        weight = self.weight.flatten(0, 1).unsqueeze(2)
        return F.conv1d(inputs.unsqueeze(2), weight, self.bias.flatten(), groups=groups).squeeze(2)


class GroupedConv2d(StackedLayer):
    """N convolutions as one with N groups."""

    def __init__(self, layer: nn.Conv2d, count: int) -> None:
        if layer.groups != 1 or layer.padding_mode != "zeros" or layer.bias is None:
            raise Refused(f"execution mode batched knows plain convolutions with a bias, not {layer}")
        super().__init__(layer, count)
        self.window: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}

    def forward(self, images: Tensor) -> Tensor:
        """[batch, models * channels, height, width], or [batch, channels, ...] for all models, to the first layout."""
        groups = 1 if images.shape[1] == self.width_in else self.count
        return F.conv2d(images, self.weight.flatten(0, 1), self.bias.flatten(), groups=groups, **self.window)


class Conv1dLinear(nn.Module):
    """A dense layer as a convolution with a kernel of 1."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().unsqueeze(2).clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, features] to [batch, features out]."""
        return F.conv1d(inputs.unsqueeze(2), self.weight, self.bias).squeeze(2)


def with_conv1d(model: nn.Module) -> nn.Module:
    """Raises Refused unless all layers are dense."""
    if not all(isinstance(layer, nn.Linear) for layer in layers_of(model)):
        raise Refused("execution mode conv1d_loop is for models of dense layers only")
    return replace_layers(model, Conv1dLinear)  # type: ignore[arg-type]


def stacked_layer(layer: nn.Module, count: int, dense: "type[BatchedLinear | GroupedConv1d]") -> nn.Module:
    """Raises Refused for a layer that has no batched form here."""
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        return dense(layer, count)
    if isinstance(layer, nn.Conv2d):
        return GroupedConv2d(layer, count)
    raise Refused(f"execution mode batched knows Conv2d and Linear with a bias, not {layer}")


def patched_layer(layer: nn.Module, count: int, *, for_all: bool) -> nn.Module:
    """Raises Refused for a layer that is no product."""
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        return BatchedLinearOfSamples(layer, count)
    if isinstance(layer, nn.Conv2d):
        return BatchedConv2d(layer, count, for_all=for_all)
    raise Refused(f"execution mode patches knows Conv2d and Linear with a bias, not {layer}")


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Modules with parameters or statistics of their own."""
    return [module for module in model.modules() if has_own_state(module)]


def has_own_state(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False))


def replace_layers(model: nn.Module, make_layer: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """In place, and returned; names stay."""
    for name, child in list(model.named_children()):
        setattr(model, name, make_layer(child) if has_own_state(child) else replace_layers(child, make_layer))
    return model


def neutral_shapes(model: nn.Module) -> dict[str, torch.Size]:
    """By neutral name; the kernel axis of a Conv1dLinear is no part of it."""
    return {name: value.shape[:2] if value.dim() == 3 else value.shape for name, value in model.named_parameters()}


# Losses, inputs and targets


def mean_losses(task: Task, outputs: Tensor, targets: Tensor, shared: bool) -> Tensor:
    """Outputs [models, batch, ...] and targets [models, batch, ...], or [batch, ...] for all, to [models]."""
    targets = targets.expand(len(outputs), *targets.shape) if shared else targets
    losses = task.losses(outputs.flatten(0, 1), targets.flatten(0, 1))
    return losses.unflatten(0, outputs.shape[:2]).mean(1)


def as_channels_last(inputs: Tensor) -> Tensor:
    return in_layout(inputs, torch.channels_last) if inputs.dim() == 4 else inputs


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def labels_like(lead: tuple[int, ...], classes: int, generator: torch.Generator) -> Tensor:
    return torch.randint(classes, lead, generator=generator, device=generator.device)


# Optimizers


class StackedSgd:
    """SGD with momentum over parameters [models, ...], where each model has its own learning rate.

    torch.optim has one rate for a tensor. The mathematics is that of torch.optim.SGD: v = momentum * v + g, then
    p = p - rate * v.
    """

    def __init__(self, parameters: list[Tensor], rates: Tensor, momentum: float, mode: Mode) -> None:
        self.parameters, self.momentum = parameters, momentum
        self.velocities = [torch.zeros_like(parameter) for parameter in parameters]
        self.rates = [rates.view(-1, *repeat(1, parameter.dim() - 1)) for parameter in parameters]
        self.update: Callable[..., None] = in_mode(self._update, mode, parameters[0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in self.parameters]
            self.update(self.parameters, gradients, self.velocities, self.rates)

    def forget(self) -> None:
        for velocity in self.velocities:
            velocity.zero_()

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], rates: list[Tensor]
    ) -> None:
        torch._foreach_mul_(velocities, self.momentum)
        torch._foreach_add_(velocities, gradients)
        for parameter, velocity, rate in zip(parameters, velocities, rates, strict=True):
            parameter.addcmul_(velocity, rate, value=-1)


class Sgd(torch.optim.SGD):
    """PyTorch's fused SGD, with one learning rate for each list of parameters."""

    def __init__(self, parameters_of_models: list[list[Tensor]], rates: list[float], momentum: float) -> None:
        groups = [
            {"params": parameters, "lr": rate} for parameters, rate in zip(parameters_of_models, rates, strict=True)
        ]
        super().__init__(groups, lr=rates[0], momentum=momentum, fused=True)

    def forget(self) -> None:
        """In place: a CUDA graph keeps pointing at the momenta. A momentum of zero is as good as none."""
        for state in self.state.values():
            state["momentum_buffer"].zero_()


def make_optimizer(formulation: Formulation, problem: ProblemBase, mode: Mode) -> Sgd | StackedSgd:
    """One fused kernel for all parameters where all models share a rate."""
    of_models, rates = formulation.parameters_of_models(), problem.rates.tolist()
    if not problem.separate_rates:
        everything = [parameter for parameters in of_models for parameter in parameters]
        return Sgd([everything], [rates[0]], problem.momentum)
    if len(of_models) == len(rates):
        return Sgd(of_models, rates, problem.momentum)
    (parameters,) = of_models
    on_device = torch.tensor(rates, dtype=parameters[0].dtype, device=parameters[0].device)
    return StackedSgd(parameters, on_device, problem.momentum, mode)
