"""What is handed to submitit and Slurm, and what submitit must keep for that to work."""

import inspect
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import submitit
from submitit.core.core import PicklingExecutor
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher

from harness.errors import SubmissionError
from harness.paths import JobFolder, Results
from harness.plan import Pair
from harness.record import Record, write_record
from harness.settings import MeasurementSettings
from pipeline.executors import RunScript, ScriptLocal, sbatch_command, without_inherited_job
from pipeline.jobs import JobState
from pipeline.pairing import Arm, arms_of
from pipeline.submit import _lane, choose_executor, find_twin, is_measured, run_arguments, script_name, split
from tests.fake_project import FakeProject, make_project


def test_submitit_still_has_the_methods_that_are_overridden() -> None:
    """When this fails after an update of submitit, read pipeline/executors.py against its new source."""
    assert submitit.__version__.startswith("1.5.")
    parameters = {
        (SlurmExecutor, "_make_submission_file_text"): ["self", "command", "uid"],
        (SlurmExecutor, "_make_submission_command"): ["self", "submission_file_path"],
        (SlurmInfoWatcher, "update"): ["self"],
        (PicklingExecutor, "_submit_command"): ["self", "command"],
    }
    for (owner, name), expected in parameters.items():
        assert list(inspect.signature(getattr(owner, name)).parameters) == expected, name
    assert isinstance(inspect.getattr_static(LocalExecutor, "_submitit_command_str"), property)
    # Where the overridden methods are called from.
    submit_source = inspect.getsource(PicklingExecutor._submit_command)
    assert "self._make_submission_file_text(command, tmp_uuid)" in submit_source
    assert "self._make_submission_command(submission_file_path)" in submit_source
    assert "self._submit_command(self._submitit_command_str)" in inspect.getsource(
        PicklingExecutor._internal_process_submissions
    )
    assert {"_registered", "_finished", "_info_dict", "_last_status_check", "_num_calls"} <= vars(
        SlurmInfoWatcher()
    ).keys()


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


def test_the_slurm_job_around_main_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPU_BIND", "SRUN_CPUS_PER_TASK", "SBATCH_ACCOUNT", "SLURM_CONF", "MY_SLURM_X"):
        monkeypatch.setenv(name, "x")
    prefixes = "('SLURM_', 'SRUN_', 'SBATCH_', 'MY_')"
    script = f"import os; print(sorted(name for name in os.environ if name.startswith({prefixes})))"
    command = [*without_inherited_job(), sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "['MY_SLURM_X', 'SLURM_CONF']"


def test_local_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.executors.without_inherited_job", lambda: ["env"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    executor = ScriptLocal(tmp_path / "a job", Path("/s.sh"))
    assert executor._submitit_command_str == f"env CUDA_VISIBLE_DEVICES=1 bash /s.sh local '{tmp_path}/a job'"


def test_arguments_of_the_job(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    folder = JobFolder(root=tmp_path / "results/jobs/any/torch_mnist_3-x")
    assert run_arguments(project.plan(), folder, project.results) == [
        "-u",
        "torch_runner/run.py",
        "--benchmark",
        "mnist",
        "--use_case",
        "3",
        "--results",
        f"{tmp_path}/results",
        "--job-folder",
        f"{tmp_path}/results/jobs/any/torch_mnist_3-x",
    ]
    arm = Arm(position=5, framework="torch", replicate=2)
    of_arm = run_arguments(project.plan(), folder, project.results, arm)
    assert of_arm[-4:] == ["--replicate", "2", "--position", "5"]
    of_run = run_arguments(project.plan(), folder, project.results, arm, "run-1")
    assert of_run == [*of_arm, "--pair", "run-1"]


def test_run_script_reports_the_exit_status() -> None:
    assert RunScript(["-c", "pass"])() == 0
    with pytest.raises(RuntimeError, match=r"exit status 75 \(stopped before its end\)"):
        RunScript(["-c", "raise SystemExit(75)"])()
    with pytest.raises(RuntimeError, match="killed by SIGKILL"):
        RunScript(["-c", "import os; os.kill(os.getpid(), 9)"])()


def test_run_script_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(RunScript(["-u", "a b"], stop_marker=Path("/r0/stopped"))))
    assert (copy.arguments, copy.stop_marker) == (("-u", "a b"), Path("/r0/stopped"))


CHILD = """
import signal, sys, time
from pathlib import Path
log = Path(sys.argv[1])
def stop(*_):
    log.write_text(log.read_text() + "stopped in order")
    sys.exit(75)
signal.signal(signal.SIGINT, stop)
log.write_text("started, ")
time.sleep(60)
"""
WORKER = """
import os, signal, sys, time
from pathlib import Path
from pipeline.executors import RunScript
run = RunScript(sys.argv[2:])
log = Path(sys.argv[3])
def checkpoint(*_):
    while not log.exists() or not log.read_text():
        time.sleep(0.05)
    for number in (signal.SIGTERM, signal.SIGUSR2):  # as Slurm signals every process of a step
        os.kill(run._child.pid, number)
    time.sleep(0.2)
    start = time.monotonic()
    again = run.checkpoint()
    print(f"{again.function.arguments == run.arguments} {time.monotonic() - start < 10}")
    sys.exit(9)
signal.signal(signal.SIGUSR2, checkpoint)
signal.setitimer(signal.ITIMER_REAL, 0.5)
signal.signal(signal.SIGALRM, checkpoint)
run()
"""


def test_checkpoint_stops_the_run_in_order(tmp_path: Path) -> None:
    """In a signal handler that interrupts the wait for the child, as submitit calls it."""
    child, log = tmp_path / "child.py", tmp_path / "log"
    child.write_text(textwrap.dedent(CHILD))
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, "unused", str(child), str(log)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(Path.cwd())},
    )
    assert (worker.stdout.strip(), worker.returncode) == ("True True", 9), worker.stderr
    assert log.read_text() == "started, stopped in order"


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
    assert [f"{arm.framework}{arm.replicate}" for arm in arms] == [
        *("jax0", "torch0", "torch1", "jax1"),
        *("jax2", "torch2", "torch3", "jax3"),
    ]
    assert [arm.position for arm in arms] == list(range(8))


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
        record = Record(
            measurement_id=measurement.id,
            measurement=measurement,
            outcome="ok",
            started_at="2026-11-21T10:00:00+00:00",
            ended_at="2026-11-21T10:00:01+00:00",
            environment={"scheduler": scheduler},
        )
        write_record(record, results.new_record(measurement))


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
