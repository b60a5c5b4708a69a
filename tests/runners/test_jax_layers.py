"""jax_runner/layers.py: other ways to compute a layer give what the plain one gives."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.errors import Refused
from harness.work.declared import BatchNorm
from jax_runner.device import FLOAT64, model_dtypes
from jax_runner.layers import (
    Layers,
    Sequential,
    attention,
    cudnn_attention,
    relu_of_output,
    taps,
    use_cudnn_attention,
    use_taps,
)
from jax_runner.models import without_values
from jax_runner.models.imagenet100 import MobileNetV3, VisionTransformer
from jax_runner.weights import arrays_of, load_initial_weights
from tests.made.sessions import build, make_session

DRAW = np.random.default_rng(0)


def jitted_with_gradients(layer: nnx.Module) -> Callable[[Any, Any], Any]:
    graphdef = nnx.graphdef(layer)

    @jax.jit
    def compute(params: Any, images: jax.Array) -> Any:
        def loss(params: Any, images: jax.Array) -> Any:
            outputs = nnx.merge(graphdef, params)(images)
            return (jnp.sin(outputs)).sum(), outputs

        return jax.grad(loss, (0, 1), has_aux=True)(params, images)

    return compute


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-14), ("fp32", 1e-6), ("bf16", 2e-2)])
@pytest.mark.parametrize(("window", "stride"), [(3, 2), (5, 1)])
def test_taps_are_the_grouped_convolution(window: int, stride: int, precision: Any, tolerance: float) -> None:
    """Outputs, and the gradients of kernel, bias and images; sides that a stride does not divide."""
    with jax.enable_x64(precision == "fp64"):
        dtypes = model_dtypes(precision)
        layer = without_values(lambda: Layers(dtypes).conv(6, 6, window, stride, 6, bias=True), dtypes["param_dtype"])
        load_initial_weights(layer, 1)
        images = jnp.asarray(DRAW.standard_normal((2, 9, 8, 6)), dtypes["dtype"])
        plain = jitted_with_gradients(layer)(arrays_of(layer), images)
        use_taps(layer)
        shifted = jitted_with_gradients(layer)(arrays_of(layer), images)
        for ours, theirs in zip(jax.tree.leaves(shifted), jax.tree.leaves(plain), strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            ours, theirs = (np.asarray(value, np.float64) for value in (ours, theirs))
            assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)


def test_taps_by_hand() -> None:
    """A window of 3 over a ramp of 4 pixels, one row, two channels of which the second counts its neighbours."""
    images = jnp.asarray([[[[1.0, 1], [2, 1], [3, 1], [4, 1]]]])
    kernel = jnp.asarray([[[[1.0, 1]], [[10, 1]], [[100, 1]]]])  # left, own, right
    found = taps(images, kernel, (1, 1), ((0, 0), (1, 1)))
    np.testing.assert_array_equal(found[0, 0], [[210, 2], [321, 3], [432, 3], [43, 2]])
    np.testing.assert_array_equal(taps(images, kernel, (1, 2), ((0, 0), (1, 1)))[0, 0], [[210, 2], [432, 3]])


def small_mobile_net(dtypes: dict[str, Any]) -> nnx.Module:
    rows = ((8, 3, 16, 8, True, nnx.relu, 1), (8, 5, 24, 16, False, nnx.relu, 2))
    model = without_values(lambda: MobileNetV3(dtypes, BatchNorm(), 4, rows, 8), dtypes["param_dtype"])
    load_initial_weights(model, 1)
    return nnx.view(model, use_running_average=True)


def group_counts(graphdef: Any, arrays: Any) -> list[int]:
    """Of each convolution in the program, in order."""
    images = jnp.zeros((1, 32, 32, 3))
    traced = jax.make_jaxpr(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(arrays, images)
    convolutions = [eqn for eqn in traced.eqns if eqn.primitive.name == "conv_general_dilated"]
    return [eqn.params["feature_group_count"] for eqn in convolutions]


def test_choice_of_taps_stays_with_the_model() -> None:
    """Through a view, a split and a merge; only depthwise convolutions change."""
    model = small_mobile_net(model_dtypes("fp32"))
    before = group_counts(nnx.graphdef(model), arrays_of(model))
    # Stem; expansion, depthwise, two of squeeze and excitation, projection; the same without these; the last.
    assert before == [1, 1, 16, 1, 1, 1, 1, 24, 1, 1]
    use_taps(model)
    without_depthwise = [groups for groups in before if groups == 1]
    assert group_counts(nnx.graphdef(model), arrays_of(model)) == without_depthwise
    copied = nnx.merge(*nnx.split(nnx.view(model, use_running_average=False)))
    assert group_counts(*nnx.split(nnx.view(copied, use_running_average=True))) == without_depthwise


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("bfloat16", 1e-2)])
def test_attention_is_pytorchs(dtype: str, tolerance: float, is_causal: bool) -> None:
    """Against scaled_dot_product_attention in double precision, of the same numbers."""
    with jax.enable_x64(True):
        arrays = [jnp.asarray(DRAW.standard_normal((2, 5, 3, 8)), dtype) for _ in range(3)]
        ours = attention(*arrays, None, is_causal)
        assert ours.dtype == dtype
        by_head = [torch.tensor(np.asarray(array, np.float64)).transpose(1, 2) for array in arrays]
        theirs = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=is_causal)
        theirs = theirs.transpose(1, 2).numpy()
        assert np.linalg.norm(np.asarray(ours, np.float64) - theirs) <= tolerance * np.linalg.norm(theirs)


def products_in(jaxpr: Any) -> Iterator[tuple[str, ...]]:
    """The operands' dtypes of each product, also of those in inner functions."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(str(operand.aval.dtype) for operand in equation.invars)
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products_in(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_attention_in_bf16_are_products_of_bf16(is_causal: bool) -> None:
    """And near those of PyTorch's plain attention in bf16, and of float64: a rounding is 2 ** -9 at most, 0.002."""
    arrays = [DRAW.standard_normal((2, 16, 3, 8)) for _ in range(4)]
    *halves, of_outputs = (jnp.asarray(array, jnp.bfloat16) for array in arrays)

    def gradients(*operands: jax.Array) -> Any:
        _, pullback = jax.vjp(lambda *own: attention(*own, None, is_causal), *operands)
        return pullback(of_outputs.astype(operands[0].dtype))

    found = list(products_in(jax.make_jaxpr(gradients)(*halves).jaxpr))
    assert found == [("bfloat16", "bfloat16")] * 6
    ours = gradients(*halves)
    with jax.enable_x64(True):
        exact = gradients(*(half.astype(jnp.float64) for half in halves))
    of_torch = [torch.tensor(np.asarray(half, np.float32)).bfloat16().transpose(1, 2) for half in halves]
    of_torch = [half.requires_grad_() for half in of_torch]
    with sdpa_kernel(SDPBackend.MATH):
        outputs = torch.nn.functional.scaled_dot_product_attention(*of_torch, is_causal=is_causal)
    outputs.backward(torch.tensor(np.asarray(of_outputs, np.float32)).bfloat16().transpose(1, 2))
    for own, reference, half in zip(ours, exact, of_torch, strict=True):
        assert own.dtype == jnp.bfloat16 and half.grad is not None
        own, reference = (np.asarray(array, np.float64) for array in (own, reference))
        for theirs in (reference, half.grad.double().transpose(1, 2).numpy()):
            assert np.linalg.norm(own - theirs) <= 4e-3 * np.linalg.norm(theirs)


def small_vit(dtypes: dict[str, Any]) -> nnx.Module:
    return without_values(lambda: VisionTransformer(dtypes, 32, 4, 2, 16, 2, 32), dtypes["param_dtype"])


def test_cudnn_attention_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(Refused, match="needs an NVIDIA GPU"):
        use_cudnn_attention(small_vit(model_dtypes("bf16")), on_gpu=False)
    with pytest.raises(Refused, match="for bf16 and fp16, and this model computes in float32"):
        use_cudnn_attention(small_vit(model_dtypes("fp32")), on_gpu=True)


def test_choice_of_cudnn_attention_stays_with_the_model() -> None:
    model = small_vit(model_dtypes("bf16"))
    use_cudnn_attention(model, on_gpu=True)
    load_initial_weights(model, 1)
    copied = nnx.merge(*nnx.split(model))
    assert [layer.self_attention.attend for layer in copied.encoder.layers.values()] == [cudnn_attention] * 2


@pytest.fixture
def cudnn_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's other implementation of the same function, which refuses what the one by cuDNN refuses."""
    of_jax = partial(jax.nn.dot_product_attention, implementation="xla")

    def of_cudnn(*arrays: jax.Array, implementation: str, **options: Any) -> jax.Array:
        assert implementation == "cudnn"
        compute = partial(of_jax, **options)

        def forward(*arrays: jax.Array) -> Any:
            if arrays[0].shape[1] % 2:
                raise NotImplementedError("Unsupported sequence length")
            return jax.vjp(compute, *arrays)

        attend = jax.custom_vjp(compute)
        attend.defvjp(forward, lambda gradient, of_outputs: gradient(of_outputs))
        outputs: jax.Array = attend(*arrays)
        return outputs

    monkeypatch.setattr(jax.nn, "dot_product_attention", of_cudnn)


@pytest.mark.usefixtures("cudnn_of_a_cpu")
@pytest.mark.parametrize("tokens", [4, 5])
def test_cudnn_attention_is_the_same_mathematics(tokens: int) -> None:
    """Outputs and gradients, of an odd number of tokens too; vit_b_16 has 197."""

    def of(attend: Any, is_causal: bool) -> list[jax.Array]:
        def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
            outputs = attend(*arrays, None, is_causal)
            return jnp.sin(outputs).sum(), outputs

        gradients, outputs = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays)
        return [attend(*arrays, None, is_causal), outputs, *gradients]

    arrays = [jnp.asarray(DRAW.standard_normal((2, tokens, 3, 8)), jnp.float32) for _ in range(3)]
    found = {}
    for is_causal in (False, True):
        found[is_causal] = of(attention, is_causal)
        for ours, theirs in zip(of(cudnn_attention, is_causal), found[is_causal], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.abs(found[True][0] - found[False][0]).max() > 0.01


def test_relu_keeps_its_output_alone() -> None:
    """And has the same gradients, also at zero and of what is no number."""
    x = jnp.asarray([-2.0, -0.0, 0.0, 0.5, 3.0, jnp.inf, jnp.nan])
    of_outputs = jnp.arange(1.0, 8.0)
    (plain, plain_pullback), (ours, pullback) = jax.vjp(nnx.relu, x), jax.vjp(relu_of_output, x)
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(pullback(of_outputs)[0], [0, 0, 0, 4, 5, 6, 0])
    np.testing.assert_array_equal(pullback(of_outputs)[0], plain_pullback(of_outputs)[0])
    (kept,) = (leaf for leaf in jax.tree.leaves(pullback) if leaf.shape == x.shape)
    np.testing.assert_array_equal(kept, ours)
    # Or XLA would find out that it is the input's sign, too.
    gradient = jax.jit(jax.grad(lambda x: relu_of_output(x).sum()))
    assert "optimization_barrier" in gradient.lower(x).as_text()


def test_gradients_of_a_whole_batch_keep_outputs_of_relu() -> None:
    train, by_sample = (
        build(make_session("jax", use_case, benchmark="cifar10")) for use_case in ("train", "per_sample_gradients")
    )
    assert (train.problem.model.relu, by_sample.problem.model.relu) == (relu_of_output, nnx.relu)


def test_sequential_has_numbers_for_functions_and_gaps() -> None:
    with jax.enable_x64(True):
        layers = Layers(FLOAT64)
        model = Sequential(layers.linear(2, 3), nnx.relu, None, layers.linear(3, 2))
        first, last = getattr(model, "0"), getattr(model, "3")
        x = jnp.asarray([[1.0, -2.0]])
        np.testing.assert_array_equal(model(x), last(jnp.maximum(first(x), 0)))
        assert {path[0] for path, _ in nnx.to_flat_state(nnx.state(model))} == {"0", "3"}
