"""What is handed to submitit and Slurm, and what submitit must keep for that to work."""

import inspect
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.core import PicklingExecutor
from submitit.slurm.slurm import SlurmExecutor

from harness.errors import SubmissionError
from harness.experiments.model import FrameworkConfig
from harness.paths import JobFolder, Results
from harness.plan import Framework, MeasurementSettings, Pair, Screening
from harness.results.record import write_record
from pipeline.submission.pairing import Arm, arms_of, as_paired, is_interleaved
from pipeline.submission.slurm import RunScript, sbatch_command, variables_in_words, without_inherited_job
from pipeline.submission.submit import _lane, choose_executor, find_twin, is_measured, run_arguments, script_name, split
from pipeline.watching.jobs import JobState
from tests.made.project import FakeProject, make_project
from tests.made.records import bare_record


def test_submitit_still_has_the_methods_that_are_overridden() -> None:
    """When this fails after an update of submitit, read pipeline/submission/slurm.py against its new source."""
    assert submitit.__version__.startswith("1.5.")
    parameters = {
        (SlurmExecutor, "_make_submission_file_text"): ["self", "command", "uid"],
        (SlurmExecutor, "_make_submission_command"): ["self", "submission_file_path"],
        (PicklingExecutor, "_submit_command"): ["self", "command"],
    }
    for (owner, name), expected in parameters.items():
        assert list(inspect.signature(getattr(owner, name)).parameters) == expected, name
    # Where the overridden methods are called from.
    submit_source = inspect.getsource(PicklingExecutor._submit_command)
    assert "self._make_submission_file_text(command, tmp_uuid)" in submit_source
    assert "self._make_submission_command(submission_file_path)" in submit_source
    assert "self._submit_command(self._submitit_command_str)" in inspect.getsource(
        PicklingExecutor._internal_process_submissions
    )


def test_sbatch_command() -> None:
    script, folder = Path("/repo/slurm_scripts/jax_mnist_3.sh"), Path("/repo/results/jobs/any/jax-1")
    assert sbatch_command(script, folder) == [
        "sbatch",
        "--output=/repo/results/jobs/any/jax-1/%j_0_log.out",
        "--error=/repo/results/jobs/any/jax-1/%j_0_log.err",
        "/repo/slurm_scripts/jax_mnist_3.sh",
        "slurm",
        "/repo/results/jobs/any/jax-1",
    ]
    assert sbatch_command(script, folder, after="12")[3] == "--dependency=afterany:12"
    assert sbatch_command(script, Path("/jobs/jax"), Path("/jobs/torch"))[1:] == [
        "--output=/jobs/jax/%j_pair.out",
        "--error=/jobs/jax/%j_pair.err",
        "/repo/slurm_scripts/jax_mnist_3.sh",
        "slurm",
        "/jobs/jax",
        "/jobs/torch",
    ]
    assert sbatch_command(script, Path("/100%/j"))[1] == "--output=/100%%/j/%j_0_log.out"


VARIABLES = ("SLURM_CPU_BIND", "SRUN_CPUS_PER_TASK", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SLURM_CONF", "MY_SLURM_X")


@pytest.mark.parametrize(
    ("job", "left", "words"),
    [
        (
            None,
            ["MY_SLURM_X", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SLURM_CONF"],
            "Options of sbatch from this shell, which beat experiments.yaml: SBATCH_ACCOUNT, SBATCH_PARTITION",
        ),
        (
            "77",
            ["MY_SLURM_X", "SLURM_CONF"],
            "Kept from sbatch, as the job in which this runs may have set them: SBATCH_ACCOUNT, SBATCH_PARTITION",
        ),
    ],
)
def test_the_slurm_job_around_main_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, job: str | None, left: list[str], words: str
) -> None:
    prefixes = ("SLURM_", "SRUN_", "SBATCH_", "MY_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    assert variables_in_words() is None
    for name in VARIABLES:
        monkeypatch.setenv(name, "x")
    if job is not None:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    script = f"import os; print(*sorted(name for name in os.environ if name.startswith({prefixes})))"
    command = [*without_inherited_job(), sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == left
    assert variables_in_words() == words


def test_arguments_of_the_job(tmp_path: Path) -> None:
    results = Results(root=tmp_path / "results")
    folder = JobFolder(root=tmp_path / "results/jobs/any/torch_mnist_3-x")
    assert run_arguments(folder, results) == [
        "--results",
        f"{tmp_path}/results",
        "--job-folder",
        f"{tmp_path}/results/jobs/any/torch_mnist_3-x",
    ]
    arm = Arm(position=5, framework="torch", share=2)
    of_arm = run_arguments(folder, results, arm)
    assert of_arm[-4:] == ["--replicate", "2", "--position", "5"]
    assert run_arguments(folder, results, arm, "run-1") == [*of_arm, "--pair", "run-1"]
    screening = Arm(position=0, framework="torch", share="screening")
    assert run_arguments(folder, results, screening)[-4:] == ["--replicate", "screening", "--position", "0"]


def test_a_job_is_the_script_in_the_workers_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    before = signal.getsignal(signal.SIGTERM)
    script = tmp_path / "run.py"
    script.write_text("import os, sys\nprint(os.getpid(), sys.argv)\nsys.exit(int(sys.argv[1]))\n")
    try:
        RunScript(str(script), ["0"])()
        with pytest.raises(SystemExit) as end:
            RunScript(str(script), ["75", "a b"])()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 75


def test_run_script_survives_pickling_and_marks_that_it_stopped(tmp_path: Path) -> None:
    run = RunScript("jax_runner/run.py", ["a b"], stop_marker=tmp_path / "stopped")
    copy = pickle.loads(pickle.dumps(run)).checkpoint().function
    assert (copy.script, copy.arguments) == ("jax_runner/run.py", ("a b",))
    assert (tmp_path / "stopped").exists()


def _programs(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_choose_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_executor("auto") == "local"
    assert choose_executor("local") == "local"
    with pytest.raises(SubmissionError, match="--executor local"):
        choose_executor("slurm")
    monkeypatch.setenv("PATH", _programs(tmp_path, "sbatch", "srun"))
    assert [choose_executor(wanted) for wanted in ("auto", "slurm", "local")] == ["slurm", "slurm", "local"]


SBATCH_WITHOUT_CONTROLLER = (
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
)


def test_a_controller_that_does_not_answer_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once: sbatch tries for a minute before it gives up."""
    project = make_project(tmp_path)
    _programs(tmp_path, "srun")
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\necho called >> {tmp_path}/calls\necho "{SBATCH_WITHOUT_CONTROLLER}" >&2\nexit 1\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SubmissionError) as caught:
        project.submit(project.plan(use_case=1), project.plan(use_case=2), executor="slurm")
    lines = str(caught.value).splitlines()
    assert lines[0] == "Slurm's controller did not answer for 1 of 2 jobs."
    assert lines[1] == f"  any/torch_mnist_1: {SBATCH_WITHOUT_CONTROLLER}"
    assert lines[2:] == [
        "  not tried after that: any/torch_mnist_2",
        "Nothing was submitted.",
        "Nothing has to be changed. Run the same command again when `sinfo` answers on this machine.",
    ]
    assert (tmp_path / "calls").read_text() == "called\n"
    assert project.results.job_folders() == []


def test_the_order_of_a_pair(tmp_path: Path) -> None:
    """A B B A A B: each framework is first in every other replicate."""
    plans = tuple(
        project_plan.model_copy(update={"protocol": MeasurementSettings(replicates=4)})
        for project_plan in map(make_project(tmp_path).plan, ("jax", "torch"))
    )
    arms = arms_of(Pair(cell=plans[0].cell, jobs=plans))
    assert [f"{arm.framework} {arm.name}" for arm in arms] == [
        *("jax r0", "torch r0", "torch r1", "jax r1"),
        *("jax r2", "torch r2", "torch r3", "jax r3"),
    ]
    assert [arm.position for arm in arms] == list(range(8))


def interleaved(project: FakeProject, **of_cell: Any) -> Pair:
    plans = tuple(map(project.plan, ("jax", "torch")))
    cell = plans[0].cell.model_copy(update=of_cell)
    screening = Screening(always=("step.eager",))
    changes = {"cell": cell, "screening": screening, "protocol": MeasurementSettings(replicates=2)}
    return Pair(cell=cell, jobs=tuple(plan.model_copy(update=changes) for plan in plans))


def test_an_interleaved_pair_has_an_arm_for_both(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    ([pair], refused) = as_paired([interleaved(project)], "interleaved", project.config.cluster)
    assert refused == {}
    assert [arm.label for arm in arms_of(pair)] == [
        *("jax, screening", "torch, screening", "jax and torch in turns, r0", "jax and torch in turns, r1")
    ]
    assert split(pair, "interleaved") == [pair]
    folders = [JobFolder(root=tmp_path / name) for name in ("j", "t")]
    *_, last = arms_of(pair)
    arguments = run_arguments(folders[0], project.results, last, partner=folders[1])
    assert arguments[-6:] == ["--replicate", "1", "--position", "3", "--interleaved", str(folders[1].root)]
    # One that is alone, as the other framework is measured already, has no arms.
    alone = pair.model_copy(update={"jobs": pair.jobs[:1]})
    assert split(alone, "interleaved") == [alone]


def test_where_processes_cannot_take_turns_the_jobs_do_and_the_reason_is_told(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    several, one = interleaved(project, devices=2), interleaved(project)
    pairs, refused = as_paired([several, one], "interleaved", project.config.cluster)
    assert [[plan.is_interleaved for plan in pair.jobs] for pair in pairs] == [[False, False], [True, True]]
    [(reason, names)] = refused.items()
    assert reason.startswith("on several devices ") and names == [several.cell.name]
    assert len(arms_of(pairs[0])) == 2 + 2 * 2

    apart = project.config.cluster.model_copy(
        update={"frameworks": {"jax": FrameworkConfig(python="/jax/python"), "torch": FrameworkConfig()}}
    )
    [pair], refused = as_paired([one], "interleaved", apart)
    assert not pair.jobs[0].is_interleaved
    assert list(refused) == ["cluster.frameworks gives the two a Python or a setup of their own, and one job runs both"]
    assert as_paired([several, one], "together", apart) == ([several, one], {})


def test_by_itself_processes_take_turns_on_a_cpu_where_nothing_is_screened(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    screened = interleaved(project, gpu="cpu")
    on_cpu, anywhere, several = (
        pair.model_copy(update={"jobs": tuple(plan.model_copy(update={"screening": None}) for plan in pair.jobs)})
        for pair in (screened, interleaved(project), interleaved(project, gpu="cpu", devices=2))
    )

    def takes_turns(*pairs: Pair, is_on_cpu: bool = False) -> list[bool]:
        paired, refused = as_paired(pairs, "auto", project.config.cluster, is_on_cpu=is_on_cpu)
        assert refused == {}  # nobody has asked for turns
        return [is_interleaved(pair) for pair in paired]

    assert takes_turns(screened, on_cpu, anywhere, several) == [False, True, False, False]
    assert takes_turns(screened, on_cpu, anywhere, several, is_on_cpu=True) == [False, True, True, False]


@pytest.mark.parametrize(
    ("screening", "expected"),
    [
        (("jax", "torch"), ["jax screening", "torch screening", "jax r0", "torch r0"]),
        (("torch",), ["torch screening", "jax r0", "torch r0"]),
    ],
)
def test_screenings_come_before_all_replicates(tmp_path: Path, screening: tuple[str, ...], expected: list[str]) -> None:
    plans = tuple(
        plan.model_copy(
            update={"screening": Screening(always=("step.eager",)) if plan.framework in screening else None}
        )
        for plan in map(make_project(tmp_path).plan, ("jax", "torch"))
    )
    arms = arms_of(Pair(cell=plans[0].cell, jobs=plans))
    assert [f"{arm.framework} {arm.name}" for arm in arms] == expected
    assert [arm.position for arm in arms] == list(range(len(expected)))


def with_headlines(project: FakeProject, replicates: int = 3, modes: int = 2, *, same: bool = True) -> Pair:
    """The headline modes are JAX's `vmap.jit` and PyTorch's `vmap.compiled`."""
    headlines: dict[Framework, str] = {"jax": "vmap.jit", "torch": "vmap.compiled"}
    jobs = []
    for framework, headline in headlines.items():
        plan = project.plan(framework)
        batch_size = 8 if same or framework == "jax" else 16
        of_mode = {"batch_size": batch_size, "execution_mode": headline}
        variants = [plan.variants[0].model_copy(update={"execution_mode": "other"})] * (modes - 1)
        variants.append(plan.variants[0].model_copy(update=of_mode))
        changes = {"variants": tuple(variants), "protocol": MeasurementSettings(replicates=replicates)}
        jobs.append(plan.model_copy(update=changes | {"screening": Screening(always=(headline,))}))
    return Pair(cell=jobs[0].cell, jobs=tuple(jobs))


def arm_labels(pair: Pair) -> list[str]:
    return [f"{arm.framework} {arm.name}" for arm in arms_of(pair)]


def test_two_replicates_of_the_headline_pair_come_before_the_screening(tmp_path: Path) -> None:
    """The last two, B A A B here: replicate 0 has its warm start, which a first ratio need not wait for."""
    project = make_project(tmp_path)
    pair = with_headlines(project)
    assert arm_labels(pair) == [
        *("torch first-1", "jax first-1", "jax first-2", "torch first-2", "jax screening", "torch screening"),
        *("jax r0", "torch r0", "torch r1", "jax r1", "jax r2", "torch r2"),
    ]
    arms = arms_of(pair)
    assert [arm.position for arm in arms] == list(range(12))
    folder = JobFolder(root=tmp_path / "job")
    arguments = run_arguments(folder, Results(root=tmp_path), arms[0])
    assert arguments[-4:] == ["--replicate", "first-1", "--position", "0"]
    assert arm_labels(with_headlines(project, replicates=2))[:4] == [
        *("jax first-0", "torch first-0", "torch first-1", "jax first-1")
    ]


def test_nothing_comes_first_where_it_would_give_no_ratio_sooner(tmp_path: Path) -> None:
    """One replicate; one variant; different work; processes in turns, whose partner the screening chooses."""
    project = make_project(tmp_path)
    ([in_turns], _) = as_paired([with_headlines(project)], "interleaved", project.config.cluster)
    others = [
        *(with_headlines(project, replicates=1), with_headlines(project, modes=1)),
        *(with_headlines(project, same=False), in_turns),
    ]
    for pair in others:
        assert not any("first" in label for label in arm_labels(pair))


def test_only_two_needed_jobs_share_an_allocation(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    jax, torch = project.plan("jax"), project.plan("torch")
    pair = Pair(cell=jax.cell, jobs=(jax, torch))
    alone = pair.model_copy(update={"jobs": (torch,)})
    assert split(pair, "together") == [pair]
    assert [part.jobs for part in split(pair, "separate")] == [(jax,), (torch,)]
    assert split(alone, "together") == [alone]
    assert split(pair.model_copy(update={"jobs": ()}), "together") == []
    assert (script_name(pair), script_name(alone)) == ("any/pair_mnist_3", "any/torch_mnist_3")


def test_lanes_keep_the_number_of_parallel_jobs() -> None:
    """With two lanes job 3 waits for job 1, job 4 for job 2, job 5 for job 3."""
    ids = ["1", "2", "3", "4"]
    assert [_lane(ids[:count], 2) for count in range(5)] == [None, None, "1", "2", "3"]
    assert _lane(ids, None) is None


def _record_all(project: FakeProject, results: Results, scheduler: str, **settings: int) -> None:
    for measurement in project.plan(**settings).measurements():
        write_record(bare_record(measurement, environment={"scheduler": scheduler}), results.new_record(measurement))


def test_only_records_of_the_same_scheduler_spare_a_job(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    _record_all(project, project.results, "local")
    assert is_measured(project.plan(), project.results, "local")
    assert not is_measured(project.plan(), project.results, "slurm")
    assert not is_measured(project.plan(chunk_size=8), project.results, "local")
    assert not is_measured(project.plan(measurements=3), project.results, "local")  # one is missing


def test_a_twin_makes_the_same_measurements(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    active = JobState(folder=JobFolder(root=tmp_path / "x"), plan=project.plan("jax"), state="queued")
    broken = JobState(folder=JobFolder(root=tmp_path / "y"), plan=None, state="queued")
    assert find_twin(project.plan("jax"), [broken, active]) is active
    assert find_twin(project.plan("torch"), [active]) is None
    assert find_twin(project.plan("jax", gpu="a100"), [active]) is None
    assert find_twin(project.plan("jax", chunk_size=8), [active]) is None
    assert find_twin(project.plan("jax", measurements=3), [active]) is None
