"""What children.py does that needs no child: test_job.py and test_several_ranks.py have the process itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.job import children
from harness.job.children import child_environment, memory_fraction
from harness.job.main import cache_variables, threads_of_rank
from harness.measure.channel import MARK, ChildTask
from harness.measure.world import World
from harness.paths import REPOSITORY
from harness.plan import Framework, JobPlan
from harness.results import cpus
from harness.work.declared import EAGER, Formulation, Mode
from tests.made.faults import programs
from tests.made.patience import patience
from tests.made.project import BehavingProject

MODE = Mode(written=Formulation(name="step", runs=(EAGER,)), run=EAGER)
OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OLD, NEW, "XLA_PYTHON_CLIENT_PREALLOCATE", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_jax_takes_memory_as_needed_and_almost_all_unless_the_user_says_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JAX refuses the two names together."""
    environment = child_environment()
    assert (environment[NEW], environment["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("0.95", "false")
    assert OLD not in environment
    monkeypatch.setenv(NEW, "0.5")
    assert child_environment()[NEW] == "0.5"
    monkeypatch.delenv(NEW)
    monkeypatch.setenv(OLD, "0.4")
    environment = child_environment()
    assert (environment[OLD], NEW in environment) == ("0.4", False)


@pytest.mark.parametrize(("total_gib", "fraction"), [(None, "0.95"), (80, "0.95"), (11, "0.86"), (24, "0.94")])
def test_libraries_have_room_beside_the_pool(total_gib: int | None, fraction: str) -> None:
    """1 - 1.5 / 11 is 0.864."""
    assert memory_fraction(None if total_gib is None else total_gib * 2**30) == fraction


def test_child_environment_has_cudas_defaults_which_the_user_may_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA itself has 8 hardware queues and orders cards by speed."""
    defaults = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for name in defaults:
        monkeypatch.delenv(name, raising=False)
    environment = child_environment()
    assert {name: environment[name] for name in defaults} == defaults
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert child_environment()["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_no_proxy_is_asked_for_the_way_to_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://nowhere:3128")
    environment = child_environment()
    assert not [name for name in environment if "proxy" in name.lower()]
    assert environment["PATH"] == os.environ["PATH"]


def test_jax_keeps_its_programs_only_for_another_process() -> None:
    """Off is its own default; where it is on, every program is kept, and not only those that took a second."""
    for kept in (False, True):
        variables = cache_variables(Path("/c/3"), kept=kept)
        assert (variables["TRITON_CACHE_DIR"], variables["JAX_COMPILATION_CACHE_DIR"]) == ("/c/3/triton", "/c/3/jax")
        assert variables["JAX_ENABLE_COMPILATION_CACHE"] == str(kept).lower()
        assert variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"


def test_what_pins_or_switches_off_one_side_does_not_reach_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of both sides are the job's CPUs, or what MEASUREMENT_THREADS says."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)))
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 3.5)
    for name, value in (("JAX_DISABLE_JIT", "1"), ("GOMP_CPU_AFFINITY", "0"), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    for threads, expected in (("", "3"), ("2", "2"), ("0", "3"), ("many", "3")):
        monkeypatch.setenv(cpus.THREADS, threads)
        environment = child_environment()
        assert (environment["OMP_NUM_THREADS"], environment["NPROC"]) == (expected, expected)
        assert not {"JAX_DISABLE_JIT", "GOMP_CPU_AFFINITY"} & environment.keys()


@pytest.mark.parametrize(
    ("ranks", "of_slurm", "threads"), [(1, False, "8"), (3, False, "2"), (16, False, "1"), (3, True, "5")]
)
def test_ranks_of_one_machine_share_its_cpus(
    ranks: int, of_slurm: bool, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal parts for both frameworks' threads; at least one. A task of Slurm has its own CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(cpus, "cpu_quota", lambda: None)
    monkeypatch.delenv(cpus.THREADS)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "5")
    variables = threads_of_rank(World(size=ranks), of_slurm=of_slurm)
    assert variables == {"OMP_NUM_THREADS": threads, "NPROC": threads}


# A task of a step.

TASK = """\
import subprocess, time
from harness.job.main import end_with_stdin
end_with_stdin()
print(subprocess.run(["cat"], capture_output=True, timeout=60).stdout, flush=True)
time.sleep(600)
"""


def test_a_task_lives_as_long_as_its_stdin() -> None:
    """What comes on it later does not end it, and what it starts has an empty one."""
    with subprocess.Popen(
        [sys.executable, "-c", TASK], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as task:
        assert task.stdout.readline() == b"b''\n"
        task.stdin.write(b"more\n")
        task.stdin.flush()
        time.sleep(0.2)
        assert task.poll() is None
        task.stdin.close()
        assert task.wait(patience(10)) == -signal.SIGKILL


def worked(plan: JobPlan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """The outcome of the first measurement, and what was told meanwhile."""
    monkeypatch.setattr(children, "use_case", lambda _name: SimpleNamespace(mode=lambda *_: MODE))
    told: list[str] = []
    made = children.Children(plan, folder, while_waiting=lambda: None, tell=told.append)
    task = ChildTask(measurement=next(plan.measurements()), data_dir="data")
    return made.work(task, folder / "log", lambda _event: None).outcome, told


# A step that Slurm's controller does not start.

SRUN = """\
echo run >> $here/calls
[ $(wc -l < $here/calls) -le {failures} ] || {{ echo 'srun: error: Invalid account' >&2; exit 1; }}
echo 'srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)' >&2
echo 'srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7' >&2
exit 1
"""


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (1, 2), (9, 4)])
def test_a_step_waits_for_a_controller_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, calls: int
) -> None:
    """And is tried again, three times at most; any other refusal is an answer. The controller answers when it is asked
    for the second time. srun has ended by the time that it is given the task."""

    def say_late(self: ChildTask) -> str:
        time.sleep(0.3)
        return dump(self)

    dump = ChildTask.model_dump_json
    monkeypatch.setattr(ChildTask, "model_dump_json", say_late)
    ping = 'echo ask >> $here/asked; [ $(wc -l < $here/asked) -lt 2 ] || echo "Slurmctld(primary) at x is UP"'
    programs(tmp_path, srun=SRUN.format(failures=failures), scontrol=ping)
    monkeypatch.setattr(children, "ASK_CONTROLLER_EVERY_S", 0.05)
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    for name, value in ({"PATH": f"{tmp_path}:/usr/bin:/bin"} | allocation).items():
        monkeypatch.setenv(name, value)
    plan = BehavingProject(root=tmp_path).plan()
    plan = plan.model_copy(update={"cell": plan.cell.model_copy(update={"devices": 2})})
    outcome, told = worked(plan, tmp_path, monkeypatch)
    assert (outcome, len((tmp_path / "calls").read_text().split())) == ("failed", calls)
    assert bool(told) == (failures > 0)
    assert all(words.startswith("waits for Slurm's controller") for words in told)


# Out of memory.

FULL_AT_FIRST = """\
import json, os, sys
from pathlib import Path
sys.stdin.readline()
variables = [os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "XLA_PYTHON_CLIENT_PREALLOCATE")]
with Path("tries").open("a") as tries:
    tries.write(json.dumps(variables) + "\\n")
fits = Path("fits").exists() and len(Path("tries").read_text().splitlines()) > 1
error = {"outcome": "refused" if fits else "out_of_memory", "reason": "told"}
print("MARK 0 1/1", json.dumps({"kind": "error", "content": error}), flush=True)
"""


IN_ONE_PIECE = "out of memory; once more, with the GPU's memory in one piece"
FIRST: list[str | None] = [None, "false"]
OF_USER = "max_split_size_mb:64"


@pytest.mark.parametrize(
    ("framework", "fits", "gpu_bytes", "of_user", "tries"),
    [
        ("jax", True, 2**33, None, [FIRST, [None, "true"]]),
        ("torch", True, 2**33, None, [FIRST, ["expandable_segments:True", "false"]]),
        ("torch", False, 2**33, None, [FIRST, ["expandable_segments:True", "false"]]),
        ("torch", False, None, None, [FIRST]),
        ("torch", False, 2**33, OF_USER, [[OF_USER, "false"]]),
    ],
    ids=["JAX", "PyTorch", "it does not fit", "no GPU", "an allocator of the user's"],
)
def test_out_of_memory_is_believed_when_memory_had_no_gaps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    framework: Framework,
    fits: bool,
    gpu_bytes: int | None,
    of_user: str | None,
    tries: list[list[str | None]],
) -> None:
    """Each framework has its own allocator, and its own way against fragments. The first try finds a full device."""
    (tmp_path / f"{framework}_runner").mkdir()
    (tmp_path / f"{framework}_runner" / "run.py").write_text(FULL_AT_FIRST.replace("MARK", MARK))
    monkeypatch.setattr(children, "REPOSITORY", tmp_path)
    monkeypatch.setattr(children, "gpu_memory_bytes", lambda: gpu_bytes)
    if of_user:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", of_user)
    if fits:
        (tmp_path / "fits").touch()
    outcome, told = worked(BehavingProject(root=tmp_path).plan(framework=framework), tmp_path, monkeypatch)
    assert outcome == ("refused" if fits else "out_of_memory")
    assert [json.loads(line) for line in (tmp_path / "tries").read_text().splitlines()] == tries
    assert told == [IN_ONE_PIECE] * (len(tries) - 1)
