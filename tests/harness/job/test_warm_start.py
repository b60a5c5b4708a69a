"""What comes after all that is timed: what compilation takes where an earlier process has filled the compilers' caches,
and where a step's time goes. Whatever fails there costs nothing else. Frameworks and tracers are faked."""

import signal

import pytest

from tests.made.patience import patience, slowdown, wait_until
from tests.made.project import BehavingProject

pytestmark = pytest.mark.takes(20)


def test_process_that_finds_filled_caches(repository: BehavingProject) -> None:
    """It compiles for 0.1 s, one with empty caches for 0.4 s, and each later call takes 1 ms (simulated): three cold
    calls take 402 ms, of which three warm calls are 3 ms. Nobody explains a step where the settings say no."""
    assert repository.run(repository.plan("compiles", replicates=2, quick=False, explain=False))[0] == 0
    first, second = (one.result for one in repository.by_replicate())
    assert (first.explanation, first.explanation_absent) == (None, None)
    assert len(first.warm_start_call_times_s) == 3
    assert first.compile_time_s == pytest.approx(0.399, abs=1e-5)
    assert first.compile_time_warm_s == pytest.approx(0.099, abs=1e-5)
    later_s = sorted(first.latency.call_times_s)[1]  # the median of 3
    assert first.compile_time_warm_s == pytest.approx(sum(first.warm_start_call_times_s) - 3 * later_s)

    # Every replicate starts cold, and the first alone has warm starts.
    assert second.compile_time_s == pytest.approx(0.399, abs=1e-5)
    assert (second.compile_time_warm_s, second.compile_time_warm_absent) == (None, None)
    logs = [path.name for path in repository.results.records().rglob("*.log")]
    assert sum("warm-start" in name for name in logs) == 1


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


# Where a step's time goes.


@pytest.mark.parametrize("is_quick", [True, False])
def test_first_replicate_is_explained(repository: BehavingProject, is_quick: bool) -> None:
    """A smoke run explains itself; a full one has its second warm start for it."""
    assert repository.run(repository.plan("well", replicates=2, quick=is_quick))[0] == 0
    first, second = (one.result for one in repository.by_replicate())
    explanation = first.explanation
    assert explanation.tracer == "fake tracer 1.2.3"
    assert [window.steps for window in explanation.windows] == [20, 40]
    shorter = explanation.windows[0]
    assert (shorter.busy_s, shorter.host_gaps_s) == pytest.approx((2e-3, 0.5e-3))
    assert explanation.work_absent == "the use case does not tell what its model takes"
    assert len(explanation.dispatch_times_s) >= 3
    assert first.explanation_absent is None
    assert (explanation.blocks == first.blocks) == is_quick
    assert (second.explanation, second.explanation_absent) == (None, None)


@pytest.mark.parametrize(
    ("fault", "is_quick", "reason"),
    [
        ("raises", True, "failed: RuntimeError: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
        ("sees nothing", False, "failed: fake tracer 1.2.3 saw nothing run: on a GPU another client of CUPTI"),
        ("dies", False, "failed: the measurement's process was killed by SIGSEGV"),
        ("hangs", True, "timeout: not done after "),
    ],
)
def test_a_tracer_that_fails_or_hangs_costs_the_explanation_only(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch, fault: str, is_quick: bool, reason: str
) -> None:
    monkeypatch.setenv("FAULT_OF_TRACER", fault)
    bound = {"timeout_s": round(4 * slowdown())} if fault == "hangs" else {}
    assert repository.run(repository.plan("well", quick=is_quick, **bound))[0] == 0
    (result,) = (one.result for one in repository.records())
    assert result.blocks and result.explanation is None
    assert result.explanation_absent.startswith(reason)
    assert (result.blocks_alone_absent, result.compile_time_warm_absent) == (None, None)
    assert (result.compile_time_warm_s is not None) == (not is_quick)
