"""Processes in real containers, by Charliecloud, on a real Slurm: the image has none of Slurm's commands."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.plan import Launch
from harness.results.ratios import took_turns
from pipeline.watching.follow import follow
from tests.harness.job.test_several_ranks import read_pids
from tests.made.project import BehavingProject
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import job_id, state_of, wait_for

FROM_THE_HOST = ("/usr/lib", "/usr/lib64", "/usr/local")
"""Libraries, and Python where it is the machine's own. Slurm's commands are in /usr/bin."""


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
    behaving: BehavingProject, slurm: Cluster, launch: Launch
) -> None:
    """JAX's are in one and PyTorch's are not, and they take turns."""
    pair = behaving.pair(jax=("slow",), torch=("waits_later",), replicates=1, launch=launch)
    [folder] = behaving.submit_pairs(pair, executor="slurm", pairing="interleaved")
    wait_for((behaving.root / "torch-pid").exists, "the measurement in its turns")
    slurm.run("scancel", "--batch", "--signal=USR2", job_id(folder))
    wait_for(lambda: state_of(behaving, folder).state == "requeued", "the job back in the queue")
    behaving.gate.touch()
    assert follow([folder], behaving.results) == 0
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job_id(folder))
    inside, outside = sorted(behaving.records(), key=lambda record: record.measurement.framework)
    assert took_turns(inside, outside)
    container = inside.environment["container"]
    assert (container["runtime"], container["image"]) == ("charliecloud", launch.image)
    assert str(container["digest"]).startswith("sha256:")
    assert "container" not in outside.environment
    assert [one.environment["variables"].get("NCCL_INSIDE") for one in (inside, outside)] == ["yes", None]


def inside_containers(slurm: Cluster) -> set[int]:
    """The processes of this cluster's jobs that are in one, by what ch-run has put into their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if b"NCCL_INSIDE=yes" in variables and f"SLURM_CONF={slurm.conf}".encode() in variables:
                found.add(int(process.name))
    return found


def test_killed_ranks_in_containers_cost_their_measurements_alone(
    behaving: BehavingProject, slurm: Cluster, launch: Launch
) -> None:
    """One from outside, and one from inside. Nothing of the containers outlives the job."""
    modes = ("all_gated", "kills_rank_1", "well")
    plan = behaving.plan(*modes, devices=2, nodes=2).model_copy(update={"launch": launch})
    folders = behaving.submit(plan, executor="slurm")
    ranks = [pid for pid, _ in read_pids(behaving, 2)]
    assert set(ranks) <= inside_containers(slurm)
    os.kill(ranks[-1], signal.SIGKILL)
    assert follow(folders, behaving.results) == 1
    records = behaving.by_mode()
    assert [records[mode].outcome for mode in modes] == ["failed", "failed", "ok"]
    for mode in modes[:2]:
        assert "the measurement's process was killed by SIGKILL" in str(records[mode].reason)
    assert records["well"].environment["variables"]["NCCL_INSIDE"] == "yes"
    assert [rank.node for rank in records["well"].ranks] == ["n1", "n2"]
    assert inside_containers(slurm) == set()
