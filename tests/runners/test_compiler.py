"""torch_runner/compiler.py: the order of a capture, what is imported before the clock starts, what a mode is told and
what its step turns out to be."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from harness.errors import CheckFailed, Refused
from harness.measure.clock import COLD_CALLS
from harness.work.declared import Formulation, Mode, Run
from harness.work.use_cases.per_sample_gradients import USE_CASE
from tests.made.captures import allow_captures
from tests.made.sessions import build, make_session, with_variant
from torch_runner import compiler
from torch_runner.use_cases import many_models

# Capture. The streams and the graph are stand-ins that write down what they are asked.


class Stream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: "Stream") -> None:
        self.events.append(f"{self.name} waits for {other.name}")


def test_a_step_is_warmed_up_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is one step: two as they are, then the captured one. The capture itself runs nothing, so a replay
    follows. It begins without gradients."""
    events: list[str] = []
    side, main = Stream("side", events), Stream("main", events)

    @contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    @contextmanager
    def capture(_graph: Any, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        events.append(f"capture on {stream.name}")
        yield
        events.append("captured")

    graph = mock.Mock(replay=lambda: events.append("replay"))
    of_cuda = {"Stream": lambda: side, "current_stream": lambda: main, "stream": inside, "graph": capture}
    for name, stand_in in (of_cuda | {"CUDAGraph": lambda: graph}).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    losses = []

    def step() -> torch.Tensor:
        events.append("step without gradients" if weight.grad is None else "step")
        loss = 3 * weight.sum()
        loss.backward()
        losses.append(loss)
        return loss

    call = compiler.captured(step, optimizer.zero_grad)
    returned = [call() for _ in range(COLD_CALLS + 2)]
    assert events == [
        *["side waits for main", "on side", "step without gradients", "off side", "main waits for side"],
        *["side waits for main", "on side", "step", "off side", "main waits for side"],
        *["capture on side", "step without gradients", "captured", "replay", "replay", "replay"],
    ]
    assert [loss.item() for loss in losses] == [3.0, 3.0, 3.0]
    assert returned[2] is returned[3] is returned[4]
    assert not any(loss.requires_grad for loss in returned)  # or its graph would hold autograd's nodes of the warm-up


# What the modes are


def mode_of(formulation: str = "step", **run: Any) -> Mode:
    made = Run(name="a_run", **run)
    return Mode(written=Formulation(name=formulation, runs=(made,)), run=made)


def options_of(**run: Any) -> dict[str, Any]:
    return compiler.compile_options(mode_of(**run))["options"]


@pytest.mark.parametrize(("release", "excluded"), [("2.11.0+cu130", True), ("2.12.1", True), ("2.13.0", False)])
def test_options_of_the_modes(release: str, excluded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong convolutions of old releases are kept out. Inductor knows all of these options, and is imported before the
    clock starts."""
    imported: list[str] = []
    right = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: imported.append(name) or right(name, *rest))
    monkeypatch.setattr(torch, "__version__", release)
    autotuned = {"max_autotune": True, "coordinate_descent_tuning": True}
    autotuned |= {"max_autotune_conv_backends": "ATEN"} if excluded else {}
    parts = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
    assert options_of() == options_of(graph="step") == {}
    assert options_of(run_as="max_autotune") == options_of(run_as="max_autotune", graph="step") == autotuned
    assert options_of(graph="parts") == parts
    assert "torch._inductor.compile_fx" in imported
    assert {*autotuned, *parts} <= set(torch._inductor.list_options())


def test_vmapped_convolutions_keep_their_layout_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN takes channels_last in any case."""
    modes = [USE_CASE.mode("torch", f"{name}.compiled") for name in ("vmap", "chunked", "outer_product")]
    assert [compiler.compile_options(mode)["options"] for mode in modes] == [{}, {}, {}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(compiler, "_start_compiler", lambda: None)
    kept = {"layout_optimization": False}
    assert [compiler.compile_options(mode)["options"] for mode in modes] == [kept, kept, {}]
    assert set(kept) <= set(torch._inductor.list_options())


def test_too_small_a_gpu_has_no_mode_of_its_own_for_more_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.utils.is_big_gpu", lambda _device: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA RTX A5000")
    mode = mode_of(run_as="max_autotune")
    with pytest.raises(Refused, match="step.a_run would be the compiled one on NVIDIA RTX A5000"):
        compiler.require_ability(mode, torch.device("cuda"))


# What a step turns out to be


@pytest.mark.parametrize(
    ("graph", "replays", "fits"),
    [
        *(("none", 0, True), ("step", 1, True), ("parts", 2, True), ("parts", 3, True)),
        *(("none", 1, False), ("step", 0, False), ("step", 2, False), ("parts", 1, False)),
    ],
)
def test_a_graph_mode_without_its_graph_is_not_timed(
    graph: Any, replays: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step replays CUDA graphs as Inductor does: by the method of the class."""

    def step() -> None:
        for _ in range(replays):
            torch.cuda.CUDAGraph.replay(object())  # type: ignore[arg-type]

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda _graph: None)
    mode = mode_of(run_as="eager", graph=graph)
    for _ in range(2):  # the method is as it was afterwards
        if fits:
            found = compiler.witness(step, mode, torch.device("cpu"))
            assert found["cuda_graph_replays"] == replays
        else:
            with pytest.raises(CheckFailed, match=f"step.a_run replays {replays} CUDA graphs in a call; expected"):
                compiler.witness(step, mode, torch.device("cpu"))


def test_a_compiled_mode_that_compiled_nothing_is_not_timed() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    mode = mode_of()
    with pytest.raises(CheckFailed, match="step.a_run has compiled nothing"):
        compiler.witness(lambda: None, mode, torch.device("cpu"))
    doubled = torch.compile(lambda tensor: 2 * tensor, backend="aot_eager")
    found = compiler.witness(lambda: doubled(torch.ones(2)), mode, torch.device("cpu"))
    counts = {"cuda_graph_replays": 0, "compiled_graphs": 1, "graph_breaks": 0, "cuda_graphs_recorded_anew": 0}
    assert found == counts


# A captured step reads its inputs where they lay when it was captured.


def test_per_sample_gradients_are_taken_of_the_settled_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    session = make_session(
        "torch", "per_sample_gradients", batch_size=16, execution_mode="vmap.eager_graph", options={"output": "norms"}
    )
    program: Any = build(session)
    program.step()
    require_new_values_in_place(program, lambda: program.batch)  # 8 samples twice, and then 16
    expected, _ = program.own_batch(np.arange(16))
    torch.testing.assert_close(program.batch[0], expected)
    plain: Any = build(with_variant(session, execution_mode="vmap.eager"))
    plain.settle()
    torch.testing.assert_close(program.step(), plain.step())


@pytest.mark.parametrize(
    ("mode", "batches"),
    [("loop.eager_graph", "different"), ("batched.eager_graph", "same"), ("vmap.eager_graph", "different")],
)
def test_many_models_train_on_what_is_drawn_anew(mode: str, batches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    names = {"benchmark": "synthetic", "model": "mlp", "batch_size": 4, "options": {"batches": batches}}
    program: Any = build(make_session("torch", "many_models", execution_mode=mode, **names))
    losses = program.losses_of(program.step())
    require_new_values_in_place(program, lambda: many_models.as_list(program.inputs))
    assert not np.allclose(program.losses_of(program.step()), losses)


def require_new_values_in_place(program: Any, placed: Callable[[], Sequence[torch.Tensor]]) -> None:
    """After the batch is settled, which the next call reads."""
    before = [(tensor.data_ptr(), tensor.float().sum().item()) for tensor in placed()]
    program.settle()
    after = [(tensor.data_ptr(), tensor.float().sum().item()) for tensor in placed()]
    assert [address for address, _ in after] == [address for address, _ in before]
    assert before[0][1] != pytest.approx(after[0][1])
