"""The campaign: generated inputs, each of which must be taken or refused in words, whatever is odd about it."""

import contextlib
import io
import json
import random
import re
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from main import main
from pipeline.submission import render
from pipeline.watching.slurm_states import SlurmSilentError

LONGEST_S = 5.0
"""Of computing, for one input."""
LONGEST_WAIT_S = 60.0
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or hides, and what no file can hold."""
ODD_TEXTS = (
    *("", " ", "-", "--", "-x", "=", "a\nb", "a\x00b", "\x1b[31mred\x1b[0m", "\x9b31m", "\u202eevil", "a\rb", "a\x07b"),
    *("$(touch PWNED)", "`touch PWNED`", "; touch PWNED;", "' ; touch PWNED; '", '"; touch PWNED; "'),
    *("x\n#SBATCH --array=0-9", "{{ 7 * 7 }}", "{% raw %}", "[bold red]x[/]", "[/]", "<script>PWNED</script>"),
    *("</script><img src=x onerror=PWNED>", "\\input{PWNED}", "\\write18{touch PWNED}", "$x^2$", "%", "&", "~"),
    *("~nosuchuser/x", "../../x", "/dev/null/x", '=cmd|"/c calc"!A1', "+1+1", "-1+1", "@SUM(1)", "x" * 300, "9" * 5000),
    *("٣", "３", "😀", "é", "%j", "null"),
)
ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.0, -0.5, 1e308, -1e308, 1e-308),
    *(float("nan"), float("inf"), [], {}, [[]], [None], ["a", 1], {"a": 1}, {"": {}}, "text", "2026-11-20"),
    *ODD_TEXTS,
)


@dataclass(frozen=True)
class Case:
    name: str
    tried: Callable[[], str | None]
    """What is wrong with the answer; None where nothing is."""


Cases = Iterator[Case]
Kind = Callable[[random.Random, Path], Cases]


def run(kinds: dict[str, Kind], *, seed: int, share: float = 1.0) -> tuple[Counter[str], list[str]]:
    """How many inputs of each kind were tried, and what was wrong: nothing, if all is well.

    Args:
        share: of all that would be generated, drawn.
    """
    counts: Counter[str] = Counter()
    wrong = []
    for kind, cases in kinds.items():
        draw = random.Random(f"{seed} {kind}")
        with tempfile.TemporaryDirectory() as folder, nothing_leaves_the(Path(folder)):
            for case in cases(draw, Path(folder)):
                if draw.random() < share:
                    counts[kind] += 1
                    if why := judged(case):
                        wrong.append(f"{kind}: {case.name}: {why}")
            if list(Path(folder).rglob("PWNED")) or Path("PWNED").exists():
                wrong.append(f"{kind}: something was run")
    return counts, wrong


def judged(case: Case) -> str | None:
    start = time.process_time()
    try:
        with at_most(LONGEST_WAIT_S):
            why = case.tried()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"a traceback: {type(error).__name__}: {str(error)[:200]!r} at {where}"
    took_s = time.process_time() - start
    return why or (f"took {took_s:.1f} s" if took_s > LONGEST_S else None)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def nothing_leaves_the(folder: Path) -> Iterator[None]:
    """Scripts go there, nothing is submitted, no Slurm is asked, and nothing waits for the disk."""
    real = render.write_scripts

    def write_scripts(*arguments: object, **options: object) -> object:
        return real(*arguments, **options, repository=folder)

    def submit(*_arguments: object, **_options: object) -> None:
        raise AssertionError("something was submitted")

    with (
        patch("pipeline.submission.render.write_scripts", write_scripts),
        patch("pipeline.submission.submit.submit", submit),
        patch("pipeline.report.page._vega", return_value=""),  # a megabyte that says nothing of the input
        patch("os.fsync"),
        patch("pipeline.watching.slurm_states.query", side_effect=SlurmSilentError("nobody is asked")),
    ):
        yield


@contextlib.contextmanager
def changed_file(path: Path, make: bytes | Callable[[Path], object]) -> Iterator[None]:
    """Other content for a while, or something else in its place."""
    before = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    path.write_bytes(make) if isinstance(make, bytes) else make(path)
    try:
        yield
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if before is not None:
            path.write_bytes(before)


def call(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `python main.py WORDS`, in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = main(list(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 2
    return status, output.getvalue(), errors.getvalue()


def judged_call(words: Sequence[str], *, refused: bool = False) -> str | None:
    """What is wrong with the answer to a command line. `refused`: it must be."""
    status, output, errors = call(*words)
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if status == 2 and not errors.strip():
        return "refused without a word"
    if refused and status != 2:
        return f"accepted: {output[:200]!r}"
    return judged_text("the terminal", output + errors)


def judged_text(what: str, text: str) -> str | None:
    found = CONTROL.search(text)
    return f"{what} gets {found.group()!r}: {text[max(0, found.start() - 60) : found.end() + 20]!r}" if found else None


def changed_values(draw: random.Random, content: object, count: int = 1) -> Iterator[tuple[str, bytes]]:
    """JSON in which one value is another or is gone, `count` times for each value, and what was changed."""
    for keys in leaves(content):
        for value in draw.sample([..., *ODD_VALUES], count):
            changed = json.dumps(with_value(content, keys, value)).encode()
            yield f"{'.'.join(map(str, keys))} = {str(value)[:40]!r}", changed


def leaves(content: object, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The ways to all that is in it, its branches among them. The first of a list stands for the others."""
    if keys:
        yield keys
    inside = content if isinstance(content, dict) else dict(enumerate(content[:1])) if isinstance(content, list) else {}
    for key, value in inside.items():
        yield from leaves(value, (*keys, key))


def with_value(content: object, keys: tuple[str | int, ...], value: object) -> object:
    """A copy with another value there. `...` removes it."""
    if not keys:
        return value
    copy: dict[str | int, object] | list[object] = dict(content) if isinstance(content, dict) else list(content)
    key, *rest = keys
    if not rest and value is ...:
        del copy[key]
    else:
        copy[key] = with_value(copy[key], tuple(rest), value) if rest else value
    return copy
