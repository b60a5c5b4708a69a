"""Several jobs at once on one node, each with a GPU of its own and its share of the CPUs that are near it.

    python -m harness.job --plan A.json --plan B.json

Each is a process like that of any other job, with a job folder of its own; more jobs than GPUs wait for one that is
free.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import ConfigError
from harness.files import in_words, write_atomically
from harness.job.children import job_signals_blocked
from harness.job.job import EXIT_FAILED, Stopped, stop_on_signal
from harness.job.slurm_step import LANE
from harness.job.turn import MACHINE
from harness.locks import hold, machine_lock
from harness.measure.gpu import HIDDEN, open_gpu, visible_gpu_count
from harness.paths import REPOSITORY, JobFolder
from harness.results.environment import numbers_in

LOOK_EVERY_S = 0.5
STOP_GRACE_S = 60.0
"""For a job to end its measurement and write a last heartbeat, before it is killed; Slurm leaves it 90 s."""
KILLED_S = 10.0
"""For the kernel to end what was killed. What hangs in a driver stays, and is not waited for."""
SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One GPU of the node, and the CPUs of the job that has it."""

    gpu: str
    cpus: tuple[int, ...]

    @property
    def variables(self) -> dict[str, str]:
        return {LANE: f"{self.gpu} {','.join(map(str, self.cpus))}", "CUDA_VISIBLE_DEVICES": self.gpu}


def lanes_of_node() -> list[Lane]:
    """One for each GPU that is shown to this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = map(str, range(visible_gpu_count() or 0)) if visible is None else map(str.strip, visible.split(","))
    gpus = [name for name in shown if name not in HIDDEN]
    allowed = os.sched_getaffinity(0)
    near = [_cpus_near(open_gpu(position).describe().get("numa_node")) & allowed for position in range(len(gpus))]
    cores = [numbers_in(_text(SYSTEM / f"cpu/cpu{cpu}/topology/thread_siblings_list")) or [cpu] for cpu in allowed]
    return [Lane(gpu=gpu, cpus=cpus) for gpu, cpus in zip(gpus, shares(near, allowed, cores), strict=True)]


def shares(
    near: Sequence[Collection[int]], allowed: Collection[int], cores: Collection[Sequence[int]]
) -> list[tuple[int, ...]]:
    """The CPUs of each GPU: those near it, shared out by whole cores with the other GPUs near the same ones.

    Args:
        near: of each GPU the allowed CPUs of its NUMA node; with an empty one among them, all GPUs share all.
        cores: the CPUs of each core, which may come several times.
    """
    homes = [frozenset(one) for one in near] if all(near) else [frozenset(allowed)] * len(near)
    of_home, place = Counter(homes), Counter[frozenset[int]]()
    found = []
    for home in homes:
        own = sorted({tuple(sorted(home.intersection(core))) for core in cores} - {()})
        part, parts = place[home], of_home[home]
        place[home] += 1
        # With more GPUs than cores, several have the same core.
        chosen = own[part * len(own) // parts : (part + 1) * len(own) // parts] or [own[part % len(own)]]
        found.append(tuple(cpu for core in chosen for cpu in core))
    return found


def _cpus_near(numa_node: int | None) -> set[int]:
    """Empty where that is not known."""
    return set() if numa_node is None else set(numbers_in(_text(SYSTEM / f"node/node{numa_node}/cpulist")))


def _text(path: Path) -> str:
    """Empty where there is none."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def take_lane() -> bool:
    """Go where LANE says, before a framework is imported: to the GPU and onto the CPUs, whose NUMA node then gives the
    memory, as Linux does by itself. Returns whether LANE says anything."""
    gpu, _, cpus = os.environ.get(LANE, "").partition(" ")
    if not cpus:
        return False
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "":  # else the GPU is hidden from this process
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if own := os.sched_getaffinity(0).intersection(numbers_in(cpus)):
        os.sched_setaffinity(0, own)
    return True


def measure_side_by_side(folders: Sequence[JobFolder]) -> int:
    """Run all jobs to their ends. Returns 0, or 1 where one of them failed: that costs no other.

    Raises:
        ConfigError: no GPU is shown to this process.
        Stopped: by a signal, which each job was given first.
    """
    lanes = lanes_of_node()
    if not lanes:
        raise ConfigError(
            f"{len(folders)} plans at once need a GPU each, and none is here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}). Give one plan at a time."
        )
    _say(f"{len(folders)} jobs on {len(lanes)} GPUs: " + "; ".join(one.variables[LANE] for one in lanes))
    for folder in folders:
        _note_wait(folder, "a GPU of its node")
    with stop_on_signal(), _machine(), _Running() as running:
        return running.all_of(folders, lanes)


@contextmanager
def _machine() -> Iterator[None]:
    """Outside Slurm: nobody else measures on this machine meanwhile (harness/job/turn.py)."""
    lock = machine_lock(f"turn-{MACHINE}")
    with ExitStack() as stack:
        if "SLURM_JOB_ID" not in os.environ:
            with suppress(OSError):  # no locks here
                stack.enter_context(hold(lock, while_waiting=lambda who: _say(f"waits for {who}")))
        yield


class _Running:
    """The jobs' processes. On leaving, none is left that can be ended."""

    def __init__(self) -> None:
        self._processes: dict[Lane, tuple[JobFolder, subprocess.Popen[bytes]]] = {}

    def __enter__(self) -> "_Running":
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        # Not SIGTERM, which a submitted job ignores (pipeline/submission/slurm.py), and so does what it starts.
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        for _, process in self._processes.values():
            process.send_signal(number)
        give_up_at = time.monotonic() + STOP_GRACE_S
        for _, process in self._processes.values():
            try:
                process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(KILLED_S)

    def all_of(self, folders: Sequence[JobFolder], lanes: Sequence[Lane]) -> int:
        """0, or 1 where one failed."""
        waiting, status = deque(folders), 0
        while waiting or self._processes:
            for lane in lanes:
                if waiting and lane not in self._processes:
                    folder = waiting.popleft()
                    try:
                        self._start(folder, lane)
                    except OSError as error:  # such as a full disk: that costs no other
                        _say(f"{folder.name}: cannot be started: {in_words(error)}")
                        status = EXIT_FAILED
            for lane, (folder, process) in list(self._processes.items()):
                if (ended := process.poll()) is not None:
                    del self._processes[lane]
                    _say(f"{folder.name}: {f'ended with status {ended}' if ended else 'done'}")
                    status = EXIT_FAILED if ended else status
            time.sleep(LOOK_EVERY_S)
        return status

    def _start(self, folder: JobFolder, lane: Lane) -> None:
        with suppress(OSError):
            folder.waits_for.unlink(missing_ok=True)
        log = folder.root / f"{os.environ.get('SLURM_JOB_ID', os.getpid())}_0_log.err"
        arguments = ["--results", str(folder.results.root), "--job-folder", str(folder.root)]
        _say(f"{folder.name}: starts on GPU {lane.gpu}, log {log}")
        # A signal that comes meanwhile finds the process in the list.
        with log.with_suffix(".out").open("ab") as output, log.open("ab") as errors, job_signals_blocked():
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "harness.job", *arguments],
                cwd=REPOSITORY,
                env=os.environ | lane.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # its signals come from here alone
            )
            self._processes[lane] = folder, process


def _note_wait(folder: JobFolder, what: str) -> None:
    with suppress(OSError):  # a full disk costs the words only
        write_atomically(folder.waits_for, what, replace=True)


def _say(line: str) -> None:
    with suppress(OSError):  # as above
        print(f"{datetime.now(UTC):%H:%M:%S} node | {line}", flush=True)
