"""Use cases 2 and 4 as two processes with a device each: PyTorch's own process group and DistributedDataParallel over a
NCCL that sends nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.job.slurm_step import free_port
from harness.measure.world import World
from tests.fake_cuda.conftest import Started
from tests.fake_cuda.rank import PROGRAMS, STEPS

PARAMETERS = 16 * 8 * 8 + 16 + 32 * 16 * 4 * 4 + 32 + 512 * 32 + 32 + 32 * 10 + 10
"""Of mnist's cnn: 26,010."""


@pytest.fixture(scope="module")
def ranks(ask: Started) -> list[dict[str, Any]]:
    world = World(size=2, coordinator=f"localhost:{free_port()}")

    def answer(rank: int) -> dict[str, Any]:
        own = world.of_local_rank(rank).model_dump_json()
        found: dict[str, Any] = ask("-m", "tests.fake_cuda.rank", own, devices=2)
        return found

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(answer, range(2)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_only_starts_work_and_averages_once(name: str, ranks: list[dict[str, Any]]) -> None:
    for found in (rank[name] for rank in ranks):
        assert found["faults"] == []
        assert found["hindrances"] == []
        assert found["nccl"] == [f"nccl ncclAllReduce count={PARAMETERS} type=f32 ranks=2"] * STEPS
        assert found["graph_launches"] == (STEPS if name.endswith("in a graph") else 0)


def test_both_ranks_start_the_same_work_and_agree(ranks: list[dict[str, Any]]) -> None:
    """Each finds its own value in every place: the fake sends nothing."""
    assert ranks[0] == ranks[1]
    assert ranks[0]["agreed"] == 0.25
