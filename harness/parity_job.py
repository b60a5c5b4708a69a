"""The parity gate in the job: before anything is measured, every program that will be is run once on the gate's batch.

One child process does all keys, as importing a framework takes longer than most of them. A key that fails or takes too
long leaves a file that says so, and a fresh child goes on with the rest; the measurements go on whatever happens here.
On several devices the children of all ranks do it together, as they do a measurement.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.child import Event
from harness.environment import code_digests
from harness.errors import RecordError
from harness.parity import ParityMetadata, ParityNumbers, gate_measurement, key_of
from harness.parity_file import read_parity, write_parity
from harness.paths import JobFolder, Results, parity_module, stamp_of
from harness.plan import JobPlan, Measurement
from harness.ranks import Ranks, RanksReport
from harness.session import ChildTask, ParityTask
from harness.team import Events, Team

Listen = Callable[[Events, Ranks, Callable[[Event], None], Callable[[], float], str], RanksReport]
"""(events, ranks, what to do with rank 0's events, deadline on the monotonic clock, reason of a timeout)"""


class ParityRun:
    """The keys of one job and the files that they left."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        folder: JobFolder,
        results: Results,
        team: Team,
        process_per_node: Sequence[str],
        environment: dict[str, Any],
        listen: Listen,
    ) -> None:
        self.files: dict[str, Path] = {}
        """By the key's digest."""
        self.failures: dict[str, str] = {}
        """Why a program has no numbers, by the key of its variant."""
        self._plan = plan
        self._folder = folder
        self._process_per_node = process_per_node
        self._results = results
        self._team = team
        self._listen = listen
        self._environment = {name: environment[name] for name in ("node", "scheduler", "git")}

    def compute(self, measurements: Iterable[Measurement]) -> None:
        """Every distinct key once, for all runs of this job together: the arms of a pair, and those after a requeue.
        Does nothing for a use case that has no parity numbers."""
        if not parity_module(self._plan.framework, self._plan.cell.use_case_name).exists():
            return
        gated = {key_of(measurement).digest: gate_measurement(measurement) for measurement in measurements}
        for digest in gated:
            if (path := self._left_by_this_job(digest)) is not None:
                self.files[digest] = path
        tasks = [self._task(measurement) for digest, measurement in gated.items() if digest not in self.files]
        self._run_all([task for task in tasks if not self._is_per_node(task)], per_node=False)
        self._run_all([task for task in tasks if self._is_per_node(task)], per_node=True)

    def _run_all(self, remaining: Sequence[ParityTask], *, per_node: bool) -> None:
        while remaining:
            done, report = self._run_children(remaining, per_node=per_node)
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
        return ParityTask(measurement=measurement, path=str(path), environment=self._environment)

    def _is_per_node(self, task: ParityTask) -> bool:
        return task.measurement.variant.execution_mode in self._process_per_node

    def _left_by_this_job(self, digest: str) -> Path | None:
        """The newest good file that today's code has made; what failed is tried again."""
        for path in reversed(self._results.parity_files(self._plan.cell, self._plan.framework, digest)):
            if stamp_of(path) < self._folder.stamp:
                return None
            try:
                metadata = read_parity(path).metadata
            except RecordError:
                continue
            if metadata.outcome == "ok" and metadata.environment.get("code") == code_digests(self._plan.framework):
                return path
        return None

    def _run_children(self, tasks: Sequence[ParityTask], *, per_node: bool) -> tuple[int, RanksReport]:
        """How many keys they finished, one after the other, and what became of the processes."""
        log = self._results.new_parity_log(self._plan.cell, self._plan.framework)
        timeout_s = self._plan.protocol.timeout_s
        done, deadline = 0, time.monotonic() + timeout_s

        def hear(event: Event) -> None:
            nonlocal done, deadline
            if event["kind"] == "parity":
                task = tasks[done]
                self.files[key_of(task.measurement).digest] = Path(task.path)
                done, deadline = done + 1, time.monotonic() + timeout_s

        first = tasks[0].measurement
        task = ChildTask(measurement=first, data_dir=self._plan.data_dir, parity=tuple(tasks))
        with self._team.measuring(task, log, per_node=per_node) as (events, worlds):
            ranks = Ranks([world.node or self._team.node for world in worlds], log)
            report = self._listen(
                events, ranks, hear, lambda: deadline, f"no parity numbers after {timeout_s:g} s; log: {log}"
            )
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
