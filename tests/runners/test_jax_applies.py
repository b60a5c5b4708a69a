"""What is declared of models and formulations is what JAX's runner builds: kinds of layers, and what goes with what.

A model declares its layers (harness/work/declared.py), and `why_not` (harness/work/applies.py) judges by that alone. So
it can be wrong in two ways, which are found here by the model that is built and by what the runner refuses.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flax import nnx

from harness.work.declared import Benchmark, Layer, Model, UseCase, benchmark, use_case
from harness.work.use_cases.per_sample_gradients import LAYERWISE
from jax_runner.device import model_dtypes
from jax_runner.layers import SelfAttention, strides_of
from jax_runner.models import gpt, make_model
from jax_runner.models.molpcba import CodeTable, GraphNorm, Root
from tests.made.applies import MODELS, cases, convolution, dense, disagreements, with_formulation
from tests.made.sessions import make_session
from tests.made.shallow import shallow_vit


@pytest.fixture(autouse=True)
def small_vit() -> Iterator[None]:
    with shallow_vit("jax"):
        yield


def kinds_of(model: nnx.Module) -> set[Layer]:
    return {kind for _, module in nnx.iter_modules(model) for kind in kinds_of_module(module)}


def kinds_of_module(module: Any) -> set[Layer]:
    match module:
        case SelfAttention():
            return {Layer.ATTENTION, Layer.MULTI_HEAD}
        case gpt.CausalSelfAttention():
            return {Layer.ATTENTION}
        case nnx.Linear():
            return dense(module.use_bias)
        case nnx.Conv():
            return convolution(
                window=tuple(module.kernel_size),
                strides=strides_of(module),
                groups=module.feature_group_count,
                channels_in=module.in_features,
                has_bias=module.use_bias,
            )
        case nnx.BatchNorm():
            return {Layer.BATCH_NORM}
        case gpt.LayerNorm() | GraphNorm() | Root():
            return {Layer.SCALE}
        case nnx.LayerNorm():
            return {Layer.LAYER_NORM}
        case nnx.Embed() | gpt.Embedding() | gpt.Positions() | CodeTable():
            return {Layer.TABLE}
        case gpt.TiedHead():
            return {Layer.TIED_HEAD}
    own = {Layer.TOKEN} if any(isinstance(value, nnx.Param) for value in vars(module).values()) else set()
    return own | ({Layer.GRAPH} if hasattr(module, "sorted_sums") else set())


@pytest.mark.parametrize(("data", "model"), MODELS)
def test_declared_layers_are_those_of_the_model(data: str, model: str) -> None:
    session = make_session("jax", "train", benchmark=data, model=model)
    assert kinds_of(make_model(session, model_dtypes("fp32"))) == session.model.layers


@pytest.mark.parametrize(("declared", "of", "model"), cases())
def test_what_is_refused_is_what_makes_no_sense(declared: UseCase, of: Benchmark, model: Model) -> None:
    assert disagreements("jax", declared, of, model) == {}


@pytest.mark.parametrize(
    ("name", "knows", "data", "model"),
    [
        ("outer_product", LAYERWISE - {Layer.TABLE}, "text", "mlp"),
        ("ghost", LAYERWISE | {Layer.TOKEN, Layer.MULTI_HEAD, Layer.LAYER_NORM}, "imagenet100", "vit_b_16"),
    ],
)
def test_a_formulation_that_claims_too_little_or_too_much_is_found(
    name: str, knows: frozenset[Layer], data: str, model: str
) -> None:
    declared = with_formulation(use_case("per_sample_gradients"), "jax", name, knows=knows)
    of = benchmark(data)
    assert disagreements("jax", declared, of, of.model(model))


def test_a_layer_that_is_not_declared_is_found() -> None:
    of = benchmark("imagenet100")
    model = of.model("mobilenet_v3_small")
    found = disagreements("jax", use_case("inference"), of, replace(model, layers=model.layers - {Layer.DEPTHWISE}))
    assert {words.partition(".")[0] for words in found} == {"taps"}
