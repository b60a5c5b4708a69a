"""torch_runner/compiler.py: the order of a capture, what is imported before the clock starts, and which inputs CUDA
graphs need not copy."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from harness.measure.clock import COLD_CALLS
from harness.paths import REPOSITORY
from tests.made.patience import patience
from tests.made.sessions import build, make_session
from torch_runner import compiler, formulations
from torch_runner.use_cases import many_models, per_sample_gradients

# Capture. The streams and the graph are stand-ins that write down what they are asked.


class Trace:
    """Stands for torch.cuda."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def Stream(self) -> "Stream":  # noqa: N802
        return Stream("side", self.events)

    def current_stream(self) -> "Stream":
        return Stream("main", self.events)

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        self.events.append(f"on {stream.name}")
        yield
        self.events.append(f"off {stream.name}")

    def CUDAGraph(self) -> "Trace":  # noqa: N802
        return self

    @contextmanager
    def graph(self, _graph: Any, stream: "Stream") -> Iterator[None]:
        self.events.append(f"capture on {stream.name}")
        yield
        self.events.append("captured")

    def replay(self) -> None:
        self.events.append("replay")


class Stream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: "Stream") -> None:
        self.events.append(f"{self.name} waits for {other.name}")


def test_a_step_is_warmed_up_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is one step: two as they are, then the captured one. The capture itself runs nothing, so a replay
    follows. It begins without gradients."""
    trace = Trace()
    monkeypatch.setattr(torch, "cuda", trace)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    losses = []

    def step() -> torch.Tensor:
        trace.events.append("step without gradients" if weight.grad is None else "step")
        loss = 3 * weight.sum()
        loss.backward()
        losses.append(loss)
        return loss

    call = compiler.captured(step, optimizer)
    returned = [call() for _ in range(COLD_CALLS + 2)]
    assert trace.events == [
        *["side waits for main", "on side", "step without gradients", "off side", "main waits for side"],
        *["side waits for main", "on side", "step", "off side", "main waits for side"],
        *["capture on side", "step without gradients", "captured", "replay", "replay", "replay"],
    ]
    assert [loss.item() for loss in losses] == [3.0, 3.0, 3.0]
    assert returned[2] is returned[3] is returned[4]
    assert not any(loss.requires_grad for loss in returned)  # or its graph would hold autograd's nodes of the warm-up


def test_inductor_is_imported_before_the_clock_starts() -> None:
    """In a process of its own, as this one has it by now."""
    code = """
import sys
from torch_runner.compiler import compile_options
assert "torch._inductor.compile_fx" not in sys.modules
assert compile_options("reduce-overhead") == {"fullgraph": True, "dynamic": False, "mode": "reduce-overhead"}
assert "torch._inductor.compile_fx" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=patience(100))


# Inputs that CUDA graphs would copy before every replay.

Inputs = list[tuple[tuple[int, ...], bool]]
"""Shape of every input of a compiled function, and whether Inductor takes its address for fixed."""


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> list[Inputs]:
    """Of the graphs that are compiled meanwhile, first those forward. Nothing is generated: a graph runs as it is."""
    seen: list[Inputs] = []

    def see(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        metadata = TracingContext.get().fw_metadata
        fixed = metadata.static_input_indices
        seen.append([(tuple(tensor.shape), index in fixed) for index, tensor in enumerate(example_inputs)])
        return make_boxed_func(graph.forward)

    def take(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=see, inference_compiler=see, bw_compiler=take)
    torch.compiler.reset()
    options = {"fullgraph": True, "dynamic": False, "backend": backend}
    for module in (per_sample_gradients, many_models, formulations):
        monkeypatch.setattr(module, "compile_options", lambda _mode=None: options)
        monkeypatch.setattr(module, "require_gpu", lambda *_: None, raising=False)
    return seen


@pytest.mark.parametrize("output", ["norms", "batch_gradient"])
def test_per_sample_gradients_copy_nothing(output: str, inputs: list[Inputs]) -> None:
    """The timed batch lies where the checked one lay, as another address would be recorded anew."""
    options = {"output": output}
    program: Any = build(
        make_session("torch", "per_sample_gradients", batch_size=16, execution_mode="cuda_graphs", options=options)
    )
    program.step()
    (of_graph,) = inputs
    assert ((16, 1, 28, 28), True) in of_graph
    assert len(of_graph) == 8 + 2  # weights and biases of four layers, images, labels
    assert all(is_fixed for _, is_fixed in of_graph)
    before = addresses_and_sums(program.batch)
    program.settle()
    require_new_values_in_place(before, addresses_and_sums(program.batch))  # 8 samples twice, and then 16
    expected, _ = program.own_batch(np.arange(16))
    torch.testing.assert_close(program.batch[0], expected)


@pytest.mark.parametrize("batches", ["different", "same"])
@pytest.mark.parametrize("mode", ["loop_cuda_graphs", "batched_cuda_graphs", "vmap_cuda_graphs"])
def test_many_models_copy_nothing(mode: str, batches: str, inputs: list[Inputs]) -> None:
    """Not even what is drawn anew."""
    program: Any = build(
        make_session(
            "torch",
            "many_models",
            benchmark="synthetic",
            model="mlp",
            batch_size=4,
            execution_mode=mode,
            options={"batches": batches},
        )
    )
    program.step()
    (forward,) = inputs
    assert all(is_fixed for _, is_fixed in forward)
    placed = lambda: [*many_models.as_list(program.inputs), *many_models.as_list(program.targets)]  # noqa: E731
    before = addresses_and_sums(placed())
    program.settle()
    program.step()
    require_new_values_in_place(before, addresses_and_sums(placed()))
    assert len(inputs) == 1  # nothing was compiled anew


def addresses_and_sums(tensors: Sequence[torch.Tensor]) -> list[tuple[int, float]]:
    return [(tensor.data_ptr(), tensor.float().sum().item()) for tensor in tensors]


def require_new_values_in_place(before: list[tuple[int, float]], after: list[tuple[int, float]]) -> None:
    assert [address for address, _ in after] == [address for address, _ in before]
    assert before[0][1] != pytest.approx(after[0][1])
