"""`main.py gpu-check` with a GPU that is not there and steps that only say how they ended; their runner for real."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.expand import Selection, expand
from harness.experiments.load import load_config
from harness.measure.gpu import Gpu, NoGpu
from harness.paths import REPOSITORY, Results
from harness.results.record import write_record
from pipeline import gpu_check as module
from pipeline.gpu_check import (
    LIMIT_S,
    PAIRS,
    PAIRS_S,
    REPORT_S,
    Ended,
    Processes,
    Step,
    gpu_check,
    make_steps,
    record_lines,
    write_config,
)
from tests.made.patience import patience, wait_until
from tests.made.processes import is_alive
from tests.made.report_records import record

CONFIG = REPOSITORY / "experiments.yaml"
PASSED = Ended(outcome="passed", seconds=3.0, words="9 passed in 3 s")


class H200(Gpu):
    """As far as the check asks it."""

    def __init__(self, driver: str = "580.65") -> None:
        self.driver = driver

    def describe(self) -> dict[str, Any]:
        return {"name": "NVIDIA H200", "driver_version": self.driver, "absent": {}}


class Lab:
    """Runs steps by saying how they end, each in `step_s` of its clock."""

    def __init__(self, results: Results, ends: Mapping[str, Ended] | None = None, *, step_s: float = 10.0) -> None:
        self.results, self.ends, self.step_s = results, dict(ends or {}), step_s
        self.now_s = 1000.0
        self.ran: list[str] = []
        self.limits_s: dict[str, float] = {}
        self.said: list[str] = []
        self.at_a_time = self.most_at_a_time = 0
        self.stop_at: str | None = None
        self._lock = threading.Lock()

    def run(self, step: Step, log: Path, limit_s: float) -> Ended:
        if step.name == self.stop_at:
            raise KeyboardInterrupt
        with self._lock:
            self.at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        time.sleep(0.01)
        with self._lock:
            self.at_a_time -= 1
            self.ran.append(step.name)
            self.limits_s[step.name] = limit_s
            self.now_s += self.step_s
        assert log == self.results.gpu_check / f"{step.name}.log"
        return self.ends.get(step.name, PASSED)

    def check(self, **changes: Any) -> int:
        arguments: dict[str, Any] = {"config_path": CONFIG, "gpu": H200(), "run": self.run, "say": self.said.append}
        self.ran, self.said[:] = [], []
        return gpu_check(self.results, now=lambda: self.now_s, **(arguments | changes))

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(Results(root=tmp_path / "results"))


@pytest.fixture
def steps(lab: Lab) -> list[Step]:
    return make_steps(lab.results, load_config(CONFIG), CONFIG)


# ---- the steps


def test_the_tests_of_all_steps_are_all_tests(steps: list[Step]) -> None:
    """Each once. pytest's -k looks for a part of a test's name."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "gpu",
        "tests/gpu",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(collected) > 300
    chosen = []
    for step in (step for step in steps if step.is_test):
        path, words = step.command[step.command.index("gpu") + 1], step.command[step.command.index("-k") + 1]
        of_step = [name for name in collected if name.startswith(f"{path}::") and words in name.partition("::")[2]]
        assert of_step, step.name
        chosen += of_step
    assert sorted(chosen) == sorted(collected)


def test_pytest_takes_the_words_of_a_step(steps: list[Step]) -> None:
    (step,) = [step for step in steps if step.name == "torch-train-fp32"]
    done = subprocess.run([*step.command, "--collect-only", "-q"], cwd=REPOSITORY, capture_output=True, text=True)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert done.returncode == 0 and names
    assert all("[torch-train-fp32-" in name for name in names)


def test_the_short_configuration_is_valid_and_short(tmp_path: Path) -> None:
    """A few measurements of each pair, with both frameworks, and nothing is sent anywhere."""
    write_config(CONFIG, tmp_path / "short.yaml")
    config = load_config(tmp_path / "short.yaml")
    assert config.wandb.mode == "disabled"
    for benchmark, number in PAIRS:
        selection = Selection(benchmarks=(benchmark,), use_cases=(number,), data="sample", quick=True)
        (pair,) = expand(config, selection)
        counts = {plan.framework: len(list(plan.measurements())) for plan in pair.jobs}
        assert counts.keys() == {"jax", "torch"} and all(1 <= count <= 2 for count in counts.values())


def test_the_commands_are_ones_that_main_py_takes(steps: list[Step]) -> None:
    import main

    of_main = [step.command for step in steps if step.command[1].endswith("main.py")]
    of_main += [step.clean_up for step in steps if step.clean_up]
    assert len(of_main) == 2 * len(PAIRS) + 2
    for _, _, *words in of_main:
        name = words[0] if not words[0].startswith("-") else ""
        parser, _ = main.COMMAND_PARSERS[name]
        parser().parse(words[1:] if name else words)


def test_each_framework_is_tested_by_its_own_interpreter(lab: Lab) -> None:
    config = load_config(CONFIG)
    own = config.cluster.frameworks["jax"].model_copy(
        update={"python": "/opt/jax/python", "setup": ("module load gcc",)}
    )
    frameworks = config.cluster.frameworks | {"jax": own}
    cluster = config.cluster.model_copy(update={"frameworks": frameworks})
    steps = {s.name: s for s in make_steps(lab.results, config.model_copy(update={"cluster": cluster}), CONFIG)}
    command = steps["machine-jax"].command
    assert command[:2] == ("bash", "-c") and "module load gcc" in command[2]
    assert command[4:7] == ("/opt/jax/python", "-m", "pytest")
    assert steps["machine-torch"].command[0] == sys.executable
    assert steps["machine-torch"].variables["REQUIRE_GPU"] == "1"


# ---- without a GPU


@pytest.mark.parametrize(("dry_run", "status"), [(False, 1), (True, 0)])
def test_without_a_gpu_all_steps_are_listed_and_nothing_is_done(
    lab: Lab, steps: list[Step], dry_run: bool, status: int
) -> None:
    assert lab.check(gpu=NoGpu("NVML does not start: no driver"), dry_run=dry_run) == status
    assert lab.ran == [] and not lab.results.root.exists()
    for step in steps:
        assert re.search(rf"^  {step.name} +{re.escape(step.what)}$", lab.text, re.MULTILINE)
    assert "Nothing was tried: there is no NVIDIA GPU here. NVML does not start: no driver." in lab.text
    assert ("-m pytest" in lab.text) == ("REQUIRE_GPU=1" in lab.text) == dry_run


def test_a_dry_run_on_a_gpu_does_nothing_either(lab: Lab) -> None:
    assert lab.check(dry_run=True) == 0
    assert lab.ran == [] and "Nothing was tried" not in lab.text and not lab.results.root.exists()


def test_from_the_command_line(tmp_path: Path) -> None:
    from harness.measure.gpu import open_gpu

    if isinstance(open_gpu(), Gpu):
        pytest.skip("this machine has a GPU")
    command = [sys.executable, str(REPOSITORY / "main.py"), "gpu-check", "--results", str(tmp_path / "new")]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd="/usr")
    assert time.monotonic() - start < patience()
    assert (done.returncode, done.stderr) == (1, "")
    assert "Nothing was tried: there is no NVIDIA GPU here." in done.stdout
    assert not (tmp_path / "new").exists()


# ---- what has passed, and what has not


def test_all_pass(lab: Lab, steps: list[Step]) -> None:
    assert lab.check() == 0
    assert sorted(lab.ran) == sorted(step.name for step in steps)
    in_order = [name for name in lab.ran if not name.endswith(module.PRECISIONS)]
    assert in_order == [
        *("doctor", "machine-jax", "machine-torch", "clocks-jax", "clocks-torch"),
        *("mnist-1", "mnist-3", "cifar10-1", "synthetic-6", "report"),
    ]
    assert 1 < lab.most_at_a_time <= module.TESTS_AT_A_TIME
    assert f"{len(steps)} of {len(steps)} steps have passed: doctor, " in lab.text
    assert re.search(r"^  passed +3 s  torch-train-tf32 +9 passed in 3 s$", lab.text, re.MULTILINE)
    assert "does again" not in lab.text
    assert f"tar czf gpu-check.tar.gz -C {lab.results.root} gpu_check" in lab.text
    environment = json.loads((lab.results.gpu_check / "environment.json").read_text())
    assert environment["gpu"]["name"] == "NVIDIA H200" and "packages" in environment


def test_what_has_passed_is_not_done_again(lab: Lab) -> None:
    failed = Ended(
        outcome="failed", seconds=2.0, words="1 failed, 8 passed", details=("FAILED tests/gpu/x.py::y - no",)
    )
    lab.ends = {
        "torch-train-tf32": failed,
        "cifar10-1": Ended(outcome="not finished", seconds=180.0, words="after 180 s"),
    }
    assert lab.check() == 1
    assert "  failed: torch-train-tf32: 1 failed, 8 passed\n      FAILED tests/gpu/x.py::y - no" in lab.text
    assert "  not finished: cifar10-1: after 180 s" in lab.text
    assert "The same command does again what has not passed, and nothing else." in lab.text
    lab.ends = {}
    assert lab.check() == 0
    assert sorted(lab.ran) == ["cifar10-1", "report", "torch-train-tf32"]  # the report is always new
    assert re.search(r"^  passed +before  mnist-1 ", lab.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("driver", "From the beginning: not the same as the last time: driver"),
        ("code", "From the beginning: not the same as the last time: code"),
        ("broken", "From the beginning: {path} cannot be read (JSONDecodeError: "),
        ("other", "From the beginning: {path} cannot be read (KeyError: 'identity')"),
        ("outcome", "From the beginning: {path} cannot be read (ValueError: fine is no outcome)"),
    ],
)
def test_another_machine_or_other_code_begins_anew(
    lab: Lab, steps: list[Step], monkeypatch: pytest.MonkeyPatch, change: str, why: str
) -> None:
    assert lab.check() == 0 and "From the beginning" not in lab.text
    path = lab.results.gpu_check / "progress.json"
    gpu = H200("590.1" if change == "driver" else "580.65")
    if change == "code":
        monkeypatch.setattr(module, "code_digests", lambda framework: {"harness": "0"})
    if change == "broken":
        path.write_text("{")
    if change == "other":
        path.write_text("{}")
    if change == "outcome":
        path.write_text(path.read_text().replace('"passed"', '"fine"'))
    lab.now_s += LIMIT_S
    assert lab.check(gpu=gpu) == 0
    assert len(lab.ran) == len(steps)
    assert why.format(path=path) in lab.text


def test_the_time_is_kept_and_the_next_run_goes_on(lab: Lab, steps: list[Step]) -> None:
    """A step takes 60 s here, so ten minutes are too few for all; the report is always made."""
    lab.step_s = 60.0
    assert lab.check() == 1
    assert lab.now_s - 1000 <= LIMIT_S + module.TESTS_AT_A_TIME * 60
    assert lab.limits_s["doctor"] == 240
    assert lab.limits_s["machine-torch"] == LIMIT_S - 2 * 60 - PAIRS_S - REPORT_S
    assert lab.limits_s["report"] >= module.SHORTEST_S and lab.ran[-1] == "report"
    assert "not run: synthetic-6: no time was left of the 10 minutes" in lab.text
    before = set(lab.ran) - {"report"}
    runs = 1
    while lab.check() == 1:
        assert not before & set(lab.ran) and len(lab.ran) > 1
        before |= set(lab.ran) - {"report"}
        runs += 1
    assert runs < len(steps)


def test_stopped_by_ctrl_c(lab: Lab) -> None:
    lab.stop_at = "mnist-3"
    assert lab.check() == 1
    assert "Stopped. The same command goes on from here." in lab.text
    assert "mnist-1" in lab.ran and "cifar10-1" not in lab.ran
    assert "  not run: mnist-3" in lab.text
    lab.stop_at = None
    assert lab.check() == 0
    assert lab.ran == ["mnist-3", "cifar10-1", "synthetic-6", "report"]


def test_a_command_that_cannot_be_started_fails(lab: Lab) -> None:
    def run(step: Step, log: Path, limit_s: float) -> Ended:
        raise FileNotFoundError("No such file")

    assert lab.check(run=run) == 1
    assert "failed: doctor: " in lab.text and "cannot be started: No such file" in lab.text


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    from harness.errors import ProjectError

    (tmp_path / "file").write_text("")
    with pytest.raises(ProjectError, match="file"):
        Lab(Results(root=tmp_path / "file")).check()


def test_measurements_that_are_not_as_they_should_be_are_named(lab: Lab) -> None:
    """Records of made-up cells: a refusal, one with flags, one without, and a file that is none."""
    good = record("jax", "step.jit")
    flagged = good.model_copy(update={"flags": {"throttled": "...", "noisy": "..."}})
    refused = record("torch", "step.eager").model_copy(update={"outcome": "refused", "reason": "too old\nfor this"})
    assert list(record_lines(lab.results)) == []
    for number, one in enumerate((good, flagged, refused)):
        path = lab.results.records(one.measurement.cell, one.measurement.framework) / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(one, path)
    (path.parent / "3.json").write_text("{")
    cell = good.measurement.cell.name
    assert list(record_lines(lab.results)) == [
        "Measured: 2 ok, 1 refused",
        f"  {cell} jax step.jit: throttled, noisy",
        f"  {cell} torch step.eager: refused: too old",
    ]
    lab.check()
    assert "\nMeasured: 2 ok, 1 refused\n" in lab.text
    assert f"-C {lab.results.root} gpu_check records" in lab.text


# ---- the runner of steps, for real


def a_step(code: str, **changes: Any) -> Step:
    made = Step(name="a", what="", command=(sys.executable, "-c", code), limit_s=60, is_test=True)
    return replace(made, **changes)


def test_a_step_that_passes(tmp_path: Path) -> None:
    code = "import os; print('=== 3 passed, 1 skipped in 2 s ==='); print(os.environ['X'])"
    ended = Processes().run(a_step(code, variables={"X": "== 4 passed =="}), tmp_path / "log", 60)
    assert (ended.outcome, ended.words, ended.details) == ("passed", "4 passed", ())
    assert ended.seconds > 0
    quiet = Processes().run(a_step("print('a table')", is_test=False), tmp_path / "log", 60)
    assert (quiet.outcome, quiet.words) == ("passed", "")


def test_a_step_that_fails_names_what_failed(tmp_path: Path) -> None:
    code = (
        "print('FAILED tests/a.py::b - wrong'); print('ERROR tests/c.py'); print('== 1 failed =='); raise SystemExit(1)"
    )
    ended = Processes().run(a_step(code), tmp_path / "log", 60)
    assert (ended.outcome, ended.words) == ("failed", f"1 failed; log: {tmp_path / 'log'}")
    assert ended.details == ("FAILED tests/a.py::b - wrong", "ERROR tests/c.py")
    doctor = "print('  slurm     problem   no controller\\n  torch  ok  problem'); raise SystemExit(1)"
    ended = Processes().run(a_step(doctor, is_test=False), tmp_path / "log", 60)
    assert (ended.words, ended.details) == (
        f"exit status 1; log: {tmp_path / 'log'}",
        ("slurm     problem   no controller",),
    )
    silent = Processes().run(a_step("raise SystemExit(5)"), tmp_path / "log", 60)
    assert silent.words == f"exit status 5; log: {tmp_path / 'log'}"


def test_a_step_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Also what it gave to others."""
    sleeper = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}])"
    clean_up = (sys.executable, "-c", f"open({str(tmp_path / 'cleaned')!r}, 'w')")
    ended = Processes().run(a_step(code, clean_up=clean_up), tmp_path / "log", 3)
    assert (ended.outcome, ended.words) == ("not finished", f"after 3 s; log: {tmp_path / 'log'}")
    assert (tmp_path / "cleaned").exists()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the sleeper is gone")


def test_whatever_runs_is_ended_at_the_end(tmp_path: Path) -> None:
    processes = Processes()
    thread = threading.Thread(
        target=processes.run, args=(a_step("import time; time.sleep(600)"), tmp_path / "log", 600)
    )
    thread.start()
    while not processes._running:
        time.sleep(0.01)
    processes.end_all()
    thread.join(timeout=30)
    assert not thread.is_alive() and not processes._running


def test_make_has_it() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make")
    done = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, env=os.environ)
    assert re.search(r"^  make gpu-check +\w", done.stdout, re.MULTILINE)
