"""Atomic files: on the disk before anybody sees them, and of two writers the first one wins."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from harness.files import write_atomically


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "record.json"


def meanwhile(monkeypatch: pytest.MonkeyPatch, target: Path, content: str) -> None:
    """Another node writes `target` while this process syncs its own file."""

    def fsync(descriptor: int) -> None:
        monkeypatch.undo()
        write_atomically(target, content, replace=False)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("replace", [False, True])
def test_file_is_synced_with_its_whole_content_before_it_has_its_name(
    replace: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bytes, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").read_bytes(), target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(target, "content", replace=replace)
    assert synced == [(b"content", False)]
    assert target.read_text() == "content"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("is_first", [True, False])
def test_second_of_two_writers_is_refused(is_first: bool, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both orders of two nodes that finish the same measurement at once: the other one is there before this one
    begins, or comes while this one writes."""
    target.parent.mkdir()
    if is_first:
        write_atomically(target, "theirs", replace=False)
    else:
        meanwhile(monkeypatch, target, "theirs")
    with pytest.raises(FileExistsError, match="a record is never overwritten"):
        write_atomically(target, "ours", replace=False)
    assert target.read_text() == "theirs"
    assert list(target.parent.iterdir()) == [target]


def test_file_that_may_be_replaced_is_the_last_writers(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir()
    meanwhile(monkeypatch, target, "theirs")
    write_atomically(target, "ours", replace=True)
    assert target.read_text() == "ours"
    assert list(target.parent.iterdir()) == [target]


def test_link_whose_answer_was_lost_counts_as_made(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS sends a request again when its answer is lost; the second answer is that the file exists."""
    link = os.link

    def link_twice(source: Any, destination: Any) -> None:
        link(source, destination)
        link(source, destination)

    monkeypatch.setattr(os, "link", link_twice)
    write_atomically(target, "ours", replace=False)
    assert target.read_text() == "ours"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_file_system_without_hard_links_still_refuses_what_exists(
    code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Any, destination: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    write_atomically(target, "first", replace=False)
    with pytest.raises(FileExistsError, match="a record is never overwritten"):
        write_atomically(target, "second", replace=False)
    assert target.read_text() == "first"
    assert list(target.parent.iterdir()) == [target]


def test_other_errors_of_the_link_are_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, destination: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, "ours", replace=False)
    assert list(target.parent.iterdir()) == []
