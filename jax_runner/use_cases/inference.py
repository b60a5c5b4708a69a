"""Use case 5: the outputs of a batch, on one GPU.

The model is in evaluation: BatchNorm takes its running statistics, if it was not folded into the convolutions. One call
is one batch, by one jitted program that has the weights as arguments; they lie in a GPU's memory as XLA wants them
(compiler.py). Inputs that are on the device are normalised and in the model's dtype. Inputs on the host are raw and
pinned; a call copies the next of a few batches to the device, normalises it there as a part of the program, and returns
when the outputs are in the host's memory.

In bf16 and fp16 weights and inputs are stored in half precision, where training converts float32 weights in every
call. BatchNorm that is kept has its own numbers in float32.

Formulations:
    forward            the model as it is written
    taps               depthwise convolutions as sums of shifted products
    cudnn_attention    attention by cuDNN's fused kernel
    sorted_sums        of graphs, XLA is told which sums are over sorted rows (graphs.py)
How each is run is in jax_runner/compiler.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp
from numpy.typing import NDArray

from harness.measure.program import Answers, Infers, Session
from harness.results.record import Check
from harness.work.folding import folded
from harness.work.use_cases.inference import (
    HOST_BATCHES,
    Options,
    Requests,
    Settings,
    are_enough,
    check_outputs,
    quality_of,
    require_whole_inputs,
)
from harness.work.weights import inference_weight
from jax_runner.compiler import FREE, LaidOutByXla, details_of_compiler, jitted
from jax_runner.device import FLOAT64, HALF, Device, model_dtypes
from jax_runner.folding import without_batch_norm
from jax_runner.layers import write_as
from jax_runner.models import aggregation_of, attention_of, make_model
from jax_runner.task import Batch, Inputs, make_task
from jax_runner.weights import Neutral, Params, arrays_of, load_weights, parameter_count, store_as

NOT_PINNED = "not pinned: without a GPU there is nothing to copy to"


def build(session: Session[Device], *, joined: bool = True) -> "Inference":
    """One device only, so `joined` changes nothing."""
    return Inference(session)


class Inference(LaidOutByXla, Infers):
    """See harness/measure/program.py."""

    LAID_OUT, POSITION = "weights", 1

    def __init__(self, session: Session[Device]) -> None:
        measurement, mode = session.measurement, session.mode
        dtypes = model_dtypes(measurement.variant.precision)
        self.session = session
        self.device = session.device.device
        self.options = Options.model_validate(measurement.variant.options)
        self.settings = Settings.model_validate(measurement.settings)
        draw = partial(inference_weight, draw=session.model.initial_weight)
        self.weight_of = session.weights_of(self.settings.weights, draw)
        self.requests = Requests(
            benchmark=session.benchmark,
            dataset=session.dataset,
            model=measurement.variant.model,
            sizes=measurement.sizes,
            seed=measurement.protocol.seed,
            batch_size=measurement.variant.batch_size,
        )
        self.on_host = self.options.inputs == "on_host"
        require_whole_inputs(session.benchmark.task, self.options)
        self.samples_per_step = measurement.variant.batch_size
        self.dtype = dtypes["dtype"]
        self.task = make_task(session, dtypes["param_dtype"], self.requests.given())
        self.shared = jax.device_put(dict(session.dataset.shared), self.device)
        """What samples share, where they do, and where inputs are on the device."""
        model = self.make_model(dtypes)
        self.graphdef, self.weights = nnx.graphdef(model), arrays_of(model)
        self.units = self.task.units
        self.details = {**details_of_compiler(mode, session.device), **self.task.details, **attention_of(model)}
        self.details |= aggregation_of(model)
        self.details |= {"host_memory": self.host_memory} if self.on_host else {}
        self.on_the_host: list[Batch] = []
        """What comes to the device in turn, where inputs are on the host."""
        self.next_batch = 0
        self.inputs: Any = None
        """On the device."""
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
        weight_of, batch_norm = self.weight_of, session.model.batch_norm
        if batch_norm and self.options.batch_norm == "folded":
            weight_of = folded(weight_of, without_batch_norm(model), batch_norm.epsilon)
        load_weights(model, weight_of)
        if half := HALF.get(session.measurement.variant.precision):
            store_as(model, half)
        return in_evaluation(model)

    @property
    def host_memory(self) -> str:
        return "pinned" if self.session.device.on_gpu else NOT_PINNED

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
        """Answer these from now on, in turn; of inputs that lie on the device, the only one."""
        if self.on_host:
            pinned = in_memory(self.device, "pinned_host")
            on_gpu = self.session.device.on_gpu
            self.on_the_host = [jax.device_put(dict(batch), pinned) if on_gpu else dict(batch) for batch in batches]
            self.next_batch = 0
            self.bring(self.on_the_host[0])
            return
        (batch,) = batches
        self.inputs = self.prepare(jax.device_put(dict(batch), self.device) | self.shared)

    def answer_to(self, batch: Mapping[str, NDArray[Any]]) -> jax.Array:
        """The outputs of this batch, by the step that is timed."""
        self.take([batch])
        return self.step()[1]

    def settle(self) -> None:
        self.take(self.requests.timed(HOST_BATCHES if self.on_host else 1))

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the program that is timed gives the outputs of the model in float64."""
        actual = [np.asarray(self.answer_to(batch), np.float64) for batch in self.requests.checked()]
        return check_outputs(actual, self.reference(), self.session.measurement.variant.precision)

    def reference(self) -> NDArray[np.float64]:
        """In float64, with BatchNorm. Where the device has too little memory, on the CPU."""
        with jax.enable_x64(True):
            try:
                return self._reference()
            except Exception as error:
                if not self.session.device.is_out_of_memory(error):
                    raise
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                return self._reference()

    def _reference(self) -> NDArray[np.float64]:
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
        return np.asarray(outputs(arrays_of(model), batch), np.float64)

    def model_inputs(self) -> Inputs:
        return jax.eval_shape(self._prepare, self.inputs) if self.on_host else self.inputs

    def answers(self) -> Answers | None:
        if self.session.benchmark.data is None:
            return None
        metric = self.session.benchmark.task.metric
        labels, said = [], []
        for rows, batch in self.requests.predicted():
            outputs = self.answer_to(batch)[: len(rows)]
            targets = self.task.targets({name: array[rows] for name, array in self.session.dataset.test.items()})
            labels.append(np.asarray(self.task.answers(outputs)))
            said.append((np.asarray(self.task.scores(outputs, targets), np.float64), np.asarray(targets)))
            if are_enough(labels):
                break
        self.settle()
        return Answers(np.concatenate(labels), *quality_of(said, metric, self.settings))

    def parity(self) -> Neutral:
        return {"outputs": np.asarray(self.step()[1], np.float64)}


def in_evaluation(model: nnx.Module) -> nnx.Module:
    """With the running statistics, if it has any."""
    evaluated: nnx.Module = nnx.view(model, use_running_average=True, raise_if_not_found=False)
    return evaluated


def in_memory(device: jax.Device, kind: str) -> jax.sharding.Sharding:
    """`pinned_host`, or the device's own."""
    return jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
