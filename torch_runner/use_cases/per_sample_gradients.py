"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several.

harness/measure/use_cases/per_sample_gradients.py has what JAX does alike,
harness/work/use_cases/per_sample_gradients.py the formulations.

The whole batch or a chunk of it is what is compiled (compiler.py).

Images are channels_last where convolutions are plain ones, of a whole batch, and NCHW where vmap makes grouped ones of
them, which cuDNN and Inductor are far slower at in channels_last (torch/_inductor/graph.py, decide_layout_opt).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from harness.errors import Refused
from harness.measure.program import Session
from harness.measure.use_cases.per_sample_gradients import PerSampleGradientsBase, ProblemBase
from harness.work.declared import Mode
from harness.work.task_kinds import Inputs
from harness.work.use_cases.per_sample_gradients import Settings, check_batch_rows
from torch_runner.captured import by_sample, capture_layers, layer_gradients, places_in, require_known, weight_of
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import Device, model_dtype
from torch_runner.ghost import choices, ghost
from torch_runner.models import details_of, for_vmap, make_model
from torch_runner.several_devices import mean_over_devices, sum_over_devices
from torch_runner.task import in_float64, make_task, samples_of, to_device
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

Tensors = dict[str, Tensor]
Function = Callable[[Tensor, Tensor], Tensors]
"""(inputs [batch, ...], targets [batch, ...]) -> tensors by name."""


def build(session: Session[Device], *, joined: bool = True) -> "PerSampleGradients":
    return PerSampleGradients(session, joined=joined)


class PerSampleGradients(PerSampleGradientsBase):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        super().__init__(session, joined=joined)
        self.problem = Problem(session, model_dtype(session.measurement.variant.precision))
        self.parameter_count = parameter_count(self.problem.model)
        self.details = describe(session.mode) | ({} if session.is_alone else session.world.describe())
        self.details |= {"choices": choices(self.problem)} if session.mode.formulation == "ghost" else {}
        local = make_function(self.problem, session.mode, self.output, self.settings)
        self.details |= details_of(self.problem.model, self.problem.task, session)
        compute = on_all_parts(local, self.output) if self.communicates else local
        self.batch = self.own_batch(check_batch_rows(self.batch_size))
        self.units = self.problem.task.units
        one_step = lambda: compute(*self.batch)  # noqa: E731
        self.compute = captured(one_step) if session.mode.graph == "step" else one_step

    def step(self) -> Tensors:
        return self.compute()

    def state(self) -> tuple[Inputs, Tensor]:
        return self.batch

    def to_neutral(self, outputs: Tensors, *, in_place: bool = False) -> Neutral:
        return to_neutral(outputs, in_place=in_place)

    def reference(self, rows: np.ndarray) -> tuple[Iterator[Neutral], Neutral]:
        problem = Problem(self.session, torch.float64)
        samples, targets = self.problem.samples(rows)
        loop = (
            to_neutral(grad(problem.sample_loss)(problem.params, one, target))
            for one, target in zip(samples_of(in_float64(samples)), targets, strict=True)
        )
        inputs, targets = self.problem.batch(rows)
        return loop, to_neutral(grad(problem.batch_loss)(problem.params, in_float64(inputs), targets))

    def model_inputs(self) -> Inputs:
        inputs, _ = self.problem.batch(self.rows)
        return inputs

    def witness(self) -> dict[str, Any]:
        return witness(self.compute, self.session.mode, self.problem.device)

    def settle(self) -> None:
        """In place: CUDA graphs keep pointing at the batch."""
        timed = self.own_batch(self.rows)
        for tensor, value in zip(tree_leaves(self.batch), tree_leaves(timed), strict=True):
            tensor.copy_(value)

    @torch.no_grad()
    def forward(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        problem = Problem(self.session, model_dtype(self.session.measurement.variant.precision))
        inputs, targets = problem.batch(rows)
        outputs = problem.apply(problem.params, inputs)
        return outputs.cpu().numpy(), problem.task.mean_loss(outputs, targets).cpu().numpy()


class Problem(ProblemBase):
    """With a loss that takes the parameters."""

    def __init__(self, session: Session[Device], dtype: torch.dtype) -> None:
        super().__init__(session)
        self.device = session.device.device
        self.bf16 = session.measurement.variant.precision == "bf16" and dtype == torch.float32
        self.task = make_task(session, dtype, self.given).to(self.device)
        self.model = make_model(session, dtype)
        load_initial_weights(self.model, session.measurement.seed, session.model.initial_weight)
        in_channels_last = session.mode.written.whole_batch
        self.memory_format = torch.channels_last if in_channels_last else torch.contiguous_format
        self.model.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.params = {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def placed(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        return to_device(arrays, self.device)

    def laid_out(self, inputs: Inputs) -> Inputs:
        # Not .contiguous(): of one channel it may keep strides that convolutions take for channels_last.
        formats = {4: self.memory_format}
        return tree_map(lambda own: own.clone(memory_format=formats.get(own.dim(), torch.contiguous_format)), inputs)

    def apply(self, params: Tensors, inputs: Inputs) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            outputs: Tensor = functional_call(self.model, params, (inputs,))
        return outputs

    def sample_loss(self, params: Tensors, one: Inputs, target: Tensor) -> Tensor:
        return self.task.mean_loss(self.apply(params, self.task.batch_of_one(one)), target[None])


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

    of_chunk = mode.written.chunks_of or mode.formulation
    if of_chunk == "outer_product":
        per_sample = outer_product(problem, traced=mode.run_as != "eager")
    elif of_chunk == "loop":
        per_sample = loop_over_samples(problem)
    elif of_chunk == "vmap":
        for_vmap(problem.model)
        vmapped = vmap(grad(problem.sample_loss), in_dims=(None, 0, 0))
        per_sample = lambda inputs, targets: vmapped(problem.params, inputs, targets)  # noqa: E731
    else:
        raise Refused(f"torch_runner/use_cases/per_sample_gradients.py knows no formulation {of_chunk}")

    def compute(inputs: Tensor, targets: Tensor) -> Tensors:
        return reduce_gradients(per_sample(inputs, targets), output, settings.clip_norm)

    function = in_mode(compute, mode, problem.device)
    return chunked(function, output, settings.chunk_size) if mode.written.chunks_of else function


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
