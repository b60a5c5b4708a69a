"""How often each measurement of a job was ended by the job's time limit or a preemption, in a file that its next start
reads."""

import json
from collections.abc import Callable
from pathlib import Path

from harness.files import write_atomically
from harness.plan import Measurement

LAST_AFTER = 2
"""So many, and the measurement comes after all others."""
TIMEOUT_AFTER = 3
"""So many, and it is recorded as `timeout`."""


class CutOffs:
    def __init__(self, path: Path) -> None:
        """A file that cannot be read counts as none."""
        self._path = path
        try:
            counts = json.loads(path.read_text())
        except (OSError, ValueError):
            counts = None
        items = counts.items() if isinstance(counts, dict) else ()
        self._counts = {name: count for name, count in items if isinstance(count, int)}

    def of(self, measurement: Measurement) -> int:
        return self._counts.get(measurement.id, 0)

    def note(self, measurement: Measurement, *, warn: Callable[[str], None]) -> None:
        self._counts[measurement.id] = self.of(measurement) + 1
        try:
            write_atomically(self._path, json.dumps(self._counts), replace=True)
        except OSError as error:
            warn(f"warning: cannot write {self._path}: {error.strerror or error}")
