"""What is asked of srun, and what its words mean."""

import itertools
import os
import socket
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.job.slurm_step import (
    GPU_SLOT,
    PORTS,
    ends_of_tasks,
    free_port,
    lost_node,
    nodes_of_job,
    note_gpu_slot,
    require_allocation,
    step_command,
    take_gpu_slot,
)
from harness.plan import Cell


def cell(devices: int, nodes: int) -> Cell:
    return Cell(gpu="any", benchmark="mnist", use_case=2, use_case_name="train", devices=devices, nodes=nodes)


def test_one_task_for_each_device_or_one_for_a_node_with_the_cpus_of_all_its_devices() -> None:
    cpus = {"SLURM_CPUS_PER_TASK": "4"}
    command = step_command(cell(8, 2), 8, Path("/r/50%/x.log"), cpus)
    assert command[:5] == ["srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=4"]
    assert command[-1] == "--error=/r/50%%/x-rank%t.log"
    command = step_command(cell(8, 2), 2, Path("/r/x.log"), cpus)
    assert command[:5] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=16"]
    alone = step_command(cell(4, 1), 1, Path("/r/x.log"), {})
    assert alone[1:4] == ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    assert not [option for option in alone if "cpus" in option]
    assert alone[-1] == "--error=/r/x.log"
    with_options = step_command(cell(4, 1), 1, Path("/r/x.log"), {}, options=("--cpu-bind=cores", "--mpi=pmix"))
    assert with_options == [*alone, "--cpu-bind=cores", "--mpi=pmix"], "the last of two --mpi counts"


def test_a_step_of_a_job_that_shares_its_node_has_all_its_cpus_and_moves_to_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm shows all GPUs and CPUs of the job to such a step."""
    monkeypatch.delenv(GPU_SLOT, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    note_gpu_slot()
    take_gpu_slot()
    assert GPU_SLOT not in os.environ and os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    own = os.sched_getaffinity(0)
    monkeypatch.setenv(GPU_SLOT, "")
    monkeypatch.setenv("SLURM_STEP_GPUS", "1")
    note_gpu_slot()
    assert os.environ[GPU_SLOT] == f"1 {','.join(map(str, sorted(own)))}"
    cpus = {"SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_CPUS_PER_NODE": "64", GPU_SLOT: os.environ[GPU_SLOT]}
    assert "--cpus-per-task=64" in step_command(cell(1, 1), 1, Path("/r/x.log"), cpus)
    moved: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: moved.append(given))
    take_gpu_slot()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1" and moved == [(0, sorted(own))]


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("srun: error: n2: task 1: Killed", {1: -9}),
        ("srun: error: n1: tasks 0,2-3: Exited with exit code 3", {0: 3, 2: 3, 3: 3}),
        ("srun: error: gpu[07-09]: task 5: Segmentation fault (core dumped)", {5: -11}),
        ("srun: error: n1: task 0: Out Of Memory", {0: -9}),
        ("srun: Force Terminated StepId=1.1", {}),
        ("srun: error: Unable to create step for job 7: More processors requested than permitted", {}),
    ],
)
def test_how_tasks_ended(line: str, ends: dict[int, int]) -> None:
    assert ends_of_tasks(line) == ends


def test_nodes_in_their_order_and_one_that_is_lost() -> None:
    assert nodes_of_job({"SLURM_JOB_NODELIST": "n1,m2"}) == ["n1", "m2"]
    assert lost_node("srun: error: Node failure on n2") == "n2"
    assert lost_node("srun: error: n2: task 1: Killed") is None


def test_the_allocation_must_fit() -> None:
    require_allocation(cell(1, 1), {})
    require_allocation(cell(4, 1), {})
    require_allocation(cell(4, 2), {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"})
    with pytest.raises(ConfigError, match="needs 1 node.s. with 4 device.s. each, and this Slurm job has 2"):
        require_allocation(cell(4, 1), {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"})
    with pytest.raises(ConfigError, match="was started 4 times"):
        require_allocation(cell(4, 1), {"SLURM_STEP_NUM_TASKS": "4"})


def test_a_variable_of_slurm_that_is_no_number_is_named() -> None:
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK")
    for name, value in itertools.product(names, ("", "x", "-1", "1.0", "٣", "9" * 5000)):
        with pytest.raises(ConfigError, match=f"{name} is .* where Slurm writes a number. Leave it as it is"):
            require_allocation(cell(1, 1), {name: value})


def test_port_is_free_and_not_one_of_outgoing_connections() -> None:
    port = free_port()
    assert port in PORTS
    with socket.socket() as probe:
        probe.bind(("", port))
