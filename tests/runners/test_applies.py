"""What is declared of models and formulations is what the runners build: kinds of layers, and what goes with what.

A model declares its layers (harness/work/declared.py), and `why_not` (harness/work/applies.py) judges by that alone. So
it can be wrong in two ways, which are found here by the model that is built and by what the runner refuses.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from flax import nnx
from torch import nn

import jax_runner.models
import torch_runner.models
from harness.plan import FRAMEWORKS, Framework
from harness.work.declared import Benchmark, Layer, Model, UseCase, benchmark, use_case
from harness.work.use_cases.many_models import KNOWN
from harness.work.use_cases.per_sample_gradients import LAYERWISE
from jax_runner.device import model_dtypes
from jax_runner.layers import SelfAttention, strides_of
from jax_runner.models import gpt as jax_gpt
from jax_runner.models import molpcba as jax_molpcba
from tests.made.applies import MODELS, cases, disagreements, with_formulation
from tests.made.sessions import make_session
from tests.made.shallow import shallow_vit
from torch_runner.models import gpt as torch_gpt
from torch_runner.models import molpcba as torch_molpcba

pytestmark = [pytest.mark.parametrize("framework", FRAMEWORKS), pytest.mark.takes(25)]


@pytest.fixture(autouse=True)
def small_vit(framework: Framework) -> Iterator[None]:
    with shallow_vit(framework):
        yield


def modules_of(framework: Framework, data: str, model: str) -> list[Any]:
    session = make_session(framework, "train", benchmark=data, model=model)
    if framework == "jax":
        made = jax_runner.models.make_model(session, model_dtypes("fp32"))
        return [module for _, module in nnx.iter_modules(made)]
    with torch.device("meta"):
        return list(torch_runner.models.make_model(session, torch.float32).modules())


def kinds_of(module: Any) -> set[Layer]:
    match module:
        case SelfAttention() | nn.MultiheadAttention():
            return {Layer.ATTENTION, Layer.MULTI_HEAD}
        case jax_gpt.CausalSelfAttention() | torch_gpt.CausalSelfAttention():
            return {Layer.ATTENTION}
        case nnx.Linear():
            return {Layer.DENSE if module.use_bias else Layer.DENSE_WITHOUT_BIAS}
        case nn.Linear():
            return {Layer.DENSE if module.bias is not None else Layer.DENSE_WITHOUT_BIAS}
        case nnx.Conv():
            sizes = tuple(module.kernel_size), strides_of(module), module.feature_group_count, module.in_features
            return {convolution(*sizes, has_bias=module.use_bias)}
        case nn.Conv2d():
            sizes = module.kernel_size, module.stride, module.groups, module.in_channels
            return {convolution(*sizes, has_bias=module.bias is not None)}
        case nnx.BatchNorm() | nn.BatchNorm2d():
            return {Layer.BATCH_NORM}
        case jax_gpt.LayerNorm() | jax_molpcba.GraphNorm() | jax_molpcba.Root():
            return {Layer.SCALE}
        case torch_gpt.LayerNorm() | torch_molpcba.GraphNorm() | torch_molpcba.Root():
            return {Layer.SCALE}
        case nnx.LayerNorm() | nn.LayerNorm():
            return {Layer.LAYER_NORM}
        case nnx.Embed() | jax_gpt.Embedding() | jax_gpt.Positions() | jax_molpcba.CodeTable():
            return {Layer.TABLE}
        case nn.Embedding() | torch_gpt.Positions():
            return {Layer.TABLE}
        case jax_gpt.TiedHead() | torch_gpt.TiedHead():
            return {Layer.TIED_HEAD}
    if isinstance(module, nn.Module):
        has_own, has_sums = bool(list(module.parameters(recurse=False))), hasattr(module, "sums")
    else:
        has_own = any(isinstance(value, nnx.Param) for value in vars(module).values())
        has_sums = hasattr(module, "sorted_sums")
    return ({Layer.TOKEN} if has_own else set()) | ({Layer.GRAPH} if has_sums else set())


def convolution(window: Any, strides: Any, groups: int, channels_in: int, *, has_bias: bool) -> Layer:
    if 1 < groups == channels_in:
        return Layer.DEPTHWISE
    if window == strides and max(window) > 1:
        return Layer.PATCH_PROJECTION
    return Layer.CONVOLUTION if has_bias else Layer.CONVOLUTION_WITHOUT_BIAS


@pytest.mark.parametrize(("data", "model"), MODELS)
def test_declared_layers_are_those_of_the_model(framework: Framework, data: str, model: str) -> None:
    found = set().union(*map(kinds_of, modules_of(framework, data, model)))
    assert found == benchmark(data).model(model).layers


@pytest.mark.parametrize(("declared", "of", "model"), cases())
def test_what_is_refused_is_what_makes_no_sense(
    framework: Framework, declared: UseCase, of: Benchmark, model: Model
) -> None:
    assert disagreements(framework, declared, of, model) == {}


CLAIMS: dict[Framework, Any] = {
    "jax": ("per_sample_gradients", "outer_product", LAYERWISE - {Layer.TABLE}, "text", "mlp"),
    "torch": ("many_models", "batched", KNOWN | {Layer.TABLE}, "text", "mlp"),
}
"""Use case, formulation, what it claims to know, which is too little or too much, and a model that shows it."""


def test_a_formulation_that_claims_too_little_or_too_much_is_found(framework: Framework) -> None:
    name, formulation, knows, data, model = CLAIMS[framework]
    declared, of = with_formulation(use_case(name), framework, formulation, knows=knows), benchmark(data)
    assert disagreements(framework, declared, of, of.model(model))
