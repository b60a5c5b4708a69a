"""The parity gate in the job: before anything is measured, every program that will be is run once on the gate's batch.

One child process does all keys, as importing a framework takes longer than most of them. A key that fails or takes too
long leaves a file that says so, and a fresh child goes on with the rest; the measurements go on whatever happens here.
On several devices the children of all ranks do it together, as they do a measurement.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import RecordError
from harness.job.ranks import RanksReport
from harness.measure.channel import ChildTask, Event, ParityTask
from harness.paths import Results
from harness.plan import JobPlan, Measurement
from harness.results.code_digest import code_digests
from harness.results.parity import ParityMetadata, ParityNumbers, gate_measurement, key_of
from harness.results.parity_file import read_parity, write_parity

Work = Callable[[ChildTask, Path, Callable[[Event], None]], RanksReport]
"""(task, log, what to do with rank 0's events)"""


class ParityRun:
    """The keys of one job and the files that they left."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        job: str,
        results: Results,
        environment: dict[str, Any],
        work: Work,
        is_per_node: Callable[[Measurement], bool],
    ) -> None:
        """`job`: the name of its folder."""
        self.files: dict[str, Path] = {}
        """By the key's digest."""
        self.failures: dict[str, str] = {}
        """Why a program has no numbers, by the key of its variant."""
        self._plan = plan
        self._job = job
        self._results = results
        self._work = work
        self._is_per_node = is_per_node
        self._environment = {"job": job} | {name: environment[name] for name in ("node", "scheduler", "git")}

    def compute(self, measurements: Iterable[Measurement]) -> None:
        """Every distinct key once, for all runs of this job together, also those after a requeue. None for a
        calibration."""
        if self._plan.cell.is_calibration:
            return
        gated = {key_of(measurement).digest: gate_measurement(measurement) for measurement in measurements}
        for digest in gated:
            if (path := self._left_by_this_job(digest)) is not None:
                self.files[digest] = path
        tasks = [self._task(measurement) for digest, measurement in gated.items() if digest not in self.files]
        for per_node in (False, True):
            self._run_all([task for task in tasks if self._is_per_node(task.measurement) == per_node])

    def _run_all(self, remaining: Sequence[ParityTask]) -> None:
        while remaining:
            done, report = self._run_children(remaining)
            if report.outcome != "ok" and done < len(remaining):
                self._leave_failure(remaining[done], report)
                done += 1
            elif done == 0:
                raise AssertionError("the parity child ended well and did nothing")
            remaining = remaining[done:]

    def file_of(self, measurement: Measurement) -> str | None:
        """Name of the file with the numbers of the measurement's key."""
        path = self.files.get(key_of(measurement).digest)
        return path.name if path else None

    def _task(self, measurement: Measurement) -> ParityTask:
        path = self._results.new_parity(self._plan.cell, self._plan.framework, key_of(measurement).digest)
        environment = self._environment | {"code": self._code()}
        return ParityTask(measurement=measurement, path=str(path), environment=environment)

    def _code(self) -> dict[str, str]:
        return code_digests(self._plan.framework, self._plan.cell)

    def _left_by_this_job(self, digest: str) -> Path | None:
        """The newest good file that today's code has made; what failed is tried again."""
        code = self._code()
        for path in reversed(self._results.parity_files(self._plan.cell, self._plan.framework, digest)):
            try:
                metadata = read_parity(path).metadata
            except RecordError:
                continue
            made_by = metadata.environment
            is_own = made_by.get("job") == self._job and made_by.get("code") == code
            if metadata.outcome == "ok" and is_own:
                return path
        return None

    def _run_children(self, tasks: Sequence[ParityTask]) -> tuple[int, RanksReport]:
        """How many keys they finished, one after the other, and what became of the processes."""
        done = 0

        def hear(event: Event) -> None:
            nonlocal done
            if event["kind"] == "parity":
                task = tasks[done]
                self.files[key_of(task.measurement).digest] = Path(task.path)
                done += 1

        task = ChildTask(measurement=tasks[0].measurement, data_dir=self._plan.data_dir, parity=tuple(tasks))
        report = self._work(task, self._results.new_parity_log(self._plan.cell, self._plan.framework), hear)
        return done, report

    def _leave_failure(self, task: ParityTask, report: RanksReport) -> None:
        """Under another name than the task's, which a child that died late may have taken."""
        key = key_of(task.measurement)
        path = self._results.new_parity(self._plan.cell, self._plan.framework, key.digest)
        metadata = ParityMetadata(
            key=key,
            outcome=report.outcome,
            reason=report.reason,
            environment=task.environment | report.environment,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_parity(ParityNumbers(metadata=metadata), path)
        self.files[key.digest] = path
        self.failures[task.measurement.variant.key] = f"{report.outcome}: {report.reason}"
