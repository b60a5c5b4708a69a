"""What a model is made of, and what its layers give for one batch, by a plain forward pass (harness/results/
model_trace.py)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from harness.measure.program import Session
from harness.results.model_trace import Call, ModelTrace, kept
from harness.work.use_cases.inference import Requests
from torch_runner.models import make_model
from torch_runner.task import make_task, to_device
from torch_runner.weights import load_weights


def traced_model(session: Session[Any]) -> ModelTrace:
    """Operator by operator, in fp32, with the weights that the gate draws; BatchNorm as in training unless the use case
    has no gradients."""
    model = make_model(session, torch.float32)
    load_weights(model, session.weights_of("drawn", session.model.initial_weight))
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    calls: list[Call] = []
    model.to(session.device.device).train(session.use_case.has_gradients)

    def note(layer: str) -> Any:
        def hook(_module: nn.Module, inputs: Any, outputs: Any) -> None:
            calls.append(Call(layer, arrays_of(inputs), arrays_of(outputs)))

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(name))
    error = None
    try:
        with torch.no_grad():
            model(inputs_of(session))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return ModelTrace(shapes, tuple(calls), error)


def inputs_of(session: Session[Any]) -> Any:
    requests = Requests.of(session.measurement, session.benchmark, session.dataset)
    device = session.device.device
    task = make_task(session, torch.float32, requests.given()).to(device)
    batch = to_device(requests.timed(1)[0], device) | to_device(session.dataset.shared, device)
    return task.inputs(batch)


def arrays_of(tree: Any) -> tuple[Any, ...]:
    """The floating-point ones."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return tuple(kept(leaf.detach().float().cpu().numpy()) for leaf in leaves)
