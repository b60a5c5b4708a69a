"""The heartbeat, and how a job tells of itself."""

import json
from pathlib import Path

import pytest

from harness.job.progress import Heartbeat, Teller, read_heartbeat


@pytest.fixture
def heartbeat() -> Heartbeat:
    return Heartbeat(measurements_total=10, node="n1", pid=7)


def test_time_that_is_left_and_a_screenings_own_count(heartbeat: Heartbeat) -> None:
    """Two of the four that are done were skipped; the others took 30 s together."""
    assert heartbeat.eta_s is None
    heartbeat.replicates_made, heartbeat.measuring_s = 2, 30.0
    heartbeat.screenings_total = 4
    heartbeat.screenings_done = heartbeat.measurements_done = 3
    assert (heartbeat.fraction(), heartbeat.fraction(current=True)) == ("screening 3/4", "screening 4/4")
    assert heartbeat.eta_s is None
    heartbeat.screenings_done = heartbeat.measurements_done = 4
    assert (heartbeat.fraction(), heartbeat.fraction(current=True)) == ("4/10", "5/10")
    assert heartbeat.eta_s == 90.0


def test_what_is_told_is_what_is_read_and_a_beat_that_cannot_be_written_is_said_once(
    heartbeat: Heartbeat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "heartbeat.json"
    assert read_heartbeat(path) is None
    heartbeat.set_phase("throughput", 1.0, 30.0)
    teller = Teller(heartbeat, path, "jax")
    teller.beat("running")
    teller.beat("stopped")
    assert read_heartbeat(path) == heartbeat
    assert json.loads(path.read_text())["state"] == "stopped"
    path.unlink()
    path.mkdir()
    teller.beat()
    teller.beat()
    assert capsys.readouterr().out.count(f"jax | warning: cannot write {path}: Is a directory") == 1


def test_lines_and_beats_come_when_they_are_due(
    heartbeat: Heartbeat, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("harness.job.progress.time.monotonic", lambda: now_s)
    teller = Teller(heartbeat, tmp_path / "heartbeat.json", "jax")
    heartbeat.current, heartbeat.phase = "cnn-r0", "warm-up"
    heartbeat.replicates_made, heartbeat.measuring_s = 1, 60.0
    for now_s in (1000.0, 1001.0, 1009.0, 1010.0):  # noqa: B007
        teller.when_due()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" | ")[2] for line in lines] == ["[1/10] cnn-r0: warm-up, about 10 min left"] * 2
