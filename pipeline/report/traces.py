"""`main.py report --trace`: from the timelines beside the records to files that ui.perfetto.dev opens."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from harness.errors import RecordError
from harness.files import way_out, write_atomically
from harness.paths import TIMELINE_ENDING, Results
from harness.printable import printable
from harness.results.timeline_file import chrome_trace, read_timeline
from pipeline.report.compare import NAMES, Section
from pipeline.report.why import explained

ENDING = ".trace.json"


class Trace(NamedTuple):
    timeline: Path
    file: Path
    title: str


def traces(compared: Iterable[Section], results: Results, folder: Path) -> list[Trace]:
    """Of each explained measurement whose events are still there."""
    found = []
    there: dict[Path, set[Path]] = {}
    for section in compared:
        for terms in explained(section):
            measurement = terms.mode.records[0].measurement
            if terms.explanation.timeline is None:
                continue
            beside = results.records(measurement.cell, measurement.framework)
            name = Path(terms.explanation.timeline).name
            if beside not in there:
                there[beside] = set(beside.glob(f"*{TIMELINE_ENDING}"))
            if beside / name not in there[beside]:
                continue
            found.append(
                Trace(
                    timeline=beside / name,
                    file=folder / f"{name.removesuffix(TIMELINE_ENDING)}{ENDING}",
                    title=f"{NAMES[measurement.framework]} {measurement.variant.key} of {measurement.cell.short_name}",
                )
            )
    return found


def write_traces(wanted: Sequence[Trace], folder: Path, advance: Callable[[], None] = lambda: None) -> list[str]:
    """A sentence for each timeline that cannot be read. What an earlier report left is removed: its records may be
    gone."""
    refused = []
    for path in folder.glob(f"*{ENDING}"):
        path.unlink()
    for trace in wanted:
        try:
            content = chrome_trace(read_timeline(trace.timeline), trace.title)
        except RecordError as error:
            refused.append(printable(str(error)))
        else:
            with way_out(trace.file):
                write_atomically(trace.file, json.dumps(content, separators=(",", ":")), replace=True)
        advance()
    return refused


def links(wanted: Sequence[Trace], page: Path) -> Mapping[str, str]:
    """From the name of a timeline to the address of its file as the page has it, of those that are there."""
    there = {path for folder in {trace.file.parent for trace in wanted} for path in folder.glob(f"*{ENDING}")}
    return {
        trace.timeline.name: quote(os.path.relpath(trace.file, page.parent)) for trace in wanted if trace.file in there
    }
