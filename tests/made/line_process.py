"""A process that answers in lines, of which the next may take only so long: what it leaves unanswered is another's."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO

from harness.paths import REPOSITORY


class LineProcess:
    """Its lines, as they come. Whoever stops reading ends it, with all that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: IO[bytes],
        timeout_s: float,
        environment: Mapping[str, str] = os.environ,
        task: str = "",
    ) -> None:
        """
        Args:
            log: for its stderr.
            timeout_s: from one line to the next.
            task: on its stdin.
        """
        self.ended = ""
        """How, once there is no further line."""
        self._timeout_s, self._task = timeout_s, task
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def __iter__(self) -> Iterator[str]:
        process, lines = self._process, queue.SimpleQueue[str]()
        assert process.stdin and process.stdout
        stdout = process.stdout

        def listen() -> None:
            for line in stdout:
                lines.put(line)
            lines.put("")

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            with suppress(BrokenPipeError):  # it has ended already; its status says more
                process.stdin.write(self._task)
                process.stdin.close()
            while line := lines.get(timeout=self._timeout_s):
                yield line
            self.ended = f"the process ended with status {process.wait()}"
        except queue.Empty:
            self.ended = f"no answer in {self._timeout_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its compilers, which hold the pipe
            process.wait()
            listener.join()
            stdout.close()
