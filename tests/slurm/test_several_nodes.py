"""Several ranks as the tasks of Slurm steps: on one node, and on two."""

import os
import re
import signal
from pathlib import Path

import pytest

from harness.results.record import read_record
from pipeline.watching.follow import follow
from tests.harness.job.test_several_ranks import read_pids
from tests.made.patience import slowdown
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, copy_repository
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import logs, run_main, state_of, wait_for


@pytest.mark.parametrize(("nodes", "names"), [(1, ["n1", "n1"]), (2, ["n1", "n2"])])
def test_ranks_are_the_tasks_of_a_step(behaving: BehavingProject, nodes: int, names: list[str]) -> None:
    modes = ("shows_its_world", "kills_rank_1", "stands_for_its_node", "is_slower_on_rank_1")
    plan = behaving.plan(*modes, devices=2, nodes=nodes).model_copy(update={"srun_options": ("--cpu-bind=none",)})
    assert follow(behaving.submit(plan, executor="slurm"), behaving.results) == 1
    records, output = behaving.by_mode(), logs(behaving)
    good = records["shows_its_world"]
    assert good.outcome == "ok", output
    assert good.environment["rank"] == {"cpu_bind": "quiet,none", "affinity": sorted(os.sched_getaffinity(0))}
    assert [rank.node for rank in good.ranks] == names
    per_node = records["stands_for_its_node"]
    if nodes == 1:
        assert per_node.result is not None, output
        world = per_node.result.details
        assert (world["size"], world["devices_per_rank"], per_node.ranks) == (1, 2, [])
    else:  # of one device each
        assert "is for nodes with several" in str(per_node.reason)
    reason = str(records["kills_rank_1"].reason)
    assert reason.startswith(f"rank 1 on {names[1]}: the measurement's process was killed by SIGKILL")
    assert "-rank1.log" in reason and "last words of rank 1" in reason
    assert records["is_slower_on_rank_1"].outcome == "ok"


@pytest.mark.nightly
def test_a_rank_that_hears_no_signal_is_ended(behaving: BehavingProject) -> None:
    """It is stopped, so that only SIGKILL ends it, which srun sends to the other node."""
    plan = behaving.plan("all_gated", "well", devices=2, nodes=2, timeout_s=round(16 * slowdown()))
    folders = behaving.submit(plan, executor="slurm")
    pids = [pid for pid, _ in read_pids(behaving, 2)]
    os.kill(pids[1], signal.SIGSTOP)
    assert follow(folders, behaving.results) == 1
    assert {mode: one.outcome for mode, one in behaving.by_mode().items()} == {"all_gated": "timeout", "well": "ok"}
    assert not any(is_alive(pid) for pid in pids)


def test_a_preempted_job_of_two_ranks_goes_on_where_it_was(behaving: BehavingProject, slurm: Cluster) -> None:
    """The signal comes to submitit's worker, which is the job: it stops in order, is requeued, and does the rest."""
    [folder] = behaving.submit(behaving.plan("well", "all_gated", devices=2, nodes=2), executor="slurm")
    started = [pid for pid, _ in read_pids(behaving, 2)]
    assert list(behaving.by_mode()) == ["well"]
    slurm.run("sbatch", "-p", "high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: state_of(behaving, folder).state == "requeued", "the job back in the queue")
    assert not any(is_alive(pid) for pid in started)
    behaving.gate.touch()
    assert follow([folder], behaving.results) == 0, logs(behaving)
    records = behaving.by_mode()
    restarts = [records[mode].environment["slurm"]["restart_count"] for mode in ("well", "all_gated")]
    assert [int(count or 0) for count in restarts] == [0, 1]
    assert [rank.node for rank in records["all_gated"].ranks] == ["n1", "n2"]
    assert "1 measured, 1 had a record, 0 failed" in logs(behaving)


# The whole way of a user, with both frameworks.

USE_CASE_4 = """\
    4:
      batch_sizes: [64]
      precisions: [fp32]
      formulations: {jax: [vmap: [jit]], torch: [vmap: [eager]]}
      options: {output: [clipped_sum]}
"""


@pytest.mark.nightly
def test_main_measures_a_cell_of_two_devices(slurm: Cluster, tmp_path: Path) -> None:
    """Use case 4 on two nodes, one CPU for each task."""
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    copy_repository(tmp_path)
    config = tmp_path / "experiments.yaml"
    text = re.sub(r"(\n    devices: 2\b.*)", r"\1\n    nodes: 2", config.read_text())
    four, five = (text.index(f"    {number}:\n", text.index("\nquick:")) for number in (4, 5))
    config.write_text((text[:four] + USE_CASE_4 + text[five:]).replace("cpus_per_task: 4 ", "cpus_per_task: 1 "))
    selection = ("--benchmark", "mnist", "--use_case", "4", "--data", "sample", "--quick")
    said = run_main(tmp_path, *selection, "--wait")
    paths = (tmp_path / "results" / "records").rglob("mnist_4/**/*.json")  # beside those on one device
    records = [read_record(path) for path in paths]
    assert [record.outcome for record in records] == ["ok", "ok"], said
    for record in records:
        assert record.measurement.cell.nodes == 2
        assert record.environment["scheduler"] == "slurm"
        assert len({rank.node for rank in record.ranks}) == len(record.ranks) == 2
        assert all(rank.block_times_s for rank in record.ranks)
    assert "Per-sample gradients of a small CNN on 2 devices" in said
