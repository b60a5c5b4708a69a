"""The quickest faults: some processes, no framework and no cluster. See conftest.py."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import RecordError, SubmissionError
from harness.job import caches
from harness.job.progress import write_heartbeat
from harness.locks import hold, holders, machine_lock
from harness.paths import REPOSITORY, JobFolder
from harness.plan_file import write_plan
from pipeline.submission import local_queue
from pipeline.watching.cancel import cancel
from pipeline.watching.jobs import is_local_queue, job_states, words_of
from tests.made.faults import programs
from tests.made.guardian import pids_of
from tests.made.patience import patience, wait_until
from tests.made.project import BehavingProject, alone
from tests.made.records import heartbeat
from tests.made.submissions import submitted


def full(*_arguments: object, **_options: object) -> None:
    """In the place of what writes: the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device", "results/jobs/x/submission.json")


@pytest.fixture
def fake(tmp_path: Path) -> BehavingProject:
    """Its jobs are only planned."""
    return BehavingProject(root=tmp_path)


@contextmanager
def python(code: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A process that has printed a line, and is gone at the end."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def job_of(project: BehavingProject, executor: str = "slurm", job_id: str = "12") -> JobFolder:
    """A job that somebody has handed over."""
    pair = alone(project.plan())
    folder = project.results.new_job_folder(pair)
    write_plan(pair, folder)
    submitted(folder, executor, job_id=job_id)
    return folder


# Company


def test_a_lock_ends_with_whoever_holds_it(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "turn"
    code = "import sys, time; from pathlib import Path; from harness.locks import hold\n"
    code += "with hold(Path(sys.argv[1]), while_waiting=print): print('held', flush=True); time.sleep(600)"
    waited: list[str] = []
    with python(code, str(lock)) as holder:

        def wait(who: str) -> None:
            waited.append(who)
            if len(waited) == 2:
                holder.kill()

        with hold(lock, while_waiting=wait):
            pass
        assert len(waited) >= 2
        assert set(waited) <= {f"process {holder.pid}", "another process"}


def test_a_rank_that_has_lost_its_job_is_waited_for() -> None:
    code = "import time; from harness.job.turn import keep_busy; keep_busy(); print('', flush=True); time.sleep(600)"
    busy = machine_lock("busy-machine")
    with python(code) as orphan, hold(busy, while_waiting=lambda _who: orphan.kill()):
        assert orphan.wait(timeout=patience()) == -signal.SIGKILL


def test_a_folder_for_locks_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(OSError), hold(tmp_path / "locks" / "turn", while_waiting=print):
        pass
    assert holders(tmp_path / "nowhere") == "another process"


# What cancel may end


def test_cancel_ends_no_process_that_only_has_the_number(
    fake: BehavingProject, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither one that mentions the queue's module, nor the queue of another results folder."""
    code = "import time; print('there', flush=True); time.sleep(600)"
    with python(code, "pipeline.submission.local_queue", "/elsewhere/results/jobs/any/torch_mnist_1-x") as stranger:
        folder = job_of(fake, "local", str(stranger.pid))
        assert not is_local_queue(stranger.pid, folder)
        write_heartbeat(heartbeat(state="running", pid=stranger.pid, updated_at_unix_s=time.time()), folder.heartbeat)
        assert cancel(fake.results) == 0
        assert stranger.poll() is None
    assert "cancelled in the local queue" in capsys.readouterr().out


def test_cancel_ends_no_job_of_slurm_that_only_has_the_number_and_waits_for_no_scancel_that_hangs(
    fake: BehavingProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """scancel tries for minutes to signal a node that does not answer."""
    mine, _ = job_of(fake), job_of(fake, job_id="13")
    lines = f"12|RUNNING|n1|None|/s.sh slurm {mine.root}\n13|RUNNING|n1|None|(null)"
    hang = 'echo $@ >> $here/ended; case "$*" in *--signal*) exec sleep 600;; esac'
    programs(tmp_path, squeue=f"echo '{lines}'", scancel=hang, sacct="exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("pipeline.watching.cancel.SIGNAL_TIMEOUT_S", 0.5)
    assert cancel(fake.results) == 0
    assert (tmp_path / "ended").read_text().splitlines() == ["--quiet --batch --signal=INT --state=RUNNING 12", "12"]
    said = capsys.readouterr().out
    assert "any/torch_mnist_1: nothing to end, as job 13 of Slurm is another job by now" in said
    assert said.count("cancelled job 12") == 1


# Submission


TAKES = 'echo "$*" > $here/taken; echo "Submitted batch job 18"'
SQUEUE = '[ -e $here/taken ] && echo "18|PENDING||None|$(cat $here/taken)"; true'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch takes the job, squeue knows it until scancel ends it."""
    programs(tmp_path, sbatch=TAKES, srun="", squeue=SQUEUE, scancel="echo $@ >> $here/ended; rm $here/taken")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def interrupted(*_arguments: object, **_options: object) -> None:
    """In the place of what writes: Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("instead", "error", "words"),
    [
        (full, SubmissionError, "which was cancelled\nMake room, and run the same command again"),
        (interrupted, KeyboardInterrupt, "which was cancelled"),
    ],
)
def test_a_job_that_cannot_be_noted_is_taken_back(
    fake: BehavingProject,
    cluster: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    instead: Callable[..., None],
    error: type[BaseException],
    words: str,
) -> None:
    """The disk fills up, or somebody presses Ctrl-C, between sbatch's yes and the note of it."""
    monkeypatch.setattr("pipeline.submission.submit.write_atomically", instead)
    with pytest.raises(error) as caught:
        fake.submit(fake.plan(), executor="slurm")
    assert f"Slurm had taken it as job 18, {words}" in str(caught.value) + capsys.readouterr().out
    assert (cluster / "ended").read_text() == "18\n"
    assert fake.results.job_folders() == []


def test_an_answer_of_sbatch_that_is_lost(fake: BehavingProject, cluster: Path) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    programs(cluster, sbatch=f"{TAKES.partition(';')[0]}; echo '{words}' >&2; exit 1")
    with pytest.raises(SubmissionError, match="Slurm had taken it as job 18, which was cancelled"):
        fake.submit(fake.plan(), executor="slurm")
    assert (cluster / "ended").read_text() == "18\n"
    programs(cluster, squeue="echo 'squeue: error: Socket timed out' >&2; exit 1")
    with pytest.raises(SubmissionError, match="perhaps Slurm has taken the job all the same: `squeue --me` shows it"):
        fake.submit(fake.plan(), executor="slurm")


def test_a_full_disk_leaves_no_local_queue(project: BehavingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.submission.submit.write_atomically", full)
    with pytest.raises(RecordError, match="cannot write .*No space left on device. Free space"):
        project.submit(project.plan(), executor="local")
    assert project.results.job_folders() == []
    assert not list(Path("/proc").glob(f"*/cwd/{project.root.name}"))


def test_two_submissions_at_once_make_one_job(project: BehavingProject) -> None:
    """Both would find that it is needed."""
    code = (
        "import sys; from pathlib import Path; from tests.made.project import *; "
        "project = BehavingProject(root=Path(sys.argv[1])); print('ready', flush=True); "
        "project.submit(project.plan('gated'), executor='local')"
    )
    with python(code, str(project.root)) as first, python(code, str(project.root)) as second:
        said = [process.communicate(timeout=patience(20))[0] for process in (first, second)]
    assert len(project.results.job_folders()) == 1
    assert sum("in the local queue" in words for words in said) == 1
    assert sum("already, as job" in words for words in said) == 1


@pytest.mark.parametrize("name", ["x;%j", "two\nlines"])
def test_a_folder_that_slurm_would_read_otherwise(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    project = BehavingProject(root=tmp_path / name)
    with pytest.raises(SubmissionError, match="choose a folder without these in its name"):
        project.submit(project.plan(), executor="slurm")


# Disk, leftovers


def test_a_full_disk_does_not_end_the_local_queue(fake: BehavingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job_of(fake, "local", "1")
    monkeypatch.setattr(local_queue, "write_atomically", full)
    local_queue._end(folder, None)
    assert not folder.local_end.exists()


def test_a_job_whose_folder_is_deleted_is_lost(fake: BehavingProject) -> None:
    folder = JobFolder(root=fake.results.jobs / "any" / "torch_mnist_1-20261121T100000.000000Z-aaaa")
    [state] = job_states(fake.results, [folder])
    assert state.state == "lost" and str(state.reason).endswith("its folder is gone")


def test_caches_of_a_killed_job_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches.tempfile, "tempdir", str(tmp_path))
    left, used, young = (caches.new_name() for _ in range(3))
    for folder in (left, used, young):
        folder.mkdir()
        (folder / "kernel").write_text("")
    for folder in (left, used):
        os.utime(folder, (time.time() - 3600,) * 2)
    with caches.in_use(used):
        assert caches.remove_leftovers() == [left]
    assert (left.exists(), used.exists(), young.exists()) == (False, True, True)


def test_what_slurm_and_submitit_say_around_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "submitit INFO (x) - Job not requeued because: timed-out too many times.\n"
        "submitit WARNING (x) - Bypassing signal SIGCONT\n"
    )
    assert words_of(log) == "Job not requeued because: timed-out too many times."
    log.write_text(
        "warning: nothing\n"
        "srun: error: Unable to contact slurm controller (connect failure)\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 12\n"
    )
    assert words_of(log) == "srun: error: Unable to contact slurm controller (connect failure)"
    assert words_of(tmp_path / "nowhere") is None


def test_nothing_outlives_a_killed_run_of_the_tests(tmp_path: Path) -> None:
    """tests/made/guardian.py: neither what has an environment of its own, nor what has a session of its own."""
    code = (
        "import subprocess, sys, time; from pathlib import Path; from tests.made.guardian import guarded_folder; "
        "Path(sys.argv[1]).write_text(str(guarded_folder())); "
        "subprocess.Popen(['sh', '-c', 'env -i sleep 600; true']); "
        "subprocess.Popen(['sleep', '600'], start_new_session=True); print(flush=True); time.sleep(600)"
    )
    with python(code, str(tmp_path / "folder")):
        folder = Path((tmp_path / "folder").read_text())
        wait_until(lambda: len(pids_of(folder)) == 3, "all three run")
    wait_until(lambda: not pids_of(folder) and not folder.exists(), "all of it is gone")
