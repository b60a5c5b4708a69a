"""LaTeX: text that pdflatex prints literally, and a table with its notes (booktabs)."""

import unicodedata
from collections.abc import Iterable, Sequence

from harness.results.sequential import RatioEstimate
from harness.results.statistics import PairedRatio
from pipeline.report.wording import bracket, times

LONGEST_TABULAR = 40
"""Rows. A longer table gets `longtable`, which breaks over pages."""
TO_THE_LINE = r"\noindent\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
"""Made smaller where it is wider than the line."""
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "-": "-{}",  # `--` would become a dash
}


def latex_escaped(text: str) -> str:
    """Of any text what pdflatex prints literally, in ASCII: letters lose their accents, the rest becomes `?`."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in _ascii(text))


def _ascii(text: str) -> str:
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(letter if " " <= letter <= "~" else " " if letter.isspace() else "?" for letter in plain)


def latex_mark(mark: int | None) -> str:
    return "" if mark is None else rf"\textsuperscript{{{mark}}}"


def ratio_text(estimate: RatioEstimate | PairedRatio, mark: int | None) -> str:
    """`1.25 [1.20, 1.30] JAX faster`, with the mark of a note; only a throughput has a verdict."""
    verdict = f" {estimate.verdict}" if isinstance(estimate, RatioEstimate) else ""
    return f"{times(estimate.value)}{bracket(estimate.interval)}{latex_mark(mark)}{verdict}"


def columns_that_differ(
    head: Sequence[str], columns: str, lines: Sequence[Sequence[str]], *, of: Sequence[str]
) -> tuple[list[str], str, list[list[str]], list[str]]:
    """Head, columns and lines without those columns of `of` that say the same in every line, and what these say."""
    texts = {name: {line[head.index(name)] for line in lines} for name in of if len(lines) > 1}
    same = {name: next(iter(found)) for name, found in texts.items() if len(found) == 1}
    kept = [place for place, name in enumerate(head) if name not in same]
    return (
        [head[place] for place in kept],
        "".join(columns[place] for place in kept),
        [[line[place] for place in kept] for line in lines],
        [f"In every line {name}: {text}." for name, text in same.items() if text],
    )


def latex_table(
    *,
    comments: Iterable[str],
    columns: str,
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    remarks: Sequence[str] = (),
    same: Sequence[str] = (),
) -> str:
    """A table for `\\input`. What is in `lines` and `same` is escaped already; below it the notes, marked 1, 2, ...,
    and without a mark the remarks and what is the same in every line."""
    long = len(lines) > LONGEST_TABULAR
    environment = "longtable" if long else "tabular"
    packages = "booktabs, longtable" if long else "booktabs, graphicx. It is no wider than its line"
    end = r" \\"
    text = [f"% {_ascii(comment)}" for comment in [*comments, f"Needs: {packages}."]]
    fit, end_of_fit = ("", "") if long else (TO_THE_LINE, "}")
    text += [rf"{fit}\begin{{{environment}}}{{{columns}}}", r"\toprule"]
    text += [" & ".join(latex_escaped(name) for name in head) + end, r"\midrule"]
    text += [r"\endhead"] if long else []
    text += [" & ".join(line) + end for line in lines]
    text += [r"\bottomrule", rf"\end{{{environment}}}{end_of_fit}"]
    below = [f"{latex_mark(mark)} {latex_escaped(note)}" for mark, note in enumerate(notes, start=1)]
    below += [*map(latex_escaped, remarks), *same]
    text += [rf"\par\noindent{{\footnotesize {line}\par}}" for line in below]
    text.append("")
    return "\n".join(text)
