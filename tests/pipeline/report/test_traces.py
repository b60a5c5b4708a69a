"""`main.py report --trace`: files named after the records, and links to those that are there."""

import json
import math
from pathlib import Path

import pytest

from harness.paths import Results
from harness.results.record import Record, write_record
from harness.results.timeline import timeline_of
from harness.results.timeline_file import write_timeline
from pipeline.report.command import NO_TRACES
from tests.made.explained_records import launch_bound_pair
from tests.made.report_records import save, with_result
from tests.pipeline.report.shown import reported


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two explained measurements; JAX's has kept its events."""
    results = Results(root=tmp_path)
    jax, *others = launch_bound_pair()
    path = results.new_record(jax.measurement)
    timeline = results.timeline_of(path)
    kernels = timeline_of([("gemm", 0.0, 4e-6, math.nan)])
    write_timeline(timeline, kernels, tracer="a tracer", on_device=True, steps=1, contents={})
    write_record(with_timeline(jax, timeline.name), path)
    for one in others:
        save(one, results)
    return results


def with_timeline(record: Record, name: str | None) -> Record:
    return with_result(record, explanation=record.result.explanation.model_copy(update={"timeline": name}))


def test_trace_is_named_after_its_record_and_linked(results: Results) -> None:
    """What an earlier report left is removed; without the flag nothing is written, and what is there is linked."""
    shown, page = reported(results)
    left = results.report / "traces" / "of_long_ago.trace.json"
    assert not left.parent.exists() and " download>" not in page and "traces:" not in shown
    left.parent.mkdir()
    left.touch()
    shown, page = reported(results, trace=True)
    (timeline,) = results.records().rglob("*-timeline.npz")
    (trace,) = left.parent.iterdir()
    assert trace.name == timeline.name.replace("-timeline.npz", ".trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["gemm"]
    assert events[0]["args"]["name"] == "JAX cnn-b100-fp32-step.jit of mnist_1: kernels"
    assert f'<a href="traces/{trace.name}" download>JAX cnn-b100-fp32-step.jit</a>' in page
    assert page.count(" download>") == 1
    assert f"traces:  {results.report / 'traces'} (1; open one at https://ui.perfetto.dev)" in shown
    assert " download>" in reported(results)[1]


def test_a_damaged_timeline_costs_its_trace_only(results: Results) -> None:
    (timeline,) = results.records().rglob("*-timeline.npz")
    timeline.write_bytes(b"nothing")
    shown, page = reported(results, trace=True)
    assert f"Warning: {timeline}: not a timeline" in shown
    assert " download>" not in page


@pytest.mark.parametrize("name", [None, "gone-timeline.npz", "../../x-timeline.npz"])
def test_where_no_events_were_kept_it_is_said(tmp_path: Path, name: str | None) -> None:
    jax, *others = launch_bound_pair()
    shown, page = reported(Results(root=tmp_path), with_timeline(jax, name), *others, trace=True)
    assert NO_TRACES in shown and " download>" not in page
