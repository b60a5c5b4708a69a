"""What calibrations say, in words: the tables of `main.py calibrate` and of docs/studies/calibration.md, and the
report's sentences about each of its devices."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.errors import RecordError
from harness.paths import PUBLISHED, REPOSITORY, Results
from harness.plan import FRAMEWORKS, SLOWDOWNS, Framework
from harness.results.rules import NEWEST
from pipeline.markdown import GeneratedPart, markdown_table
from pipeline.report.calibration import (
    ANSWERS,
    FEWEST_ROUNDS,
    Calibration,
    Row,
    in_percent,
    most_pairs,
    perfect,
    read_calibrations,
    rows_of,
)
from pipeline.report.compare import NAMES
from pipeline.report.conditions import uses_gpu

COMMAND = "python main.py calibrate"
PUBLISHED_CALIBRATIONS = Results(root=PUBLISHED).calibration
DOCS = REPOSITORY / "docs" / "studies" / "calibration.md"
PART_OF_DOCS = GeneratedPart(
    begin="<!-- calibration: written by `python main.py calibrate --update-docs` -->",
    end="<!-- end of calibration -->",
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
    facts = [f"{headline}, on {_where(one)}.", _how_much(one)]
    if one.flags:
        facts.append(f"Flags: {one.flags}.")
    if one.quick:
        facts.append("A quick run: not a result to quote.")
    rows = rows_of(one.complete)
    if not rows:
        return " ".join([*facts, f"The table needs {FEWEST_ROUNDS} complete rounds."])
    low, high = perfect(one.rounds)
    facts.append(
        f"Rules {NEWEST}, of at most {most_pairs(one.rounds)} pairs: from {one.rounds} rounds, a perfect instrument "
        f"shows {percent(low)} to {percent(high)} wrong in A/A."
    )
    return " ".join(facts) + "\n\n" + table(rows, one.pair_minutes)


def table(rows: Sequence[Row], pair_minutes: float) -> str:
    header = ("rules", "planted", *ANSWERS, "median ratio", "its error", "pairs", "minutes")
    return markdown_table(header, (_cells(row, pair_minutes) for row in rows))


def _cells(row: Row, pair_minutes: float) -> list[str]:
    planted = in_percent(row.condition) if row.condition in SLOWDOWNS else row.condition
    shares = [percent(row.shares[answer]) for answer in ANSWERS]
    ratio = [f"{row.ratio:.4f}", f"{(row.ratio / row.true_ratio - 1) * 100:+.2f} %"]
    return [str(row.rules), planted, *shares, *ratio, f"{row.pairs:.1f}", f"{row.pairs * pair_minutes:.1f}"]


def _where(one: Calibration) -> str:
    environment = one.environment
    cpu = environment.get("cpu") or {}
    of_cpus = f"{len(cpu.get('affinity') or [])} CPUs ({cpu.get('model') or 'of unknown model'})"
    device = one.device if uses_gpu(environment) else of_cpus
    version = (environment.get("framework") or {}).get("version")
    return f"{device}, with {one.framework} {version} and Python {environment.get('python')}"


def _how_much(one: Calibration) -> str:
    loads = [load for record in one.records for load in (record.environment.get("load_average") or [])[:1]]
    load = f"load average {min(loads):.1f} to {max(loads):.1f}" if loads else "load average not recorded"
    return (
        f"{one.rounds} rounds from {one.day}; {load}. "
        f"Two unslowed processes of a round differ by {(one.spread or 0) * 100:.2f} % (root mean square)."
    )


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


def not_calibrated(found: Sequence[Calibration]) -> list[Framework]:
    return [framework for framework in FRAMEWORKS if framework not in {one.framework for one in found}]


def for_terminal(device: str, found: Sequence[Calibration]) -> list[str]:
    """A line for the newest calibrations, and one for the frameworks without."""
    if newest := _newest_in_words(found):
        return [f"Calibrated on {device}{newest}; the report's page says more", *_without(device, found)]
    return sentences(device, found)


def sentences(device: str, found: Sequence[Calibration]) -> list[str]:
    """For the page and for tables: one for each calibration, and one for the frameworks without."""
    return [*(f"Calibrated on {device}: {_in_words(one)}" for one in found), *_without(device, found)]


def _without(device: str, found: Sequence[Calibration]) -> list[str]:
    names = " and ".join(NAMES[framework] for framework in not_calibrated(found))
    return [f"Not calibrated on {device}: {names}; {COMMAND}"] if names else []


def _in_words(one: Calibration) -> str:
    doubts = [f"flags: {one.flags}"] if one.flags else []
    doubts += ["a quick run: not to be quoted"] if one.quick else []
    numbers = (
        f"within {one.trust.at_most} pairs {percent(one.trust.false_in_aa)} false verdicts between two that are alike, "
        f"and 2 % slower found in {percent(one.trust.found)}"
        if one.trust
        else "too few complete rounds to say how often a verdict is right"
    )
    rounds = f"{one.rounds} round{'' if one.rounds == 1 else 's'}"
    how = ", interleaved" if one.is_interleaved else ""
    return f"{NAMES[one.framework]}, {one.what}{how}, {rounds} on {one.day}: {'; '.join([*doubts, numbers])}"


def in_short(found: Sequence[Calibration]) -> str:
    """For the first screen."""
    newest = _newest_in_words(found)
    return f"Calibrated{newest}" if newest else "Not calibrated on this device"


def _newest_in_words(found: Sequence[Calibration]) -> str:
    """Of each framework and pairing. Empty where none can say anything."""
    newest = {(one.is_interleaved, one.framework): one for one in reversed(found) if one.trust and not one.quick}
    told = [
        f"{NAMES[framework]} {percent(trust.found)} (within {trust.at_most} pairs{', interleaved' * is_interleaved})"
        for is_interleaved, framework in itertools.product((False, True), FRAMEWORKS)
        if (key := (is_interleaved, framework)) in newest and (trust := newest[key].trust)
    ]
    return f"; of slowdowns of 2 % found: {', '.join(told)}" if told else ""


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"
