"""One srun step: the command that starts a measurement's ranks on all nodes, and what srun says of their ends.

srun brings the task to every rank and their events back, keeps each rank's log, and kills them all where it is told to
or dies itself. Pure, but for the two functions that ask Slurm and the kernel.
"""

import os
import random
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import ConfigError, ProjectError
from harness.job.ranks import log_of_rank
from harness.plan import Cell
from harness.printable import shortened
from harness.results.environment import numbers_in

PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections (ip_local_port_range begins at 32768)."""
PORTS_TO_TRY = 64
GPU_SLOT = "MEASUREMENT_GPU_SLOT"
"""Environment variable of a job that is one of several steps on a whole node (templates/node.sh.j2). Empty until the
job fills in its GPU, as in CUDA_VISIBLE_DEVICES, and its CPUs: `3 24,25,26`. A step that such a job starts itself, as
pyxis needs one, is given the whole node, and its process moves to this GPU and these CPUs."""

_ENDS = re.compile(r"srun: error: \S+: tasks? (?P<tasks>[\d,-]+): (?P<how>.+)")
_EXIT = re.compile(r"Exited with exit code (\d+)")
_LOST_NODE = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
_SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}
STUCK = "Timed out waiting for job step to complete"
"""srun's words when a task outlives its SIGKILL."""


def require_allocation(cell: Cell, variables: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError where the cell's ranks cannot be started from here."""
    tasks = _count_of("SLURM_STEP_NUM_TASKS", variables)
    if tasks > 1:
        raise ConfigError(
            f"run.py was started {tasks} times, as the tasks of one step. Start it once, with sbatch or with "
            f"srun --ntasks=1; it starts its ranks itself."
        )
    nodes = _count_of("SLURM_JOB_NUM_NODES", variables)
    _count_of("SLURM_CPUS_PER_TASK", variables)
    if cell.devices > 1 and nodes != cell.nodes:
        here = f"this Slurm job has {nodes}" if "SLURM_JOB_ID" in variables else "without Slurm there is one"
        raise ConfigError(
            f"use case {cell.use_case} needs {cell.nodes} node(s) with {cell.devices // cell.nodes} device(s) each, "
            f"and {here}. Submit its script with sbatch, or change nodes in experiments.yaml."
        )


def _count_of(name: str, variables: Mapping[str, str]) -> int:
    """1 where Slurm has not set it. Raises ConfigError for what Slurm has never written."""
    text = variables.get(name, "1")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(
            f"{name} is {shortened(text)!r}, where Slurm writes a number. Leave it as it is in `setup` and in the "
            f"environment, or `unset {name}` outside Slurm."
        )
    return int(text)


def step_command(
    cell: Cell, ranks: int, log: Path, variables: Mapping[str, str] = os.environ, *, options: Sequence[str] = ()
) -> list[str]:
    """`srun` with its options, a site's own `options` last, which beat these; the command of a rank follows.

    A rank has the CPUs of one device, times the devices that it stands for; all of the node where the job has a
    GPU_SLOT, to whose CPUs the rank then moves by itself. No default of a site may end the other ranks before the cause
    of a death is known, or keep a variable from them.
    """
    cpus = variables.get("SLURM_JOB_CPUS_PER_NODE" if GPU_SLOT in variables else "SLURM_CPUS_PER_TASK")
    output = log_of_rank(Path(str(log).replace("%", "%%")), "%t", ranks)  # srun puts the rank there
    return [
        "srun",
        f"--nodes={cell.nodes}",
        f"--ntasks={ranks}",
        f"--ntasks-per-node={ranks // cell.nodes}",
        *([f"--cpus-per-task={int(cpus) * cell.devices // ranks}"] if cpus else []),
        "--distribution=block",
        "--overlap",
        "--mpi=none",
        "--export=ALL",
        "--input=all",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--error={output}",
        *options,
    ]


def note_gpu_slot() -> None:
    """Fill in GPU_SLOT where it is set."""
    if GPU_SLOT in os.environ:
        gpu = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ[GPU_SLOT] = f"{gpu} {','.join(map(str, sorted(os.sched_getaffinity(0))))}"


def take_gpu_slot() -> None:
    """Move this process to the GPU and CPUs of GPU_SLOT, where it is set. Call it before a framework is imported."""
    gpu, _, cpus = os.environ.get(GPU_SLOT, "").partition(" ")
    if cpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.sched_setaffinity(0, numbers_in(cpus))


def ends_of_tasks(line: str) -> dict[int, int]:
    """Exit status by rank, negative for a signal, of a line that srun wrote. Empty where it tells of no end."""
    match = _ENDS.match(line)
    if match is None:
        return {}
    how = match["how"].removesuffix(" (core dumped)")
    status = _EXIT.match(how)
    # Anything else, such as "Out Of Memory", is Slurm's own reason for a SIGKILL.
    code = int(status[1]) if status else _SIGNALS.get(how, -signal.SIGKILL)
    return dict.fromkeys(numbers_in(match["tasks"]), code)


def lost_node(line: str) -> str | None:
    match = _LOST_NODE.match(line)
    return match["node"] if match else None


def may_be_requeued() -> bool:
    """Of this job; what Slurm does not deny."""
    with suppress(OSError, subprocess.TimeoutExpired, KeyError):
        command = ["scontrol", "--oneliner", "show", "job", os.environ["SLURM_JOB_ID"]]
        return " Requeue=0 " not in subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    return True


def controller_answers() -> bool:
    try:
        ping = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return " is UP" in ping.stdout


def nodes_of_job(variables: Mapping[str, str] = os.environ) -> list[str]:
    """In the order in which a step takes them. Raises ProjectError where scontrol is needed and does not answer."""
    node_list = variables["SLURM_JOB_NODELIST"]
    if "[" not in node_list:
        return node_list.split(",")
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["scontrol", "show", "hostnames", node_list]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode == 0:
            return done.stdout.split()
    raise ProjectError(f"`scontrol show hostnames {node_list}` does not answer on {socket.gethostname()}")


def free_port() -> int:
    """Of this node, for a server that another process starts in a few seconds; in PORTS, so that no outgoing connection
    takes it meanwhile. Raises ProjectError where none is found."""
    for port in random.sample(PORTS, PORTS_TO_TRY):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise ProjectError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on {socket.gethostname()}")
