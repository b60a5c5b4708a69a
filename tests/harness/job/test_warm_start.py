"""What compilation takes where an earlier process has filled the compilers' caches; frameworks are faked."""

import signal

import pytest

from tests.made.patience import patience, wait_until
from tests.made.project import BehavingProject


def test_process_that_finds_filled_caches(repository: BehavingProject) -> None:
    """It compiles for 0.1 s, one with empty caches for 0.4 s, and a later call takes 1 ms."""
    assert repository.run(repository.plan("compiles", replicates=2, quick=False))[0] == 0
    first, second = (one.result for one in repository.by_replicate())
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
    assert repository.by_mode()["compiles"].result.warm_start_call_times_s == []


def test_what_breaks_in_a_warm_start_costs_nothing_else(repository: BehavingProject) -> None:
    assert repository.run(repository.plan("cannot_use_its_caches", quick=False))[0] == 0
    result = repository.by_mode()["cannot_use_its_caches"].result
    assert result.blocks and result.compile_time_warm_s is None
    assert result.compile_time_warm_absent == "failed: ValueError: bad cache entry"


def test_signal_in_a_warm_start_keeps_the_record(repository: BehavingProject) -> None:
    folder = repository.job(repository.plan("hangs_with_its_caches", "well", quick=False))
    with repository.start(folder) as process:
        wait_until(repository.pid.exists, "the warm start has begun")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=patience(20))
    assert process.returncode == 75, output
    (record,) = repository.by_mode().values()
    assert record.outcome == "ok" and record.result.blocks
    assert record.result.warm_start_call_times_s == []
    assert record.result.compile_time_warm_absent == "the job ended before it was measured"

    repository.gate.touch()
    _, output = repository.resume(folder)
    assert "1 measured, 1 had a record" in output
