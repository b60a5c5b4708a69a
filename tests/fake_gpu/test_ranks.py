"""Use cases 2 and 4 as two processes with a device each: PyTorch's own process group and DistributedDataParallel over a
NCCL that sends nothing."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.job.slurm_step import free_port
from harness.measure.world import World
from harness.paths import REPOSITORY
from tests.fake_gpu.conftest import Environment
from tests.fake_gpu.rank import PROGRAMS, STEPS
from tests.made.patience import patience

PARAMETERS = 16 * 8 * 8 + 16 + 32 * 16 * 4 * 4 + 32 + 512 * 32 + 32 + 32 * 10 + 10
"""Of mnist's cnn: 26,010."""


@pytest.fixture(scope="module")
def ranks(on_card: Environment, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, world = tmp_path_factory.mktemp("ranks"), World(size=2, coordinator=f"localhost:{free_port()}")

    def answer(rank: int) -> dict[str, Any]:
        with Path(folder, f"{rank}.log").open("w") as log:
            done = subprocess.run(
                [sys.executable, "-m", "tests.fake_gpu.rank", world.of_local_rank(rank).model_dump_json()],
                cwd=REPOSITORY,
                env=on_card("a100", devices=2),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=patience(300),
            )
        assert done.returncode == 0, Path(folder, f"{rank}.log").read_text()[-6000:]
        found: dict[str, Any] = json.loads(done.stdout)
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


def test_both_ranks_start_the_same_work(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0] == ranks[1]


def test_ranks_agree(ranks: list[dict[str, Any]]) -> None:
    """Each finds its own value in every place: the fake sends nothing."""
    assert [rank["agreed"] for rank in ranks] == [0.25, 0.25]
