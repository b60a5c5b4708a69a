"""Markdown that this project writes: tables, and the part of a document that lies between two markers."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ProjectError
from harness.files import write_atomically


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    return "\n".join(_line(cells) for cells in (header, ["---"] * len(header), *rows))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


@dataclass(frozen=True, kw_only=True)
class GeneratedPart:
    """Of a document: what stands between these two lines is written by a command."""

    begin: str
    end: str

    def replaced(self, text: str, content: str, name: str) -> str:
        """`text`, the document called `name`, with `content` between the lines.

        Raises:
            ProjectError: the lines are not there exactly once, in order.
        """
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end or self.begin in rest or self.end in after:
            raise ProjectError(
                f"{name}: needs the lines {self.begin} and {self.end}, once each and in this order; nothing was changed"
            )
        return f"{before}{begin}\n{content}\n{end}{after}"

    def write(self, document: Path, content: str) -> bool:
        """Whether anything changed. Raises ProjectError as `replaced` does."""
        text = document.read_text(encoding="utf-8")
        new = self.replaced(text, content, str(document))
        if new != text:
            write_atomically(document, new, replace=True)
        return new != text
