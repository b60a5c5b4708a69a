"""The device as PyTorch sees it: precision, waiting, memory, compilations."""

from typing import Any

import torch

from harness.errors import Refused
from harness.record import Memory

ON_CPU = "PyTorch's allocator keeps no count on a CPU; host_peak_bytes has the whole process"


class Device:
    """Implements harness.session.DeviceProtocol."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._peak_before_reset = 0
        self._step_peak_bytes: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def set_up(self, precision: str) -> None:
        """fp32 is IEEE and tf32 is TF32 for matrix products and for convolutions alike; bf16 is autocast over fp32
        weights.

        Source: docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32 (TF32) on Ampere (and later) devices".

        Raises:
            Refused: tf32 or bf16 on a CPU.
        """
        if precision != "fp32" and not self.on_gpu:
            raise Refused(
                f"precision {precision} needs an NVIDIA GPU; PyTorch sees none here and it is not run as fp32"
            )
        if precision != "fp32" and torch.cuda.get_device_capability() < (8, 0):
            raise Refused(
                f"precision {precision} needs compute capability 8.0, which {torch.cuda.get_device_name()} lacks"
            )
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.benchmark = True  # autotune, as XLA does

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = {
            "name": "torch",
            "version": torch.__version__,
            "platform": self.device.type,
            "threads": torch.get_num_threads(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        }
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(self.device)
            description |= {
                "device": properties.name,
                "device_uuid": f"GPU-{properties.uuid}",
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "device_count": torch.cuda.device_count(),
            }
        return description

    def wait(self, outputs: Any) -> None:
        """All work of the device's streams, so all outputs; on a CPU a call returns when its work is done."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def compilations(self) -> int:
        """Graphs that Dynamo has compiled so far; a recompilation counts again."""
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def begin_timing(self) -> None:
        if self.on_gpu:
            self._peak_before_reset = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()

    def end_timing(self) -> None:
        if self.on_gpu:
            self._step_peak_bytes = torch.cuda.max_memory_allocated()

    def memory(self) -> Memory:
        if not self.on_gpu:
            return Memory(absent=ON_CPU)
        return Memory(
            allocator_peak_bytes=max(self._peak_before_reset, torch.cuda.max_memory_allocated()),
            step_peak_bytes=self._step_peak_bytes,
            pool_peak_bytes=torch.cuda.max_memory_reserved(),
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """On a GPU by the error's class; the CPU's allocator raises a RuntimeError (c10/core/impl/alloc_cpu.cpp)."""
        return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
