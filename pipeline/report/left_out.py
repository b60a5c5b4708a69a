"""Records that a report leaves out because newer ones of the same measurements stand in their place, in words. Pure.

Records of two labs or of two releases have rows of their own. Where those of two machines of one lab lie in one folder,
that is more than a measurement that was repeated.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from harness.results.record import SETTLED, Record
from pipeline.report.compare import device_name, newest
from pipeline.report.conditions import conditions_of_another_time, side
from pipeline.report.software import lab_of, software_of

MOST_NAMED = 3
"""Of the values that differ in one of them; the others are counted."""
FRAMEWORKS_FIRST = ("jax", "torch ")
"""How the names of packages begin that are named before others."""


def left_out_lines(records: Iterable[Record]) -> list[str]:
    """One sentence about those that differ from what stands in their place in software or machine, with what differs,
    and one about the others. What failed and was tried again is in neither."""
    differing: dict[str, Counter[str]] = defaultdict(Counter)
    different = repeated = 0
    for old, new in _superseded(list(records)):
        found = [one for one in conditions_of_another_time([(side(old), side(new))]) if one.state == "differs"]
        for one in found:
            differing[one.name][_shortened(one.detail)] += 1
        different += bool(found)
        repeated += not found
    lines = []
    if different:
        what = ", ".join(_with_values(name, values, different) for name, values in differing.items())
        lines.append(
            f"{_counted(different)}. Not the same: {what}; the older value is first. "
            "To see the older ones, keep each in a results folder of its own."
        )
    if repeated:
        lines.append(f"{_counted(repeated)}, where nothing that is recorded of software and machine differs.")
    return lines


def _superseded(records: list[Record]) -> Iterable[tuple[Record, Record]]:
    """Each with what stands in its place, of the same lab and software."""

    def key(record: Record) -> tuple[object, ...]:
        return device_name(record), lab_of(record), software_of(record), record.measurement_id

    kept = newest(records)
    chosen, counted = {key(record): record for record in kept}, set(map(id, kept))
    for record in records:
        if record.outcome in SETTLED and id(record) not in counted:
            instead = chosen.get(key(record))
            if instead is not None and instead != record:
                yield record, instead


def _counted(count: int) -> str:
    return (
        f"{count} records are left out: newer ones of the same measurements stand in their place"
        if count > 1
        else "1 record is left out: a newer one of the same measurement stands in its place"
    )


def _with_values(name: str, values: Counter[str], of_all: int) -> str:
    """`node (n1 / n2), driver (570.1 / 580.2 and 1 other; 18 of them)`"""
    (most_common, _), *others = values.most_common()
    more = f" and {len(others)} other{'' if len(others) == 1 else 's'}" if others else ""
    share = f"; {values.total()} of them" if values.total() < of_all else ""
    return f"{name} ({most_common}{more}{share})"


def _shortened(detail: str) -> str:
    parts = sorted(detail.split(", "), key=lambda part: not part.startswith(FRAMEWORKS_FIRST))
    more = [f"{len(parts) - MOST_NAMED} more"] if len(parts) > MOST_NAMED else []
    return ", ".join([*parts[:MOST_NAMED], *more])
