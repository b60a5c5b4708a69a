"""How many sides chance alone would name in a report, beside how many are named. Pure."""

from collections.abc import Sequence

from harness.results.statistics import CONFIDENCE
from pipeline.report.compare import Section


def chance_sentence(compared: Sequence[Section]) -> str:
    """Of all ratios that had a look, and no doubt against a verdict; empty where there are none. Marked are the named
    whose q is above 5 %. If all were equal in truth, a design would name a side in 5 % of cases."""
    rows = [row for section in compared for row in section.rows]
    judged = [(row, ratio) for row in rows if (ratio := row.ratio) and ratio.is_judged]
    if not judged:
        return ""
    named, chance = sum(ratio.names_a_side for _, ratio in judged), sum(row.may_be_chance for row, _ in judged)
    comparisons = "1 comparison has" if len(judged) == 1 else f"{len(judged)} comparisons have"
    winners = f"{named} winner{'' if named == 1 else 's'}"
    marked = f", of which {chance} may be luck after a correction for so many" if chance else ""
    return f"{comparisons} {winners}{marked}. Chance alone would give {(1 - CONFIDENCE) * len(judged):.2g}."
