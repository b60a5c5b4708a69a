"""Where a step's time goes is told by a process that is not timed any more; whatever fails there costs nothing else.
Frameworks and tracers are faked."""

import pytest

from harness.plan import Registration
from harness.results.timeline import window_of
from harness.results.timeline_file import read_timeline
from tests.made.patience import slowdown
from tests.made.project import BehavingProject


@pytest.mark.parametrize("is_quick", [True, False])
def test_first_replicate_is_explained(repository: BehavingProject, is_quick: bool) -> None:
    """A smoke run explains itself; a full one has its second warm start for it. The events of the longer window stay
    beside the record, which also has what was fixed before it."""
    registered = Registration(checksum="1" * 16, exclusions="2" * 16)
    plan = repository.plan("well", replicates=2, quick=is_quick).model_copy(update={"registration": registered})
    assert repository.run(plan)[0] == 0
    first, second = (one.result for one in repository.by_replicate())
    explanation = first.explanation
    assert explanation.tracer == "fake tracer 1.2.3"
    assert [window.steps for window in explanation.windows] == [20, 40]
    assert explanation.windows[0].busy_s == pytest.approx(2e-3)
    assert explanation.windows[0].host_gaps_s == pytest.approx(0.5e-3)
    assert explanation.work_absent == "the use case does not tell what its model takes"
    assert len(explanation.dispatch_times_s) >= 3
    assert first.explanation_absent is None
    assert (explanation.blocks == first.blocks) == is_quick
    assert (second.explanation, second.explanation_absent) == (None, None)
    assert {record.registration for record in repository.records()} == {registered}
    (timeline,) = repository.root.rglob("*-timeline.npz")
    assert timeline.with_name(timeline.name.replace("-timeline.npz", ".json")).is_file()
    assert (explanation.timeline, explanation.timeline_absent) == (timeline.name, None)
    kept = read_timeline(timeline)
    assert (kept.about.tracer, kept.about.steps) == ("fake tracer 1.2.3", 40)
    again = window_of(kept.timeline, steps=40, contents=kept.about.contents)
    assert again.busy_s == pytest.approx(explanation.windows[1].busy_s)


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", "failed: RuntimeError: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
        ("sees nothing", "failed: fake tracer 1.2.3 saw nothing run: on a GPU another client of CUPTI"),
        ("dies", "failed: the measurement's process was killed by SIGSEGV"),
    ],
)
def test_a_tracer_that_fails_costs_the_explanation_only(
    repository: BehavingProject, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str, is_quick: bool
) -> None:
    monkeypatch.setenv("FAULT_OF_TRACER", fault)
    assert repository.run(repository.plan("well", quick=is_quick))[0] == 0
    (result,) = (one.result for one in repository.records())
    assert result.blocks
    assert result.explanation is None
    assert result.explanation_absent.startswith(reason)
    assert (result.blocks_alone_absent, result.compile_time_warm_absent) == (None, None)
    assert (result.compile_time_warm_s is not None) == (not is_quick)


def test_a_tracer_that_hangs_is_ended(repository: BehavingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_OF_TRACER", "hangs")
    timeout_s = round(4 * slowdown())
    assert repository.run(repository.plan("well", timeout_s=timeout_s))[0] == 0
    (result,) = (one.result for one in repository.records())
    assert result.blocks
    assert result.explanation_absent.startswith(f"timeout: not done after {timeout_s} s")


def test_nobody_explains_where_the_settings_say_no(repository: BehavingProject) -> None:
    assert repository.run(repository.plan("well", explain=False))[0] == 0
    (result,) = (one.result for one in repository.records())
    assert (result.explanation, result.explanation_absent) == (None, None)
