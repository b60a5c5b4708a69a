"""Call main.py in this process, where nothing is submitted and nothing is written outside a folder."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from main import main
from pipeline.submission import render
from pipeline.watching.slurm_states import SlurmSilentError

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree")

_watching: list[list[str]] = []
"""Paths that were changed since each watch began."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    """Note the path that an audit event changes, during a watch: an audit hook cannot be removed."""
    if not _watching:
        return
    if event in CHANGES or (event == "open" and isinstance(flags := arguments[2], int) and flags & WRITES):
        places = arguments[:2] if event == "os.rename" else arguments[1:2] if "link" in event else arguments[:1]
        for path in places:
            if isinstance(path, str | bytes | os.PathLike):
                _watching[-1].append(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100


sys.addaudithook(_note)


@contextlib.contextmanager
def nothing_leaves_the(folder: Path) -> Iterator[None]:
    """Require that only `folder` is written to, and that nothing is submitted and no Slurm is asked."""
    real = render.write_scripts

    def write_scripts(*arguments: object, **options: object) -> object:
        return real(*arguments, **options, repository=folder)

    def submit(*_arguments: object, **_options: object) -> None:
        raise AssertionError("something was submitted")

    _watching.append([])
    try:
        with (
            patch("pipeline.submission.render.write_scripts", write_scripts),
            patch("pipeline.submission.submit.submit", submit),
            patch("pipeline.report.page._vega", return_value=""),  # a megabyte that does not depend on the input
            patch("os.fsync"),
            patch("pipeline.watching.slurm_states.query", side_effect=SlurmSilentError("nobody is asked")),
        ):
            yield
    finally:
        written = _watching.pop()
    allowed = (str(folder), os.devnull, "/proc/")
    outside = {path for path in written if not path.startswith(allowed) and "__pycache__" not in path}
    assert not outside, f"written outside {folder}: {sorted(outside)}"


def call(*words: str) -> tuple[int, str, str]:
    """Return the exit status, stdout and stderr of `python main.py WORDS`, run in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = main(list(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 2
    return status, output.getvalue(), errors.getvalue()
