"""PyTorch's part of `main.py doctor --compute`: `python -m torch_runner.compute_check` (harness/work/compute_check.py).

Operator by operator: cuBLAS, cuDNN, autograd. Then compiled: Inductor with its C compiler, on a GPU Triton with ptxas,
and a CUDA graph. Then between several devices, each with a process: NCCL, or gloo between CPUs.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

from harness.work import compute_check as by_numpy
from harness.work.compute_check import CPU_DEVICES, Array, Check, Inputs, drawn_inputs, tell
from torch_runner.device import insist_on_fp32


def checks(inputs: Inputs) -> Iterator[Check]:
    yield Check(name="matrix product", compute=lambda: product(inputs), expected=by_numpy.product(inputs))
    yield Check(name="convolution", compute=lambda: convolution(inputs), expected=by_numpy.convolution(inputs))
    yield Check(name="gradient", compute=lambda: gradient(inputs), expected=by_numpy.gradient(inputs))
    compiled = Check(
        name="torch.compile", compute=lambda: gradient(inputs, torch.compile), expected=by_numpy.gradient(inputs)
    )
    yield compiled
    if on_gpu():
        yield Check(name="CUDA graph", compute=lambda: in_graph(inputs), expected=by_numpy.product(inputs))
    if (count := torch.cuda.device_count() if on_gpu() else CPU_DEVICES) > 1:
        name = f"all-reduce over {count} devices"
        yield Check(name=name, compute=lambda: all_reduce(inputs, count), expected=by_numpy.all_reduce(inputs, count))


def on_gpu() -> bool:
    return torch.cuda.is_available()


def on_device(array: Array) -> Tensor:
    return torch.from_numpy(array).to("cuda" if on_gpu() else "cpu")


def product(inputs: Inputs) -> Array:
    return (on_device(inputs.left) @ on_device(inputs.right)).cpu().numpy()


def convolution(inputs: Inputs) -> Array:
    """Channels last, as the models have it."""
    images, kernels = (
        on_device(array).to(memory_format=torch.channels_last) for array in (inputs.images, inputs.kernels)
    )
    return torch.nn.functional.conv2d(images, kernels).cpu().numpy()


def gradient(inputs: Inputs, way: Callable[..., Callable[..., Tensor]] | None = None) -> Array:
    """`way`: torch.compile, or nothing."""

    def loss(left: Tensor, right: Tensor) -> Tensor:
        return torch.sin(left @ right / 16).sum()

    right = on_device(inputs.right).requires_grad_()
    (way(loss) if way else loss)(on_device(inputs.left), right).backward()
    assert right.grad is not None
    return right.grad.cpu().numpy()


def in_graph(inputs: Inputs) -> Array:
    """The matrix product, recorded on zeros and replayed on its inputs."""
    left, right = on_device(inputs.left), on_device(inputs.right)
    place = torch.zeros_like(left)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        place @ right  # cuBLAS makes its workspace, which a recording must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outcome = place @ right
    place.copy_(left)
    graph.replay()
    torch.cuda.synchronize()
    return outcome.cpu().numpy()


def all_reduce(inputs: Inputs, devices: int) -> Array:
    """Of (rank + 1) * left, by a process for each device."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(take_part, (devices, inputs, on_gpu(), folder), nprocs=devices)
        return np.load(Path(folder) / "summed.npy")


def take_part(rank: int, devices: int, inputs: Inputs, with_gpus: bool, folder: str) -> None:
    """As one of them; the first leaves the sum."""
    device = torch.device("cuda", rank) if with_gpus else torch.device("cpu")
    if with_gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if with_gpus else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=devices,
        device_id=device if with_gpus else None,
    )
    own = (torch.from_numpy(inputs.left) * (rank + 1)).to(device)
    distributed.all_reduce(own)
    if rank == 0:
        np.save(Path(folder) / "summed.npy", own.cpu().numpy())
    distributed.destroy_process_group()


def main() -> None:
    insist_on_fp32()
    tell(checks(drawn_inputs()), torch.cuda.get_device_name() if on_gpu() else "cpu")


if __name__ == "__main__":
    main()
