"""What every timed step is held to, whatever its mode; each raises AssertionError. Pure."""

from collections.abc import Sequence
from typing import Any

from harness.fake_gpu.calls import Call, arithmetic_of, convolution_tensors, is_convolution, is_product
from harness.plan import Precision
from harness.work.declared import Mode
from tests.gpu.cases import Case

PRODUCTS: dict[str, str] = {
    "fp32": "f32 x f32 -> f32",
    "tf32": "tf32 x tf32 -> f32",
    "bf16": "bf16 x bf16 -> f32",
    "fp16": "f16 x f16 -> f32",
}
CONVOLUTIONS = PRODUCTS | {"tf32": "f32 x f32 -> f32"}
"""Whether cuDNN takes TF32 for operands of float32 is not in its call."""
NCHW = {
    # Of one model or sample among many vmap makes a group, and grouped convolutions are slow in channels_last.
    *(("per_sample_gradients", name) for name in ("vmap", "chunked", "loop")),
    *(("many_models", name) for name in ("vmap", "batched")),
}
"""Use cases and formulations; all others are channels_last."""


def executed(found: dict[str, Any]) -> list[Call]:
    assert found["outcome"] == "ok", found
    return [Call(*call) for call in found["executed"]]


def require_clean(found: dict[str, Any], mode: Mode, allowed: Sequence[str] = ()) -> None:
    """It only starts work, as often as its mode says.

    Args:
        allowed: what it may wait for.
    """
    assert found["outcome"] == "ok", found
    assert found["faults"] == []
    assert found["hindrances"] == list(allowed)
    assert found["cpu_operands"] == []
    if mode.graph == "parts":
        assert found["graph_launches"] >= 2
    else:
        assert found["graph_launches"] == (1 if mode.graph == "step" else 0)
    assert found["witness"]["graph_breaks"] == 0
    assert len(found["executed"]) >= 3


def require_arithmetic(found: dict[str, Any], precision: Precision) -> None:
    """Of libraries' products: of its name's precision. A compiler's own kernels do not say theirs."""
    calls = executed(found)
    assert {arithmetic_of(call) for call in calls if is_product(call)} <= {PRODUCTS[precision]}
    assert {arithmetic_of(call) for call in calls if is_convolution(call)} <= {CONVOLUTIONS[precision]}


def layout_of(case: Case) -> str:
    if case.declared.layout != "own":
        return case.declared.layout
    return "nchw" if (case.use_case, case.declared.formulation) in NCHW else "nhwc"


def require_layout(found: dict[str, Any], case: Case) -> None:
    """That of the documents: in input, weight and output of every convolution, and in their gradients. What a layer of
    one channel writes, a compiler may choose: its kernels convert while they compute."""
    calls = [call for call in executed(found) if is_convolution(call)]
    if case.declared.run_as != "eager":
        calls = [call for call in calls if convolution_tensors(call)["x"].sizes[1] > 1]
    layouts = {tensor.layout for call in calls for tensor in convolution_tensors(call).values()}
    assert layouts <= {layout_of(case), "either"}, [str(call) for call in calls]
