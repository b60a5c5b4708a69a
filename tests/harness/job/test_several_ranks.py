"""Several ranks: real runs of run.py, which starts them on this machine as it does without Slurm."""

import os
import signal

import pytest

from tests.made.patience import patience, wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, FinishedJob, make_behaving_project

pytestmark = pytest.mark.takes(25)

NODE = os.uname().nodename


def read_pids(repository: BehavingProject, ranks: int) -> list[tuple[int, int]]:
    """Of each rank's child and of the child's parent, once all have begun."""
    files = [repository.root / f"pid-{rank}" for rank in range(ranks)]
    wait_until(lambda: all(file.exists() for file in files), "all ranks have begun")
    pairs = [file.read_text().split() for file in files]
    return [(int(child), int(parent)) for child, parent in pairs]


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """One job in which ranks fail in every way, and good measurements before and after."""
    repository = make_behaving_project(tmp_path_factory.mktemp("ranks"))
    modes = (
        "shows_its_world",
        "stands_for_its_node",
        "kills_rank_1",
        "is_slower_on_rank_1",
        "is_signalled",
        "is_controlled",
        "control_is_killed_on_rank_1",
    )
    return repository.finish(repository.plan(*modes, devices=3, block_min_s=0.02))


def test_every_rank_has_its_place_and_its_own_log(three_ranks: FinishedJob) -> None:
    record = three_ranks.records["shows_its_world"]
    assert record.outcome == "ok", record.reason
    world = record.result.details
    assert (world["rank"], world["size"], world["local_rank"], world["node"]) == (0, 3, 0, NODE)
    host, port = world["coordinator"].split(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    for rank in range(3):
        (log,) = three_ranks.project.results.records().rglob(f"*shows_its_world*-rank{rank}.log")
        assert log.read_text() == f"this is rank {rank}\n"


def test_one_process_for_all_devices_of_the_node(three_ranks: FinishedJob) -> None:
    record = three_ranks.records["stands_for_its_node"]
    assert (record.outcome, record.ranks) == ("ok", []), record.reason
    world = record.result.details
    assert (world["rank"], world["size"], world["devices_per_rank"], world["coordinator"]) == (0, 1, 3, None)


def test_slowest_rank_makes_the_times(three_ranks: FinishedJob) -> None:
    record = three_ranks.records["is_slower_on_rank_1"]
    assert [rank.rank for rank in record.ranks] == [0, 1, 2]
    of_rank = [rank.block_times_s for rank in record.ranks]
    assert record.result.blocks.block_times_s == [max(times) for times in zip(*of_rank, strict=True)]
    calls = record.result.blocks.calls_per_block
    for rank, call_s in ((0, 1e-3), (1, 3e-3), (2, 1e-3)):  # simulated
        assert of_rank[rank] == pytest.approx([calls * call_s] * len(of_rank[rank]), rel=1e-3)


def test_failure_of_a_rank_is_the_records_and_ends_the_ranks_that_would_wait_for_ever(three_ranks: FinishedJob) -> None:
    """What other failures become: test_ranks.py."""
    record = three_ranks.records["kills_rank_1"]
    assert (record.outcome, record.result, record.ranks) == ("failed", None, [])
    reason = str(record.reason)
    assert reason.startswith(f"rank 1 on {NODE}: the measurement's process was killed by SIGKILL")
    assert "-rank1.log" in reason and "last words of rank 1" in reason
    assert three_ranks.status == 1
    assert "7 measured, 0 had a record, 1 failed" in three_ranks.output


def test_signals_of_a_scheduler_end_no_rank_by_themselves(three_ranks: FinishedJob) -> None:
    """What they mean is the parent's to decide; a rank that died of one would be taken for the cause."""
    record = three_ranks.records["is_signalled"]
    assert (record.outcome, record.reason) == ("ok", None)


def test_measurement_stands_whatever_becomes_of_its_control(three_ranks: FinishedJob) -> None:
    whole, broken_off = (three_ranks.records[mode] for mode in ("is_controlled", "control_is_killed_on_rank_1"))
    for record in (whole, broken_off):
        assert (record.outcome, record.reason) == ("ok", None)
        assert [len(rank.block_times_s) for rank in record.ranks] == [3, 3, 3]
    assert (len(whole.result.blocks_alone.block_times_s), whole.result.blocks_alone_absent) == (3, None)
    absent = f"failed: rank 1 on {NODE}: the measurement's process was killed by SIGKILL"
    assert broken_off.result.blocks_alone is None and broken_off.result.blocks_alone_absent.startswith(absent)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_no_rank_outlives_the_job_and_the_next_start_goes_on(
    repository: BehavingProject, number: signal.Signals
) -> None:
    folder = repository.job(repository.plan("all_gated", "well", devices=2))
    with repository.start(folder) as process:
        pids = read_pids(repository, 2)
        assert {parent for _, parent in pids} == {process.pid}
        process.send_signal(number)
        output, _ = process.communicate(timeout=patience(20))
        if number == signal.SIGTERM:
            assert process.returncode == 75 and "stopped by a signal after 0 of 2" in output
            assert not any(is_alive(pid) for pid, _ in pids)
        wait_until(lambda: not any(is_alive(pid) for pid, _ in pids), "all are gone")
    assert repository.by_mode() == {}

    repository.gate.touch()
    assert repository.resume(folder)[0] == 0
    assert {mode: record.outcome for mode, record in repository.by_mode().items()} == {"all_gated": "ok", "well": "ok"}


def test_several_nodes_need_slurm(repository: BehavingProject) -> None:
    status, output, _ = repository.run(repository.plan("well", devices=2, nodes=2))
    assert status == 2
    assert "error: use case 1 needs 2 node(s) with 1 device(s) each, and without Slurm there is one." in output
