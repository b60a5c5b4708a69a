"""The contract of both `Device` classes with the clock, on recording doubles: when the device is waited for, when its
libraries are loaded, and when its peak memory is reset and read. No GPU and no fake one is needed."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.measure import clock
from harness.plan import FRAMEWORKS, Framework
from jax_runner import device as jax_device
from torch_runner import device as torch_device

PEAK_OF_WARM_UP, PEAK_OF_STEP, FREE_IN_POOL = 900, 500, 30
SEGMENTS = [{"segment_pool_id": (0, 1), "total_size": 50, "allocated_size": 20}]
"""A CUDA graph's pool of 50 bytes, of which live tensors hold 20."""


@dataclass
class RecordingDevice:
    """A GPU that records what is asked of it, in order."""

    device: Any
    events: list[str] = field(default_factory=list)
    peak_bytes: int = PEAK_OF_WARM_UP
    calls: int = 0

    def step(self) -> str:
        self.calls += 1
        self.events.append("call")
        return f"output {self.calls}"

    def read_clock(self) -> float:
        self.events.append("stop" if "start" in self.events else "start")
        return float(len(self.events))

    def synchronize(self, outputs: object = None) -> None:
        """`outputs` are those that JAX waits for; PyTorch waits for the whole device."""
        assert outputs in (None, f"output {self.calls}")
        self.events.append("synchronize")

    def read_peak(self) -> int:
        self.events.append("read peak")
        return self.peak_bytes

    def reset_peak(self) -> None:
        self.events.append("reset peak")
        self.peak_bytes = PEAK_OF_STEP


@pytest.fixture
def recording(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    """The framework's own class, whose framework is replaced by the recorder."""
    recording = RecordingDevice({"jax": jax_device, "torch": torch_device}[framework].Device())
    monkeypatch.setattr(clock, "perf_counter", recording.read_clock)
    if framework == "jax":
        monkeypatch.setattr(jax_device.Device, "on_gpu", True)
        monkeypatch.setattr(jax, "block_until_ready", recording.synchronize)
    else:
        recording.device.device = torch.device("cuda")
        monkeypatch.setattr(torch.cuda, "synchronize", recording.synchronize)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", recording.read_peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", recording.reset_peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 1000)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: SEGMENTS)
    return recording


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_timed_block_ends_only_after_the_device_was_waited_for(recording: RecordingDevice) -> None:
    clock.time_block(recording.step, recording.device.wait, calls=3)
    assert recording.events == ["start", "call", "call", "call", "synchronize", "stop"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_timed_call_ends_only_after_the_device_was_waited_for(recording: RecordingDevice) -> None:
    clock.time_call(recording.step, recording.device.wait)
    assert recording.events == ["start", "call", "synchronize", "stop"]


@pytest.mark.parametrize("framework", ["torch"])
def test_torch_peak_memory_of_steps_is_reset_before_the_first_block_and_read_after_the_last(
    recording: RecordingDevice,
) -> None:
    """JAX has no reset: XLA's account of the compiled step stands for it. The peak of the whole process stays that of
    the warm-up, which was higher."""
    recording.device.begin_timing()
    clock.time_block(recording.step, recording.device.wait, calls=2)
    recording.device.end_timing()
    block = ["start", "call", "call", "synchronize", "stop"]
    assert recording.events == ["read peak", "reset peak", *block, "read peak"]
    memory = recording.device.memory()
    assert memory.step_peak_bytes == PEAK_OF_STEP + FREE_IN_POOL
    assert (memory.allocator_peak_bytes, memory.pool_peak_bytes) == (PEAK_OF_WARM_UP, 1000)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_libraries_are_loaded_while_the_device_is_set_up(
    framework: Framework, recording: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So before the first timed call, whose time is that of its own compilation."""
    name = {"jax": "start_libraries", "torch": "load_libraries"}[framework]
    loader = f"{framework}_runner.device.{name}"
    monkeypatch.setattr(loader, lambda _: recording.events.append("libraries"))
    recording.device.set_up("default")
    assert recording.events == ["libraries"]
    monkeypatch.setattr(jax_device.Device, "on_gpu", False)
    recording.device.device = SimpleNamespace(type="cpu")
    recording.device.set_up("default")
    assert recording.events == ["libraries"], "a CPU has none to load"


class Operators(TorchDispatchMode):
    """Records the names of all operators that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_torch_libraries_are_loaded_by_a_convolution_and_a_product_with_their_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cuDNN by the convolution, cuBLAS by the product; the gradients of the product are two more. Loaded they are only
    when the device has done it."""
    waited: list[bool] = []
    with Operators() as operators:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("sum" in operators.names))
        torch_device.load_libraries(torch.device("cpu"))
    assert operators.names.count("convolution") == operators.names.count("convolution_backward") == 1
    assert operators.names.count("mm") == 3
    assert waited == [True]


def test_jax_libraries_are_loaded_by_a_convolution_and_a_product_with_their_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gradients of the images, of the convolution's kernel and of the matrix, on each device, and waited for."""
    waited_for: list[list[tuple[int, ...]]] = []
    monkeypatch.setattr(
        jax, "block_until_ready", lambda values: waited_for.append([one.shape for one in jax.tree.leaves(values)])
    )
    jax_device.start_libraries("fp32")
    assert waited_for == [[(16, 16, 16, 32), (3, 3, 32, 32), (256, 256)]] * len(jax.local_devices())
