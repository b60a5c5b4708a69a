"""One program over several devices, of one process or of several: what use cases 2 and 4 need on top of 1 and 3.

Built on jax.shard_map: a function sees its own device's part of the arrays, so that BatchNorm's statistics stay local,
as they are in PyTorch's DistributedDataParallel, and nothing moves between devices but what is written here. jit with
NamedSharding would leave the collectives to XLA and make BatchNorm's statistics global. On two devices of a CPU neither
is faster (docs/studies/sharding.md); no GPU was asked yet.
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


def details_of(session: Session[Any]) -> dict[str, Any]:
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
