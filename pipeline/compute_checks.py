"""`main.py doctor --compute`: each framework compiles and computes a few things in a process of its own, compared with
numpy (harness/work/compute_check.py); here what came out becomes a finding, with the cause and the fix."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.experiments.model import Config
from harness.job.launch import command_of
from harness.paths import REPOSITORY
from harness.plan import Framework
from harness.results.environment import CACHE_FOLDERS
from harness.work.compute_check import TOLERANCE
from pipeline.finding import Finding

TIMEOUT_S = 300.0
"""Of all that one framework computes: the import from a cold file system, and torch.compile, take a minute each."""
END_S = 10.0
"""From SIGKILL to the end of a process that does not hang in the driver."""


BROKEN = (
    "Look at the driver (nvidia-smi), the C compiler (gcc or clang with C++, and Python.h), an old CUDA on PATH "
    "(which -a ptxas) and other libraries in LD_LIBRARY_PATH. If none of these explains it, install the framework anew."
)
WRONG_NUMBERS = (
    "It computes something else than numpy, and says nothing. Never measure here until that is understood: another "
    "version of the framework, another GPU of the same node, the GPU's memory errors (nvidia-smi -q -d ECC)."
)
TOO_LATE = "Something hangs, or the file system is very slow: try again, where it will be cached."


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a process has told, and how it ended."""

    device: str | None = None
    errors: Mapping[str, float | None] = field(default_factory=dict)
    """Relative error of each check that came to its end; None where that is infinite or no number."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why, by the check's name."""
    unfinished: str | None = None
    """The check at which it ended early."""
    ended: str = ""
    """How it ended early: by its time-out, a signal or its exit status; empty where it did not."""
    log: str = ""
    """The end of what it wrote to stderr."""


def examine_compute(config: Config, framework: Framework, *, timeout_s: float = TIMEOUT_S) -> Finding:
    own = config.launch(framework)
    folders = [REPOSITORY, Path(tempfile.gettempdir())]
    command = command_of(own, ["-m", f"{framework}_runner.compute_check"], folders)
    return judge_compute(framework, compute(command, timeout_s=timeout_s))


def compute(command: Sequence[str], *, timeout_s: float) -> Ran:
    """Runs it with empty compilers' caches, as a measurement has them, and ends it with all that it has started."""
    with tempfile.TemporaryDirectory(prefix="compute-check-", ignore_cleanup_errors=True) as folder:
        caches = {name: str(Path(folder) / cache) for name, cache in CACHE_FOLDERS.items()}
        output, log = Path(folder) / "stdout", Path(folder) / "stderr"
        with (
            output.open("w") as to_output,
            log.open("w") as to_log,
        ):  # a pipe would stay open with what it leaves behind
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | caches | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
                stdin=subprocess.DEVNULL,
                stdout=to_output,
                stderr=to_log,
                start_new_session=True,
            )
        ended = ""
        try:
            status = process.wait(timeout_s)
            if status:
                ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            ended = f"no answer in {timeout_s:g} s"
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                process.wait(END_S)
        return read_lines(output.read_text(errors="replace"), ended=ended, log=log.read_text(errors="replace"))


def read_lines(output: str, *, ended: str = "", log: str = "") -> Ran:
    """From the lines of harness/work/compute_check.py; what else a library prints is passed over."""
    device, begun = None, None
    errors: dict[str, float | None] = {}
    failed: dict[str, str] = {}
    for line in output.splitlines():
        match _content(line):
            case {"device": str(name)}:
                device = name
            case {"begun": str(name)}:
                begun = name
            case {"done": str(name), "failed": str(why)}:
                begun, failed[name] = None, why
            case {"done": str(name), "relative_error": float() | int() | None as error}:
                begun, errors[name] = None, error
    return Ran(device=device, errors=errors, failed=failed, unfinished=begun, ended=ended, log=log[-4000:])


def _content(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def judge_compute(framework: str, ran: Ran) -> Finding:
    """Return what is wrong in the framework's own words, with what to look at."""
    name = f"{framework} computes"
    wrong = {check: error for check, error in ran.errors.items() if error is None or error > TOLERANCE}
    problems = [f"{check}: {why[:400]}" for check, why in ran.failed.items()]
    problems += [f"{check}: {_error_words(error)} from what numpy computes" for check, error in wrong.items()]
    if ran.ended:
        problems.append(f"{ran.unfinished or 'the start'}: {ran.ended}{_last_line(ran.log)}")
    if not problems and ran.errors:
        worst = max(error or 0.0 for error in ran.errors.values())
        found = f"{', '.join(ran.errors)} on {ran.device}: as numpy, to {worst:.0e}"
        return Finding(name, "ok", found)
    if not problems:
        problems = [f"no check was made{_last_line(ran.log)}"]
    fix = WRONG_NUMBERS if wrong and not ran.failed else TOO_LATE if "no answer" in ran.ended else BROKEN
    return Finding(name, "problem", "; ".join(problems), fix)


def _error_words(error: float | None) -> str:
    return "not finite, far" if error is None else f"{error:.1e} (relative, {TOLERANCE:.0e} is allowed)"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"; it said last: {lines[-1][:300]}" if lines else ""
