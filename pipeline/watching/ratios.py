"""The ratios so far of jobs that are watched: from the records that are there, each file read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RecordError
from harness.packs import record_paths
from harness.paths import Results
from harness.plan import JobPlan
from harness.results.parity_gate import ParityGate
from harness.results.record import Record, read_record
from harness.results.sequential import RatioEstimate
from pipeline.report.compare import Judge, Row, Setup, sections
from pipeline.report.wording import WHOSE_SIDE, bracket, times, verdict

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 20
"""Rows of the live table, those with news last."""


@dataclass(frozen=True, kw_only=True)
class RatioSoFar:
    """Of one comparison."""

    cell: str
    label: str
    modes: str
    """`jit, compiled`: JAX's and PyTorch's that are compared."""
    estimate: RatioEstimate

    @property
    def ratio(self) -> str:
        """`1.25 [1.20, 1.31]`"""
        return f"{times(self.estimate.value)}{bracket(self.estimate.interval)}"

    @property
    def rests_on(self) -> str:
        """`so far: 1 of at most 12 pairs, ...`; it changes at a look only."""
        return verdict(self.estimate)

    def __str__(self) -> str:
        return f"{self.cell} {self.label}: JAX / PyTorch {self.ratio} ({self.rests_on}; {self.modes})"


class RatiosSoFar:
    """Asked again and again; it looks at a record only once."""

    def __init__(self, plans: Sequence[JobPlan], results: Results, judge: Judge | None = None) -> None:
        self._results = results
        self._judge = judge or ParityGate(results).judge
        self._folders = {results.records(plan.cell, plan.framework) for plan in plans}
        self._wanted = {measurement.id for plan in plans for measurement in plan.measurements()}
        self._records: dict[Path, Record | None] = {}
        self._found: dict[tuple[Setup, str], RatioSoFar] = {}

    def news(self) -> list[RatioSoFar]:
        """What is new or has changed since the last call."""
        paths = {path for folder in self._folders for path in record_paths(folder)} - self._records.keys()
        if not paths:
            return []
        for path in sorted(paths):
            self._records[path] = self._read(path)
        changed = []
        for section in sections([record for record in self._records.values() if record], self._judge):
            for row in section.rows:
                found, key = _ratio_so_far(section.setup, row), (section.setup, row.label)
                if found is not None and found != self._found.get(key):
                    self._found.pop(key, None)  # so that the newest are last
                    self._found[key] = found
                    changed.append(found)
        return changed

    def _read(self, path: Path) -> Record | None:
        """None for what is not watched, or is no record, which the report tells."""
        try:
            record = read_record(path)
        except RecordError:
            return None
        return record if record.measurement_id in self._wanted else None

    def table(self) -> "Table":
        """Of the ratios that changed last."""
        from rich.table import Table
        from rich.text import Text

        result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), caption=WHOSE_SIDE)
        result.caption_justify = "left"
        for column in ("cell", "variant", "JAX / PyTorch", "so far", "modes"):
            result.add_column(column, no_wrap=True)
        for one in list(self._found.values())[-SHOWN:]:
            result.add_row(*map(Text, (one.cell, one.label, one.ratio, one.rests_on, one.modes)))
        return result

    def __len__(self) -> int:
        return len(self._found)


def _ratio_so_far(setup: Setup, row: Row) -> RatioSoFar | None:
    comparison = row.comparison
    if comparison is None or comparison.estimate is None:
        return None
    modes = f"{comparison.jax.execution_mode}, {comparison.torch.execution_mode}"
    return RatioSoFar(cell=setup.cell.name, label=row.label, modes=modes, estimate=comparison.estimate)
