"""The job: real runs of run.py as a process of its own.

Faults are made by a fake framework, so that each can be had at will in about a second; what needs the frameworks
themselves runs both, on the small MNIST model and the sample data.
"""

import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.job.job import Job
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import Launch, Pair
from harness.plan_file import read_plan, write_plan
from harness.results.kernel_names import class_of
from harness.results.looks import needed
from harness.results.ratios import took_turns
from harness.results.record import Record, read_record
from tests.made.faults import SmallDisk
from tests.made.patience import patience, slowdown, wait_until
from tests.made.processes import is_alive
from tests.made.project import BehavingProject, FinishedJob, alone, make_behaving_project, without_slurm
from tests.made.report_records import plan as report_plan

FRAMEWORKS = ("jax", "torch")


def read_pid(repository: BehavingProject) -> int:
    wait_until(repository.pid.exists, "the measurement's process has begun")
    return int(repository.pid.read_text())


# Faults of one measurement.

FAULTS = {
    "is_killed": ("failed", "the measurement's process was killed by SIGKILL (often the host's or Slurm's"),
    "segfaults": ("failed", "the measurement's process was killed by SIGSEGV"),
    "exits": ("failed", "the measurement's process ended with status 3 and no result"),
    "fills_the_host": ("out_of_memory", "no message"),
    "fills_the_device": ("out_of_memory", "device is full: 4 GiB asked for"),
    "diverges": ("failed", "the loss of epoch 2, step 3 of 4, is nan: training diverged. Lower settings.learning_rate"),
    "is_wrong": ("failed", "full against the float64 loop: relative error 1.00e+00"),
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
    assert record.outcome == outcome
    assert record.reason.startswith(reason)
    assert record.result is None


def test_reason_has_the_last_words_and_names_the_log_which_has_the_traceback(faulty_job: FinishedJob) -> None:
    assert "the framework's last words" in str(faulty_job.records["exits"].reason)
    logs = faulty_job.project.results.records()
    (log,) = logs.rglob("*is_killed.eager-*.log")
    assert str(log) in str(faulty_job.records["is_killed"].reason)
    (log,) = logs.rglob("*-raises.eager-*.log")
    assert "Traceback" in log.read_text() and "in raises" in log.read_text()


def test_measurements_before_and_after_the_faults_are_good(faulty_job: FinishedJob) -> None:
    assert set(faulty_job.records) == {"well", *FAULTS, *HARMLESS}
    for mode in ("well", *HARMLESS):
        record = faulty_job.records[mode]
        assert (record.outcome, record.reason) == ("ok", None)
        assert len(record.result.blocks.block_times_s) == 3


def test_failures_are_counted_and_make_the_exit_status(faulty_job: FinishedJob) -> None:
    failed = sum(outcome == "failed" for outcome, _ in FAULTS.values())
    total = len(FAULTS) + 3
    beat = faulty_job.project.heartbeat(faulty_job.folder)
    assert (faulty_job.status, beat.state) == (1, "done")
    assert (beat.measurements_total, beat.measurements_done, beat.measurements_failed) == (total, total, failed)
    assert f"{total} measured, 0 had a record, {failed} failed" in faulty_job.output


def test_out_of_memory_and_refused_are_answers_not_failures(repository: BehavingProject) -> None:
    assert repository.run(repository.plan("fills_the_host"))[0] == 0
    status, output, _ = repository.run(repository.plan("well", precision="tf32"))
    assert status == 0
    record = repository.by_mode()["well"]
    assert (record.outcome, record.reason) == ("refused", "precision tf32 needs an NVIDIA GPU")
    assert "refused: precision tf32 needs an NVIDIA GPU" in output


def test_timeout_ends_the_child_and_is_recorded(repository: BehavingProject) -> None:
    timeout_s = round(4 * slowdown())
    folder = repository.job(repository.plan("gated", "well", timeout_s=timeout_s))
    with repository.start(folder) as process:
        pid = read_pid(repository)
        process.communicate(timeout=patience(20))
    records = repository.by_mode()
    assert records["gated"].outcome == "timeout"
    assert str(records["gated"].reason).startswith(f"not done after {timeout_s} s; log: ")
    assert records["well"].outcome == "ok"
    assert process.returncode == 1
    assert not is_alive(pid)


def test_result_stands_where_the_child_does_not_end(repository: BehavingProject) -> None:
    repository.change("harness/job/ranks.py", ("EXIT_GRACE_S = 20.0", "EXIT_GRACE_S = 1.0"))
    status, _, _ = repository.run(repository.plan("is_stuck_at_exit"))
    assert (status, repository.by_mode()["is_stuck_at_exit"].outcome) == (0, "ok")


def test_child_that_cannot_be_started_is_recorded_and_the_job_goes_on(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository.root / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    status, output, _ = repository.run(repository.plan("removes_the_temporary_folder", "well", "raises"))
    assert status == 1
    assert "3 measured, 0 had a record, 2 failed" in output
    record = repository.by_mode()["well"]
    assert record.outcome == "failed"
    node = os.uname().nodename
    assert str(record.reason).startswith(
        f"the measurement's process cannot be started on {node}: No such file or directory ({folder}/compiler-caches-"
    )
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
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    repository.run(repository.plan("well"))
    variables = repository.by_mode()["well"].environment["variables"]
    assert (variables["NCCL_DEBUG"], variables["CUDA_DEVICE_ORDER"]) == ("INFO", "PCI_BUS_ID")
    assert not [name for name in variables if "CACHE_DIR" in name or "CACHE_PATH" in name]  # new in each measurement


def test_a_measurement_for_the_cpu_sees_no_gpu_and_its_record_says_so(repository: BehavingProject) -> None:
    plan = repository.plan("well")
    cell = plan.cell.model_copy(update={"gpu": "cpu"})
    status, output, _ = repository.run(plan.model_copy(update={"cell": cell}))
    assert status == 0, output
    [record] = repository.records()
    variables = record.environment["variables"]
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["JAX_PLATFORMS"]) == ("", "cpu")
    assert record.measurement.cell.gpu == "cpu"


def test_batch_larger_than_the_data_is_told(repository: BehavingProject) -> None:
    plan = repository.plan("well")
    variant = plan.variants[0].model_copy(update={"batch_size": 2000})
    assert repository.run(plan.model_copy(update={"variants": (variant,)}))[0] == 1
    reason = str(repository.by_mode()["well"].reason)
    assert reason.startswith("batch size 2000 is larger than the training set of mnist (sample data: 1536 samples).")


# The job's own end, and its going on.


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM, signal.SIGUSR2]
)
def test_signal_stops_the_job_and_the_next_start_goes_on(repository: BehavingProject, number: signal.Signals) -> None:
    folder = repository.job(repository.plan("well", "gated", "exits"))
    with repository.start(folder) as process:
        pid = read_pid(repository)
        process.send_signal(number)
        output, _ = process.communicate(timeout=patience(20))
    assert process.returncode == 75
    assert "stopped by a signal after 1 of 3; a later run goes on here" in output
    assert not is_alive(pid)
    heartbeat = repository.heartbeat(folder)
    assert (heartbeat.state, heartbeat.measurements_done, heartbeat.measurements_failed) == ("stopped", 1, 0)
    assert {mode: record.outcome for mode, record in repository.by_mode().items()} == {"well": "ok"}

    repository.gate.touch()
    status, output = repository.resume(folder)
    assert status == 1
    assert "2 measured, 1 had a record, 1 failed" in output
    outcomes = {mode: record.outcome for mode, record in repository.by_mode().items()}
    assert outcomes == {"well": "ok", "gated": "ok", "exits": "failed"}


def test_failed_measurement_is_tried_again_and_good_ones_are_not(repository: BehavingProject) -> None:
    assert repository.run(repository.plan("well", "exits"))[0] == 1
    status, output, _ = repository.run(repository.plan("well", "exits"))
    assert status == 1
    assert "1 measured, 1 had a record, 1 failed" in output
    found = sorted(path.name.split("-")[3] for path in repository.results.records().rglob("*.json"))
    assert found == ["exits.eager", "exits.eager", "well.eager"]  # the first failure's record is still there


def test_a_pair_is_one_job_that_goes_on_where_it_was(repository: BehavingProject) -> None:
    """Two replicates of a mode, and of PyTorch one more that fails: A B B A."""
    pair = repository.pair(("well",), ("well", "raises"))
    status, output, folder = repository.run(pair)
    assert status == 1
    assert "any/pair_mnist_1: 6 measurements" in output
    assert "done: 6 measured, 0 had a record, 2 failed" in output
    assert repository.arms() == [("jax", 0), ("torch", 0), ("torch", 1), ("jax", 1)]
    runs = [record.environment["pairing"] for record in repository.records()]
    assert {one["kind"] for one in runs} == {"together"} and len({one["pair"] for one in runs}) == 1

    # The job again, as after a requeue: what failed is tried again, and nothing else.
    assert repository.resume(folder)[0] == 1
    assert len(repository.records()) == 8
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.measurements_done, beat.measurements_failed) == ("done", 6, 2)
    assert beat.replicates_made == 6
    again = {record.environment["pairing"]["pair"] for record in repository.records()[6:]}
    assert len(again) == 1 and again != {runs[0]["pair"]}


@pytest.mark.parametrize(("mode", "totals"), [("slower", [8]), ("alternates", [8, 12])])
def test_a_pair_is_measured_until_its_ratio_is_decided(
    repository: BehavingProject, mode: str, totals: list[int]
) -> None:
    """Steps of 10 ms against 20 ms are decided after four pairs of at most six."""
    pair = repository.pair(("slow",), (mode,), replicates=6)
    jobs = tuple(plan.model_copy(update={"settings": pair.jobs[0].settings}) for plan in pair.jobs)  # of equal work
    status, output, folder = repository.run(pair := pair.model_copy(update={"jobs": jobs}))
    assert status == 0 and "any/pair_mnist_1: at most 12 measurements" in output, output
    assert f"done: {totals[-1]} measured, 0 had a record, 0 failed" in output
    shown = [
        int(total) for total in re.findall(r"\[\d+/(\d+)\] [a-z]+ cnn-b8-fp32-\w+\.eager-r\d: [\d,]+ samples/s", output)
    ]
    assert shown == [8] * 8 + [12] * (totals[-1] - 8)  # by the heartbeat, whose total grows with each look
    beat = repository.heartbeat(folder)
    assert (beat.state, beat.measurements_done, beat.measurements_total) == ("done", totals[-1], totals[-1])
    order = [
        (framework, number)
        for number in range(totals[-1] // 2)
        for framework in ("jax", "torch")[:: 1 - number % 2 * 2]
    ]
    assert repository.arms() == order
    assert len(list(needed(pair.jobs, repository.results, "local"))) == totals[-1]

    status, output = repository.resume(folder)
    assert status == 0 and f"done: 0 measured, {totals[-1]} had a record, 0 failed" in output


def test_of_one_framework_the_record_says_so(repository: BehavingProject) -> None:
    repository.run(repository.plan("well"))
    assert repository.by_mode()["well"].environment["pairing"] == {"kind": "one framework"}


def test_the_fourth_replicate_is_short_and_its_record_is_good(repository: BehavingProject) -> None:
    status, output = repository.run(repository.plan("well", replicates=4))[:2]
    assert status == 0, output
    records = repository.by_replicate()
    assert [record.result.latency is None for record in records] == [False] * 3 + [True]
    assert "too_few_latency_calls" in records[0].flags and "too_few_latency_calls" not in records[3].flags
    assert records[3].result.compile_time_s is not None and "r3: " in output


def test_the_run_of_a_job_in_slurm_is_its_number_and_its_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [report_plan("jax", "step.jit"), report_plan("torch", "step.eager")]
    pair = Pair(cell=plans[0].cell, jobs=tuple(plans))
    results, folder = Results(root=tmp_path / "results"), JobFolder(root=tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for restarts, expected in ((None, "77.0"), ("2", "77.2")):
        if restarts is not None:
            monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        job = Job(pair, folder, results, data=None, weights={})
        assert job._arms["jax"]._environment["pairing"] == {"kind": "together", "pair": expected}


def test_each_framework_has_its_own_python_and_set_up(repository: BehavingProject, tmp_path: Path) -> None:
    """In one job, where their processes take turns too. A set-up that fails costs its own framework's measurements."""
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/bash\nexport NCCL_OTHER_PYTHON=yes\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    launches = [Launch(python=str(other)), Launch(setup=("export NCCL_SET_UP='it is'", "true"))]
    pair = repository.pair(replicates=1)
    jobs = tuple(plan.model_copy(update={"launch": own}) for plan, own in zip(pair.jobs, launches, strict=True))
    status, output, _ = repository.run(pair.model_copy(update={"jobs": jobs, "is_interleaved": True}))
    assert status == 0, output
    jax, torch = sorted(repository.records(), key=lambda record: record.measurement.framework)
    assert took_turns(jax, torch)
    names = ("NCCL_OTHER_PYTHON", "NCCL_SET_UP")
    found = [[one.environment["variables"].get(name) for name in names] for one in (jax, torch)]
    assert found == [["yes", None], [None, "it is"]]

    jobs = (jobs[0], jobs[1].model_copy(update={"launch": Launch(setup=("module load nothing",))}))
    forced = tuple(plan.model_copy(update={"force": True}) for plan in jobs)
    status, output, _ = repository.run(pair.model_copy(update={"jobs": forced}))
    assert status == 1
    good, bad = sorted(repository.records()[2:], key=lambda record: record.measurement.framework)
    assert (good.outcome, bad.outcome) == ("ok", "failed")
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


def test_corrupt_record_counts_as_not_measured_and_is_left_alone(repository: BehavingProject) -> None:
    """A truncated one; all others: tests/harness/results/test_record.py."""
    plan = repository.plan("well")
    corrupt = repository.results.new_record(next(iter(plan.measurements())))
    corrupt.parent.mkdir(parents=True)
    corrupt.write_text("{")
    status, output, _ = repository.run(plan)
    assert status == 0
    assert "1 measured, 0 had a record" in output
    assert corrupt.read_text() == "{"
    good = [path for path in corrupt.parent.glob("*.json") if path != corrupt]
    assert [read_record(path).outcome for path in good] == ["ok"]


def test_corrupt_heartbeat_is_replaced(repository: BehavingProject) -> None:
    folder = repository.job(repository.plan("well"))
    folder.heartbeat.write_text("{")
    assert repository.resume(folder)[0] == 0
    assert repository.heartbeat(folder).state == "done"


def test_plan_of_the_other_framework_is_a_usage_error(repository: BehavingProject) -> None:
    folder = repository.job(repository.plan("well", framework="jax"))
    command = [sys.executable, "torch_runner/run.py", "--job-folder", str(folder.root)]
    done = subprocess.run(command, cwd=repository.root, env=without_slurm(), capture_output=True, text=True)
    assert done.returncode == 2
    assert f"error: {folder.plan}: is a plan for jax. Run it with jax_runner/run.py." in done.stderr


def test_ranks_of_several_devices_take_no_turns_by_hand_either(repository: BehavingProject) -> None:
    """The real experiments.yaml, whose use case 2 is on two devices."""
    command = [sys.executable, "-m", "harness.job", "--benchmark", "mnist", "--use_case", "2", "--interleaved"]
    where = ["--results", str(repository.results.root)]
    done = subprocess.run([*command, *where], cwd=REPOSITORY, env=without_slurm(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: --interleaved: any/mnist_2: on several devices the ranks of one framework wait" in done.stderr


def test_results_that_cannot_be_written_are_a_usage_error(repository: BehavingProject, tmp_path: Path) -> None:
    folder = JobFolder(root=tmp_path / "job")
    write_plan(alone(repository.plan("well")), folder)
    repository.results.root.write_text("a file, not a folder")
    status, output = repository.resume(folder)
    assert status == 2
    assert "error: cannot write" in output
    assert "Not a directory" in output
    assert "--results DIR" in output
    assert "Traceback" not in output


def test_disk_that_fills_up_ends_the_job_and_keeps_its_records(repository: BehavingProject, tmp_path: Path) -> None:
    disk = SmallDisk(repository.results.root)
    if not disk.mount("128k"):
        pytest.skip("needs the right to mount a small file system")
    try:
        folder = JobFolder(root=tmp_path / "job")
        write_plan(alone(repository.plan("well", "gated")), folder)
        with repository.start(folder) as process:
            read_pid(repository)
            disk.fill()
            repository.gate.touch()
            output, _ = process.communicate(timeout=patience(20))
        assert process.returncode == 2
        assert "error: cannot write " in output
        assert "No space left on device" in output
        assert "Traceback" not in output
        assert {mode: record.outcome for mode, record in repository.by_mode().items()} == {"well": "ok"}
        assert list(repository.results.root.rglob("*.tmp")) == []

        disk.free()
        status, output = repository.resume(folder)
        assert status == 0
        assert "1 measured, 1 had a record" in output
    finally:
        disk.unmount()


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


def write_experiments(folder: Path, precisions: str = "[fp32]") -> None:
    (folder / "experiments.yaml").write_text(EXPERIMENTS.format(data_dir=folder / "empty", precisions=precisions))


def run_by_hand(
    framework: str, folder: Path, *arguments: str, data: str = "sample"
) -> subprocess.CompletedProcess[str]:
    """On the CPU, so that the test is the same test everywhere."""
    command = [sys.executable, f"{framework}_runner/run.py", "--benchmark", "mnist", "--use_case", "1"]
    command += ["--data", data, "--config", str(folder / "experiments.yaml"), "--results", str(folder / "results")]
    environment = without_slurm() | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
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


def test_real_run_measures_what_the_cpu_can_do(real_run: RealRun) -> None:
    assert real_run.finished.returncode == 0, real_run.finished.stdout + real_run.finished.stderr
    record = records_of(real_run.folder)["fp32"]
    assert (record.outcome, record.reason) == ("ok", None)
    assert record.result.blocks.samples_per_step == 256
    assert record.result.parameter_count == 26_010
    assert record.result.recompiles == 0
    assert [point.epoch for point in record.result.epochs] == [1]
    assert 0 < record.result.epochs[0].test_metric <= 1
    assert record.result.energy.gross_joules is None


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
    record = records_of(real_run.folder)["bf16"]
    assert record.outcome == "refused"
    assert str(record.reason).startswith("precision bf16 needs an NVIDIA GPU")
    assert str(record.reason).endswith("it is not run as fp32")


def test_real_record_says_where_and_with_what(real_run: RealRun) -> None:
    environment = records_of(real_run.folder)["fp32"].environment
    assert environment["scheduler"] == "local"
    assert environment["node"] == os.uname().nodename
    assert environment["framework"]["name"] == real_run.framework
    assert environment["framework"]["platform"] == "cpu"
    version = environment["framework"]["version"].partition("+")[0]
    assert environment["packages"][real_run.framework].partition("+")[0] == version
    assert "none" not in (environment["git"]["commit"] or "").lower()


def test_second_real_run_skips_everything(real_run: RealRun) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (real_run.folder / "results" / "records").rglob("*.json")}

    before = files()
    again = run_by_hand(real_run.framework, real_run.folder)
    assert again.returncode == 0
    assert "0 measured, 2 had a record, 0 failed" in again.stdout
    assert files() == before


def test_frozen_plan_is_run_whatever_experiments_yaml_says_by_now(real_run: RealRun) -> None:
    (folder, *_) = Results(root=real_run.folder / "results").job_folders()
    plan = read_plan(folder.plan)
    config = real_run.folder / "experiments.yaml"
    text = config.read_text()
    config.write_text("no: [valid")
    try:
        again = run_by_hand(real_run.framework, real_run.folder, "--job-folder", str(folder.root))
    finally:
        config.write_text(text)
    assert again.returncode == 0
    assert "0 measured, 2 had a record, 0 failed" in again.stdout
    assert read_plan(folder.plan) == plan


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_missing_data_is_told_at_once(framework: str, tmp_path: Path) -> None:
    write_experiments(tmp_path)
    before_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = run_by_hand(framework, tmp_path, data="real")
    after_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert finished.returncode == 2
    assert "python main.py data --benchmark mnist" in finished.stderr
    assert "--data sample" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert list((tmp_path / "results").rglob("records/**/*.json")) == []
    used_s = after_s.ru_utime + after_s.ru_stime - before_s.ru_utime - before_s.ru_stime
    assert used_s < 2.0  # of processor time: no framework was imported


def test_results_below_a_file_are_a_usage_error(tmp_path: Path) -> None:
    write_experiments(tmp_path)
    (tmp_path / "results").write_text("")
    finished = run_by_hand("torch", tmp_path)
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: cannot write ")
    assert "Not a directory" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark", "mnist"], "--benchmark and --use_case are needed"),
        (["--benchmark", "mnits", "--use_case", "1"], "mnist"),
        (
            ["--benchmark", "mnist", "--use_case", "7"],
            "--use_case 7: not defined in experiments.yaml; valid: 1, 2, 3, 4, 5, 6",
        ),
        (["--benchmark", "mnist", "--use_case", "1", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--job-folder", "/nowhere"], "/nowhere/plan.json: cannot be read"),
    ],
    ids=["nothing", "benchmark", "use case", "config", "job folder"],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "jax_runner/run.py", *arguments, "--results", str(tmp_path)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=patience(20))
    assert finished.returncode == 2
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("task", ["", "{", "[]", '{"measurement": 1}'])
def test_a_rank_by_hand_is_told_what_it_is(task: str) -> None:
    command = [sys.executable, "torch_runner/run.py", "--rank", "0"]
    finished = subprocess.run(command, cwd=REPOSITORY, input=task, capture_output=True, text=True, timeout=patience(20))
    assert finished.returncode == 2
    assert finished.stderr == ("error: --rank is how a job starts its own processes: the task comes in on stdin\n")
