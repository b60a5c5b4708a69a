"""What torch_runner/device.py makes of errors, precisions and GPUs, without one."""

from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from harness.errors import ProjectError, Refused
from harness.measure.world import World
from torch_runner.device import Device, choose_arithmetic, free_bytes_of_graphs


def compiler_error(inner: Exception) -> BackendCompilerFailed:
    def inductor() -> None: ...

    return BackendCompilerFailed(inductor, inner, None)


def caused_by(cause: BaseException) -> RuntimeError:
    error = RuntimeError("a step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), False),
    ],
    ids=str,
)
def test_out_of_memory_is_known_by_whoever_runs_into_it(error: Exception, is_full: bool) -> None:
    for one in (error, compiler_error(error), caused_by(compiler_error(caused_by(error)))):
        assert Device().is_out_of_memory(one) is is_full


def test_a_real_allocation_that_no_machine_can_give() -> None:
    device = Device()
    for name in {"cpu", device.device.type}:
        with pytest.raises(RuntimeError) as raised:
            torch.empty(1 << 50, dtype=torch.uint8, device=name)
        assert device.is_out_of_memory(raised.value)


def test_out_of_memory_inside_a_capture_is_known_behind_the_error_of_its_end() -> None:
    """As torch.cuda.graph has it: its end fails too, while the first error is still being handled. What was handled
    before an error is not its cause."""

    def after(first: Exception, **cause: Any) -> BaseException:
        second = RuntimeError("operation failed due to a previous error during capture")
        second.__context__ = first
        for name, value in cause.items():
            setattr(second, name, value)
        return second

    full = torch.OutOfMemoryError("CUDA out of memory")
    assert Device().is_out_of_memory(after(full))
    assert not Device().is_out_of_memory(after(full, __suppress_context__=True))


def test_a_hidden_gpu_is_named_before_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a refusal: that would settle the measurement, and other options of Slurm would not be tried."""
    device = Device()
    device.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    sentence = r"sees 1 GPU\(s\), and rank 3 of this node needs the one numbered 3\. "
    with pytest.raises(ProjectError, match=sentence) as raised:
        device.join(World(rank=3, size=4, local_rank=3, coordinator="localhost:1"))
    assert not isinstance(raised.value, Refused)


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


@pytest.mark.parametrize(("tf32", "said", "matmul"), [(True, "tf32", "high"), (False, "ieee", "highest")])
def test_inductors_convolutions_have_the_precision_too_and_default_sets_nothing(
    tf32: bool, said: str, matmul: str
) -> None:
    choose_arithmetic(tf32=tf32)
    description = Device().describe()
    assert (description["matmul_precision"], description["cudnn_allow_tf32"]) == (matmul, tf32)
    assert set(description["fp32_precision"].values()) == {said}
    assert (description["cudnn_benchmark"], description["cudnn_benchmark_limit"]) == (True, 0)
    torch.backends.mha.set_fastpath_enabled(tf32)
    description = Device().describe()
    Device().set_up("default")
    assert Device().describe() == description
    Device().set_up("fp32")
    assert Device().describe()["mha_fastpath"] is False


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
