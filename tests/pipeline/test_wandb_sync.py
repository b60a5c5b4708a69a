"""`main.py wandb sync` with the real client and the stand-in for W&B's server."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.paths import Results
from pipeline import wandb_sync
from pipeline.wandb_sync import IS_WRITTEN_S, sync, to_upload
from tests.harness.job.test_tracker import JOB, a_measurement, a_tracker, finish, measure
from tests.made.report_records import plain, text
from tests.made.wandb_server import WandbServer, main_wandb


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def main_sync(server: WandbServer, results: Path, *flags: str) -> tuple[int, str]:
    return main_wandb(server, results.parent, "sync", "--results", str(results), *flags)


def test_what_is_kept_offline_is_uploaded_once_and_a_failure_is_tried_again(
    server: WandbServer, tmp_path: Path
) -> None:
    for framework in ("jax", "torch"):
        tracker = a_tracker(tmp_path, online=False)
        measure(tracker, a_measurement(framework))
        finish(tracker)
    results = tmp_path / "results"
    broken = results / "wandb" / "offline-run-20261121_101502-broken"
    broken.mkdir()
    (broken / "run-broken.wandb").write_text("no log of W&B")
    status, said = main_sync(server, results, "--jobs", "2")
    assert status == 1 and "[3/3] " in said and "\nnot uploaded: broken: " in said
    assert sorted(run_id.partition("-offline-")[0] for run_id in server.runs) == [f"jax-{JOB}", f"torch-{JOB}"]
    assert all(run.complete and run.summary["measurement/index"] == 1 for run in server.runs.values())
    assert list(to_upload(results / "wandb")) == ["broken"]
    asked = len(server.requests)
    assert "1 run to upload from" in main_sync(server, results)[1]
    assert not any("file_stream" in request for request in server.requests[asked:])


def test_ctrl_c_begins_no_further_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, begun = Results(root=tmp_path), []
    for number in range(21):
        log = results.wandb / "wandb" / f"offline-run-20261121_1015{number:02}-{number}" / f"run-{number}.wandb"
        log.parent.mkdir(parents=True)
        log.write_text("")
    console = plain(200)
    assert sync(results, jobs=1, dry_run=True, console=console) == 0
    head, *names = text(console).splitlines()
    assert head.startswith("21 runs to upload from ") and {*map(int, names)} == {*range(21)}

    def upload(folders: list[Path], _options: Any) -> None:
        begun.append(folders)
        if len(begun) == 2:
            raise KeyboardInterrupt
        time.sleep(0.1)

    monkeypatch.setattr(wandb_sync, "_upload", upload)
    with pytest.raises(KeyboardInterrupt):
        sync(results, jobs=1, console=console)
    assert 2 <= len(begun) < 10


def test_what_an_online_client_left_is_uploaded_and_what_still_goes_on_is_not(tmp_path: Path) -> None:
    """`logs` is there until a run's end was dealt with."""
    folder = Results(root=tmp_path).wandb / "wandb"
    for name, has_logs, is_old in (
        ("run-20261121_101502-a", True, True),
        ("run-20261121_101503-b", False, True),  # all of it was uploaded while it was measured
        ("offline-run-20261121_101504-c", True, False),
        ("offline-run-20261121_101505-d", False, False),
        ("run-20261121_101501-a", True, True),
    ):
        log = folder / name / f"run-{name[-1]}.wandb"
        (log.parent / ("logs" if has_logs else ".")).mkdir(parents=True)
        log.write_text("")
        if is_old:
            os.utime(log, (time.time() - IS_WRITTEN_S - 60,) * 2)
    waiting = {name: [path.name[-8:] for path in paths] for name, paths in to_upload(folder).items()}
    assert waiting == {"a": ["101501-a", "101502-a"], "d": ["101505-d"]}
    (folder / "run-20261121_101502-a" / "run-a.wandb.synced").write_text("")
    assert [path.name for path in to_upload(folder)["a"]] == ["run-20261121_101501-a"]
