"""From the calls of a step to what `main.py compile` tells of it."""

from harness.fake_gpu.calls import Call
from torch_runner.ahead import facts_of_calls


def test_what_is_told_of_calls() -> None:
    types = "a=f32 b=f32 compute=f32 result=f32 math=tf32"
    convolution = "x=bf16/nhwc/[1,2,3,3] w=bf16/nhwc/[2,2,1,1] y=bf16/nhwc/[1,2,3,3] compute=f32"
    graph = [
        Call("cublas", "cublasSgemm", f"{types} stream=9 graph=4"),
        Call("copy", "device->device", "bytes=8 stream=9 graph=4"),
    ]
    called = [
        Call("graph", "cudaGraphLaunch", "launched=4 nodes=2 stream=1"),
        Call("graph", "cudaGraphLaunch", "launched=4 nodes=2 stream=1"),
        Call("kernel", "void softmax_kernel<float>(float*)", "grid=1,1,1 stream=1"),
        Call("cudnn", "convolution_weight_gradient", f"{convolution} stream=1"),
        Call("cudnn", "batch_norm", "x=f32/nhwc/[1,2,3,3] stream=1"),
        Call("nccl", "ncclAllReduce", "count=4 stream=2"),
        Call("sync", "cudaStreamSynchronize", ""),
    ]
    found = facts_of_calls(called, {4: graph})
    assert {name: found[name] for name in found if name != "program"} == {
        "kernels": 6,
        "classes": {"product": 3, "traffic": 2, "communication": 1},
        "library_calls": {"product": 2, "convolution": 1, "norm": 1, "communication": 1},
        "graphs": 2,
        "outside_of_graphs": 4,
        "products": {"tf32 x tf32 -> f32": 2, "bf16 x bf16 -> f32": 1},
        "notes": ("the host waits or allocates in a step: sync cudaStreamSynchronize, 1 times",),
    }
