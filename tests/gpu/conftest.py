"""On an NVIDIA GPU only: pytest's own process imports no framework, and each group of cases has a process.

REQUIRE_GPU=1: without a GPU these tests fail instead of being skipped.
GPU_CHECK=FOLDER (of tests/gpu/check.sh): logs and compilers' caches are kept in the folder, and what passed there with
the same GPU, driver, packages and commit is not run again.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.job.children import child_environment
from harness.measure.gpu import Gpu, open_gpu
from harness.results.environment import CACHE_FOLDERS, describe_environment
from tests.gpu.cases import Case, left_out
from tests.gpu.group import Answer, Answers, run_group


def why_no_gpu() -> str | None:
    gpu = open_gpu()
    return None if isinstance(gpu, Gpu) else f"needs an NVIDIA GPU: {gpu.absent}"


def list_of_passed() -> Path | None:
    """Return the file in the folder GPU_CHECK that names the tests that passed under these conditions."""
    if not os.environ.get("GPU_CHECK"):
        return None
    environment, gpu = describe_environment(), open_gpu().describe()
    conditions = [gpu.get("name"), gpu.get("driver_version"), environment["packages"], environment["git"]]
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    return Path(os.environ["GPU_CHECK"]) / f"passed-{digest[:8]}.txt"


PASSED = list_of_passed()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
    if PASSED and PASSED.exists():
        passed = set(PASSED.read_text().splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what need not be run again, at once: the time limit may end this process."""
    if PASSED and report.when == "call" and not report.failed:
        with PASSED.open("a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if PASSED and PASSED.exists() and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(autouse=True, scope="session")
def gpu_or_skip() -> None:
    if (why := why_no_gpu()) is not None:
        if os.environ.get("REQUIRE_GPU") == "1":
            pytest.fail(f"REQUIRE_GPU=1, and {why}", pytrace=False)
        pytest.skip(why)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As a measurement's process has it, with caches of compilers that all share, or equal programs would be compiled
    more than once."""
    folder = kept_or_temporary("caches", tmp_path_factory)
    caches = {name: str(folder / cache) for name, cache in CACHE_FOLDERS.items()}
    threads = max(1, (os.cpu_count() or 1) // workers())
    return child_environment() | caches | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}


@pytest.fixture(scope="session")
def answers(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Answers]:
    """Of a case; the first question starts the processes of all groups whose tests were chosen, some at a time. They
    compile most of the time, and nothing is timed."""
    groups: dict[str, list[str]] = {}
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        if isinstance(case, Case) and left_out(case) is None:
            groups.setdefault(case.group, []).append(case.name)
    logs = kept_or_temporary("logs", tmp_path_factory)
    with ThreadPoolExecutor(workers()) as pool:
        started: dict[str, Future[dict[str, Answer]]] = {
            group: pool.submit(run_group, names, logs / f"{group}.log", environment) for group, names in groups.items()
        }
        yield lambda case: started[case.group].result()[case.name]


def kept_or_temporary(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if PASSED is None:
        return tmp_path_factory.mktemp(name)
    folder = PASSED.parent / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def workers() -> int:
    return min(4, max(1, (os.cpu_count() or 1) // 2))
