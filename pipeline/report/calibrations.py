"""What calibrations of the instrument say about the devices of a report: can its verdicts be trusted there?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.settings import FRAMEWORKS, Framework
from pipeline.calibration import (
    FOUND_GOAL_OF,
    Calibration,
    Row,
    flag_counts,
    read_calibration,
    rounds_of,
    rows_of,
    spread,
    what_was_measured,
)
from pipeline.report.compare import NAMES, device_of

COMMAND = "python main.py calibrate"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """With so many replicates: how often a verdict was false where both sides were alike, and how often a slowdown of
    2 % was found. Shares of the trials."""

    replicates: int
    false_in_aa: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """One calibration of one framework."""

    framework: Framework
    what: str
    """Benchmark, use case, variant and data."""
    day: str
    quick: bool
    flags: str
    """`imprecise in 42 of 43 processes`; empty without any."""
    rounds: int
    spread: float | None
    """Of the ratio of two processes that are alike; None without a complete round."""
    trust: tuple[Trust, ...]
    """Empty under 3 complete rounds."""


CalibratedDevices = Mapping[str, Sequence[Calibrated]]
"""By the device's name; empty where there is no calibration."""


def read_calibrations(folders: Iterable[Path]) -> tuple[list[Calibration], list[str]]:
    """Those of all folders, oldest first, and a sentence about each file that is none."""
    paths = {path.resolve() for folder in folders for path in folder.glob("*.json")}
    found, refused = [], []
    for path in sorted(paths):
        try:
            found.append(read_calibration(path))
        except RecordError as error:
            refused.append(str(error))
    return sorted(found, key=lambda calibration: calibration.started_at), refused


def calibrated_devices(calibrations: Sequence[Calibration], devices: Iterable[str]) -> CalibratedDevices:
    """Of each device what was calibrated on it, JAX before PyTorch, the newest first."""
    found: dict[str, list[Calibrated]] = {device: [] for device in sorted(set(devices))}
    for framework in FRAMEWORKS:
        for calibration in reversed(calibrations):
            device = device_of(calibration.environments.get(framework, {}))
            if framework in calibration.environments and device in found:
                found[device].append(_calibrated(calibration, framework))
    return found


def _calibrated(calibration: Calibration, framework: Framework) -> Calibrated:
    rounds = rounds_of(calibration, framework)
    by_replicates: dict[int, dict[str, Row]] = {}
    for row in rows_of(rounds, conditions=("A/A", FOUND_GOAL_OF)):
        by_replicates.setdefault(row.replicates, {})[row.condition] = row
    return Calibrated(
        framework=framework,
        what=what_was_measured(calibration, framework),
        day=calibration.started_at[:10],
        quick=calibration.measurements[framework].quick,
        flags=flag_counts(calibration, framework),
        rounds=len(rounds),
        spread=spread(rounds) if rounds else None,
        trust=tuple(
            Trust(
                replicates=replicates,
                false_in_aa=rows["A/A"].shares["wrong"],
                found=rows[FOUND_GOAL_OF].shares["right"],
            )
            for replicates, rows in by_replicates.items()
        ),
    )


def not_calibrated(found: Sequence[Calibrated]) -> list[Framework]:
    return [framework for framework in FRAMEWORKS if framework not in {one.framework for one in found}]


def sentences(device: str, found: Sequence[Calibrated]) -> list[str]:
    """For the terminal and for tables: one for each calibration, and one for the frameworks without."""
    lines = [f"Calibrated on {device}: {_in_words(one)}" for one in found]
    if missing := not_calibrated(found):
        names = " and ".join(NAMES[framework] for framework in missing)
        lines.append(f"Not calibrated on {device}: {names}; {COMMAND}")
    return lines


def _in_words(one: Calibrated) -> str:
    doubts = [f"flags: {one.flags}"] if one.flags else []
    doubts += ["a quick run: not to be quoted"] if one.quick else []
    trust = [
        f"with {trust.replicates} replicates {percent(trust.false_in_aa)} false verdicts between two that are alike, "
        f"and 2 % slower found in {percent(trust.found)}"
        for trust in one.trust
    ]
    numbers = trust or ["too few complete rounds to say how often a verdict is right"]
    rounds = f"{one.rounds} round{'' if one.rounds == 1 else 's'}"
    return f"{NAMES[one.framework]}, {one.what}, {rounds} on {one.day}: {'; '.join([*doubts, *numbers])}"


def in_short(found: Sequence[Calibrated]) -> str:
    """For the first screen: the newest of each framework, with the fewest replicates."""
    newest = {one.framework: one for one in reversed(found) if one.trust and not one.quick}
    if not newest:
        return "Not calibrated on this device"
    told = [
        f"{NAMES[framework]} {percent(newest[framework].trust[0].found)} ({newest[framework].trust[0].replicates} "
        "replicates)"
        for framework in FRAMEWORKS
        if framework in newest
    ]
    return f"Calibrated; of slowdowns of 2 % found: {', '.join(told)}"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"
