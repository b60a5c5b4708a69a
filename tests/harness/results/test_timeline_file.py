"""The events beside a record, and the same for ui.perfetto.dev, by hand-worked events."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import RecordError
from harness.results import timeline_file as module
from harness.results.timeline import Timeline, timeline_of
from harness.results.timeline_file import chrome_trace, read_timeline, write_timeline

US = 1e-6
EVENTS = [
    # Name, start, end, when the launching call had returned.
    ("gemm", 1000.0 * US, 1004.0 * US, 999.5 * US),
    ("loop_add_fusion", 1002.0 * US, 1005.5 * US, math.nan),
    ("fusion_3", 1004.0 * US, 1006.0 * US, 1003.0 * US),
]


def written(path: Path, timeline: Timeline, **changes: Any) -> Path:
    about: dict[str, Any] = {"tracer": "a tracer", "on_device": True, "steps": 2, "contents": {"fusion_3": "product"}}
    write_timeline(path, timeline, **(about | changes))
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    kept = read_timeline(written(tmp_path / "t.npz", timeline_of(EVENTS, counts=[True, True, False])))
    assert (kept.about.steps, kept.about.events) == (2, 3)
    assert [kept.timeline.names[place] for place in kept.timeline.name] == [name for name, *_ in EVENTS]
    assert kept.timeline.start_s / US == pytest.approx([0, 2, 4])
    assert kept.timeline.end_s / US == pytest.approx([4, 5.5, 6])
    assert kept.timeline.launched_s / US == pytest.approx([-0.5, np.nan, 3], nan_ok=True)
    assert kept.timeline.counts.tolist() == [True, True, False]


def test_chrome_trace_by_hand(tmp_path: Path) -> None:
    """The second event begins in the first, so it has a lane of its own; the third has the first one's again."""
    found = chrome_trace(read_timeline(written(tmp_path / "t.npz", timeline_of(EVENTS))), "JAX step.jit")
    events = found["traceEvents"]
    assert [event for event in events if event["ph"] == "X"] == [
        {"ph": "X", "pid": 1, "tid": 1, "name": "gemm", "cat": "product", "ts": 0.0, "dur": 4.0},
        {"ph": "X", "pid": 1, "tid": 2, "name": "loop_add_fusion", "cat": "traffic", "ts": 2.0, "dur": 3.5},
        {"ph": "X", "pid": 1, "tid": 1, "name": "fusion_3", "cat": "product", "ts": 4.0, "dur": 2.0},
    ]
    launches = [(event["name"], event["ts"]) for event in events if event["ph"] == "i"]
    assert launches == [("gemm", -0.5), ("fusion_3", 3.0)]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {
        (1, 0): "JAX step.jit: kernels",
        (1, 1): "kernels, lane 1",
        (1, 2): "kernels, lane 2",
        (2, 0): "JAX step.jit: calls of the host, where they had returned",
    }
    assert found["otherData"]["steps"] == 2


def test_operators_of_a_host_have_no_launches(tmp_path: Path) -> None:
    timeline = timeline_of([("aten::mm", 0.0, US, math.nan)])
    found = chrome_trace(read_timeline(written(tmp_path / "t.npz", timeline, on_device=False)), "PyTorch step.eager")
    assert [(event["pid"], event["ph"]) for event in found["traceEvents"]] == [(1, "M"), (1, "X"), (1, "M")]
    assert found["traceEvents"][0]["args"]["name"] == "PyTorch step.eager: operators"
    empty = chrome_trace(read_timeline(written(tmp_path / "empty.npz", timeline_of([]))), "")
    assert [event["ph"] for event in empty["traceEvents"]] == ["M"]


def test_only_the_first_events_of_very_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 2)
    kept = read_timeline(written(tmp_path / "t.npz", timeline_of(EVENTS[::-1])))
    assert [kept.timeline.names[place] for place in kept.timeline.name] == ["gemm", "loop_add_fusion"]
    assert kept.about.events == 3


def test_an_odd_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "t.npz", timeline_of(EVENTS))
    with np.load(path) as arrays:
        content = dict(arrays)
    np.savez(path, **content | {"about": np.array('{"schema_version": 2}')})
    with pytest.raises(RecordError, match=r"t\.npz: not a timeline: schema_version"):
        read_timeline(path)
    path.unlink()
    with pytest.raises(RecordError, match=r"t\.npz: not a timeline"):
        read_timeline(path)
