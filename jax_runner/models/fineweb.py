"""fineweb: text in GPT-2's tokens."""

from typing import Any

from flax import nnx

from harness.work.benchmarks.fineweb import size_of
from jax_runner.models.gpt import Gpt


def make_model(name: str, sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return {"gpt2": Gpt}[name](size_of(sizes), dtypes)
