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
    plural = "" if found.judged == 1 else "s"
    sentence = (
        f"{found.judged} comparison{plural}: a side is named in {found.named}. If all {found.judged} were equal in "
        f"truth, luck alone would name about {found.expected:.2g}."
    )
    if not found.named:
        return sentence
    marked = f'; the other {found.marked} are marked "may be luck"' if found.marked else ""
    return f"{sentence} After the correction for many comparisons {found.named - found.marked} stay{marked}."
