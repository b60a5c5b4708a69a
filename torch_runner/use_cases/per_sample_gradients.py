"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several.

Outputs, never compared with each other (harness/gradient_check.py has the formulas):
    norms            B numbers
    full             every sample's whole gradient, returned and waited for
    clipped_sum      the sum that DP-SGD takes, without noise
    batch_gradient   one gradient of the mean loss: the control

Execution modes:
    eager            vmap(grad(loss)), operator by operator
    compiled         torch.compile around vmap(grad(loss)) and the output
    cuda_graphs      the same with mode="reduce-overhead" (GPU only)
    outer_product    one ordinary backward pass to every layer's output; each sample's weight gradient is then the outer
                     product of that with the layer's input (Goodfellow 2015, arXiv 1510.01799; Opacus' hooks do the
                     same)
    chunked          eager over chunks of settings.chunk_size samples: less memory
    loop             one backward pass per sample: the reference, not a contender
    outer_product_compiled, chunked_compiled
                     the same as one torch.compile graph, of the whole batch or of a chunk

On several devices each takes its own part of the batch. Per-sample outputs stay where they were computed and nothing
moves between devices; sums are one all-reduce of all parameters as one vector (several_devices.py).
"""

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from harness.errors import Refused
from harness.gradient_check import PER_SAMPLE_OUTPUTS, check_batch_rows, check_gradients
from harness.measure import Step
from harness.record import Check, Result
from harness.session import Session
from torch_runner.compiler import compile_options, keep_in_place, require_gpu
from torch_runner.several_devices import mean_over_devices, sum_over_devices
from torch_runner.weights import Neutral, load_initial_weights, parameter_count, to_neutral

EXECUTION_MODES = (
    "eager",
    "compiled",
    "cuda_graphs",
    "outer_product",
    "outer_product_compiled",
    "chunked",
    "chunked_compiled",
    "loop",
)
OPTIONS = {"output": ("norms", "full", "clipped_sum", "batch_gradient")}
SETTINGS = {"chunk_size": "positive integer", "clip_norm": "positive number"}
REFUSED_MODELS = {"resnet18": "BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined"}

PATCH_BYTES = {"cpu": 2**24, "cuda": 2**30}
"""Memory for the patches of outer_product. On a CPU a larger piece would come from the system anew, page by page, in
every step (glibc's M_MMAP_THRESHOLD); on a GPU this only bounds the memory."""

Tensors = dict[str, Tensor]
Function = Callable[[Tensor, Tensor], Tensors]
"""(normalised images [batch, channels, height, width], labels [batch]) -> tensors by name."""


def run(session: Session) -> Result:
    result = measure(session)
    output = session.measurement.variant.options["output"]
    moves_something = session.world.device_count > 1 and output not in PER_SAMPLE_OUTPUTS
    return session.add_control(result, lambda: make_control(session)) if moves_something else result


def measure(session: Session) -> Result:
    """All but the control of several devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    problem = Problem(session)
    output, clip_norm = str(variant.options["output"]), float(settings["clip_norm"])
    compute = make_function(
        problem, variant.execution_mode, output, clip_norm=clip_norm, chunk_size=int(settings["chunk_size"])
    )

    batch = problem.own_batch(check_batch_rows(variant.batch_size))

    def step() -> Tensors:
        return compute(*batch)

    wait = session.device.wait
    wait(batch)  # copied before the clock starts
    cold_call_times_s = session.measure_cold(step, wait)
    checks = problem.check(to_neutral(step()), output, clip_norm)
    for tensor, value in zip(batch, problem.own_batch(range(variant.batch_size)), strict=True):
        tensor.copy_(value)
    steady = session.measure_steady(step, wait, steps_per_call=1, samples_per_step=variant.batch_size)
    details = session.world.describe() if session.world.device_count > 1 else {}
    parameters = parameter_count(problem.model)
    return session.result(steady, cold_call_times_s, checks=checks, parameter_count=parameters, details=details)


class Problem:
    """The model, its loss for one sample and for a batch, and the data."""

    def __init__(self, session: Session) -> None:
        measurement = session.measurement
        self.measurement = measurement
        self.dataset = session.dataset
        self.world = session.world
        self.own = session.world.rows(measurement.variant.batch_size)
        self.device = session.device.device
        self.bf16 = measurement.variant.precision == "bf16"
        benchmark = importlib.import_module(f"torch_runner.benchmarks.{measurement.cell.benchmark}")
        self.model = benchmark.make_model(measurement.variant.model)
        load_initial_weights(self.model, measurement.protocol.seed)
        self.model.to(self.device)
        self.params = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        keep_in_place(self.params.values())

    def batch(self, rows) -> tuple[Tensor, Tensor]:
        """Normalised float32 images and their labels."""
        images = torch.from_numpy(self.dataset.train_images[list(rows)]).to(self.device)
        mean, std = (torch.from_numpy(value).to(self.device) for value in (self.dataset.mean, self.dataset.std))
        normalised = ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)
        # Not .contiguous(): of one channel it may keep strides that convolutions take for channels_last.
        normalised = normalised.clone(memory_format=torch.contiguous_format)
        return normalised, torch.from_numpy(self.dataset.train_labels[list(rows)]).long().to(self.device)

    def own_batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """This device's part of the batch that is made of these rows."""
        batch = self.batch(rows[self.own])
        keep_in_place(batch)
        return batch

    def losses(self, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
        return F.cross_entropy(logits.float() if self.bf16 else logits, labels, reduction=reduction)

    def apply(self, params: Tensors, images: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return functional_call(self.model, params, (images,))

    def sample_loss(self, params: Tensors, image: Tensor, label: Tensor) -> Tensor:
        return self.losses(self.apply(params, image[None]), label[None], "sum")

    def batch_loss(self, params: Tensors, images: Tensor, labels: Tensor) -> Tensor:
        return self.losses(self.apply(params, images), labels, "mean")

    def check(self, actual: Neutral, output: str, clip_norm: float) -> list[Check]:
        """Raises CheckFailed unless the output for the check's batch is what a float64 loop gives."""
        variant = self.measurement.variant
        rows = sorted(set(check_batch_rows(variant.batch_size).tolist()))
        images, labels = self.batch(rows)
        images = images.double()
        params = {name: parameter.double() for name, parameter in self.params.items()}
        bf16, self.bf16 = self.bf16, False
        loop = [
            to_neutral(grad(self.sample_loss)(params, image, label))
            for image, label in zip(images, labels, strict=True)
        ]
        batch_gradient = to_neutral(grad(self.batch_loss)(params, images, labels))
        self.bf16 = bf16
        return check_gradients(
            actual=actual,
            loop=loop,
            batch_gradient=batch_gradient,
            output=output,
            batch_size=variant.batch_size,
            clip_norm=clip_norm,
            precision=variant.precision,
            own=self.own,
        )


def make_function(problem: Problem, execution_mode: str, output: str, *, clip_norm: float, chunk_size: int) -> Function:
    """The function that is timed. Raises Refused for a mode that makes no sense for this output or machine."""
    compute = make_local_function(problem, execution_mode, output, clip_norm=clip_norm, chunk_size=chunk_size)
    return compute if problem.world.device_count == 1 else on_all_parts(compute, output)


def on_all_parts(compute: Function, output: str) -> Function:
    """`compute` on each device's part of the batch, and what makes one output of the parts."""
    if output in PER_SAMPLE_OUTPUTS:
        return compute
    parts_to_whole = {"clipped_sum": sum_over_devices, "batch_gradient": mean_over_devices}[output]
    return lambda images, labels: parts_to_whole(compute(images, labels))


def make_control(session: Session) -> Step:
    """The step without the sum over the devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    problem = Problem(session)
    batch = problem.own_batch(range(variant.batch_size))
    compute = make_local_function(
        problem,
        variant.execution_mode,
        str(variant.options["output"]),
        clip_norm=float(settings["clip_norm"]),
        chunk_size=int(settings["chunk_size"]),
    )
    return lambda: compute(*batch)


def make_local_function(
    problem: Problem, execution_mode: str, output: str, *, clip_norm: float, chunk_size: int
) -> Function:
    """What one device does."""
    params = problem.params
    if output == "batch_gradient":
        if execution_mode not in ("eager", "compiled", "cuda_graphs"):
            raise Refused(f"batch_gradient has no execution mode {execution_mode}: it has no per-sample gradients")
        batch_gradient = grad(problem.batch_loss)
        return compiled(lambda images, labels: batch_gradient(params, images, labels), execution_mode, problem.device)

    formulation = execution_mode.removesuffix("_compiled")
    if formulation == "outer_product":
        per_sample = outer_product(problem, traced=execution_mode != formulation)
    elif formulation == "loop":
        per_sample = loop_over_samples(problem)
    else:
        vmapped = vmap(grad(problem.sample_loss), in_dims=(None, 0, 0))
        per_sample = lambda images, labels: vmapped(params, images, labels)  # noqa: E731

    def compute(images: Tensor, labels: Tensor) -> Tensors:
        return reduce_gradients(per_sample(images, labels), output, clip_norm)

    compute = compiled(compute, execution_mode, problem.device)
    return chunked(compute, output, chunk_size) if formulation == "chunked" else compute


def compiled(function: Function, execution_mode: str, device: torch.device) -> Function:
    """`function` itself in the eager modes."""
    if execution_mode.endswith("compiled"):
        return torch.compile(function, **compile_options())
    if execution_mode == "cuda_graphs":
        require_gpu(execution_mode, device)
        return torch.compile(function, **compile_options("reduce-overhead"))
    return function


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

    def compute_chunks(images: Tensor, labels: Tensor) -> Tensors:
        chunks = zip(images.split(chunk_size), labels.split(chunk_size), strict=True)
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

    def compute(images: Tensor, labels: Tensor) -> Tensors:
        rows = [
            torch.autograd.grad(problem.sample_loss(parameters, image, label), list(parameters.values()))
            for image, label in zip(images, labels, strict=True)
        ]
        return {name: torch.stack(leaves) for name, leaves in zip(parameters, zip(*rows, strict=True), strict=True)}

    return compute


def outer_product(problem: Problem, *, traced: bool) -> Function:
    """One forward and one backward pass to the layers' outputs, then one batched product per layer.

    With a layer's input a and the gradient d of the summed loss by its output, sample i's weight gradient is d[i]
    a[i]^T for a dense layer, and the same with a's patches (im2col) summed over positions for a convolution. The
    weights' own gradients are never computed, which an ordinary backward pass would.

    `traced`: for torch.compile, which takes no torch.autograd.grad. There d is the gradient by a zero that is added to
    the layer's output, as in JAX.
    """
    model = problem.model
    layers = {name: module for name, module in model.named_modules() if not list(module.children())}
    for name, module in layers.items():
        if not isinstance(module, nn.Conv2d | nn.Linear):
            raise Refused(f"execution mode outer_product knows Conv2d and Linear, not {type(module).__name__} ({name})")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    inputs: Tensors = {}
    outputs: Tensors = {}
    zeros: Tensors = {}

    def capture(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
        def hook(_module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
            inputs[name] = arguments[0].detach()
            if traced:
                outputs[name] = output + zeros[name] if zeros else output
            else:
                outputs[name] = output if output.requires_grad else output.requires_grad_()
            return outputs[name]

        return hook

    for name, module in layers.items():
        module.register_forward_hook(capture(name))

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(problem.device.type, torch.bfloat16, enabled=problem.bf16):
            logits = model(images)
        return problem.losses(logits, labels, "sum")

    def differentiate(images: Tensor, labels: Tensor) -> tuple[Tensors, Tensors]:
        """By layer, its input and its output's gradient."""
        output_gradients = torch.autograd.grad(loss_of(images, labels), [outputs[name] for name in layers])
        return dict(inputs), dict(zip(layers, output_gradients, strict=True))

    def loss_and_inputs(added: Tensors, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
        zeros.update(added)
        return loss_of(images, labels), dict(inputs)

    def differentiate_traced(images: Tensor, labels: Tensor) -> tuple[Tensors, Tensors]:
        loss_of(images, labels)  # for the outputs' shapes; the compiler drops it
        no_change = {name: torch.zeros_like(output) for name, output in outputs.items()}
        output_gradients, layer_inputs = grad(loss_and_inputs, has_aux=True)(no_change, images, labels)
        return layer_inputs, output_gradients

    def compute(images: Tensor, labels: Tensor) -> Tensors:
        layer_inputs, output_gradients = (differentiate_traced if traced else differentiate)(images, labels)
        gradients: Tensors = {}
        for name, module in layers.items():
            gradients |= layer_gradients(name, module, layer_inputs[name], output_gradients[name])
        for kept in (inputs, outputs, zeros):
            kept.clear()
        return gradients

    return compute


def layer_gradients(name: str, module: nn.Module, layer_input: Tensor, output_gradient: Tensor) -> Tensors:
    """Per-sample gradients of one layer's weight and bias, float32."""
    layer_input = layer_input.to(output_gradient.dtype)
    if isinstance(module, nn.Linear):
        weight = torch.bmm(output_gradient.unsqueeze(2), layer_input.unsqueeze(1))
        bias = output_gradient
    else:
        assert isinstance(module, nn.Conv2d)
        by_position = output_gradient.flatten(2)
        weight = convolution_gradients(module, layer_input, by_position)
        bias = by_position.sum(2)
    return {f"{name}.weight": weight.float(), f"{name}.bias": bias.float()}


def convolution_gradients(module: nn.Conv2d, layer_input: Tensor, output_gradient: Tensor) -> Tensor:
    """[batch, *weight] from the layer's input and its output's gradient [batch, features, positions].

    The patches are made for a slice of the batch at a time, so that their memory is used again and stays small.
    """
    batch_size, features, positions = output_gradient.shape
    patch_size = module.weight[0].numel()
    slice_size = max(1, PATCH_BYTES[layer_input.device.type] // (patch_size * positions * layer_input.element_size()))
    weight = layer_input.new_empty(batch_size, features, patch_size)
    for first in range(0, batch_size, slice_size):
        rows = slice(first, first + slice_size)
        patches = F.unfold(layer_input[rows], module.kernel_size, module.dilation, module.padding, module.stride)
        torch.bmm(output_gradient[rows], patches.transpose(1, 2), out=weight[rows])
    return weight.view(-1, *module.weight.shape)
