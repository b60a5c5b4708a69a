"""A framework's environment on the nodes' own disks: packed once, into one file, and unpacked once in each job.

A venv is tens of thousands of small files, each of which every process looks up on the shared file system. An archive
is read in one go. The archive lies in the environment itself, with the digest of what is installed there in its name.
A Python of a venv finds all that is its own by where its pyvenv.cfg lies, so a copy works from any folder.

On each node a shell unpacks the archive, waits, and removes the folder when its stdin ends: with the job, however that
ends. Until then it holds a lock on the folder, without which the folder is nobody's (harness/job/caches.py). A job is
never lost for any of this: where the copy cannot be had, the environment is used where it is.
"""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any, NamedTuple

from harness.errors import ProjectError
from harness.job.caches import STAGED_PREFIX
from harness.job.launch import command_of, python_of
from harness.job.slurm_step import LANE
from harness.paths import REPOSITORY
from harness.plan import Launch

PACKED_PREFIX = "packed-"
ROOM = {".zst": 2.5, ".tar": 1.05}
"""Bytes on the disk per byte of an archive, by the ending of its name. An environment of 6.4 GB is 3.4 GB by zstd."""
ASK_TIMEOUT_S = 120.0
"""As the doctor's: the first start of a Python from a cold network file system takes a minute or more."""
UNPACK_TIMEOUT_S = 900.0
REMOVE_TIMEOUT_S = 20.0
"""What takes longer is not waited for."""

PROBE = """
import json, os, sys
from harness.results.installed import describe_installed
own = [folder for folder in sys.path if folder.startswith(sys.prefix + os.sep) and os.path.isdir(folder)]
print(json.dumps({
    "prefix": sys.prefix, "is_venv": sys.prefix != sys.base_prefix,
    "digest": describe_installed(folders=own)["installed_sha256"],
    "changed_ns": max((os.stat(folder).st_mtime_ns for folder in own), default=0),
}))
"""
HOLD = r"""
trap '' INT TERM USR2 PIPE
folder=$1 archive=$2 room=$3 by=()
no() { echo "$(uname -n): ${*%%$'\n'*}"; exit; }
trap 'flock -xn 9 && rm -rf "$folder"' EXIT  # the last that uses it
for _ in {1..9}; do  # until it is the folder of that name: the last that used it may have removed it meanwhile
    words=$(mkdir -p "$folder" 2>&1) || no "$words"
    command exec 9<"$folder" && flock -s 9 && [ "$folder" -ef /proc/self/fd/9 ] && break
done
exec 8>"$folder/unpacking.lock" && flock 8
if [ ! -e "$folder/unpacked" ]; then  # else a node that shares the disk, or a job that shares the node, has done so
    free=$(df --output=avail -B1 "$folder" | tail -n 1)
    [ "$free" -gt "$room" ] || no "$folder has $((free / 1000000)) MB of room, and $((room / 1000000)) MB are needed"
    [[ $archive != *.zst ]] || by=(-I zstd)
    words=$(tar "${by[@]}" -xf "$archive" -C "$folder" 2>&1 && touch "$folder/unpacked") || no "$words"
fi
exec 8>&-
echo staged
read -r _
"""
Say = Callable[[str], None]


class StagingError(ProjectError):
    """The environment cannot be packed or unpacked."""


class Staged(NamedTuple):
    launch: Launch
    """By which processes are started in this job."""
    description: dict[str, Any]
    """For the record: from which folder and archive, or why not (`absent`)."""


class _Environment(NamedTuple):
    prefix: Path
    digest: str
    changed_ns: int
    """When something was installed last."""

    def archives(self) -> list[Path]:
        """Of what is installed now: none, or one."""
        return sorted(self.prefix.glob(f"{PACKED_PREFIX}{self.digest}.*"))


def pack(launch: Launch, say: Say = print) -> None:
    """Where a job of it is submitted: anew only if something was installed since. What fails is said."""
    try:
        environment = _ask(launch)
        if any(archive.stat().st_mtime_ns == environment.changed_ns for archive in environment.archives()):
            return
        say(f"packs {environment.prefix} for the nodes' own disks, once until something else is installed there")
        _pack(environment)
    except (StagingError, OSError) as error:
        say(f"warning: stage_environment: jobs will use the environment where it is: {error}")


def _pack(environment: _Environment) -> None:
    """Raises StagingError and OSError."""
    prefix = environment.prefix
    has_zstd = shutil.which("zstd") is not None
    archive = prefix / f"{PACKED_PREFIX}{environment.digest}.tar{'.zst' if has_zstd else ''}"
    temporary = prefix / f".{archive.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    by = ["-I", "zstd -1 -T2"] if has_zstd else []
    try:
        left_out = [f"--exclude=./{PACKED_PREFIX}*", f"--exclude=./.{PACKED_PREFIX}*"]
        command = ["tar", "-C", str(prefix), *left_out, *by, "-cf", str(temporary), "."]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode > 1:  # by 1 it says that a file has changed meanwhile, such as the folder that it writes to
            raise StagingError(next(iter(done.stderr.splitlines()), "") or f"tar ended with status {done.returncode}")
        os.utime(temporary, ns=(environment.changed_ns, environment.changed_ns))
        for old in prefix.glob(f"{PACKED_PREFIX}*"):
            old.unlink()
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def staged(
    launches: Iterable[Launch], nodes: int, *, say: Say, while_waiting: Callable[[], None]
) -> Iterator[dict[Launch, Staged]]:
    """In a job of Slurm: those that ask for it, on all of its nodes, until the end.

    Args:
        say: gets a warning where it does not work.
        while_waiting: called every second or so.
    """
    found: dict[Launch, Staged] = {}
    with ExitStack() as stack:
        folders: dict[Path, Path] = {}
        for launch in dict.fromkeys(launches):
            if not launch.stage_environment or "SLURM_JOB_ID" not in os.environ:
                continue
            try:
                environment = _ask(launch)
                archive = next(iter(environment.archives()), None)
                if archive is None:
                    raise StagingError(
                        f"{environment.prefix} has no archive of what is installed there now; main.py packs it when it "
                        f"submits"
                    )
                if archive not in folders:
                    folders[archive] = stack.enter_context(_unpacked(archive, nodes, while_waiting))
            except (StagingError, OSError) as error:
                say(f"warning: stage_environment: the environment is used where it is: {error}")
                found[launch] = Staged(launch, {"absent": str(error)})
                continue
            python = folders[archive] / "bin" / "python"
            copy = launch.model_copy(update={"python": str(python)})
            found[launch] = Staged(copy, {"from": str(environment.prefix), "archive": archive.name})
        yield found


@contextmanager
def _unpacked(archive: Path, nodes: int, while_waiting: Callable[[], None]) -> Iterator[Path]:
    """The folder, which has the same name on each node. Raises StagingError and OSError."""
    root = os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    # Jobs that share a node share the copy, which is of one job of Slurm.
    digest = archive.name.removeprefix(PACKED_PREFIX).partition(".")[0]
    own = f"{os.environ['SLURM_JOB_ID']}-{digest}" if LANE in os.environ else secrets.token_hex(6)
    folder = Path(root) / f"{STAGED_PREFIX}{own}"
    room = int(archive.stat().st_size * ROOM[archive.suffix])
    step = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--mpi=none", "--input=all"]
    holder = subprocess.Popen(
        [*(["srun", *step] if nodes > 1 else []), "bash", "-c", HOLD, "stage", str(folder), str(archive), str(room)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # its signals come from here alone
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        answers = _answers(holder.stdout.fileno(), nodes, while_waiting)
        if answers != ["staged"] * nodes:
            raise StagingError("; ".join(one for one in answers if one != "staged") or "the log has srun's words")
        yield folder
    finally:
        with suppress(BrokenPipeError):
            holder.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            holder.wait(REMOVE_TIMEOUT_S)
        holder.stdout.close()


def _answers(pipe: int, count: int, while_waiting: Callable[[], None]) -> list[str]:
    """A line of each node; fewer where the pipe ends before. Raises StagingError."""
    text, give_up_at = b"", time.monotonic() + UNPACK_TIMEOUT_S
    while text.count(b"\n") < count:
        if select([pipe], [], [], 1.0)[0]:
            if not (more := os.read(pipe, 4096)):
                break
            text += more
        elif time.monotonic() > give_up_at:
            raise StagingError(f"it is not unpacked after {UNPACK_TIMEOUT_S / 60:.0f} min")
        while_waiting()
    return text.decode(errors="replace").splitlines()


def _ask(launch: Launch) -> _Environment:
    """Raises StagingError."""
    try:
        command = command_of(launch, ["-c", PROBE])
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
        answer = json.loads((done.stdout.splitlines() or [""])[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        words = done.stderr.splitlines()[-1:] if isinstance(error, ValueError) else [str(error)]
        raise StagingError(f"{python_of(launch)} does not say what is installed: {' '.join(words)}") from error
    if not answer["is_venv"]:
        raise StagingError(f"{python_of(launch)} is of no venv, such as `make env` makes, and no other can be moved")
    return _Environment(Path(answer["prefix"]), answer["digest"], answer["changed_ns"])
