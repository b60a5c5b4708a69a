"""The tests that need a GPU, without one: which cases there are, and what becomes of each whatever its process does."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS
from harness.work.declared import use_case, use_case_names
from tests.gpu import group
from tests.gpu.cases import all_cases, models_of
from tests.made.patience import slowdown
from tests.made.processes import output_of
from tests.whole.test_install import program

CHILD = """
import json, os, sys, time
for name in json.loads(sys.argv[1]):
    print(json.dumps({"begun": name}), flush=True)
    if name.endswith("dies"):
        os._exit(3)
    if name.endswith("hangs"):
        time.sleep(60)
    answer = {"outcome": "ok", "words": f"by {os.environ['WHO']}", "seconds": 0.5}
    print(json.dumps({"ended": name, "answer": answer}), flush=True)
"""


def test_every_declared_mode_of_one_device_is_a_case() -> None:
    """In each precision that it has."""
    declared = {
        (framework, name, mode.name)
        for framework in FRAMEWORKS
        for name in use_case_names()
        for mode in use_case(name).modes[framework]
        if mode.run.min_devices == mode.written.min_devices == 1
    }
    found = [(case.framework, case.use_case, case.mode, case.precision) for case in all_cases()]
    assert {case[:3] for case in found} == declared and len(found) == len(set(found)) > 30
    assert {use_case for _, use_case, _, precision in found if precision == "fp16"} == {"inference"}
    assert [case for case in all_cases() if not list(models_of(case))] == []


def test_a_case_that_ends_or_blocks_its_process_costs_itself_alone(tmp_path: Path) -> None:
    names = ["jax-a", "jax-dies", "jax-b", "jax-hangs", "jax-c"]
    command, timeout_s = [sys.executable, "-c", CHILD], round(2 * slowdown())
    environment = {**os.environ, "WHO": "a child"}
    answers = group.run_group(names, tmp_path / "log", environment, command=command, timeout_s=timeout_s)
    outcomes = {name: answer["outcome"] for name, answer in answers.items()}
    assert outcomes == dict.fromkeys(names, "ok") | {"jax-dies": "failed", "jax-hangs": "failed"}
    assert answers["jax-a"]["words"] == "by a child"
    assert answers["jax-dies"]["words"] == f"the process ended with status 3; log: {tmp_path / 'log'}"
    assert answers["jax-hangs"]["words"] == f"no answer in {timeout_s} s; log: {tmp_path / 'log'}"


def test_without_a_gpu_the_cases_are_one_line_or_skipped_or_fail() -> None:
    """One line where all tests are run, skipped where the folder is named, failed where a GPU is required."""
    from tests.gpu.conftest import why_no_gpu

    if why_no_gpu() is None:
        pytest.skip("this machine has a GPU")
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    optional = {name: value for name, value in os.environ.items() if name != "REQUIRE_GPU"}

    def run(*arguments: str, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [*pytest_here, *arguments], cwd=REPOSITORY, env=optional | variables, capture_output=True, text=True
        )
        return done.returncode, done.stdout

    line = f"tests/gpu: {len(all_cases())} cases need an NVIDIA GPU: not collected"
    _, output = run("--collect-only", "-k", "test_adding", "tests")
    assert line in output.splitlines() and "tests/gpu/test_" not in output
    status, output = run("tests/gpu")
    assert status == 0 and line not in output and " skipped: needs an NVIDIA GPU: " in output
    status, output = run("-k", "test_out_of_memory_is_recognised", "tests/gpu", REQUIRE_GPU="1")
    assert status == 1 and "REQUIRE_GPU=1, and needs an NVIDIA GPU: " in output


def gpu_check(tmp_path: Path) -> tuple[int, str]:
    """Run tests/gpu/check.sh with programs that only note how they are called."""
    program(tmp_path / "nvidia-smi", "exit 0")
    program(tmp_path / "python", 'case "$*" in *"import pytest"*) ;; *) echo "$*" >>"$CALLS" ;; esac')
    environment = os.environ | {"CALLS": str(tmp_path / "calls"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["tests/gpu/check.sh", str(tmp_path / "python"), str(tmp_path / "results" / "gpu-check")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_gpu_check_goes_through_its_steps_and_names_what_to_send(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "gpu-check"
    status, said = gpu_check(tmp_path)
    steps = [
        "main.py doctor --compute --executor local",
        "-m pytest -m gpu tests/gpu -q -rfE --tb=short -p no:cacheprovider",
        f"main.py --preset demo --executor local --wait --results {folder}",
    ]
    assert (status, (tmp_path / "calls").read_text().splitlines()) == (0, steps)
    assert "All steps passed: doctor, tests, demo.\n" in said
    assert said.splitlines()[-1].startswith(f"Send {folder}.tar.gz: ")
    with tarfile.open(f"{folder}.tar.gz") as archive:
        assert sorted(archive.getnames()) == [
            "gpu-check",
            *(f"gpu-check/{step}.log" for step in ("demo", "doctor", "tests")),
        ]


def test_the_gpu_check_runs_no_test_again_that_has_passed(tmp_path: Path) -> None:
    """On a GPU; here the tests' own process is told of one that passes and one that fails."""
    code = """
import sys
from types import SimpleNamespace as Made
from tests.gpu import conftest
config = Made(hook=Made(pytest_deselected=lambda items: print("not again:", *(one.nodeid for one in items))))
items = [Made(nodeid=name, path=conftest.Path("/x")) for name in "abcd"]
conftest.pytest_collection_modifyitems(config, items)
print("to run:", *(one.nodeid for one in items))
for name, when, failed in (("a", "call", False), ("b", "call", True), ("c", "setup", False)):
    conftest.pytest_runtest_logreport(Made(nodeid=name, when=when, failed=failed))
"""
    environment = os.environ | {"GPU_CHECK": str(tmp_path)}
    for shown in ("to run: a b c d\n", "not again: a\nto run: b c d\n"):
        assert output_of("-c", code, env=environment) == shown
    [passed] = tmp_path.glob("passed-*.txt")
    passed.rename(tmp_path / "passed-01234567.txt")  # with another driver, say
    assert output_of("-c", code, env=environment) == "to run: a b c d\n"
