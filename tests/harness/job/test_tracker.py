"""W&B with its real client: offline files read back, a stand-in server, and everything that goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.job import wandb_process
from harness.job.tracker import NullTracker, WandbTracker, describe_run, exit_code, open_tracker
from harness.paths import REPOSITORY, Results
from harness.plan import Cell, Framework, Measurement, MeasurementSettings, Variant, WandbSettings
from harness.results.record import Outcome, Record
from tests.made.patience import patience, slowdown, wait_until
from tests.made.records import bare_record
from tests.made.wandb_server import WandbServer

API_KEY = "0123456789abcdef0123456789abcdef01234567"
BEFORE = {"hostname": "n01", "packages": {"numpy": "2.3.1"}}
"""What the job knows of its environment before the measurement's process has looked at the GPU."""
ENVIRONMENT = {"hostname": "n01", "gpu": {"name": "NVIDIA A100"}, "packages": {"numpy": "2.3.1"}}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no settings and no netrc of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", API_KEY)
        yield server


def a_measurement(framework: Framework = "jax", *, replicate: int = 0, quick: bool = False) -> Measurement:
    return Measurement(
        framework=framework,
        cell=Cell(gpu="a100", benchmark="cifar10", use_case=3, use_case_name="per_sample_gradients"),
        variant=Variant(
            model="small_cnn",
            batch_size=64,
            precision="tf32",
            execution_mode="vmap.jit" if framework == "jax" else "vmap.compiled",
            options={"output": "full"},
        ),
        replicate=replicate,
        settings={"chunk_size": 16},
        protocol=MeasurementSettings(),
        data="real",
        quick=quick,
    )


def a_record(measurement: Measurement, outcome: Outcome = "ok", reason: str | None = None) -> Record:
    flags = {"noisy": "The interval is 3 % wide."}
    return bare_record(measurement, outcome, reason=reason, flags=flags, environment=ENVIRONMENT)


def a_tracker(tmp_path: Path, *, online: bool, **bounds: float) -> WandbTracker:
    short = {"init_timeout_s": 2 * slowdown(), "finish_timeout_s": 3.0, "end_timeout_s": 60.0, "close_timeout_s": 30.0}
    settings = WandbSettings(project="speed", tags=("paper",))
    return WandbTracker(settings, Results(root=tmp_path / "results"), online=online, **{**short, **bounds})


def measure(tracker: WandbTracker, measurement: Measurement, outcome: Outcome = "ok") -> float:
    """One whole run; returns how long `end` held up the job, in seconds."""
    tracker.begin(measurement, BEFORE)
    tracker.log({"epoch": 1, "train/loss": 2.25})
    tracker.log({"epoch": 2, "train/loss": 1.5})
    started = time.monotonic()
    tracker.end(a_record(measurement, outcome), {"throughput_samples_per_s": 51200.0})
    return time.monotonic() - started


def offline_runs(tmp_path: Path) -> list[list[dict[str, Any]]]:
    """The records of each local run, oldest first, as the real client reads them."""
    files = sorted((tmp_path / "results" / "wandb").glob("*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    return [[json.loads(line) for line in inspect(path, "--json").splitlines()] for path in files]


def inspect(path: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *flags, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience(30)).stdout


def of_type(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


def history(records: list[dict[str, Any]]) -> list[tuple[float, float]]:
    items = [entry["item"] for entry in of_type(records, "history")]
    return [(item["epoch"], item["train/loss"]) for item in items]


# ---- what a run is called and holds


def test_both_frameworks_share_a_group_and_differ_in_job_type() -> None:
    jax = describe_run(a_measurement("jax"), ENVIRONMENT, tags=("paper",), attempt="t1")
    torch = describe_run(a_measurement("torch"), ENVIRONMENT, attempt="t1")
    assert jax["group"] == torch["group"] == "a100/cifar10_3/small_cnn-b64-tf32-full"
    assert (jax["job_type"], torch["job_type"]) == ("jax", "torch")
    assert jax["name"] == "jax-small_cnn-b64-tf32-full-vmap.jit-r0"
    assert jax["tags"] == ["jax", "cifar10", "per_sample_gradients", "tf32", "NVIDIA A100", "paper"]


def test_config_holds_the_whole_measurement_and_the_environment() -> None:
    measurement = a_measurement()
    config = describe_run(measurement, ENVIRONMENT, attempt="t1")["config"]
    assert config["measurement_id"] == measurement.id
    assert (config["framework"], config["benchmark"], config["use_case"], config["gpu"]) == (
        "jax",
        "cifar10",
        3,
        "a100",
    )
    assert (config["model"], config["batch_size"], config["precision"]) == ("small_cnn", 64, "tf32")
    assert config["options"] == {"output": "full"}
    assert config["settings"] == {"chunk_size": 16}
    assert config["protocol"] == MeasurementSettings().model_dump(mode="json")
    assert config["environment"] == ENVIRONMENT
    whole = measurement.model_dump(mode="json")
    parts = {**whole.pop("cell"), **whole.pop("variant"), **whole}
    assert {name: config[name] for name in parts} == parts


def test_a_repeated_measurement_is_a_new_run() -> None:
    first, second = (describe_run(a_measurement(), {}, attempt=attempt)["id"] for attempt in ("t1", "t2"))
    assert first == f"{a_measurement().id}-t1"
    assert first != second


def test_quick_runs_are_never_grouped_with_full_ones() -> None:
    quick = describe_run(a_measurement(quick=True), {}, attempt="t1")
    assert quick["group"] == "a100/cifar10_3/small_cnn-b64-tf32-full/quick"
    assert quick["tags"][-1] == "quick"


@pytest.mark.parametrize(
    ("outcome", "code"), [("ok", 0), ("out_of_memory", 0), ("refused", 0), ("failed", 1), ("timeout", 1)]
)
def test_exit_code(outcome: Outcome, code: int) -> None:
    assert exit_code(a_record(a_measurement(), outcome)) == code


# ---- modes


def test_disabled_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_tracker(WandbSettings(mode="disabled"), Results(root=tmp_path)), NullTracker)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert isinstance(open_tracker(WandbSettings(mode="auto"), Results(root=tmp_path)), NullTracker)
    assert list(tmp_path.iterdir()) == []


def test_offline_run_reads_back(tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=False)
    measure(tracker, a_measurement("jax"))
    measure(tracker, a_measurement("torch"), "failed")
    tracker.close()
    assert (tracker.url, tracker.message) == (None, None)

    jax, torch = offline_runs(tmp_path)
    assert history(jax) == history(torch) == [(1, 2.25), (2, 1.5)]
    run = of_type(jax, "run")[0]
    assert run["project"] == "speed"
    assert run["run_group"] == of_type(torch, "run")[0]["run_group"] == "a100/cifar10_3/small_cnn-b64-tf32-full"
    assert (run["job_type"], of_type(torch, "run")[0]["job_type"]) == ("jax", "torch")
    assert run["config"]["update"]["settings"] == {"chunk_size": 16}
    assert [entry["exit_code"] for runs in (jax, torch) for entry in of_type(runs, "exit")] == [0, 1]
    axes = {metric["glob_name"]: metric["step_metric"] for metric in of_type(jax, "metric") if "glob_name" in metric}
    assert axes == {"train/*": "epoch", "test/*": "epoch"}
    summary: dict[str, Any] = {}
    for entry in of_type(torch, "summary"):
        summary.update(entry["update"])
    assert summary["outcome"] == "failed"
    assert summary["throughput_samples_per_s"] == 51200.0
    assert summary["flags"]["noisy"] == "The interval is 3 % wide."


def test_online_run_arrives_at_the_server(server: WandbServer, tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    measure(tracker, a_measurement("jax"))
    url = tracker.url
    measure(tracker, a_measurement("torch"), "failed")
    tracker.close()

    (jax_id, jax), (_, torch) = server.runs.items()
    assert tracker.message is None
    assert url == f"{server.url}/lab/speed/runs/{jax_id}"
    assert jax.group == torch.group == "a100/cifar10_3/small_cnn-b64-tf32-full"
    assert (jax.job_type, torch.job_type) == ("jax", "torch")
    assert jax.name == "jax-small_cnn-b64-tf32-full-vmap.jit-r0"
    assert {"jax", "NVIDIA A100", "paper"} <= set(jax.tags)
    assert jax.config["environment"] == ENVIRONMENT
    assert [(row["epoch"], row["train/loss"]) for row in jax.history] == [(1, 2.25), (2, 1.5)]
    assert jax.summary["outcome"] == "ok"
    assert jax.summary["throughput_samples_per_s"] == 51200.0
    assert (jax.exit_code, torch.exit_code) == (0, 1)
    assert jax.system_metrics == torch.system_metrics == []
    assert not any("otel" in request or "requirements.txt" in request for request in server.requests)


def test_values_stream_while_the_measurement_runs(server: WandbServer, tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    tracker.begin(a_measurement(), ENVIRONMENT)
    tracker.log({"epoch": 1, "train/loss": 2.25})
    wait_until(lambda: any(run.history for run in server.runs.values()), "values have arrived")
    tracker.end(a_record(a_measurement()), {})
    tracker.close()


def test_values_logged_before_the_run_started_keep_their_order(server: WandbServer, tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    tracker.begin(a_measurement(), ENVIRONMENT)
    for epoch in range(500):
        tracker.log({"epoch": epoch, "train/loss": 1 / (epoch + 1)})
    assert tracker.url is None  # the job has not waited for the client
    tracker.end(a_record(a_measurement()), {})
    tracker.close()
    (run,) = server.runs.values()
    assert [row["epoch"] for row in run.history] == list(range(500))


def test_a_killed_measurement_is_a_failed_run(server: WandbServer, tmp_path: Path) -> None:
    """The measurement's process got SIGKILL: its parent ends the run with the record that it writes."""
    tracker = a_tracker(tmp_path, online=True)
    tracker.begin(a_measurement(), ENVIRONMENT)
    tracker.log({"epoch": 1, "train/loss": 2.25})
    tracker.end(a_record(a_measurement(), "failed", "killed by signal 9"), {})
    tracker.close()
    (run,) = server.runs.values()
    assert (run.exit_code, run.summary["outcome"], run.summary["reason"]) == (1, "failed", "killed by signal 9")


def test_a_killed_job_ends_its_run(server: WandbServer, tmp_path: Path) -> None:
    """SIGKILL to the job itself: W&B's process sees the pipe close, and the run is not left `running`."""
    job = f"""
import os, signal, time
from pathlib import Path
from tests.harness.job.test_tracker import ENVIRONMENT, a_measurement, a_tracker
tracker = a_tracker(Path({str(tmp_path)!r}), online=True)
tracker.begin(a_measurement(), ENVIRONMENT)
while tracker.url is None:
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.run([sys.executable, "-c", job], cwd=REPOSITORY, timeout=patience(30))
    assert process.returncode == -signal.SIGKILL
    (run,) = server.runs.values()
    wait_until(lambda: run.complete, "the run is complete")
    assert run.exit_code == 1


def test_signals_of_the_scheduler_lose_no_run(server: WandbServer, tmp_path: Path) -> None:
    """`scancel` and preemption signal every process of the job, W&B's among them."""
    tracker = a_tracker(tmp_path, online=True)
    tracker.begin(a_measurement(), ENVIRONMENT)
    wait_until(lambda: tracker.url is not None, "the run has begun")
    assert tracker._process is not None
    for sent in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(tracker._process._process.pid, sent)
    tracker.end(a_record(a_measurement()), {})
    tracker.close()
    (run,) = server.runs.values()
    assert (run.complete, run.exit_code) == (True, 0)


# ---- what goes wrong


def test_no_key_goes_offline_at_once(tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    assert measure(tracker, a_measurement()) < patience(10)
    tracker.close()
    assert tracker.message == "W&B offline: no API key is configured; see docs/clusters.md, W&B"
    assert tracker.url is None
    (run,) = offline_runs(tmp_path)
    assert history(run) == [(1, 2.25), (2, 1.5)]


@pytest.mark.parametrize(("status", "says"), [(401, "401"), (500, "500")])
def test_a_server_that_refuses(status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WandbServer(fail_with=status) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", API_KEY)
        tracker = a_tracker(tmp_path, online=True)
        assert measure(tracker, a_measurement("jax")) < patience(15)
        asked = len(server.requests)
        assert measure(tracker, a_measurement("torch")) < patience(1)  # offline: the second run does not ask again
        assert len(server.requests) == asked
        tracker.close()
    assert tracker.message.startswith("W&B offline: the online start failed: ")
    assert says in tracker.message
    assert "\n" not in tracker.message
    assert status == 500 or not Results(root=tmp_path / "results").wandb_away.exists()  # it refuses at once
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25), (2, 1.5)]] * 2


def test_an_unreachable_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WandbServer() as server:
        url = server.url
    monkeypatch.setenv("WANDB_BASE_URL", url)  # nobody listens there any more
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    tracker = a_tracker(tmp_path, online=True)
    assert measure(tracker, a_measurement("jax")) < patience(20)  # the client's own 10 s and init_timeout_s
    assert measure(tracker, a_measurement("torch")) < patience(3)
    tracker.close()
    assert tracker.message is not None and tracker.message.startswith("W&B offline: the online start failed: ")
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25), (2, 1.5)]] * 2


def test_one_arm_waits_for_a_server_and_the_next_ones_do_not(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each arm of a job has a client of its own. After ten minutes one asks again."""
    with WandbServer() as gone:
        url = gone.url
    monkeypatch.setenv("WANDB_BASE_URL", url)  # nobody listens there any more
    first = a_tracker(tmp_path, online=True, init_timeout_s=wandb_process.IN_VAIN_S + 2)
    measure(first, a_measurement("jax"))
    first.close()
    second = a_tracker(tmp_path, online=True)
    assert measure(second, a_measurement("torch")) < patience(5)  # of 10 s and more
    second.close()
    assert second.message is not None
    assert second.message.startswith("W&B offline: another run waited for its server in vain 0 min ago; jobs ask again")
    assert len(offline_runs(tmp_path)) == 2
    away = Results(root=tmp_path / "results").wandb_away
    os.utime(away, (time.time() - wandb_process.ASK_AGAIN_AFTER_S - 60,) * 2)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    third = a_tracker(tmp_path, online=True)
    measure(third, a_measurement("torch"))
    third.close()
    assert third.message is None and len(server.runs) == 1


def test_a_server_lost_in_the_middle(server: WandbServer, tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    tracker.begin(a_measurement("jax"), ENVIRONMENT)
    wait_until(lambda: tracker.url is not None, "the run has begun")
    server.stop()
    tracker.log({"epoch": 1, "train/loss": 2.25})
    started = time.monotonic()
    tracker.end(a_record(a_measurement("jax")), {})
    assert 2.5 < time.monotonic() - started < patience(8)  # finish_timeout_s is 3
    assert "upload it later with `wandb sync " in tracker.message
    assert measure(tracker, a_measurement("torch")) < patience(3)
    tracker.close()
    assert [history(run) for run in offline_runs(tmp_path)] == [[(1, 2.25)], [(1, 2.25), (2, 1.5)]]


def test_a_client_that_hangs_is_killed(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    tracker = a_tracker(tmp_path, online=True, end_timeout_s=2.0)
    frozen = tracker._process._process
    os.kill(frozen.pid, signal.SIGSTOP)
    assert measure(tracker, a_measurement("jax")) < patience(4)
    assert frozen.poll() == -signal.SIGKILL
    assert tracker.message is not None and tracker.message.startswith("W&B offline from here on: its process hung")
    assert Results(root=tmp_path / "results").wandb_away.exists()
    tracker._end_timeout_s = 30.0
    measure(tracker, a_measurement("torch"))
    tracker.close()
    (run,) = offline_runs(tmp_path)
    assert of_type(run, "run")[0]["job_type"] == "torch"


def test_a_client_that_dies_is_replaced_once(tmp_path: Path) -> None:
    tracker = a_tracker(tmp_path, online=True)
    for expected in ("W&B offline from here on: its process died", "W&B off from here on: its process died"):
        os.kill(tracker._process._process.pid, signal.SIGKILL)
        assert measure(tracker, a_measurement()) < patience(2)
        assert tracker.message is not None and tracker.message.startswith(expected)
    assert measure(tracker, a_measurement()) < patience(0.1)
    tracker.close()


def test_wandb_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    tracker = a_tracker(tmp_path, online=True)
    assert measure(tracker, a_measurement()) < patience(5)
    assert tracker.message == "W&B off: No module named 'wandb'; see docs/clusters.md, W&B"
    assert measure(tracker, a_measurement()) < patience(0.1)
    tracker.close()


def test_a_results_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "wandb").write_text("a file where W&B's folder should be")
    tracker = a_tracker(tmp_path, online=False)
    assert measure(tracker, a_measurement()) < patience(5)
    tracker.close()
    assert tracker.message.startswith("W&B off: ")
    assert str(tmp_path / "results" / "wandb") in tracker.message


def test_settings_that_a_client_no_longer_has_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import wandb

    assert set(wandb_process.SETTINGS) <= set(wandb.Settings.model_fields)  # all are there today
    monkeypatch.setitem(wandb_process.SETTINGS, "x_gone_in_the_next_version", True)
    monkeypatch.setattr(wandb, "init", lambda **arguments: arguments)
    publisher = wandb_process.Publisher(
        root=tmp_path, mode="offline", project="speed", entity=None, init_timeout_s=1, finish_timeout_s=1
    )
    arguments: Any = publisher._init({"id": "a"}, mode="offline")
    assert arguments["id"] == "a"
    assert arguments["settings"].x_disable_stats is True
