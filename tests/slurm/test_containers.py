"""Processes in real containers, by Charliecloud, on a real Slurm: the image has none of Slurm's commands."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.plan import Launch
from harness.results.ratios import took_turns
from pipeline.watching.follow import follow
from tests.harness.job.test_several_ranks import read_pids
from tests.made.project import BehavingProject, make_behaving_project
from tests.made.two_devices import copy_for_two_devices, require_all_good, run_main
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for

pytestmark = pytest.mark.slurm
FROM_THE_HOST = ("/usr/lib", "/usr/lib64", "/usr/local")
"""Libraries, and Python where it is the machine's own. Slurm's commands are in /usr/bin."""


@pytest.fixture
def project(slurm: Cluster, tmp_path: Path) -> Iterator[BehavingProject]:
    yield make_behaving_project(tmp_path)
    slurm.cancel_all()


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """An image with bash and what runs this Python, made by hand."""
    if shutil.which("ch-run") is None:
        assert "REQUIRE_SLURM" not in os.environ, "the package charliecloud is missing"
        pytest.skip("Charliecloud is not installed (ch-run)")
    monkeypatch.setenv("USER", "somebody")  # ch-run will not start without
    image = tmp_path_factory.mktemp("image")
    pythons = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    mounts = [one for one in (*FROM_THE_HOST, *sorted(pythons)) if Path(one).is_dir()]
    for folder in ("usr/bin", "dev", "etc", "home", "proc", "sys", "tmp", "root", "run", *(one[1:] for one in mounts)):
        (image / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("bin", "lib", "lib64"):
        (image / folder).symlink_to(f"usr/{folder}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (image / "etc" / name).touch()
    for program in ("bash", "sleep"):
        shutil.copy(f"/bin/{program}", image / "usr/bin" / program)
    assert shutil.which("srun") and not list(image.rglob("srun"))
    return Launch(
        python=sys.executable,
        runtime="charliecloud",
        image=str(image),
        mounts=tuple(mounts),
        options=("--set-env=NCCL_INSIDE=yes",),
    )


def test_a_job_whose_processes_are_in_containers_is_requeued_and_goes_on(
    project: BehavingProject, slurm: Cluster, launch: Launch
) -> None:
    """JAX's are in one and PyTorch's are not, and they take turns."""
    pair = project.pair(jax=("slow",), torch=("waits_later",), replicates=1, launch=launch)
    [folder] = project.submit_pairs(pair, executor="slurm", pairing="interleaved")
    wait_for((project.root / "torch-pid").exists, "the measurement in its turns")
    slurm.run("scancel", "--batch", "--signal=USR2", job_id(folder))
    wait_for(lambda: state_of(project, folder).state == "requeued", "the job back in the queue")
    project.gate.touch()
    assert follow([folder], project.results) == 0
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job_id(folder))
    inside, outside = sorted(project.records(), key=lambda record: record.measurement.framework)
    assert took_turns(inside, outside)
    container = inside.environment["container"]
    assert (container["runtime"], container["image"]) == ("charliecloud", launch.image)
    assert str(container["digest"]).startswith("sha256:")
    assert "container" not in outside.environment
    assert [one.environment["variables"].get("NCCL_INSIDE") for one in (inside, outside)] == ["yes", None]


def test_ranks_on_two_nodes_are_each_in_a_container(project: BehavingProject, launch: Launch) -> None:
    plan = project.plan("well", devices=2, nodes=2).model_copy(update={"launch": launch})
    assert follow(project.submit(plan, executor="slurm"), project.results) == 0
    [record] = project.records()
    assert len({rank.node for rank in record.ranks}) == 2
    assert record.environment["variables"]["NCCL_INSIDE"] == "yes"


def test_a_container_that_cannot_start_costs_its_own_framework_alone(project: BehavingProject, launch: Launch) -> None:
    """And what the runtime says is in the record."""
    nowhere = launch.model_copy(update={"image": "/nowhere/image"})
    folders = project.submit_pairs(project.pair(replicates=1, launch=nowhere), executor="slurm")
    assert follow(folders, project.results) == 1
    bad, good = sorted(project.records(), key=lambda record: record.measurement.framework)
    assert (bad.outcome, good.outcome) == ("failed", "ok")
    assert "ch-run" in str(bad.reason) and "/nowhere/image" in str(bad.reason)


def inside_containers(slurm: Cluster) -> set[int]:
    """The processes of this cluster's jobs that are in one, by what ch-run has put into their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if b"NCCL_INSIDE=yes" in variables and f"SLURM_CONF={slurm.conf}".encode() in variables:
                found.add(int(process.name))
    return found


@pytest.mark.parametrize("nodes", [1, 2])
def test_killed_ranks_in_containers_cost_their_measurements_alone(
    project: BehavingProject, slurm: Cluster, launch: Launch, nodes: int
) -> None:
    """One from outside, and one that leaves a worker behind. Nothing of the containers outlives the job. (In a step,
    workers are Slurm's to end, by control groups. This one has none, and would leave them, as without containers.)"""
    killed = ("all_gated", "is_killed_and_leaves_a_worker" if nodes == 1 else "kills_rank_1")
    modes = (*killed, "well")
    plan = project.plan(*modes, devices=nodes, nodes=nodes).model_copy(update={"launch": launch})
    folders = project.submit(plan, executor="slurm")
    ranks = [pid for pid, _ in read_pids(project, nodes)]
    assert set(ranks) <= inside_containers(slurm)
    os.kill(ranks[-1], signal.SIGKILL)
    assert follow(folders, project.results) == 1
    records = project.by_mode()
    assert [records[mode].outcome for mode in modes] == ["failed", "failed", "ok"]
    for mode in killed:
        assert "the measurement's process was killed by SIGKILL" in str(records[mode].reason)
    assert records["well"].environment["container"]["runtime"] == "charliecloud"
    assert inside_containers(slurm) == set()


@pytest.mark.nightly
def test_both_frameworks_train_on_two_nodes_in_containers(slurm: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Use case 2 itself, by main.py."""
    copy_for_two_devices(tmp_path, nodes=2)
    config = tmp_path / "experiments.yaml"
    own = launch.model_dump(mode="json", exclude_defaults=True)
    frameworks = json.dumps(dict.fromkeys(("jax", "torch"), own))
    config.write_text(config.read_text().replace("\ncluster:\n", f"\ncluster:\n  frameworks: {frameworks}\n", 1))
    records = require_all_good(tmp_path, run_main(tmp_path, "--use_case", "2", "--no-baseline"))
    assert sorted(record.measurement.framework for record in records) == ["jax", "torch"]
    for record in records:
        assert len({rank.node for rank in record.ranks}) == 2
        assert record.environment["container"]["runtime"] == "charliecloud"
        assert record.environment["variables"]["NCCL_INSIDE"] == "yes"
