"""What a record says about where it was made."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results.environment import (
    cpu_topology,
    describe_environment,
    describe_git,
    describe_infiniband,
    describe_slurm,
    relevant_variables,
)


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "GIT_"))]:
        monkeypatch.delenv(name)


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_git_clean_dirty_not_a_repository_and_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_files(repository, {"a.txt": "one\n"})
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    for command in ("init --quiet", "add a.txt", "commit --quiet -m first", "rev-parse HEAD"):
        git = ["git", "-C", str(repository), *identity, *command.split()]
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("GIT_DIR", "/nonexistent")  # of a hook, which does not answer for us
    assert describe_git(repository) == {"commit": commit, "clean": True, "absent": None} and len(commit) == 40
    (repository / "new.py").write_text("")  # which git does not know
    assert describe_git(repository) == {"commit": commit, "clean": False, "absent": None}
    found = describe_git(tmp_path)
    assert (found["commit"], found["clean"]) == (None, None) and "not a git repository" in found["absent"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_git(repository) == {"commit": None, "clean": None, "absent": "git is not installed"}


def test_local() -> None:
    environment = describe_environment()
    assert (environment["scheduler"], environment["slurm"]) == ("local", None)
    assert (environment["python"], environment["interpreter"]) == (platform.python_version(), sys.executable)
    assert environment["node"] == environment["hostname"] == os.uname().nodename
    assert environment["cpu"]["affinity"] == sorted(os.sched_getaffinity(0))
    assert (environment["cpu"]["model"] or "") in Path("/proc/cpuinfo").read_text()
    assert environment["memory_total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_topology_of_two_sockets_with_two_threads_per_core_and_ports_of_infiniband(tmp_path: Path) -> None:
    """CPU 0 and 2, and 1 and 3, are a core each. Nothing is said where sysfs is not there."""
    port = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    files = {f"mlx5_0/ports/1/{name}": f"{text}\n" for name, text in port.items()}
    files |= {"cpu/smt/active": "1\n", "node/online": "0-1,4\n"}
    for cpu in range(4):
        files[f"cpu/cpu{cpu}/topology/physical_package_id"] = f"{cpu % 2}\n"
        files[f"cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 2},{cpu % 2 + 2}\n"
    write_files(tmp_path, files)
    assert cpu_topology(tmp_path) == {"smt": True, "threads_per_core": 2, "sockets": 2, "numa_nodes": 3}
    assert describe_infiniband(tmp_path) == {"infiniband": {"mlx5_0/1": port}}
    assert cpu_topology(tmp_path / "nothing") == describe_infiniband(tmp_path / "nothing") == {}


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"JOB_ID": "4711", "JOB_NODELIST": "gpu[07-08]", "JOB_NUM_NODES": "2", "RESTART_COUNT": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu07")
    environment = describe_environment()
    assert (environment["scheduler"], environment["node"]) == ("slurm", "gpu07")
    found = {name: value for name, value in environment["slurm"].items() if value is not None}
    assert found == {"job_id": "4711", "nodelist": "gpu[07-08]", "nodes": 2, "restart_count": 2}
    for odd in ("z", "", "-1", "9" * 5000):
        monkeypatch.setenv("SLURM_RESTART_COUNT", odd)
        assert describe_slurm()["restart_count"] == 0


def test_variables_that_matter_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "XLA_FLAGS JAX_PLATFORMS TORCHINDUCTOR_MAX_AUTOTUNE NVIDIA_TF32_OVERRIDE CUDA_VISIBLE_DEVICES"
    secrets = "WANDB_API_KEY JAX_SOME_TOKEN TORCH_HUB_PASSWORD AWS_SECRET_ACCESS_KEY"
    unwanted = f"{secrets} MY_XLA_FLAGS TORCHINDUCTOR_CACHE_DIR"
    for name in wanted.split():
        monkeypatch.setenv(name, "1")
    for name in unwanted.split():
        monkeypatch.setenv(name, "hunter2")
    assert {*wanted.split()} <= relevant_variables().keys() - {*unwanted.split()}
    assert "hunter2" not in json.dumps(describe_environment())
