"""What is noted of a job that somebody has handed over to a queue."""

import socket
import time
from typing import Any

from harness.paths import JobFolder
from pipeline.watching.jobs import Submission


def submitted(folder: JobFolder, executor: str = "slurm", **changes: Any) -> None:
    """On this machine, five seconds ago, as job 12: but for `changes`."""
    fields = {
        "executor": executor,
        "job_id": "12",
        "script": "/s.sh",
        "command": ("sbatch", "/s.sh", "slurm", str(folder.root)),
        "node": socket.gethostname(),
        "submitted_at_unix_s": time.time() - 5,
    }
    folder.submission.write_text(Submission.model_validate(fields | changes).model_dump_json())
