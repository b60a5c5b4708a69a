"""The models of each benchmark, a file for each: `make_model(name, sizes, dtypes)`; weights are overwritten later."""

import importlib
from typing import Any

import jax
from flax import nnx

from harness.measure.program import Session


def make_model(session: Session[Any], dtypes: dict[str, Any]) -> nnx.Module:
    """The variant's model. `dtypes`: see jax_runner/device.py::model_dtypes."""
    measurement, benchmark = session.measurement, session.benchmark
    module = importlib.import_module(f"jax_runner.models.{benchmark.name}")
    sizes = benchmark.sizes.model_validate(measurement.sizes)
    model: nnx.Module = module.make_model(measurement.variant.model, sizes, dtypes)
    # BatchNorm makes its own in float32, whatever it is told.
    nnx.update(model, jax.tree.map(lambda leaf: leaf.astype(dtypes["param_dtype"]), nnx.state(model)))
    return model
