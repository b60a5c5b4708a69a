"""The models of each benchmark, a file for each: `make_model(name, sizes)`; weights are overwritten later."""

import importlib
from typing import Any

import torch
from torch import nn

from harness.measure.program import Session


def make_model(session: Session[Any], dtype: torch.dtype) -> nn.Module:
    """The variant's model, on the CPU. `dtype`: see torch_runner/device.py::model_dtype."""
    measurement, benchmark = session.measurement, session.benchmark
    module = importlib.import_module(f"torch_runner.models.{benchmark.name}")
    sizes = benchmark.sizes.model_validate(measurement.sizes)
    model: nn.Module = module.make_model(measurement.variant.model, sizes)
    return model.to(dtype)
