"""`main.py gpu-check` with a GPU that is not there, and with small steps in place of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import main
from harness.experiments.expand import expand
from harness.experiments.load import load_config
from harness.experiments.model import Config
from harness.measure.gpu import Gpu, NoGpu, open_gpu
from harness.paths import REPOSITORY, Results
from pipeline import gpu_check as module
from pipeline.gpu_check import PAIRS, Step, gpu_check, make_steps
from tests.made.patience import patience, wait_until
from tests.made.processes import is_alive
from tests.made.report_records import record, save

CONFIG = REPOSITORY / "experiments.yaml"


class H200(Gpu):
    """As far as the check asks it."""

    def __init__(self, driver: str = "580.65") -> None:
        self.driver = driver

    def describe(self) -> dict[str, Any]:
        return {"name": "NVIDIA H200", "driver_version": self.driver, "absent": {}}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path / "results")


@pytest.fixture
def steps(results: Results) -> list[Step]:
    return make_steps(results, load_config(CONFIG), CONFIG)


def shell(name: str, script: str, **changes: Any) -> Step:
    return Step(**{"name": name, "what": "", "command": ("sh", "-c", script), "limit_s": patience()} | changes)


def check(results: Results, *steps: Step, gpu: Gpu | None = None, limit_s: float = module.LIMIT_S) -> int:
    return gpu_check(results, config_path=CONFIG, gpu=gpu or H200(), steps=steps, limit_s=limit_s)


def test_the_tests_of_all_steps_are_all_tests(steps: list[Step]) -> None:
    """Each once. pytest's -k looks for a part of a test's name."""
    words = ("-m", "pytest", "--collect-only", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider")
    done = subprocess.run([sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(collected) > 300
    chosen = []
    for step in (step for step in steps if step.is_test):
        path, part = step.command[step.command.index("gpu") + 1], step.command[step.command.index("-k") + 1]
        of_step = [name for name in collected if name.startswith(f"{path}::") and part in name.partition("::")[2]]
        assert of_step, step.name
        chosen += of_step
    assert sorted(chosen) == sorted(collected)


def test_the_commands_are_ones_that_main_py_takes_and_pairs_are_short(steps: list[Step]) -> None:
    """One or two measurements of each framework in each pair, and nothing is sent anywhere."""
    of_main = [step.command for step in steps if step.command[1].endswith("main.py")]
    of_main += [step.clean_up for step in steps if step.clean_up]
    assert len(of_main) == 2 * len(PAIRS) + 2
    pairs = []
    for _, _, *words in of_main:
        name = words[0] if not words[0].startswith("-") else ""
        parser, _ = main.COMMAND_PARSERS[name]
        arguments = parser().parse(words[1:] if name else words)
        if not name:
            pairs += expand(load_config(CONFIG), main.selection_of(arguments))
    counts = [{plan.framework: len(list(plan.measurements())) for plan in pair.jobs} for pair in pairs]
    assert counts == [{"jax": 1, "torch": 2}, {"jax": 2, "torch": 2}, {"jax": 1, "torch": 2}, {"jax": 1, "torch": 1}]
    assert {step.variables["WANDB_MODE"] for step in steps if step.clean_up} == {"disabled"}


def test_each_framework_is_tested_by_its_own_interpreter(results: Results) -> None:
    content = load_config(CONFIG).model_dump(exclude_unset=True)
    content["cluster"]["frameworks"] = {"jax": {"python": "/opt/jax/python", "setup": ["module load gcc"]}}
    steps = {step.name: step for step in make_steps(results, Config.model_validate(content), CONFIG)}
    command = steps["machine-jax"].command
    assert command[:2] == ("bash", "-c") and "module load gcc" in command[2]
    assert command[4:7] == ("/opt/jax/python", "-m", "pytest")
    assert steps["machine-torch"].command[0] == sys.executable
    assert steps["machine-torch"].variables["REQUIRE_GPU"] == "1"


@pytest.mark.parametrize(("gpu", "dry_run", "status"), [(False, False, 1), (False, True, 0), (True, True, 0)])
def test_steps_are_listed_and_nothing_is_done(
    results: Results, steps: list[Step], capsys, gpu: bool, dry_run: bool, status: int
) -> None:
    device = H200() if gpu else NoGpu("NVML does not start: no driver")
    assert gpu_check(results, config_path=CONFIG, gpu=device, dry_run=dry_run) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"  {'doctor':<32} 240 s  environment, versions, a C compiler, torch.compile and CUDA graphs"
    assert [line.split()[0] for line in lines[1 : 1 + len(steps)]] == [step.name for step in steps]
    absent = "Nothing was tried: there is no NVIDIA GPU here. NVML does not start: no driver."
    assert (absent in lines) != gpu
    if isinstance(open_gpu(), NoGpu):
        words = ["--dry-run"] if dry_run else []
        assert main.main(["gpu-check", *words, "--results", str(results.root)]) == (0 if dry_run else 1)
    assert not results.root.exists()


def test_what_failed_is_named_and_only_that_is_done_again(results: Results, tmp_path: Path, capsys) -> None:
    ran, fixed = tmp_path / "ran", tmp_path / "fixed"
    pytest_like = f"echo b >>{ran}; test -e {fixed} && exec echo '=== 9 passed in 3 s ==='; "
    pytest_like += "printf 'FAILED tests/gpu/x.py::y - no\\nERROR tests/c.py\\n== 1 failed, 8 passed ==\\n'; exit 1"
    doctor_like = f"echo d >>{ran}; test -e {fixed} || {{ echo '  slurm     problem   no controller'; exit 3; }}"
    steps = (
        shell("a", f"echo a >>{ran}; echo $X; exec echo quiet", variables={"X": "in the log"}),
        shell("b", pytest_like, is_test=True),
        shell("c", f"echo c >>{ran}; exec no-such-command"),
        shell("d", doctor_like, clean_up=("sh", "-c", f"echo cleaned >>{ran}")),
        shell("report", f"echo report >>{ran}", leaves_s=0),
    )
    logs = results.gpu_check
    assert check(results, *steps) == 1
    assert ran.read_text().split() == ["a", "b", "c", "d", "cleaned", "report"]
    text = capsys.readouterr().out
    assert re.search(r"^  passed +\d+ s  a$", text, re.MULTILINE)
    assert f"  failed: b: 1 failed, 8 passed; log: {logs / 'b.log'}\n      FAILED tests/gpu/x.py::y - no\n" in text
    assert f"      ERROR tests/c.py\n  failed: c: exit status 127; log: {logs / 'c.log'}\n" in text
    assert f"  failed: d: exit status 3; log: {logs / 'd.log'}\n      slurm     problem   no controller\n" in text
    assert "\n2 of 5 steps have passed: a, report\n" in text
    assert "The same command does again what has not passed, and nothing else.\n" in text
    assert text.endswith(f"To send, as one file: tar czf gpu-check.tar.gz -C {results.root} gpu_check\n")
    assert (logs / "a.log").read_text().splitlines()[1:] == ["in the log", "quiet"]
    environment = json.loads((logs / "environment.json").read_text())
    assert environment["gpu"]["name"] == "NVIDIA H200" and "packages" in environment

    ran.unlink()
    fixed.touch()
    steps = (*steps[:2], shell("c", f"echo c >>{ran}"), *steps[3:])
    assert check(results, *steps) == 0
    assert ran.read_text().split() == ["b", "c", "d", "report"]  # the report is always new
    text = capsys.readouterr().out
    assert re.search(r"^  passed +a +before$", text, re.MULTILINE)
    assert re.search(r"^  passed +\d+ s  b +9 passed in 3 s$", text, re.MULTILINE)
    assert "does again" not in text


@pytest.mark.parametrize(("change", "names"), [("driver", "driver"), ("code", "code"), ("[]", "GPU, driver, pack")])
def test_another_machine_or_other_code_begins_anew(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, change: str, names: str
) -> None:
    step = shell("a", f"echo a >>{tmp_path / 'ran'}")
    assert check(results, step) == 0 and "From the beginning" not in capsys.readouterr().out
    if change == "code":
        monkeypatch.setattr(module, "code_digests", lambda framework: {"harness": "0"})
    elif change != "driver":
        (results.gpu_check / "progress.json").write_text(change)
    assert check(results, step, gpu=H200("590.1" if change == "driver" else "580.65")) == 0
    assert (tmp_path / "ran").read_text() == "a\na\n"
    assert f"From the beginning: not the same as the last time: {names}" in capsys.readouterr().out


def test_no_step_begins_with_too_little_time_left_but_the_report(results: Results, capsys) -> None:
    steps = (shell("a", "exit 0"), shell("report", "exit 0", leaves_s=0))
    assert check(results, *steps, limit_s=module.REPORT_S + module.SHORTEST_S - 1) == 1
    text = capsys.readouterr().out
    assert "  not run: a: no time was left\n" in text and "1 of 2 steps have passed: report" in text


def test_steps_in_company_run_four_at_a_time_and_the_others_alone(results: Results, tmp_path: Path) -> None:
    """Each step notes how many are at work while it is."""

    def step(name: str, kind: str) -> Step:
        mark = f"{tmp_path}/at_work_{name}"
        script = f"touch {mark}; sleep 0.5; ls {tmp_path} | grep -c at_work_ >>{tmp_path}/{kind}; rm {mark}"
        return shell(name, script, in_company=kind == "company")

    in_company = [step(f"t{number}", "company") for number in range(6)]
    assert check(results, *in_company, step("p1", "alone"), step("p2", "alone")) == 0
    company = [int(line) for line in (tmp_path / "company").read_text().split()]
    assert 1 < max(company) <= module.TESTS_AT_A_TIME
    assert (tmp_path / "alone").read_text().split() == ["1", "1"]


def test_a_step_that_takes_too_long_ends_with_all_that_it_started(results: Results, tmp_path: Path, capsys) -> None:
    """Also what it gave to others."""
    script = f"sh -c 'echo $$ >{tmp_path / 'pid'}; sleep 600'; true"
    assert check(results, shell("a", script, limit_s=3, clean_up=("touch", str(tmp_path / "cleaned")))) == 1
    assert f"  not finished: a: after 3 s; log: {results.gpu_check / 'a.log'}\n" in capsys.readouterr().out
    assert (tmp_path / "cleaned").exists()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the sleeper is gone")


def test_ctrl_c_ends_what_runs(results: Results, tmp_path: Path, capsys) -> None:
    pid = tmp_path / "pid"
    steps = (shell("a", "exit 0"), shell("b", f"sleep 0.5; echo $$ >{pid}; exec sleep 600"))

    def interrupt() -> None:
        wait_until(lambda: pid.exists() and pid.read_text().strip() != "", "the second step has begun")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert check(results, *steps) == 1
    thread.join()
    text = capsys.readouterr().out
    assert "Stopped. The same command goes on from here." in text and "  not run: b\n" in text
    wait_until(lambda: not is_alive(int(pid.read_text())), "the second step is gone")


def test_measurements_that_are_not_as_they_should_be_are_named(results: Results, capsys) -> None:
    """Of records without and with flags, a refusal, and a file that is none."""
    save(record("jax", "step.jit"), results)
    save(record("jax", "step.jit", flags={"throttled": "...", "noisy": "..."}), results)
    path = save(record("torch", "step.eager", outcome="refused", reason="too old\nfor this"), results)
    (path.parent / "3.json").write_text("{")
    check(results)
    text = capsys.readouterr().out
    lines = ["Measured: 2 ok, 1 refused", "  any/mnist_1 jax step.jit: throttled, noisy"]
    assert "\n".join(["", *lines, "  any/mnist_1 torch step.eager: refused: too old", ""]) in text
    assert f"-C {results.root} gpu_check records" in text
