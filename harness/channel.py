"""The one-way channel from a measurement's process to its parent: a JSON line per event over a pipe.

The child only writes; whoever listens (heartbeat, W&B, the terminal) can neither block nor slow it, as the parent's
reader thread empties the pipe all the time. An event costs tens of microseconds and is sent between timed windows only.
"""

import json
import os
from typing import Any, Literal

from harness.record import Outcome, Result

EventKind = Literal["environment", "progress", "metrics", "parity", "result_so_far", "result", "error"]


class Channel:
    """The writing end, in the child."""

    def __init__(self, file_descriptor: int) -> None:
        self._pipe = os.fdopen(file_descriptor, "w")

    def environment(self, values: dict[str, Any]) -> None:
        """What the framework sees: versions, devices, precision flags."""
        self._send("environment", values)

    def progress(self, phase: str, done: float, total: float) -> None:
        self._send("progress", {"phase": phase, "done": done, "total": total})

    def metrics(self, values: dict[str, float]) -> None:
        """Numbers to stream while the job runs; keys carry units, such as `throughput_samples_per_s`."""
        self._send("metrics", values)

    def parity(self, digest: str) -> None:
        """The key's file is written; the next key begins."""
        self._send("parity", {"key": digest})

    def result_so_far(self, result: Result) -> None:
        """It stands whatever happens to the rest of the work, once every rank has told its own."""
        self._send("result_so_far", result.model_dump(mode="json"))

    def result(self, result: Result) -> None:
        self._send("result", result.model_dump(mode="json"))

    def error(self, outcome: Outcome, reason: str) -> None:
        self._send("error", {"outcome": outcome, "reason": reason})

    def _send(self, kind: EventKind, content: dict[str, Any]) -> None:
        self._pipe.write(json.dumps({"kind": kind, "content": content}) + "\n")
        self._pipe.flush()
