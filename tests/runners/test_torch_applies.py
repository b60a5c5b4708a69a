"""What is declared of models and formulations is what PyTorch's runner builds; see test_jax_applies.py."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from harness.work.declared import Benchmark, Layer, Model, UseCase, benchmark, use_case
from harness.work.use_cases.many_models import KNOWN
from tests.made.applies import MODELS, cases, convolution, dense, disagreements, with_formulation
from tests.made.sessions import make_session
from tests.made.shallow import shallow_vit
from torch_runner.models import gpt, make_model
from torch_runner.models.molpcba import GraphNorm, Root


@pytest.fixture(autouse=True)
def small_vit() -> Iterator[None]:
    with shallow_vit("torch"):
        yield


def kinds_of(model: nn.Module) -> set[Layer]:
    return {kind for module in model.modules() for kind in kinds_of_module(module)}


def kinds_of_module(module: Any) -> set[Layer]:
    match module:
        case nn.MultiheadAttention():
            return {Layer.ATTENTION, Layer.MULTI_HEAD}
        case gpt.CausalSelfAttention():
            return {Layer.ATTENTION}
        case nn.Linear():
            return dense(module.bias is not None)
        case nn.Conv2d():
            return convolution(
                window=module.kernel_size,
                strides=module.stride,
                groups=module.groups,
                channels_in=module.in_channels,
                has_bias=module.bias is not None,
            )
        case nn.BatchNorm2d():
            return {Layer.BATCH_NORM}
        case gpt.LayerNorm() | GraphNorm() | Root():
            return {Layer.SCALE}
        case nn.LayerNorm():
            return {Layer.LAYER_NORM}
        case nn.Embedding() | gpt.Positions():
            return {Layer.TABLE}
        case gpt.TiedHead():
            return {Layer.TIED_HEAD}
    own = {Layer.TOKEN} if list(module.parameters(recurse=False)) else set()
    return own | ({Layer.GRAPH} if hasattr(module, "sums") else set())


@pytest.mark.parametrize(("data", "model"), MODELS)
def test_declared_layers_are_those_of_the_model(data: str, model: str) -> None:
    session = make_session("torch", "train", benchmark=data, model=model)
    with torch.device("meta"):
        assert kinds_of(make_model(session, torch.float32)) == session.model.layers


@pytest.mark.parametrize(("declared", "of", "model"), cases())
def test_what_is_refused_is_what_makes_no_sense(declared: UseCase, of: Benchmark, model: Model) -> None:
    assert disagreements("torch", declared, of, model) == {}


@pytest.mark.parametrize(("knows", "data"), [(KNOWN - {Layer.CONVOLUTION}, "mnist"), (KNOWN | {Layer.TABLE}, "text")])
def test_a_formulation_that_claims_too_little_or_too_much_is_found(knows: frozenset[Layer], data: str) -> None:
    declared = with_formulation(use_case("many_models"), "torch", "batched", knows=knows)
    of = benchmark(data)
    assert disagreements("torch", declared, of, of.models[0])


def test_a_layer_that_is_not_declared_is_found() -> None:
    of = benchmark("text")
    model = of.model("mlp")
    found = disagreements("torch", use_case("many_models"), of, replace(model, layers=model.layers - {Layer.TABLE}))
    assert {words.partition(".")[0] for words in found} == {"conv1d_loop", "grouped_conv1d", "batched"}
