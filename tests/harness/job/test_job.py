"""The job: real runs of run.py as a process of its own.

Faults are made by a fake framework, so that each can be had at will in about a second; what needs the frameworks
themselves runs both, on the small MNIST model and the sample data.
"""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import FRAMEWORKS, Launch
from harness.plan_file import write_plan
from harness.results.kernel_names import class_of
from harness.results.looks import needed
from harness.results.record import Record, read_record
from tests.made.patience import patience, slowdown, wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, FinishedJob, alone, make_behaving_project, without_slurm

pytestmark = pytest.mark.takes(65)

# Faults of one measurement.

FAULTS = {
    "is_killed": ("failed", "the measurement's process was killed by SIGKILL (often the host's or Slurm's"),
    "segfaults": ("failed", "the measurement's process was killed by SIGSEGV"),
    "exits": ("failed", "the measurement's process ended with status 3 and no result"),
    "fills_the_host": ("out_of_memory", "no message"),
    "fills_the_device": ("out_of_memory", "device is full: 4 GiB asked for"),
    "raises": ("failed", "KeyError: 'conv9'"),
    "sends_no_number": (
        "failed",
        "its result cannot be recorded: Result: details: Value error, phases.forward.1 (nan) is not a finite number",
    ),
    "is_killed_and_leaves_a_worker": ("failed", "the measurement's process was killed by SIGKILL"),
}
HARMLESS = ("prints_much", "sends_nonsense")


@pytest.fixture(scope="module")
def faulty_job(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """One job in which all of FAULTS happen, and a good measurement before and after them."""
    repository = make_behaving_project(tmp_path_factory.mktemp("faults"))
    return repository.finish(repository.plan("well", *FAULTS, *HARMLESS))


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_recorded_with_its_reason(faulty_job: FinishedJob, fault: str) -> None:
    outcome, reason = FAULTS[fault]
    record = faulty_job.records[fault]
    assert (record.outcome, record.result) == (outcome, None)
    assert record.reason.startswith(reason)


def test_worker_of_a_killed_measurement_is_killed_too(faulty_job: FinishedJob) -> None:
    """A compiler's worker would compute beside the next measurement."""
    assert not is_alive(int((faulty_job.project.root / "worker").read_text()))


def test_reason_has_the_last_words_and_names_the_log_which_has_the_traceback(faulty_job: FinishedJob) -> None:
    assert "the framework's last words" in str(faulty_job.records["exits"].reason)
    logs = faulty_job.project.results.records()
    (log,) = logs.rglob("*is_killed.eager-*.log")
    assert str(log) in str(faulty_job.records["is_killed"].reason)
    (log,) = logs.rglob("*-raises.eager-*.log")
    assert "Traceback" in log.read_text() and "in raises" in log.read_text()


def test_other_measurements_are_good_and_failures_are_counted_and_make_the_exit_status(faulty_job: FinishedJob) -> None:
    assert set(faulty_job.records) == {"well", *FAULTS, *HARMLESS}
    for mode in ("well", *HARMLESS):
        record = faulty_job.records[mode]
        assert (record.outcome, record.reason) == ("ok", None)
        assert len(record.result.blocks.block_times_s) == 3
    failed = sum(outcome == "failed" for outcome, _ in FAULTS.values())
    total = len(FAULTS) + 3
    beat = faulty_job.project.heartbeat(faulty_job.folder)
    assert (faulty_job.status, beat.state) == (1, "done")
    assert (beat.measurements_total, beat.measurements_done, beat.measurements_failed) == (total, total, failed)
    assert f"{total} measured, 0 had a record, {failed} failed" in faulty_job.output


def test_child_that_cannot_be_started_is_recorded_and_the_job_goes_on(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository.root / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    status, output, _ = repository.run(repository.plan("removes_the_temporary_folder", "well", "raises"))
    assert status == 1 and "3 measured, 0 had a record, 2 failed" in output
    record = repository.by_mode()["well"]
    assert record.outcome == "failed"
    begin = f"the measurement's process cannot be started on {os.uname().nodename}: No such file or directory"
    assert str(record.reason).startswith(f"{begin} ({folder}/compiler-caches-")
    assert "a folder for temporary files with some free space, which TMPDIR names" in str(record.reason)


def test_a_python_or_a_container_that_is_not_there_is_named(repository: BehavingProject) -> None:
    launch = Launch(runtime="apptainer", image="/images/jax.sif")
    assert repository.run(repository.plan("well").model_copy(update={"launch": launch}))[0] == 1
    reason = str(repository.by_mode()["well"].reason)
    assert reason.startswith(f"apptainer is not there on {os.uname().nodename}: cluster.frameworks of experiments.yaml")
    assert "`setup` beside them loads a module" in reason


def test_child_that_cannot_be_killed_ends_the_job_with_a_reason(repository: BehavingProject) -> None:
    """As in a driver that hangs; here it is just not killed. What it did is recorded; nothing is measured beside it."""
    harmless = (("END_TIMEOUT_S = 30.0", "END_TIMEOUT_S = 1.0"), ("signal.SIGKILL)", "0)"))
    repository.change("harness/job/children.py", *harmless)
    folder = repository.job(repository.plan("gated", "well", timeout_s=4 * slowdown()))
    status, output = repository.resume(folder)
    assert status == 1
    assert {mode: record.outcome for mode, record in repository.by_mode().items()} == {"gated": "timeout"}
    assert f"error: a process of the last measurement was killed on {os.uname().nodename} and has not ended" in output
    heartbeat = repository.heartbeat(folder)
    assert (heartbeat.state, heartbeat.measurements_done) == ("stopped", 1)
    assert "hangs in the kernel" in str(heartbeat.last_error)


def test_record_has_the_variables_that_the_measurement_ran_with(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cell for the CPU, which sees no GPU whatever the caller shows."""
    for name, value in (("NCCL_DEBUG", "INFO"), ("CUDA_VISIBLE_DEVICES", "0,1"), ("JAX_PLATFORMS", "cuda")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    plan = repository.plan("well", explain=False)
    status, output, _ = repository.run(plan.model_copy(update={"cell": plan.cell.model_copy(update={"gpu": "cpu"})}))
    assert status == 0, output
    [record] = repository.records()
    variables = record.environment["variables"]
    assert (variables["NCCL_DEBUG"], variables["CUDA_DEVICE_ORDER"]) == ("INFO", "PCI_BUS_ID")
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["JAX_PLATFORMS"]) == ("", "cpu")
    assert not [name for name in variables if "CACHE_DIR" in name or "CACHE_PATH" in name]  # new in each measurement
    assert record.environment["pairing"] == {"kind": "one framework"}
    assert (record.result.explanation, record.result.explanation_absent) == (None, None)


def test_what_set_up_lines_export_is_unset_and_flags_that_disable_a_compiler_are_refused(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that `setup` loads comes after the job's own environment. A refused flag costs no record of ours, and
    the measurement is tried again once it is gone."""
    plan = repository.plan("well")
    setup = Launch(setup=("export OMP_PROC_BIND=true",))
    status, output, _ = repository.run(plan.model_copy(update={"launch": setup}))
    [record] = repository.records()
    assert (status, record.environment["variables_unset"]) == (0, {"OMP_PROC_BIND": "true"}), output
    flag = "--xla_backend_optimization_level=0"
    setup = Launch(setup=(f"export XLA_FLAGS={flag}",))
    status, output, _ = repository.run(plan.model_copy(update={"launch": setup, "force": True}))
    assert (status, repository.records()[-1].outcome) == (1, "failed")
    assert f"XLA_FLAGS={flag} disables optimizations of XLA" in repository.records()[-1].reason
    monkeypatch.setenv("XLA_FLAGS", flag)
    status, output, _ = repository.run(plan)
    assert (status, len(repository.records())) == (2, 2)
    assert "so nothing is measured. Remove it from XLA_FLAGS" in output


# What a record contains of its code: tests/harness/results/test_code_digest.py. How the codes of two records are
# compared: tests/pipeline/report/test_conditions.py.


def measured(repository: BehavingProject) -> Record:
    """The newest record, after one more run."""
    status, output, _ = repository.run(repository.plan("well", force=True))
    assert status == 0, output
    return repository.records()[-1]


def test_a_new_benchmark_is_no_difference_and_a_change_of_what_was_imported_is(repository: BehavingProject) -> None:
    """Models are files of their own, which are imported while a program is built."""
    models = repository.root / "torch_runner" / "models"
    models.mkdir()
    for name in ("mnist", "cifar10"):
        (models / f"{name}.py").write_text("LAYERS = 3\n")
    code = measured(repository).environment["code"]
    assert code.keys() == {"harness", "torch_runner"}

    for path in ("harness/work/benchmarks/mine.py", "torch_runner/models/mine.py"):
        (repository.root / path).write_text("MINE = True\n")
    repository.rewrite("torch_runner/models/cifar10.py", "LAYERS = 4\n")
    assert measured(repository).environment["code"] == code

    repository.rewrite("torch_runner/models/mnist.py", "LAYERS = 5\n")
    changed = measured(repository).environment["code"]
    assert (changed["harness"], changed["torch_runner"] == code["torch_runner"]) == (code["harness"], False)


# The job's own end, and its going on.


@pytest.mark.parametrize(
    "number",
    [*(pytest.param(one, marks=pytest.mark.nightly) for one in (signal.SIGINT, signal.SIGTERM)), signal.SIGUSR2],
)
def test_signal_stops_the_job_and_the_next_start_goes_on(repository: BehavingProject, number: signal.Signals) -> None:
    folder = repository.job(repository.plan("well", "gated", "exits"))
    with repository.start(folder) as process:
        wait_until(repository.pid.exists, "the measurement's process has begun")
        pid = int(repository.pid.read_text())
        process.send_signal(number)
        output, _ = process.communicate(timeout=patience(20))
    assert process.returncode == 75 and "stopped by a signal after 1 of 3; a later run goes on here" in output
    assert not is_alive(pid)
    heartbeat = repository.heartbeat(folder)
    assert (heartbeat.state, heartbeat.measurements_done, heartbeat.measurements_failed) == ("stopped", 1, 0)
    assert {mode: record.outcome for mode, record in repository.by_mode().items()} == {"well": "ok"}

    repository.gate.touch()
    status, output = repository.resume(folder)
    assert status == 1 and "2 measured, 1 had a record, 1 failed" in output
    outcomes = {mode: record.outcome for mode, record in repository.by_mode().items()}
    assert outcomes == {"well": "ok", "gated": "ok", "exits": "failed"}


def test_a_pair_is_measured_until_its_ratio_is_decided(repository: BehavingProject) -> None:
    """Steps of 10 ms against 20 ms are decided after four pairs of at most six."""
    same = {"gate": str(repository.gate), "pid": str(repository.root / "torch-pid")}  # so that the work is equal
    pair = repository.pair(("slow",), ("slower",), replicates=6, settings=same)
    status, output, folder = repository.run(pair)
    assert status == 0 and "any/pair_mnist_1: at most 12 measurements" in output, output
    assert "done: 8 measured, 0 had a record, 0 failed" in output
    shown = re.findall(r"\[\d+/(\d+)\] [a-z]+ cnn-b8-fp32-\w+\.eager-r\d: [\d,]+ samples/s", output)
    assert shown == ["8"] * 8  # by the heartbeat, whose total grows with each look
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.measurements_done, beat.measurements_total) == ("done", 8, 8)
    assert len(list(needed(pair.jobs, repository.results, "local"))) == 8

    status, output = repository.resume(folder)
    assert status == 0 and "done: 0 measured, 8 had a record, 0 failed" in output


def test_each_framework_has_its_own_set_up_and_one_that_fails_costs_no_other(repository: BehavingProject) -> None:
    pair = repository.pair(replicates=1)
    launches = [Launch(setup=("export NCCL_SET_UP='it is'", "true")), Launch(setup=("module load nothing", "true"))]
    jobs = tuple(plan.model_copy(update={"launch": own}) for plan, own in zip(pair.jobs, launches, strict=True))
    status, _, _ = repository.run(pair.model_copy(update={"jobs": jobs}))
    good, bad = sorted(repository.records(), key=lambda record: record.measurement.framework)
    assert (status, good.outcome, bad.outcome) == (1, "ok", "failed")
    assert good.environment["variables"]["NCCL_SET_UP"] == "it is"
    assert "module: command not found" in str(bad.reason)


def test_force_measures_again_but_not_after_every_requeue_and_keeps_the_old_record(repository: BehavingProject) -> None:
    plan = repository.plan("well", force=True)
    assert repository.run(plan)[0] == 0
    (old,) = repository.results.records().rglob("*.json")
    before = old.read_bytes()
    folder = repository.job(plan)
    for expected in ("1 measured, 0 had a record", "0 measured, 1 had a record"):
        status, output = repository.resume(folder)
        assert (status, expected in output) == (0, True)
    assert len(repository.records()) == 2
    assert old.read_bytes() == before


def test_plan_of_the_other_framework_is_a_usage_error(repository: BehavingProject) -> None:
    folder = repository.job(repository.plan("well", framework="jax"))
    command = [sys.executable, "torch_runner/run.py", "--job-folder", str(folder.root)]
    done = subprocess.run(command, cwd=repository.root, env=without_slurm(), capture_output=True, text=True)
    assert done.returncode == 2
    assert f"error: {folder.plan}: is a plan for jax. Run it with jax_runner/run.py." in done.stderr


def test_results_that_cannot_be_written_are_a_usage_error(repository: BehavingProject, tmp_path: Path) -> None:
    folder = JobFolder(root=tmp_path / "job")
    write_plan(alone(repository.plan("well")), folder)
    repository.results.root.write_text("a file, not a folder")
    status, output = repository.resume(folder)
    assert status == 2
    assert all(words in output for words in ("error: cannot write", "Not a directory", "--results DIR"))
    assert "Traceback" not in output


# Both frameworks, on their own run.py.

EXPERIMENTS = """\
project: trial
data_dir: {data_dir}
cluster: {{time_limit_minutes: 30}}
gpus: {{any: {{}}}}
matrix: {{gpus: [any], benchmarks: [mnist], use_cases: [1]}}
benchmarks:
  mnist: {{models: [cnn]}}
runs: {{jax: [jit], torch: [eager]}}
use_cases:
  1:
    name: train
    batch_sizes: [256]
    precisions: {precisions}
    formulations: {{jax: [step], torch: [step]}}
    settings: {{epochs: 1, learning_rate: 0.02, momentum: 0.9, weight_decay: 5e-4, target_metric: 0.5}}
measurement:
  replicates: 1
  warmup_s: 0.05
  warmup_min_calls: 2
  block_min_s: 0.02
  min_blocks: 3
  max_blocks: 3
  latency_calls: 3
wandb: {{mode: disabled}}
"""


LEFT_BEHIND = {"JAX_DISABLE_JIT": "1", "TORCH_COMPILE_DISABLE": "1", "GOMP_CPU_AFFINITY": "0"}
"""As a profiler or a cluster's module does."""


def write_experiments(folder: Path, precisions: str = "[fp32]") -> None:
    (folder / "experiments.yaml").write_text(EXPERIMENTS.format(data_dir=folder / "empty", precisions=precisions))


def run_by_hand(
    framework: str, folder: Path, *arguments: str, data: str = "sample"
) -> subprocess.CompletedProcess[str]:
    """On the CPU, so that the test is the same test everywhere."""
    command = [sys.executable, f"{framework}_runner/run.py", "--benchmark", "mnist", "--use_case", "1"]
    command += ["--data", data, "--config", str(folder / "experiments.yaml"), "--results", str(folder / "results")]
    environment = without_slurm() | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""} | LEFT_BEHIND
    return subprocess.run(
        [*command, *arguments], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=patience(30)
    )


def records_of(folder: Path) -> dict[str, Record]:
    """By precision."""
    paths = Results(root=folder / "results").records().rglob("*.json")
    return {record.measurement.variant.precision: record for record in map(read_record, paths)}


@dataclass(frozen=True, kw_only=True)
class RealRun:
    framework: str
    folder: Path
    finished: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module", params=FRAMEWORKS)
def real_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    write_experiments(folder, "[fp32, bf16]")
    return RealRun(framework=request.param, folder=folder, finished=run_by_hand(request.param, folder))


def test_real_run_measures_what_the_cpu_can_do_and_says_where_and_with_what(real_run: RealRun) -> None:
    assert real_run.finished.returncode == 0, real_run.finished.stdout + real_run.finished.stderr
    record = records_of(real_run.folder)["fp32"]
    assert (record.outcome, record.reason) == ("ok", None)
    assert record.result.blocks.samples_per_step == 256
    assert record.result.parameter_count == 26_010
    assert record.result.recompiles == 0
    assert [point.epoch for point in record.result.epochs] == [1]
    assert 0 < record.result.epochs[0].test_metric <= 1
    assert record.result.energy.gross_joules is None
    environment = record.environment
    assert (environment["scheduler"], environment["node"]) == ("local", os.uname().nodename)
    found = environment["framework"]
    assert (found["name"], found["platform"]) == (real_run.framework, "cpu")
    version = found["version"].partition("+")[0]
    assert environment["packages"][real_run.framework].partition("+")[0] == version
    assert "none" not in (environment["git"]["commit"] or "").lower()
    assert environment["process"] == {"affinity": sorted(os.sched_getaffinity(0)), "threads": 1}
    assert environment["variables_unset"] == LEFT_BEHIND
    assert not LEFT_BEHIND.keys() & environment["variables"].keys()
    assert "JAX_DISABLE_JIT=1 is unset for the measurements: it makes JAX run" in real_run.finished.stdout


def test_real_run_says_where_a_step_goes(real_run: RealRun) -> None:
    """By the framework's own profiler, in the second warm start; the work is what the other side counts, too: see
    tests/runners/test_products.py."""
    result = records_of(real_run.folder)["fp32"].result
    assert result.explanation_absent is None
    assert result.compile_time_warm_s is not None
    explanation = result.explanation
    assert explanation.work.forward_operations == 256 * 844_416
    assert not explanation.on_device
    first, second = explanation.windows
    assert second.steps == 2 * first.steps
    for window in explanation.windows:
        of_classes = Counter()
        for kernel in window.kernels:
            of_classes[class_of(kernel.name, kernel.content)] += kernel.busy_s
        assert sum(of_classes.values()) == pytest.approx(window.busy_s, rel=1e-6)
        assert of_classes["product"] > 0 and of_classes["traffic"] > 0
        assert of_classes["other"] < 0.05 * window.busy_s


def test_real_run_refuses_what_the_cpu_cannot_do(real_run: RealRun) -> None:
    """Which is an answer, and no failure."""
    assert "refused: precision bf16 needs an NVIDIA GPU" in real_run.finished.stdout
    record = records_of(real_run.folder)["bf16"]
    assert record.outcome == "refused"
    assert str(record.reason).startswith("precision bf16 needs an NVIDIA GPU")
    assert str(record.reason).endswith("it is not run as fp32")


def test_second_real_run_skips_everything_and_a_frozen_plan_needs_no_experiments_yaml(real_run: RealRun) -> None:
    def files() -> dict[Path, bytes]:
        results = Results(root=real_run.folder / "results")
        return {path: path.read_bytes() for path in (*results.records().rglob("*.json"), folder.plan)}

    (folder,) = Results(root=real_run.folder / "results").job_folders()
    before = files()
    again = run_by_hand(real_run.framework, real_run.folder)
    (real_run.folder / "experiments.yaml").write_text("no: [valid")
    frozen = run_by_hand(real_run.framework, real_run.folder, "--job-folder", str(folder.root))
    for done in (again, frozen):
        assert done.returncode == 0 and "0 measured, 2 had a record, 0 failed" in done.stdout, done.stderr
    assert files() == before


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_missing_data_is_answered_before_a_framework_is_imported(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiments(tmp_path)
    for name in FRAMEWORKS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finished = run_by_hand(framework, tmp_path, data="real")
    assert finished.returncode == 2
    assert "python main.py data --benchmark mnist" in finished.stderr and "--data sample" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert list((tmp_path / "results").rglob("records/**/*.json")) == []
    assert "was imported" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark", "mnist"], "--benchmark and --use_case are needed"),
        (["--job-folder", "/nowhere"], "/nowhere/plan.json: cannot be read"),
        (
            ["--benchmark", "mnist", "--use_case", "2", "--interleaved"],
            "--interleaved: any/mnist_2: on several devices the ranks of one framework wait",
        ),
    ],
    ids=["nothing", "job folder", "several devices in turns"],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    """By the real experiments.yaml, whose use case 2 is on two devices."""
    command = [sys.executable, "-m", "harness.job", *arguments, "--results", str(tmp_path)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=patience(20))
    assert finished.returncode == 2
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_rank_by_hand_is_told_what_it_is() -> None:
    command = [sys.executable, "torch_runner/run.py", "--rank", "0"]
    done = subprocess.run(command, cwd=REPOSITORY, input="{}", capture_output=True, text=True, timeout=patience(20))
    words = "error: --rank is how a job starts its own processes: the task comes in on stdin\n"
    assert (done.returncode, done.stderr) == (2, words)
