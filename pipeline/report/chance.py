"""How many sides chance alone would name in a report, beside how many are named. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.results.statistics import CONFIDENCE
from pipeline.report.compare import Row, Section


class ByChance(NamedTuple):
    """Of some ratios."""

    judged: int
    """Those with enough replicates for a verdict, and no doubt against one."""
    same: int
    named: int
    marked: int
    """Of the named, those whose q is above 5 %."""

    @property
    def expected(self) -> float:
        """How many would be named, if all but those that are `same` were alike in truth: an interval misses the truth
        in 5 % of cases."""
        return (1 - CONFIDENCE) * (self.judged - self.same)


def by_chance(rows: Iterable[Row]) -> ByChance:
    judged = [(row, row.ratio) for row in rows if row.ratio is not None and row.ratio.is_judged]
    return ByChance(
        judged=len(judged),
        same=sum(ratio.verdict == "same" for _, ratio in judged),
        named=sum(ratio.names_a_side for _, ratio in judged),
        marked=sum(row.may_be_chance for row, _ in judged),
    )


def chance_sentence(compared: Sequence[Section]) -> str:
    """Of what may be quoted, or of all where nothing may; empty where no ratio has a verdict."""
    quotable = [section for section in compared if not section.setup.doubts]
    found = by_chance(row for section in quotable or compared for row in section.rows)
    if not found.judged:
        return ""
    others = found.judged - found.same
    return (
        f"{found.judged} ratio{'' if found.judged == 1 else 's'} with a verdict or enough replicates for one, "
        f"{found.same} of them `same`: a side is named in {found.named}. If no side was faster in any of the {others} "
        f"that are not `same`, chance would name about {found.expected:.2g} (5 %). Marked `may be chance`: "
        f"{found.marked}, where q (Benjamini and Hochberg) is above 0.05."
    )
