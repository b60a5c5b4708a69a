"""The device as JAX sees it: precision, waiting, memory, compilations."""

from typing import Any

import jax
import jax.monitoring
from jax import numpy as jnp

from harness.errors import Refused
from harness.record import Memory

ON_CPU = "XLA's allocator keeps no count on a CPU; host_peak_bytes has the whole process"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"  # jax/_src/dispatch.py


class Device:
    """Implements harness.session.DeviceProtocol."""

    def __init__(self) -> None:
        self.device = jax.devices()[0]
        self._compilations = 0
        self._step_peak_bytes: int | None = None
        jax.monitoring.register_event_duration_secs_listener(self._count_compilation)

    @property
    def on_gpu(self) -> bool:
        return self.device.platform == "gpu"

    def set_up(self, precision: str) -> None:
        """fp32 is IEEE and tf32 is TF32 for matrix products and for convolutions alike; bf16 is the models' dtype
        over fp32 weights.

        Source: docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html; it holds for convolutions too
        (jax.lax.Precision).

        Raises:
            Refused: tf32 or bf16 on a CPU.
        """
        if precision != "fp32" and not self.on_gpu:
            raise Refused(f"precision {precision} needs an NVIDIA GPU; JAX sees none here and it is not run as fp32")
        if precision != "fp32" and float(self.device.compute_capability) < 8.0:
            raise Refused(f"precision {precision} needs compute capability 8.0, which {self.device.device_kind} lacks")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "highest")

    def describe(self) -> dict[str, Any]:
        description: dict[str, Any] = {
            "name": "jax",
            "version": jax.__version__,
            "platform": self.device.platform,
            "device": self.device.device_kind,
            "matmul_precision": jax.config.jax_default_matmul_precision,
        }
        if self.on_gpu:
            description |= {
                "platform_version": self.device.client.platform_version,
                "device_count": jax.local_device_count(),
            }
        return description

    def wait(self, outputs: Any) -> None:
        """All of the given outputs; JAX knows no wait for a whole device."""
        jax.block_until_ready(outputs)

    def compilations(self) -> int:
        """Programs that XLA has compiled so far."""
        return self._compilations

    def begin_timing(self) -> None:
        """JAX has no way to reset the peak; `set_step_peak` gives the steady state's instead."""

    def end_timing(self) -> None:
        """See begin_timing."""

    def set_step_peak(self, compiled: jax.stages.Compiled) -> None:
        """XLA's own account of one execution of the step: arguments, outputs and temporaries, less what is aliased."""
        analysis = compiled.memory_analysis()
        if analysis is not None:
            self._step_peak_bytes = (
                analysis.argument_size_in_bytes
                + analysis.output_size_in_bytes
                + analysis.temp_size_in_bytes
                - analysis.alias_size_in_bytes
            )

    def memory(self) -> Memory:
        statistics = self.device.memory_stats()
        if not statistics:
            return Memory(step_peak_bytes=self._step_peak_bytes, absent=ON_CPU)
        return Memory(
            allocator_peak_bytes=statistics.get("peak_bytes_in_use"),
            step_peak_bytes=self._step_peak_bytes,
            pool_peak_bytes=statistics.get("peak_pool_bytes"),
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "RESOURCE_EXHAUSTED" in str(error)

    def _count_compilation(self, event: str, _duration_s: float, **_: Any) -> None:
        if event == COMPILE_EVENT:
            self._compilations += 1


def model_dtypes(precision: str) -> dict[str, Any]:
    """What a layer gets: bf16 computes in bfloat16 over float32 weights, as torch.autocast does.

    Its products then take the hardware's own bfloat16 path; the other precisions follow `set_up`.
    """
    if precision == "bf16":
        return {"dtype": jnp.bfloat16, "param_dtype": jnp.float32, "precision": jax.lax.Precision.DEFAULT}
    return {"dtype": jnp.float32, "param_dtype": jnp.float32}
