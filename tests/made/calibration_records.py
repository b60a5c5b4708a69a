"""Hand-made records of a calibration: PyTorch on a CPU, every slowdown exactly as large as it is called."""

from typing import Any

from harness.plan import CONDITIONS, CONDITIONS_IN_TURNS, Cell
from harness.results.record import Record
from pipeline.report.calibration import Calibration, calibrations_of
from tests.made.report_records import record

CELL = Cell(gpu="any", benchmark="mnist", use_case=1, use_case_name="train", is_calibration=True)
HERE = "CPU: A CPU"
ENVIRONMENT: dict[str, Any] = {
    "node": "n1",
    "python": "3.11.7",
    "load_average": [0.25, 0.5, 0.5],
    "cpu": {"model": "A CPU", "affinity": [0, 1]},
    "gpu": {"absent": "no NVIDIA driver"},
    "framework": {"version": "2.15.0", "platform": "cpu"},
    "packages": {"torch": "2.15.0"},
}


def process(number: int, condition: str, *, day: str = "2026-11-21", **changes: Any) -> Record:
    """Of round `number`; a later round is faster, which cancels in its ratios, all but a trifle. The conditions of an
    odd round are started in the opposite order, each for a minute."""
    conditions = CONDITIONS | CONDITIONS_IN_TURNS
    place = list(conditions).index(condition)
    at_s = 59 - place if number % 2 else place
    times = {f"{what}_at": f"{day}T10:0{minute}:{at_s:02}+00:00" for what, minute in (("started", 0), ("ended", 1))}
    asked = {"environment": ENVIRONMENT, "data": "sample"} | times | changes
    throughput = asked.pop("throughput", 1000 * (1 + number / 100) / (1 + conditions[condition]))
    throughput *= 1 + number * place / 1e9
    made = record("torch", "step.eager", throughput, replicate=number, cell=CELL, batch_size=256, **asked)
    variant = made.measurement.variant.model_copy(update={"planted": condition})
    measurement = made.measurement.model_copy(update={"variant": variant})
    return made.model_copy(update={"measurement": measurement, "measurement_id": measurement.id})


def processes(rounds: int, **changes: Any) -> list[Record]:
    return [process(number, condition, **changes) for number in range(rounds) for condition in CONDITIONS]


def calibration(rounds: int, **changes: Any) -> Calibration:
    (made,) = calibrations_of(processes(rounds, **changes))
    return made
