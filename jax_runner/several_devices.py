"""One program over several devices, of one process or of several: what use cases 2 and 4 need on top of 1 and 3.

Built on jax.shard_map: a function sees its own device's part of the arrays, so that BatchNorm's statistics stay local,
as they are in PyTorch's DistributedDataParallel, and nothing moves between devices but what is written here. jit with
NamedSharding would leave the collectives to XLA and make BatchNorm's statistics global. On two devices of a CPU neither
is faster (docs/studies.md); no GPU was asked yet. Sharded parameters are jit's all the same, for models whose
samples know nothing of each other: XLA gathers them and scatters their gradients as it sees fit.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.measure.program import Session
from harness.work.declared import Mode

AXIS = "data"
REPLICATED = PartitionSpec()
SPLIT = PartitionSpec(AXIS)
"""Along the first axis, in the order of the ranks and of the devices of each."""


def details_of_devices(session: Session[Any]) -> dict[str, Any]:
    """How the devices were used, and which mode does the same on one of them, where this one has no meaning there."""
    of_several = session.mode.run.process_per_node or session.mode.run.overlaps
    return session.world.describe() | ({"one_device_mode": same_on_one(session)} if of_several else {})


def same_on_one(session: Session[Any]) -> str:
    """The plain mode of the same formulation."""
    written = session.mode.written
    return Mode(written=written, run=written.runs[0]).name


def mesh() -> Mesh:
    """All devices, rank by rank."""
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id))), (AXIS,))


def sharding_of(array: Any) -> NamedSharding:
    """Along its largest axis that the devices divide; whole on each where there is none."""
    devices, shape = mesh(), array.shape
    axes = [axis for axis in range(len(shape)) if shape[axis] % devices.size == 0]
    largest = max(axes, key=shape.__getitem__, default=None)
    return NamedSharding(devices, PartitionSpec(*(AXIS if axis == largest else None for axis in range(len(shape)))))


def everywhere() -> NamedSharding:
    return NamedSharding(mesh(), REPLICATED)


def sharded(tree: Any) -> Any:
    """Of arrays that every process has: each device's part (`sharding_of`)."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding_of(whole), whole.__getitem__)

    return jax.tree.map(of_leaf, tree)


def gathered(tree: Any) -> Any:
    """The other way: whole on every device. All processes must call it."""
    return jax.jit(lambda arrays: arrays, out_shardings=everywhere())(tree)


def loss_of_shards(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss` of sharded parameters, its first argument. XLA gathers them for the forward pass and once more for the
    backward pass, as FSDP2 does; else the whole ones would stay in memory in between."""

    def of_whole(params: Any, *others: Any) -> Any:
        return loss(jax.lax.with_sharding_constraint(params, everywhere()), *others)

    # All that the backward pass needs is kept, but what was gathered.
    return jax.checkpoint(of_whole, policy=lambda operation, *_, **__: str(operation) != "sharding_constraint")


def on_every_device(function: Callable, in_specs: Any, out_specs: Any) -> Callable:
    """`function` of each device's own parts. Not checked for replication, as a check would also change how gradients
    are taken: they are the device's own until one of the functions below is called."""
    return jax.shard_map(function, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def global_arrays(tree: Any, spec: PartitionSpec) -> Any:
    """One array over all devices from each array of this process: all of it if REPLICATED, else this rank's part."""
    sharding = NamedSharding(mesh(), spec)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree)


def own_part(tree: Any) -> Any:
    """The other way, to the host: what this process has of global arrays; any array of one device is its own part."""

    def of_leaf(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0))
        first_rows = {shard.index[0].start or 0: shard.data for shard in leaf.addressable_shards}
        return np.concatenate([np.asarray(data) for _, data in sorted(first_rows.items())])

    return jax.tree.map(of_leaf, tree)


def sum_over_devices(tree: Any) -> Any:
    """To be called in `on_every_device`. XLA makes as few collective operations of all leaves as it sees fit, and
    copies those of one operation into one vector."""
    return jax.lax.psum(tree, AXIS)


def mean_over_devices(tree: Any) -> Any:
    """As `sum_over_devices`."""
    return jax.lax.pmean(tree, AXIS)
