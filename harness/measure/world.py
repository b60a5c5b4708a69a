"""The ranks of one measurement: its processes, each with its devices, wherever they run. Pure data."""

from collections.abc import Mapping

from pydantic import Field

from harness.errors import ProjectError
from harness.plan import Frozen

OF_A_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME")
"""srun's variables."""


class World(Frozen):
    """What one rank knows of all of them. A measurement on one device has a world of one."""

    rank: int = Field(default=0, ge=0)
    """0 runs on the same node as the job; its numbers stand first in the record."""
    size: int = Field(default=1, ge=1)
    """Ranks, which are processes."""
    devices_per_rank: int = Field(default=1, ge=1)
    """One, but for the execution modes that run one process for all devices of a node."""
    local_rank: int = Field(default=0, ge=0)
    """Among the ranks of this node, so the index of this rank's first GPU among those that the node shows."""
    node: str = ""
    coordinator: str | None = None
    """host:port where the framework's processes meet; rank 0 listens there. None in a world of one."""

    @property
    def device_count(self) -> int:
        """Over all ranks."""
        return self.size * self.devices_per_rank

    def of_local_rank(self, rank: int) -> "World":
        """All ranks are on this machine."""
        return self.model_copy(update={"rank": rank, "local_rank": rank})

    def of_slurm_task(self, variables: Mapping[str, str]) -> "World":
        """Of a task of an srun step. `coordinator` keeps its port. Its host is the one that srun was called on, where
        rank 0 runs, by the address at which Slurm itself reaches it from here. Raises ProjectError where one of srun's
        variables is missing."""
        coordinator = self.coordinator
        needed = [*OF_A_TASK, *(["SLURM_LAUNCH_NODE_IPADDR"] if coordinator is not None else [])]
        if missing := [name for name in needed if not variables.get(name)]:
            raise ProjectError(
                f"{missing[0]} is not set in this task: srun sets it to what tells the ranks from each other. Leave it "
                f"as it is in `setup` and in the environment"
            )
        if coordinator is not None:
            host = variables["SLURM_LAUNCH_NODE_IPADDR"]
            coordinator = f"{f'[{host}]' if ':' in host else host}:{coordinator.rpartition(':')[2]}"
        return self.model_copy(
            update={
                "rank": int(variables["SLURM_PROCID"]),
                "local_rank": int(variables["SLURM_LOCALID"]),
                "node": variables["SLURMD_NODENAME"],
                "coordinator": coordinator,
            }
        )

    def describe(self) -> dict[str, int]:
        """For a record of several devices."""
        return {"processes": self.size, "devices_per_process": self.devices_per_rank}

    def rows(self, batch_size: int) -> slice:
        """This rank's part of a global batch: contiguous, in the order of the ranks."""
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def require_gpus(self, visible: int) -> None:
        """Raises ProjectError where this rank's GPUs are not among the first `visible` of its node. Not Refused, which
        would settle the measurement: with other options of Slurm it can be done."""
        last = self.local_rank + self.devices_per_rank - 1
        if visible <= last:
            raise ProjectError(
                f"this task sees {visible} GPU(s), and rank {self.local_rank} of this node needs the one numbered "
                f"{last}. Let nothing hide a node's GPUs from its tasks: no --gpu-bind, no --gpus-per-task, no "
                f"CUDA_VISIBLE_DEVICES. MIG slices cannot do several devices"
            )


ALONE = World()
