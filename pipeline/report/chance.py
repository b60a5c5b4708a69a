"""How many sides chance alone would name in a report, beside how many are named. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.results.statistics import CONFIDENCE
from pipeline.report.compare import Row, Section


class ByChance(NamedTuple):
    """Of some ratios."""

    judged: int
    """Those that had a look, and no doubt against a verdict."""
    named: int
    marked: int
    """Of the named, those whose q is above 5 %."""

    @property
    def expected(self) -> float:
        """How many would be named if all were equal in truth: a design names a side then in 5 % of cases."""
        return (1 - CONFIDENCE) * self.judged


def by_chance(rows: Iterable[Row]) -> ByChance:
    judged = [(row, row.ratio) for row in rows if row.ratio is not None and row.ratio.is_judged]
    return ByChance(
        judged=len(judged),
        named=sum(ratio.names_a_side for _, ratio in judged),
        marked=sum(row.may_be_chance for row, _ in judged),
    )


def chance_sentence(compared: Sequence[Section]) -> str:
    """Of all sections given; empty where no ratio has a verdict."""
    found = by_chance(row for section in compared for row in section.rows)
    if not found.judged:
        return ""
    comparisons = "1 comparison has" if found.judged == 1 else f"{found.judged} comparisons have"
    winners = f"{found.named} winner{'' if found.named == 1 else 's'}"
    marked = f", of which {found.marked} may be luck after a correction for so many" if found.marked else ""
    return f"{comparisons} {winners}{marked}. Chance alone would give {found.expected:.2g}."
