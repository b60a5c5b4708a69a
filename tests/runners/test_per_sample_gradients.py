"""Use case 3 on both sides against one reference: torch.autograd, sample by sample, in float64.

The modes run in float64 here, so that only a mistake can make a difference. What a mode gives for a batch says all of
it: the order of the samples, what is of which sample, and what is clipped.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from jax import numpy as jnp
from torch.nn import functional as F

from harness.plan import Framework
from harness.work.applies import why_not
from harness.work.benchmarks.mnist import BENCHMARK as MNIST
from harness.work.closeness import relative_error
from harness.work.use_cases.per_sample_gradients import USE_CASE
from jax_runner.use_cases import per_sample_gradients as jax_use_case
from tests.made.captures import allow_captures, only_trace
from tests.made.numbers import TOLERANCE, Numbers, OneByOne, one_by_one
from tests.made.sessions import build, make_session, measure, with_small_images
from torch_runner.use_cases import per_sample_gradients as torch_use_case
from torch_runner.weights import to_neutral

pytestmark = pytest.mark.takes(30)

CLIP_NORM = 80.0
"""Among the norms of the first samples, which are 11 to 148: some are clipped, some are not."""
CHUNK_SIZE, BATCH_SIZE = 3, 7
"""Two chunks and a rest of one."""
PLAIN_MODE: dict[Framework, str] = {"jax": "vmap.jit", "torch": "vmap.eager"}
MODULES: dict[str, Any] = {"jax": jax_use_case, "torch": torch_use_case}


MODES = [
    (framework, mode.name)
    for framework in PLAIN_MODE
    for mode in USE_CASE.modes[framework]
    if not mode.run.process_per_node
    and mode.formulation != "batch"
    and mode.run_as != "max_autotune"
    and (mode.graph == "none" or (framework == "torch" and mode.run_as == "eager"))
    and (mode.formulation != "chunked_outer_product" or mode.name.endswith(".eager"))
]
"""For one device. Those of a GPU run as tests/made/captures.py has it: compiled or captured, and not both; XLA takes no
options for GPUs on a CPU. Chunks of outer products are made as those of other formulations."""
BATCH_MODES = [("jax", "batch.jit"), *(("torch", f"batch.{run}") for run in ("eager", "eager_graph", "compiled_graph"))]


@pytest.fixture
def every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_captures(monkeypatch)
    only_trace(monkeypatch)


@cache
def compute(framework: Framework, mode: str, output: str, batch_size: int = BATCH_SIZE) -> Numbers:
    """What the program that is timed gives for the first samples, in neutral layout."""
    asked = {"execution_mode": mode, "options": {"output": output}, "batch_size": batch_size}
    settings = {"clip_norm": CLIP_NORM, "chunk_size": CHUNK_SIZE}
    numbers = build(make_session(framework, "per_sample_gradients", precision="fp64", **asked, **settings)).parity()
    return {name.rpartition("/")[2]: numbers[name] for name in numbers if name not in ("outputs", "loss")}


@cache
def loop(batch_size: int, benchmark: str) -> OneByOne:
    session = make_session(
        "torch", "per_sample_gradients", benchmark=benchmark, batch_size=batch_size, precision="fp64"
    )
    return one_by_one(build(with_small_images(session)).problem, batch_size, F.cross_entropy)


def expected(output: str, batch_size: int = BATCH_SIZE, benchmark: str = "mnist") -> Numbers:
    return loop(batch_size, benchmark).output(output, CLIP_NORM)


@pytest.mark.usefixtures("every_mode")
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_mode_is_the_loop(framework: Framework, mode: str) -> None:
    """Where torch.compile traces, one output stands for all."""
    declared = USE_CASE.mode(framework, mode)
    traced = framework == "torch" and declared.run_as != "eager"
    for output in ("clipped_sum",) if traced else ("norms", "full", "clipped_sum"):
        if why_not(USE_CASE, MNIST, MNIST.model("cnn"), declared, "fp32", {"output": output}, 1) is None:
            assert relative_error(compute(framework, mode, output), expected(output)) < TOLERANCE, output


@pytest.mark.usefixtures("every_mode")
@pytest.mark.parametrize(("framework", "mode"), BATCH_MODES)
def test_batch_gradient_is_the_mean_of_the_loop(framework: Framework, mode: str) -> None:
    assert relative_error(compute(framework, mode, "batch_gradient"), expected("batch_gradient")) < TOLERANCE


@pytest.mark.parametrize("output", ["full", "clipped_sum"])
@pytest.mark.parametrize("framework", PLAIN_MODE)
def test_chunks_without_a_rest_and_a_rest_alone(framework: Framework, output: str) -> None:
    mode = {"jax": "chunked.jit", "torch": "chunked.eager"}[framework]
    for batch_size in (2 * CHUNK_SIZE, CHUNK_SIZE - 1):
        actual = compute(framework, mode, output, batch_size)
        assert relative_error(actual, expected(output, batch_size)) < TOLERANCE, batch_size


@pytest.mark.parametrize("traced", [False, True])
def test_outer_products_of_cifar10_are_the_loop(traced: bool) -> None:
    """Convolutions behind each other, and pooling between them; also as torch.compile sees it, uncompiled."""
    session = make_session("torch", "per_sample_gradients", benchmark="cifar10", batch_size=3, precision="fp64")
    problem = build(with_small_images(session)).problem
    per_sample = torch_use_case.outer_product(problem, traced=traced)
    actual = to_neutral(per_sample(*problem.batch(np.arange(3))))
    assert relative_error(actual, expected("full", 3, "cifar10")) < TOLERANCE


TINY = {"w": [[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], "b": [[4.0], [0.0], [0.0]]}
"""Three samples of norms 5, 1 and 0."""


@pytest.mark.parametrize(("framework", "array"), [("jax", jnp.asarray), ("torch", torch.tensor)], ids=["jax", "torch"])
def test_clip_factor_by_hand(framework: str, array: Callable[[Any], Any]) -> None:
    gradients = {name: array(value) for name, value in TINY.items()}
    reduce_gradients = MODULES[framework].reduce_gradients
    np.testing.assert_allclose(np.asarray(reduce_gradients(gradients, "norms", 2.0)["norms"]), [5, 1, 0], rtol=1e-6)
    # Factors 2 / 5, 1 and 1; a sample without a gradient divides nothing by zero, and none is lengthened.
    clipped = reduce_gradients(gradients, "clipped_sum", 2.0)
    np.testing.assert_allclose(np.asarray(clipped["w"]), [1.2, 1.0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(clipped["b"]), [1.6], rtol=1e-6)


@pytest.mark.parametrize(
    ("framework", "mode", "output"),
    [
        ("jax", "vmap.jit", "full"),
        ("jax", "grouped.jit", "clipped_sum"),
        ("torch", "vmap.eager", "clipped_sum"),
    ],
)
def test_whole_use_case_passes_its_check(framework: Framework, mode: str, output: str) -> None:
    """In float32, as it is timed."""
    options = {"output": output}
    result = measure(
        make_session(framework, "per_sample_gradients", batch_size=10, execution_mode=mode, options=options)
    )
    assert all(check.passed for check in result.checks)
    _, typical, worst = result.checks
    of = "10 samples" if output == "full" else "8 tensors"
    assert typical.name == f"{output} against the float64 loop, median over {of}"
    assert 0 < typical.error <= worst.error <= 2e-3
    assert result.recompiles == 0
    assert result.parameter_count == 26_010
    assert result.blocks_alone is None
