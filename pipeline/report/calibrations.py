"""What calibrations say, in words: the tables of `main.py calibrate` and of docs/studies/calibration.md, and the
report's sentences about each of its devices."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.errors import RecordError
from harness.paths import PUBLISHED, REPOSITORY, Results
from harness.plan import FRAMEWORKS, SLOWDOWNS, Framework
from harness.results.thresholds import NEWEST
from pipeline.markdown import GeneratedPart, markdown_table
from pipeline.report.calibration import (
    A_A,
    ANSWERS,
    FEWEST_ROUNDS,
    Calibration,
    Row,
    in_percent,
    most_pairs,
    perfect,
    read_calibrations,
    spread,
)
from pipeline.report.compare import NAMES
from pipeline.report.conditions import uses_gpu

COMMAND = "python main.py calibrate"
PUBLISHED_CALIBRATIONS = Results(root=PUBLISHED).calibration
DOCS = REPOSITORY / "docs" / "studies" / "calibration.md"
PART_OF_DOCS = GeneratedPart(
    begin="<!-- calibration: written by `python main.py calibrate --update-docs` -->", end="<!-- end of calibration -->"
)
NOT_PUBLISHED = "No calibration has been published yet."

CalibratedDevices = Mapping[str, Sequence[Calibration]]
"""By the device's name; empty where there is no calibration."""


# Tables.


def describe(calibrations: Iterable[Calibration]) -> str:
    """Markdown: of each, what was measured where in one paragraph on one line, and a table."""
    return "\n\n".join(map(_describe, calibrations))


def _describe(one: Calibration) -> str:
    headline = f"**{one.framework}**, {one.what}{', interleaved' if one.is_interleaved else ''}"
    if not one.rounds:
        return f"{headline}: no complete round yet."
    environment = one.records[0].environment
    cpu = environment.get("cpu") or {}
    of_cpus = f"{len(cpu.get('affinity') or [])} CPUs ({cpu.get('model') or 'of unknown model'})"
    device = one.device if uses_gpu(environment) else of_cpus
    version = (environment.get("framework") or {}).get("version")
    loads = [load for record in one.records for load in (record.environment.get("load_average") or [])[:1]]
    load = f"load average {min(loads):.1f} to {max(loads):.1f}" if loads else "load average not recorded"
    facts = [
        f"{headline}, on {device}, with {one.framework} {version} and Python {environment.get('python')}.",
        f"{one.rounds} rounds from {one.day}; {load}.",
        f"Two unslowed processes of a round differ by {spread(one.complete) * 100:.2f} % (root mean square).",
    ]
    if one.flags:
        facts.append(f"Flags: {one.flags}.")
    if one.quick:
        facts.append("A quick run: not a result to quote.")
    if not one.rows:
        return " ".join([*facts, f"The table needs {FEWEST_ROUNDS} complete rounds."])
    low, high = perfect(one.rounds)
    facts.append(
        f"Rules {NEWEST}, of at most {most_pairs(one.rounds)} pairs: from {one.rounds} rounds, a perfect instrument "
        f"shows {percent(low)} to {percent(high)} wrong in A/A."
    )
    return " ".join(facts) + "\n\n" + table(one.rows.values(), one.pair_minutes)


def table(rows: Iterable[Row], pair_minutes: float) -> str:
    header = ("planted", *ANSWERS, "median ratio", "its error", "pairs", "minutes")
    return markdown_table(header, (_cells(row, pair_minutes) for row in rows))


def _cells(row: Row, pair_minutes: float) -> list[str]:
    planted = in_percent(row.condition) if row.condition in SLOWDOWNS else row.condition
    shares = [percent(row.shares[answer]) for answer in ANSWERS]
    ratio = [f"{row.ratio:.4f}", f"{(row.ratio / row.true_ratio - 1) * 100:+.2f} %"]
    return [planted, *shares, *ratio, f"{row.pairs:.1f}", f"{row.pairs * pair_minutes:.1f}"]


def update_docs(docs: Path = DOCS, folder: Path = PUBLISHED_CALIBRATIONS) -> None:
    """Write the tables of all published calibrations between the markers.

    Raises:
        RecordError: a published file is no record, or of a quick run.
        ProjectError: the markers are missing.
    """
    PART_OF_DOCS.write(docs, published_text(folder))


def published_text(folder: Path = PUBLISHED_CALIBRATIONS) -> str:
    """What stands between the markers. Raises RecordError as update_docs does."""
    published, refused = read_calibrations([folder])
    if refused:
        raise RecordError(refused[0])
    for one in published:
        if one.quick:
            raise RecordError(
                f"{folder}: {one.framework}, {one.what}: is of a quick run, which is not for publishing. "
                f"Calibrate without --quick."
            )
    return describe(published) or NOT_PUBLISHED


# The devices of a report: can its verdicts be trusted there?


def calibrated_devices(calibrations: Sequence[Calibration], devices: Iterable[str]) -> CalibratedDevices:
    """Of each device what was calibrated on it, JAX before PyTorch, the newest first."""
    newest_first = sorted(reversed(calibrations), key=lambda one: FRAMEWORKS.index(one.framework))
    return {device: [one for one in newest_first if one.device == device] for device in sorted(set(devices))}


def trust_sentences(found: Sequence[Calibration]) -> list[str]:
    """Of the calibrations of one device: how far its verdicts can be trusted; of each pairing the newest of each
    framework. A sentence with the command where there are none."""
    lines = []
    for is_interleaved in (True, False):
        newest = {
            one.framework: one for one in reversed(found) if one.is_interleaved == is_interleaved and not one.quick
        }
        both = [newest[name] for name in FRAMEWORKS if name in newest and newest[name].rows]
        if not both:
            continue
        false = _each([(one.framework, one.rows[A_A].shares["wrong"]) for one in both])
        parts = [f"of two equal programs, a side was named in {false} of trials"]
        for slowdown in SLOWDOWNS:
            shares = [(one.framework, one.rows[slowdown].shares["right"]) for one in both if slowdown in one.rows]
            if shares:
                parts.append(f"a true difference of {in_percent(slowdown)[1:]} was found in {_each(shares)}")
        most = max(most_pairs(one.rounds) for one in both)
        how = "in turns" if is_interleaved else "one after the other"
        made = " and ".join(dict.fromkeys(f"{one.rounds} rounds from {one.day}" for one in both))
        flags = "".join(f" Flags of {NAMES[one.framework]} then: {one.flags}." for one in both if one.flags)
        lines.append(f"Measured on this device, {how}, {made}, within {most} pairs: {'; '.join(parts)}.{flags}")
    return lines or [f"Not calibrated on this device: `{COMMAND}` measures how often its verdicts are right."]


def _each(shares: Sequence[tuple[Framework, float]]) -> str:
    """`1.0 % (JAX) and 3.2 % (PyTorch)`, or `100 % (both)`"""
    words = {percent(share) for _, share in shares}
    if len(shares) == len(FRAMEWORKS) and len(words) == 1:
        return f"{words.pop()} (both)"
    return " and ".join(f"{percent(share)} ({NAMES[name]})" for name, share in shares)


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"
