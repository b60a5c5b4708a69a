"""Use case 5: the outputs of a batch, on one GPU.

Inputs that are on the device are normalised, in the model's dtype, in one buffer that is read in every call. Inputs on
the host are raw and pinned; a call copies the next of a few batches to the device, normalises it there as a part of the
program, copies the outputs to pinned memory and waits for them. harness/measure/use_cases/inference.py has what JAX
does alike.

The model is what is compiled (compiler.py), with normalisation where inputs are on the host; eager runs in inference
mode. Copies from and to the host are outside of a CUDA graph. Images and kernels are channels_last but in eager_nchw,
which has PyTorch's default layout.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from harness.errors import Refused
from harness.measure.program import Session
from harness.measure.use_cases.inference import InferenceBase
from harness.work.task_kinds import Batch, Inputs
from torch_runner.compiler import captured, describe, in_mode, witness
from torch_runner.device import HALF, Device, compute_dtype, model_dtype
from torch_runner.folding import without_batch_norm
from torch_runner.graphs import use_sorted_sums
from torch_runner.models import details_of, make_model
from torch_runner.task import Task, in_layout, make_task, to_device
from torch_runner.weights import load_weights, parameter_count, store_as, to_neutral


def build(session: Session[Device], *, joined: bool = True) -> "Inference":
    """One device only, so `joined` changes nothing."""
    return Inference(session)


class Inference(InferenceBase):
    """See harness/measure/program.py."""

    def __init__(self, session: Session[Device]) -> None:
        super().__init__(session)
        mode, precision = session.mode, session.measurement.variant.precision
        # Dynamo knows tensors of inference mode as another kind, so compiled programs go without it.
        self.without_gradients = torch.inference_mode if mode.run_as == "eager" else torch.no_grad
        self.memory_format = torch.contiguous_format if mode.layout == "nchw" else torch.channels_last
        dtype = model_dtype(precision)
        model = self.make_model(dtype)
        model.to(self.device).to(memory_format=self.memory_format)
        self.task = make_task(session, dtype, self.requests.given())
        self.prepare = Prepare(self.task, compute_dtype(precision), self.memory_format).to(self.device)
        self.shared = to_device(session.dataset.shared, self.device)
        """What samples share, where they do, and where inputs are on the device."""
        self.outputs_of: nn.Module = nn.Sequential(self.prepare, model) if self.on_host else model
        self.outputs_of = in_mode(self.outputs_of, mode, self.device)
        self.units = self.task.units
        self.details = describe(mode) | details_of(model, self.task, session) | self.host_memory
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
        load_weights(model, self.timed_weights(model, without_batch_norm))
        model.requires_grad_(False)
        if half := HALF.get(session.measurement.variant.precision):
            store_as(model, half)
        return model

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

    def state(self) -> Any:
        return self.outputs_of, self.inputs

    def take(self, batches: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """On the device they are in the same place in every call, as a CUDA graph reads them there."""
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

    def outputs(self) -> Tensor:
        outputs = self.step()
        return outputs if self.answer is None else self.answer

    def to_numpy(self, outputs: Tensor) -> NDArray[np.float64]:
        return to_neutral({"": outputs})[""]

    def judged(self, outputs: Tensor, arrays: Mapping[str, NDArray[Any]]) -> tuple[Any, Any, Any]:
        targets = self.task.targets(to_device(arrays, outputs.device))
        scores = self.task.scores(outputs, targets).double().cpu().numpy()
        return self.task.answers(outputs).cpu().numpy(), scores, targets.cpu().numpy()

    @torch.no_grad()
    def reference_on(self, device: torch.device) -> NDArray[np.float64]:
        model, task = make_model(self.session, torch.float64), make_task(self.session, torch.float64).to(device)
        load_weights(model, self.weight_of)
        model.to(device).eval()
        batch = to_device({**self.requests.distinct(), **self.session.dataset.shared}, device)
        return self.to_numpy(model(task.inputs(batch)))

    def model_inputs(self) -> Inputs:
        return self.prepare(self.inputs) if self.on_host else self.inputs

    def witness(self) -> dict[str, Any]:
        return witness(self.step, self.session.mode, self.device)


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
