"""What lines of the fake CUDA's log mean."""

import pytest

from harness.errors import ProjectError
from harness.fake_gpu import calls as log
from harness.fake_gpu.calls import Call, Tensor

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
    assert log.executed([*CAPTURED, *STEP], graphs) == [STEP[0], *CAPTURED[1:3]]
    assert log.launches(log.executed(STEP, graphs)) == CAPTURED[1:3]


def test_words_of_calls_do_not_depend_on_the_numbers_of_streams_and_graphs() -> None:
    graphs = log.captured_graphs(CAPTURED)
    assert log.in_words(log.executed(STEP, graphs)) == [
        "copy pinned->device bytes=4 stream=0",
        "kernel fill grid=1,1,1 stream=1",
        "cublas cublasSgemm m=2 stream=2",
    ]


@pytest.mark.parametrize(
    ("call", "hinders"),
    [
        *((Call("copy", f"{ends}->device", ""), ends == "pageable") for ends in ("pinned", "device", "pageable")),
        (Call("copy", "device->pageable", ""), True),
        *((Call(kind, "", ""), False) for kind in ("kernel", "graph")),
        *((Call(kind, "", ""), True) for kind in ("sync", "malloc", "free", "handle", "capture", "fault", "stub")),
    ],
)
def test_what_a_timed_step_must_not_have(call: Call, hinders: bool) -> None:
    assert log.hindrances([call]) == ([str(call)] if hinders else [])
    assert log.faults([call]) == ([str(call)] if call.kind in ("fault", "stub") else [])


@pytest.mark.parametrize(
    ("call", "arithmetic"),
    [
        (Call("cublas", "cublasSgemm", "a=f32 b=f32 compute=f32 math=default"), "f32 x f32 -> f32"),
        (Call("cublas", "cublasSgemm", "a=f32 b=f32 compute=f32 math=tf32"), "tf32 x tf32 -> f32"),
        (Call("cublas", "cublasLtMatmul", "a=f32 b=f32 compute=tf32"), "tf32 x tf32 -> f32"),
        # Which products of other types may be TF32 does not depend on the mode of the library.
        (Call("cublas", "cublasGemmEx", "a=bf16 b=bf16 compute=f32 math=tf32"), "bf16 x bf16 -> f32"),
        (
            Call("cudnn", "convolution", "x=f16/nhwc/[1,2,3,3] w=f16/nhwc/[2,2,1,1] y=f16/nhwc/[1,2,3,3] compute=f32"),
            "f16 x f16 -> f32",
        ),
    ],
)
def test_what_a_product_multiplies_and_adds_up_in(call: Call, arithmetic: str) -> None:
    assert log.arithmetic_of(call) == arithmetic


def test_a_tensor_of_cudnn() -> None:
    assert log.tensor_of("bf16/nhwc/[16,32,8,4]") == Tensor(type="bf16", layout="nhwc", sizes=(16, 32, 8, 4))
    assert log.tensor_of("f32/any/[]").sizes == ()


def test_this_process_is_on_no_fake() -> None:
    assert not log.is_loaded()
    with pytest.raises(ProjectError, match="no fake CUDA is loaded"):
        log.Calls()
