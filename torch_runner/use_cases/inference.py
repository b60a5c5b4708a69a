"""Use case 5: the outputs of a batch, on one GPU.

The model is in evaluation: BatchNorm takes its running statistics, if it was not folded into the convolutions. One call
is one batch. Inputs that are on the device are normalised, in the model's dtype, in one buffer that is read in every
call. Inputs on the host are raw and pinned; a call copies the next of a few batches to the device, normalises it there
as a part of the program, copies the outputs to pinned memory and waits for them.

In bf16 and fp16 weights and inputs are stored in half precision, where torch.autocast would convert all weights in
every call. BatchNorm that is kept has its own numbers in float32.

How a call is run (torch_runner/compiler.py):
    eager           operator by operator, in inference mode
    compiled        the model, with normalisation where inputs are on the host, is one torch.compile graph
    max_autotune    the same, and Inductor tries several kernels for each operation
    graph: step     each of these as one CUDA graph; copies from and to the host are outside
    eager_nchw      eager with images and kernels in PyTorch's default layout; in all others they are channels_last
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from harness.errors import Refused
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
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import HALF, Device, compute_dtype, model_dtype
from torch_runner.folding import without_batch_norm
from torch_runner.graphs import use_sorted_sums
from torch_runner.models import aggregation_of, attention_of, make_model
from torch_runner.task import Batch, Inputs, Task, in_layout, make_task, to_device
from torch_runner.weights import Neutral, load_weights, parameter_count, store_as, to_neutral

NOT_PINNED = "not pinned: without a GPU there is nothing to copy to"


def build(session: Session[Device], *, joined: bool = True) -> "Inference":
    """One device only, so `joined` changes nothing."""
    return Inference(session)


class Inference(Infers):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device]) -> None:
        measurement, mode = session.measurement, session.mode
        precision = measurement.variant.precision
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
        self.memory_format = torch.contiguous_format if mode.layout == "nchw" else torch.channels_last
        dtype = model_dtype(precision)
        model = self.make_model(dtype)
        model.to(self.device).to(memory_format=self.memory_format)
        task = make_task(session, dtype, self.requests.given())
        self.prepare = Prepare(task, compute_dtype(precision), self.memory_format).to(self.device)
        self.shared = to_device(session.dataset.shared, self.device)
        """What samples share, where they do, and where inputs are on the device."""
        self.outputs_of: nn.Module = nn.Sequential(self.prepare, model) if self.on_host else model
        self.outputs_of = in_mode(self.outputs_of, mode, self.device)
        self.units = task.units
        self.details = {**describe(mode), **task.details} | ({"host_memory": self.host_memory} if self.on_host else {})
        self.details |= attention_of(model, mode.formulation, compute_dtype(precision), self.device)
        self.details |= aggregation_of(model)
        self.on_the_host: list[dict[str, Tensor]] = []
        """What comes to the device in turn, where inputs are on the host."""
        self.next_batch = 0
        self.inputs: Any = None
        """On the device, in the same place in every call, as a CUDA graph reads it there."""
        self.answer: Tensor | None = None
        """The outputs on the host, where they go there."""
        self.settle()
        self.compute = captured(self.forward) if mode.graph == "step" else self.forward

    def make_model(self, dtype: torch.dtype) -> nn.Module:
        """As it is timed, on the CPU. Raises Refused."""
        session = self.session
        model = make_model(session, dtype).eval().requires_grad_(False)
        if session.mode.formulation == "sorted_sums":
            use_sorted_sums(model)
        self.parameter_count = parameter_count(model)
        if session.mode.layout == "nchw" and not any(isinstance(module, nn.Conv2d) for module in model.modules()):
            raise Refused(f"execution mode {session.mode.name} is for models with convolutions; of others it is eager")
        weight_of, batch_norm = self.weight_of, session.model.batch_norm
        if batch_norm and self.options.batch_norm == "folded":
            weight_of = folded(weight_of, without_batch_norm(model), batch_norm.epsilon)
        load_weights(model, weight_of)
        model.requires_grad_(False)
        if half := HALF.get(session.measurement.variant.precision):
            store_as(model, half)
        return model

    @property
    def host_memory(self) -> str:
        return "pinned" if self.session.device.on_gpu else NOT_PINNED

    def step(self) -> Tensor:
        """The outputs of the batch that is there, or of the next one from the host; on the device."""
        with self.without_gradients():
            if self.on_host:
                self.bring(self.on_the_host[self.next_batch])
                self.next_batch = (self.next_batch + 1) % len(self.on_the_host)
            outputs = self.compute()
            if self.on_host:
                self.send_back(outputs)
        return outputs

    def forward(self) -> Tensor:
        outputs: Tensor = self.outputs_of(self.inputs)
        return outputs

    def bring(self, batch: Mapping[str, Tensor]) -> None:
        for name, tensor in batch.items():
            self.inputs[name].copy_(tensor, non_blocking=True)

    def send_back(self, outputs: Tensor) -> None:
        """Returns when they are there."""
        if self.answer is None:
            self.answer = torch.empty_like(outputs, device="cpu", pin_memory=self.session.device.on_gpu)
        self.answer.copy_(outputs, non_blocking=True)
        if self.session.device.on_gpu:
            torch.cuda.current_stream().synchronize()

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Dynamo knows tensors of inference mode as another kind, so compiled programs go without it."""
        return torch.inference_mode() if self.session.mode.run_as == "eager" else torch.no_grad()

    def state(self) -> Any:
        return self.outputs_of, self.inputs

    def take(self, batches: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Answer these from now on, in turn; of inputs that lie on the device, the only one."""
        placed = [to_device(batch, torch.device("cpu")) for batch in batches]
        if self.on_host:
            pinned = self.session.device.on_gpu
            self.on_the_host = [{name: t.pin_memory() if pinned else t for name, t in b.items()} for b in placed]
            self.next_batch = 0
            self.inputs = self.inputs or {name: t.to(self.device, copy=True) for name, t in placed[0].items()}
            return
        (batch,) = placed
        inputs = self.prepare({name: tensor.to(self.device) for name, tensor in batch.items()} | self.shared)
        if self.inputs is None:
            self.inputs = inputs
            return
        for tensor, value in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
            tensor.copy_(value)

    def answer_to(self, batch: Mapping[str, NDArray[Any]]) -> Tensor:
        """The outputs of this batch, by the step that is timed, from where it leaves them."""
        self.take([batch])
        outputs = self.step()
        return outputs if self.answer is None else self.answer

    def settle(self) -> None:
        self.take(self.requests.timed(HOST_BATCHES if self.on_host else 1))

    def check(self) -> list[Check]:
        """Raises CheckFailed unless the program that is timed gives the outputs of the model in float64."""
        actual = [to_neutral({"": self.answer_to(batch)})[""] for batch in self.requests.checked()]
        return check_outputs(actual, self.reference(), self.session.measurement.variant.precision)

    def reference(self) -> NDArray[np.float64]:
        """In float64, operator by operator, with BatchNorm. Where the device has too little memory, on the CPU."""
        try:
            return self.reference_on(self.device)
        except torch.OutOfMemoryError:
            pass
        return self.reference_on(torch.device("cpu"))

    @torch.no_grad()
    def reference_on(self, device: torch.device) -> NDArray[np.float64]:
        model, task = make_model(self.session, torch.float64), make_task(self.session, torch.float64).to(device)
        load_weights(model, self.weight_of)
        model.to(device).eval()
        batch = to_device({**self.requests.distinct(), **self.session.dataset.shared}, device)
        return to_neutral({"": model(task.inputs(batch))})[""]

    def model_inputs(self) -> Inputs:
        return self.prepare(self.inputs) if self.on_host else self.inputs

    def witness(self) -> dict[str, Any]:
        return witness(self.step, self.session.mode, self.device)

    def answers(self) -> Answers | None:
        if self.session.benchmark.data is None:
            return None
        task, metric = self.prepare.task, self.session.benchmark.task.metric
        labels, said = [], []
        for rows, batch in self.requests.predicted():
            outputs = self.answer_to(batch)[: len(rows)]
            test = {name: array[rows] for name, array in self.session.dataset.test.items()}
            targets = task.targets(to_device(test, outputs.device))
            labels.append(task.answers(outputs).cpu().numpy())
            said.append((task.scores(outputs, targets).double().cpu().numpy(), targets.cpu().numpy()))
            if are_enough(labels):
                break
        self.settle()
        return Answers(np.concatenate(labels), *quality_of(said, metric, self.settings))

    def parity(self) -> Neutral:
        return to_neutral({"outputs": self.step()})


class Prepare(nn.Module):
    """From the raw arrays of a batch to what the model takes."""

    def __init__(self, task: Task, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.task = task
        self.dtype = dtype
        self.memory_format = memory_format

    def forward(self, batch: Batch) -> Inputs:
        return tree_map(self.stored, self.task.inputs(batch))

    def stored(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        return in_layout(inputs, self.memory_format) if inputs.dim() == 4 else inputs
