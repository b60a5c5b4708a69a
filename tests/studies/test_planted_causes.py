"""A simulated queue of a GPU: its timeline, and whether what was planted is what is named."""

import json
from collections import Counter

import numpy as np
import pytest

from harness.paths import REPOSITORY
from harness.results import timeline
from harness.results.timeline import busy_s, gaps, timeline_of
from pipeline.report import why as why_module
from studies import planted_causes
from studies.planted_causes import (
    CAUSES,
    RECORD,
    Kernel,
    named_cause,
    planted,
    run,
    shares,
    step_of,
    table,
    why_of_steps,
)

RUNS = 4


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for noise in ("CLOCK_NOISE", "KERNEL_NOISE", "LAUNCH_NOISE"):
        monkeypatch.setattr(planted_causes, noise, 0.0)


@pytest.mark.usefixtures("quiet")
def test_queue_that_waits_for_its_launches() -> None:
    """Kernels of 3 us, launches of 8 us: a step of 10 takes 80 us and is busy for 30."""
    events, step_s = run([Kernel("k", 3e-6, 8e-6)] * 10, 5, np.random.default_rng(0))
    found = timeline_of(events)
    assert step_s == pytest.approx(80e-6)
    assert busy_s(found) / 5 == pytest.approx(30e-6)
    assert gaps(found).host_s == pytest.approx(49 * 5e-6)


@pytest.mark.usefixtures("quiet")
def test_queue_that_is_full_and_one_with_pauses() -> None:
    """Launches of 1 us are ahead of kernels of 5 us; a pause of 2 us before each is not the host's."""
    draw = np.random.default_rng(0)
    assert run([Kernel("k", 5e-6, 1e-6)] * 10, 5, draw)[1] == pytest.approx(50e-6)
    events, step_s = run([Kernel("k", 5e-6, 1e-6, 2e-6)] * 10, 5, draw)
    assert step_s == pytest.approx(70e-6)
    assert gaps(timeline_of(events)) == pytest.approx((0, 49 * 2e-6, 0), abs=1e-12)


def named(cause: str, strength: float) -> Counter[str]:
    draw = np.random.default_rng(1)
    found: Counter[str] = Counter()
    for _ in range(RUNS):
        step = step_of(draw)
        found[named_cause(why_of_steps(step, planted(step, cause, strength), draw))] += 1
    return found


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_planted_is_named(cause: str) -> None:
    assert named(cause, 0.3) == {CAUSES[cause]: RUNS}


def test_equal_steps_have_nothing_to_explain() -> None:
    assert named("copies", 0.0) == {"nothing": RUNS}


def test_a_class_that_is_dropped_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout taken for traffic names another cause."""
    real = why_module.class_of
    monkeypatch.setattr(why_module, "class_of", lambda *name: "traffic" if real(*name) == "layout" else real(*name))
    assert named("copies", 0.3) != {"layout": RUNS}


def test_gaps_by_the_beginning_of_the_call_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing would wait for the host, and no step would be launch-bound."""
    draw = np.random.default_rng(2)
    step = step_of(draw)
    slow = planted(step, "slow launches", 0.5)
    assert why_of_steps(step, slow, draw).terms["torch"].bound == "launch-bound"
    monkeypatch.setattr(timeline, "gaps", lambda found: timeline.Gaps(0.0, sum(gaps(found)), 0.0))
    assert why_of_steps(step, slow, draw).terms["torch"].bound == "waits for something else"


def test_published_record_reaches_what_it_must() -> None:
    """At twice the threshold: 95 % named right, and none wrong."""
    record = json.loads(RECORD.read_text())
    strong = [case for case in record["cases"] if case["strength"] >= 0.2]
    assert len(strong) == 3 * len(CAUSES)
    assert all(shares(case)[0] >= 0.95 and shares(case)[1] == 0 for case in strong)


def test_the_docs_show_the_published_table() -> None:
    text = (REPOSITORY / "docs" / "studies" / "planted_causes.md").read_text()
    assert table(json.loads(RECORD.read_text())) in text
