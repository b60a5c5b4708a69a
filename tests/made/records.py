"""The least of a record, of a heartbeat and of blocks. Records with all that a report needs: report_records.py."""

from collections.abc import Sequence
from typing import Any

from harness.job.progress import Heartbeat
from harness.plan import Measurement
from harness.results.record import Blocks, EpochPoint, Record


def bare_record(measurement: Measurement, outcome: str = "ok", **changes: Any) -> Record:
    fields = {
        "measurement_id": measurement.id,
        "measurement": measurement,
        "outcome": outcome,
        "started_at": "2026-11-21T10:00:00+00:00",
        "ended_at": "2026-11-21T10:01:00+00:00",
        "environment": {},
    }
    return Record.model_validate(fields | changes)


def heartbeat(**changes: Any) -> Heartbeat:
    fields = {"measurements_total": 4, "measurements_done": 1, "node": "n1", "pid": 1}
    fields |= {"updated_at_unix_s": 160.0}
    return Heartbeat.model_validate(fields | changes)


def blocks(
    times_s: list[float], *, calls: int = 10, steps: int = 1, samples: int = 2, warmup: Sequence[float] = ()
) -> Blocks:
    return Blocks(
        calls_per_block=calls,
        steps_per_call=steps,
        samples_per_step=samples,
        block_times_s=times_s,
        warmup_times_s=list(warmup),
    )


def epoch(number: int = 1, **changes: Any) -> EpochPoint:
    fields = {"train_time_s": 1.0, "train_loss": 1.0, "test_loss": 1.0, "test_metric": 0.5}
    return EpochPoint.model_validate({"epoch": number} | fields | changes)
