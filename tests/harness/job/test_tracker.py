"""W&B with its real client: offline files read back, a stand-in server, and everything that goes wrong."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.job import wandb_process
from harness.job.tracker import (
    REQUEST_INTERVAL_S,
    Tracker,
    WandbTracker,
    describe_run,
    open_tracker,
)
from harness.paths import Results
from harness.plan import FRAMEWORKS, Cell, Framework, Measurement, MeasurementSettings, WandbSettings
from harness.results.record import Outcome, Record
from pipeline.report.command import ReportOptions, report_command
from pipeline.report.reading import read_records
from pipeline.report.terminal import null_console
from tests.made.patience import patience, slowdown, wait_until
from tests.made.processes import run_python
from tests.made.project import make_behaving_project
from tests.made.records import bare_record
from tests.made.report_records import record
from tests.made.wandb_server import WandbServer

pytestmark = pytest.mark.takes(40)

BEFORE = {"hostname": "n01", "packages": {"numpy": "2.3.1"}}
"""What the job knows of its environment before the measurement's process has looked at the GPU."""
KEY = "cnn-b64-tf32-full-vmap.jit-r0"
LOSS = f"train/loss/{KEY}"
JOB = "cifar10_3-20261121T101502.123456Z-3fa9"
ENVIRONMENT = {"hostname": "n01", "gpu": {"name": "NVIDIA A100"}, "packages": {"numpy": "2.3.1"}}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no settings and no netrc of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


def log_in(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        log_in(server.url, monkeypatch)
        yield server


def a_measurement(framework: Framework = "jax", **changes: Any) -> Measurement:
    cell = Cell(gpu="a100", benchmark="cifar10", use_case=3, use_case_name="per_sample_gradients")
    mode = "vmap.jit" if framework == "jax" else "vmap.compiled"
    variant = {"batch_size": 64, "precision": "tf32", "options": {"output": "full"}}
    return record(framework, mode, cell=cell, settings={"chunk_size": 16}, **variant, **changes).measurement


def a_record(measurement: Measurement, outcome: Outcome = "ok", reason: str | None = None) -> Record:
    flags = {"noisy": "The interval is 3 % wide."}
    return bare_record(measurement, outcome, reason=reason, flags=flags, environment=ENVIRONMENT)


def a_tracker(tmp_path: Path, *, online: bool, **bounds: float) -> WandbTracker:
    short = {
        "init_timeout_s": 2 * slowdown(),
        "finish_timeout_s": 2 * slowdown(),
        "end_timeout_s": 60.0,
        "close_timeout_s": 30.0,
    }
    settings = WandbSettings(project="speed", tags=("paper",))
    results = Results(root=tmp_path / "results")
    return WandbTracker(settings, results, JOB, online=online, request_interval_s=2, **{**short, **bounds})


def a_publisher(tmp_path: Path) -> wandb_process.Publisher:
    bounds = {"init_timeout_s": 1, "finish_timeout_s": 1, "request_interval_s": REQUEST_INTERVAL_S}
    of_run = {"root": tmp_path, "mode": "offline", "project": "speed", "entity": None}
    return wandb_process.Publisher(wandb_process.ClientSettings.model_validate(of_run | bounds))


def measure(tracker: WandbTracker, measurement: Measurement, outcome: Outcome = "ok") -> None:
    """Begin and end a measurement. Returns also where the client hangs or its server never answers."""
    tracker.begin(measurement, BEFORE)
    tracker.log(measurement, {"epoch": 1, "train/loss": 2.25})
    tracker.log(measurement, {"epoch": 2, "train/loss": 1.5})
    tracker.end(a_record(measurement, outcome), {"throughput_samples_per_s": 51200.0})


def finish(tracker: WandbTracker, **content: Any) -> None:
    """End the job. Returns also where the upload hangs."""
    tracker.finish(**{"ratios": (), "has_failed": False, **content})
    tracker.close()


def measure_two(tracker: WandbTracker, tmp_path: Path) -> Path:
    """The second one fails. Returns the only record in the folder of the cell, beside which is a log, nobody's."""
    folder = Results(root=tmp_path / "results").records(a_measurement().cell, "jax")
    folder.mkdir(parents=True)
    (folder / "one.log").write_text("")
    (folder / "one.json").write_text('{"one": 1}')
    measure(tracker, a_measurement())
    measure(tracker, a_measurement(replicate=1), "failed")
    finish(tracker, has_failed=True, ratios=RATIOS)
    return folder / "one.json"


def offline_runs(tmp_path: Path) -> list[list[dict[str, Any]]]:
    """The records of each local run, oldest first, as the real client reads them."""
    files = sorted((tmp_path / "results" / "wandb").glob("*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json"]
    shown = [subprocess.check_output([*inspect, str(path)], text=True, timeout=patience(30)) for path in files]
    return [[json.loads(line) for line in text.splitlines()] for text in shown]


def of_type(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


def history(records: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The curve of the first measurement."""
    items = [entry["item"] for entry in of_type(records, "history")]
    return [(item["epoch"], item[LOSS]) for item in items if LOSS in item]


def rows_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each measurement."""
    return [entry["item"] for entry in of_type(records, "history") if "measurement/index" in entry["item"]]


# ---- what a run is called and holds


def test_both_frameworks_share_a_group_and_all_measurements_of_one_its_config() -> None:
    """And quick runs are never grouped with full ones."""
    jax = describe_run(a_measurement("jax"), ENVIRONMENT, tags=("paper",), job=JOB)
    torch = describe_run(a_measurement("torch"), ENVIRONMENT, job=JOB)
    assert (jax["name"], torch["name"]) == ("jax a100/cifar10_3", "torch a100/cifar10_3")
    assert jax["group"] == torch["group"] == "a100/cifar10_3"
    assert (jax["job_type"], torch["job_type"], jax["id"]) == ("jax", "torch", f"jax-{JOB}")
    assert jax["tags"] == ["jax", "cifar10", "per_sample_gradients", "NVIDIA A100", "paper"]
    config = jax["config"]
    expected = {"framework": "jax", "benchmark": "cifar10", "use_case": 3, "gpu": "a100", "data": "real"}
    expected |= {"settings": {"chunk_size": 16}, "environment": ENVIRONMENT}
    assert config | expected == config
    assert config["protocol"] == MeasurementSettings().model_dump(mode="json")
    assert jax == describe_run(a_measurement("jax", replicate=1), ENVIRONMENT, tags=("paper",), job=JOB)
    quick = describe_run(a_measurement(quick=True), {}, job=JOB)
    assert (quick["group"], quick["tags"][-1]) == ("a100/cifar10_3/quick", "quick")


# ---- modes


def test_disabled_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for mode in ("disabled", "auto"):
        assert type(open_tracker(WandbSettings(mode=mode), Results(root=tmp_path), JOB)) is Tracker
    assert list(tmp_path.iterdir()) == []


RATIOS = ({"variant": "small_cnn", "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6, "ratio_verdict": "JAX faster"},)


def test_without_a_key_a_run_is_offline_and_reads_back(tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    record = measure_two(tracker, tmp_path)
    assert tracker.url is None
    assert tracker.message == "W&B offline: no API key is configured; see docs/clusters.md, W&B"

    (found,) = offline_runs(tmp_path)
    run = of_type(found, "run")[0]
    assert (run["project"], run["run_group"], run["job_type"]) == ("speed", "a100/cifar10_3", "jax")
    assert run["run_id"].startswith(f"jax-{JOB}-offline-")
    assert history(found) == [(1, 2.25), (2, 1.5)]
    rows = [
        (row["measurement/index"], row["measurement/replicate"], row["measurement/outcome"]) for row in rows_of(found)
    ]
    assert rows == [(1, 0, "ok"), (2, 1, "failed")]
    assert [entry["exit_code"] for entry in of_type(found, "exit")] == [1]
    axes = {metric["glob_name"]: metric["step_metric"] for metric in of_type(found, "metric") if "glob_name" in metric}
    assert axes == {"train/*": "epoch", "test/*": "epoch", "measurement/*": "measurement/index"}
    artifacts = {one["name"]: one for one in of_type(found, "artifact")}
    [entry] = artifacts["records-a100-cifar10_3-jax"]["manifest"]["contents"]
    assert (entry["path"], entry["local_path"]) == ("records/a100/cifar10_3/jax/one.json", str(record))


def test_online_run_arrives_at_the_server(server: WandbServer, tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    record = measure_two(tracker, tmp_path)
    ((run_id, run),) = server.runs.items()
    assert tracker.message is None
    assert (run_id, tracker.url) == (f"jax-{JOB}", f"{server.url}/lab/speed/runs/jax-{JOB}")
    assert [(row["epoch"], row[LOSS]) for row in run.history if LOSS in row] == [(1, 2.25), (2, 1.5)]
    throughputs = [row["measurement/throughput_samples_per_s"] for row in run.history if "measurement/index" in row]
    assert throughputs == [51200.0, 51200.0]
    assert (run.summary["measurement/index"], run.summary["measurement/outcome"], run.exit_code) == (2, "failed", 1)
    assert run.system_metrics == []
    assert not any("otel" in request or "requirements.txt" in request for request in server.requests)
    records = server.artifacts["records-a100-cifar10_3-jax"]
    assert records == {"records/a100/cifar10_3/jax/one.json": record.read_bytes()}
    (table,) = (files for name, files in server.artifacts.items() if name.endswith("ratios"))
    (content,) = (json.loads(body) for name, body in table.items() if name.endswith(".table.json"))
    assert (content["columns"], content["data"]) == (list(RATIOS[0]), [list(RATIOS[0].values())])


def test_the_clients_own_command_uploads_what_was_kept_offline(server: WandbServer, tmp_path: Path) -> None:
    for framework in FRAMEWORKS:
        tracker = a_tracker(tmp_path, online=False)
        measure(tracker, a_measurement(framework))
        finish(tracker)
    done = run_python("-m", "wandb", "sync", "--include-online", "--yes", cwd=tmp_path / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(run_id.partition("-offline-")[0] for run_id in server.runs) == [f"jax-{JOB}", f"torch-{JOB}"]
    assert all(run.complete and run.summary["measurement/index"] == 1 for run in server.runs.values())


def test_a_server_that_takes_no_records_still_ends_the_run(tmp_path: Path) -> None:
    def refuse(_: Any) -> None:
        raise ValueError("no records here")

    done: list[str] = []
    told: list[str | None] = []
    publisher = a_publisher(tmp_path)
    publisher._run = SimpleNamespace(  # type: ignore[assignment]
        settings=SimpleNamespace(sync_dir=str(tmp_path / "run")),
        log_artifact=refuse,
        finish=lambda exit_code: done.append(f"exit {exit_code}"),
    )
    message = {"ratios": [], "artifact": {"name": "records", "files": []}, "exit_code": 1}
    publisher.conclude(message, lambda kind, **content: told.append(content["text"]))
    assert (done, told) == (["exit 1"], ["W&B lacks the records of a run: no records here"])


def test_a_requeued_job_goes_on_with_its_run(server: WandbServer, tmp_path: Path) -> None:
    """Ended by a signal after the first measurement: no part of the run is lost or replaced, and its steps go on."""
    first = a_tracker(tmp_path, online=True)
    measure(first, a_measurement())
    first.close()
    (run,) = server.runs.values()
    assert (run.complete, run.exit_code) == (True, 1)
    second = a_tracker(tmp_path, online=True)
    measure(second, a_measurement(replicate=1))
    finish(second)
    assert list(server.runs) == [f"jax-{JOB}"] and second.message is None
    assert [row["measurement/index"] for row in run.history if "measurement/index" in row] == [1, 2]
    steps = [row["_step"] for row in run.history]
    assert len(steps) == 6 and steps == sorted(set(steps))
    assert (run.complete, run.exit_code, run.summary["measurement/name"][-3:]) == (True, 0, "-r1")


def csv_of_report(results: Results) -> list[dict[str, str]]:
    """What `main.py report` writes of a results folder."""
    assert report_command(results, ReportOptions(figures=False), null_console()) == 0
    with (results.report / "comparison.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_both_frameworks_of_a_real_job(server: WandbServer, tmp_path: Path) -> None:
    """By the fake framework: a mode of each in four replicates, and one of JAX that always fails."""
    project = make_behaving_project(tmp_path)
    same = {"gate": str(project.gate), "pid": str(project.root / "torch-pid")}  # else there is no common row
    pair = project.pair(("slow", "dies_later"), ("slower",), replicates=4, settings=same)
    online = WandbSettings(mode="online", project="speed")
    pair = pair.model_copy(update={"jobs": tuple(plan.model_copy(update={"wandb": online}) for plan in pair.jobs)})
    status, said, folder = project.run(pair)
    assert status == 1, said
    assert server.runs.keys() == {f"{name}-{folder.name}" for name in FRAMEWORKS}
    jax, torch = (server.runs[f"{name}-{folder.name}"] for name in FRAMEWORKS)
    assert (jax.exit_code, torch.exit_code, torch.summary["measurement/index"]) == (1, 0, 4)
    assert jax.summary["measurement/index"] == 8
    fetched = Results(root=tmp_path / "fetched")  # as by `wandb artifact get --root`, both into one folder
    for framework in FRAMEWORKS:
        for name, content in server.artifacts[f"records-any-mnist_1-{framework}"].items():
            (fetched.root / name).parent.mkdir(parents=True, exist_ok=True)
            (fetched.root / name).write_bytes(content)
    found = read_records(sorted(fetched.records().rglob("*.json")))
    made = {one.measurement_id for one in project.records()}
    assert found.refused == () and len(found.records) == 12 and {one.measurement_id for one in found.records} == made
    of_original, of_fetched = (csv_of_report(one) for one in (project.results, fetched))
    assert [line["ratio_jax_over_torch"] for line in of_fetched if line["ratio_jax_over_torch"]]
    assert of_fetched == of_original
    tables = [body for files in server.artifacts.values() for name, body in files.items() if ".table.json" in name]
    assert [len(json.loads(body)["data"]) for body in tables] == [1, 1]  # the ratio of the last replicate


def test_signals_of_the_scheduler_lose_no_run_and_values_logged_before_it_started_keep_their_order(
    server: WandbServer, tmp_path: Path
) -> None:
    """`scancel` and preemption signal every process of the job, W&B's among them."""
    tracker, measurement = a_tracker(tmp_path, online=True), a_measurement()
    tracker.begin(measurement, ENVIRONMENT)
    for number in range(500):
        tracker.log(measurement, {"epoch": number, "train/loss": 1 / (number + 1)})
    assert tracker.url is None  # the job has not waited for the client
    wait_until(lambda: tracker.url is not None, "the run has begun")
    for sent in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(tracker._process._process.pid, sent)
    tracker.end(a_record(measurement), {})
    finish(tracker)
    (run,) = server.runs.values()
    assert [row["epoch"] for row in run.history if LOSS in row] == list(range(500))
    assert (run.complete, run.exit_code) == (True, 0)


# ---- what goes wrong


def test_a_server_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WandbServer(fail_with=401) as server:
        log_in(server.url, monkeypatch)
        tracker = a_tracker(tmp_path, online=True)
        measure(tracker, a_measurement())
        asked = len(server.requests)
        measure(tracker, a_measurement(replicate=1))
        finish(tracker)
        assert len(server.requests) == asked  # offline: nobody asks again
    assert tracker.message.startswith("W&B offline: the online start failed: ")
    assert "401" in tracker.message and "\n" not in tracker.message
    assert not Results(root=tmp_path / "results").wandb_away.exists()  # it refuses at once
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25), (2, 1.5)]]


@pytest.mark.nightly
def test_one_arm_waits_for_an_unreachable_server_and_the_next_ones_do_not(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each arm of a job has a client of its own. After ten minutes one asks again."""
    with WandbServer() as gone:
        log_in(gone.url, monkeypatch)
    first = a_tracker(tmp_path, online=True, init_timeout_s=wandb_process.IN_VAIN_S + 2)
    measure(first, a_measurement("jax"))  # the client's own 10 s and init_timeout_s
    finish(first)
    assert first.message.startswith("W&B offline: the online start failed: ")
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25), (2, 1.5)]]
    second = a_tracker(tmp_path, online=True)
    measure(second, a_measurement("torch"))  # of 10 s and more
    second.close()
    assert second.message.startswith("W&B offline: another run waited for its server in vain 0 min ago; jobs ask again")
    assert len(offline_runs(tmp_path)) == 2
    away = Results(root=tmp_path / "results").wandb_away
    os.utime(away, (time.time() - wandb_process.ASK_AGAIN_AFTER_S - 60,) * 2)
    log_in(server.url, monkeypatch)
    third = a_tracker(tmp_path, online=True)
    measure(third, a_measurement("torch"))
    third.close()
    assert third.message is None and len(server.runs) == 1


def test_a_server_lost_in_the_middle(server: WandbServer, tmp_path: Path) -> None:
    tracker, measurement = a_tracker(tmp_path, online=True), a_measurement()
    tracker.begin(measurement, ENVIRONMENT)
    wait_until(lambda: tracker.url is not None, "the run has begun")
    server.stop()
    measure(tracker, measurement)  # and nothing that is measured waits for it
    finish(tracker)  # for the whole of finish_timeout_s
    assert "`wandb sync --include-online` uploads it later" in tracker.message
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25), (2, 1.5)]]


def test_a_client_that_hangs_is_killed(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    tracker = a_tracker(tmp_path, online=True, end_timeout_s=2.0)
    frozen = tracker._process._process
    os.kill(frozen.pid, signal.SIGSTOP)
    measure(tracker, a_measurement("jax"))
    assert frozen.poll() == -signal.SIGKILL
    assert tracker.message.startswith("W&B offline from here on: its process hung")
    assert Results(root=tmp_path / "results").wandb_away.exists()
    tracker._end_timeout_s = 30.0
    measure(tracker, a_measurement(replicate=1))
    tracker.close()
    (run,) = offline_runs(tmp_path)
    assert [row["measurement/replicate"] for row in rows_of(run)] == [1]


def test_a_client_that_dies_is_replaced_once(tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    for expected in ("W&B offline from here on: its process died", "W&B off from here on: its process died"):
        os.kill(tracker._process._process.pid, signal.SIGKILL)
        measure(tracker, a_measurement())
        assert tracker.message.startswith(expected)
    measure(tracker, a_measurement())
    tracker.close()


@pytest.mark.parametrize("lacks", ["its client", "its folder"])
def test_what_cannot_begin_is_off_and_says_why(lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacks == "its client":
        (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        why = "No module named 'wandb'; see docs/clusters.md, W&B"
    else:
        folder = tmp_path / "results" / "wandb"
        folder.parent.mkdir()
        folder.write_text("a file where W&B's folder should be")
        why = str(folder)
    tracker = a_tracker(tmp_path, online=True)
    measure(tracker, a_measurement())
    assert tracker.message.startswith("W&B off: ") and why in tracker.message
    measure(tracker, a_measurement())
    tracker.close()


def test_settings_that_a_client_no_longer_has_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import wandb

    assert set(wandb_process.SETTINGS) <= set(wandb.Settings.model_fields)  # all are there today
    monkeypatch.setitem(wandb_process.SETTINGS, "x_gone_in_the_next_version", True)
    monkeypatch.setattr(wandb, "init", lambda **arguments: arguments)
    arguments: Any = a_publisher(tmp_path)._init({"id": "a"}, mode="offline")
    assert arguments["settings"].x_file_stream_transmit_interval == REQUEST_INTERVAL_S == 30


def test_client_uploads_no_code_no_git_state_and_no_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run may be public, and the repository around it may not. The record has what a report needs of all this."""
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **arguments: arguments)
    arguments: Any = a_publisher(tmp_path)._init({"id": "a"}, mode="online")
    settings = arguments["settings"]
    assert settings.disable_code and settings.disable_git and settings.save_code is False
    assert settings.x_disable_machine_info and settings.x_disable_stats and settings.x_save_requirements is False
    assert settings.console == "off"
