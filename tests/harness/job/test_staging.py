"""The copy of an environment on a node's own disk: a small venv, which finds the packages of this one."""

import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from harness.job.caches import remove_leftovers
from harness.job.slurm_step import LANE
from harness.job.staging import pack, staged
from harness.paths import REPOSITORY
from harness.plan import Launch
from tests.made.patience import wait_until


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """As in a job whose node's own disk is `disk`."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "disk"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    return small_venv(tmp_path / "venv")


def small_venv(folder: Path) -> Launch:
    venv.create(folder, symlinks=True)
    site_of(folder).joinpath("others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Launch(python=str(folder / "bin" / "python"), stage_environment=True)


def site_of(folder: Path) -> Path:
    [site] = folder.glob("lib/python*/site-packages")
    return site


def on_disk(root: Path) -> list[Path]:
    return list((root / "disk").iterdir())


def test_it_is_packed_anew_only_when_something_was_installed(launch: Launch, tmp_path: Path) -> None:
    def archive() -> tuple[str, int]:
        pack(launch, said.append)
        [found] = (tmp_path / "venv").glob("*packed-*")
        return found.name, found.stat().st_ino

    said: list[str] = []
    first, again = archive(), archive()
    assert (first, len(said)) == (again, 1), said
    thing = site_of(tmp_path / "venv") / "thing-1.0.dist-info"
    thing.mkdir()
    (thing / "METADATA").write_text("Name: thing\nVersion: 1.0\n")
    installed = archive()
    assert installed[0].removeprefix("packed-").split(".")[0] == hashlib.sha256(b"thing==1.0\n").hexdigest()[:16]
    (thing.parent / "of_another_build.py").touch()
    assert archive()[1] != installed[1]
    words = f"packs {tmp_path / 'venv'} for the nodes' own disks, once until something else is installed there"
    assert said == [words] * 3


@pytest.mark.parametrize("by_zstd", [True, False])
def test_the_copy_is_a_whole_environment_until_the_job_ends(
    launch: Launch, tmp_path: Path, by_zstd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_zstd:
        monkeypatch.setattr("shutil.which", lambda _name: None)
    pack(launch)
    said: list[str] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    left = tmp_path / "disk" / "staged-environment-0"  # by a job that was killed
    left.mkdir()
    with staged([launch, launch, Launch()], 1, say=said.append, while_waiting=lambda: None) as found:
        for each in on_disk(tmp_path):
            os.utime(each, (time.time() - 3600,) * 2)
        assert remove_leftovers() == [left]
        [folder] = on_disk(tmp_path)  # which is in use, so that the shell holds a lock on it
        assert found.keys() == {launch} and found[launch].launch.python == f"{folder}/bin/python"
        [archive] = (tmp_path / "venv").glob("packed-*.tar.zst" if by_zstd else "packed-*.tar")
        assert found[launch].description == {"from": str(tmp_path / "venv"), "archive": archive.name}
        assert list(folder.glob("*packed-*")) == []
        (tmp_path / "venv" / "pyvenv.cfg").unlink()  # the original is not needed
        of_original = "[one for one in sys.path if one.startswith(sys.argv[1])]"
        program = f"import sys, numpy.linalg; print(sys.prefix, {of_original})"
        command = [f"{folder}/bin/python", "-c", program, f"{tmp_path}/venv"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{folder} []\n"
    assert (said, on_disk(tmp_path)) == ([], [])


def test_the_copy_goes_with_a_job_that_is_killed(launch: Launch, tmp_path: Path) -> None:
    pack(launch)
    program = (
        "import sys, time; from harness.job.staging import staged; from harness.plan import Launch\n"
        "with staged([Launch.model_validate_json(sys.argv[1])], 1, say=print, while_waiting=lambda: None):\n"
        "    print('ready', flush=True); time.sleep(900)"
    )
    command = [sys.executable, "-c", program, launch.model_dump_json()]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        assert len(on_disk(tmp_path)) == 1
        job.send_signal(signal.SIGKILL)
    wait_until(lambda: not on_disk(tmp_path), "the copy is gone")


def test_jobs_that_share_a_node_share_the_copy(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the last of them ends. One that was left half unpacked is not taken for a whole one."""
    monkeypatch.setenv(LANE, "0 0-1")
    pack(launch)
    [archive] = (tmp_path / "venv").glob("packed-*")
    left = tmp_path / "disk" / f"staged-environment-4711-{archive.name.split('.')[0].removeprefix('packed-')}"
    left.mkdir()
    (left / "pyvenv.cfg").touch()
    with staged([launch], 1, say=print, while_waiting=lambda: None) as first:
        assert on_disk(tmp_path) == [left] and (left / "pyvenv.cfg").read_text()
        with staged([launch], 1, say=print, while_waiting=lambda: None) as second:
            assert (first[launch].launch, on_disk(tmp_path)) == (second[launch].launch, [left])
        assert (left / "bin" / "python").exists()
    assert on_disk(tmp_path) == []


def test_what_cannot_be_staged_is_used_where_it_is(launch: Launch, tmp_path: Path) -> None:
    """And the record says why."""
    no_venv = Launch(python=f"{sys.base_prefix}/bin/python3", stage_environment=True)
    nothing = Launch(python="/nowhere/python", stage_environment=True)
    said: list[str] = []
    pack(no_venv, said.append)
    with staged([launch, no_venv, nothing], 1, say=said.append, while_waiting=lambda: None) as found:
        assert [one.launch for one in found.values()] == [launch, no_venv, nothing]
    of_venv, of_none, of_nothing = [found[one].description["absent"] for one in (launch, no_venv, nothing)]
    assert of_venv.startswith(f"{tmp_path / 'venv'} has no archive of what is installed there now")
    assert of_none == f"{no_venv.python} is of no venv, such as `make env` makes, and no other can be moved"
    assert of_nothing.startswith("/nowhere/python does not say what is installed: ")
    assert [line.startswith("warning: stage_environment: ") for line in said] == [True] * 4
    (tmp_path / "venv" / "packed-e3b0c44298fc1c14.tar").write_text("no archive")  # the SHA-256 of nothing
    with staged([launch], 1, say=said.append, while_waiting=lambda: None) as found:
        assert "tar: This does not look like a tar archive" in found[launch].description["absent"]
    assert on_disk(tmp_path) == []
