"""What became of a job: each source of the answer, and what is shown of it."""

import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness.job.progress import Heartbeat, write_heartbeat
from harness.paths import REPOSITORY, JobFolder, Results
from harness.plan import JobPlan, Pair
from harness.plan_file import write_plan
from harness.results.record import Outcome, write_record
from pipeline.watching import jobs, slurm_states
from pipeline.watching.follow import follow, line, show_status
from pipeline.watching.jobs import JobReader, JobState, judge, read_files
from pipeline.watching.ratios import RatiosSoFar
from pipeline.watching.slurm_states import SlurmSilentError, SlurmState
from pipeline.watching.status import PHASES, command, lines, newest, said, styled, time_left
from tests.made.faults import programs
from tests.made.project import BehavingProject, alone
from tests.made.records import bare_record, heartbeat
from tests.made.submissions import submitted

NOW = 1_800_000_000.0


@pytest.fixture
def project(tmp_path: Path) -> BehavingProject:
    return BehavingProject(root=tmp_path)


def plan_of(project: BehavingProject, **changes: Any) -> JobPlan:
    """Return a plan of two replicates, or of one for each of so many `batch_sizes`."""
    sizes = changes.pop("batch_sizes", None)
    made = project.plan(**({"replicates": 1 if sizes else 2} | changes))
    variants = tuple(made.variants[0].model_copy(update={"batch_size": 8 + more}) for more in range(sizes or 1))
    return made.model_copy(update={"data": "real", "quick": False, "variants": variants})


def make_folder(
    project: BehavingProject, name: str = "torch_mnist_3-20261121T100000.000000Z-aaaa", **plan: Any
) -> JobFolder:
    folder = JobFolder(root=project.results.jobs / "any" / name)
    write_plan(alone(plan_of(project, **plan)), folder)
    return folder


@pytest.fixture
def folder(project: BehavingProject) -> JobFolder:
    return make_folder(project)


def beat(folder: JobFolder, state: str, *, age_s: float = 1, **changes: Any) -> None:
    now_s = time.time()
    fields = {"measurements_total": 2, "updated_at_unix_s": now_s - age_s}
    write_heartbeat(heartbeat(**(fields | {"state": state} | changes)), folder.heartbeat)


def record_all(project: BehavingProject, *, outcome: Outcome = "ok", job: str | None = None, count: int = 2) -> None:
    for measurement in islice(plan_of(project).measurements(), count):
        record = bare_record(measurement, outcome, job=job, environment={"scheduler": "slurm"})
        write_record(record, project.results.new_record(measurement))


def verdict(
    project: BehavingProject, folder: JobFolder, slurm: dict[str, SlurmState] | str, now_s: float | None = None
) -> tuple[str, str | None]:
    state = judge(read_files(folder), project.results, slurm, now_s=now_s or time.time())
    return state.state, state.reason


def in_slurm(name: str, reason: str | None = None) -> dict[str, SlurmState]:
    return {"12": SlurmState(name=name, node="n1", reason=reason)}


def test_the_queue_wins_over_the_database_and_silence_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a requeue sacct still says PREEMPTED; and sacct is only asked for what squeue has forgotten."""
    programs(
        tmp_path,
        squeue="echo $@ >> $here/calls; echo '7|RUNNING|n2|None'; echo '9|PENDING||Resources'; echo '6|||'",
        sacct="echo $@ >> $here/calls; echo '7|PREEMPTED|n1|None'; echo '8|CANCELLED by 1000|None assigned|None'",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert slurm_states.query(["7", "8", "9"]) == {
        "7": SlurmState(name="RUNNING", node="n2"),
        "8": SlurmState(name="CANCELLED"),
        "9": SlurmState(name="PENDING", reason="Resources"),
    }
    of_queue, of_database = (tmp_path / "calls").read_text().splitlines()
    assert of_queue.endswith("--jobs=7,8,9") and of_database.endswith("--jobs=8")
    programs(
        tmp_path,
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
    )
    assert slurm_states.query(["7"]) == {}
    programs(tmp_path, squeue="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(SlurmSilentError, match="Unable to contact slurm controller"):
        slurm_states.query(["7"])


def test_slurm_is_asked_once_for_all_and_not_at_each_look(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        folder = make_folder(project, f"torch_mnist_{number}-20261121T10000{number}Z-aaaa", use_case=1 + number)
        submitted(folder, job_id=str(number))
    beat(folder, "done", measurements_done=2)
    asked: list[list[str]] = []

    def query(job_ids: set[str]) -> dict[str, SlurmState]:
        asked.append(sorted(job_ids))
        return {job_id: SlurmState(name="RUNNING") for job_id in job_ids}

    monkeypatch.setattr(jobs.slurm_states, "query", query)
    now_s = 1000.0
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now_s)
    reader = JobReader(project.results, ask_slurm_every_s=5.0)
    for _ in range(5):
        assert [state.state for state in reader.read()] == ["running", "running", "done"]
    assert asked == [["0", "1"]]
    now_s += 5.0
    reader.read()
    assert asked == [["0", "1"]] * 2


@pytest.mark.parametrize(
    ("slurm", "heartbeat", "expected"),
    [
        (in_slurm("PENDING", "Resources"), None, ("queued", "Resources")),
        (in_slurm("RUNNING"), None, ("running", None)),
        (in_slurm("COMPLETING"), "running", ("running", None)),
        (in_slurm("PENDING", "BeginTime"), "stopped", ("requeued", "BeginTime")),
        (in_slurm("REQUEUE_HOLD", "is held"), None, ("requeued", "is held: `scontrol release 12` lets it go on")),
        (in_slurm("COMPLETED"), "done", ("done", None)),
        (in_slurm("COMPLETED"), "running", ("failed", "Slurm: COMPLETED")),
        (in_slurm("OUT_OF_MEMORY"), "running", ("failed", "Slurm: OUT_OF_MEMORY")),
        (in_slurm("NODE_FAIL"), None, ("failed", "Slurm: NODE_FAIL")),
        (in_slurm("CANCELLED"), "running", ("cancelled", "not by main.py")),
        (in_slurm("PREEMPTED"), "stopped", ("stopped", f"preempted and not requeued; {jobs.STOPPED}")),
        ({}, "running", ("running", None)),
        ("squeue: busy", None, ("queued", "not certain: squeue: busy")),
        ("squeue: busy", "running", ("running", None)),
        ("squeue: busy", "stopped", ("requeued", "not certain: squeue: busy")),
    ],
)
def test_a_job_of_slurm(
    project: BehavingProject,
    folder: JobFolder,
    slurm: dict[str, SlurmState] | str,
    heartbeat: str | None,
    expected: tuple[str, str | None],
) -> None:
    submitted(folder)
    if heartbeat:
        beat(folder, heartbeat)
    assert verdict(project, folder, slurm) == expected


def test_what_main_has_cancelled_is_cancelled_unless_it_was_done(project: BehavingProject, folder: JobFolder) -> None:
    submitted(folder)
    folder.cancelled.touch()
    assert verdict(project, folder, in_slurm("RUNNING")) == ("cancelled", None)
    beat(folder, "done", measurements_done=2)
    assert verdict(project, folder, in_slurm("COMPLETED")) == ("done", None)


def test_a_job_that_nobody_knows_is_lost_after_a_minute(project: BehavingProject, folder: JobFolder) -> None:
    submitted(folder, submitted_at_unix_s=NOW - 59)
    assert verdict(project, folder, {}, NOW) == ("queued", None)
    assert verdict(project, folder, {}, NOW + 2) == (
        "lost",
        "Slurm no longer knows the job, and its last sign of life was 61 s ago",
    )
    submitted(folder)
    beat(folder, "running", age_s=0)
    assert verdict(project, folder, {}) == ("running", None)
    assert verdict(project, folder, {}, time.time() + 600)[0] == "lost"
    beat(folder, "stopped", age_s=0)
    assert verdict(project, folder, {}, time.time() + 600) == ("stopped", jobs.STOPPED)
    beat(folder, "running", age_s=180)
    assert verdict(project, folder, in_slurm("RUNNING")) == ("running", "no heartbeat for 3 min")


def test_records_win_and_with_force_the_jobs_own(project: BehavingProject, folder: JobFolder) -> None:
    """The job died after its last record and before its last heartbeat. What the clocks of two machines say is no
    matter."""
    submitted(folder)
    beat(folder, "running")
    record_all(project, outcome="out_of_memory", count=1)
    assert verdict(project, folder, in_slurm("NODE_FAIL"))[0] == "failed"
    record_all(project)
    assert verdict(project, folder, in_slurm("NODE_FAIL")) == ("done", None)
    forced = [
        make_folder(project, f"torch_mnist_3-{year}0101T000000.000000Z-aaaa", force=True) for year in (2099, 2020)
    ]
    record_all(project, job=forced[0].name)
    for one, state in zip(forced, ("done", "failed"), strict=True):
        submitted(one)
        assert verdict(project, one, in_slurm("FAILED"))[0] == state


def test_a_failure_names_its_cause(project: BehavingProject, folder: JobFolder) -> None:
    submitted(folder)
    (folder.root / "12_0_log.err").write_text(
        "submitit ERROR (2026-11-21 10:00:00,000) - Submitted job triggered an exception\n"
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'jax'\n"
    )
    words = "Slurm: FAILED: ModuleNotFoundError: No module named 'jax'"
    assert verdict(project, folder, in_slurm("FAILED")) == ("failed", words)
    beat(folder, "done", measurements_failed=1, last_error="cnn-b1-fp32-step.eager-r0: timeout")
    assert verdict(project, folder, in_slurm("FAILED")) == ("failed", "cnn-b1-fp32-step.eager-r0: timeout")


def test_a_job_that_shares_its_node_fails_with_it(project: BehavingProject, folder: JobFolder) -> None:
    """Its own log has nothing where the job of the node has not come so far."""
    node = project.results.new_job_folder("any/node_1")
    submitted(folder, command=["sbatch", "slurm", str(node.root)])
    node.root.mkdir(parents=True)
    (node.root / "12_0_log.err").write_text("module: not found\n")
    assert verdict(project, folder, in_slurm("FAILED")) == ("failed", "Slurm: FAILED: module: not found")


def test_a_run_by_hand_is_known_by_its_heartbeat(project: BehavingProject, folder: JobFolder) -> None:
    assert verdict(project, folder, {}) == ("queued", "starting")
    assert verdict(project, folder, {}, time.time() + 100) == ("lost", "it ended before its first heartbeat")
    beat(folder, "running")
    assert verdict(project, folder, {}) == ("running", None)
    beat(folder, "stopped", age_s=1000)
    assert verdict(project, folder, {}) == ("stopped", jobs.STOPPED)
    beat(folder, "running", age_s=180, slurm_job_id="99")
    state = judge(read_files(folder), project.results, {}, now_s=time.time())
    assert (state.state, state.reason) == ("lost", "no heartbeat for 3 min")
    assert (state.executor, state.job_id, state.node) == ("by hand", "99", "n1")


@pytest.mark.parametrize(("words", "expected"), [("jax_runner/run.py", "running"), ("x", "lost")])
def test_a_silent_run_by_hand_lives_as_its_process(project: BehavingProject, words: str, expected: str) -> None:
    folder = make_folder(project)
    with subprocess.Popen([sys.executable, "-c", "input()", words], stdin=subprocess.PIPE) as process:
        beat(folder, "running", age_s=jobs.GONE_AFTER_S + 1, node=socket.gethostname(), pid=process.pid)
        assert verdict(project, folder, {})[0] == expected
        process.kill()


def test_a_local_queue_is_known_by_its_process_here_only(project: BehavingProject, folder: JobFolder) -> None:
    submitted(folder, "local", job_id=str(os.getpid()))  # pytest, as after a restart of the machine
    assert verdict(project, folder, {}) == ("lost", f"its queue (process {os.getpid()}) is gone")
    submitted(folder, "local", node="elsewhere")
    assert verdict(project, folder, {}) == ("queued", "in the queue of elsewhere")
    beat(folder, "running")
    assert verdict(project, folder, {}) == ("running", None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan", "{"),
        ("submission", {"job_id": "٣"}),
        ("submission", None),
        ("heartbeat", "\udcff"),
        ("heartbeat", {"measuring_s": math.nan}),
    ],
)
def test_a_corrupt_file_is_named_and_breaks_nothing(
    project: BehavingProject, capsys: pytest.CaptureFixture[str], name: str, content: str | dict[str, object] | None
) -> None:
    """tests/bad_inputs has more. A dict changes what is there, None makes a pipe, for which nobody waits."""
    folder = make_folder(project)
    good = make_folder(project, "jax_mnist_3-20261121T100000.000000Z-bbbb", framework="jax")
    for each in (folder, good):
        submitted(each, "local", node="elsewhere")
        beat(each, "done", measurements_done=2)
    path: Path = getattr(folder, name)
    changed = json.dumps(json.loads(path.read_text()) | content) if isinstance(content, dict) else content
    path.unlink()
    os.mkfifo(path) if changed is None else path.write_bytes(changed.encode(errors="surrogateescape"))
    assert show_status(project.results, watch=False) == 0
    out = capsys.readouterr().out
    (problem,) = [line for line in out.splitlines() if f"{path}: " in line]
    assert content is not None or "not a regular file" in problem
    assert not isinstance(content, dict) or next(iter(content)) in problem
    assert re.search(r"mnist behave \(jax only\) +done: 2 measurements", out)


def state(project: BehavingProject, name: str, verdict: jobs.State, **plan: Any) -> JobState:
    pair = alone(plan_of(project, **plan))
    return JobState(folder=JobFolder(root=project.results.jobs / "any" / name), pair=pair, state=verdict)


def test_the_newest_job_of_a_row_is_shown_and_all_active_ones(project: BehavingProject) -> None:
    verdicts: tuple[jobs.State, ...] = ("failed", "running", "done")
    first, second, third = (state(project, f"torch-20261121T1{n}0000.000000Z-a", one) for n, one in enumerate(verdicts))
    jax = state(project, "jax-20261121T100000.000000Z-aaaa", "done", framework="jax")
    assert newest([first, jax, second, third]) == [jax, second, third]
    assert newest([first]) == [first]


def heartbeat_of(*, eta_s: float | None = None, **changes: Any) -> Heartbeat:
    beat = heartbeat(**({"measurements_total": 24, "measurements_done": 3, "updated_at_unix_s": time.time()} | changes))
    if eta_s is not None:  # one measurement took so long that the rest takes that
        beat.replicates_made = 1
        beat.measuring_s = eta_s / (beat.measurements_total - beat.measurements_done)
    return beat


KEY = "torch cnn-b8-fp32-well.eager"


def test_what_a_job_does_is_said_in_words(project: BehavingProject) -> None:
    def running(**changes: Any) -> JobState:
        return replace(state(project, "x", "running", batch_sizes=24), node="n1", heartbeat=heartbeat_of(**changes))

    timing = {"phase": "throughput", "phase_done": 12.0, "phase_total": 30.0}
    assert said(running(current=f"{KEY}-r0", **timing)) == "replicate 1 of 1 (4/24): timing 40%, on n1"
    waits = {"current": "its turn", "phase": "waits for process 7, which measures on this machine"}
    assert said(running(**waits)) == "waiting its turn: process 7, which measures on this machine, on n1"
    gate = running(current="torch: parity gate", phase="parity", phase_done=1.0, phase_total=4.0)
    assert said(gate) == "checking what it computes: 25%, on n1"
    assert said(running(screenings_total=14, screenings_done=2)) == "screening 3 of 14 modes, on n1"
    assert said(running(measurements_failed=1)) == "starting (1 failed), on n1"
    assert said(state(project, "x", "done", batch_sizes=24)) == "done: 24 measurements"
    left = running(current=f"{KEY}-r0", eta_s=1500.0, phase="start")
    assert line(left, RatiosSoFar([], project.results))[9:] == (
        "mnist behave (torch only): replicate 1 of 1 (4/24): starting and compiling, 25 min left, on n1"
    )
    assert [time_left(running(eta_s=seconds)) for seconds in (20.2, 7500.0)] == ["20 s", "2 h 05 min"]
    assert time_left(running(eta_s=100.0, updated_at_unix_s=time.time() - 300)) == "0 s"
    assert time_left(running()) == ""


def test_every_phase_that_is_reported_has_words() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "harness").rglob("*.py")]
    reported = {name for text in sources for name in re.findall(r'(?:channel\.progress|set_phase)\("([^"]+)"', text)}
    assert reported == {*PHASES}
    assert all(any(words in text for text in sources) for words in ('current = "its turn"', ': parity gate"'))


def test_status_shows_why_a_job_failed(project: BehavingProject, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(project, quick=False)
    words = {"last_error": "cnn: [/red] CUDA error\nline two", "node": 9 * "elsewhere"}
    beat(folder, "done", measurements_done=2, measurements_failed=1, **words)
    assert show_status(project.results, watch=False) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:4] == [
        f"mnist behave (torch only)  failed: 1 of 2 measurements, on {9 * 'elsewhere'}",
        *("", "mnist behave (torch only) failed: cnn: [/red] CUDA error", "line two"),
    ]
    assert out.count("CUDA error") == 1


def test_ctrl_c_leaves_the_jobs_and_says_how_to_go_on(
    project: BehavingProject, folder: JobFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(folder, "running")

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.watching.follow.time.sleep", interrupt)
    assert follow([folder], project.results) == 130
    out = capsys.readouterr().out
    assert f"python main.py status --watch --results {project.results.root}" in out
    assert f"python main.py status --cancel --results {project.results.root}" in out
    assert command("status", Results(root=REPOSITORY / "results")) == "python main.py status"


def test_progress_stays_readable_however_narrow(project: BehavingProject) -> None:
    """Of both frameworks, twelve replicates of one variant."""
    plans = [plan_of(project, framework=framework) for framework in ("jax", "torch")]
    protocol = plans[0].protocol.model_copy(update={"replicates": 12})
    pair = Pair(cell=plans[0].cell, jobs=tuple(plan.model_copy(update={"protocol": protocol}) for plan in plans))
    beat = heartbeat_of(current=f"{KEY}-r3", phase="latency", phase_done=10.0, phase_total=20.0, eta_s=360.0)
    runs = replace(state(project, "x", "running"), pair=pair, node="node-of-a-long-name", heartbeat=beat)
    ratio, timing = "so far JAX 1.05 x", ": timing single steps 50%"
    widths = {160: f"{timing}, 6 min left, {ratio}, on node-of-a-long-name", 96: f"{timing}, 6 min left, {ratio}"}
    for width, words in (widths | {66: f", 6 min left, {ratio}", 58: f", {ratio}"}).items():
        [found] = lines([runs], lambda _: ratio, width=width)
        assert found == f"mnist behave  pair 4 of at most 12{words}"
        [shown] = styled([runs], lambda _: ratio, width=width)
        assert (shown.plain, len(shown.plain) <= width) == (found, True)
