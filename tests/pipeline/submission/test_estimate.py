"""How long jobs will take; the numbers are worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.expand import Selection
from harness.experiments.load import load_config
from harness.experiments.presets import expand_preset
from harness.paths import REPOSITORY, Results
from harness.plan import Cell, JobPlan, MeasurementSettings, Pair, Screening, Variant
from pipeline.submission.estimate import (
    Durations,
    Estimate,
    Left,
    estimate_in_words,
    estimate_of,
    estimates_of,
    expected,
    protocol_s,
    read_durations,
    requeues,
)
from tests.made.project import alone
from tests.made.report_records import plan


def plan_of(*modes: str, quick: bool = False, **cell: Any) -> JobPlan:
    """Of mnist and use case 3."""
    whole = {"gpu": "any", "benchmark": "mnist", "use_case": 3, "use_case_name": "per_sample_gradients"} | cell
    shape: Any = {"model": "cnn", "batch_size": 8, "precision": "fp32"}
    variants = tuple(Variant(**shape, execution_mode=mode) for mode in modes or ("vmap.jit",))
    return plan("jax", cell=Cell(**whole), variants=variants, settings={}, quick=quick)


def estimate(seconds: float, **changes: Any) -> Estimate:
    counts = {"measurements": 10, "screenings": 0, "from_records": 10}
    given = counts | {"longest_s": 100.0, "devices": 1, "trains": False} | changes
    return Estimate(**{"seconds": seconds, "most_seconds": seconds} | given)


def test_by_the_protocol() -> None:
    """10 start + 4 idle + 2 warm-up + 12/4 blocks + 20/4 latency + 5 energy; blocks never less than 20 of 0.1 s."""
    assert protocol_s(MeasurementSettings(), starts=1) == pytest.approx(29.0)
    assert protocol_s(MeasurementSettings(min_time_s=10.0), starts=1) == pytest.approx(36.0)
    assert protocol_s(MeasurementSettings(max_time_s=4.0), starts=1) == pytest.approx(28.0)
    assert protocol_s(MeasurementSettings(max_time_s=1.0), starts=3) == pytest.approx(47.0)


@pytest.mark.parametrize(
    ("of", "each_s"), [(plan_of(), 19.0 + 140 / 12), (plan_of(quick=True), 29.0), (plan_of(devices=2), 29.0)]
)
def test_of_a_plan_without_records(of: JobPlan, each_s: float) -> None:
    """12 replicates and, of one device, 2 processes of the warm start."""
    left = Left(screenings=0, replicates={"a": 3, "b": 2}, more=8)
    found = estimate_of(of, left, Durations(by_variant={}, of_any=None))
    assert (found.measurements, found.from_records) == (5, 0)
    assert found.seconds == pytest.approx(5 * each_s)
    assert found.most_seconds == pytest.approx((5 + 2 * 8) * each_s)  # 8 come after the first look
    assert found.longest_s == pytest.approx(each_s)
    assert expected(of) == Left(screenings=0, replicates={"cnn-b8-fp32-vmap.jit": 4}, more=8)


def test_a_framework_alone_has_no_look_to_stop_at(tmp_path: Path) -> None:
    made = plan_of()
    both = Pair(cell=made.cell, jobs=(made, made))
    found = estimates_of([alone(made), both], Results(root=tmp_path), "slurm")
    each_s = 19.0 + 140 / 12
    assert [one.measurements for one in found] == [12, 8]
    assert [one.seconds / each_s for one in found] == pytest.approx([12, 8])
    assert [one.most_seconds / each_s for one in found] == pytest.approx([12, 24])
    assert [one.longest_s / each_s for one in found] == pytest.approx([1, 1])


def test_a_screening_is_expected_to_leave_the_headline_and_one_other() -> None:
    """Three modes are screened for 10 start + 0.5 warm-up + 1 blocks + 0.25 latency + 0.1 energy; two go on."""
    screening = Screening(always=("vmap.jit",))
    made = plan_of("vmap.jit", "grouped.jit", "ghost.jit").model_copy(update={"screening": screening})
    left = expected(made)
    assert left == Left(screenings=3, replicates={"cnn-b8-fp32-vmap.jit": 4, "cnn-b8-fp32-grouped.jit": 4}, more=8)
    found = estimate_of(made, left, Durations(by_variant={}, of_any=60.0))
    assert (found.measurements, found.screenings, found.from_records, found.longest_s) == (11, 3, 8, 60.0)
    assert found.seconds == pytest.approx(3 * 11.85 + 8 * 60)
    of_one = Durations(by_variant={"cnn-b8-fp32-vmap.jit": 10.0}, of_any=60.0)
    assert estimate_of(made, left, of_one).seconds == pytest.approx(3 * 11.85 + 4 * 10 + 4 * 60)
    assert found.most_seconds == pytest.approx(3 * 11.85 + 24 * 60)
    assert estimate_of(made, left, Durations(by_variant={}, of_any=60.0, of_screening=5.0)).seconds == 495.0


def test_the_headline_takes_an_hour_for_one_gpu(tmp_path: Path) -> None:
    """At most, by the protocol; every pair up to its first look."""
    config = load_config(REPOSITORY / "experiments.yaml")
    pairs = [pair for part in expand_preset(config, "headline", Selection()) for pair in part.pairs]
    of_one_gpu = [pair for pair in pairs if pair.cell.devices == 1]
    assert {pair.cell.use_case for pair in of_one_gpu} == {1, 3, 5, 6}
    for one in (one for pair in pairs for one in pair.jobs):
        assert one.protocol.replicates == 12 and one.measurement_count == 12 * len(one.variants)
    estimates = estimates_of(of_one_gpu, Results(root=tmp_path), "slurm")
    assert sum(one.seconds for one in estimates) <= 3600


def test_requeues() -> None:
    """After 30 minutes less 90 s; each job that is cut off loses 100 s, and one of 1,710 s would never end."""
    seconds = (1710.0, 1711.0, 1710.0 + 1610.0, 1710.0 + 1611.0)
    assert [requeues(estimate(one, longest_s=100.0), 30) for one in seconds] == [0, 1, 1, 2]
    assert requeues(estimate(1711.0, longest_s=1710.0), 30) is None


def write_record(folder: Path, mode: str, seconds: int, *, number: int, **changes: Any) -> None:
    variant = {"model": "cnn", "batch_size": 8, "precision": "fp32", "execution_mode": mode}
    content = {
        "outcome": changes.get("outcome", "ok"),
        "measurement": {"quick": changes.get("quick", False), "variant": variant},
        "started_at": "2026-11-22T10:00:00.000+00:00",
        "ended_at": f"2026-11-22T10:{seconds // 60:02d}:{seconds % 60:02d}.000+00:00",
    }
    content |= {"environment": {"pairing": changes["pairing"]}} if "pairing" in changes else {}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"x-r0-abc-202611{number:02d}T101502.123456Z-3fa9.json").write_text(json.dumps(content))


def test_what_records_tell(tmp_path: Path) -> None:
    """Of 10, 20 and 60 s the median is 20; 10, 20, 60 and 30 s together have 25. Where processes took turns, their own
    time counts."""
    for number, seconds in enumerate((10, 20, 60), start=1):
        write_record(tmp_path, "vmap.jit", seconds, number=number)
    write_record(tmp_path, "ghost.jit", 30, number=4)
    write_record(tmp_path, "vmap.jit", 1, number=5, outcome="failed")
    write_record(tmp_path, "vmap.jit", 1, number=6, quick=True)
    (tmp_path / "broken.json").write_text("{")
    assert read_durations(tmp_path, quick=False) == Durations(
        by_variant={"cnn-b8-fp32-vmap.jit": 20.0, "cnn-b8-fp32-ghost.jit": 30.0}, of_any=25.0
    )
    assert read_durations(tmp_path / "none", quick=False).of_any is None
    write_record(tmp_path / "turns", "vmap.jit", 60, number=1, pairing={"kind": "interleaved", "active_s": 25.5})
    assert read_durations(tmp_path / "turns", quick=False).of_any == 25.5


def test_in_words() -> None:
    assert estimate_in_words([estimate(600.0), estimate(1200.0), estimate(90.0, devices=2)], [30] * 3) == (
        "Estimate: 30 min on 1 device and 2 min on 2 devices, one job after the other, from earlier records; 30 "
        "measurements. The longest job takes 20 min, within time_limit_minutes (30)."
    )
    assert estimate_in_words([estimate(45.0, from_records=4, screenings=6, trains=True)]) == (
        "Estimate: 45 s, 4 of 10 measurements from earlier records, plus compiling and training (unknown until "
        "measured once); about 10 measurements, 6 of them a short screening."
    )
    looked_at = [estimate(600.0, most_seconds=1200.0), estimate(60.0, most_seconds=240.0)]
    assert estimate_in_words(looked_at, [30, 30]).startswith(
        "Estimate: 11 min to 24 min, one job after the other, from"
    )
    assert estimate_in_words([estimate(9999.0, longest_s=5000.0)], [30]).endswith(
        "A measurement may take longer than time_limit_minutes (30) allows: raise it."
    )
    # Of each kind of GPU its own limit; of a partition's nothing is said. Without requeue, what goes on.
    jobs = [estimate(2000.0), estimate(2000.0), estimate(90_000.0)]
    assert estimate_in_words(jobs, [30, 60, None]).endswith(
        "1 of 2 jobs takes longer than time_limit_minutes (30 and 60), up to 33 min: cut off, they are requeued, at "
        "most 1 time, and go on where they were."
    )
    assert estimate_in_words(jobs[:1], [30], requeue=False).endswith(
        "measured stays. The same command then submits what is missing, which goes on from there."
    )
    assert "requeue" not in estimate_in_words(jobs, requeue=False), "on this machine nothing ends a job"
