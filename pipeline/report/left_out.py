"""Records that a report leaves out because newer ones of the same measurements stand in their place, in words. Pure.

Records of two clusters or of two releases have rows of their own. Where those of two machines of one cluster lie in one
folder, that is more than a measurement that was repeated.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from harness.results.record import SETTLED, Record
from pipeline.report.compare import device_name, placed
from pipeline.report.conditions import differing_names
from pipeline.report.software import cluster_of, software_of
from pipeline.report.wording import of_how_many


def left_out_lines(records: Sequence[Record]) -> list[str]:
    """One sentence about those that differ from what stands in their place in software or machine, and one about the
    others. What failed and was tried again is in neither."""
    differing: Counter[str] = Counter()
    different = repeated = 0
    for old, new in _superseded(records):
        found = differing_names(old, new)
        differing.update(found)
        different += bool(found)
        repeated += not found
    lines = []
    if different:
        lines.append(
            f"{_counted(different)}. Not the same: {of_how_many(differing, different)}. To see the older ones, keep "
            "each in a results folder of its own."
        )
    if repeated:
        lines.append(f"{_counted(repeated)}, where nothing that is recorded of software and machine differs.")
    return lines


def _superseded(records: Sequence[Record]) -> Iterable[tuple[Record, Record]]:
    """Each with what stands in its place, of the same cluster and software."""

    def key(record: Record) -> tuple[object, ...]:
        return device_name(record), cluster_of(record), software_of(record), record.measurement_id

    counted: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for of_setup in placed(records).values():
        for record in of_setup:
            counted[key(record)].append(record)
    for record in records:
        instead = counted.get(key(record)) if record.outcome in SETTLED else None
        if instead and record not in instead:
            yield record, instead[-1]


def _counted(count: int) -> str:
    return (
        f"{count} records are left out: newer ones of the same measurements stand in their place"
        if count > 1
        else "1 record is left out: a newer one of the same measurement stands in its place"
    )
