"""Records, plans and heartbeats on a disk that is full, and files that are truncated, corrupt or from another time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import write_atomically
from harness.job.progress import read_heartbeat, write_heartbeat
from harness.paths import Results
from harness.plan import Measurement, MeasurementSettings
from harness.results.record import (
    Check,
    Energy,
    Latency,
    Record,
    Result,
    find_settled_record,
    in_words,
    read_record,
    write_record,
)
from tests.made.faults import SmallDisk
from tests.made.records import bare_record, blocks, heartbeat
from tests.made.report_records import plan, save


def measurement(**protocol: Any) -> Measurement:
    return next(plan("jax", "step.jit", protocol=MeasurementSettings(**protocol)).measurements())


def make_record(outcome: str = "ok", **fields: Any) -> Record:
    result = Result(
        cold_call_times_s=[0.1, 1 / 3],
        blocks=blocks([0.25]),
        latency=Latency(steps_per_call=1, call_times_s=[0.125]),
        energy=Energy(gross_joules=900.0),
    )
    return bare_record(measurement(), outcome, **({"environment": {"scheduler": "local"}, "result": result} | fields))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(root=tmp_path)


def test_record_comes_back_as_it_was_written(results: Results) -> None:
    """From plain JSON, which other tools read: no NaN, no Infinity."""
    record = make_record(flags={"noisy": "spread 12 %"})
    path = save(record, results)
    assert read_record(path) == record
    assert read_record(path).result.cold_call_times_s == [0.1, 1 / 3]  # every bit of a float
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["schema_version"] == 2


def test_record_is_never_overwritten_and_a_file_that_cannot_be_finished_leaves_the_old_one(results: Results) -> None:
    path = save(make_record(), results)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="never overwritten"):
        write_record(make_record("failed"), path)
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800", replace=True)  # half a surrogate pair: not writable as UTF-8
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_full_disk_is_told_and_leaves_what_is_there(tmp_path: Path) -> None:
    """A file system of 64 KiB with 4 KiB left."""
    disk = SmallDisk(tmp_path / "small")
    if not disk.mount("64k"):
        pytest.skip("needs the right to mount a small file system")
    try:
        (disk.folder / "ballast").write_bytes(bytes(60 * 1024))
        results, beat = Results(root=disk.folder), disk.folder / "heartbeat.json"
        good = save(make_record(), results)
        before = good.read_bytes()
        with pytest.raises(RecordError, match=r"No space left on device.*--results DIR; nothing was overwritten"):
            save(make_record(environment={"scheduler": "local", "padding": "x" * 100_000}), results)
        assert good.read_bytes() == before
        assert [file.name for file in good.parent.iterdir()] == [good.name]  # no half file, no temporary one
        good.unlink()
        write_heartbeat(heartbeat(), beat)
        with pytest.raises(OSError, match="No space left"):
            write_heartbeat(heartbeat(last_error="x" * 100_000), beat)
        assert read_heartbeat(beat) == heartbeat()
    finally:
        disk.unmount()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "Invalid JSON: EOF"),
        (lambda text: "\xff\xfe\0", "cannot be read"),
        (lambda text: text.replace('"outcome"', '"outcme"'), "outcome: Field required"),
        (lambda text: text.replace('"schema_version":2', '"schema_version":99'), "schema_version: Input should be 2"),
        # Samples without statistics.
        (lambda text: text.replace("[0.25]", "[]"), "2: result.blocks.block_times_s: List should have at least 1 item"),
        (lambda text: text.replace("[0.25]", "[0.25,0.0]"), "result.blocks.block_times_s.1: Input should be greater"),
        (lambda text: text.replace('_block":10', '_block":0'), "blocks.calls_per_block: Input should be greater"),
        (lambda text: text.replace("900.0", "Infinity"), "result.energy.gross_joules: Input should be a finite number"),
    ],
)
def test_damaged_record_or_heartbeat_is_named_left_alone_and_not_measured(
    damage: Callable[[str], str], complaint: str, results: Results
) -> None:
    path, beat = save(make_record(), results), results.root / "heartbeat.json"
    assert find_settled_record(measurement(), results, "local") == path
    path.write_bytes(before := damage(path.read_text()).encode("latin-1"))
    with pytest.raises(RecordError, match=complaint) as raised:
        read_record(path)
    assert str(path) in str(raised.value)
    assert find_settled_record(measurement(), results, "local") is None
    assert path.read_bytes() == before
    beat.write_bytes(before)
    with pytest.raises(RecordError, match="heartbeat.json: not a heartbeat"):
        read_heartbeat(beat)


def test_which_outcomes_are_settled(tmp_path: Path) -> None:
    """Of this work and this scheduler; a newer failure does not hide a good record."""
    outcomes = {"ok": True, "out_of_memory": True, "refused": True, "failed": False, "timeout": False}
    for outcome, settled in outcomes.items():
        results = Results(root=tmp_path / outcome)
        path = save(make_record(outcome), results)
        save(make_record("failed"), results)
        assert find_settled_record(measurement(), results, "local") == (path if settled else None)
        assert find_settled_record(measurement(), results, "slurm") is None
        assert find_settled_record(measurement(seed=1), results, "local") is None


def test_each_replicate_has_its_own_seed_and_the_fourth_is_short() -> None:
    first = measurement(seed=4)
    of_plan = [first.model_copy(update={"replicate": replicate}) for replicate in range(5)]
    assert [(one.seed, one.is_short) for one in of_plan] == [*((4 + n, False) for n in range(3)), (7, True), (8, True)]
    last = measurement(seed=2**32 - 1)
    assert [last.seed, last.model_copy(update={"replicate": 1}).seed] == [2**32 - 1, 0]
    cell = first.cell.model_copy(update={"is_calibration": True})
    assert first.model_copy(update={"cell": cell}).is_short
    # Repetition and patience do not change what is measured.
    patient = measurement(replicates=8, timeout_s=5.0, explain=False)
    assert patient.id == measurement().id != measurement(warmup_s=9.0).id


def test_what_json_cannot_hold_is_refused_before_it_is_written() -> None:
    check = Check(name="full", error=float("inf"), tolerance=1.0, passed=False)
    for fields, where in (
        ({"details": {"phases": {"forward": [0.1, float("nan")]}}}, "phases.forward.1 (nan)"),
        ({"checks": [check]}, "0.error (inf)"),
    ):
        with pytest.raises(ValidationError, match="is not a finite number") as raised:
            Result(**fields)
        assert where in in_words(raised.value)
