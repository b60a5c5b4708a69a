"""jax_runner/layers.py: other ways to compute a layer give what the plain one gives."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp

from harness.errors import Refused
from harness.work.declared import BatchNorm
from jax_runner.device import model_dtypes
from jax_runner.layers import (
    Layers,
    attention,
    cudnn_attention,
    relu_of_output,
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


@pytest.mark.parametrize(
    ("window", "stride", "precision", "tolerance"), [(3, 2, "fp64", 1e-14), (5, 1, "fp64", 1e-14), (3, 2, "bf16", 2e-2)]
)
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


def group_counts(graphdef: Any, arrays: Any) -> list[int]:
    """Of each convolution in the program, in order."""
    images = jnp.zeros((1, 32, 32, 3))
    traced = jax.make_jaxpr(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(arrays, images)
    convolutions = [eqn for eqn in traced.eqns if eqn.primitive.name == "conv_general_dilated"]
    return [eqn.params["feature_group_count"] for eqn in convolutions]


def test_choice_of_taps_stays_with_the_model() -> None:
    """Through a view, a split and a merge; only depthwise convolutions change."""
    rows = ((8, 3, 16, 8, True, nnx.relu, 1), (8, 5, 24, 16, False, nnx.relu, 2))
    model = without_values(lambda: MobileNetV3(model_dtypes("fp32"), BatchNorm(), 4, rows, 8), jnp.float32)
    load_initial_weights(model, 1)
    model = nnx.view(model, use_running_average=True)
    before = group_counts(nnx.graphdef(model), arrays_of(model))
    # Stem; expansion, depthwise, two of squeeze and excitation, projection; the same without these; the last.
    assert before == [1, 1, 16, 1, 1, 1, 1, 24, 1, 1]
    use_taps(model)
    without_depthwise = [groups for groups in before if groups == 1]
    assert group_counts(nnx.graphdef(model), arrays_of(model)) == without_depthwise
    copied = nnx.merge(*nnx.split(nnx.view(model, use_running_average=False)))
    assert group_counts(*nnx.split(nnx.view(copied, use_running_average=True))) == without_depthwise


def products_in(jaxpr: Any) -> Iterator[tuple[str, ...]]:
    """The operands' dtypes of each product, also of those in inner functions."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(str(operand.aval.dtype) for operand in equation.invars)
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products_in(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("bfloat16", 4e-3)])
def test_attention_and_its_gradients_are_pytorchs(dtype: str, tolerance: float, is_causal: bool) -> None:
    """Against scaled_dot_product_attention in double precision, of the same numbers. In bf16, whose rounding is 2 ** -9
    at most, 0.002, each product is one of bf16."""
    with jax.enable_x64(True):
        *arrays, of_outputs = (jnp.asarray(DRAW.standard_normal((2, 16, 3, 8)), dtype) for _ in range(4))

        def gradients(*operands: jax.Array) -> Any:
            outputs, pullback = jax.vjp(lambda *own: attention(*own, None, is_causal), *operands)
            return outputs, *pullback(of_outputs)

        assert list(products_in(jax.make_jaxpr(gradients)(*arrays).jaxpr)) == [(dtype, dtype)] * 6
        ours = gradients(*arrays)
        by_head = [torch.tensor(np.asarray(array, np.float64)).transpose(1, 2) for array in (*arrays, of_outputs)]
        leaves = [array.requires_grad_() for array in by_head[:3]]
        outputs = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
        outputs.backward(by_head[3])
        for own, theirs in zip(ours, (outputs.detach(), *(leaf.grad for leaf in leaves)), strict=True):
            assert own.dtype == dtype
            exact = theirs.transpose(1, 2).numpy()
            assert np.linalg.norm(np.asarray(own, np.float64) - exact) <= tolerance * np.linalg.norm(exact)


def small_vit(dtypes: dict[str, Any]) -> nnx.Module:
    return without_values(lambda: VisionTransformer(dtypes, 32, 4, 2, 16, 2, 32), dtypes["param_dtype"])


def test_cudnn_attention_is_chosen_or_refused_where_it_cannot_run() -> None:
    with pytest.raises(Refused, match="needs an NVIDIA GPU"):
        use_cudnn_attention(small_vit(model_dtypes("bf16")), on_gpu=False)
    with pytest.raises(Refused, match="for bf16 and fp16, and this model computes in float32"):
        use_cudnn_attention(small_vit(model_dtypes("fp32")), on_gpu=True)
    model = small_vit(model_dtypes("bf16"))
    use_cudnn_attention(model, on_gpu=True)
    load_initial_weights(model, 1)
    copied = nnx.merge(*nnx.split(model))  # the choice stays with the model
    assert [layer.self_attention.attend for layer in copied.encoder.layers.values()] == [cudnn_attention] * 2


@pytest.mark.parametrize("tokens", [4, 5])
def test_cudnn_attention_is_the_same_mathematics(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, of an odd number of tokens too, whose gradients cuDNN refuses; vit_b_16 has 197. Its
    place is taken by JAX's other implementation of the same function."""
    of_jax, seen = jax.nn.dot_product_attention, []

    def of_cudnn(*arrays: jax.Array, implementation: str, **options: Any) -> jax.Array:
        seen.append((implementation, arrays[0].shape[1]))
        return of_jax(*arrays, implementation="xla", **options)

    def of(attend: Any, is_causal: bool) -> list[jax.Array]:
        def forward(*own: jax.Array) -> jax.Array:
            outputs: jax.Array = attend(*own, None, is_causal)
            return outputs

        def with_gradients(*own: jax.Array) -> Any:
            outputs, pullback = jax.vjp(forward, *own)
            return outputs, *pullback(jnp.sin(outputs))

        return [jax.jit(forward)(*arrays), *jax.jit(with_gradients)(*arrays)]

    monkeypatch.setattr(jax.nn, "dot_product_attention", of_cudnn)
    arrays = [jnp.asarray(DRAW.standard_normal((2, tokens, 3, 8)), jnp.float32) for _ in range(3)]
    for is_causal in (False, True):
        for ours, theirs in zip(of(cudnn_attention, is_causal), of(attention, is_causal), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert seen == [("cudnn", tokens), ("cudnn", tokens + tokens % 2)] * 2


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
