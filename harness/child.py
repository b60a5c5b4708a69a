"""A measurement's process, seen by whoever starts it: the job for rank 0, an agent (harness/agent.py) for any other.

What the child says over its channel is told on as events. Two kinds are added: `silent` when the channel has closed,
and `exit`, the last one, with the exit status and the end of the log.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from harness.environment import CACHE_FOLDERS
from harness.errors import RecordError
from harness.paths import REPOSITORY
from harness.session import ChildTask

LOG_TAIL_LINES = 15
DRAIN_S = 1.0
"""For the last events of a child that has ended; some process that it left behind may keep its pipe open."""
END_TIMEOUT_S = 30.0
"""From SIGKILL to the child's end. The driver may take seconds to free a GPU's memory; what takes longer hangs in the
kernel and may do so for ever."""
JOB_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""By these a scheduler ends a job or takes its nodes back; it sends them to every process of the job."""

Event = dict[str, Any]


class CompilerCaches:
    """A folder for the caches of compilers, empty at first, made when it is asked for."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def folder(self) -> str:
        """Raises OSError."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="compiler-caches-", ignore_cleanup_errors=True)
        return self._folder.name

    def __enter__(self) -> "CompilerCaches":
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


class Child:
    """Runs from the moment it is made. Made in a main thread only: the kernel ends a child with the thread that
    started it."""

    def __init__(
        self,
        framework: str,
        task: ChildTask,
        log: Path,
        tell: Callable[[Event], None],
        caches: CompilerCaches | None = None,
    ) -> None:
        """A child that this machine cannot start tells that as its error.

        Args:
            tell: called from threads.
            caches: where all compilers keep what they compile, for the next child; without it they start from nothing
                and leave nothing.

        Raises:
            RecordError: the log cannot be written.
        """
        self._log = log
        self._tell = tell
        self._own_caches = CompilerCaches()
        self._process: subprocess.Popen[bytes] | None = None
        with _open_log(log) as output:
            try:
                self._start(framework, task, output, caches)
            except OSError as error:
                tell_error(tell, _cannot_start(error))

    def end(self) -> bool:
        """Kill what is left of the child's session; a compiler's worker pool may outlive the child itself.

        False where the child is still there after END_TIMEOUT_S; it may hold its GPU for ever.
        """
        with self._own_caches:
            if self._process is None:
                return True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._waiter.join(END_TIMEOUT_S)
            return not self._waiter.is_alive()

    def _start(self, framework: str, task: ChildTask, output: IO[str], caches: CompilerCaches | None) -> None:
        environment = child_environment((caches or self._own_caches).folder(), kept=caches is not None)
        reading, writing = os.pipe()
        try:
            with _job_signals_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-u", f"{framework}_runner/run.py", "--child", str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing,),
                    cwd=REPOSITORY,
                    env=environment,
                    start_new_session=True,  # its signals come from here alone
                )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._process = process
        self._reader = threading.Thread(target=self._read_events, args=(os.fdopen(reading),), daemon=True)
        self._waiter = threading.Thread(target=self._wait, args=(process,), daemon=True)
        self._reader.start()
        self._waiter.start()
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # it died at once; its exit status tells why
            process.stdin.write(task.model_dump_json().encode())

    def _read_events(self, pipe: IO[str]) -> None:
        try:
            with pipe:
                for line in pipe:
                    if line.endswith("\n"):  # a killed child may leave half a line
                        self._tell(json.loads(line))
        finally:
            self._tell({"kind": "silent", "content": {}})  # even after nonsense: whoever listens must not wait for ever

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        self._reader.join(DRAIN_S)
        self._tell({"kind": "exit", "content": {"code": code, "tail": _tail(self._log)}})


def tell_error(tell: Callable[[Event], None], reason: str) -> None:
    """In the place of a child that never began."""
    tell({"kind": "error", "content": {"outcome": "failed", "reason": reason}})
    tell({"kind": "exit", "content": {"code": 0, "tail": ""}})


def _cannot_start(error: OSError) -> str:
    return (
        f"the measurement's process cannot be started on {socket.gethostname()}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}. It needs a folder for temporary files with some free "
        f"space, which TMPDIR names, and room for one more process (ulimit -u, the job's memory)."
    )


@contextmanager
def _job_signals_blocked() -> Iterator[None]:
    """A process that is started meanwhile keeps these signals blocked for life, from its first instruction on and
    whatever its parent does with them. So a measurement ends by its parent only, which kills it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_environment(caches: str, *, kept: bool) -> dict[str, str]:
    """All compilers' caches in one folder: an empty one makes compile times cold in both frameworks. And defaults that
    the caller may override.

    JAX may take almost all of the GPU's memory, as PyTorch may: its own limit is 75 %, whether it takes that at once or
    not. The variable for that has an older name, and JAX refuses both together (jaxlib/xla_client.py).

    Without proxies: the ranks reach each other directly, and gRPC, which JAX's use, would ask a proxy for the way.

    Args:
        kept: another child will use the caches. JAX is then told to keep every program, as Inductor always does. Else
            JAX's cache is off, which is its default.
    """
    defaults = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's index is then NVML's on a node with different cards
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # take memory as it is needed, as PyTorch does
    }
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        defaults["XLA_CLIENT_MEM_FRACTION"] = "0.95"
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    in_caches = {name: f"{caches}/{folder}" for name, folder in CACHE_FOLDERS.items()} | {
        "JAX_ENABLE_COMPILATION_CACHE": "true" if kept else "false",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return defaults | inherited | in_caches


def _open_log(log: Path) -> IO[str]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("w")
    except OSError as error:
        raise RecordError(
            f"cannot write {log}: {error.strerror or error}. "
            f"Free space or choose another folder with --results DIR; nothing was overwritten."
        ) from error


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(its log cannot be read: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])
