"""Cells grouped into jobs of whole nodes, by hand."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.paths import JobFolder
from harness.plan import FRAMEWORKS
from pipeline.submission.estimate import estimates_of
from pipeline.submission.queue_job import QueueJob, pairs_of
from pipeline.submission.render import render_node
from pipeline.submission.submit import _left_of
from pipeline.submission.whole_nodes import whole_nodes, whole_nodes_in_words
from pipeline.watching.jobs import JobState
from tests.made.project import FakeProject, alone, make_project, small_config
from tests.pipeline.submission.test_spread import pair_of


@pytest.fixture
def project(tmp_path: Path) -> FakeProject:
    """Four GPUs in a node."""
    project = make_project(tmp_path)
    gpus = {name: gpu.model_copy(update={"per_node": 4}) for name, gpu in project.config.gpus.items()}
    return FakeProject(root=project.root, config=project.config.model_copy(update={"gpus": gpus}))


def test_cells_of_one_length_share_a_node(project: FakeProject) -> None:
    """Six cells of one row, of 1 to 6 modes, on nodes of four GPUs: the four longest first. The two others are one row
    each, which is never cut, so two GPUs of their node have nothing to do."""
    pairs = [pair_of(project, {8: modes}, use_case=modes) for modes in range(1, 7)]
    jobs = whole_nodes(pairs, project.config, None)
    assert [[pair.cell.use_case for pair in job.pairs] for job in jobs] == [[6, 5, 4, 3], [2, 1]]
    assert [(job.name, job.gpus) for job in jobs] == [("any/node_1", 4), ("any/node_2", 4)]
    assert [job.alone and job.alone.cell.use_case for job in jobs] == [3, None]
    assert [pair.cell.use_case for pair in pairs_of(jobs)] == [6, 5, 4, 3, 2, 1]


def test_gpus_without_a_cell_get_rows_of_another(project: FakeProject) -> None:
    """Two cells, of five rows and of one, on four GPUs: three parts and one."""
    pairs = [pair_of(project, dict.fromkeys((8, 16, 32, 64, 128), 1)), pair_of(project, {8: 1}, 5)]
    [job] = whole_nodes(pairs, project.config, None)
    parts = [f"any/pair_mnist_3_part{number}" for number in (1, 2, 3)]
    assert sorted(pair.name for pair in job.pairs) == [*parts, "any/pair_mnist_5"]


def test_several_gpus_are_a_job_of_their_own_and_how_many_a_node_has_must_be_known(project: FakeProject) -> None:
    pair = pair_of(project, {8: 1})
    several = pair.model_copy(update={"cell": pair.cell.model_copy(update={"devices": 2})})
    assert whole_nodes([several], project.config, None) == [QueueJob.of(several)]
    words = r"cluster\.whole_nodes in .*: how many GPUs has a node\? Set gpus\.any\.per_node"
    with pytest.raises(ConfigError, match=words):
        whole_nodes([pair], small_config(), None)


def test_a_cell_of_which_one_framework_is_left_stays_on_its_node(project: FakeProject) -> None:
    """And what is measured once more without neighbours may be all that is left."""
    short, long = (pair_of(project, {8: modes}, use_case=modes) for modes in (1, 2))
    [job] = whole_nodes([short, long], project.config, None)
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
    of_jax = [alone(pair.jobs[0]) for pair in (long, short)]
    assert (left.name, left.pairs, left.alone) == ("any/node_1", (of_jax[0], of_jax[1]), short)
    left = _left_of(job, project.results, "slurm", under_way["jax"] + under_way["torch"], [])
    assert left is not None and (left.pairs, left.alone) == ((), short)


def test_its_script_and_sentence(project: FakeProject) -> None:
    pairs = [pair_of(project, {8: modes}, use_case=modes) for modes in (1, 2)]
    [job] = whole_nodes(pairs, project.config, None)
    script = render_node(job, project.config, results=project.results.root, repository=project.root)
    folder = project.root / "slurm_scripts"
    plans = f"--plan {folder}/pair_mnist_2.json --plan {folder}/pair_mnist_1.json --alone {folder}/pair_mnist_1.json"
    assert f"-m harness.job --lanes {plans}" in script
    assert f"srun --overlap --nodes=1 --ntasks=1 --cpus-per-task={4 * project.config.cluster.cpus_per_task} " in script
    asked = ("nodes=1", "ntasks-per-node=4", "gres=gpu:4", "exclusive", "mem=0G", "job-name=node_1")
    assert {f"#SBATCH --{option}" for option in asked} <= set(script.splitlines())
    estimates = estimates_of(job.pairs, project.results, "slurm")
    words = whole_nodes_in_words([job], dict(zip((one.name for one in job.pairs), estimates, strict=True)))
    assert "1 job on all 4 GPUs of a node, 2 cells or parts of cells side by side" in words
    assert words.endswith("without neighbours, to see what these cost: mnist per sample gradients.")
