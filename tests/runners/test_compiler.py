"""torch_runner/compiler.py: the order of a capture, what is imported before the clock starts, what a mode is told and
what its step turns out to be."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from harness.errors import CheckFailed, Refused
from harness.measure.clock import COLD_CALLS
from harness.work.declared import Formulation, Mode, Run
from harness.work.use_cases.per_sample_gradients import USE_CASE
from tests.made.captures import allow_captures
from tests.made.processes import output_of
from tests.made.sessions import build, make_session, with_variant
from torch_runner import compiler
from torch_runner.use_cases import many_models

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
    def graph(self, _graph: Any, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
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
    for name in ("Stream", "current_stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(trace, name))
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    losses = []

    def step() -> torch.Tensor:
        trace.events.append("step without gradients" if weight.grad is None else "step")
        loss = 3 * weight.sum()
        loss.backward()
        losses.append(loss)
        return loss

    call = compiler.captured(step, optimizer.zero_grad)
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
from harness.work.declared import use_case
from torch_runner.compiler import compile_options
assert "torch._inductor.compile_fx" not in sys.modules
mode = use_case("train").mode("torch", "step.compiled")
assert compile_options(mode) == {"fullgraph": True, "dynamic": False, "options": {}}
assert "torch._inductor.compile_fx" in sys.modules
"""
    output_of("-c", code)


# What the modes are


def mode_of(formulation: str = "step", **run: Any) -> Mode:
    made = Run(name="a_run", **run)
    return Mode(written=Formulation(name=formulation, runs=(made,)), run=made)


def options_of(**run: Any) -> dict[str, Any]:
    return compiler.compile_options(mode_of(**run))["options"]


def test_options_of_the_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0")  # older ones have one option more
    autotuned = {"max_autotune": True, "coordinate_descent_tuning": True}
    assert options_of() == options_of(graph="step") == {}
    assert options_of(run_as="max_autotune") == options_of(run_as="max_autotune", graph="step") == autotuned
    assert options_of(graph="parts") == {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}


def test_vmapped_convolutions_keep_their_layout_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN takes channels_last in any case."""
    modes = [USE_CASE.mode("torch", f"{name}.compiled") for name in ("vmap", "chunked", "outer_product")]
    assert [compiler.compile_options(mode)["options"] for mode in modes] == [{}, {}, {}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(compiler, "_start_compiler", lambda: None)
    kept = {"layout_optimization": False}
    assert [compiler.compile_options(mode)["options"] for mode in modes] == [kept, kept, {}]
    assert set(kept) <= set(torch._inductor.list_options())


@pytest.mark.parametrize(("release", "excluded"), [("2.11.0+cu130", True), ("2.12.1", True), ("2.13.0", False)])
def test_wrong_convolutions_of_old_releases_are_kept_out(
    release: str, excluded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", release)
    assert (options_of(run_as="max_autotune").get("max_autotune_conv_backends") == "ATEN") is excluded


def test_inductor_knows_the_options() -> None:
    known = torch._inductor.list_options()
    assert {*options_of(run_as="max_autotune", graph="parts"), "max_autotune_conv_backends"} <= set(known)


def test_too_small_a_gpu_has_no_mode_of_its_own_for_more_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.utils.is_big_gpu", lambda _device: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA RTX A5000")
    mode = mode_of(run_as="max_autotune")
    with pytest.raises(Refused, match="step.a_run would be the compiled one on NVIDIA RTX A5000"):
        compiler.require_ability(mode, torch.device("cuda"))


# What a step turns out to be


def replaying(count: int) -> Callable[[], None]:
    """A step that replays so many CUDA graphs, as Inductor does: by the method of the class."""

    def step() -> None:
        for _ in range(count):
            torch.cuda.CUDAGraph.replay(object())  # type: ignore[arg-type]

    return step


@pytest.fixture
def harmless_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda _graph: None)


@pytest.mark.usefixtures("harmless_replays")
@pytest.mark.parametrize(("graph", "replays"), [("none", 0), ("step", 1), ("parts", 2), ("parts", 3)])
def test_replays_are_counted(graph: Any, replays: int) -> None:
    mode = mode_of(run_as="eager", graph=graph)
    for _ in range(2):  # the method is as it was afterwards
        found = compiler.witness(replaying(replays), mode, torch.device("cpu"))
        assert found["cuda_graph_replays"] == replays


@pytest.mark.usefixtures("harmless_replays")
@pytest.mark.parametrize(("graph", "replays"), [("none", 1), ("step", 0), ("step", 2), ("parts", 0), ("parts", 1)])
def test_a_graph_mode_without_its_graph_is_not_timed(graph: Any, replays: int) -> None:
    mode = mode_of(run_as="eager", graph=graph)
    with pytest.raises(CheckFailed, match=f"step.a_run replays {replays} CUDA graphs in a call; expected"):
        compiler.witness(replaying(replays), mode, torch.device("cpu"))


def test_a_compiled_mode_that_compiled_nothing_is_not_timed() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    mode = mode_of()
    with pytest.raises(CheckFailed, match="step.a_run has compiled nothing"):
        compiler.witness(lambda: None, mode, torch.device("cpu"))
    doubled = torch.compile(lambda tensor: 2 * tensor, backend="aot_eager")
    found = compiler.witness(lambda: doubled(torch.ones(2)), mode, torch.device("cpu"))
    assert found == {
        "cuda_graph_replays": 0,
        "compiled_graphs": 1,
        "graph_breaks": 0,
        "cuda_graphs_recorded_anew": 0,
    }


# A captured step reads its inputs where they lay when it was captured.


def test_per_sample_gradients_are_taken_of_the_settled_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    session = make_session(
        "torch", "per_sample_gradients", batch_size=16, execution_mode="vmap.eager_graph", options={"output": "norms"}
    )
    program: Any = build(session)
    program.step()
    before = addresses_and_sums(program.batch)
    program.settle()
    require_new_values_in_place(before, addresses_and_sums(program.batch))  # 8 samples twice, and then 16
    expected, _ = program.own_batch(np.arange(16))
    torch.testing.assert_close(program.batch[0], expected)
    plain: Any = build(with_variant(session, execution_mode="vmap.eager"))
    plain.settle()
    torch.testing.assert_close(program.step(), plain.step())


@pytest.mark.parametrize("batches", ["different", "same"])
@pytest.mark.parametrize("mode", ["loop.eager_graph", "batched.eager_graph", "vmap.eager_graph"])
def test_many_models_train_on_what_is_drawn_anew(mode: str, batches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
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
    losses = program.losses_of(program.step())
    placed = lambda: [*many_models.as_list(program.inputs), *many_models.as_list(program.targets)]  # noqa: E731
    before = addresses_and_sums(placed())
    program.settle()
    assert not np.allclose(program.losses_of(program.step()), losses)
    require_new_values_in_place(before, addresses_and_sums(placed()))


def addresses_and_sums(tensors: Sequence[torch.Tensor]) -> list[tuple[int, float]]:
    return [(tensor.data_ptr(), tensor.float().sum().item()) for tensor in tensors]


def require_new_values_in_place(before: list[tuple[int, float]], after: list[tuple[int, float]]) -> None:
    assert [address for address, _ in after] == [address for address, _ in before]
    assert before[0][1] != pytest.approx(after[0][1])
