"""Cells grouped into jobs of whole nodes, by hand, and the script of such a job."""

import subprocess
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.experiments.model import NO_GRES
from harness.job.slurm_step import GPU_SLOT
from harness.paths import JobFolder
from harness.plan import FRAMEWORKS, Pair
from pipeline.submission.estimate import estimates_of
from pipeline.submission.queue_job import QueueJob, pairs_of
from pipeline.submission.render import render_node
from pipeline.submission.submit import _left_of
from pipeline.submission.whole_nodes import whole_nodes, whole_nodes_in_words
from pipeline.watching.jobs import JobState
from tests.made.faults import programs
from tests.made.project import BehavingProject, alone, small_config
from tests.made.report_records import plan


@pytest.fixture
def project(tmp_path: Path) -> BehavingProject:
    """Four GPUs in a node."""
    return with_gpus(BehavingProject(root=tmp_path), per_node=4)


def with_gpus(project: BehavingProject, **changes: object) -> BehavingProject:
    gpus = {name: gpu.model_copy(update=changes) for name, gpu in project.config.gpus.items()}
    return BehavingProject(root=project.root, config=project.config.model_copy(update={"gpus": gpus}))


def pair_of(project: BehavingProject, modes: int) -> Pair:
    """A cell of one row with so many modes in both frameworks; its use case has the same number."""

    cell = project.plan(use_case=modes).cell.model_copy(update={"use_case_name": "train"})
    names = [f"step.{number}" for number in range(modes)]
    plans = tuple(plan(framework, *names, cell=cell) for framework in FRAMEWORKS)
    return Pair(cell=plans[0].cell, jobs=plans)


def script_of(project: BehavingProject, *modes: int) -> str:
    [job] = whole_nodes([pair_of(project, number) for number in modes], project.config)
    return render_node(job, project.config, results=project.results.root, repository=project.root)


def test_cells_of_similar_length_share_a_node(project: BehavingProject) -> None:
    """Six cells, of 1 to 6 modes, on nodes of four GPUs: the four longest first."""
    jobs = whole_nodes([pair_of(project, modes) for modes in range(1, 7)], project.config)
    assert [[pair.cell.use_case for pair in job.pairs] for job in jobs] == [[6, 5, 4, 3], [2, 1]]
    assert [(job.name, job.gpus) for job in jobs] == [("any/node_1", 4), ("any/node_2", 4)]
    assert [pair.cell.use_case for pair in pairs_of(jobs)] == [6, 5, 4, 3, 2, 1]


def test_several_gpus_are_a_job_of_their_own_and_how_many_a_node_has_must_be_known(project: BehavingProject) -> None:
    pair = pair_of(project, 1)
    several = pair.model_copy(update={"cell": pair.cell.model_copy(update={"devices": 2})})
    assert whole_nodes([several], project.config) == [QueueJob.of(several)]
    words = r"cluster\.whole_nodes in .*: how many GPUs has a node\? Set gpus\.any\.per_node"
    with pytest.raises(ConfigError, match=words):
        whole_nodes([pair], small_config())


def test_a_cell_of_which_one_framework_is_left_stays_on_its_node(project: BehavingProject) -> None:
    short, long = (pair_of(project, modes) for modes in (1, 2))
    [job] = whole_nodes([short, long], project.config)
    under_way = {
        framework: [
            JobState(folder=project.results.new_job_folder(one), pair=one, state="running")
            for one in (alone(pair.jobs[place]) for pair in (short, long))
        ]
        for place, framework in enumerate(FRAMEWORKS)
    }
    folders: list[JobFolder] = []
    left = _left_of(job, project.results, "slurm", under_way["torch"], folders)
    assert left is not None and folders == [one.folder for one in under_way["torch"][::-1]]
    assert (left.name, left.pairs) == ("any/node_1", (alone(long.jobs[0]), alone(short.jobs[0])))
    assert _left_of(job, project.results, "slurm", under_way["jax"] + under_way["torch"], []) is None


def test_what_its_script_asks_of_slurm(project: BehavingProject) -> None:
    """All of the node for the job, and one GPU for each step; where Slurm counts none, the script tells them apart."""
    script = script_of(project, 1, 2)
    asked = ("nodes=1", "ntasks-per-node=4", "gres=gpu:4", "exclusive", "mem=0G", "job-name=node_1")
    assert {f"#SBATCH --{option}" for option in asked} <= set(script.splitlines())
    folder = project.root / "slurm_scripts"
    assert f"\nplans=({folder}/pair_mnist_2.json {folder}/pair_mnist_1.json)\n" in script
    assert "--cpus-per-task=1 --mem=0 " in script and "\nstep+=(--gres=gpu:1)\n" in script
    assert f"\nexport {GPU_SLOT}= " in script and "CUDA_VISIBLE_DEVICES" not in script
    assert ' && exec scontrol requeue "$SLURM_JOB_ID"\n' in script
    uncounted = script_of(with_gpus(project.with_cluster(requeue=False), gres=NO_GRES), 1, 2)
    assert "gres" not in uncounted and "\n    export CUDA_VISIBLE_DEVICES=$((gpu++))  #" in uncounted
    assert "scontrol" not in uncounted


def test_by_hand_without_slurm_one_cell_after_the_other(project: BehavingProject, tmp_path: Path) -> None:
    """And one that fails costs no other."""
    (tmp_path / "bin").mkdir()
    programs(tmp_path / "bin", python='echo "$*"; case "$*" in *mnist_2*) exit 1;; esac')
    script = script_of(project, 1, 2).replace("\nrun=(", f"\nrun=({tmp_path}/bin/python ", 1)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 1, done.stderr
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == ["pair_mnist_2.json", "pair_mnist_1.json"]


def test_its_sentence(project: BehavingProject) -> None:
    [job] = whole_nodes([pair_of(project, modes) for modes in (1, 2)], project.config)
    estimates = estimates_of(job.pairs, project.results, "slurm")
    words = whole_nodes_in_words([job], dict(zip((one.name for one in job.pairs), estimates, strict=True)))
    assert words.startswith(
        "Whole nodes: 1 job on all 4 GPUs of a node, 2 cells, one on each GPU; the longest node is "
    )
