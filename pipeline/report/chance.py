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
    """Of what may be quoted, or of all where nothing may; empty where no ratio has a verdict."""
    quotable = [section for section in compared if not section.setup.doubts]
    found = by_chance(row for section in quotable or compared for row in section.rows)
    if not found.judged:
        return ""
    sentence = (
        f"Comparisons: {found.judged}; a side is named in {found.named}. If the sides were equal in all of them, luck "
        f"alone would name about {found.expected:.2g}."
    )
    if not found.named:
        return sentence
    marked = f'; marked "may be luck": {found.marked}' if found.marked else ""
    return f"{sentence} After the correction for many comparisons stay {found.named - found.marked}{marked}."
