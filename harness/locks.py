"""Locks that the kernel frees when the last process that holds them ends, however it ends (flock of a file).

Those of a machine lie in one folder for all users and all results folders: `/tmp/jax-vs-torch-locks`, or where the
variable MEASUREMENT_LOCKS says.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = "MEASUREMENT_LOCKS"
LOOK_EVERY_S = 0.5
_HELD = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(?P<pid>\d+) [0-9a-f]+:[0-9a-f]+:(?P<inode>\d+) ", re.MULTILINE)
"""A line of /proc/locks; that of a process which waits has `->` behind the number."""


def machine_lock(name: str) -> Path:
    """Of this machine; `name` may hold any characters."""
    folder = Path(os.environ.get(FOLDER) or "/tmp/jax-vs-torch-locks")
    return folder / re.sub(r"[^\w.-]", "_", name)


@contextmanager
def hold(path: Path, *, while_waiting: Callable[[str], None]) -> Iterator[None]:
    """Wait for the lock, and hold it.

    Args:
        while_waiting: called twice a second with who holds it: `process 4236`.

    Raises:
        OSError: there can be no lock in that folder.
    """
    descriptor = None
    try:
        while (descriptor := _take(path, shared=False)) is None:
            while_waiting(holders(path))
            time.sleep(LOOK_EVERY_S)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def take_for_life(path: Path) -> None:
    """Share the lock until this process, and whatever it forks, has ended. Raises OSError."""
    while _take(path, shared=True) is None:
        time.sleep(0.01)


def holders(path: Path) -> str:
    """`process 4236`, or `another process` where the kernel does not tell, as in some containers."""
    pids = holding_processes(path)
    if not pids:
        return "another process"
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"


def holding_processes(path: Path) -> list[int]:
    """Those that hold the lock, as far as the kernel tells."""
    try:
        inode = str(path.stat().st_ino)
        locks = Path("/proc/locks").read_text()
    except OSError:
        return []
    return sorted({int(match["pid"]) for match in _HELD.finditer(locks) if match["inode"] == inode} - {0})


def _take(path: Path, *, shared: bool) -> int | None:
    """A descriptor that holds it, or None while another process does. Raises OSError."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if _is_at(path, descriptor):  # else somebody tidied up in the folder meanwhile
            with suppress(OSError):
                os.utime(path)  # for those who remove what is old; another user's file is left as it is
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """For reading, which is enough for a lock: the file may be another user's."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o1777)
    with suppress(FileExistsError):
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.fchmod(made, 0o644)
        os.close(made)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no file")
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
