"""PyTorch's CUDA build on a machine without a GPU (README.md). pytest's own process stays as it is: what runs on
the fake is a process of its own, and its answers serve all files of these tests.

FAKE_CUDA_FOLDER=...: the library and the compilers' caches stay there; else they go with the run.
REQUIRE_FAKE_CUDA=1: where the fake cannot be made, these tests fail instead of being skipped.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.job.children import child_environment
from harness.measure.gpu import Gpu, open_gpu
from tests.fake_cuda import build as making
from tests.fake_cuda.environment import environment
from tests.made.gpu_specs import GPU_SPECS
from tests.made.processes import output_of

Environment = Callable[..., dict[str, str]]
Started = Callable[..., Any]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libraries, one for all workers of this run."""
    why = "there is a real GPU here, and tests/gpu are for it" if isinstance(open_gpu(), Gpu) else making.why_not()
    if why is None:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fake_cuda"
        return making.build(Path(os.environ.get("FAKE_CUDA_FOLDER") or folder))
    if os.environ.get("REQUIRE_FAKE_CUDA") == "1":
        pytest.fail(f"REQUIRE_FAKE_CUDA=1, and {why}", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def on_card(library: Path) -> Environment:
    """The variables of a process on a GPU, by its name."""

    def variables(name: str, devices: int = 1) -> dict[str, str]:
        return child_environment() | environment(library, GPU_SPECS[name], devices)

    return variables


@pytest.fixture(scope="session")
def ask(on_card: Environment) -> Started:
    """What Python with these arguments answers as JSON on the fake."""

    def answer(*arguments: str, name: str = "a100", devices: int = 1, **variables: str) -> Any:
        return json.loads(output_of(*arguments, env=on_card(name, devices) | variables, quiet_s=300))

    return answer
