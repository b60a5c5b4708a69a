"""What compilation takes where an earlier process has filled the compilers' caches."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.job.caches import PREFIX, in_use
from harness.job.ranks import RanksReport
from harness.measure.channel import ChildTask
from harness.measure.clock import compile_time_s
from harness.plan import Measurement
from harness.results.record import Result
from harness.results.statistics import median


def has_warm_start(measurement: Measurement) -> bool:
    """Once for each variant, as it costs two more starts of the framework; a calibration has no use for it. On several
    devices each rank would need what rank 0 has cached, so there it is not measured."""
    cell = measurement.cell
    is_first = measurement.replicate == 0 and not measurement.is_screening
    return is_first and cell.devices == 1 and not cell.is_calibration and not measurement.quick


def explains_itself(measurement: Measurement) -> bool:
    """A smoke run has no other process for it, and no result to quote: the first replicate's own says where its time
    went, when all its numbers are told."""
    cell, protocol = measurement.cell, measurement.protocol
    is_first = measurement.replicate == 0 and not measurement.is_screening
    return is_first and protocol.explain and measurement.quick and cell.devices == 1 and not cell.is_calibration


def start_twice(task: ChildTask, log: Path, work: Callable[[ChildTask, Path], RanksReport]) -> RanksReport:
    """The cold calls in two new processes with the same caches: the first fills them, and the second, which is
    reported, finds them. Both frameworks' caches are on here, whatever their defaults. The second then says where a
    step's time goes: nothing is timed in it any more."""
    log = log.with_name(f"{log.stem}-warm-start{log.suffix}")
    with (
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}warm-", ignore_cleanup_errors=True) as caches,
        in_use(Path(caches)),
    ):
        cold_calls = task.model_copy(update={"cold_calls_only": True, "caches": caches, "caches_kept": True})
        first = work(cold_calls, log)
        explains = task.measurement.protocol.explain
        return first if first.result is None else work(cold_calls.model_copy(update={"explain": explains}), log)


def with_warm_start(result: Result, again: RanksReport) -> Result:
    """`again`: of a process that did the cold calls only, and found the caches filled."""
    if again.result is None or result.latency is None:
        reason = f"{again.outcome}: {(again.reason or 'no reason').splitlines()[0]}"
        return result.model_copy(update={"compile_time_warm_absent": reason, "explanation_absent": reason})
    times_s = again.result.cold_call_times_s
    warm_s = compile_time_s(times_s, median(result.latency.call_times_s))
    measured = {"compile_time_warm_s": warm_s, "warm_start_call_times_s": times_s, "compile_time_warm_absent": None}
    explained = {name: getattr(again.result, name) for name in ("explanation", "explanation_absent")}
    return result.model_copy(update=measured | explained)
