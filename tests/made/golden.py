"""Golden files: what the program answers today, kept as text beside the tests.

A change of such a text may be right. Read the difference; if it is meant, run the test once with ACCEPT=1, which writes
the file instead of comparing:

    ACCEPT=1 python -m pytest -n 0 tests/harness/job/test_order_of_execution.py
"""

import difflib
import os
from pathlib import Path

from harness.paths import REPOSITORY

HOW_TO_ACCEPT = "If the change is meant, accept it: ACCEPT=1 python -m pytest -n 0"


def accepting() -> bool:
    return os.environ.get("ACCEPT") == "1"


def require_golden(path: Path, text: str, test_file: str) -> None:
    """Compare `text` with the golden file `path`, or write it there with ACCEPT=1.

    Args:
        test_file: `__file__` of the test, which the message names.
    """
    if accepting():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != expected:
        name = str(path.relative_to(REPOSITORY))
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), name, "now", lineterm="")
        raise AssertionError(
            "\n".join([f"{name} differs.", *lines, f"{HOW_TO_ACCEPT} {Path(test_file).relative_to(REPOSITORY)}"])
        )
