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
from tests.made.explained_records import explained, explanation, launch_bound_pair
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


def with_timeline(record: Record, name: str) -> Record:
    return with_result(record, explanation=record.result.explanation.model_copy(update={"timeline": name}))


def test_trace_is_named_after_its_record_and_linked(results: Results) -> None:
    shown, page = reported(results, trace=True)
    (timeline,) = results.records().rglob("*-timeline.npz")
    record = timeline.with_name(timeline.name.replace("-timeline.npz", ".json"))
    assert record.exists()
    (trace,) = (results.report / "traces").iterdir()
    assert trace.name == f"{record.stem}.trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["gemm"]
    assert events[0]["args"]["name"] == "JAX cnn-b100-fp32-step.jit of mnist_1: kernels"
    assert f'<a href="traces/{trace.name}" download>JAX cnn-b100-fp32-step.jit</a>' in page
    assert page.count(" download>") == 1
    assert f"traces:  {results.report / 'traces'} (1; open one at https://ui.perfetto.dev)" in shown


def test_without_the_flag_nothing_is_written_and_what_is_there_is_linked(results: Results) -> None:
    shown, page = reported(results)
    assert not (results.report / "traces").exists()
    assert " download>" not in page and "traces:" not in shown
    reported(results, trace=True)
    assert " download>" in reported(results)[1]


def test_what_an_earlier_report_left_is_removed(results: Results) -> None:
    folder = results.report / "traces"
    folder.mkdir(parents=True)
    (folder / "of_long_ago.trace.json").write_text("{}")
    reported(results, trace=True)
    assert len(list(folder.iterdir())) == 1


def test_a_damaged_timeline_costs_its_trace_only(results: Results) -> None:
    (timeline,) = results.records().rglob("*-timeline.npz")
    timeline.write_bytes(b"nothing")
    shown, page = reported(results, trace=True)
    assert f"Warning: {timeline}: not a timeline" in shown
    assert " download>" not in page


@pytest.mark.parametrize("name", ["x" * 5000, "../../x-timeline.npz", "", "a\0b", "gone-timeline.npz"])
def test_what_is_gone_or_has_an_odd_name_costs_its_trace_only(tmp_path: Path, name: str) -> None:
    jax, *others = launch_bound_pair()
    shown, page = reported(Results(root=tmp_path), with_timeline(jax, name), *others, trace=True)
    assert NO_TRACES in shown and " download>" not in page


def test_where_no_events_were_kept_it_is_said(tmp_path: Path) -> None:
    found = explained("jax", "step.jit", explanation({"gemm": (1, 1.0)}, step_ms=1.2))
    assert NO_TRACES in reported(Results(root=tmp_path), *found, trace=True)[0]
