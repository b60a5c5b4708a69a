"""Notes what a job does, step by step: every process of a watched job appends to one file.

The fake framework, the fake W&B client beside this file, and the test itself call `note`. A record needs no call: each
`note` looks first whether one has appeared in the results folder. So the file has the order in which things happened,
whichever function of the job did them. Standard library only, as processes of a job import it.
"""

import json
import os
import time
from pathlib import Path

FILE = "ORDER_OF_EXECUTION"
"""The variable that names the file. Its folder has the job's `results`."""
PAUSE = "ORDER_OF_EXECUTION_PAUSE"
"""The variable with a line: the process that notes it leaves the file `paused`, and waits to be killed."""
NEW_PROCESS = "|"
LONG_S = 900.0


def is_watched() -> bool:
    return FILE in os.environ


def note(what: str, step: str) -> None:
    """Append a line: what the step is a part of, and the step."""
    file = Path(os.environ[FILE])
    note_new_records(file)
    append(file, what, step)
    if os.environ.get(PAUSE) == f"{what}: {step}":
        file.with_name("paused").touch()
        time.sleep(LONG_S)


_what = ""
_last_step = ""


def begin(what: str) -> None:
    """Begin a program in this process, a part of `what`."""
    global _what
    _what = what
    note_step(NEW_PROCESS)


def note_step(step: str) -> None:
    """Note a step of the program that has begun; once where the same step follows itself."""
    global _last_step
    if step != _last_step:
        _last_step = step
        note(_what, step)


def append(file: Path, what: str, step: str) -> None:
    with file.open("a") as lines:
        lines.write(f"{what}: {step}\n")


def note_new_records(file: Path) -> None:
    """Append `store` for each record that has no such line yet."""
    seen_file = file.with_suffix(".seen")
    seen = set(seen_file.read_text().split()) if seen_file.exists() else set()
    for path in sorted((file.parent / "results" / "records").rglob("*.json")):
        if path.name not in seen:
            append(file, name_in_record(path), "store")
            seen.add(path.name)
    seen_file.write_text("\n".join(seen))


def name_of(framework: str, mode: str, stage: str, replicate: int) -> str:
    """Return `screen torch fast`, or `measure torch fast, replicate 2` of the one that files call r1."""
    name = f"{framework} {mode.removesuffix('.eager')}"
    return f"screen {name}" if stage == "screening" else f"measure {name}, replicate {replicate + 1}"


def name_in_record(path: Path) -> str:
    measurement = json.loads(path.read_text())["measurement"]
    mode = measurement["variant"]["execution_mode"]
    return name_of(measurement["framework"], mode, measurement["stage"], measurement["replicate"])
