"""The device as PyTorch sees it: precision, waiting, memory, compilations, and the other processes' devices."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.utils._pytree import tree_leaves

from harness.errors import ProjectError, Refused
from harness.measure import program
from harness.measure.gpu import usable_gpu_count
from harness.measure.world import World
from harness.plan import NEEDED_CAPABILITY
from harness.results.record import Memory
from torch_runner.compiler import Compilations

ON_CPU = "PyTorch's allocator keeps no count on a CPU; host_peak_bytes has the whole process"

OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)
"""What is said by those who ask the driver for memory themselves, and by the CPU's allocator
(c10/core/impl/alloc_cpu.cpp). PyTorch's own allocator for GPUs has a class of error for it."""

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What a model computes in, over float32 weights; inference stores its weights in it."""


class Device(program.Device):
    """See harness/measure/program.py."""

    cpu = torch.device("cpu")

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._world_size = 1
        self._compilations = Compilations()
        self._peak_before_reset = 0
        self._step_peak_bytes: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def join(self, world: World) -> None:
        """One of several processes from here on, each with one device: NCCL between GPUs, gloo between CPUs.

        Must be called before `set_up`, which otherwise makes a context on the node's first GPU.

        Raises:
            ProjectError: this process's GPU is not shown to it.
        """
        if self.on_gpu:
            world.require_gpus(torch.cuda.device_count())
            self.device = torch.device("cuda", world.local_rank)
            torch.cuda.set_device(self.device)
        distributed.init_process_group(
            "nccl" if self.on_gpu else "gloo",
            init_method=f"tcp://{world.coordinator}",
            rank=world.rank,
            world_size=world.size,
            device_id=self.device if self.on_gpu else None,
        )
        self._world_size = world.size

    def leave(self) -> None:
        if self._world_size > 1:
            distributed.destroy_process_group()

    def _of_all_ranks(self, values: NDArray) -> NDArray[np.float64]:
        """[ranks, *values]"""
        values = np.asarray(values, np.float64)
        if self._world_size == 1:
            return values[None]
        own = torch.from_numpy(values).to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self._world_size)]
        distributed.all_gather(gathered, own)
        return torch.stack(gathered).cpu().numpy()

    def set_up(self, precision: str) -> None:
        """fp64 and fp32 are IEEE and tf32 is TF32 for matrix products and for convolutions alike; bf16 is autocast
        over fp32 weights, fp16 the dtype of inference alone; default sets nothing, which is TF32 in convolutions only,
        and no trial of cuDNN's algorithms. In all others attention is computed as in training, also where there is
        nothing to train: its other path takes part in no compilation.

        Attention's fused kernel for float32 knows neither fp32 nor tf32: in both it makes each product of three TF32
        ones (`OpMultiplyAddFastF32` by DefaultGemmType, aten/src/ATen/native/transformers/cuda/mem_eff_attention/
        gemm_kernel_utils.h), nearly as exact as float32. Written out (`plain_attention`) it is as asked for.

        Source: docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32 (TF32) on Ampere (and later) devices".

        Raises:
            ProjectError: there is a GPU, and PyTorch does not see it.
            Refused: tf32, bf16 or fp16 on a CPU, or on a GPU whose tensor cores lack it.
        """
        require_cuda()
        needed = NEEDED_CAPABILITY.get(precision)
        if needed and not self.on_gpu:
            raise Refused(
                f"precision {precision} needs an NVIDIA GPU; PyTorch sees none here and it is not run as fp32"
            )
        if needed and torch.cuda.get_device_capability() < (int(needed), 0):
            raise Refused(
                f"precision {precision} needs compute capability {needed}, which {torch.cuda.get_device_name()} lacks"
            )
        if precision != "default":
            torch.backends.mha.set_fastpath_enabled(False)
            choose_arithmetic(tf32=precision == "tf32")
        if self.on_gpu:
            load_libraries(self.device)

    def try_no_algorithms(self) -> None:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = {
            "name": "torch",
            "version": torch.__version__,
            "platform": self.device.type,
            "threads": torch.get_num_threads(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_benchmark_limit": torch.backends.cudnn.benchmark_limit,
            "fp32_precision": fp32_precisions(),
            "mha_fastpath": torch.backends.mha.get_fastpath_enabled(),
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

    def is_finite(self, outputs: Any) -> bool:
        """Whether all floating-point numbers in it are."""
        tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def compilations(self) -> int:
        """Graphs that Dynamo has compiled so far; a recompilation counts again."""
        return self._compilations.count

    def forget_programs(self) -> None:
        torch.compiler.reset()

    def begin_timing(self) -> None:
        if self.on_gpu:
            self._peak_before_reset = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()

    def end_timing(self) -> None:
        """A replay allocates nothing: what its kernels write to lies in the CUDA graph's own pool."""
        if self.on_gpu:
            self._step_peak_bytes = torch.cuda.max_memory_allocated() + free_bytes_of_graphs()

    def memory(self) -> Memory:
        if not self.on_gpu:
            return Memory(absent=ON_CPU)
        return Memory(
            allocator_peak_bytes=max(self._peak_before_reset, torch.cuda.max_memory_allocated()),
            step_peak_bytes=self._step_peak_bytes,
            pool_peak_bytes=torch.cuda.max_memory_reserved(),
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Or what caused it was: compilers wrap the errors of what they run."""
        return any(
            isinstance(one, torch.OutOfMemoryError) or any(words in str(one) for words in OUT_OF_MEMORY)
            for one in with_causes(error)
        )


def model_dtype(precision: str) -> torch.dtype:
    """Of the weights: bf16 computes under torch.autocast over float32 weights."""
    return torch.float64 if precision == "fp64" else torch.float32


def compute_dtype(precision: str) -> torch.dtype:
    """Of matrix products."""
    return HALF.get(precision, model_dtype(precision))


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it wraps, and what it came after; `inner_exception` is that of
    torch._dynamo.exc.BackendCompilerFailed. An error inside a capture is followed by that of the capture's end."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        before = None if cause.__suppress_context__ else cause.__context__
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or before


def require_cuda() -> None:
    """Raises ProjectError where CUDA shows a GPU and PyTorch does not see it: nothing is measured on a CPU instead."""
    if torch.version.cuda and usable_gpu_count() and not torch.cuda.is_available():
        raise ProjectError(
            f"this machine has a GPU, and PyTorch {torch.__version__} for CUDA {torch.version.cuda} does not see it: "
            f"most often the driver is too old for it. Try: python -c 'import torch; torch.cuda.init()'"
        )


def choose_arithmetic(*, tf32: bool) -> None:
    """For matrix products and convolutions, those of Inductor's own kernels too; and algorithms of cuDNN are tried, all
    of them, as XLA does."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    if hasattr(torch.backends.cudnn, "fp32_precision"):  # what Inductor asks for its convolutions, from 2.9 on
        torch.backends.cudnn.fp32_precision = "tf32" if tf32 else "ieee"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0


def insist_on_fp32() -> None:
    """Of all products and convolutions of this process, and on the GPU where there is one. Raises ProjectError."""
    require_cuda()
    choose_arithmetic(tf32=False)


def fp32_precisions() -> dict[str, str]:
    """What PyTorch says of each, from 2.9 on."""
    backends: dict[str, Any] = {
        "matmul": torch.backends.cuda.matmul,
        "cudnn": torch.backends.cudnn,
        "conv": getattr(torch.backends.cudnn, "conv", None),
    }
    return {
        name: str(backend.fp32_precision) for name, backend in backends.items() if hasattr(backend, "fp32_precision")
    }


def load_libraries(device: torch.device) -> None:
    """cuBLAS and cuDNN take seconds to load, once in a process, which is no compile time of anything."""
    ones = torch.ones(1, 8, 8, 8, device=device, requires_grad=True)
    convolution = torch.nn.functional.conv2d(ones, torch.ones(8, 8, 3, 3, device=device, requires_grad=True))
    (convolution.sum() + (ones[0, 0] @ ones[0, 0]).sum()).backward()
    torch.cuda.synchronize()


def free_bytes_of_graphs() -> int:
    """What CUDA graphs keep in their pools and no live tensor holds; the tensors are in the allocator's own count."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )
