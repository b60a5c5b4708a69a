"""GPT in both frameworks: the same numbers in float64, the same recipe in bf16, and mistakes that the gate catches."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.nn import functional as F

from harness.errors import Refused
from harness.measure.process import gate_session
from harness.plan import Framework
from harness.results.parity import compare, gate_measurement, judge
from harness.work.benchmarks import enwik8
from harness.work.closeness import relative_error
from harness.work.use_cases.per_sample_gradients import Settings
from jax_runner import ghost as jax_ghost
from jax_runner.device import model_dtypes
from jax_runner.models.gpt import Gpt as JaxGpt
from jax_runner.task import NextToken as JaxNextToken
from jax_runner.use_cases.per_sample_gradients import by_layers, vmapped
from jax_runner.weights import arrays_of, load_weights
from jax_runner.weights import to_neutral as jax_to_neutral
from tests.made.captures import only_trace
from tests.made.numbers import TOLERANCE, Numbers, OneByOne, gated, one_by_one, require_same
from tests.made.operators import Operators
from tests.made.sessions import build, make_session, with_variant
from tests.made.small_gpt import use_small_gpt
from torch_runner import ghost as torch_ghost
from torch_runner.models import attention_of, with_attention
from torch_runner.models import gpt as torch_gpt
from torch_runner.task import NextToken
from torch_runner.use_cases.per_sample_gradients import outer_product
from torch_runner.weights import load_weights as load_torch_weights
from torch_runner.weights import to_neutral

SAMPLES = 4


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_small_gpt(patch)
        yield


def session_of(framework: Framework, use_case: str, **arguments: Any) -> Any:
    return make_session(framework, use_case, benchmark="enwik8", model="gpt_nano", **arguments)


# Float64


def test_training_is_the_same_in_float64() -> None:
    """Logits, loss, gradients and five steps of SGD, with the windows of both frameworks."""
    ours = build(session_of("jax", "train", batch_size=SAMPLES, precision="fp64")).parity()
    theirs = build(session_of("torch", "train", batch_size=SAMPLES, precision="fp64")).parity()
    assert theirs["outputs"].shape == (SAMPLES, 64, 256)
    assert sum(name.startswith("gradients/") for name in theirs) == 2 + 6 + 1  # of the head there is none
    require_same(ours, theirs)
    losses = theirs["losses_of_steps"]
    assert losses[0] == pytest.approx(np.log(256), rel=0.01) and (np.diff(losses) < 0).all()


def test_no_logit_depends_on_a_later_token() -> None:
    """Of PyTorch's; JAX's are the same."""
    size = enwik8.SIZES["gpt_nano"]
    module = torch_gpt.Gpt(size).double()
    load_torch_weights(module, partial(size.initial_weight, 1))
    tokens = torch.from_numpy(np.random.RandomState(0).randint(0, 256, (1, 16)))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    with torch.no_grad():
        difference = (module(tokens) - module(changed))[0].abs().amax(-1)
    assert difference[:9].max() < 1e-13 and difference[9:].min() > 1e-6


# Per-sample gradients


@pytest.fixture(scope="module")
def loop() -> OneByOne:
    return one_by_one(make_problem("torch"), SAMPLES)


def make_problem(framework: Framework) -> Any:
    mode = {"jax": "vmap.jit", "torch": "loop.eager"}[framework]
    return build(session_of(framework, "per_sample_gradients", execution_mode=mode, precision="fp64")).problem


@pytest.mark.parametrize("traced", [False, True])
def test_torch_is_the_loop(loop: OneByOne, traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_ghost.SLICE_BYTES, "cpu", 1)  # from one sample at a time
    rows, clip_norm = np.arange(SAMPLES), float(np.median(loop.norms))
    for output in ("norms", "clipped_sum"):
        problem = make_problem("torch")
        actual = to_neutral(torch_ghost.ghost(problem, output, clip_norm, traced=traced)(*problem.batch(rows)))
        assert relative_error(actual, loop.output(output, clip_norm)) < TOLERANCE
    problem = make_problem("torch")
    actual = to_neutral(outer_product(problem, traced=traced)(*problem.batch(rows)))
    assert relative_error(actual, loop.full) < TOLERANCE


def test_jax_is_the_loop(loop: OneByOne, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jax_ghost.SLICE_BYTES, "cpu", 1)  # from one sample at a time
    problem, clip_norm = make_problem("jax"), float(np.median(loop.norms))
    batch = problem.batch(np.arange(SAMPLES))
    settings = Settings(chunk_size=1, clip_norm=clip_norm)
    clipped = jax.jit(jax_ghost.ghost(problem, "clipped_sum", settings))(problem.params, *batch)
    assert relative_error(problem.to_neutral(clipped), loop.output("clipped_sum", clip_norm)) < TOLERANCE
    for function in (by_layers(problem, "outer_product"), vmapped(problem)):
        full = problem.to_neutral(jax.jit(function)(problem.params, *batch), leading_axes=1)
        assert relative_error(full, loop.full) < TOLERANCE


# bf16


def test_both_frameworks_have_one_recipe_in_bf16() -> None:
    """Logits and gradients of one loss: of the right dtypes, and no farther from each other than from float64."""
    size = enwik8.SIZES["gpt_nano"]
    draw = partial(size.initial_weight, 1)
    window = np.random.RandomState(0).randint(0, 64, (4, 65))
    found: dict[str, Numbers] = {}
    for name, dtype in (("float64", torch.float64), ("torch", torch.float32)):
        module = torch_gpt.Gpt(size).to(dtype)
        load_torch_weights(module, draw)
        seen: dict[str, torch.Tensor] = {}
        module.h.register_forward_hook(lambda _module, _inputs, output, seen=seen: seen.update(residual=output))
        tokens = torch.from_numpy(window)
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "torch"):
            logits = module(tokens[:, :-1])
        NextToken().mean_loss(logits, tokens[:, 1:]).backward()
        found[name] = to_neutral({parameter: value.grad for parameter, value in module.named_parameters()})
        expected = torch.bfloat16 if name == "torch" else torch.float64
        assert logits.dtype == seen["residual"].dtype == expected and module.wte.weight.grad.dtype == dtype
    model: Any = nnx.eval_shape(lambda: JaxGpt(size, model_dtypes("bf16")))
    load_weights(model, draw)
    graphdef = nnx.graphdef(model)

    def loss(params: Any) -> jax.Array:
        logits = nnx.merge(graphdef, params)(jnp.asarray(window[:, :-1]))
        assert logits.dtype == jnp.bfloat16
        return JaxNextToken().mean_loss(logits, jnp.asarray(window[:, 1:]))

    gradients = jax.jit(jax.grad(loss))(arrays_of(model))
    assert gradients["wte"]["embedding"].dtype == jnp.float32
    found["jax"] = jax_to_neutral(gradients, {})
    of_torch, of_jax = (relative_error(found[name], found["float64"]) for name in ("torch", "jax"))
    assert 1e-4 < of_torch < 2e-2 and 1e-4 < of_jax < 2e-2
    assert relative_error(found["jax"], found["torch"]) < 1.5 * max(of_torch, of_jax)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_of_inference_is_one_kernel(dtype: torch.dtype) -> None:
    layer, inputs = torch_gpt.LayerNorm(64).to(dtype), torch.randn(16, 64).to(dtype)
    with torch.no_grad(), Operators() as seen:
        layer(inputs)
    assert [str(operator) for operator, _ in seen.calls] == ["aten.native_layer_norm.default"]


# Attention's kernels


def test_the_kernel_is_in_the_record_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trace(monkeypatch)
    details = {
        mode: build(session_of("torch", "train", execution_mode=mode)).details["attention"]
        for mode in ("step.eager", "flash_attention.compiled", "plain_attention.compiled")
    }
    assert details == {
        "step.eager": "flash_attention",
        "flash_attention.compiled": "flash_attention",
        "plain_attention.compiled": "written out",
    }
    with pytest.raises(Refused, match="^efficient_attention of float32 on cpu: "):
        build(session_of("torch", "train", execution_mode="efficient_attention.compiled"))
    with pytest.raises(Refused, match="cuDNN's attention needs an NVIDIA GPU"):
        build(session_of("jax", "train", execution_mode="cudnn_attention.jit"))
    vmapped_mode = session_of("torch", "per_sample_gradients", execution_mode="vmap.eager")
    assert build(vmapped_mode).details["attention"] == "written out"


def test_only_a_kernel_that_a_mode_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal settles a measurement. What fails where PyTorch chooses is a failure, and a full GPU is a full GPU."""
    model = torch_gpt.Gpt(enwik8.SIZES["gpt_nano"])
    no_plan, full = RuntimeError("cuDNN Frontend error: no plan"), torch.OutOfMemoryError("CUDA out of memory")
    for formulation, error, told in (
        ("cudnn_attention", no_plan, Refused),
        ("step", no_plan, RuntimeError),
        ("flash_attention", full, torch.OutOfMemoryError),
    ):
        monkeypatch.setattr(F, "scaled_dot_product_attention", mock.Mock(side_effect=error))
        with pytest.raises(told) as found:
            attention_of(model, formulation, torch.float32, torch.device("cpu"))
        assert type(found.value) is told


def test_a_named_kernel_is_the_one_that_runs() -> None:
    queries = torch.randn(1, 2, 8, 16, requires_grad=True)
    with with_attention("flash_attention"):
        output = F.scaled_dot_product_attention(queries, queries, queries, is_causal=True)
    assert "Flash" in type(output.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_written_out_is_pytorchs(dtype: torch.dtype) -> None:
    """In half precision its products are, too, and its softmax is in float32, as JAX's. The arithmetic of
    `SDPBackend.MATH` is float32 there."""
    drawn = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 2, 2, 8, 16)))
    given = [part.to(dtype).requires_grad_() for part in drawn]
    exact = [part.detach().double().requires_grad_() for part in given]
    with Operators() as seen:
        found = torch_gpt.attention(*given)
    bmm, softmax = torch.ops.aten.bmm.default, torch.ops.aten._softmax.default
    called = [(operator, arguments[0].dtype) for operator, arguments in seen.calls if operator in (bmm, softmax)]
    assert called == [(bmm, dtype), (softmax, torch.promote_types(dtype, torch.float32)), (bmm, dtype)]
    expected = F.scaled_dot_product_attention(*exact, is_causal=True)
    found.square().sum().backward()
    expected.square().sum().backward()
    tolerance = 1e-14 if dtype == torch.float64 else 2e-2
    for own, theirs in ((found, expected), *((own.grad, one.grad) for own, one in zip(given, exact, strict=True))):
        assert relative_error({"": own.detach().double().numpy()}, {"": theirs.detach().numpy()}) < tolerance


# Use case 6


@pytest.mark.parametrize(("framework", "mode"), [("torch", "vmap.eager"), ("torch", "loop.eager"), ("jax", "map.jit")])
def test_many_models_train_as_each_does_alone(framework: Framework, mode: str) -> None:
    session = session_of(framework, "many_models", batch_size=2, execution_mode=mode, precision="fp64")
    checks = build(session).check()
    assert checks and all(check.error < TOLERANCE for check in checks)


# The gate. Each mistake is on PyTorch's side only.


def test_each_of_the_gates_programs_has_the_data_of_its_own_model() -> None:
    """A job's child computes them one after the other, whatever its first one was."""
    session = session_of("torch", "train")
    other = gate_session(session, with_variant(session, model="gpt_mini").measurement)
    assert (session.dataset.train["tokens"].shape[1], other.dataset.train["tokens"].shape[1]) == (65, 257)
    longer = make_session("torch", "train", benchmark="fineweb", model="gpt2", sizes={"positions": 128})
    gated_sizes = gate_measurement(longer.measurement)
    assert gated_sizes.sizes == {"positions": 64}
    shorter = gate_session(longer, gated_sizes)
    assert (longer.dataset.train["tokens"].shape[1], shorter.dataset.train["tokens"].shape[1]) == (129, 65)


def untied(self: torch_gpt.TiedHead, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.linear(hidden, table.detach())


GELU = F.gelu
MISTAKES = (
    mock.patch.object(torch_gpt, "EPSILON", 1e-6),
    mock.patch.object(torch_gpt.TiedHead, "forward", untied),
    mock.patch.object(F, "gelu", lambda inputs, approximate: GELU(inputs)),
)
"""Another epsilon, an output's weight of its own, another GELU."""


def test_what_is_right_passes_and_a_mistake_is_caught() -> None:
    jax_numbers = gated(session_of("jax", "train"))
    judgement = judge(jax_numbers, gated(session_of("torch", "train")))
    assert judgement.state == "passed", judgement.sentence
    for mistake in MISTAKES:
        with mistake:
            theirs = gated(session_of("torch", "train"))
        judgement = judge(jax_numbers, theirs)
        assert judgement.state == "failed", judgement.sentence
        check = next(check for check in compare(jax_numbers, theirs) if not check.passed)
        assert check.error > 2 * check.tolerance, judgement.sentence
