"""What lines of the fake CUDA's log mean."""

import pytest

from harness.errors import ProjectError
from tests.fake_cuda import calls as log
from tests.fake_cuda.calls import Call

CAPTURED = [
    Call("capture", "begin", "graph=7"),
    Call("kernel", "fill", "grid=1,1,1 stream=30 graph=7"),
    Call("cublas", "cublasSgemm", "m=2 stream=31 graph=7"),
    Call("capture", "end", "graph=7 nodes=2 streams=2"),
]
STEP = [
    Call("copy", "pinned->device", "bytes=4 stream=12"),
    Call("graph", "cudaGraphLaunch", "launched=7 nodes=2 stream=12"),
    Call("sync", "cudaStreamSynchronize", ""),
]


def test_a_launch_of_a_graph_is_what_was_captured() -> None:
    graphs = log.captured_graphs([*CAPTURED, *STEP])
    assert graphs == {7: CAPTURED[1:3]}
    executed = log.executed([*CAPTURED, *STEP], graphs)
    assert executed == [STEP[0], *CAPTURED[1:3]]
    assert log.launches(executed) == CAPTURED[1:3]


def test_what_a_timed_step_must_not_have() -> None:
    fine = [Call("copy", f"{ends}->device", "") for ends in ("pinned", "device")]
    fine += [Call(kind, "", "") for kind in ("kernel", "graph")]
    hinder = [Call("copy", ends, "") for ends in ("pageable->device", "device->pageable")]
    hinder += [Call(kind, "", "") for kind in ("sync", "malloc", "free", "handle", "capture", "fault", "stub")]
    assert log.hindrances([*fine, *hinder]) == list(map(str, hinder))
    assert log.faults([*fine, *hinder]) == ["fault", "stub"]


@pytest.mark.parametrize(
    ("call", "arithmetic"),
    [
        ("a=f32 b=f32 compute=f32 math=default", "f32 x f32 -> f32"),
        ("a=f32 b=f32 compute=tf32", "tf32 x tf32 -> f32"),
        # Which products of other types may be TF32 does not depend on the mode of the library.
        ("a=bf16 b=bf16 compute=f32 math=tf32", "bf16 x bf16 -> f32"),
        ("a=f32 b=f32 compute=f32 math=tf32", "tf32 x tf32 -> f32"),
    ],
)
def test_what_a_product_multiplies_and_adds_up_in(call: str, arithmetic: str) -> None:
    assert log.arithmetic_of(Call("cublas", "cublasGemmEx", call)) == arithmetic


def test_what_a_convolution_multiplies_and_adds_up_in() -> None:
    tensors = "x=bf16/nhwc/[1,2,3,3] w=bf16/nhwc/[2,2,1,1] y=bf16/nhwc/[1,2,3,3] compute=f32"
    assert log.arithmetic_of(Call("cudnn", "convolution_weight_gradient", tensors)) == "bf16 x bf16 -> f32"


def test_this_process_is_on_no_fake() -> None:
    with pytest.raises(ProjectError, match="no fake CUDA is loaded"):
        log.Calls()
