"""Several processes with one device each: what use cases 2 and 4 need on top of 1 and 3.

BatchNorm's statistics stay local, each device's own, and gradients are averaged; jax_runner/several_devices.py means
the same.
"""

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

LOCAL_BUFFERS = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)
"""As PyTorch calls it from 2.13 on, and before."""
NEVER = 2**31 - 1


def with_averaged_gradients(module: nn.Module, *, split: bool) -> nn.Module:
    """`module`, compiled or not, with gradients that are averaged over the devices while the backward pass runs.

    Nothing is broadcast at the start: every rank draws the same weights. No devices are named, as then every call would
    look for inputs to move, which are in place.

    Args:
        split: let Dynamo cut a compiled module where a bucket of gradients ends, so that sending one overlaps with
            computing the next. Without cuts the graph is one, and all are sent at its end.
    """
    torch._dynamo.config.optimize_ddp = split
    averaged = DistributedDataParallel(
        module,
        gradient_as_bucket_view=True,
        static_graph=True,
        init_sync=False,
        **LOCAL_BUFFERS,  # type: ignore[arg-type]
    )
    # Or every hundredth step would make the host wait for the device, for statistics of its own that nobody reads. Of
    # the first ten steps they are taken in any case (torch/csrc/distributed/c10d/reducer.cpp).
    averaged._set_ddp_runtime_logging_sample_rate(NEVER)
    return averaged


def shard(model: nn.Module) -> None:
    """From now on each device holds its rows of each parameter (FSDP2). A block's parameters, and last all others, are
    gathered when the model comes to them, forward and backward; then their gradients are averaged and scattered. They
    travel in float32, as autocast over float32 weights keeps them."""
    from torch.distributed.fsdp import fully_shard  # takes half a second

    for block in blocks_of(model):
        fully_shard(block)
    fully_shard(model)


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """What stands in the model's outermost sequences and has parameters."""
    for child in module.children():
        if not isinstance(child, nn.Sequential):
            yield from blocks_of(child)
        else:
            yield from (one for one in child if next(one.parameters(), None) is not None)


def average_gradients(module: nn.Module) -> None:
    """In place, by one all-reduce of all gradients as one vector; a CUDA graph takes it."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    vector = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(vector)
    vector /= distributed.get_world_size()
    parts = vector.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)])


def sum_over_devices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One all-reduce of all tensors as one vector."""
    vector = torch.cat([tensor.flatten() for tensor in tensors.values()])
    distributed.all_reduce(vector)
    parts = vector.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def mean_over_devices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One all-reduce, as `sum_over_devices`."""
    size = distributed.get_world_size()
    return {name: total / size for name, total in sum_over_devices(tensors).items()}
