"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several.

Outputs, never compared with each other (harness/gradient_check.py has the formulas):
    norms            B numbers
    full             every sample's whole gradient, returned and waited for
    clipped_sum      the sum that DP-SGD takes, without noise
    batch_gradient   one gradient of the mean loss: the control

Execution modes, all of them one jitted program:
    jit                    vmap(grad(loss)) and the output
    outer_product          one ordinary backward pass to every layer's output; each sample's weight gradient is then the
                           outer product of that with the layer's input (Goodfellow 2015, arXiv 1510.01799; Opacus'
                           hooks do the same)
    chunked                jit over chunks of settings.chunk_size samples: less memory
    jit_process_per_node   jit, with one process for all devices of a node instead of one process for each device

On several devices each takes its own part of the batch. Per-sample outputs stay where they were computed and nothing
moves between devices; sums are one all-reduce of all parameters as one vector (several_devices.py).
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import optax
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import numpy as jnp

from harness.errors import Refused
from harness.gradient_check import PER_SAMPLE_OUTPUTS, check_batch_rows, check_gradients
from harness.measure import Step
from harness.record import Check, Result
from harness.session import Session
from jax_runner.device import model_dtypes
from jax_runner.several_devices import (
    REPLICATED,
    SPLIT,
    details_of,
    global_arrays,
    mean_over_devices,
    on_every_device,
    own_part,
    require_several_devices,
    sum_over_devices,
)
from jax_runner.weights import Neutral, Params, arrays_of, load_initial_weights, parameter_count, to_neutral

EXECUTION_MODES = ("jit", "outer_product", "chunked", "jit_process_per_node")
PROCESS_PER_NODE = ("jit_process_per_node",)
OPTIONS = {"output": ("norms", "full", "clipped_sum", "batch_gradient")}
SETTINGS = {"chunk_size": "positive integer", "clip_norm": "positive number"}
REFUSED_MODELS = {"resnet18": "BatchNorm mixes the samples of a batch, so a per-sample gradient is not defined"}

Arrays = Any
"""A pytree: Params of gradients, or {"norms": [batch]}."""
Function = Callable[[Params, jax.Array, jax.Array], Arrays]
"""(params, normalised images [batch, height, width, channels], labels [batch]) -> arrays."""


def run(session: Session) -> Result:
    variant = session.measurement.variant
    if variant.execution_mode in PROCESS_PER_NODE:
        require_several_devices(session.world)
    result = measure(session)
    moves_something = session.world.device_count > 1 and variant.options["output"] not in PER_SAMPLE_OUTPUTS
    return session.add_control(result, lambda: make_control(session)) if moves_something else result


def measure(session: Session) -> Result:
    """All but the control of several devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    problem = Problem(session)
    output, clip_norm = str(variant.options["output"]), float(settings["clip_norm"])
    compute = make_function(
        problem, variant.execution_mode, output, clip_norm=clip_norm, chunk_size=int(settings["chunk_size"])
    )
    counted = jax.jit(with_counter(compute))
    count, params = problem.replicated((jnp.zeros((), jnp.int32), problem.params))
    batch = problem.own_batch(check_batch_rows(variant.batch_size))

    def step() -> tuple[jax.Array, Arrays]:
        nonlocal count
        count, outputs = counted(count, params, *batch)
        return count, outputs

    wait = session.device.wait
    wait((count, batch))  # copied before the clock starts
    cold_call_times_s = session.measure_cold(step, wait)
    checks = problem.check(problem.to_neutral(own_part(step()[1]), output), output, clip_norm)
    batch = problem.own_batch(range(variant.batch_size))
    steady = session.measure_steady(step, wait, steps_per_call=1, samples_per_step=variant.batch_size)
    if session.device.on_gpu:
        session.device.set_step_peak(counted.lower(count, params, *batch).compile())
    details = details_of(session, PROCESS_PER_NODE) if session.world.device_count > 1 else {}
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
        self.benchmark = importlib.import_module(f"jax_runner.benchmarks.{measurement.cell.benchmark}")
        self.model = self.make_model(model_dtypes(measurement.variant.precision))
        self.graphdef, self.params = nnx.graphdef(self.model), arrays_of(self.model)

    def make_model(self, dtypes: dict[str, Any]) -> nnx.Module:
        model = self.benchmark.make_model(self.measurement.variant.model, dtypes)
        load_initial_weights(model, self.measurement.protocol.seed, self.benchmark.FLATTENED)
        return model

    def batch(self, rows: Iterable[int]) -> tuple[jax.Array, jax.Array]:
        """Normalised float32 images and their labels."""
        rows = list(rows)
        images = jnp.asarray(self.dataset.train_images[rows]).astype(jnp.float32)
        return (images / 255 - self.dataset.mean) / self.dataset.std, jnp.asarray(self.dataset.train_labels[rows])

    def own_batch(self, rows: Sequence[int]) -> tuple[jax.Array, jax.Array]:
        """This device's part of the batch that is made of these rows."""
        batch = self.batch(rows[self.own])
        return batch if self.world.device_count == 1 else global_arrays(batch, SPLIT)

    def replicated(self, arrays: Arrays) -> Arrays:
        return arrays if self.world.device_count == 1 else global_arrays(arrays, REPLICATED)

    def apply(self, params: Params, images: jax.Array) -> jax.Array:
        return nnx.merge(self.graphdef, params)(images)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """[batch]; bfloat16 logits are cast to float32 first."""
        if logits.dtype == jnp.bfloat16:
            logits = logits.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    def sample_loss(self, params: Params, image: jax.Array, label: jax.Array) -> jax.Array:
        return self.losses(self.apply(params, image[None]), label[None]).sum()

    def batch_loss(self, params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
        return self.losses(self.apply(params, images), labels).mean()

    def to_neutral(self, outputs: Arrays, output: str) -> Neutral:
        if output == "norms":
            return {name: jax.device_get(value).astype("float64") for name, value in outputs.items()}
        return to_neutral(outputs, self.benchmark.FLATTENED, leading_axes=1 if output == "full" else 0)

    def check(self, actual: Neutral, output: str, clip_norm: float) -> list[Check]:
        """Raises CheckFailed unless the output for the check's batch is what a float64 loop gives."""
        variant = self.measurement.variant
        rows = sorted(set(check_batch_rows(variant.batch_size).tolist()))
        images, labels = self.batch(rows)
        graphdef = self.graphdef
        with jax.enable_x64(True):
            model = self.make_model({"dtype": jnp.float64, "param_dtype": jnp.float64})
            self.graphdef, params = nnx.graphdef(model), arrays_of(model)
            images = images.astype(jnp.float64)
            sample_gradient = jax.jit(jax.grad(self.sample_loss))
            loop = [
                self.to_neutral(sample_gradient(params, image, label), "batch_gradient")
                for image, label in zip(images, labels, strict=True)
            ]
            batch_gradient = self.to_neutral(jax.grad(self.batch_loss)(params, images, labels), "batch_gradient")
        self.graphdef = graphdef
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
    """The function that is timed, still to be jitted. Raises Refused for a mode that makes no sense for this output."""
    compute = make_local_function(problem, execution_mode, output, clip_norm=clip_norm, chunk_size=chunk_size)
    return compute if problem.world.device_count == 1 else on_all_parts(compute, output)


def with_counter(compute: Function) -> Callable[..., tuple[jax.Array, Arrays]]:
    """The counter makes each call depend on the one before it, so that none can overtake another."""

    def counted(count: jax.Array, params: Params, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Arrays]:
        return count + 1, compute(params, images, labels)

    return counted


def on_all_parts(compute: Function, output: str, *, joined: bool = True) -> Function:
    """`compute` on each device's part of the batch, and what makes one output of the parts, unless they are not to be
    joined."""
    parts_to_whole = {"clipped_sum": sum_over_devices, "batch_gradient": mean_over_devices}

    def compute_on_own_part(params: Params, images: jax.Array, labels: jax.Array) -> Arrays:
        part = compute(params, images, labels)
        return parts_to_whole[output](part) if joined and output not in PER_SAMPLE_OUTPUTS else part

    out_specs = SPLIT if output in PER_SAMPLE_OUTPUTS else REPLICATED
    return on_every_device(compute_on_own_part, in_specs=(REPLICATED, SPLIT, SPLIT), out_specs=out_specs)


def make_control(session: Session) -> Step:
    """The step without the sum over the devices."""
    variant, settings = session.measurement.variant, session.measurement.settings
    problem = Problem(session)
    output = str(variant.options["output"])
    local = make_local_function(
        problem,
        variant.execution_mode,
        output,
        clip_norm=float(settings["clip_norm"]),
        chunk_size=int(settings["chunk_size"]),
    )
    counted = jax.jit(with_counter(on_all_parts(local, output, joined=False)))
    count, params = problem.replicated((jnp.zeros((), jnp.int32), problem.params))
    batch = problem.own_batch(range(variant.batch_size))

    def step() -> tuple[jax.Array, Arrays]:
        nonlocal count
        count, outputs = counted(count, params, *batch)
        return count, outputs

    return step


def make_local_function(
    problem: Problem, execution_mode: str, output: str, *, clip_norm: float, chunk_size: int
) -> Function:
    """What one device does."""
    if output == "batch_gradient":
        if execution_mode not in ("jit", *PROCESS_PER_NODE):
            raise Refused(f"batch_gradient has no execution mode {execution_mode}: it has no per-sample gradients")
        return jax.grad(problem.batch_loss)

    vmapped = jax.vmap(jax.grad(problem.sample_loss), in_axes=(None, 0, 0))
    per_sample = outer_product(problem) if execution_mode == "outer_product" else vmapped

    def compute(params: Params, images: jax.Array, labels: jax.Array) -> Arrays:
        return reduce_gradients(per_sample(params, images, labels), output, clip_norm)

    return chunked(compute, output, chunk_size) if execution_mode == "chunked" else compute


def reduce_gradients(gradients: Params, output: str, clip_norm: float) -> Arrays:
    """Per-sample gradients [batch, ...] to the output; the clip factor is min(1, clip_norm / norm)."""
    if output == "full":
        return gradients
    norms = jnp.sqrt(sum(jnp.sum(leaf**2, axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(gradients)))
    if output == "norms":
        return {"norms": norms}
    factors = clip_norm / jnp.maximum(norms, clip_norm)
    return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), gradients)


def chunked(compute: Function, output: str, chunk_size: int) -> Function:
    """`compute` over chunks of the batch; sums are added up, per-sample outputs are put back together."""

    def compute_chunks(params: Params, images: jax.Array, labels: jax.Array) -> Arrays:
        whole = len(labels) // chunk_size
        chunks = jax.tree.map(
            lambda leaf: leaf[: whole * chunk_size].reshape(whole, chunk_size, *leaf.shape[1:]),
            (images, labels),
        )
        rest = (images[whole * chunk_size :], labels[whole * chunk_size :])
        parts = [compute(params, *rest)] if len(rest[1]) else []
        if output == "clipped_sum":
            zeros = jax.tree.map(jnp.zeros_like, params)

            def add(total: Arrays, chunk: tuple[jax.Array, jax.Array]) -> tuple[Arrays, None]:
                return jax.tree.map(jnp.add, total, compute(params, *chunk)), None

            return jax.tree.map(lambda *leaves: sum(leaves), jax.lax.scan(add, zeros, chunks)[0], *parts)
        mapped = jax.lax.map(lambda chunk: compute(params, *chunk), chunks)
        flat = jax.tree.map(lambda leaf: leaf.reshape(whole * chunk_size, *leaf.shape[2:]), mapped)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), flat, *parts)

    return compute_chunks


def outer_product(problem: Problem) -> Function:
    """One forward and one backward pass to the layers' outputs, then one batched product per layer.

    With a layer's input a and the gradient d of the summed loss by its output, sample i's weight gradient is a[i]
    d[i]^T for a dense layer, and the same with a's patches (im2col) summed over positions for a convolution. The
    weights' own gradients are never computed, which an ordinary backward pass would.

    d is the gradient by a zero that is added to the layer's output, through the hooks that Flax's layers have for
    their product (`conv_general_dilated`, `dot_general`).
    """
    with_parameters = {path[:-1] for path in flatten_dict(problem.params)}
    layers = {path: module for path, module in nnx.iter_modules(problem.model) if path in with_parameters}
    for path, module in layers.items():
        if not isinstance(module, nnx.Conv | nnx.Linear):
            raise Refused(f"execution mode outer_product knows Conv and Linear, not {type(module).__name__} ({path})")

    def forward(params: Params, images: jax.Array, zeros: dict | None) -> tuple[jax.Array, dict, dict]:
        """Logits, and by layer its input and its product."""
        model = nnx.merge(problem.graphdef, params)
        inputs: dict = {}
        products: dict = {}
        for path, module in nnx.iter_modules(model):
            if path in layers:
                hook = "dot_general" if isinstance(module, nnx.Linear) else "conv_general_dilated"
                setattr(module, hook, capture(path, getattr(module, hook), inputs, products, zeros))
        return model(images), inputs, products

    def compute(params: Params, images: jax.Array, labels: jax.Array) -> Params:
        shapes = jax.eval_shape(lambda: forward(params, images, None)[2])
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

        def loss(zeros: dict) -> tuple[jax.Array, dict]:
            logits, inputs, _ = forward(params, images, zeros)
            return problem.losses(logits, labels).sum(), inputs

        output_gradients, inputs = jax.grad(loss, has_aux=True)(zeros)
        flat = {}
        for path in flatten_dict(params):
            layer = path[:-1]
            is_kernel = path[-1] == "kernel"
            gradient = kernel_gradients if is_kernel else bias_gradients
            value = gradient(layers[layer], inputs[layer], output_gradients[layer])
            flat[path] = value.astype(jnp.float32)
        return unflatten_dict(flat)

    return compute


def capture(
    path: tuple, product: Callable[..., jax.Array], inputs: dict, products: dict, zeros: dict | None
) -> Callable[..., jax.Array]:
    def captured(layer_input: jax.Array, kernel: jax.Array, *arguments: Any, **keywords: Any) -> jax.Array:
        inputs[path] = layer_input
        products[path] = product(layer_input, kernel, *arguments, **keywords)
        return products[path] if zeros is None else products[path] + zeros[path]

    return captured


def kernel_gradients(module: nnx.Conv | nnx.Linear, layer_input: jax.Array, output_gradient: jax.Array) -> jax.Array:
    """[batch, *kernel]"""
    if isinstance(module, nnx.Linear):
        return jnp.einsum("bi,bo->bio", layer_input, output_gradient, precision=module.precision)
    patches = extract_patches(module, layer_input, output_gradient.shape[1:3])
    return jnp.einsum("bhwklc,bhwo->bklco", patches, output_gradient, precision=module.precision)


def bias_gradients(module: nnx.Conv | nnx.Linear, layer_input: jax.Array, output_gradient: jax.Array) -> jax.Array:
    """[batch, features]"""
    return output_gradient.sum(range(1, output_gradient.ndim - 1))


def extract_patches(module: nnx.Conv, layer_input: jax.Array, positions: tuple[int, int]) -> jax.Array:
    """What the kernel sees at each position: [batch, height, width, kernel height, kernel width, channels]."""
    kernel_height, kernel_width = module.kernel_size
    stride, pad = int(module.strides), int(module.padding)
    padded = jnp.pad(layer_input, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = positions

    def seen_by(row: int, column: int) -> jax.Array:
        rows = slice(row, row + stride * (height - 1) + 1, stride)
        columns = slice(column, column + stride * (width - 1) + 1, stride)
        return padded[:, rows, columns]

    return jnp.stack(
        [jnp.stack([seen_by(row, column) for column in range(kernel_width)], axis=3) for row in range(kernel_height)],
        axis=3,
    )
