"""How a rank finds its place."""

import pytest

from harness.errors import ProjectError
from harness.measure.world import World

TASK = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n2"}


@pytest.mark.parametrize(("address", "host"), [("10.0.0.7", "10.0.0.7"), ("fe80::7", "[fe80::7]")])
def test_a_task_of_a_step_meets_the_others_where_srun_was_called(address: str, host: str) -> None:
    task = TASK | {"SLURM_LAUNCH_NODE_IPADDR": address}
    world = World(size=8, node="n1", coordinator="127.0.0.1:20123")
    placed = World(rank=5, size=8, local_rank=1, node="n2", coordinator=f"{host}:20123")
    assert world.of_slurm_task(task) == placed
    for missing in ("SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR"):
        with pytest.raises(ProjectError, match=f"^{missing} is not set in this task"):
            world.of_slurm_task(task | {missing: ""})


def test_alone_on_its_node_it_meets_nobody() -> None:
    task = TASK | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert World(devices_per_rank=4, node="n1").of_slurm_task(task) == World(devices_per_rank=4, node="n2")


def test_ranks_of_this_machine() -> None:
    world = World(size=3, node="n1", coordinator="127.0.0.1:20123")
    assert [world.of_local_rank(rank).rows(12) for rank in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert world.of_local_rank(2) == World(rank=2, local_rank=2, size=3, node="n1", coordinator="127.0.0.1:20123")
