"""The Slurm scripts: their text (golden files), and how they run by hand, under Slurm and for submitit."""

import os
import re
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
from harness.paths import REPOSITORY
from harness.plan import JobPlan, Pair
from pipeline.submission import render as render_module
from pipeline.submission.render import quote_for_sbatch, render_pair_script, render_script, write_scripts
from tests.made.config_text import MINIMAL, config_of

GOLDEN = Path(__file__).parent / "golden"
PROJECT = Path("/home/me/jax vs torch")

FULL = (
    MINIMAL.replace("{per_node: 4}", "{gres: nvidia_a100, partition: big, constraint: nvlink, per_node: 4}")
    .replace("    name: train\n", "    name: train\n    devices: 8\n    nodes: 2\n")
    .replace("  a100:", "  h100: {per_node: 8, sbatch_options: [--exclusive]}\n  a100:")
    .replace("torch/bin/python}", "torch/bin/python, setup: [module purge, module load cuda/12.4]}")
    .replace(
        "  time_limit_minutes: 30\n",
        "  time_limit_minutes: 90\n  partition: gpu\n  account: lab 7\n  memory_gb: 64\n"
        "  sbatch_options: [--qos=short, '--comment=two words #1']\n",
    )
)


def plans(config: Config, selection: Selection) -> dict[str, JobPlan]:
    return {job.name: job for pair in expand(config, selection) for job in pair.jobs}


def render(config: Config, plan: JobPlan, **paths: Path) -> str:
    defaults = {"config_path": PROJECT / "experiments.yaml", "results": PROJECT / "results"}
    return render_script(plan, config, **{**defaults, **paths}, repository=PROJECT)


def assert_golden(name: str, text: str) -> None:
    """Compares with tests/pipeline/submission/golden/; UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text)
    expected = path.read_text() if path.exists() else ""
    assert text == expected, (
        f"golden/{name} differs from what is rendered now. If the change is meant, accept it with\n"
        f"    UPDATE_GOLDEN=1 python -m pytest tests/pipeline/submission/test_render.py\nand read the diff first."
    )


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_golden_smallest(framework: str, tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    plan = plans(config, Selection(benchmarks=("cifar10",), use_cases=(3,)))[f"any/{framework}_cifar10_3"]
    assert_golden(f"{framework}_cifar10_3.sh", render(config, plan))


def test_for_the_cpu_no_gpu_is_asked_for(tmp_path: Path) -> None:
    config = config_of(MINIMAL.replace("  any: {}\n", "  any: {}\n  cpu: {}\n"), tmp_path)
    selection = {"benchmarks": ("cifar10",), "use_cases": (3,)}
    for_gpu, for_cpu = (
        [render(config, pair.jobs[0]), render_pair(config, pair)]
        for pair in (pair_of(config, gpus=(gpu,), **selection) for gpu in ("any", "cpu"))
    )
    for gpu, cpu in zip(for_gpu, for_cpu, strict=True):
        assert set(header(gpu)) - set(header(cpu)) >= {"#SBATCH --gres=gpu:1"}
        assert not [line for line in header(cpu) if "gpu" in line]
    assert " --gpu cpu" in for_cpu[0]


def test_golden_with_everything(tmp_path: Path) -> None:
    config = config_of(FULL, tmp_path)
    selection = Selection(gpus=("a100",), data="sample", quick=True, force=True)
    text = render(
        config,
        plans(config, selection)["a100/torch_mnist_1"],
        config_path=Path("/home/me/my experiments.yaml"),
        results=Path("/scratch/50% full"),
    )
    assert_golden("a100_torch_mnist_1_everything.sh", text)


def pair_of(config: Config, **selection: Any) -> Pair:
    [pair] = expand(config, Selection(**selection))
    return pair


def render_pair(config: Config, pair: Pair, results: Path = PROJECT / "results") -> str:
    return render_pair_script(pair, config, results=results, repository=PROJECT)


def test_golden_pair(tmp_path: Path) -> None:
    """Three replicates; JAX is first in the first and the last, PyTorch in the second."""
    config = config_of(MINIMAL, tmp_path)
    assert_golden("pair_cifar10_3.sh", render_pair(config, pair_of(config, benchmarks=("cifar10",), use_cases=(3,))))


def header(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def test_the_headers_of_a_pair_differ_only_in_the_jobs_name(tmp_path: Path) -> None:
    config = config_of(FULL, tmp_path)
    both = plans(config, Selection(gpus=("h100",)))
    jax, torch = (header(render(config, both[f"h100/{name}_mnist_1"])) for name in ("jax", "torch"))
    assert jax[0] == "#SBATCH --job-name=jax_mnist_1_h100"
    assert torch[0] == "#SBATCH --job-name=torch_mnist_1_h100"
    assert jax[1:] == torch[1:]
    together = header(render_pair(config, pair_of(config, gpus=("h100",))))
    assert together == ["#SBATCH --job-name=pair_mnist_1_h100", *jax[1:]]
    assert "#SBATCH --gres=gpu:h100:4" in jax
    assert "#SBATCH --partition=gpu" in jax
    assert "#SBATCH --exclusive" in jax
    assert not any("--gpus-per-task" in line for line in jax)


def test_every_header_line_stands_before_the_first_command(tmp_path: Path) -> None:
    """sbatch stops reading options at the first line that is neither blank nor a comment."""
    config = config_of(FULL, tmp_path)
    (lines,) = (render(config, plan).splitlines() for name, plan in plans(config, Selection()).items() if "jax" in name)
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    last_option = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_option < first_command
    assert lines[first_command] == "set -euo pipefail"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--qos=short", "--qos=short"),
        ("--exclusive", "--exclusive"),
        ("--comment=two words", '--comment="two words"'),
        ("a#b", '"a#b"'),
        ('--comment=say "hi"', '--comment="say \\"hi\\""'),
        ("/scratch/results/slurm/%x-%j.out", "/scratch/results/slurm/%x-%j.out"),
    ],
)
def test_quotes_of_the_header(option: str, expected: str) -> None:
    assert quote_for_sbatch(option) == expected


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a blank in its path, whose run.py and submitit only tell how they were called."""
    root = tmp_path / "jax vs torch"
    tell = "import os, sys\nprint(os.getcwd(), sys.argv, os.environ.get('SUBMITIT_EXECUTOR'))\n"
    for path in ("jax_runner/run.py", "submitit/core/_submit.py"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(tell)
    for package in ("submitit", "submitit/core"):
        (root / package / "__init__.py").touch()
    tools = root / "tools"
    tools.mkdir()
    srun = tools / "srun"
    srun.write_text('#!/bin/bash\necho srun\nfor word; do echo "[$word]"; done\n')
    srun.chmod(0o755)
    return root


def script_of(project: Path, folder: Path, devices: int = 1) -> Path:
    text = MINIMAL.replace("/opt/jax/bin/python", f"'{sys.executable}', setup: ['echo \"set up by $USER_UNSET.\"']")
    text = text.replace("    name: train\n", f"    name: train\n    devices: {devices}\n")
    config = config_of(text, folder)
    scripts = write_scripts(
        expand(config, Selection()),
        config,
        config_path=folder / "experiments.yaml",
        results=project / "results",
        repository=project,
    )
    return scripts["any/jax_mnist_1"]


def run(project: Path, *words: str | Path, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SUBMITIT"))}
    kept["PATH"] = f"{project / 'tools'}:{kept['PATH']}"
    done = subprocess.run(
        ["bash", *map(str, words)], env=kept | environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_by_hand_without_slurm(project: Path, tmp_path: Path) -> None:
    arguments = ["jax_runner/run.py", "--benchmark", "mnist", "--use_case", "1"]
    arguments += ["--config", str(tmp_path / "experiments.yaml")]
    assert run(project, script_of(project, tmp_path)) == ["set up by .", f"{project} {arguments} None"]


@pytest.mark.parametrize("devices", [1, 8])
def test_in_a_batch_job_the_script_becomes_the_job(project: Path, tmp_path: Path, devices: int) -> None:
    """Whatever it starts on several devices, it starts itself."""
    variables = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    [_, by_hand] = run(project, script_of(project, tmp_path, devices), **variables)
    assert by_hand.startswith(f"{project} ['jax_runner/run.py', '--benchmark', 'mnist', '--use_case', '1', '--config'")
    folder = "/results/50% jobs"
    [_, worker] = run(project, script_of(project, tmp_path, devices), "slurm", folder, **variables)
    assert worker.endswith(f"_submit.py', '{folder}'] slurm")


def test_in_a_shell_of_salloc_the_job_goes_to_the_first_node(project: Path, tmp_path: Path) -> None:
    lines = run(project, script_of(project, tmp_path), SLURM_JOB_ID="7")
    assert lines[1:8] == [
        *("srun", "[--overlap]", "[--nodes=1]", "[--ntasks=1]", "[--cpus-per-task=4]", f"[{sys.executable}]", "[-u]")
    ]
    assert "[jax_runner/run.py]" in lines


@pytest.mark.parametrize(
    ("second_arm", "expected"),
    [
        ("exit 0", (0, ["torch screening", "jax r0", "torch r0", "torch r1", "jax r1", "jax r2", "torch r2"])),
        ("exit 3", (1, ["torch screening", "jax r0", "torch r0", "torch r1", "jax r1", "jax r2", "torch r2"])),
        ("exit 75", (75, ["torch screening", "jax r0", "torch r0"])),
        ('touch "$2/stopped"; exit 255', (75, ["torch screening", "jax r0", "torch r0"])),
        ("kill -USR2 $PPID; sleep 100", (75, ["torch screening", "jax r0", "torch r0", "scontrol requeue 7"])),
    ],
    ids=["good", "fails", "stopped", "requeued by its worker", "signal before the worker is there"],
)
def test_arms_of_a_pair_for_main(
    project: Path, tmp_path: Path, second_arm: str, expected: tuple[int, list[str]]
) -> None:
    """The frozen scripts of the folders run, not those of slurm_scripts/, and a marker of an earlier start says
    nothing. JAX has one mode, so there is nothing to screen."""
    script_of(project, tmp_path)
    (project / "tools" / "scontrol").write_text(f'#!/bin/bash\necho "scontrol $*" >>"{tmp_path}/calls"\n')
    (project / "tools" / "scontrol").chmod(0o755)
    folders = [tmp_path / f"job of {framework}" for framework in ("jax", "torch")]
    for framework, folder in zip(("jax", "torch"), folders, strict=True):
        for arm in ("screening", "r0", "r1", "r2"):
            (folder / arm).mkdir(parents=True)
            (folder / arm / "stopped").touch()
        special = f"if [[ {framework} == torch && $2 == */r0 ]]; then {second_arm}; fi"
        (folder / "script.sh").write_text(
            f'echo "{framework} ${{2##*/}}" >>"{tmp_path}/calls"; echo "said by $1"; echo error >&2\n{special}\n'
        )
    done = subprocess.run(
        ["bash", str(project / "slurm_scripts" / "pair_mnist_1.sh"), "slurm", *map(str, folders)],
        env=os.environ | {"SLURM_JOB_ID": "7", "PATH": f"{project / 'tools'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, (tmp_path / "calls").read_text().splitlines()) == expected
    assert (folders[0] / "r0" / "7_0_log.out").read_text() == "said by slurm\n"
    assert (folders[0] / "r0" / "7_0_log.err").read_text() == "error\n"


@pytest.mark.parametrize("by", ["main.py", "hand"])
def test_interleaved_arms_are_jaxs(project: Path, tmp_path: Path, by: str) -> None:
    """PyTorch's script only screens; JAX's is told to run both."""
    config = config_of(MINIMAL, tmp_path)
    (pair, *_) = [pair for pair in expand(config, Selection()) if pair.name == "any/pair_mnist_1"]
    plans = tuple(plan.model_copy(update={"is_interleaved": True}) for plan in pair.jobs)
    script = tmp_path / "pair.sh"
    repository = tmp_path / "repository"
    text = render_pair_script(
        pair.model_copy(update={"jobs": plans}), config, results=tmp_path / "results", repository=repository
    )
    script.write_text(text)
    places = [repository / "slurm_scripts", repository / "slurm_scripts"]
    names = ["jax_mnist_1.sh", "torch_mnist_1.sh"]
    if by == "main.py":
        places, names = [tmp_path / "j", tmp_path / "t"], ["script.sh"] * 2
    for framework, place, name in zip(("jax", "torch"), places, names, strict=True):
        for arm in ("screening", "r0", "r1", "r2"):
            (place / arm).mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f'echo "{framework} $*" >>"{tmp_path}/calls"\n')
    arguments = ["slurm", *map(str, places)] if by == "main.py" else ["--force"]
    done = subprocess.run(
        ["bash", str(script), *arguments],
        env=os.environ | {"SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calls = [re.sub(r" --pair \S+", "", line) for line in (tmp_path / "calls").read_text().splitlines()]
    if by == "main.py":
        assert calls == [f"torch slurm {places[1]}/screening"] + [f"jax slurm {places[0]}/r{n}" for n in range(3)]
    else:
        assert calls == ["torch --replicate screening --position 0 --force"] + [
            f"jax --replicate {n} --position {n + 1} --interleaved --force" for n in range(3)
        ]


def test_more_arguments_by_hand(project: Path, tmp_path: Path) -> None:
    script = script_of(project, tmp_path)
    assert run(project, script, "--replicate", "0")[-1].endswith(", '--replicate', '0'] None")


def test_what_is_written(project: Path, tmp_path: Path) -> None:
    script = script_of(project, tmp_path)
    assert script == project / "slurm_scripts" / "jax_mnist_1.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert (project / "results" / "slurm").is_dir()
    before = script.stat()
    script_of(project, tmp_path)
    after = script.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "an unchanged script is left alone"
    script.write_text("old")
    running = script.open()  # as bash holds it
    script_of(project, tmp_path)
    assert running.read() == "old"
    assert script.read_text().startswith("#!/bin/bash\n")
    assert [path.name for path in script.parent.iterdir() if path.suffix == ".tmp"] == []
    running.close()


@pytest.mark.parametrize("slow_file_s", [0.0, 60.0], ids=["many at once", "one after the other"])
def test_a_slow_disk_gets_the_same_scripts(slow_file_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_module, "SLOW_FILE_S", slow_file_s)
    names = "".join(f"  card{number}: {{}}\n" for number in range(10))
    text = MINIMAL.replace("  any: {}\n", f"  any: {{}}\n{names}")
    config = config_of(text, tmp_path)
    selection = Selection(gpus=tuple(f"card{number}" for number in range(10)))
    pairs = expand(config, selection)
    paths = {"config_path": tmp_path / "experiments.yaml", "results": tmp_path / "results", "repository": tmp_path}
    scripts = write_scripts(pairs, config, **paths)
    assert len(scripts) == 3 * len(pairs) > 16  # more than the first ones, which are timed
    assert sorted(scripts.values()) == sorted((tmp_path / "slurm_scripts").rglob("*.*"))
    for plan in (plan for pair in pairs for plan in pair.jobs):
        assert scripts[plan.name].read_text() == render_script(plan, config, **paths)


def test_scripts_that_cannot_be_written(project: Path, tmp_path: Path) -> None:
    (project / "slurm_scripts").write_text("in the way")
    with pytest.raises(ProjectError, match=r"slurm_scripts: cannot be written: File exists"):
        script_of(project, tmp_path)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ partitoin }}\n", "torch.sh.j2:2: 'partitoin' is undefined; a template may use framework, job_name,"),
        ("a\n{% if %}\n", "torch.sh.j2:2: not a valid template: Expected an expression, got 'end of statement block'"),
        ("{% extends 'base.j2' %}\n", "there is no template base.j2"),
    ],
)
def test_a_wrong_template(template: str, message: str, tmp_path: Path) -> None:
    config = config_of(MINIMAL, tmp_path)
    (tmp_path / "torch.sh.j2").write_text(template)
    with pytest.raises(ProjectError) as caught:
        render_script(
            plans(config, Selection())["any/torch_mnist_1"],
            config,
            config_path=PROJECT / "experiments.yaml",
            results=PROJECT / "results",
            templates=tmp_path,
        )
    assert message in str(caught.value)


def test_scripts_are_valid_bash(tmp_path: Path) -> None:
    config = load_config(REPOSITORY / "experiments.yaml")
    for plan in plans(config, Selection()).values():
        subprocess.run(["bash", "-n"], input=render(config, plan), text=True, check=True)
    for pair in expand(config, Selection()):
        subprocess.run(["bash", "-n"], input=render_pair(config, pair), text=True, check=True)
