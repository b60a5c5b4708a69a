"""The folder of a machine's locks, which all its users share."""

import os
import stat
from pathlib import Path

import pytest

from harness import locks


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_lock_folder_is_for_every_user_of_the_machine(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like /tmp: everybody may add a lock, and remove their own only. A lock file itself is readable for all, which is
    enough to wait for it."""
    folder = tmp_path / "locks"
    monkeypatch.setenv(locks.FOLDER, str(folder))
    before = os.umask(umask)
    try:
        with locks.hold(locks.machine_lock("turn-gpu 0"), while_waiting=lambda _: pytest.fail("nobody holds it")):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "turn-gpu_0").stat().st_mode) == 0o644
