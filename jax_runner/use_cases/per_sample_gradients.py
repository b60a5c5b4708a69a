"""Use cases 3 and 4: the gradient of every sample's own loss, on one GPU or on several.

harness/measure/use_cases/per_sample_gradients.py has what PyTorch does alike,
harness/work/use_cases/per_sample_gradients.py the formulations. Each of them is one jitted program.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import numpy as jnp

from harness.errors import Refused
from harness.measure.program import Session
from harness.measure.use_cases.per_sample_gradients import PerSampleGradientsBase, ProblemBase
from harness.work.applies import require_layers
from harness.work.declared import Mode
from harness.work.task_kinds import Inputs
from harness.work.use_cases.per_sample_gradients import PER_SAMPLE_OUTPUTS, Settings, check_batch_rows
from jax_runner.captured import (
    bias_gradients,
    by_sample,
    capture_layers,
    kernel_gradients_by_group,
    kernel_gradients_by_outer_product,
    uses_of,
)
from jax_runner.compiler import OneProgram, details_of_compiler, jitted
from jax_runner.device import FLOAT64, Device, model_dtypes
from jax_runner.ghost import choices, ghost
from jax_runner.layers import convolutions_of
from jax_runner.models import details_of, make_model
from jax_runner.several_devices import (
    REPLICATED,
    SPLIT,
    details_of_devices,
    global_arrays,
    mean_over_devices,
    on_every_device,
    own_part,
    sum_over_devices,
)
from jax_runner.task import in_float64, make_task, samples_of
from jax_runner.weights import (
    Neutral,
    Params,
    arrays_of,
    flattened_of,
    load_initial_weights,
    parameter_count,
    to_neutral,
)

Arrays = Any
"""A pytree: Params of gradients, or {"norms": [batch]}."""
Function = Callable[[Params, jax.Array, jax.Array], Arrays]
"""(params, inputs [batch, ...], targets [batch, ...]) -> arrays."""


def build(session: Session[Device], *, joined: bool = True) -> "PerSampleGradients":
    return PerSampleGradients(session, joined=joined)


class PerSampleGradients(OneProgram, PerSampleGradientsBase):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device], *, joined: bool = True) -> None:
        super().__init__(session, joined=joined)
        self.problem = Problem(session, model_dtypes(session.measurement.variant.precision))
        self.parameter_count = parameter_count(self.problem.model)
        self.units = self.problem.task.units
        self.details = details_of_compiler(session.mode, session.device)
        self.details |= details_of(self.problem.model, self.problem.task)
        self.details |= {} if session.is_alone else details_of_devices(session)
        self.details |= {"choices": choices(self.problem)} if session.mode.formulation == "ghost" else {}
        local = make_function(self.problem, session.mode, self.output, self.settings)
        function = local if session.is_alone else on_all_parts(local, self.output, joined=joined)
        self.compute = jitted(with_counter(function), session.mode, session.device)
        placed: tuple[jax.Array, Params] = (jnp.zeros((), jnp.int32), self.problem.params)
        self.count: jax.Array
        self.params: Params
        self.count, self.params = placed if session.is_alone else global_arrays(placed, REPLICATED)
        self.batch = self.own_batch(check_batch_rows(self.batch_size))

    def step(self) -> tuple[jax.Array, Arrays]:
        self.count, outputs = self.compute(self.count, self.params, *self.batch)
        return self.count, outputs

    def state(self) -> Arrays:
        return self.count, self.batch

    def reference(self, rows: np.ndarray) -> tuple[Iterator[Neutral], Neutral]:
        samples, targets = self.problem.samples(rows)
        inputs, _ = self.problem.batch(rows)
        with jax.enable_x64(True):
            problem = Problem(self.session, FLOAT64)
            pairs = list(zip(samples_of(in_float64(samples)), targets, strict=True))
            batch_gradient = jax.jit(jax.grad(problem.batch_loss))(problem.params, in_float64(inputs), targets)
            return gradients_of(problem, pairs), problem.to_neutral(batch_gradient)

    def settle(self) -> None:
        self.batch = self.own_batch(self.rows)

    def model_inputs(self) -> Inputs:
        return jax.eval_shape(lambda: self.problem.batch(self.rows)[0])

    def arguments(self) -> tuple[Any, ...]:
        return self.count, self.params, *self.batch

    def forward(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = self.problem.batch(rows)
        outputs = jax.jit(self.problem.apply)(self.problem.params, inputs)
        return np.asarray(outputs), np.asarray(self.problem.task.losses(outputs, targets).mean())

    def own_batch(self, rows: np.ndarray) -> Arrays:
        batch = super().own_batch(rows)
        return batch if self.session.is_alone else global_arrays(batch, SPLIT)

    def to_neutral(self, outputs: tuple[jax.Array, Arrays], *, in_place: bool = False) -> Neutral:
        arrays = own_part(outputs[1])
        if self.output == "norms":
            return {name: np.asarray(value, np.float64) for name, value in arrays.items()}
        return self.problem.to_neutral(arrays, leading_axes=1 if self.output == "full" else 0, in_place=in_place)


class Problem(ProblemBase):
    """With a loss that takes the parameters."""

    def __init__(self, session: Session[Any], dtypes: dict[str, Any]) -> None:
        super().__init__(session)
        self.task = make_task(session, dtypes["param_dtype"], self.given)
        self.on_gpu = session.device.on_gpu
        self.model = make_model(session, dtypes)
        load_initial_weights(self.model, session.measurement.seed, session.model.initial_weight)
        self.graphdef, self.params = nnx.graphdef(self.model), arrays_of(self.model)

    def placed(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return {name: jnp.asarray(np.asarray(array)) for name, array in arrays.items()}

    def apply(self, params: Params, inputs: Inputs) -> jax.Array:
        return nnx.merge(self.graphdef, params)(inputs)

    def sample_loss(self, params: Params, one: Inputs, target: jax.Array) -> jax.Array:
        return self.task.losses(self.apply(params, self.task.batch_of_one(one)), target[None]).sum()

    def to_neutral(self, gradients: Params, leading_axes: int = 0, *, in_place: bool = False) -> Neutral:
        return to_neutral(gradients, flattened_of(self.model), leading_axes, in_place=in_place)


def gradients_of(problem: Problem, samples: Sequence[tuple[Inputs, jax.Array]]) -> Iterator[Neutral]:
    """In float64, one by one.

    Args:
        samples: input and target of each.
    """
    gradient = jax.jit(jax.grad(problem.sample_loss))
    for one, target in samples:
        with jax.enable_x64(True):
            found = problem.to_neutral(gradient(problem.params, one, target))
        yield found


def with_counter(compute: Function) -> Callable[..., tuple[jax.Array, Arrays]]:
    """The counter makes each call depend on the one before it, so that none can overtake another."""

    def counted(count: jax.Array, params: Params, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, Arrays]:
        return count + 1, compute(params, inputs, targets)

    return counted


def on_all_parts(compute: Function, output: str, *, joined: bool) -> Function:
    """`compute` on each device's part of the batch, and what makes one output of the parts, unless they are not to be
    joined."""
    parts_to_whole = {"clipped_sum": sum_over_devices, "batch_gradient": mean_over_devices}

    def compute_on_own_part(params: Params, inputs: jax.Array, targets: jax.Array) -> Arrays:
        part = compute(params, inputs, targets)
        return parts_to_whole[output](part) if joined and output not in PER_SAMPLE_OUTPUTS else part

    out_specs = SPLIT if output in PER_SAMPLE_OUTPUTS else REPLICATED
    return on_every_device(compute_on_own_part, in_specs=(REPLICATED, SPLIT, SPLIT), out_specs=out_specs)


def make_function(problem: Problem, mode: Mode, output: str, settings: Settings) -> Function:
    """What one device does, still to be jitted. Raises Refused for a formulation that does not know the model's
    layers."""
    formulation = mode.formulation
    if formulation == "batch":
        return jax.grad(problem.batch_loss)
    if formulation == "ghost":
        return ghost(problem, output, settings)
    of_chunk = mode.written.chunks_of or formulation
    if of_chunk in ("outer_product", "grouped"):
        per_sample = by_layers(problem, of_chunk)
    elif of_chunk == "vmap":
        per_sample = vmapped(problem)
    else:
        raise Refused(f"jax_runner/use_cases/per_sample_gradients.py knows no formulation {of_chunk}")

    def compute(params: Params, inputs: jax.Array, targets: jax.Array) -> Arrays:
        return reduce_gradients(per_sample(params, inputs, targets), output, settings.clip_norm)

    return chunked(compute, output, settings.chunk_size) if mode.written.chunks_of else compute


def vmapped(problem: Problem) -> Function:
    """Per-sample gradients as they are written down first."""
    return jax.vmap(jax.grad(problem.sample_loss), in_axes=(None, 0, 0))


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

    def compute_chunks(params: Params, inputs: jax.Array, targets: jax.Array) -> Arrays:
        whole = len(targets) // chunk_size
        chunks = jax.tree.map(
            lambda leaf: leaf[: whole * chunk_size].reshape(whole, chunk_size, *leaf.shape[1:]),
            (inputs, targets),
        )
        rest = jax.tree.map(lambda leaf: leaf[whole * chunk_size :], (inputs, targets))
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


def by_layers(problem: Problem, formulation: str) -> Function:
    """Per-sample gradients from what the layers see in one forward and one backward pass (captured.py).

    With a layer's input a and the gradient d of the summed loss by its output, sample i's weight gradient is a[i]
    d[i]^T for a dense layer, and the same with a's patches summed over positions for a convolution. A weight that two
    layers share has the sum of their gradients.
    """
    capture = capture_layers(problem, formulation)
    if formulation == "grouped":
        require_layers(formulation, len(convolutions_of(problem.model)))
    kernel_gradients = {"outer_product": kernel_gradients_by_outer_product, "grouped": kernel_gradients_by_group}

    def compute(params: Params, inputs: jax.Array, targets: jax.Array) -> Params:
        layers = {path: by_sample(layer) for path, layer in capture(params, inputs, targets).items()}
        flat = {}
        for path in flatten_dict(params):
            if path[-1] == "bias":
                gradients = bias_gradients(layers[path[:-1]])
            else:
                of_uses = [kernel_gradients[formulation](use) for use in uses_of(layers, path[:-1])]
                gradients = sum(of_uses[1:], of_uses[0])
            flat[path] = gradients.astype(jnp.result_type(gradients, jnp.float32))
        return unflatten_dict(flat)

    return compute
