"""The device as JAX sees it: precision, waiting, memory, compilations, and the other processes' devices."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from harness.errors import ProjectError, Refused
from harness.measure import program
from harness.measure.gpu import usable_gpu_count, visible_gpu_count
from harness.measure.world import World
from harness.plan import NEEDED_CAPABILITY
from harness.results.record import Memory
from jax_runner.compiler import Compilations

ON_CPU = "XLA's allocator keeps no count on a CPU; host_peak_bytes has the whole process"

OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "'out of memory'",
)
"""What is said by XLA's own allocator, and by those who ask the driver for memory beside it: modules, cuBLAS, cuDNN,
and NCCL, in quotation marks."""

MATMUL_PRECISION = {"tf32": "tensorfloat32", "default": None}
"""`jax_default_matmul_precision` where it is not "highest"."""

HALF = {"bf16": jnp.bfloat16, "fp16": jnp.float16}
"""What a model computes in, over float32 weights; inference stores its weights in it."""

FLOAT64 = {"dtype": jnp.float64, "param_dtype": jnp.float64}
"""Of a model in double precision, which takes jax.enable_x64."""


class Device(program.Device):
    """See harness/measure/program.py."""

    def __init__(self) -> None:
        self.tries_algorithms = True
        self._world_size = 1
        self._has_joined = False
        self._compilations = Compilations()

    @cached_property
    def device(self) -> jax.Device:
        """This process's first; not asked for before `join`, which must come before anything touches a device."""
        return jax.local_devices()[0]

    @property
    def cpu(self) -> jax.Device:
        return jax.local_devices(backend="cpu")[0]

    @property
    def on_gpu(self) -> bool:
        return self.device.platform == "gpu"

    @property
    def capability(self) -> float:
        """NVIDIA's compute capability, of a GPU."""
        return float(self.device.compute_capability)

    @property
    def kind(self) -> str:
        return self.device.device_kind

    def for_target(self, step: Any) -> Any:
        """A jitted step, as it lowers for the device that programs are made for: this one. An absent GPU has its own
        (ahead.py)."""
        return step

    def join(self, world: World) -> None:
        """One program over all devices of all processes from here on. Between processes a CPU's collectives are gloo's.

        Must be called before `set_up`. This process takes its GPUs from `local_rank` on; on a CPU it makes devices of
        its own.

        Raises:
            ProjectError: these GPUs are not shown to this process.
        """
        require_visible_gpus(world)
        insist_on_cuda()
        self._has_joined = True
        own = list(range(world.local_rank, world.local_rank + world.devices_per_rank))
        jax.config.update("jax_num_cpu_devices", world.devices_per_rank)
        if world.size == 1:
            jax.config.update("jax_cuda_visible_devices", ",".join(map(str, own)))
            return
        jax.distributed.initialize(
            coordinator_address=world.coordinator,
            num_processes=world.size,
            process_id=world.rank,
            local_device_ids=own,
        )
        self._world_size = world.size

    def leave(self) -> None:
        if self._world_size > 1:
            jax.distributed.shutdown()

    def _of_all_ranks(self, values: NDArray) -> NDArray[np.float64]:
        """[ranks, *values]. As bytes, since JAX would make float32 of float64."""
        values = np.asarray(values, np.float64)
        if self._world_size == 1:
            return values[None]
        gathered = np.asarray(multihost_utils.process_allgather(np.frombuffer(values.tobytes(), np.uint8)))
        return np.frombuffer(gathered.tobytes(), np.float64).reshape(self._world_size, *values.shape)

    def set_up(self, precision: str) -> None:
        """fp64 and fp32 are IEEE and tf32 is TF32 for matrix products and for convolutions alike; bf16 and fp16 are
        the models' dtype over fp32 weights; default is what JAX does to fp32 where nobody tells it anything.

        Source: docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html; it holds for convolutions too
        (jax.lax.Precision).

        On a GPU it also starts the libraries, so that a first call's time is that of its own compilation.

        Raises:
            Refused: tf32, bf16 or fp16 on a CPU, or on a GPU whose tensor cores lack it.
            ProjectError: JAX cannot use the GPU that is there.
        """
        insist_on_cuda()
        if usable_gpu_count() and uses_cuda() and not self._has_joined:
            # Or JAX would open every GPU of a workstation. Relative to CUDA_VISIBLE_DEVICES.
            jax.config.update("jax_cuda_visible_devices", "0")
        self._require_its_gpu()
        self._choose(precision)
        if self.on_gpu:
            start_libraries(precision)

    def _choose(self, precision: str) -> None:
        """For all that is traced from now on. Raises Refused."""
        needed = NEEDED_CAPABILITY.get(precision)
        if needed and not self.on_gpu:
            raise Refused(f"precision {precision} needs an NVIDIA GPU; JAX sees none here and it is not run as fp32")
        if needed and self.capability < needed:
            raise Refused(f"precision {precision} needs compute capability {needed}, which {self.kind} lacks")
        jax.config.update("jax_enable_x64", precision == "fp64")
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION.get(precision, "highest"))

    def _require_its_gpu(self) -> None:
        """Raises ProjectError where a GPU is shown and JAX sees none. Not Refused, which would settle the measurement:
        a repaired installation can do it. Whoever wants the CPU of such a machine says so by JAX_PLATFORMS=cpu."""
        try:
            found = self.on_gpu
        except RuntimeError as error:
            raise ProjectError(f"JAX cannot start its backend; the log above may say why: {error}") from error
        count, platforms = usable_gpu_count(), jax.config.jax_platforms  # type: ignore[attr-defined]
        if count and not found and names_cuda(platforms):
            raise ProjectError(
                f"{count} GPU(s) are visible, and JAX sees none: its plugin for CUDA is missing or broken. Install "
                "builds for CUDA: make env LOCK=cuda13 PYTHON=python3.12; `python -c 'import jax; jax.devices()'` says "
                "more. To measure on the CPU on purpose, set JAX_PLATFORMS=cpu"
            )

    def try_no_algorithms(self) -> None:
        self.tries_algorithms = False

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = {
            "name": "jax",
            "version": jax.__version__,
            "platform": self.device.platform,
            "device": self.kind,
            "threads": thread_count(),
            "matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        }
        if self.on_gpu:
            statistics = self.device.memory_stats() or {}
            description |= library_versions() | {
                "bytes_limit": statistics.get("bytes_limit"),
                "platform_version": self.device.client.platform_version,
                "device_count": jax.local_device_count(),
            }
        return description

    def wait(self, outputs: Any) -> None:
        """All of the given outputs; JAX knows no wait for a whole device.

        Those of one program are ready together, but this cannot know that they are of one. Most of what it costs to
        look at each is spent while the device still works: 21 us for 166 arrays, on a CPU.
        """
        jax.block_until_ready(outputs)

    def is_finite(self, outputs: Any) -> bool:
        """Whether all floating-point numbers in it are; of several devices, in this process's part."""
        shards = [shard.data for leaf in jax.tree.leaves(outputs) for shard in leaf.addressable_shards]
        floating = [part for part in shards if jnp.issubdtype(part.dtype, jnp.floating)]
        return all(bool(jnp.isfinite(part).all()) for part in floating)

    def compilations(self) -> int:
        """Programs that JAX has traced and XLA has compiled so far, each counted; a steady state has neither."""
        return self._compilations.count

    def forget_programs(self) -> None:
        jax.clear_caches()

    def begin_timing(self) -> None:
        """JAX has no way to reset the peak; XLA's account of the step stands for it (Program.step_peak_bytes)."""

    def end_timing(self) -> None:
        """See begin_timing."""

    def memory(self) -> Memory:
        """Of this process's device that took most, and of each where it has several."""
        devices = [
            Memory(
                allocator_peak_bytes=statistics.get("peak_bytes_in_use"),
                pool_peak_bytes=statistics.get("peak_pool_bytes"),
                absent=None if statistics else ON_CPU,
            )
            for statistics in (device.memory_stats() or {} for device in jax.local_devices())
        ]
        return Memory(
            allocator_peak_bytes=largest(devices, "allocator_peak_bytes"),
            pool_peak_bytes=largest(devices, "pool_peak_bytes"),
            absent=devices[0].absent,
            devices=devices if len(devices) > 1 else [],
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Or what caused it was."""
        return any(words in str(one) for one in with_causes(error) for words in OUT_OF_MEMORY)


def require_visible_gpus(world: World) -> None:
    """Asks no device, which JAX must not have seen before the processes have met."""
    visible = visible_gpu_count()
    if visible and uses_cuda():
        world.require_gpus(visible)


def insist_on_cuda() -> None:
    """Where there is a GPU and a plugin for it, a plugin that fails must raise: unless it is told which platforms to
    use, JAX logs that and goes on with the CPU (jax/_src/xla_bridge.py, `discover_pjrt_plugins` and `backends`). Comes
    before anything touches a device."""
    if usable_gpu_count() and uses_cuda() and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cuda,cpu")


def insist_on_fp32() -> None:
    """Of all products and convolutions of this process, and on the GPU where there is one."""
    insist_on_cuda()
    jax.config.update("jax_default_matmul_precision", "highest")


def uses_cuda() -> bool:
    """Whether JAX has its plugin for CUDA and may use it."""
    return has_cuda_plugin() and names_cuda(jax.config.jax_platforms)  # type: ignore[attr-defined]


def has_cuda_plugin() -> bool:
    return any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))


def names_cuda(platforms: str | None) -> bool:
    """Of JAX_PLATFORMS; whoever says nothing leaves the choice to JAX."""
    return not platforms or "cuda" in platforms or "gpu" in platforms


def start_libraries(precision: str) -> None:
    """One small product and one small convolution with their gradients, on each of this process's devices. cuBLAS and
    cuDNN are loaded by their first calls, which takes seconds."""
    dtype = model_dtypes(precision)["dtype"]

    def loss(images: jax.Array, kernel: jax.Array, matrix: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return (hidden.reshape(-1, matrix.shape[0]) @ matrix).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    for device in jax.local_devices():
        arguments = (jnp.ones(shape, dtype) for shape in ((16, 16, 16, 32), (3, 3, 32, 32), (256, 256)))
        jax.block_until_ready(gradients(*jax.device_put(tuple(arguments), device)))


def thread_count() -> int | None:
    """Return how many threads XLA computes with on the CPU. JAX does not tell, so the kernel is asked for their names;
    None where no CPU client was started."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            count += (task / "comm").read_text() == "tf_XLAEigen\n"
    return count or None


def library_versions() -> dict[str, Any]:
    """Of what JAX has loaded, which may be other than what is installed; empty where it does not say."""
    try:
        from jax._src.lib import cuda_versions

        return {
            "cudnn": cuda_versions.cudnn_get_version(),  # type: ignore[union-attr]
            "cublas": cuda_versions.cublas_get_version(),  # type: ignore[union-attr]
            "cuda_runtime": cuda_versions.cuda_runtime_get_version(),  # type: ignore[union-attr]
        }
    except (ImportError, AttributeError, RuntimeError):  # not a public part of JAX
        return {}


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def largest(devices: list[Memory], name: str) -> int | None:
    return max((value for device in devices if (value := getattr(device, name)) is not None), default=None)


def model_dtypes(precision: str) -> dict[str, Any]:
    """What a layer gets: bf16 and fp16 compute in these dtypes over float32 weights, as torch.autocast does.

    Their products then take the hardware's own path for the dtype; the other precisions follow `set_up`.
    """
    if precision in HALF:
        return {"dtype": HALF[precision], "param_dtype": jnp.float32, "precision": jax.lax.Precision.DEFAULT}
    return FLOAT64 if precision == "fp64" else {"dtype": jnp.float32, "param_dtype": jnp.float32}
