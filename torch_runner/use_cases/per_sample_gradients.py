"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several.

Outputs, never compared with each other: see harness/work/use_cases/per_sample_gradients.py, which has the formulas.

Formulations:
    batch                    the gradient of the mean loss, as training takes it: the base line, for that output alone
    vmap                     vmap(grad(loss)) and the output
    outer_product            one ordinary backward pass to every layer's output; each sample's weight gradient is then
                             the outer product of that with the layer's input (Goodfellow 2015, arXiv 1510.01799;
                             Opacus' hooks do the same)
    ghost                    norms and clipped sums without the gradients themselves (ghost.py)
    chunked                  vmap over chunks of settings.chunk_size samples: less memory
    chunked_outer_product    the same of outer_product
    loop                     one backward pass per sample: the reference, not a contender
How they are run: operator by operator; as one torch.compile graph, of the whole batch or of a chunk; with more kernels
tried; and each of these as one CUDA graph of the whole step (torch_runner/compiler.py).

Images are channels_last where convolutions are plain ones, and NCHW where vmap makes grouped ones of them, which cuDNN
and Inductor are far slower at in channels_last (torch/_inductor/graph.py, decide_layout_opt).

On several devices each takes its own part of the batch. Per-sample outputs stay where they were computed and nothing
moves between devices; sums are one all-reduce of all parameters as one vector (several_devices.py).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from harness.measure.clock import COLD_CALLS
from harness.measure.program import Program, Session
from harness.results.record import Check
from harness.work.declared import Mode
from harness.work.use_cases.per_sample_gradients import (
    PER_SAMPLE_OUTPUTS,
    Options,
    Settings,
    check_batch_rows,
    check_gradients,
    given_batches,
    parity_names,
    samples_of_use,
)
from torch_runner.captured import SCALES, by_sample, capture_layers, patches_of, places_in, require_known, weight_of
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, compute_dtype, model_dtype
from torch_runner.ghost import choices, ghost
from torch_runner.models import aggregation_of, attention_of, for_vmap, make_model
from torch_runner.models.gpt import Positions
from torch_runner.models.molpcba import CodeTable, Root
from torch_runner.several_devices import mean_over_devices, sum_over_devices
from torch_runner.task import Batch, Inputs, in_float64, make_task, samples_of, to_device
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

PLAIN_CONVOLUTIONS = ("batch", "outer_product", "chunked_outer_product", "ghost")
WHOLE_BATCH = ("batch", "outer_product", "chunked_outer_product", "ghost")
"""These put a whole batch through the model; the others one sample, many times."""
PATCH_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""Memory for the patches of outer_product. On a CPU a larger piece would come from the system anew, page by page, in
every step (glibc's M_MMAP_THRESHOLD); on a GPU this only bounds the memory."""

Tensors = dict[str, Tensor]
Function = Callable[[Tensor, Tensor], Tensors]
"""(inputs [batch, ...], targets [batch, ...]) -> tensors by name."""


def build(session: Session[Device], *, joined: bool = True) -> "PerSampleGradients":
    return PerSampleGradients(session, joined=joined)


class PerSampleGradients(Program):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        """`joined`: add up over the devices what is a sum, where there are several."""
        measurement = session.measurement
        self.session = session
        self.output = Options.model_validate(measurement.variant.options).output
        self.settings = Settings.model_validate(measurement.settings)
        self.batch_size = measurement.variant.batch_size
        self.own = session.world.rows(self.batch_size)
        self.problem = Problem(session, model_dtype(measurement.variant.precision))
        self.samples_per_step = self.batch_size
        self.parameter_count = parameter_count(self.problem.model)
        self.communicates = joined and not session.is_alone and self.output not in PER_SAMPLE_OUTPUTS
        self.details = describe(session.mode) | ({} if session.is_alone else session.world.describe())
        self.details |= {"choices": choices(self.problem)} if session.mode.formulation == "ghost" else {}
        local = make_function(self.problem, session.mode, self.output, self.settings)
        dtype = compute_dtype(measurement.variant.precision)
        self.details |= attention_of(self.problem.model, session.mode.formulation, dtype, self.problem.device)
        compute = on_all_parts(local, self.output) if self.communicates else local
        self.batch = self.own_batch(check_batch_rows(self.batch_size))
        self.units = self.problem.task.units
        self.details |= {**self.problem.task.details, **aggregation_of(self.problem.model)}
        one_step = lambda: compute(*self.batch)  # noqa: E731
        self.compute = captured(one_step) if session.mode.graph == "step" else one_step

    def step(self) -> Tensors:
        return self.compute()

    def state(self) -> tuple[Inputs, Tensor]:
        return self.batch

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the output for the check's batch is what a float64 loop gives."""
        loop, batch_gradient = self.reference()
        return check_gradients(
            actual=to_neutral(self.step()),
            loop=loop,
            batch_gradient=batch_gradient,
            output=self.output,
            batch_size=self.batch_size,
            clip_norm=self.settings.clip_norm,
            precision=self.session.measurement.variant.precision,
            own=self.own,
        )

    def reference(self) -> tuple[Iterator[Neutral], Neutral]:
        """In float64: the gradient of each distinct sample of the check's batch, computed when it is asked for, and
        that of their mean loss."""
        rows = np.unique(check_batch_rows(self.batch_size))
        problem = Problem(self.session, torch.float64)
        samples, targets = self.problem.samples(rows)
        loop = (
            to_neutral(grad(problem.sample_loss)(problem.params, one, target))
            for one, target in zip(samples_of(in_float64(samples)), targets, strict=True)
        )
        inputs, targets = self.problem.batch(rows)
        return loop, to_neutral(grad(problem.batch_loss)(problem.params, in_float64(inputs), targets))

    def model_inputs(self) -> Inputs:
        inputs, _ = self.problem.batch(np.arange(self.batch_size))
        return inputs

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.problem.device)

    def settle(self) -> None:
        """In place: CUDA graphs keep pointing at the batch."""
        timed = self.own_batch(np.arange(self.batch_size))
        for tensor, value in zip(tree_leaves(self.batch), tree_leaves(timed), strict=True):
            tensor.copy_(value)

    def parity(self) -> Neutral:
        """Outputs of the model and mean loss of the batch, and the output of the step, of all devices together."""
        self.settle()
        problem = Problem(self.session, model_dtype(self.session.measurement.variant.precision))
        inputs, targets = problem.batch(np.arange(self.batch_size)[self.own])
        with torch.no_grad():
            outputs = problem.apply(problem.params, inputs)
            loss = problem.task.mean_loss(outputs, targets)
        for _ in range(COLD_CALLS):  # a CUDA graph is captured in the third call, which is what is timed
            gradients = {}  # of a large model the batch's are gigabytes: no two of them at once
            gradients = self.step()
        numbers = to_neutral(gradients, in_place=True)
        if self.output in PER_SAMPLE_OUTPUTS:
            numbers = {name: self.session.of_all_ranks(value) for name, value in numbers.items()}
        return {
            "outputs": self.session.of_all_ranks(outputs.cpu().numpy()),
            "loss": self.session.device.mean_over_ranks(loss.cpu().numpy()),
        } | parity_names(self.output, numbers)

    def own_batch(self, rows: np.ndarray) -> tuple[Inputs, Tensor]:
        """This device's part of the batch that is made of these rows, as the formulation takes it."""
        is_whole = self.session.mode.formulation in WHOLE_BATCH
        return self.problem.batch(rows[self.own]) if is_whole else self.problem.samples(rows[self.own])


class Problem:
    """The model, its loss for one sample and for a batch, and the data."""

    def __init__(self, session: Session[Device], dtype: torch.dtype) -> None:
        settings = Settings.model_validate(session.measurement.settings)
        self.train = samples_of_use(session.dataset.train, settings.max_nodes)
        self.shared = session.dataset.shared
        self.device = session.device.device
        self.bf16 = session.measurement.variant.precision == "bf16" and dtype == torch.float32
        given = given_batches(self.train, session.measurement.variant.batch_size, session.world.device_count)
        self.task = make_task(session, dtype, given).to(self.device)
        self.model = make_model(session, dtype)
        load_initial_weights(self.model, session.measurement.protocol.seed, session.model.initial_weight)
        in_channels_last = session.mode.formulation in PLAIN_CONVOLUTIONS
        self.memory_format = torch.channels_last if in_channels_last else torch.contiguous_format
        self.model.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.params = {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def batch(self, rows: np.ndarray) -> tuple[Inputs, Tensor]:
        """Inputs and targets, on the device."""
        batch = self.placed(rows)
        return tree_map(self.laid_out, self.task.inputs(batch)), self.task.targets(batch)

    def samples(self, rows: np.ndarray) -> tuple[Inputs, Tensor]:
        """The same, and every tensor of the inputs has a first axis of samples."""
        batch = self.placed(rows)
        return tree_map(self.laid_out, self.task.inputs_of_samples(batch)), self.task.targets(batch)

    def placed(self, rows: np.ndarray) -> Batch:
        return to_device({name: array[rows] for name, array in self.train.items()} | dict(self.shared), self.device)

    def laid_out(self, inputs: Tensor) -> Tensor:
        # Not .contiguous(): of one channel it may keep strides that convolutions take for channels_last.
        return inputs.clone(memory_format=self.memory_format if inputs.dim() == 4 else torch.contiguous_format)

    def apply(self, params: Tensors, inputs: Inputs) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            outputs: Tensor = functional_call(self.model, params, (inputs,))
        return outputs

    def sample_loss(self, params: Tensors, one: Inputs, target: Tensor) -> Tensor:
        return self.task.mean_loss(self.apply(params, self.task.batch_of_one(one)), target[None])

    def batch_loss(self, params: Tensors, inputs: Inputs, targets: Tensor) -> Tensor:
        return self.task.mean_loss(self.apply(params, inputs), targets)


def on_all_parts(compute: Function, output: str) -> Function:
    """`compute` on each device's part of the batch, and what makes one output of the parts."""
    parts_to_whole = {"clipped_sum": sum_over_devices, "batch_gradient": mean_over_devices}[output]
    return lambda inputs, targets: parts_to_whole(compute(inputs, targets))


def make_function(problem: Problem, mode: Mode, output: str, settings: Settings) -> Function:
    """What one device does. Raises Refused for a mode that makes no sense for this output or machine."""
    if mode.formulation == "batch":
        return batch_gradient(problem, mode)
    if mode.formulation == "ghost":
        function = ghost(problem, output, settings.clip_norm, traced=mode.run_as != "eager")
        return in_mode(function, mode, problem.device)

    if mode.formulation.endswith("outer_product"):
        per_sample = outer_product(problem, traced=mode.run_as != "eager")
    elif mode.formulation == "loop":
        per_sample = loop_over_samples(problem)
    else:
        for_vmap(problem.model)
        vmapped = vmap(grad(problem.sample_loss), in_dims=(None, 0, 0))
        per_sample = lambda inputs, targets: vmapped(problem.params, inputs, targets)  # noqa: E731

    def compute(inputs: Tensor, targets: Tensor) -> Tensors:
        return reduce_gradients(per_sample(inputs, targets), output, settings.clip_norm)

    function = in_mode(compute, mode, problem.device)
    return chunked(function, output, settings.chunk_size) if mode.formulation.startswith("chunked") else function


def batch_gradient(problem: Problem, mode: Mode) -> Function:
    """By the ordinary backward pass over the plain module; compiled, forward and backward as in training."""
    module = MeanLoss(problem)
    parameters = dict(problem.model.named_parameters())
    mean_loss = in_mode(module, mode, problem.device)

    def compute(inputs: Tensor, targets: Tensor) -> Tensors:
        gradients = torch.autograd.grad(mean_loss(inputs, targets), list(parameters.values()))
        return dict(zip(parameters, gradients, strict=True))

    return compute


class MeanLoss(nn.Module):
    """Of a batch, by the plain module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.model, self.task = problem.model, problem.task
        self.device_type, self.bf16 = problem.device.type, problem.bf16

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16):
            outputs = self.model(inputs)
        return self.task.mean_loss(outputs, targets)


def reduce_gradients(gradients: Tensors, output: str, clip_norm: float) -> Tensors:
    """Per-sample gradients [batch, ...] to the output; the clip factor is min(1, clip_norm / norm)."""
    if output == "full":
        return gradients
    leaf_norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients.values()]
    norms = torch.linalg.vector_norm(torch.stack(leaf_norms), dim=0)
    if output == "norms":
        return {"norms": norms}
    factors = clip_norm / norms.clamp(min=clip_norm)
    return {name: torch.tensordot(factors, gradient, dims=1) for name, gradient in gradients.items()}


def chunked(compute: Function, output: str, chunk_size: int) -> Function:
    """`compute` over chunks of the batch; sums are added up, per-sample outputs are put back together."""

    def compute_chunks(inputs: Tensor, targets: Tensor) -> Tensors:
        def chunk_from(first: int) -> tuple[Inputs, Tensor]:
            chunk: tuple[Inputs, Tensor] = tree_map(lambda leaf: leaf[first : first + chunk_size], (inputs, targets))
            return chunk

        chunks = map(chunk_from, range(0, len(targets), chunk_size))
        if output == "clipped_sum":
            total = compute(*next(chunks))
            for chunk in chunks:
                for name, value in compute(*chunk).items():
                    total[name] += value
            return total
        parts = [compute(*chunk) for chunk in chunks]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return compute_chunks


def loop_over_samples(problem: Problem) -> Function:
    parameters = {name: parameter.clone().requires_grad_() for name, parameter in problem.params.items()}

    def compute(inputs: Tensor, targets: Tensor) -> Tensors:
        rows = [
            torch.autograd.grad(problem.sample_loss(parameters, one, target), list(parameters.values()))
            for one, target in zip(samples_of(inputs), targets, strict=True)
        ]
        return {name: torch.stack(leaves) for name, leaves in zip(parameters, zip(*rows, strict=True), strict=True)}

    return compute


def outer_product(problem: Problem, *, traced: bool) -> Function:
    """One forward and one backward pass to the layers' outputs, then one batched product per layer.

    With a layer's input a and the gradient d of the summed loss by its output, sample i's weight gradient is d[i]
    a[i]^T for a dense layer, and the same with a's patches (im2col) summed over positions for a convolution. A weight
    that two layers share has the sum of their gradients. The weights' own gradients are never computed, which an
    ordinary backward pass would.

    `traced`: for torch.compile (captured.py).
    """
    layers = {name: module for name, module in problem.model.named_modules() if not list(module.children())}
    for name, module in layers.items():
        require_known("outer_product", name, module)
    capture = capture_layers(problem, layers, traced=traced)

    def compute(inputs: Tensor, targets: Tensor) -> Tensors:
        seen, output_gradients = capture(inputs, targets)
        places = places_in(inputs, problem.task)
        gradients: Tensors = {}
        for name, module in layers.items():
            weight, bias = layer_gradients(module, *by_sample(module, seen[name], output_gradients[name], places))
            of_weight = weight_of(name, module)
            weight = weight.to(problem.params[of_weight].dtype)
            gradients[of_weight] = gradients[of_weight] + weight if of_weight in gradients else weight
            if bias is not None:
                gradients[f"{name}.bias"] = bias.to(weight.dtype)
        return gradients

    return compute


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
