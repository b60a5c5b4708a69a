"""Readers of traces: made here on a CPU by both profilers, and written by hand for GPUs with worked-out answers."""

import math
from types import ModuleType
from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp
from jax.profiler import ProfileData
from torch._inductor.codecache import PyCodeCache

from harness.results.kernel_names import class_of
from harness.results.timeline import busy_s, gaps, window_of
from jax_runner import trace as jax_trace
from torch_runner import trace as torch_trace

US = 1e-6


def event(category: str, name: str, start_us: float, duration_us: float, **more: Any) -> dict[str, Any]:
    """Of Chrome's trace format, of one thread; `more`: its arguments."""
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us, "tid": 1, "args": more}


def test_kineto_kernels_their_launches_and_what_is_left_out() -> None:
    """Launches end at 5 and 19; kernels run 6 to 9 and 20 to 24, a copy 22 to 26 on another stream."""
    found = torch_trace.timeline_from(
        [
            {"ph": "M", "name": "process_name"},
            event("cpu_op", "aten::mm", 0, 6),
            event("cuda_runtime", "cudaLaunchKernel", 1, 4, correlation=11),
            event("cuda_runtime", "cudaLaunchKernel", 12, 7, correlation=12),
            event("kernel", "ampere_sgemm_128x64_tn", 6, 3, device=0, stream=7, correlation=11),
            event("kernel", "loop_add", 20, 4, device=0, stream=7, correlation=12),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 22, 4, device=0, stream=8, correlation=13),
            event("kernel", "of another GPU", 0, 1000, device=1, stream=7, correlation=99),
        ]
    )
    assert sorted(found.names) == ["Memcpy DtoD (Device -> Device)", "ampere_sgemm_128x64_tn", "loop_add"]
    assert busy_s(found) == pytest.approx(9 * US)
    # Nothing runs from 9 to 20; the launch had returned at 19.
    assert gaps(found) == pytest.approx((10 * US, 1 * US, 0))


def test_kineto_kernels_of_a_graph_share_a_launch_and_overlap() -> None:
    """cudaGraphLaunch returns at 3; its kernels 10 to 14, 13 to 16 and 20 to 21 have its correlation. Without
    correlations nobody knows who waits."""
    spans = ((10, 4), (13, 3), (20, 1))
    launch = event("cuda_runtime", "cudaGraphLaunch", 0, 3, correlation=5)
    replay = [event("kernel", f"k{start}", start, length, device=0, correlation=5) for start, length in spans]
    found = torch_trace.timeline_from([launch, *replay])
    assert busy_s(found) == pytest.approx(7 * US)
    assert gaps(found) == pytest.approx((0, 4 * US, 0))
    old = [event("kernel", f"k{start}", start, length) for start, length in spans]
    assert gaps(torch_trace.timeline_from(old)) == pytest.approx((0, 0, 4 * US))


REGION = [
    ("autograd::engine::evaluate_function: X", 0, 40),
    ("Torch-Compiled Region: 0/0", 0, 20),
    ("CompiledFunctionBackward", 21, 9),
    ("cpp_fused_add_relu_0", 2, 6),
    ("aten::linear", 9, 10),
    ("aten::addmm", 10, 8),
    ("cpp_fused_convolution_1", 22, 7),
]
"""Of a compiled step: name, start and length in us. Autograd's own node, which holds all, is no operator."""


@pytest.mark.parametrize(("are_named", "unknown_us"), [(True, 0), (False, 4 + 2)])
def test_kineto_compiled_regions_hold_kernels_that_have_names(are_named: bool, unknown_us: float) -> None:
    """The innermost ones count. Of 20 + 9 us 6 are an addition, 8 a product and 2 what calls it, and 7 a change of
    layout; what is left is a region's own time, which counts as work where its kernels may be without a name."""
    events = [event("cpu_op", *one) for one in REGION]
    kernels = window_of(torch_trace.timeline_from(events, are_named=are_named), steps=1).kernels
    found = {one.name: one.busy_s / US for one in kernels}
    of_regions = [found.pop(name, 0.0) for name in ("Torch-Compiled Region: 0/0", "CompiledFunctionBackward")]
    assert sum(of_regions) == pytest.approx(unknown_us)
    assert found == pytest.approx(
        {"cpp_fused_add_relu_0": 6, "aten::addmm": 8, "aten::linear": 2, "cpp_fused_convolution_1": 7}
    )
    assert {class_of(one.name) for one in kernels} == {"traffic", "product", "layout"} | (
        set() if are_named else {"other"}
    )


def test_kernels_that_inductor_has_loaded_leave_their_names_while_they_are_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kernel(values: torch.Tensor) -> None:
        values.neg_()

    module = ModuleType("compiled")
    vars(module).update(cpp_fused_neg_0=kernel, cpp_text="no kernel", aten=torch.ops.aten)
    monkeypatch.setattr(PyCodeCache, "modules", [module])
    values = torch.ones(8)
    if torch.cuda.is_available():
        pytest.skip("a GPU's kernels are traced here, not the operators of the host")
    timeline, _ = torch_trace.traced(lambda: [module.cpp_fused_neg_0(values) for _ in range(3)])
    assert {one.name: one.count for one in window_of(timeline, steps=3).kernels} == {
        "cpp_fused_neg_0": 3,
        "aten::neg_": 3,
    }
    assert values.tolist() == [-1.0] * 8
    assert module.cpp_fused_neg_0 is kernel


GPU_PROFILE = """
planes {
  name: "/device:GPU:0"
  lines { id: 1 name: "Stream #14(Compute)" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 6000000 duration_ps: 3000000 stats { metadata_id: 1 uint64_value: 11 } }
    events { metadata_id: 2 offset_ps: 20000000 duration_ps: 4000000 stats { metadata_id: 1 uint64_value: 12 } }
  }
  lines { id: 2 name: "Stream #15(MemcpyD2D)" timestamp_ns: 1000
    events { metadata_id: 3 offset_ps: 22000000 duration_ps: 4000000 }
  }
  lines { id: 3 name: "XLA Ops" timestamp_ns: 1000
    events { metadata_id: 2 offset_ps: 0 duration_ps: 100000000 }
  }
  event_metadata { key: 1 value { id: 1 name: "ampere_sgemm_128x64_tn" } }
  event_metadata { key: 2 value { id: 2 name: "loop_add_fusion" } }
  event_metadata { key: 3 value { id: 3 name: "MemcpyD2D" } }
  stat_metadata { key: 1 value { id: 1 name: "correlation_id" } }
}
planes {
  name: "/device:GPU:1"
  lines { id: 1 name: "Stream #14(Compute)" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 900000000 }
  }
  event_metadata { key: 1 value { id: 1 name: "of another GPU" } }
}
planes {
  name: "/host:CPU"
  lines { id: 1 name: "python" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 1000000 duration_ps: 4000000 stats { metadata_id: 1 uint64_value: 11 } }
    events { metadata_id: 1 offset_ps: 12000000 duration_ps: 7000000 stats { metadata_id: 1 uint64_value: 12 } }
  }
  event_metadata { key: 1 value { id: 1 name: "cuLaunchKernelEx" } }
  stat_metadata { key: 1 value { id: 1 name: "correlation_id" } }
}
"""


def test_xplane_of_a_gpu_has_the_answer_of_the_same_kineto_trace() -> None:
    found = jax_trace.timeline_from([ProfileData.from_text_proto(GPU_PROFILE)])
    assert sorted(found.names) == ["MemcpyD2D", "ampere_sgemm_128x64_tn", "loop_add_fusion"]
    assert busy_s(found) == pytest.approx(9 * US, rel=1e-6)
    assert gaps(found) == pytest.approx((10 * US, 1 * US, 0), abs=1e-12)
    unknown = [name for name, launched in zip(found.name, found.launched_s, strict=True) if math.isnan(launched)]
    assert [found.names[name] for name in unknown] == ["MemcpyD2D"]


def test_an_operation_that_runs_on_in_other_threads_ends_where_the_profiler_says() -> None:
    """It returns after 1 us and ends after 6."""
    text = """
planes { name: "/host:CPU"
  lines { id: 1 name: "tf_XLAPjRtCpuClient/1" timestamp_ns: 0
    events { metadata_id: 1 offset_ps: 2000000 duration_ps: 1000000
      stats { metadata_id: 1 str_value: "dot.1" } stats { metadata_id: 2 uint64_value: 77 } }
    events { metadata_id: 3 offset_ps: 0 duration_ps: 90000000
      stats { metadata_id: 1 str_value: "while.1" } }
  }
  lines { id: 2 name: "tf_XLAEigen/2" timestamp_ns: 0
    events { metadata_id: 2 offset_ps: 8000000 duration_ps: 100000 stats { metadata_id: 3 uint64_value: 77 } }
  }
  event_metadata { key: 1 value { id: 1 name: "dot.1" } }
  event_metadata { key: 2 value { id: 2 name: "end: dot.1" } }
  event_metadata { key: 3 value { id: 3 name: "while.1" } }
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  stat_metadata { key: 2 value { id: 2 name: "_p" } }
  stat_metadata { key: 3 value { id: 3 name: "_c" } }
}
"""
    found = jax_trace.timeline_from([ProfileData.from_text_proto(text)], containers=["while.1"])
    assert found.names == ("dot.1",)
    assert busy_s(found) == pytest.approx(6 * US, rel=1e-6)


def test_jax_traced_here() -> None:
    """A product of 2 x 256^3 operations beside a sum of 256^2 numbers, three times."""

    def product_and_sum(matrix: jax.Array) -> jax.Array:
        """A loop that carries eight arrays, too: XLA numbers the parts of a tuple in comments with an equals sign."""
        many = jax.lax.fori_loop(0, 10, lambda _, arrays: tuple(map(jnp.tanh, arrays)), (matrix,) * 8)
        return (matrix @ matrix + jnp.sin(matrix) + many[0]) / 256

    def longer_program(matrix: jax.Array) -> jax.Array:
        """With names like those of the other, for other things."""
        for _ in range(6):
            matrix = jnp.sin(matrix) @ (jnp.cos(matrix) / matrix.sum())
        return jnp.where(matrix > 0, jnp.exp(matrix), 0).sum(0)

    matrix = jnp.ones((256, 256))
    step, other = jax.jit(product_and_sum), jax.jit(longer_program)
    jax.block_until_ready((step(matrix), other(matrix)))

    def run() -> None:
        found = matrix
        for _ in range(3):
            found = step(found)
        jax.block_until_ready(found)

    timeline, contents = jax_trace.traced(run)
    window = window_of(timeline, steps=3, contents=contents)
    classes = {class_of(one.name, one.content) for one in window.kernels}
    assert "product" in classes and "other" not in classes
    assert all(one.count % 3 == 0 for one in window.kernels)
    assert jax_trace.tracer().startswith("jax.profiler of JAX ")


def test_torch_traced_here() -> None:
    matrix = torch.ones(64, 64)

    def run() -> None:
        for _ in range(3):
            torch.sin(matrix @ matrix)

    if torch.cuda.is_available():
        pytest.skip("a GPU's kernels are traced here, not the operators of the host")
    timeline, contents = torch_trace.traced(run)
    window = window_of(timeline, steps=3, contents=contents)
    counts = {one.name: one.count for one in window.kernels}
    assert counts["aten::mm"] == 3 and counts["aten::sin"] == 3
    assert {class_of(name) for name in counts} >= {"product", "traffic"}
    assert torch_trace.tracer().startswith("torch.profiler of PyTorch ")
