"""The models of each benchmark, a file for each: `make_model(name, sizes)`; weights are overwritten later."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.measure.program import Session


def make_model(session: Session[Any], dtype: torch.dtype) -> nn.Module:
    """The variant's model, on the CPU. `dtype`: see torch_runner/device.py::model_dtype."""
    measurement, benchmark = session.measurement, session.benchmark
    module = importlib.import_module(f"torch_runner.models.{benchmark.name}")
    sizes = benchmark.sizes.model_validate(measurement.sizes)
    model: nn.Module = module.make_model(measurement.variant.model, sizes)
    return model.to(dtype)


def for_vmap(function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """`function`, which vmaps this model. Attention is then written out: of a fused kernel vmap makes one call for each
    sample or model, in a loop."""
    if not any(isinstance(layer, nn.MultiheadAttention) for layer in model.modules()):
        return function

    def with_plain_attention(*arguments: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return function(*arguments)

    return with_plain_attention
