"""Records with an explanation whose every number can be worked out: a step of 2 ms on JAX's side and of 4 ms on
PyTorch's, of a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results.record import Explanation, KernelTime, TracedWindow, Work
from tests.made.records import blocks
from tests.made.report_records import record, with_result

GEMM = "ampere_sgemm_128x64_tn"
TENSOR_CORE_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "loop_add_fusion"
COPY = "Memcpy DtoD (Device -> Device)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Kernels = Mapping[str, tuple[int, float]]
"""By name: how many a step has, and their milliseconds."""


def window(
    kernels: Kernels, steps: int, host_gaps_ms: float = 0.0, other_gaps_ms: float = 0.0, span_s: float = 1.0
) -> TracedWindow:
    return TracedWindow(
        steps=steps,
        span_s=span_s,
        busy_s=steps * sum(ms for _, ms in kernels.values()) / 1e3,
        host_gaps_s=steps * host_gaps_ms / 1e3,
        other_gaps_s=steps * other_gaps_ms / 1e3,
        unknown_gaps_s=0.0,
        kernels=[
            KernelTime(name=name, count=steps * count, busy_s=steps * ms / 1e3)
            for name, (count, ms) in sorted(kernels.items(), key=lambda item: -item[1][1])
        ],
    )


def explanation(
    kernels: Kernels,
    *,
    step_ms: float,
    dispatch_ms: float = 0.2,
    host_gaps_ms: float = 0.0,
    other_gaps_ms: float = 0.0,
    on_device: bool = True,
    first_window: Kernels | None = None,
    traced_ms: float | None = None,
    operations: int = 6_000_000_000,
    **changes: Any,
) -> Explanation:
    traced_s = (step_ms if traced_ms is None else traced_ms) / 1e3
    windows = [
        window(first_window or kernels, 10, host_gaps_ms, other_gaps_ms, 10 * traced_s),
        window(kernels, 20, host_gaps_ms, other_gaps_ms, 20 * traced_s),
    ]
    fields: dict[str, Any] = {
        "tracer": "a tracer",
        "on_device": on_device,
        "blocks": blocks([step_ms / 100] * 20, samples=100),
        "dispatch_times_s": [dispatch_ms / 1e3] * 3,
        "windows": windows,
        "work": Work(products=4, forward_operations=operations // 3, operations=operations, least_bytes=2**20),
    }
    return Explanation(**(fields | changes))


def explained(framework: Any, mode: str, explained: Explanation | None, replicates: int = 4, **changes: Any) -> list:
    """As many replicates, the first with the explanation; the throughput is that of the explained step."""
    step_s = explained.blocks.block_times_s[0] / 10 if explained else 1e-3
    throughput = changes.pop("throughput", 100 / step_s)
    first, *others = (record(framework, mode, throughput, replicate=number, **changes) for number in range(replicates))
    return [with_result(first, explanation=explained), *others]


def launch_bound_pair() -> Sequence[Any]:
    """JAX: 1.8 of 2 ms busy. PyTorch: 2.2 of 4 ms busy, 1.6 ms of the gaps wait for the host, which needs 3.9 ms."""
    jax = explanation({GEMM: (10, 1.2), ADD: (20, 0.6)}, step_ms=2.0, other_gaps_ms=0.2)
    torch = explanation(
        {GEMM: (10, 1.3), "triton_poi_fused_add_1": (90, 0.9)},
        step_ms=4.0,
        dispatch_ms=3.9,
        host_gaps_ms=1.6,
        other_gaps_ms=0.2,
    )
    return [*explained("jax", "step.jit", jax), *explained("torch", "step.eager", torch)]
