"""What torch_runner/device.py makes of errors, precisions and GPUs, without one."""

import json

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from harness.errors import ProjectError, Refused
from harness.measure.world import World
from tests.made.processes import output_of
from torch_runner.device import Device, choose_arithmetic, free_bytes_of_graphs, model_dtype


def compiler_error(inner: Exception) -> BackendCompilerFailed:
    def inductor() -> None: ...

    return BackendCompilerFailed(inductor, inner, None)


def caused_by(cause: BaseException) -> RuntimeError:
    error = RuntimeError("a step failed")
    error.__cause__ = cause
    return error


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
]
OTHER = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: invalid argument"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_out_of_memory_is_known_by_whoever_runs_into_it(error: Exception) -> None:
    device = Device()
    assert device.is_out_of_memory(error)
    assert device.is_out_of_memory(compiler_error(error))
    assert device.is_out_of_memory(caused_by(error))
    assert device.is_out_of_memory(caused_by(compiler_error(caused_by(error))))


def test_a_real_allocation_that_no_machine_can_give() -> None:
    device = Device()
    for name in {"cpu", device.device.type}:
        with pytest.raises(RuntimeError) as raised:
            torch.empty(1 << 50, dtype=torch.uint8, device=name)
        assert device.is_out_of_memory(raised.value)


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    device = Device()
    assert not device.is_out_of_memory(error)
    assert not device.is_out_of_memory(caused_by(compiler_error(error)))


def test_out_of_memory_that_an_error_only_followed_is_not_its_cause() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("handled")
        except RuntimeError:
            raise ValueError("another one") from None
    except ValueError as error:
        assert not Device().is_out_of_memory(error)


@pytest.mark.parametrize(("visible", "local_rank"), [(1, 1), (1, 3), (0, 0)])
def test_a_hidden_gpu_is_named_before_ranks_meet(
    visible: int, local_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a refusal: that would settle the measurement, and other options of Slurm would not be tried."""
    device = Device()
    device.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    world = World(rank=3, size=4, local_rank=local_rank, coordinator="localhost:1")
    sentence = rf"sees {visible} GPU\(s\), and rank {local_rank} of this node needs the one numbered {local_rank}\. "
    with pytest.raises(ProjectError, match=sentence) as raised:
        device.join(world)
    assert not isinstance(raised.value, Refused)


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("fp32", torch.float32)])
def test_precision_is_that_of_what_is_computed(precision: str, dtype: torch.dtype) -> None:
    device = Device()
    device.set_up(precision)
    assert model_dtype(precision) == dtype
    assert device.describe()["matmul_precision"] == "highest"


def test_every_compilation_counts_once() -> None:
    """Dynamo's; the backend compiles nothing."""
    device = Device()
    double = torch.compile(lambda values: 2 * values, backend="eager", dynamic=False)
    one, two = torch.ones(3), torch.ones(4)
    double(one)
    before = device.compilations()
    double(one)
    assert device.compilations() == before
    double(two)
    assert device.compilations() == before + 1
    device.forget_programs()
    double(two)
    assert device.compilations() == before + 2


def test_out_of_memory_inside_a_capture_is_known_behind_the_error_of_its_end() -> None:
    """As torch.cuda.graph has it: its end fails too, while the first error is still being handled."""

    def capture(cause: Exception) -> Exception:
        try:
            try:
                raise cause
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        except RuntimeError as error:
            return error

    assert Device().is_out_of_memory(capture(torch.OutOfMemoryError("CUDA out of memory")))
    assert not Device().is_out_of_memory(capture(ValueError("another mistake")))


@pytest.mark.parametrize(("precision", "said", "matmul"), [("fp32", "ieee", "highest"), ("tf32", "tf32", "high")])
def test_inductors_convolutions_hear_of_the_precision_too(precision: str, said: str, matmul: str) -> None:
    choose_arithmetic(tf32=precision == "tf32")
    description = Device().describe()
    assert (description["matmul_precision"], description["cudnn_allow_tf32"]) == (matmul, precision == "tf32")
    assert set(description["fp32_precision"].values()) == {said}
    assert (description["cudnn_benchmark"], description["cudnn_benchmark_limit"]) == (True, 0)
    choose_arithmetic(tf32=False)


def test_default_sets_nothing_and_says_what_it_found() -> None:
    """In a process of its own, as this one has set everything."""
    code = """
import json
from torch_runner.device import Device
device = Device()
before = device.describe()
device.set_up("default")
print(json.dumps([before, device.describe()]))
"""
    before, after = json.loads(output_of("-c", code))
    assert before == after
    assert (after["cudnn_allow_tf32"], after["cudnn_benchmark"]) == (True, False)


def test_a_gpu_that_pytorch_does_not_see_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_runner.device.usable_gpu_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ProjectError, match="this machine has a GPU, and PyTorch .* does not see it"):
        Device().set_up("fp32")


def test_no_algorithms_are_tried_in_the_parity_gate() -> None:
    device = Device()
    device.set_up("fp32")
    device.try_no_algorithms()
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)
    torch.backends.cudnn.deterministic = False
    device.set_up("fp32")


def test_what_cuda_graphs_keep_and_no_tensor_holds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 10},
        {"segment_pool_id": (0, 1), "total_size": 50, "allocated_size": 20},
        {"segment_pool_id": (1, 0), "total_size": 7, "allocated_size": 7},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert free_bytes_of_graphs() == 30
