"""The ranks of one measurement: one process for each device, wherever it runs. Pure data."""

from pydantic import Field

from harness.settings import Frozen


class World(Frozen):
    """What one rank knows of all of them. A measurement on one device has a world of one."""

    rank: int = Field(default=0, ge=0)
    """0 is the child of the job's parent; its numbers stand first in the record."""
    size: int = Field(default=1, ge=1)
    """Ranks, and so devices."""
    local_rank: int = Field(default=0, ge=0)
    """Among the ranks of this node, so the index of this rank's GPU among those that the node shows."""
    node: str = ""
    coordinator: str | None = None
    """host:port where the framework's processes meet; rank 0 listens there. None in a world of one."""

    def rows(self, batch_size: int) -> slice:
        """This rank's part of a global batch: contiguous, in the order of the ranks."""
        share = batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)


ALONE = World()
