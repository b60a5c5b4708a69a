"""Where a job runs: machine, scheduler, packages, git state and the variables that steer the frameworks.

Read once per job, without a framework and without a network. What cannot be read is None.
"""

import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.paths import REPOSITORY
from harness.results.cpus import cpu_quota
from harness.results.installed import describe_installed

VARIABLES = re.compile(
    r"XLA_\w+|JAX_\w+|TORCH\w*|PYTORCH_\w+|CUDA_\w+|CUDNN_\w+|CUBLAS_\w+|NVIDIA_\w+|NCCL_\w+|TRITON_\w+"
    r"|(G?OMP|KMP|MKL|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|TBB|ONEDNN|DNNL|ATEN|MALLOC)_\w+|NPROC|MEASUREMENT_THREADS"
    r"|GLIBC_TUNABLES|NVTX_INJECTION64_PATH|TF_(XLA|CUDNN|GPU|FORCE|ENABLE)_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED|WANDB_MODE"
)
CACHE_FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
}
"""Of compilers, new for each measurement. So their names say nothing, and are not recorded."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)

SLURM_VARIABLES = {
    "job_id": "SLURM_JOB_ID",
    "job_name": "SLURM_JOB_NAME",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "restart_count": "SLURM_RESTART_COUNT",
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
    "nodelist": "SLURM_JOB_NODELIST",
    "nodes": "SLURM_JOB_NUM_NODES",
    "tasks": "SLURM_NTASKS",
    "task": "SLURM_PROCID",
    "cpus_per_task": "SLURM_CPUS_PER_TASK",
    "memory_per_node_mb": "SLURM_MEM_PER_NODE",
    "gpus_on_node": "SLURM_GPUS_ON_NODE",
    "job_gpus": "SLURM_JOB_GPUS",
    "step_gpus": "SLURM_STEP_GPUS",
}
SLURM_COUNTS = frozenset(
    {"restart_count", "nodes", "tasks", "task", "cpus_per_task", "memory_per_node_mb", "gpus_on_node"}
)


def describe_environment(repository: Path = REPOSITORY) -> dict[str, Any]:
    """Everything here can be written as JSON. No secret is in it."""
    slurm = describe_slurm()
    hostname = socket.gethostname()
    return {
        **describe_python(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hostname": hostname,
        "node": os.environ.get("SLURMD_NODENAME", hostname),
        "scheduler": "local" if slurm is None else "slurm",
        "slurm": slurm,
        "cpu": describe_cpu(),
        "memory_total_bytes": _memory_total_bytes(Path("/proc/meminfo")),
        "load_average": load_average(),
        "git": describe_git(repository),
        "variables": relevant_variables(),
        **describe_infiniband(),
    }


def describe_python() -> dict[str, Any]:
    """Of this process: a framework's may have a Python and packages of its own."""
    return {
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "interpreter": sys.executable,
        **describe_installed(),
    }


def describe_infiniband(devices: Path = Path("/sys/class/infiniband")) -> dict[str, Any]:
    """Each port by its name, such as `mlx5_0/1`: state, rate and link layer in the driver's words. Nothing without."""
    ports = {
        f"{port.parent.parent.name}/{port.name}": {name: _text(port / name) for name in ("state", "rate", "link_layer")}
        for port in sorted(devices.glob("*/ports/*"))
    }
    return {"infiniband": ports} if ports else {}


def load_average() -> list[float]:
    """Of the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def describe_slurm() -> dict[str, str | int | None] | None:
    """None outside a Slurm job. The restart count, which Slurm leaves unset at first, is 0 then."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    values: dict[str, str | int | None] = {}
    for name, variable in SLURM_VARIABLES.items():
        text = os.environ.get(variable)
        values[name] = _count(text) if name in SLURM_COUNTS else text
    return values | {"restart_count": values["restart_count"] or 0}


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None


def describe_cpu() -> dict[str, Any]:
    affinity = sorted(os.sched_getaffinity(0))
    model = _cpu_model(Path("/proc/cpuinfo"))
    quota = cpu_quota()
    limits = {} if quota is None else {"quota": quota}
    return {"model": model, "count": os.cpu_count(), "affinity": affinity, **limits, **cpu_topology()}


def cpu_topology(system: Path = Path("/sys/devices/system")) -> dict[str, Any]:
    """Of the whole machine; what the kernel does not say is left out. `smt`: several threads share a core now."""
    topology = list(system.glob("cpu/cpu[0-9]*/topology"))
    siblings = [len(numbers_in(_text(folder / "thread_siblings_list"))) for folder in topology]
    found = {
        "smt": {"0": False, "1": True}.get(_text(system / "cpu/smt/active")),
        "threads_per_core": max(siblings, default=0) or None,
        "sockets": len({_text(folder / "physical_package_id") for folder in topology} - {""}) or None,
        "numa_nodes": len(numbers_in(_text(system / "node/online"))) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(path: Path) -> str:
    """Without the line's end; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def numbers_in(ranges: str) -> list[int]:
    """`0,2-4` as 0, 2, 3, 4, by Slurm and by the kernel; none of nothing."""
    parts = [part.partition("-") for part in ranges.split(",") if part]
    return [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]


def describe_rank() -> dict[str, Any]:
    """By what Slurm has bound this rank of a step, and to which CPUs."""
    return {"cpu_bind": os.environ.get("SLURM_CPU_BIND"), "affinity": sorted(os.sched_getaffinity(0))}


def describe_git(repository: Path) -> dict[str, Any]:
    """Return the commit, and whether the tree is clean, for people to read: nothing is compared by them, and a folder
    without git is as good. Untracked files count as changes, as an experiment's code may be among them."""
    try:
        commit = _git(repository, "rev-parse", "HEAD")
        changes = _git(repository, "status", "--porcelain")
        return {"commit": commit, "clean": not changes, "absent": None}
    except FileNotFoundError:
        reason = "git is not installed"
    except subprocess.TimeoutExpired:
        reason = "git did not answer in 5 s"
    except subprocess.CalledProcessError as error:
        reason = " ".join(str(error.stderr).split()) or f"git ended with status {error.returncode}"
    return {"commit": None, "clean": None, "absent": reason}


def relevant_variables() -> dict[str, str]:
    """Those that steer the frameworks, CUDA or thread pools; never one whose name sounds like a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if VARIABLES.fullmatch(name) and not SECRET.search(name) and name not in CACHE_FOLDERS
    }


def _git(repository: Path, *arguments: str) -> str:
    # Without the optional locks, `status` writes nothing: many jobs may share one checkout.
    command = ["git", "--no-optional-locks", "-C", str(repository), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5, env=_git_environment())
    return done.stdout.strip()


def _git_environment() -> dict[str, str]:
    """English messages; and nothing of a git hook that runs us, which would answer for another repository."""
    of_a_hook = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    return {name: value for name, value in os.environ.items() if name not in of_a_hook} | {"LC_ALL": "C"}


def _cpu_model(cpuinfo: Path) -> str | None:
    if not (text := _text(cpuinfo)):
        return None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def _memory_total_bytes(meminfo: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", _text(meminfo), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None
