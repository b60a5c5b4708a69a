"""What a record says about where it was made."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from harness.paths import REPOSITORY
from harness.results.environment import (
    _cpu_model,
    _memory_total_bytes,
    code_digests,
    describe_environment,
    describe_git,
    describe_slurm,
    is_code_on_disk,
    is_same_code,
    loaded_code,
    relevant_variables,
)
from harness.results.installed import describe_installed

GIT_IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "GIT_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    for command in (["init", "--quiet"], ["add", "a.txt"], [*GIT_IDENTITY, "commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


def test_code_is_known_by_its_contents(tmp_path: Path) -> None:
    for path in ("harness/measure/clock.py", "harness/work/__init__.py", "jax_runner/device.py", "torch_runner/run.py"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("x = 1\n")
    (tmp_path / "harness" / "measure" / "notes.txt").write_text("no code")
    (tmp_path / "harness" / "job.py").write_text("what no measurement runs\n")
    by_hand = hashlib.sha256(b"x = 1\n").hexdigest()[:16]
    of_both = {"harness.measure.clock": by_hand, "harness.work": by_hand}
    assert code_digests("jax", tmp_path) == of_both | {"jax_runner.device": by_hand}
    assert code_digests("torch", tmp_path) == of_both | {"torch_runner.run": by_hand}
    (tmp_path / "harness" / "measure" / "clock.py").write_text("x = 2\n")
    assert code_digests("jax", tmp_path)["harness.measure.clock"] != by_hand


def test_a_record_has_the_code_that_its_process_has_imported() -> None:
    here = code_digests("torch")
    assert loaded_code({"harness.work.no_such": "a", "harness.results.environment": "b"}) == {
        "harness.results.environment": "b"
    }
    code = "import sys, harness.work.schedule; from harness.results.environment import *; import json"
    code += "; print(json.dumps(loaded_code(code_digests('torch'))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = ("harness.work", "harness.work.schedule")
    assert json.loads(done.stdout) == {name: here[name] for name in names}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": "1", "b": "2"}, {"b": "2", "c": "3"}, True),
        ({"a": "1", "b": "2"}, {"b": "4", "a": "1"}, False),
        ({"a": "1"}, {"b": "1"}, False),  # nothing can be said
        ({}, {}, False),
        (None, {"a": "1"}, False),
    ],
)
def test_code_is_the_same_where_all_is_that_both_have_imported(
    one: dict[str, str] | None, other: dict[str, str], is_same: bool
) -> None:
    assert is_same_code(one, other) == is_same


def test_code_is_on_disk_where_all_of_it_is() -> None:
    disk = {"a": "1", "b": "2"}
    assert is_code_on_disk({"a": "1"}, disk)
    for other in ({"a": "2"}, {"a": "1", "gone": "3"}, {}, None):
        assert not is_code_on_disk(other, disk)


def head(repository: Path) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_git_clean_then_dirty(repository: Path) -> None:
    commit = head(repository)
    assert len(commit) == 40
    assert describe_git(repository) == {"commit": commit, "clean": True, "absent": None}
    (repository / "new.py").write_text("")  # which git does not know
    assert describe_git(repository)["clean"] is False
    (repository / "new.py").unlink()
    (repository / "a.txt").write_text("two\n")
    assert describe_git(repository) == {"commit": commit, "clean": False, "absent": None}


def test_no_repository(tmp_path: Path) -> None:
    git = describe_git(tmp_path)
    assert (git["commit"], git["clean"]) == (None, None)
    assert "not a git repository" in git["absent"]


def test_no_git(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_git(repository) == {"commit": None, "clean": None, "absent": "git is not installed"}


def test_local(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = describe_environment()
    assert (environment["scheduler"], environment["slurm"]) == ("local", None)
    assert environment["python"] == platform.python_version()
    assert environment["node"] == environment["hostname"] == os.uname().nodename
    assert environment["interpreter"] == sys.executable
    assert environment["cpu"]["affinity"] == sorted(os.sched_getaffinity(0))
    assert environment["cpu"]["count"] == os.cpu_count()
    assert environment["memory_total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert len(environment["load_average"]) == 3


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_JOB_ID": "4711",
        "SLURMD_NODENAME": "gpu07",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "SLURM_JOB_PARTITION": "a100",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_GPUS": "0,3",
    }.items():
        monkeypatch.setenv(name, value)
    environment = describe_environment()
    assert (environment["scheduler"], environment["node"]) == ("slurm", "gpu07")
    slurm = environment["slurm"]
    assert (slurm["job_id"], slurm["nodelist"], slurm["partition"]) == ("4711", "gpu[07-08]", "a100")
    assert (slurm["restart_count"], slurm["nodes"], slurm["job_gpus"]) == (2, "2", "0,3")
    assert slurm["account"] is None
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    assert describe_slurm()["restart_count"] == 0


def test_package_versions_are_the_installed_ones() -> None:
    versions = describe_installed()["packages"]
    for name in ("numpy", "wandb", "nvidia-ml-py"):
        assert versions[name] == metadata.version(name)
    assert "pytest" not in versions


def test_variables_that_matter_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PLATFORMS": "cuda",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "8",
    }
    secrets = "WANDB_API_KEY JAX_SOME_TOKEN TORCH_HUB_PASSWORD AWS_SECRET_ACCESS_KEY"
    unwanted = dict.fromkeys(f"{secrets} MY_XLA_FLAGS TORCHINDUCTOR_CACHE_DIR".split(), "hunter2")
    for name, value in {**wanted, **unwanted}.items():
        monkeypatch.setenv(name, value)
    variables = relevant_variables()
    assert {name: variables.get(name) for name in wanted} == wanted
    assert not set(unwanted) & set(variables)
    assert "hunter2" not in json.dumps(describe_environment())


def test_proc_files(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\nflags\t: sse\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1048576 kB\nMemFree: 1 kB\n")
    assert _cpu_model(tmp_path / "cpuinfo") == "AMD EPYC 7763 64-Core Processor"
    assert _memory_total_bytes(tmp_path / "meminfo") == 2**30
    assert _cpu_model(tmp_path / "none") is None
    assert _memory_total_bytes(tmp_path / "none") is None
