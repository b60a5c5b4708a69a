"""What compilation takes where an earlier process has filled the compilers' caches; frameworks are faked."""

import signal

import pytest

from harness.plan import JobPlan
from harness.results.record import Result
from tests.made.patience import patience, wait_until
from tests.made.project import BehavingProject


def full(plan: JobPlan) -> JobPlan:
    """As if it was no smoke run; its protocol stays short."""
    return plan.model_copy(update={"quick": False})


def results(repository: BehavingProject) -> list[Result]:
    """In the order of their replicates."""
    records = sorted(repository.records(), key=lambda record: record.measurement.replicate)
    return [record.result for record in records if record.result]


def test_process_that_finds_filled_caches(repository: BehavingProject) -> None:
    """It compiles for 0.1 s, one with empty caches for 0.4 s, and a later call takes 1 ms."""
    status, _, _ = repository.run(full(repository.plan("compiles", replicates=2)))
    assert status == 0
    first, second = results(repository)
    assert len(first.warm_start_call_times_s) == 3
    assert first.compile_time_s == pytest.approx(0.4, abs=0.09)
    assert first.compile_time_warm_s == pytest.approx(0.1, abs=0.09)
    later_s = sorted(first.latency.call_times_s)[1]  # the median of 3
    assert first.compile_time_warm_s == pytest.approx(sum(first.warm_start_call_times_s) - 3 * later_s)

    # Every replicate starts cold, and the first alone has warm starts.
    assert second.compile_time_s == pytest.approx(0.4, abs=0.09)
    assert (second.compile_time_warm_s, second.compile_time_warm_absent) == (None, None)
    logs = [path.name for path in repository.results.records().rglob("*.log")]
    assert sum("warm-start" in name for name in logs) == 1


def test_smoke_run_has_no_warm_start(repository: BehavingProject) -> None:
    assert repository.run(repository.plan("compiles"))[0] == 0
    assert results(repository)[0].warm_start_call_times_s == []


def test_what_breaks_in_a_warm_start_costs_nothing_else(repository: BehavingProject) -> None:
    status, _, _ = repository.run(full(repository.plan("cannot_use_its_caches")))
    assert status == 0
    (result,) = results(repository)
    assert result.blocks is not None
    assert result.compile_time_warm_s is None
    assert result.compile_time_warm_absent == "failed: ValueError: bad cache entry"


def test_signal_in_a_warm_start_keeps_the_record(repository: BehavingProject) -> None:
    folder = repository.job(full(repository.plan("hangs_with_its_caches", "well")))
    with repository.start(folder) as process:
        wait_until(repository.pid.exists, "the warm start has begun")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=patience(20))
    assert process.returncode == 75, output
    (record,) = repository.by_mode().values()
    assert record.outcome == "ok"
    assert record.result.blocks is not None
    assert record.result.warm_start_call_times_s == []
    assert record.result.compile_time_warm_absent == "the job ended before it was measured"

    repository.gate.touch()
    _, output = repository.resume(folder)
    assert "1 measured, 1 had a record" in output
