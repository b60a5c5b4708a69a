"""What runs on this machine, by proc(5). A process may end at any moment: between two readings, and also between the
opening of one of its files and the reading of it, which then fails with ESRCH (ProcessLookupError)."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """A zombie, which only waits for somebody to read its exit status, is not."""
    return _state_and_parent(pid)[0] not in ("Z", "")


def words_of(pid: int) -> list[str]:
    """Its command line; empty where it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def children_of(pid: int) -> list[int]:
    return [child for child in _all() if _state_and_parent(child)[1] == str(pid) and is_alive(child)]


def processes_in(folder: Path) -> list[int]:
    """Those whose working folder it is."""
    return [pid for pid in _all() if is_alive(pid) and _works_in(pid, folder)]


def _all() -> list[int]:
    return [int(process.name) for process in Path("/proc").glob("[0-9]*")]


def _state_and_parent(pid: int) -> tuple[str, str]:
    """Empty where it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    return state, parent


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
