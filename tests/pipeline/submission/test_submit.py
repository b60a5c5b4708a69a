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
from submitit.core.job_environment import SignalHandler
from submitit.core.utils import DelayedSubmission, UncompletedJobError
from submitit.slurm.slurm import SlurmExecutor, SlurmJobEnvironment

from harness.errors import SubmissionError
from harness.paths import JobFolder
from harness.plan import FRAMEWORKS, Pair
from harness.results.record import write_record
from pipeline.submission.queue_job import paired
from pipeline.submission.slurm import RunJob, ScriptSlurm, sbatch_command, variables_in_words, without_inherited_job
from pipeline.submission.submit import _lane, choose_executor, job_that_measures, measured_with
from pipeline.watching.jobs import JobState
from tests.made.faults import programs
from tests.made.project import BehavingProject, alone
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


def test_sbatch_command() -> None:
    logs = ["--output=/100%%/j/%j_0_log.out", "--error=/100%%/j/%j_0_log.err"]
    command = sbatch_command(Path("/s.sh"), Path("/100%/j"), after="12")
    assert command == ["sbatch", *logs, "--dependency=afterany:12", "/s.sh", "slurm", "/100%/j"]


def test_the_slurm_job_around_main_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the options of sbatch only where such a job may have set them: of a user's shell, they are meant."""
    prefixes = ("SLURM_", "SRUN_", "SBATCH_", "MY_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    assert variables_in_words() is None
    for name in ("SLURM_CPU_BIND", "SRUN_CPUS_PER_TASK", "SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_CONF", "MY_SLURM_X"):
        monkeypatch.setenv(name, "x")

    def left() -> list[str]:
        script = f"import os; print(*sorted(name for name in os.environ if name.startswith({prefixes})))"
        command = [*without_inherited_job(), sys.executable, "-c", script]
        return subprocess.run(command, capture_output=True, text=True).stdout.split()

    assert left() == ["MY_SLURM_X", "SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_CONF"]
    assert str(variables_in_words()).startswith("Options of sbatch from this shell, which beat experiments.yaml: ")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert left() == ["MY_SLURM_X", "SLURM_CONF"]
    words = "Kept from sbatch, as the job in which this runs may have set them: SBATCH_ACCOUNT, SBATCH_QOS"
    assert variables_in_words() == words


def test_a_job_runs_in_the_workers_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGTERM Slurm says that it will kill the worker, which must live until then to be requeued."""
    given: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        given.append(arguments)
        return int(arguments[0])

    monkeypatch.setattr("harness.job.main.main", main)
    before = signal.getsignal(signal.SIGTERM)
    try:
        RunJob(["0"])()
        with pytest.raises(SystemExit, match="75"):
            pickle.loads(pickle.dumps(RunJob(["75", "a b"]))).checkpoint().function()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert given == [["0"], ["75", "a b"]]


def test_job_is_requeued_after_five_time_limits_and_fails_after_the_sixth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By submitit's own signal handler, with stand-ins for Slurm's programs. Each new start reads the job's pickle."""
    programs(tmp_path, srun="", sbatch="echo Submitted batch job 12", scontrol='echo "$@" >> $here/calls')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.sh").touch()
    job = ScriptSlurm(tmp_path / "job", tmp_path / "job.sh").submit(RunJob(["0"]))

    def reach_time_limit() -> None:
        delayed = DelayedSubmission.load(job.paths.submitted_pickle)
        SignalHandler(SlurmJobEnvironment(), job.paths, delayed).checkpoint_and_try_requeue(signal.SIGUSR2)

    for start in range(1, 6):
        with pytest.raises(SystemExit):
            reach_time_limit()
        assert (tmp_path / "calls").read_text().splitlines() == ["requeue 12"] * start
    with pytest.raises(UncompletedJobError, match="not requeued because: timed-out too many times"):
        reach_time_limit()
    assert len((tmp_path / "calls").read_text().splitlines()) == 5


def test_choose_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_executor("auto") == "local"
    with pytest.raises(SubmissionError, match="--executor local"):
        choose_executor("slurm")
    programs(tmp_path, sbatch="", srun="")
    assert [choose_executor(wanted) for wanted in ("auto", "slurm", "local")] == ["slurm", "slurm", "local"]


def test_a_silent_controller_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once: sbatch tries for a minute before it gives up."""
    project = BehavingProject(root=tmp_path)
    words = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    programs(tmp_path, srun="", sbatch=f'echo called >> $here/calls; echo "{words}" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SubmissionError) as caught:
        project.submit(project.plan(use_case=1), project.plan(use_case=2), executor="slurm")
    lines = str(caught.value).splitlines()
    refused = f"  any/torch_mnist_1: {words}"
    assert lines[:3] == ["Submitted 0 of 2 jobs.", refused, "  not tried after that: any/torch_mnist_2"]
    assert lines[3].startswith("Nothing has to be changed. Wait until `sinfo` answers on this machine, and run ")
    assert (tmp_path / "calls").read_text() == "called\n"
    assert project.results.job_folders() == []


def pair_of(project: BehavingProject, **of_cell: Any) -> Pair:
    plans = [project.plan(framework=framework) for framework in FRAMEWORKS]
    cell = plans[0].cell.model_copy(update=of_cell)
    return Pair(cell=cell, jobs=tuple(plan.model_copy(update={"cell": cell}) for plan in plans))


@pytest.mark.parametrize(
    ("pairing", "is_on_cpu", "in_turns"),
    [
        ("together", True, [False, False, False, False]),
        ("interleaved", False, [True, True, False, False]),
        ("auto", False, [True, False, False, False]),
        ("auto", True, [True, True, False, False]),
    ],
)
def test_whose_processes_take_turns(pairing: Any, is_on_cpu: bool, in_turns: list[bool], tmp_path: Path) -> None:
    """By itself on a CPU; never those of several devices, or of one framework."""
    project = BehavingProject(root=tmp_path)
    on_cpu, anywhere, several = pair_of(project, gpu="cpu"), pair_of(project), pair_of(project, gpu="cpu", devices=2)
    pairs = [on_cpu, anywhere, several, alone(on_cpu.jobs[0])]
    assert [paired(pair, pairing, is_on_cpu=is_on_cpu).is_interleaved for pair in pairs] == in_turns
    assert str(several.why_not_interleaved).startswith("on several devices ")


def test_lanes_keep_the_number_of_parallel_jobs() -> None:
    """With two lanes job 3 waits for job 1, job 4 for job 2, job 5 for job 3."""
    ids = ["1", "2", "3", "4"]
    assert [_lane(ids[:count], 2) for count in range(5)] == [None, None, "1", "2", "3"]
    assert _lane(ids, None) is None


def test_only_records_of_the_same_scheduler_spare_a_job(tmp_path: Path) -> None:
    project = BehavingProject(root=tmp_path)
    for measurement in project.plan().measurements():
        made = bare_record(measurement, environment={"scheduler": "local"})
        write_record(made, project.results.new_record(measurement))
    assert measured_with([project.plan()], project.results, "local") is not None
    assert measured_with([project.plan()], project.results, "slurm") is None
    assert measured_with([project.plan(pid=Path("other"))], project.results, "local") is None
    assert measured_with([project.plan(replicates=2)], project.results, "local") is None  # one is missing


def test_the_same_measurements_are_not_submitted_twice(tmp_path: Path) -> None:
    project = BehavingProject(root=tmp_path)
    active = JobState(folder=JobFolder(root=tmp_path / "x"), pair=pair_of(project), state="queued")
    broken = JobState(folder=JobFolder(root=tmp_path / "y"), pair=None, state="queued")
    for framework in FRAMEWORKS:
        assert job_that_measures(project.plan(framework=framework), [broken, active]) is active
    one = JobState(folder=JobFolder(root=tmp_path / "x"), pair=alone(project.plan(framework="jax")), state="queued")
    for changes in ({"framework": "torch"}, {"gpu": "a100"}, {"pid": Path("other")}, {"replicates": 2}):
        assert job_that_measures(project.plan(**{"framework": "jax"} | changes), [one]) is None
