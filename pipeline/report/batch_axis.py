"""What the batch size does to throughput, latency, memory and energy: a panel for each model, precision and options.

Pure. The report's best mode is chosen anew at each batch size, so a framework's line may go from one mode to another.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.report.compare import MANY_STEPS, Mode, Row, RowKey, Section, row_labels


@dataclass(frozen=True, kw_only=True)
class BatchPanel:
    """Rows that differ in nothing but their batch size."""

    label: str
    """Two lines with ` | ` between them: the model, and all else."""
    rows: Mapping[int, Row]
    """By batch size, ascending; two at the least."""

    @property
    def points(self) -> Iterator[tuple[int, Mode, bool]]:
        """Batch size, mode, and whether it is its framework's best there; none of a mode that compares with nothing."""
        for batch_size, row in self.rows.items():
            for mode in row.modes:
                if not mode.why_worthless:
                    yield batch_size, mode, row.best(mode.framework) is mode


def batch_panels(section: Section) -> tuple[BatchPanel, ...]:
    """In the order of the section's rows, without what was measured at one batch size only."""
    found: dict[RowKey, dict[int, Row]] = defaultdict(dict)
    for row in section.rows:
        found[RowKey(_label(row), row.settings_digest, row.data_id)][row.variant.batch_size] = row
    labels = row_labels(found)
    return tuple(
        BatchPanel(label=labels[key], rows=dict(sorted(rows.items()))) for key, rows in found.items() if len(rows) > 1
    )


def _label(row: Row) -> str:
    variant = row.variant
    others = [variant.precision, *(str(value) for _, value in sorted(variant.options.items()))]
    return f"{variant.model} | {', '.join(others)}{MANY_STEPS if row.many_steps_in_a_call else ''}"
