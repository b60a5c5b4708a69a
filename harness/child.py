"""A measurement's process, seen by whoever starts it: the job for rank 0, an agent (harness/agent.py) for any other.

What the child says over its channel is told on as events. Two kinds are added: `silent` when the channel has closed,
and `exit`, the last one, with the exit status and the end of the log.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.errors import RecordError
from harness.paths import REPOSITORY
from harness.session import ChildTask

LOG_TAIL_LINES = 15
DRAIN_S = 1.0
"""For the last events of a child that has ended; some process that it left behind may keep its pipe open."""

Event = dict[str, Any]


class Child:
    """Runs from the moment it is made. Made in a main thread only: the kernel ends a child with the thread that
    started it."""

    def __init__(
        self, framework: str, task: ChildTask, log: Path, tell: Callable[[Event], None], caches: Path | None = None
    ) -> None:
        """
        Args:
            tell: called from threads.
            caches: where all compilers keep what they compile, for the next child; without it they start from nothing
                and leave nothing.

        Raises:
            RecordError: the log cannot be written.
        """
        self._log = log
        self._tell = tell
        with _open_log(log) as output:
            self._own_caches = None if caches else compiler_caches()
            reading, writing = os.pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-u", f"{framework}_runner/run.py", "--child", str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                cwd=REPOSITORY,
                env=child_environment(
                    str(caches) if self._own_caches is None else self._own_caches.name, kept=self._own_caches is None
                ),
                start_new_session=True,  # its signals come from here alone
            )
        os.close(writing)
        self._reader = threading.Thread(target=self._read_events, args=(os.fdopen(reading),), daemon=True)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._reader.start()
        self._waiter.start()
        self._feed(task)

    def end(self) -> None:
        """Kill what is left of the child's session; a compiler's worker pool may outlive the child itself."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()
        if self._own_caches is not None:
            self._own_caches.cleanup()

    def _feed(self, task: ChildTask) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once; its exit status tells why
            self._process.stdin.write(task.model_dump_json().encode())
            self._process.stdin.close()

    def _read_events(self, pipe: IO[str]) -> None:
        try:
            with pipe:
                for line in pipe:
                    if line.endswith("\n"):  # a killed child may leave half a line
                        self._tell(json.loads(line))
        finally:
            self._tell({"kind": "silent", "content": {}})  # even after nonsense: whoever listens must not wait for ever

    def _wait(self) -> None:
        code = self._process.wait()
        self._reader.join(DRAIN_S)
        self._tell({"kind": "exit", "content": {"code": code, "tail": _tail(self._log)}})


def compiler_caches() -> "tempfile.TemporaryDirectory[str]":
    """An empty folder for the caches of compilers."""
    return tempfile.TemporaryDirectory(prefix="compiler-caches-")


def child_environment(caches: str, *, kept: bool) -> dict[str, str]:
    """All compilers' caches in one folder: an empty one makes compile times cold in both frameworks. And defaults that
    the caller may override.

    Args:
        kept: another child will use them. JAX is then told to keep every program, as Inductor always does. Else JAX's
            cache is off, which is its default.
    """
    defaults = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's index is then NVML's on a node with different cards
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # take memory as it is needed, as PyTorch does
    }
    in_caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "CUDA_CACHE_PATH": f"{caches}/cuda",
        "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
        "JAX_ENABLE_COMPILATION_CACHE": "true" if kept else "false",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return defaults | os.environ | in_caches


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
