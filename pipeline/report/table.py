"""A table of the report as a value, and its writers: terminal, LaTeX and Markdown.

The page's template writes it as HTML (`table` of templates/report.html.j2); a CSV has the same numbers with all their
digits (csv_files.py).
"""

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from harness.plan import Framework
from pipeline.markdown import markdown_table

if TYPE_CHECKING:
    from rich.table import Table as RichTable


class Column(NamedTuple):
    title: str
    is_number: bool = False


def texts(*titles: str) -> list[Column]:
    return [Column(title) for title in titles]


def numbers(*titles: str) -> list[Column]:
    return [Column(title, is_number=True) for title in titles]


class Line(NamedTuple):
    """As many cells as the table has columns; a group, the title of the lines below it, has one."""

    cells: Sequence[str]
    side: Framework | None = None
    """Whose line it is: the page marks it with the framework's sign and colour."""
    is_group: bool = False
    is_pale: bool = False
    """Of what is in no ratio."""


def group(title: str, side: Framework | None = None) -> Line:
    return Line([title], side, is_group=True)


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str
    """Ends the name of its LaTeX file."""
    title: str
    caption: str
    """What the columns are and how the numbers were made."""
    columns: Sequence[Column]
    lines: Sequence[Line]
    notes: Sequence[str] = ()


WIDTH, LEAST_WIDTH = 80, 16
"""Columns of a terminal, and of its narrowest group title."""
LEAST_NAME = 20
"""Columns below which no name is broken: what has no room then is the other cells."""


def terminal_table(table: Table) -> "RichTable":
    """Heads break at blanks, numbers before a bracket, and names at hyphens where the other cells would have to break;
    a `[...]` in a cell is no markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    found = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place, column in enumerate(table.columns):
        title = column.title.replace(",", "").replace(" ", "\n") if column.is_number else column.title
        found.add_column(title, justify="right" if column.is_number else "left", overflow="fold", no_wrap=place == 0)
    indent = "  " if any(line.is_group for line in table.lines) else ""
    rows = [
        line.cells if line.is_group else [_broken(*of_cell) for of_cell in zip(line.cells, table.columns, strict=True)]
        for line in table.lines
    ]
    whole = [row for row, line in zip(rows, table.lines, strict=True) if not line.is_group]
    widest = [max(len(part) for cell in column for part in cell.split("\n")) for column in zip(*whole, strict=True)]
    room = WIDTH - sum(3 + one for one in widest[1:])
    width = min(len(indent) + widest[0], max(room, LEAST_NAME)) if whole else WIDTH
    for row, line in zip(rows, table.lines, strict=True):
        if line.is_group:
            found.add_row(Text("\n".join(textwrap.wrap(row[0], max(width, LEAST_WIDTH)))), style="bold")
        else:
            name = textwrap.wrap(row[0], width, initial_indent=indent, subsequent_indent=indent + "  ")
            found.add_row(*map(Text, ["\n".join(name), *row[1:]]), style="dim" if line.is_pale else None)
    return found


def _broken(cell: str, column: Column) -> str:
    return cell.replace(" (", "\n(") if column.is_number else cell


LONGEST_TABULAR = 40
"""Lines. A longer table is several, so that pages can break between them."""
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


def latex(table: Table, comments: Iterable[str] = ()) -> str:
    """A file for `\\input` (booktabs, graphicx): a tabular for each LONGEST_TABULAR lines, then caption and notes."""
    columns = "".join("r" if column.is_number else "l" for column in table.columns)
    head = " & ".join(latex_escaped(column.title) for column in table.columns)
    rows = [
        rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textbf{{{latex_escaped(line.cells[0])}}}}}"
        if line.is_group
        else " & ".join(map(latex_escaped, line.cells))
        for line in table.lines
    ]
    text = [f"% {_ascii(comment)}" for comment in [*comments, table.title, "Needs: booktabs, graphicx."]]
    for start in range(0, len(rows), LONGEST_TABULAR):
        text += [rf"{TO_THE_LINE}\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        text += [rf"{row} \\" for row in rows[start : start + LONGEST_TABULAR]]
        text += [r"\bottomrule", r"\end{tabular}}\par"]
    below = [line for line in (table.caption, *table.notes) if line]
    text += [rf"\noindent{{\footnotesize {latex_escaped(line)}\par}}" for line in below]
    return "\n".join([*text, ""])


def markdown(table: Table) -> str:
    """With its caption and notes below."""
    found = markdown_table((column.title for column in table.columns), (line.cells for line in table.lines))
    return "\n\n".join([found, *filter(None, [" ".join([table.caption, *table.notes]).strip()])])
