"""What a record says of its code: that which its process imported, early or late, and nothing else. Real processes; the
framework in them is tests/made/fake_framework."""

import subprocess

import pytest

from harness.plan import Framework
from harness.results.record import Record
from pipeline.report.conditions import conditions, conditions_of_one_framework, side
from tests.made.patience import patience
from tests.made.project import BehavingProject, without_slurm

MODEL = "torch_runner/models/mnist.py"


@pytest.fixture
def with_models(repository: BehavingProject) -> BehavingProject:
    """Their models are files of their own, which are imported while a program is built."""
    for framework in ("jax", "torch"):
        name = f"{framework}_runner"
        (repository.root / name / "models").mkdir()
        (repository.root / name / "models" / "mnist.py").write_text("LAYERS = 2\n")
        (repository.root / name / "models" / "cifar10.py").write_text("LAYERS = 3\n")
        begin = "    name = session.mode.formulation\n    assert"
        imports = "    __import__(f'{session.measurement.framework}_runner.models.{session.benchmark.name}')\n"
        repository.change(f"{name}/use_cases/behave.py", (begin, imports + begin))
    return repository


def measured(repository: BehavingProject, framework: Framework = "torch") -> Record:
    """The newest record of it, after one more run."""
    folder = repository.job(repository.plan("well", framework=framework, force=True))
    run = f"{framework}_runner/run.py"
    done = subprocess.run(
        [run if one == "torch_runner/run.py" else one for one in repository.command(folder)],
        cwd=repository.root,
        env=without_slurm(),
        capture_output=True,
        text=True,
        timeout=patience(30),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(one for one in reversed(repository.records()) if one.measurement.framework == framework)


def code_of_pair(one: Record, other: Record) -> str:
    compare = conditions if one.measurement.framework != other.measurement.framework else conditions_of_one_framework
    return next(found.detail or found.state for found in compare([(side(one), side(other))]) if found.name == "code")


def test_a_new_benchmark_is_no_difference_and_a_change_of_what_was_imported_is(with_models: BehavingProject) -> None:
    first = measured(with_models)
    code = first.environment["code"]
    assert {
        "harness.measure.clock",
        "harness.work.benchmarks.mnist",
        "harness.work.use_cases.behave",
        "torch_runner.use_cases.behave",
        "torch_runner.models.mnist",
        "torch_runner.trace",  # after all that is timed
    } <= code.keys()
    assert not {"harness.work.benchmarks.cifar10", "torch_runner.models.cifar10", "harness.job.job"} & code.keys()

    for path in ("harness/work/benchmarks/mine.py", "torch_runner/models/mine.py", "jax_runner/models/mine.py"):
        (with_models.root / path).write_text("MINE = True\n")
    with_models.rewrite("torch_runner/models/cifar10.py", "LAYERS = 4\n")
    again = measured(with_models)
    assert again.environment["code"] == code
    assert code_of_pair(first, again) == "equal"

    of_jax = measured(with_models, "jax")
    assert "torch_runner.models.mnist" not in of_jax.environment["code"]
    assert code_of_pair(of_jax, again) == "equal"

    with_models.rewrite(MODEL, "LAYERS = 5\n")
    changed = measured(with_models)
    of_model = changed.environment["code"]["torch_runner.models.mnist"]
    assert changed.environment["code"] == code | {"torch_runner.models.mnist": of_model}
    assert code_of_pair(again, changed) == f"torch_runner.models.mnist {code['torch_runner.models.mnist']} / {of_model}"
    assert code_of_pair(of_jax, changed) == "equal"  # the runners are two


def test_what_is_timed_is_known_where_the_explanation_breaks_off(
    with_models: BehavingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_OF_TRACER", "dies")
    broken_off = measured(with_models)
    assert broken_off.result is not None and broken_off.result.explanation is None
    assert "torch_runner.models.mnist" in broken_off.environment["code"]
