"""Both frameworks of a cell in one allocation of a real Slurm: their order, and a requeue."""

import pytest

from pipeline.watching.follow import follow
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, logs, state_of, wait_for

ABBA = [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1), ("jax", 2), ("torch", 2)]


def test_one_allocation_runs_both_in_turn(behaving: BehavingProject, capsys: pytest.CaptureFixture[str]) -> None:
    [folder] = behaving.submit_pairs(behaving.pair(replicates=3), executor="slurm")
    number = job_id(folder)
    assert follow([folder], behaving.results) == 0, logs(behaving)

    assert behaving.arms() == ABBA
    records = sorted(behaving.records(), key=lambda record: record.started_at)
    for earlier, later in zip(records, records[1:], strict=False):
        assert earlier.ended_at <= later.started_at
    environments = [record.environment for record in records]
    assert [each["pairing"] for each in environments] == [{"kind": "together", "pair": f"{number}.0"}] * 6
    where = [(each["node"], each["slurm"]["job_id"], each["slurm"]["job_gpus"]) for each in environments]
    assert where == where[:1] * 6 and where[0][1] == number
    state = state_of(behaving, folder)
    assert (state.name, state.state, state.job_id) == ("any/pair_mnist_1", "done", number)
    # What Slurm got is the rendered script, byte for byte.
    kept = folder.root / f"{number}_submission.sh"
    assert kept.read_text() == (behaving.root / "slurm_scripts/pair_mnist_1.sh").read_text()
    capsys.readouterr()
    assert behaving.submit_pairs(behaving.pair(replicates=3), executor="slurm") == []
    assert capsys.readouterr().out.count("every measurement has a record") == 2


def test_a_requeued_pair_goes_on_where_it_was(behaving: BehavingProject, slurm: Cluster) -> None:
    pair = behaving.pair(jax=("well", "gated"), torch=("well",))
    [folder] = behaving.submit_pairs(pair, executor="slurm")
    wait_for((behaving.root / "jax-pid").exists, "the gated measurement")
    number = job_id(folder)
    assert behaving.submit_pairs(pair, executor="slurm") == [folder]  # followed, not submitted again
    # The signal that Slurm sends 90 s before the time limit, sent by hand to the same script.
    slurm.run("scancel", "--batch", "--signal=USR2", number)
    wait_for(lambda: state_of(behaving, folder).state == "requeued", "the job back in the queue")
    assert [(r.measurement.framework, r.measurement.variant.execution_mode) for r in behaving.records()] == [
        ("jax", "well.eager")
    ]
    behaving.gate.touch()

    assert follow([folder], behaving.results) == 0, logs(behaving)
    records = sorted(behaving.records(), key=lambda record: record.started_at)
    assert len({record.measurement_id for record in records}) == len(records) == 6  # none twice
    assert behaving.arms() == [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1)]
    slurm_of = [record.environment["slurm"] for record in records]
    assert [each["restart_count"] for each in slurm_of] == [0] + [1] * 5
    assert {each["job_id"] for each in slurm_of} == {number}
    runs = [record.environment["pairing"]["pair"] for record in records]
    assert runs == [f"{number}.0"] + [f"{number}.1"] * 5
    assert state_of(behaving, folder).state == "done"
