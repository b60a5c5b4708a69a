"""Use case 3 on both sides against one reference: torch.autograd, sample by sample, in float64.

The modes run in float64 here, so that only a mistake can make a difference.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.nn import functional as F

from harness import session as harness_session
from harness.errors import CheckFailed, Refused
from harness.gradient_check import relative_error
from jax_runner.use_cases import per_sample_gradients as jax_use_case
from jax_runner.weights import arrays_of
from tests.runners.sessions import make_session
from torch_runner.use_cases import per_sample_gradients as torch_use_case
from torch_runner.weights import to_neutral as torch_to_neutral

Gradients = dict[str, np.ndarray]

CLIP_NORM = 80.0
"""Among the norms of the first samples, which are 11 to 148: some are clipped, some are not."""
ROWS = list(range(19))
"""Two chunks of 8 and a rest of 3."""
OUTPUTS = ("norms", "full", "clipped_sum")
MODES = [
    ("jax", "jit"),
    ("jax", "outer_product"),
    ("jax", "chunked"),
    ("torch", "eager"),
    ("torch", "outer_product"),
    ("torch", "chunked"),
    ("torch", "loop"),
]
TOLERANCE = 1e-6
"""Of float32: either side normalises the images in it, and outer_product returns it whatever it computes in."""
MODULES: dict[str, Any] = {"jax": jax_use_case, "torch": torch_use_case}


def compute(
    framework: str, mode: str, output: str, rows: list[int], *, benchmark: str = "mnist", chunk_size: int = 8
) -> Gradients:
    """What the function that is timed returns for these rows of the training set, in float64 and neutral layout."""
    return prepare(framework, mode, output, benchmark, chunk_size)(rows)


@cache
def prepare(
    framework: Any, mode: str, output: str, benchmark: str, chunk_size: int
) -> Callable[[list[int]], Gradients]:
    """Kept, so that a shape is compiled once for all tests."""
    problem = MODULES[framework].Problem(make_session(framework, "per_sample_gradients", benchmark=benchmark))
    arguments: dict[str, Any] = {"clip_norm": CLIP_NORM, "chunk_size": chunk_size}
    if framework == "torch":
        problem.model.double()
        problem.params = {name: parameter.detach() for name, parameter in problem.model.named_parameters()}
        torch_function = torch_use_case.make_function(problem, mode, output, **arguments)

        def compute_with_torch(rows: list[int]) -> Gradients:
            images, labels = problem.batch(rows)
            return torch_to_neutral(torch_function(images.double(), labels))

        return compute_with_torch

    with jax.enable_x64(True):
        problem.model = problem.make_model({"dtype": jnp.float64, "param_dtype": jnp.float64})
        problem.graphdef, problem.params = nnx.graphdef(problem.model), arrays_of(problem.model)
        jax_function = jax.jit(jax_use_case.make_function(problem, mode, output, **arguments))

    def compute_with_jax(rows: list[int]) -> Gradients:
        images, labels = problem.batch(rows)
        with jax.enable_x64(True):
            return problem.to_neutral(jax_function(problem.params, images.astype(jnp.float64), labels), output)

    return compute_with_jax


def loop(rows: list[int], benchmark: str) -> list[Gradients]:
    """The gradient of each sample's loss, by plain autograd on the plain model."""
    problem = torch_use_case.Problem(make_session("torch", "per_sample_gradients", benchmark=benchmark))
    model = problem.model.double()
    gradients = []
    for image, label in zip(*problem.batch(rows), strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None].double()), label[None]).backward()
        gradients.append({name: p.grad.cpu().numpy().copy() for name, p in model.named_parameters()})
    return gradients


def expected(rows: list[int], output: str, benchmark: str = "mnist") -> Gradients:
    gradients = loop(rows, benchmark)
    norms = np.array([np.sqrt(sum((g**2).sum() for g in gradient.values())) for gradient in gradients])
    assert norms.min() < CLIP_NORM < norms.max(), norms  # some are clipped, some are not
    if output == "norms":
        return {"norms": norms}
    if output == "full":
        return {name: np.stack([gradient[name] for gradient in gradients]) for name in gradients[0]}
    weights = np.minimum(1, CLIP_NORM / norms) if output == "clipped_sum" else np.full(len(rows), 1 / len(rows))
    return {name: sum(w * g[name] for w, g in zip(weights, gradients, strict=True)) for name in gradients[0]}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_mode_is_the_loop(framework: str, mode: str, output: str) -> None:
    assert relative_error(compute(framework, mode, output, ROWS), expected(ROWS, output)) < TOLERANCE


@pytest.mark.parametrize(("framework", "mode"), [("jax", "jit"), ("torch", "eager")])
def test_batch_gradient_is_the_mean_of_the_loop(framework: str, mode: str) -> None:
    actual = compute(framework, mode, "batch_gradient", ROWS)
    assert relative_error(actual, expected(ROWS, "batch_gradient")) < TOLERANCE


@pytest.mark.parametrize("output", ["full", "clipped_sum"])
@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize(("rows", "chunk_size"), [(16, 8), (3, 8)], ids=["whole", "rest only"])
def test_chunks_of_any_size(framework: str, output: str, rows: int, chunk_size: int) -> None:
    chunked = compute(framework, "chunked", output, ROWS[:rows], chunk_size=chunk_size)
    whole = compute(framework, {"jax": "jit", "torch": "eager"}[framework], output, ROWS[:rows])
    assert relative_error(chunked, whole) < 1e-9


@pytest.mark.parametrize(
    ("framework", "mode"), [("jax", "jit"), ("jax", "outer_product"), ("torch", "eager"), ("torch", "outer_product")]
)
def test_cifar10_network_too(framework: str, mode: str) -> None:
    rows = [0, 1, 2]
    actual = compute(framework, mode, "full", rows, benchmark="cifar10")
    gradients = loop(rows, "cifar10")
    reference = {name: np.stack([gradient[name] for gradient in gradients]) for name in gradients[0]}
    assert relative_error(actual, reference) < TOLERANCE


@pytest.mark.parametrize("mode", ["compiled", "outer_product_compiled", "chunked_compiled"])
def test_compiled_is_the_loop(mode: str) -> None:
    """Through torch.compile, which takes a while: one output stands for all."""
    assert relative_error(compute("torch", mode, "clipped_sum", ROWS), expected(ROWS, "clipped_sum")) < TOLERANCE


def test_outer_product_as_it_is_traced_is_the_loop() -> None:
    """As torch.compile sees it, uncompiled; with convolutions behind each other and pooling between them."""
    problem = torch_use_case.Problem(make_session("torch", "per_sample_gradients", benchmark="cifar10"))
    images, labels = problem.batch(ROWS)
    problem.model.double()
    actual = torch_to_neutral(torch_use_case.outer_product(problem, traced=True)(images.double(), labels))
    gradients = loop(ROWS, "cifar10")
    reference = {name: np.stack([gradient[name] for gradient in gradients]) for name in gradients[0]}
    assert relative_error(actual, reference) < TOLERANCE


def test_outer_product_compiled_passes_its_check() -> None:
    """In float32, and through the whole use case."""
    session = make_session(
        "torch",
        "per_sample_gradients",
        batch_size=10,
        execution_mode="outer_product_compiled",
        options={"output": "full"},
    )
    result = torch_use_case.run(session)
    assert result.checks[1].name.startswith("full against the float64 loop, median over ")
    assert all(check.passed for check in result.checks)
    assert result.recompiles == 0


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_full_in_another_order_is_the_same_in_that_order(framework: str, mode: str) -> None:
    order = np.random.default_rng(0).permutation(ROWS).tolist()
    straight = compute(framework, mode, "full", ROWS)
    permuted = compute(framework, mode, "full", order)
    assert relative_error(permuted, {name: value[order] for name, value in straight.items()}) < TOLERANCE


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_identical_samples_have_identical_gradients(framework: str, mode: str) -> None:
    full = compute(framework, mode, "full", [6, 2, 6, *ROWS[3:18], 6])  # in the first chunk and in the rest
    for value in full.values():
        scale = np.abs(value).max()
        np.testing.assert_allclose(value[0], value[2], rtol=0, atol=1e-7 * scale)
        np.testing.assert_allclose(value[0], value[18], rtol=0, atol=1e-7 * scale)
        assert np.abs(value[0] - value[1]).max() > 1e-3 * scale


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_norms_are_those_of_full(framework: str, mode: str) -> None:
    norms = compute(framework, mode, "norms", ROWS)["norms"]
    squares = sum(
        (value**2).sum(tuple(range(1, value.ndim))) for value in compute(framework, mode, "full", ROWS).values()
    )
    np.testing.assert_allclose(norms**2, squares, rtol=1e-6)


@pytest.mark.parametrize(("row", "clipped"), [(6, True), (17, False)])
@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_sample_alone_adds_its_gradient_up_to_the_clip_norm(
    framework: str, mode: str, row: int, clipped: bool
) -> None:
    (own_norm,) = compute(framework, mode, "norms", [row])["norms"]
    total = compute(framework, mode, "clipped_sum", [row])
    norm = np.sqrt(sum((value**2).sum() for value in total.values()))
    assert (own_norm > CLIP_NORM) == clipped
    assert norm == pytest.approx(CLIP_NORM if clipped else own_norm, rel=1e-6)
    assert norm <= CLIP_NORM * (1 + 1e-5)


TINY = {"w": [[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], "b": [[4.0], [0.0], [0.0]]}
"""Three samples of norms 5, 1 and 0."""


@pytest.mark.parametrize(("framework", "array"), [("jax", jnp.asarray), ("torch", torch.tensor)], ids=["jax", "torch"])
def test_clip_factor_by_hand(framework: str, array: Callable[[Any], Any]) -> None:
    gradients = {name: array(value) for name, value in TINY.items()}
    reduce_gradients = MODULES[framework].reduce_gradients
    np.testing.assert_allclose(np.asarray(reduce_gradients(gradients, "norms", 2.0)["norms"]), [5, 1, 0], rtol=1e-6)
    # Factors 2 / 5, 1 and 1; a sample without a gradient divides nothing by zero.
    clipped = reduce_gradients(gradients, "clipped_sum", 2.0)
    np.testing.assert_allclose(np.asarray(clipped["w"]), [1.2, 1.0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(clipped["b"]), [1.6], rtol=1e-6)
    only_the_first = {name: value[:1] for name, value in gradients.items()}
    for clip_norm, norm in ((2.0, 2.0), (5.0, 5.0), (9.0, 5.0)):  # never longer than C, and never lengthened
        clipped = reduce_gradients(only_the_first, "clipped_sum", clip_norm)
        actual = np.sqrt(sum((np.asarray(value, np.float64) ** 2).sum() for value in clipped.values()))
        assert actual == pytest.approx(norm, rel=1e-5)
        assert actual <= clip_norm * (1 + 1e-5)


@pytest.mark.parametrize(
    ("framework", "mode"),
    [
        *(("jax", mode) for mode in ("outer_product", "chunked")),
        *(
            ("torch", mode)
            for mode in ("outer_product", "outer_product_compiled", "chunked", "chunked_compiled", "loop")
        ),
    ],
)
def test_batch_gradient_has_no_per_sample_modes(framework: str, mode: str) -> None:
    with pytest.raises(Refused, match=f"batch_gradient has no execution mode {mode}"):
        compute(framework, mode, "batch_gradient", [0, 1])


@pytest.mark.parametrize("output", ["norms", "full", "clipped_sum", "batch_gradient"])
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_whole_use_case_passes_its_check(framework: Any, output: str) -> None:
    session = make_session(framework, "per_sample_gradients", batch_size=10, options={"output": output})
    result = MODULES[framework].run(session)
    assert all(check.passed for check in result.checks)
    _, typical, worst = result.checks
    of = "10 samples" if output in ("norms", "full") else "8 tensors"
    assert typical.name == f"{output} against the float64 loop, median over {of}"
    assert 0 < typical.error <= worst.error <= 2e-3
    assert result.recompiles == 0
    assert result.parameter_count == 26_010


@pytest.mark.parametrize("mistake", [2.0, -1.0, 0.0])
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_wrong_gradients_are_never_timed(framework: Any, mistake: float, monkeypatch: pytest.MonkeyPatch) -> None:
    module = MODULES[framework]
    right = module.reduce_gradients

    def wrong(*arguments: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * mistake, right(*arguments))

    def must_not_be_called(*_: Any, **__: Any) -> None:
        raise AssertionError("a wrong result was timed")

    monkeypatch.setattr(module, "reduce_gradients", wrong)
    monkeypatch.setattr(harness_session, "measure_steady", must_not_be_called)
    session = make_session(framework, "per_sample_gradients", options={"output": "full"})
    with pytest.raises(CheckFailed, match="full against the float64 loop, median over .*: relative error.*not timed"):
        module.run(session)
