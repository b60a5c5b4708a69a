"""Text that came from outside, fit to be shown: nothing in it that a terminal would obey. Standard library only."""

import re
import textwrap
from pathlib import Path

LONGEST_SHOWN = 60
WIDTH = 80
"""Of a terminal, in columns."""
ESCAPED_IN_JSON = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^ -~\n\t\r]"
)
"""A character by its escape, whole surrogate pairs first, or one that is not ASCII."""
ESCAPED_BY_A_LETTER = {r"\b": r"\\u0008", r"\f": r"\\u000c", r"\r": r"\\u000d"}


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Control characters, invisible ones and lone surrogates as `\\x1b`, `\\u202e`, `\\udcff`; all else as it is."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def is_one_line(text: str) -> bool:
    """Whether it may stand in a script, a header or a message as it is."""
    return text.isprintable()


def shortened(text: str) -> str:
    """On one line of at most LONGEST_SHOWN characters."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def near(path: Path) -> str:
    """Relative to the working directory where the path is below it, so that a line keeps room for other words."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def wrapped(text: str, *, indent: str = "") -> str:
    """In lines of at most WIDTH columns, the later ones indented. Words, such as paths, stay whole."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def printable_json(text: str) -> str:
    """JSON whose texts are `printable` once they are read: the escape of `\\u001b` is itself escaped."""
    if text.isascii() and "\\" not in text:
        return text
    return ESCAPED_IN_JSON.sub(_json_part, text)


def _json_part(match: re.Match[str]) -> str:
    part = match.group()
    if part in ESCAPED_BY_A_LETTER:
        return ESCAPED_BY_A_LETTER[part]
    if part[:2] == "\\u":
        units = [int(unit, 16) for unit in part.split("\\u")[1:]]
        character = b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "surrogatepass")
        return part if character.isprintable() or character in "\n\t" else part.replace("\\u", "\\\\u")
    return part if part[0] == "\\" or part.isprintable() else _escape(part).replace("\\", "\\\\")


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
