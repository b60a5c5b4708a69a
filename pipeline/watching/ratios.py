"""The ratios so far of jobs that are watched: from the records that are there, each file read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.packs import record_paths
from harness.paths import Results
from harness.plan import Cell, JobPlan, Variant
from harness.results.parity_gate import ParityGate
from harness.results.record import Record, read_record
from harness.results.sequential import RatioEstimate
from harness.results.statistics import SAME_WITHIN
from pipeline.report.compare import Judge, Row, Setup, sections
from pipeline.report.wording import times, verdict


@dataclass(frozen=True, kw_only=True)
class RatioSoFar:
    """Of one comparison."""

    cell: Cell
    variant: Variant
    """Its execution mode has no meaning here."""
    label: str
    """Of its row in the report: the variant's, and what tells it from others of the same variant."""
    modes: str
    """`step.jit / step.compiled`: JAX's and PyTorch's that are compared."""
    estimate: RatioEstimate

    @property
    def short(self) -> str:
        """`so far JAX 1.25 x`; at a look `JAX 1.25 x faster` or `the same, within 1 %`."""
        return self._answer("")

    @property
    def what(self) -> str:
        """`mnist train, cnn, batch 64, fp32`"""
        variant = self.variant
        options = (str(value) for _, value in sorted(variant.options.items()))
        beside = self.label.removeprefix(variant.comparison_key)
        axes = ", ".join([variant.model, f"batch {variant.batch_size}", variant.precision, *options])
        return f"{self.cell.words}, {axes}{beside}"

    @property
    def sentence(self) -> str:
        """`mnist train, cnn, batch 64, fp32: JAX 1.25 x [1.20, 1.31] faster: after 4 of at most 12 pairs (...)`"""
        low_high = ""
        if (interval := self.estimate.interval) is not None:
            edges = (interval.low, interval.high) if self.estimate.value >= 1 else (1 / interval.high, 1 / interval.low)
            low_high = f" [{', '.join(map(times, edges))}]"
        rests_on = verdict(self.estimate).removeprefix(f"{self.estimate.verdict}: ").removeprefix("so far: ")
        return f"{self.what}: {self._answer(low_high)} ({rests_on}; {self.modes})"

    def _answer(self, interval: str) -> str:
        estimate = self.estimate
        if estimate.verdict == "same":
            return f"the same, within {100 * (SAME_WITHIN - 1):.0f} %"
        ahead = "JAX" if estimate.value >= 1 else "PyTorch"
        text = f"{ahead} {times(max(estimate.value, 1 / estimate.value))} x{interval}"
        return f"{text} faster" if estimate.names_a_side else f"so far {text}"


class RatiosSoFar:
    """Asked again and again; it looks at a record only once."""

    def __init__(self, plans: Sequence[JobPlan], results: Results, judge: Judge | None = None) -> None:
        self._results = results
        self._judge = judge or ParityGate(results).judge
        self._folders = {results.records(plan.cell, plan.framework) for plan in plans}
        self._wanted = {measurement.id for plan in plans for measurement in plan.measurements()}
        self._has_several = {plan.cell for plan in plans if len(plan.contests()) > 1}
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

    def of_cell(self, cell: Cell) -> str:
        """`so far JAX 1.25 x`; of several comparisons `JAX ahead in 3 of 5`; empty before the first."""
        found = [one for one in self._found.values() if one.cell == cell]
        if cell not in self._has_several:
            return found[-1].short if found else ""
        ahead = sum(one.estimate.value >= 1 for one in found)
        return f"JAX ahead in {ahead} of {len(found)}" if found else ""

    def of_several(self, newest: int) -> list[RatioSoFar]:
        """Of cells with several comparisons, which have no room in the line of their job; those with news last."""
        return [one for one in self._found.values() if one.cell in self._has_several][-newest:]

    def _read(self, path: Path) -> Record | None:
        """None for what is not watched, or is no record, which the report tells."""
        try:
            record = read_record(path)
        except RecordError:
            return None
        return record if record.measurement_id in self._wanted else None


def _ratio_so_far(setup: Setup, row: Row) -> RatioSoFar | None:
    comparison = row.comparison
    if comparison is None or comparison.estimate is None:
        return None
    return RatioSoFar(
        cell=setup.cell,
        variant=row.variant,
        label=row.label,
        modes=f"{comparison.jax.execution_mode} / {comparison.torch.execution_mode}",
        estimate=comparison.estimate,
    )
