"""The order in which a job does what it does, as one file that can be read without the code.

Everything of the job is real but the frameworks and the W&B client, which note each step
(tests/made/watched/order_of_execution.py). Time is simulated: the order is the same on a busy machine.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.paths import JobFolder
from harness.plan import Pair, Screening, WandbSettings
from tests.made.golden import require_golden
from tests.made.patience import patience, wait_until
from tests.made.project import BehavingProject
from tests.made.watched.order_of_execution import FILE, PAUSE, append, note_new_records

HERE = Path(__file__).parent
WATCHED = HERE.parents[1] / "made" / "watched"
HEADER = """\
# What a job does, in its order: a line for each piece of work, with its steps from left to right.
#
# The job compares JAX and PyTorch on one model. A mode is a way to execute the same step: `standard` is what most
# people type, `fast` takes half as long, `slowest` five times as long. Parity numbers are what both frameworks must
# agree on before a mode is timed. A replicate is a full measurement of a mode in a fresh process. A screening is a
# short one, which decides what has replicates: the standard mode, and whatever may still be the fastest.
#
#   |          a new process: one for each measurement, and two for a start from filled caches
#   compile    the first calls, with empty compiler caches        recompile  the same with filled ones
#   check      compare the outputs with a reference in float64    time       warm up, and time the steps
#   predict    run the test set                                   phases     time the parts of a step, one by one
#   explain    run the framework's profiler                       store      write the record
#   notify     send the numbers to W&B
"""
ACCEPT = """\
#
# To accept a change: ACCEPT=1 python -m pytest -n 0 tests/harness/job/test_order_of_execution.py

"""
ON_THE_KILL = """\
#
# Here the job is killed while it times PyTorch's second replicate, and started again, as Slurm does with a lost node.
"""
KILLED_AT = "measure torch standard, replicate 2: time"


def watched_job(
    project: BehavingProject, monkeypatch: pytest.MonkeyPatch, jax: Sequence[str], torch: Sequence[str]
) -> tuple[JobFolder, Path]:
    """Return the job's folder, and the file with its steps."""
    end = '"torch": FORMULATIONS}'
    standard = end + ', headline={"jax": "standard.eager", "torch": "standard.eager"}'
    project.change("harness/work/use_cases/behave.py", (end, standard))
    file = project.root / "order_of_execution"
    monkeypatch.setenv(FILE, str(file))
    monkeypatch.setenv("PYTHONPATH", str(WATCHED), prepend=os.pathsep)
    pair = project.pair(jax, torch, replicates=2)
    changes = {
        "cell": pair.cell.model_copy(update={"gpu": "cpu"}),
        "quick": False,
        "screening": Screening(always=("standard.eager",)),
        "wandb": WandbSettings(mode="online"),
    }
    jobs = tuple(plan.model_copy(update=changes) for plan in pair.jobs)
    return project.job(Pair(cell=changes["cell"], jobs=jobs)), file


def run(project: BehavingProject, folder: JobFolder, file: Path) -> None:
    append(file, "start the job", "")
    status, output = project.resume(folder)
    assert status == 0, output
    note_new_records(file)
    append(file, "end the job", "")


def lines_of(file: Path) -> Iterator[str]:
    """Yield one line for the steps of one piece of work that follow each other."""
    pairs = [line.partition(": ")[::2] for line in file.read_text().splitlines()]
    for what, group in itertools.groupby(pairs, lambda pair: pair[0]):
        steps = " ".join(step for _, step in group)
        yield f"{what}: {steps.removeprefix('| ')}".removesuffix(": ")


def text_of(file: Path) -> str:
    return "".join(f"{line}\n" for line in lines_of(file))


def test_the_order_of_an_undisturbed_job(repository: BehavingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = watched_job(repository, monkeypatch, ("standard", "slowest"), ("standard", "fast", "slowest"))
    run(repository, folder, file)
    require_golden(HERE / "order_of_execution.txt", HEADER + ACCEPT + text_of(file), __file__)


def test_the_order_after_a_kill(repository: BehavingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = watched_job(repository, monkeypatch, ("standard",), ("standard", "fast"))
    append(file, "start the job", "")
    monkeypatch.setenv(PAUSE, KILLED_AT)
    with repository.start(folder) as process:
        wait_until(file.with_name("paused").exists, "the step at which it is killed", file.read_text, quiet_s=60)
        process.kill()
        process.communicate(timeout=patience(30))
    append(file, "the job is killed", "")
    monkeypatch.delenv(PAUSE)
    run(repository, folder, file)
    text = HEADER + ON_THE_KILL + ACCEPT + text_of(file)
    require_golden(HERE / "order_of_execution_after_a_kill.txt", text, __file__)
    stored = [line for line in file.read_text().splitlines() if line.endswith(": store")]
    assert len(stored) == len(set(stored)) == 8  # 3 modes in 2 replicates, and 2 screenings of PyTorch
