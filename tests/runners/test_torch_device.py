"""What torch_runner/device.py makes of errors and of hidden GPUs, which no CPU can show."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from harness.errors import ProjectError, Refused
from harness.world import World
from torch_runner.device import Device


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
