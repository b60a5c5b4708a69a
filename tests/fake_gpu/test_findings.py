"""What a first look at PyTorch's calls has found, and no longer may be: each of these tests failed once."""

from collections.abc import Callable

import pytest

from harness.fake_gpu.calls import LAUNCHES, Call, arithmetic_of, convolution_tensors, is_convolution, is_product
from harness.results.kernel_names import class_of
from tests.fake_gpu import rules
from tests.fake_gpu.conftest import Steps
from tests.fake_gpu.steps import Step, one

Executed = Callable[[Step], list[Call]]


STREAMS = one("many_models", "synthetic/mlp", "streams.compiled_graph", "fp32", models=3)
ATTENTION = [
    one("per_sample_gradients", "imagenet100/vit_b_16", "vmap.eager", "bf16", 2, output="norms"),
    one("per_sample_gradients", "enwik8/gpt_nano", "vmap.eager", "bf16", 4, output="norms"),
]
CONVOLUTIONS = one("per_sample_gradients", "mnist/cnn", "vmap.compiled", "bf16", output="norms")
INFERENCE = one("inference", "enwik8/gpt_nano", "forward.eager", "fp16", 8)
ALL = [STREAMS, *ATTENTION, CONVOLUTIONS, INFERENCE]


@pytest.fixture(scope="module")
def executed(steps: Steps) -> Executed:
    """What one warm step runs on the device."""
    found = steps("a100", ALL)

    def calls(step: Step) -> list[Call]:
        assert found[step.name]["faults"] == []
        return rules.executed(found[step.name])

    return calls


def test_compiled_streams_are_joined(executed: Executed) -> None:
    """Or the capture ends with unjoined work. Each of three models has a stream of its own, beside the main one."""
    assert len({call.fields["stream"] for call in executed(STREAMS) if call.kind in LAUNCHES}) == 4


@pytest.mark.parametrize("step", ATTENTION, ids=lambda step: step.name)
def test_attention_below_vmap_is_of_bf16(step: Step, executed: Executed) -> None:
    assert {arithmetic_of(call) for call in executed(step) if is_product(call)} == {"bf16 x bf16 -> f32"}


def test_vmapped_convolutions_stay_nchw(executed: Executed) -> None:
    convolutions = [call for call in executed(CONVOLUTIONS) if is_convolution(call)]
    layouts = [tensor.layout for call in convolutions for tensor in convolution_tensors(call).values()]
    assert "nchw" in layouts and set(layouts) <= {"nchw", "either"}


def test_inference_in_half_precision_converts_nothing(executed: Executed) -> None:
    kernels = [call.what for call in executed(INFERENCE) if call.kind == "kernel"]
    assert kernels
    assert [name for name in kernels if class_of(name) == "layout"] == []
