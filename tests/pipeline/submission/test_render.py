"""The Slurm scripts: their text (golden files), and how they run by hand, under Slurm and for submitit."""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ProjectError
from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.experiments.profile import CLUSTERS, profile_of
from harness.job.launch import command_of
from harness.paths import REPOSITORY
from harness.plan import Pair
from pipeline.submission.queue_job import QueueJob
from pipeline.submission.render import render_script, write_scripts
from tests.made.config_text import MINIMAL, changed, config_of
from tests.made.faults import programs
from tests.made.golden import require_golden
from tests.made.project import alone

GOLDEN = Path(__file__).parent / "golden"
PROJECT = Path("/home/me/jax vs torch")

FULL = (
    MINIMAL.replace("{per_node: 4}", "{gres: nvidia_a100, partition: big, constraint: nvlink, per_node: 4}")
    .replace("    name: train\n", "    name: train\n    devices: 8\n    nodes: 2\n")
    .replace("  a100:", "  h100: {per_node: 8, sbatch_options: [--contiguous]}\n  a100:")
    .replace("torch/bin/python}", "torch/bin/python, setup: [module purge, module load cuda/12.4]}")
    .replace(
        "  time_limit_minutes: 30\n",
        "  time_limit_minutes: 90\n  partition: gpu\n  account: lab 7\n  memory_gb: 64\n"
        "  qos: short\n  sbatch_options: [--exclusive, '--comment=two words #1']\n",
    )
)


def jobs(config: Config, **selection: Any) -> dict[str, Pair]:
    """Of both frameworks, and of each alone."""
    pairs = expand(config, Selection(**selection))
    return {one.name: one for pair in pairs for one in (pair, *map(alone, pair.jobs))}


def render(config: Config, pair: Pair, **paths: Path) -> str:
    defaults = {"config_path": PROJECT / "experiments.yaml", "results": PROJECT / "results"}
    return render_script(pair, config, **{**defaults, **paths}, repository=PROJECT)


def require_script(name: str, text: str) -> None:
    """Compare with tests/pipeline/submission/golden/NAME.sh, where paths of this machine are placeholders."""
    text = text.replace(sys.executable, "/opt/main/bin/python").replace(str(REPOSITORY), "/REPOSITORY")
    require_golden(GOLDEN / f"{name}.sh", text, __file__)


def test_golden_smallest_and_with_everything(tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    found = jobs(config, benchmarks=("cifar10",), use_cases=(3,))
    for name in ("jax_cifar10_3", "torch_cifar10_3", "pair_cifar10_3"):
        require_script(name, render(config, found[f"any/{name}"]))
    config = config_of(FULL, tmp_path)
    job = jobs(config, gpus=("a100",), data="sample", quick=True, force=True)["a100/torch_mnist_1_x8"]
    paths = {"config_path": Path("/home/me/my experiments.yaml"), "results": Path("/scratch/50% full")}
    require_script("a100_torch_mnist_1_everything", render(config, job, **paths))


ON_DEVICES = {"two_gpus": "    devices: 2\n", "two_nodes": "    devices: 8\n    nodes: 2\n"}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_golden_on_several_devices(name: str, tmp_path: Path) -> None:
    text = changed("    name: train\n", f"    name: train\n{ON_DEVICES[name]}")
    [pair] = expand(config_of(text, tmp_path), Selection(gpus=("a100",)))
    require_script(name, render(config_of(text, tmp_path), pair))


def test_golden_in_containers(tmp_path: Path) -> None:
    """The script is as without them: the job starts each process of a framework in its container, by these commands."""
    jax = "{runtime: apptainer, image: /images/jax.sif, setup: [module load apptainer], mounts: [/scratch]}"
    torch = "{runtime: podman, image: 'lab/torch:1', options: [--shm-size=8g]}"
    text = changed("{python: /opt/jax/bin/python}", jax)
    config = config_of(changed("{python: /opt/torch/bin/python}", torch, text), tmp_path)
    [pair] = expand(config, Selection())
    found = [render(config, pair)]
    for plan in pair.jobs:
        words = ["-u", f"{plan.framework}_runner/run.py", "--rank", "0"]
        command = command_of(plan.launch, words, [PROJECT, PROJECT / "results"], name="NAME")
        found.append(f"\n# A process of {plan.framework}: {shlex.join(command)}\n")
    require_script("containers", "".join(found))


@pytest.mark.parametrize("name", sorted(path.stem for path in CLUSTERS.glob("*.yaml")))
def test_golden_of_each_cluster_profile(name: str, tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text(MINIMAL)
    config = load_config(tmp_path / "experiments.yaml", profile_of(name))
    [pair] = expand(config, Selection(gpus=(config.matrix.gpus[0],)))
    require_script(name, render(config, pair))


def test_for_the_cpu_no_gpu_is_asked_for(tmp_path: Path) -> None:
    config = config_of(MINIMAL.replace("  any: {}\n", "  any: {}\n  cpu: {}\n"), tmp_path)
    script = render(config, jobs(config, gpus=("cpu",))["cpu/pair_mnist_1"])
    assert not [line for line in header(script) if "gpu" in line] and " --gpu cpu" in script


def header(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


GIVEN = "#SBATCH --gres=gpu:a100:1", "#SBATCH --time=30", "#SBATCH --cpus-per-task=4", "#SBATCH --requeue"


@pytest.mark.parametrize(
    ("cluster", "gpu", "gone", "new"),
    [
        ("", "gres: none", GIVEN[0], []),
        ("", "gres: untyped", GIVEN[0], ["#SBATCH --gres=gpu:1"]),
        ("", "gres: 1g.10gb", GIVEN[0], ["#SBATCH --gres=gpu:1g.10gb:1"]),
        ("time_limit_minutes:", "", GIVEN[1], []),
        ("cpus_per_task: 8", "cpus_per_task: 16", GIVEN[2], ["#SBATCH --cpus-per-task=16"]),
        ("requeue: false", "", GIVEN[3], ["#SBATCH --no-requeue"]),
        ("memory_gb: 64", "memory_gb: 0", None, ["#SBATCH --mem=0G"]),
        ("account: a", "account: b", None, ["#SBATCH --account=b"]),
        ("constraint: a", "constraint: b&c", None, ["#SBATCH --constraint=b&c"]),
        ("partition: a", "partition: b", None, ["#SBATCH --partition=b"]),
        ("sbatch_options: [--hold]", "sbatch_options: [--x11]", None, ["#SBATCH --hold", "#SBATCH --x11"]),
        ("srun_options: [--mpi=pmix]", "", None, []),
    ],
)
def test_a_setting_of_the_cluster_and_of_a_kind_of_gpu(
    cluster: str, gpu: str, gone: str | None, new: list[str], tmp_path: Path
) -> None:
    """Of one kind of GPU, a value is in place of the cluster's, and a list is added."""
    plain, own = (
        set(header(render(config, expand(config, Selection(gpus=("a100",)))[0])))
        for config in (config_of(MINIMAL, tmp_path), config_of(with_settings(cluster, gpu), tmp_path))
    )
    assert plain >= set(GIVEN)
    assert (plain - own, own - plain) == ({gone} if gone else set(), set(new))


def with_settings(cluster: str, gpu: str = "") -> str:
    old = "  time_limit_minutes: 30\n"
    text = MINIMAL.replace(old, f"{'' if cluster.startswith('time') else old}  {cluster}\n" if cluster else old)
    return text.replace("{per_node: 4}", f"{{per_node: 4, {gpu}}}")


def test_set_up_comes_first_and_its_own_for_each_kind(tmp_path: Path) -> None:
    """Before all else in a script, also in that of a pair; a framework's comes before each of its processes."""
    text = with_settings("setup: [module load a]", "setup: [module load b]")
    config = config_of(text.replace("jax/bin/python}", "jax/bin/python, setup: [module load c]}"), tmp_path)
    for job in jobs(config, gpus=("a100",)).values():
        commands = [line for line in render(config, job).splitlines() if line and not line.startswith("#")]
        assert commands[:4] == ["set -e", "module load a", "module load b", "set +e"]
        assert "module load c" not in commands
        assert {plan.framework: plan.launch.setup for plan in job.jobs}.get("jax") in (("module load c",), None)
    assert config.launch("jax").setup == ("module load a", "module load c")  # outside of a job


def test_the_step_of_several_ranks_takes_a_sites_options(tmp_path: Path) -> None:
    """They are in the plan, and in no measurement's id."""
    with_options = config_of(with_settings("srun_options: [--mpi=pmix]\n  cpu_bind: cores"), tmp_path)
    [jax, other] = (expand(one, Selection())[0].jobs[0] for one in (with_options, config_of(MINIMAL, tmp_path)))
    assert (jax.srun_options, other.srun_options) == (("--cpu-bind=cores", "--mpi=pmix"), ())
    assert [one.id for one in jax.measurements()] == [one.id for one in other.measurements()]


def test_in_a_shell_of_salloc_the_job_goes_to_the_first_node(tmp_path: Path) -> None:
    """With more arguments. By hand elsewhere, and in a batch job: tests/slurm."""
    config = config_of(MINIMAL, tmp_path)
    paths = {"config_path": tmp_path / "experiments.yaml", "results": tmp_path / "results", "repository": tmp_path}
    script = render_script(jobs(config)["any/jax_mnist_1"], config, **paths)
    programs(tmp_path, srun='echo "$@"')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", "-s", "--", "--model", "cnn"]
    said = subprocess.run(command, input=script, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith(
        f"--overlap --nodes=1 --ntasks=1 --cpus-per-task=4 {sys.executable} -u jax_runner/run.py --bench"
    )
    assert said.endswith(" --model cnn\n")


def test_what_is_written(tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    found = [QueueJob.of(pair) for pair in expand(config, Selection(benchmarks=("mnist",), use_cases=(1,)))]

    def written() -> Path:
        paths = {"config_path": tmp_path / "x.yaml", "results": tmp_path / "results", "repository": tmp_path}
        return write_scripts(found, config, **paths)["any/jax_mnist_1"]

    script = written()
    assert script == tmp_path / "slurm_scripts" / "jax_mnist_1.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert (tmp_path / "results" / "slurm").is_dir()
    before = script.stat()
    written()
    after = script.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "an unchanged script is left alone"
    script.write_text("old")
    running = script.open()  # as bash holds it
    written()
    assert running.read() == "old"
    assert script.read_text().startswith("#!/bin/bash\n")
    names = [f"{name}_mnist_1.sh" for name in ("jax", "pair", "torch")]
    assert sorted(path.name for path in script.parent.iterdir()) == names, "of the pair, and of each framework"
    running.close()
    shutil.rmtree(script.parent)
    script.parent.write_text("in the way")
    with pytest.raises(ProjectError, match=r"slurm_scripts: cannot be written: File exists"):
        written()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ partitoin }}\n", "torch.sh.j2:2: 'partitoin' is undefined; a template may use job_name,"),
        ("a\n{% if %}\n", "torch.sh.j2:2: not a valid template: Expected an expression"),
        ("{% extends 'base.j2' %}\n", "there is no template base.j2"),
    ],
)
def test_a_wrong_template(template: str, message: str, tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    (tmp_path / "torch.sh.j2").write_text(template)
    with pytest.raises(ProjectError) as caught:
        render(config, jobs(config)["any/torch_mnist_1"], templates=tmp_path)
    assert message in str(caught.value)
