"""The ratios so far of jobs that are watched: from the records that are there, each file read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RecordError
from harness.paths import Results
from harness.plan import Cell, JobPlan
from harness.results.parity_gate import ParityGate
from harness.results.record import Record, read_record
from pipeline.report.answer import NOT_DECIDED, answer_of
from pipeline.report.compare import Judge, Row, Section, Setup, sections


@dataclass(frozen=True, kw_only=True)
class RatioSoFar:
    """Of one comparison, in the words of the report's answer (pipeline/report/answer.py)."""

    cell: Cell
    modes: str
    """`step.jit / step.compiled`: JAX's and PyTorch's that are compared."""
    short: str
    """`so far JAX 1.25 ×`; at a look `JAX 1.25 × faster` or `the same within 1 %`."""
    sentence: str
    """`Train a small CNN (mnist, batch 64, fp32): JAX 1.25 × faster (1.20 to 1.31); 4 of at most 12 pairs; step.jit /
    step.compiled`"""
    jax_is_ahead: bool | None
    """None where the machine was busy, so that no side is named."""


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
        paths = {path for folder in self._folders for path in folder.rglob("*.json")} - self._records.keys()
        if not paths:
            return []
        for path in sorted(paths):
            self._records[path] = self._read(path)
        changed = []
        for section in sections([record for record in self._records.values() if record], self._judge):
            for row in section.rows:
                found, key = _ratio_so_far(section, row), (section.setup, row.label)
                if found is not None and found != self._found.get(key):
                    self._found.pop(key, None)  # so that the newest are last
                    self._found[key] = found
                    changed.append(found)
        return changed

    def of_cell(self, cell: Cell) -> str:
        """`so far JAX 1.25 ×`; of several comparisons `JAX ahead in 3 of 5`; empty before the first."""
        found = [one for one in self._found.values() if one.cell == cell]
        if cell not in self._has_several:
            return found[-1].short if found else ""
        known = [one.jax_is_ahead for one in found if one.jax_is_ahead is not None]
        parts = [f"JAX ahead in {sum(known)} of {len(known)}"] if known else []
        parts += [f"machine busy in {len(found) - len(known)}"] if len(known) < len(found) else []
        return ", ".join(parts)

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


def _ratio_so_far(section: Section, row: Row) -> RatioSoFar | None:
    comparison, answer = row.comparison, answer_of(section, row)
    if comparison is None or (answer.ratio is None and comparison.busy is None):
        return None
    short = f"{answer.who} {answer.amount}{' faster' if answer.outcome == 'faster' else ''}"
    modes = f"{comparison.jax.execution_mode} / {comparison.torch.execution_mode}"
    if answer.ratio is None:
        where = f"{answer.work} ({answer.detail})"
        return RatioSoFar(
            cell=section.setup.cell,
            modes=modes,
            short=f"{answer.who}: machine busy",
            sentence=f"{where}: {answer.sentence}; {answer.speeds}; {modes}",
            jax_is_ahead=None,
        )
    return RatioSoFar(
        cell=section.setup.cell,
        modes=modes,
        short=short if answer.faster and answer.who != NOT_DECIDED else answer.who,
        sentence=f"{answer.work} ({answer.detail}): {answer.sentence}; {answer.rests_on}; {modes}",
        jax_is_ahead=answer.ratio >= 1,
    )
