"""PyTorch's CUDA build on a machine without a GPU (docs/fake-gpu.md). pytest's own process stays as it is: what runs on
the fake is a process of its own, and its answers serve all files of these tests.

FAKE_GPU_FOLDER=...: the library and the compilers' caches stay there; else they go with the run.
REQUIRE_FAKE_GPU=1: where the fake cannot be made, these tests fail instead of being skipped.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import locks
from harness.errors import ProjectError
from harness.fake_gpu import build as making
from harness.fake_gpu.environment import environment
from harness.job.children import child_environment
from harness.measure.gpu import Gpu, open_gpu
from harness.work.cards import card as card_of
from tests.fake_gpu.steps import BY_DAY, Step, run_steps
from tests.made.processes import output_of

Environment = Callable[..., dict[str, str]]
Started = Callable[..., Any]
Steps = Callable[[str, Sequence[Step]], dict[str, dict[str, Any]]]


def why_not() -> str | None:
    if isinstance(open_gpu(), Gpu):
        return "there is a real GPU here, and tests/gpu are for it"
    return making.why_not()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fake_gpu"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def library(shared: Path) -> Path:
    """The folder of the fake libraries."""
    why = why_not()
    if why is None:
        try:
            return making.build(Path(os.environ.get(making.FOLDER) or shared))
        except ProjectError as error:
            pytest.fail(str(error), pytrace=False)
    if os.environ.get("REQUIRE_FAKE_GPU") == "1":
        pytest.fail(f"REQUIRE_FAKE_GPU=1, and {why}", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def on_card(library: Path) -> Environment:
    """The variables of a process on a card, by its name."""

    def variables(name: str, devices: int = 1) -> dict[str, str]:
        return child_environment() | environment(library, card_of(name), devices)

    return variables


@pytest.fixture(scope="session")
def own_variables(library: Path) -> dict[str, str]:
    """Of a process that makes the fake itself, where these tests keep it."""
    return child_environment() | {making.FOLDER: str(library.parent)}


@pytest.fixture(scope="session")
def ask(on_card: Environment) -> Started:
    """What a module of these tests answers as JSON, run as a process on the fake."""

    def answer(module: str, *arguments: str, name: str = "a100", devices: int = 1, **variables: str) -> Any:
        return json.loads(output_of("-m", module, *arguments, env=on_card(name, devices) | variables, quiet_s=300))

    return answer


@pytest.fixture(scope="session")
def steps(shared: Path, on_card: Environment) -> Steps:
    """What each program of a list did on a card, by its name; the first who asks runs them all, in one process."""

    def of(card: str, wanted: Sequence[Step]) -> dict[str, dict[str, Any]]:
        with locks.hold(shared / f"{card}.lock", while_waiting=lambda _: None):
            run_steps(wanted, shared / card, on_card(card))
        return {step.name: json.loads(step.path(shared / card).read_text()) for step in wanted}

    return of


@pytest.fixture(scope="session")
def by_day(steps: Steps) -> dict[str, dict[str, Any]]:
    """Of an A100."""
    return steps("a100", BY_DAY)
