"""Use case 5: the outputs of a batch, on one GPU.

A call is one jitted program that has the weights as arguments; they lie in a GPU's memory as XLA wants them
(compiler.py). Inputs that are on the device are normalised and in the model's dtype. Inputs on the host are raw and
pinned; a call copies the next of a few batches to the device, normalises it there as a part of the program, and returns
when the outputs are in the host's memory. harness/measure/use_cases/inference.py has what PyTorch does alike,
harness/work/use_cases/inference.py the formulations. How each is run is in jax_runner/compiler.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray

from harness.measure.program import Session
from harness.measure.use_cases.inference import InferenceBase
from harness.work.task_kinds import Batch, Inputs
from jax_runner.compiler import FREE, LaidOutByXla, details_of_compiler, jitted
from jax_runner.device import FLOAT64, HALF, Device, model_dtypes
from jax_runner.folding import without_batch_norm
from jax_runner.layers import write_as
from jax_runner.models import details_of, make_model
from jax_runner.task import make_task
from jax_runner.weights import Params, arrays_of, load_weights, parameter_count, store_as


def build(session: Session[Device], *, joined: bool = True) -> "Inference":
    """One device only, so `joined` changes nothing."""
    return Inference(session)


class Inference(LaidOutByXla, InferenceBase):
    """See harness/measure/program.py."""

    LAID_OUT, POSITION = "weights", 1

    def __init__(self, session: Session[Device]) -> None:
        super().__init__(session)
        mode, dtypes = session.mode, model_dtypes(session.measurement.variant.precision)
        self.dtype = dtypes["dtype"]
        self.task = make_task(session, dtypes["param_dtype"], self.requests.given())
        self.shared = jax.device_put(dict(session.dataset.shared), self.device)
        """What samples share, where they do, and where inputs are on the device."""
        model = self.make_model(dtypes)
        self.graphdef, self.weights = nnx.graphdef(model), arrays_of(model)
        self.units = self.task.units
        self.details = details_of_compiler(mode, session.device) | details_of(model, self.task) | self.host_memory
        self.count = jax.device_put(jnp.zeros((), jnp.int32), self.device)
        self.prepare = jax.jit(self._prepare)
        self.settle()
        layouts = {"in_shardings": (None, FREE, None)} if session.device.on_gpu else {}
        self.use(jitted(self.forward, mode, session.device, **layouts))

    def make_model(self, dtypes: dict[str, Any]) -> nnx.Module:
        """As it is timed. Raises Refused."""
        session = self.session
        model = make_model(session, dtypes)
        self.parameter_count = parameter_count(model)
        write_as(model, session.mode.formulation, on_gpu=session.device.on_gpu)
        load_weights(model, self.timed_weights(model, without_batch_norm))
        if half := HALF.get(session.measurement.variant.precision):
            store_as(model, half)
        return in_evaluation(model)

    def step(self) -> tuple[jax.Array, jax.Array]:
        """The outputs of the batch that is there, or of the next one from the host; on the device, and where inputs
        are on the host, there too."""
        if self.on_host:
            self.bring(self.on_the_host[self.next_batch])
            self.next_batch = (self.next_batch + 1) % len(self.on_the_host)
        self.count, outputs = self.run(self.count, self.weights, self.inputs)
        if self.on_host:
            np.asarray(outputs)
        return self.count, outputs

    def forward(self, count: jax.Array, weights: Params, inputs: Any) -> tuple[jax.Array, jax.Array]:
        """The counter keeps calls in order."""
        model: Any = nnx.merge(self.graphdef, weights)
        return count + 1, model(self._prepare(inputs) if self.on_host else inputs)

    def bring(self, batch: Batch) -> None:
        self.inputs = jax.device_put(batch, in_memory(self.device, self.device.default_memory().kind))

    def _prepare(self, batch: Batch) -> Inputs:
        """From the raw arrays of a batch to what the model takes."""
        return jax.tree.map(
            lambda inputs: inputs.astype(self.dtype) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs,
            self.task.inputs(batch),
        )

    def state(self) -> Any:
        return self.arguments()

    def arguments(self) -> tuple[Any, ...]:
        return self.count, self.weights, self.inputs

    def take(self, batches: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        if self.on_host:
            pinned = in_memory(self.device, "pinned_host")
            on_gpu = self.session.device.on_gpu
            self.on_the_host = [jax.device_put(dict(batch), pinned) if on_gpu else dict(batch) for batch in batches]
            self.next_batch = 0
            self.bring(self.on_the_host[0])
            return
        (batch,) = batches
        self.inputs = self.prepare(jax.device_put(dict(batch), self.device) | self.shared)

    def outputs(self) -> jax.Array:
        return self.step()[1]

    def to_numpy(self, outputs: jax.Array) -> NDArray[np.float64]:
        return np.asarray(outputs, np.float64)

    def judged(self, outputs: jax.Array, arrays: Mapping[str, NDArray[Any]]) -> tuple[Any, Any, Any]:
        targets = self.task.targets(arrays)
        scores = np.asarray(self.task.scores(outputs, targets), np.float64)
        return np.asarray(self.task.answers(outputs)), scores, np.asarray(targets)

    def reference_on(self, device: jax.Device) -> NDArray[np.float64]:
        with jax.enable_x64(True), jax.default_device(device):
            task, model = make_task(self.session, FLOAT64["param_dtype"]), make_model(self.session, FLOAT64)
            load_weights(model, self.weight_of)
            model = in_evaluation(model)
            graphdef = nnx.graphdef(model)

            @jax.jit
            def outputs(weights: Params, batch: Batch) -> jax.Array:
                evaluated: Any = nnx.merge(graphdef, weights)
                found: jax.Array = evaluated(task.inputs(batch))
                return found

            batch = self.requests.distinct() | dict(self.session.dataset.shared)
            return self.to_numpy(outputs(arrays_of(model), batch))

    def model_inputs(self) -> Inputs:
        return jax.eval_shape(self._prepare, self.inputs) if self.on_host else self.inputs


def in_evaluation(model: nnx.Module) -> nnx.Module:
    """With the running statistics, if it has any."""
    evaluated: nnx.Module = nnx.view(model, use_running_average=True, raise_if_not_found=False)
    return evaluated


def in_memory(device: jax.Device, kind: str) -> jax.sharding.Sharding:
    """`pinned_host`, or the device's own."""
    return jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
