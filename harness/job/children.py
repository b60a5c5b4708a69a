"""The processes of one measurement: started on every rank, listened to until they are over, killed.

On one device the job starts the process itself. On several it starts one step with srun, or without Slurm a process for
each rank on this machine. All of them are `run.py --rank`: the task comes in on stdin, events go out on stdout
(harness/measure/channel.py), and whatever a framework prints goes to the log, by stderr.

To a rank's own events three kinds are added: `exit`, the last one, with the exit status and the end of the log;
`silent`, when nothing more can come; and `lost`, when the rank's node is gone.
"""

import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from harness.errors import ProjectError
from harness.files import way_out
from harness.job.caches import PREFIX, in_use, new_name
from harness.job.launch import command_of, kill_command, step_options
from harness.job.ranks import Ranks, RanksReport, log_of_rank
from harness.job.slurm_step import (
    STUCK,
    controller_answers,
    ends_of_tasks,
    free_port,
    lost_node,
    nodes_of_job,
    require_allocation,
    step_command,
)
from harness.measure.channel import ChildTask, Event, Listener
from harness.measure.gpu import open_gpu
from harness.measure.world import ALONE, World
from harness.paths import REPOSITORY
from harness.plan import Framework, JobPlan, Measurement
from harness.results.cpus import thread_variables
from harness.results.environment_variables import unset_steering
from harness.slurm_words import NO_ANSWER
from harness.work.declared import use_case

LOG_TAIL_LINES = 15
DRAIN_S = 30.0
"""For the last events of a process that has ended, on a busy machine. Some process of another session, which it left
behind, may keep its pipe open."""
END_TIMEOUT_S = 30.0
"""From SIGKILL to the end of a rank. The driver may take seconds to free a GPU's memory; what takes longer hangs in the
kernel and may do so for ever."""
STEP_END_TIMEOUT_S = 90.0
"""The same for srun, which waits for KillWait of slurm.conf, 30 s by default, before it says that a task is left."""
CONTROLLER_PATIENCE_S = 600.0
"""For Slurm's controller to come back, as after an update. The allocation stays, and may have been waited for for
days."""
ASK_CONTROLLER_EVERY_S = 5.0
STEP_RETRIES = 3
CLEAN_UP_S = 10.0
"""A job that is preempted has little time."""
BESIDE_THE_POOL_BYTES = 1.5 * 2**30
JOB_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""By these a scheduler or a user ends a job. What they mean is the job's to decide; it kills its ranks."""

UNFRAGMENTED: dict[Framework, dict[str, str]] = {
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
    "torch": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
}
"""How each framework's allocator is told to keep the GPU's memory in one piece. JAX's default, which PREALLOCATE=false
takes from it, and what PyTorch's own message about an allocation that did not fit advises."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}

Events = queue.SimpleQueue[tuple[int, Event]]
Tell = Callable[[int, Event], None]
"""Called from threads with a rank and what it told."""
Say = Callable[[str], None]


class RanksStuckError(ProjectError):
    """A process outlived its SIGKILL: no measurement of this job can run beside it."""


class Children:
    """Starts the processes of one measurement after the other, for one job. For use in the main thread only: the kernel
    ends a process with the thread that started it."""

    def __init__(
        self, plan: JobPlan, results: Path, *, while_waiting: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        """
        Args:
            results: the folder below which processes write.
            tell: what it waits for, where that is not its ranks.

        Raises ConfigError where the cell's ranks cannot be started from here.
        """
        self._framework, self._cell, self._launch = plan.framework, plan.cell, plan.launch
        cell = plan.cell
        require_allocation(cell)
        self._srun_options = plan.srun_options
        self._folders = [REPOSITORY, results, Path(plan.data_dir).absolute(), Path(tempfile.gettempdir())]
        self._while_waiting = while_waiting
        self._tell = tell
        self._use_case = use_case(cell.use_case_name)
        self._is_step = (cell.devices > 1 or plan.launch.runtime == "pyxis") and "SLURM_JOB_ID" in os.environ
        self._caches = new_name()
        self._was_killed = False
        self._stuck: str | None = None

    def is_per_node(self, measurement: Measurement) -> bool:
        """Whether one process does it for all devices of a node."""
        mode = self._use_case.mode(self._framework, measurement.variant.execution_mode)
        return self._cell.devices > 1 and mode.run.process_per_node

    def work(self, task: ChildTask, log: Path, hear: Callable[[Event], None]) -> RanksReport:
        """Do `task` on every rank. On return no process of it is left, or RanksStuckError comes next time.

        What takes longer than the protocol's timeout is ended. A measurement that runs out of a GPU's memory is
        retried once with an allocator that leaves no gaps, as `out_of_memory` is final.

        Args:
            log: of rank 0 where there is one rank; see log_of_rank.
            hear: gets the events of rank 0.

        Raises:
            RecordError: the log cannot be written.
            RanksStuckError: the processes of an earlier task are still there.
        """
        self.require_none_stuck()
        nodes = self._nodes_of_ranks(task.measurement)
        caches = task.caches or str(self._caches)
        task = task.model_copy(update={"world": self._world(nodes), "caches": caches})
        was_killed, self._was_killed = self._was_killed, True  # also where a signal ends this
        report = self._work_once(task, nodes, log, hear)
        for _ in range(STEP_RETRIES):
            if not (self._is_step and was_never_started(report) and self._controller_comes_back()):
                break
            report = self._work_once(task, nodes, log, hear)
        if report.outcome == "out_of_memory" and self._may_be_fragments(task):
            self._tell("out of memory; once more, with the GPU's memory in one piece")
            report = self._work_once(task.model_copy(update={"is_unfragmented": True}), nodes, log, hear)
        self._was_killed = was_killed or report.outcome not in ("ok", "refused")
        return report

    def require_none_stuck(self) -> None:
        """Raises RanksStuckError where the processes of an earlier task are still there."""
        if self._stuck is not None:
            raise RanksStuckError(self._stuck)

    @contextmanager
    def one_of_two(self, task: ChildTask, log: Path, tell: Tell) -> "Iterator[tuple[Ranks, Say]]":
        """The process of a task that takes turns with another one: on one device, so on this machine. It runs from here
        on, and is killed at the end.

        Yields:
            what takes its events, and what says a word to it.
        """
        nodes = self._nodes_of_ranks(task.measurement)
        task = task.model_copy(update={"world": ALONE, "caches": str(new_name())})
        ranks = self._ranks(task, nodes, log)  # its start counts as its time
        with self._running(task, nodes, log, tell) as started:
            yield ranks, started[0].say if started else lambda _word: None

    def _ranks(self, task: ChildTask, nodes: Sequence[str], log: Path) -> Ranks:
        return Ranks(nodes, log, timeout_s=task.measurement.protocol.timeout_s, now=time.monotonic())

    def _work_once(
        self, task: ChildTask, nodes: Sequence[str], log: Path, hear: Callable[[Event], None]
    ) -> RanksReport:
        events: Events = queue.SimpleQueue()
        with self._running(task, nodes, log, lambda rank, event: events.put((rank, event))):
            return self._listen(self._ranks(task, nodes, log), events, hear)

    def _may_be_fragments(self, task: ChildTask) -> bool:
        """Unless the user has told the allocator what to do."""
        is_told = any(name in os.environ for name in UNFRAGMENTED[self._framework])
        return self._stuck is None and not is_told and not self._cell.is_for_cpu and gpu_memory_bytes() is not None

    def _controller_comes_back(self) -> bool:
        give_up_at = time.monotonic() + CONTROLLER_PATIENCE_S
        while time.monotonic() < give_up_at:
            self._tell("waits for Slurm's controller, which does not answer; nothing is lost")
            self._while_waiting()
            if controller_answers():
                return self._stuck is None
            time.sleep(ASK_CONTROLLER_EVERY_S)
        return False

    def close(self) -> None:
        """On other nodes a rank that was killed has left its compilers' caches."""
        if self._was_killed and self._is_step and self._cell.nodes > 1:
            command = ["srun", f"--nodes={self._cell.nodes}", "--ntasks-per-node=1", "--overlap", "--mpi=none"]
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([*command, "rm", "-rf", self._caches], capture_output=True, timeout=CLEAN_UP_S)

    def _nodes_of_ranks(self, measurement: Measurement) -> list[str]:
        nodes = nodes_of_job() if self._is_step else [socket.gethostname()]
        ranks_per_node = 1 if self.is_per_node(measurement) else self._cell.devices // self._cell.nodes
        return [node for node in nodes for _ in range(ranks_per_node)]

    def _world(self, nodes: Sequence[str]) -> World:
        """As of rank 0. `nodes`: of each rank."""
        if self._cell.devices == 1:
            return ALONE
        return World(
            size=len(nodes),
            devices_per_rank=self._cell.devices // len(nodes),
            node=nodes[0],
            coordinator=f"127.0.0.1:{free_port()}" if len(nodes) > 1 else None,
        )

    @contextmanager
    def _running(self, task: ChildTask, nodes: Sequence[str], log: Path, tell: Tell) -> "Iterator[Sequence[_Process]]":
        """`nodes`: of each rank."""
        logs = [log_of_rank(log, rank, len(nodes)) for rank in range(len(nodes))]
        with way_out(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            for each in logs:  # srun would only warn of one that cannot be written
                each.write_text("")
        started: list[_Process] = []
        lock = ExitStack()
        for_cpu, name = self._cell.is_for_cpu, Path(task.caches).name

        def command(place: str) -> list[str]:
            words = ["-u", f"{self._framework}_runner/run.py", "--rank", place]
            return command_of(self._launch, words, self._folders, for_cpu=for_cpu, name=f"{name}-{place}")

        try:
            try:
                Path(task.caches).mkdir(exist_ok=task.caches_kept)
                lock.enter_context(in_use(Path(task.caches)))
                if self._is_step:
                    options = [*self._srun_options, *step_options(self._launch, self._folders)]
                    step = step_command(self._cell, len(nodes), log, options=options)
                    started.append(_Step([*step, *command("slurm")], task, nodes, logs, tell))
                else:
                    for rank, own in enumerate(logs):
                        kill = kill_command(self._launch, f"{name}-{rank}")
                        started.append(_LocalRank(command(str(rank)), task, rank, own, tell, kill))
            except OSError as error:
                for rank in range(len(nodes)):
                    failed = {"outcome": "failed", "reason": cannot_start(error)}
                    tell(rank, {"kind": "error", "content": failed})
                    tell(rank, _exit(0, ""))
            yield started
        finally:
            if not all([process.end() for process in started]):
                self._stuck = (
                    f"a process of the last measurement was killed on {', '.join(dict.fromkeys(nodes))} and has not "
                    f"ended: it hangs in the kernel, in the GPU's driver or in a file system, or its node does not "
                    f"answer. Nothing else is measured beside it. `dmesg` on that node may say more; start the job "
                    f"again on another."
                )
            if not task.caches_kept:
                shutil.rmtree(task.caches, ignore_errors=True)
            lock.close()

    def _listen(self, ranks: Ranks, events: Events, hear: Callable[[Event], None]) -> RanksReport:
        """Until every rank's result is here, or the first failure."""
        while not ranks.are_over(time.monotonic()):
            self._while_waiting()
            try:
                rank, event = events.get(timeout=0.2 if ranks.have_failed else 1.0)
            except queue.Empty:
                continue
            ranks.take(rank, event, time.monotonic())
            if rank == 0:
                hear(event)
        return ranks.report()


def was_never_started(report: RanksReport) -> bool:
    """Whether srun could not make the step, as Slurm's controller did not answer."""
    return report.outcome == "failed" and not report.environment and bool(NO_ANSWER.search(report.reason or ""))


class _Process(ABC):
    """A process of this machine on whose stdout events come. It runs from the moment it is made."""

    def __init__(
        self, command: Sequence[str], task: ChildTask, ranks: Sequence[int], tell: Tell, *, stderr: IO[str] | int
    ) -> None:
        """Raises OSError.

        Args:
            ranks: those whose events come.
        """
        self._ranks = ranks
        self._tell = tell
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=REPOSITORY,
            env=child_environment(
                for_cpu=task.measurement.cell.is_for_cpu,
                unfragmented=task.measurement.framework if task.is_unfragmented else None,
            ),
            start_new_session=True,  # its signals come from here alone
        )
        self._readers = [threading.Thread(target=self._read_events, daemon=True)]
        self._waiter = threading.Thread(target=self._wait, daemon=True)

    def _begin(self, task: ChildTask) -> None:
        for thread in (*self._readers, self._waiter):
            thread.start()
        self.say(task.model_dump_json())

    def say(self, line: str) -> None:
        """On its stdin. Where it has died, its exit status tells why."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _say_no_more(self) -> None:
        """A task of a step ends then, and who waits for its turn."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    @abstractmethod
    def end(self) -> bool:
        """Kill it and all that it has started. False where some of that is still there; it may hold its GPU for
        ever."""

    @abstractmethod
    def _tell_end(self, status: int) -> None:
        """The `exit` of every rank. `status` is that of the process, negative for a signal."""

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        listener = Listener()
        with self._process.stdout as pipe:
            for line in pipe:
                if (told := listener.take(line.decode(errors="replace"))) is not None:
                    self._tell(*told)
        for rank in self._ranks:
            self._tell(rank, {"kind": "silent", "content": {}})

    def _wait(self) -> None:
        status = self._process.wait()
        self._end_what_it_left()
        for reader in self._readers:
            reader.join(DRAIN_S)
        self._tell_end(status)

    @abstractmethod
    def _end_what_it_left(self) -> None:
        """What outlives it may keep its pipe open."""


class _LocalRank(_Process):
    """One rank, on this machine."""

    def __init__(
        self, command: Sequence[str], task: ChildTask, rank: int, log: Path, tell: Tell, kill: Sequence[str]
    ) -> None:
        """`kill`: the command that ends what the process's own end does not; it may be empty."""
        self._log = log
        self._kill = kill
        with log.open("w") as output, job_signals_blocked():
            super().__init__(command, task, [rank], tell, stderr=output)
        self._begin(task)
        if task.in_turns is None:
            self._say_no_more()

    def end(self) -> bool:
        self._end_what_it_left()
        self._say_no_more()
        self._waiter.join(END_TIMEOUT_S)
        return not self._waiter.is_alive()

    def _end_what_it_left(self) -> None:
        """Its session, in which a compiler's worker pool may be; and itself."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._kill:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self._kill, capture_output=True, timeout=END_TIMEOUT_S)

    def _tell_end(self, status: int) -> None:
        [rank] = self._ranks
        self._tell(rank, _exit(status, _tail(self._log)))


class _Step(_Process):
    """All ranks, by one srun."""

    def __init__(
        self, command: Sequence[str], task: ChildTask, nodes: Sequence[str], logs: Sequence[Path], tell: Tell
    ) -> None:
        """`nodes` and `logs`: of each rank."""
        super().__init__(command, task, range(len(nodes)), tell, stderr=subprocess.PIPE)
        self._nodes = nodes
        self._logs = logs
        self._running = set(self._ranks)
        self._words: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._readers.append(threading.Thread(target=self._read_words, daemon=True))
        self._begin(task)

    def end(self) -> bool:
        """The ranks end with their stdin. Those that cannot, srun has killed on every node when it gets SIGTERM; but
        Slurm kills nothing for it in a job that is being cancelled, before KillWait is over. Where srun itself is
        killed, its own watchdog does the same."""
        self._say_no_more()
        self._process.terminate()
        self._waiter.join(STEP_END_TIMEOUT_S)
        if self._waiter.is_alive():
            self._process.kill()
            return False
        return not any(STUCK in line for line in self._words)

    def _end_what_it_left(self) -> None:
        """Slurm does, on every node; and srun's watchdog must live until then."""

    def _read_words(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            for line in pipe:
                self._hear(line.decode(errors="replace").rstrip())

    def _hear(self, line: str) -> None:
        self._words.append(line)
        for rank, status in ends_of_tasks(line).items():
            self._running.discard(rank)
            self._tell(rank, _exit(status, _tail(self._logs[rank])))
        if (node := lost_node(line)) is not None:
            for rank in self._ranks:
                if self._nodes[rank] == node:
                    self._tell(rank, {"kind": "lost", "content": {"reason": line}})

    def _tell_end(self, status: int) -> None:
        """srun names the ranks that ended badly. Where it names none and fails, it is srun itself that did."""
        is_srun = len(self._running) == len(self._ranks)
        for rank in sorted(self._running):
            tail = "\n".join([_tail(self._logs[rank]), *self._words]).strip()
            self._tell(rank, _exit(status if is_srun else 0, tail))


def _exit(status: int, tail: str) -> Event:
    return {"kind": "exit", "content": {"code": status, "tail": tail}}


def cannot_start(error: OSError) -> str:
    """Of a rank on this machine; said by the job or by the rank itself."""
    name = str(error.filename or "")
    if isinstance(error, FileNotFoundError) and name and PREFIX not in name:
        return (
            f"{name} is not there on {socket.gethostname()}: cluster.frameworks of experiments.yaml names the "
            f"framework's Python and the runtime of its container; `setup` beside them loads a module that has it."
        )
    return (
        f"the measurement's process cannot be started on {socket.gethostname()}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}. It needs a folder for temporary files with some free "
        f"space, which TMPDIR names, and room for one more process (ulimit -u, the job's memory)."
    )


@contextmanager
def job_signals_blocked() -> Iterator[None]:
    """Keep these signals blocked in a process that is started meanwhile, from its first instruction on and for life,
    whatever its parent does with them: a measurement is ended by its parent only, which kills it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_environment(*, for_cpu: bool = False, unfragmented: Framework | None = None) -> dict[str, str]:
    """Return defaults that the caller may override, and the caller's own variables without two kinds. Those that switch
    off or pin one side go (harness/results/environment_variables.py); threads are set for the job's CPUs instead. So do
    proxies: the ranks reach each other directly, and gRPC, which JAX's use, would ask a proxy for the way.

    Args:
        for_cpu: GPUs are hidden from both frameworks, whatever the caller's environment says.
        unfragmented: the framework whose allocator keeps the GPU's memory in one piece.

    JAX may take almost all of the GPU's memory, as PyTorch may: its own limit is 75 %, whether it takes that at once or
    not. The variable for that has an older name, and JAX refuses both together (jaxlib/xla_client.py).
    """
    defaults = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's index is then NVML's on a node with different cards
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # queues of the GPU; with CUDA's own 8, more streams wait for each other
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # take memory as it is needed, as PyTorch does
    }
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        defaults["XLA_CLIENT_MEM_FRACTION"] = memory_fraction(gpu_memory_bytes())
    if unfragmented:
        defaults |= UNFRAGMENTED[unfragmented]
    given = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    unset_steering(given)
    return defaults | given | thread_variables() | (NO_GPU if for_cpu else {})


@cache
def gpu_memory_bytes() -> int | None:
    """Of the first GPU that is shown to this job; None where there is none."""
    return open_gpu().describe().get("memory_total_bytes")


def memory_fraction(total_bytes: int | None) -> str:
    """What XLA's pool may take. Libraries, kernels and NCCL take theirs beside it: 1.5 GiB is enough for them."""
    beside = 0.0 if total_bytes is None else BESIDE_THE_POOL_BYTES / total_bytes
    return f"{min(0.95, 1 - beside):.2f}"


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(its log cannot be read: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])
