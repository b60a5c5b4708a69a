"""The models of each benchmark, a file for each: `make_model(name, sizes, dtypes)`; weights come later."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from harness.measure.program import Session
from jax_runner.layers import SelfAttention, cudnn_attention
from jax_runner.models.gpt import CausalSelfAttention
from jax_runner.task import Task


def make_model(session: Session[Any], dtypes: dict[str, Any]) -> nnx.Module:
    """The variant's model, without values yet. `dtypes`: see jax_runner/device.py::model_dtypes."""
    measurement, benchmark = session.measurement, session.benchmark
    module = importlib.import_module(f"jax_runner.models.{benchmark.name}")
    sizes = benchmark.sizes.model_validate(measurement.sizes)
    with session.named_model(f"jax_runner/models/{benchmark.name}.py"):
        build = lambda: module.make_model(measurement.variant.model, sizes, dtypes)  # noqa: E731
        model = without_values(build, dtypes["param_dtype"])
    session.require_declared(any(isinstance(one, nnx.BatchNorm) for _, one in nnx.iter_modules(model)))
    return model


def without_values(build: Callable[[], nnx.Module], dtype: Any) -> nnx.Module:
    """A model whose variables have shapes and this dtype, and whose arrays `load_weights` makes. Flax's own initial
    values would each be a program to compile: 20 s and more for a network of 50 layers."""

    def in_one_dtype() -> nnx.Module:
        model = build()
        # BatchNorm makes its own in float32, whatever it is told.
        nnx.update(model, jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.state(model)))
        return model

    return nnx.eval_shape(in_one_dtype)


def details_of(model: nnx.Module, task: Task) -> dict[str, Any]:
    """For the record: of the task, and what computes the attention and the sums over rows, where there are any."""
    return {**task.details, **attention_of(model), **aggregation_of(model)}


def attention_of(model: nnx.Module) -> dict[str, str]:
    """What computes the attention; empty where the model has none."""
    layers = [
        module for _, module in nnx.iter_modules(model) if isinstance(module, SelfAttention | CausalSelfAttention)
    ]
    return {"attention": "cudnn" if layers[0].attend is cudnn_attention else "written out"} if layers else {}


def aggregation_of(model: nnx.Module) -> dict[str, str]:
    """What sums over sorted rows, such as a node's edges; empty where the model has no such sums. Over
    rows that are not sorted it is `scatter`."""
    layers = [module.sorted_sums for _, module in nnx.iter_modules(model) if hasattr(module, "sorted_sums")]
    return {"aggregation": "sorted_scatter" if layers[0] else "scatter"} if layers else {}
