"""Whatever a run of the tests starts ends with it, also after Ctrl-C, SIGTERM or SIGKILL.

    folder = guarded_folder()

Every process that this one starts from then on carries the folder's path in the environment variable TESTS_FOLDER. A
guardian, a process in a session of its own, waits until this process is gone; then it kills all that carry the path,
with everything below them, and removes the folder.

A guarded process may start another, as pytest starts the workers of xdist and a test may start a pytest: its folder
lies inside the first one's.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "TESTS_FOLDER"
_guardians: list["subprocess.Popen[bytes]"] = []  # for as long as this process lives: nobody waits for them


def guarded_folder() -> Path:
    folder = marked_folder("tests-")
    command = [sys.executable, "-IS", __file__, str(os.getpid()), str(folder)]
    nothing = subprocess.DEVNULL
    _guardians.append(
        subprocess.Popen(command, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    )
    os.environ[MARK] = str(folder)
    return folder


def marked_folder(prefix: str) -> Path:
    """In the folder of this process's run, where it has one. Its path is short: that of a socket may have 107 bytes,
    and runs may be nested."""
    run = os.environ.get(MARK)
    folder = Path(tempfile.mkdtemp(prefix=prefix[:1] if run else prefix, dir=run or "/tmp"))
    folder.chmod(0o755)  # munged refuses a socket that others may not reach
    return folder


def end_all(folder: Path) -> None:
    """Kills the processes of `folder`, and returns when they are gone."""
    while pids := pids_of(folder):
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def pids_of(folder: Path) -> set[int]:
    """The processes of `folder` or of a folder inside it, and all below them: a job may have been given an environment
    of its own, but not another parent."""
    children: dict[int, set[int]] = {}
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            is_ours = state != "Z" and _is_of(folder, process)
        except OSError:  # it has just ended, or is another user's
            continue
        pid = int(process.name)
        children.setdefault(int(parent), set()).add(pid)
        if is_ours:
            found.add(pid)
    new = found
    while new := {child for pid in new for child in children.get(pid, ())} - found:
        found |= new
    return found


def _is_of(folder: Path, process: Path) -> bool:
    """By its environment; slurmstepd writes its title over that, and is known by its open log."""
    environment = (process / "environ").read_bytes()
    if environment[:1] not in (b"", b"\0"):
        mark = os.fsencode(f"{MARK}={folder}")
        return any(each == mark or each.startswith(mark + b"/") for each in environment.split(b"\0"))
    return any(file.readlink().is_relative_to(folder) for file in (process / "fd").iterdir())


def _guard(guarded: int, folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == guarded:
        time.sleep(0.2)
    for _ in range(100):
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.2)  # a killed process may still end what it began in the kernel, and leave a file more


if __name__ == "__main__":
    _guard(int(sys.argv[1]), Path(sys.argv[2]))
