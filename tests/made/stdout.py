"""Standard output of a process that answers in lines: what libraries print goes to stderr meanwhile."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str], None]
"""Writes a line."""


@contextmanager
def reserved_stdout() -> Iterator[Tell]:
    """Reserve stdout for the lines of the yielded function. All other output, also that of C++, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with open(kept, "w", encoding="utf-8") as lines:  # noqa: PTH123

        def tell(line: str) -> None:
            lines.write(line + "\n")
            lines.flush()

        try:
            yield tell
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
