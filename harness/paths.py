"""Every file name of the project, in one place."""

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.plan import Cell, Measurement, Pair

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
PUBLISHED = REPOSITORY / "results" / "published"
"""The one results folder that git knows: the records behind the README's table."""


def timestamp() -> str:
    """`20261121T101502.123456Z-3fa9`: sorts by time; the random end keeps two nodes' starts apart."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(2)}"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results folder: records, the logs of measurements, the folders of jobs, W&B's files."""

    root: Path

    @property
    def wandb(self) -> Path:
        """W&B makes its own `wandb` folder below this."""
        return self.root

    @property
    def wandb_away(self) -> Path:
        """There since W&B's server was last waited for in vain."""
        return self.root / "wandb_away"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def report(self) -> Path:
        """What `main.py report` and `--wait` write. Made anew each time."""
        return self.root / "report"

    @property
    def calibration(self) -> Path:
        """The records of `main.py calibrate`, which no comparison takes."""
        return self.root / "calibration"

    @property
    def device_peaks(self) -> Path:
        """Folder of what each framework reached on a device at most."""
        return self.root / "device_peaks"

    def new_device_peaks(self, framework: str) -> Path:
        return self.device_peaks / f"{framework}-{timestamp()}.json"

    @property
    def local_queue_lock(self) -> Path:
        return self.root / "local_queue.lock"

    @property
    def local_queue_log(self) -> Path:
        return self.root / "local_queue.log"

    @property
    def submit_lock(self) -> Path:
        return self.root / "submit.lock"

    def records(self, cell: Cell | None = None, framework: str | None = None) -> Path:
        if cell is None:
            return self.root / "records"
        folder = (self.calibration if cell.is_calibration else self.root / "records") / cell.name
        return folder / framework if framework else folder

    def new_record(self, measurement: Measurement) -> Path:
        """A name that no other measurement, attempt or node uses."""
        name = f"{measurement.key}-{measurement.id}-{timestamp()}.json"
        return self.records(measurement.cell, measurement.framework) / name

    def record_files(self, measurement: Measurement) -> list[Path]:
        """The records of this measurement, of all attempts, oldest first."""
        folder = self.records(measurement.cell, measurement.framework)
        return sorted(folder.glob(f"*-{measurement.id}-*.json"))

    def new_parity(self, cell: Cell, framework: str, digest: str) -> Path:
        """The numbers of one parity key, beside the records of its cell."""
        return self.records(cell, framework) / f"parity-{digest}-{timestamp()}.npz"

    def parity_files(self, cell: Cell, framework: str, digest: str) -> list[Path]:
        """Of one parity key, oldest first."""
        return sorted(self.records(cell, framework).glob(f"parity-{digest}-*.npz"))

    def new_parity_log(self, cell: Cell, framework: str) -> Path:
        """The output of one process that computes parity numbers, of as many keys as it lives to do."""
        return self.records(cell, framework) / f"parity-{timestamp()}.log"

    def log_of(self, record: Path) -> Path:
        """The output of the measurement's process, beside its record."""
        return record.with_suffix(".log")

    def new_job_folder(self, pair: Pair | str) -> "JobFolder":
        """Return a new name for the folder of a pair's job, or, by its name, of a job that has a whole node."""
        return JobFolder(root=self.jobs / f"{pair if isinstance(pair, str) else pair.name}-{timestamp()}")

    def job_folders(self) -> list["JobFolder"]:
        """Return the folders of all jobs that were ever submitted or started by hand, oldest first."""
        plans = self.jobs.glob("*/*/plan.json")
        return sorted((JobFolder(root=plan.parent) for plan in plans), key=lambda folder: folder.stamp)


@dataclass(frozen=True, kw_only=True)
class JobFolder:
    """One job: its frozen plan, what the scheduler said, its heartbeat, and submitit's files."""

    root: Path

    @property
    def name(self) -> str:
        """By which a record says whose it is: unique, as a timestamp() ends it."""
        return self.root.name

    @property
    def results(self) -> Results:
        """`results/jobs/<gpu>/<job>` belongs to `results`."""
        return Results(root=self.root.parents[2])

    @property
    def stamp(self) -> str:
        """The timestamp() at the end of the name: jobs in the order of their submission."""
        match = re.search(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{4}$", self.name)
        return match.group() if match else self.name

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def submission(self) -> Path:
        return self.root / "submission.json"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat.json"

    @property
    def script(self) -> Path:
        """The script as it was when it was submitted. Absent where sbatch, which keeps such a copy, took this one."""
        return self.root / "script.sh"

    @property
    def cut_offs(self) -> Path:
        """How often each measurement was ended by the job's time limit, by its id."""
        return self.root / "cut_off.json"

    @property
    def local_end(self) -> Path:
        """How the local queue saw the job end; Slurm has an answer of its own."""
        return self.root / "ended.json"

    @property
    def waits_for(self) -> Path:
        """What the job waits for in its local queue, in words; there only meanwhile."""
        return self.root / "waits_for"

    @property
    def cells(self) -> Path:
        """Folders of the jobs that share this job's whole node, one a line."""
        return self.root / "cells"

    @property
    def cancelled(self) -> Path:
        """There from the moment that `main.py status --cancel` meant this job."""
        return self.root / "cancelled"


def script_path(name: str, folder: Path = REPOSITORY / "slurm_scripts") -> Path:
    """Of `any/jax_cifar10_3`, the name of a plan or pair: `slurm_scripts/jax_cifar10_3.sh`. For a named GPU:
    `slurm_scripts/a100/jax_cifar10_3.sh`."""
    return folder / script_in_folder(name)


def script_in_folder(name: str) -> str:
    """The same from `slurm_scripts`: `jax_cifar10_3.sh`, or `a100/jax_cifar10_3.sh`."""
    gpu, _, script = name.partition("/")
    return f"{script}.sh" if gpu == "any" else f"{name}.sh"
