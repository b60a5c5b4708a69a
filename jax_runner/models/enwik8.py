"""enwik8: text, byte by byte."""

from typing import Any

from flax import nnx

from harness.work.benchmarks.enwik8 import SIZES
from jax_runner.models.gpt import Gpt


def make_model(name: str, _sizes: Any, dtypes: dict[str, Any]) -> nnx.Module:
    return Gpt(SIZES[name], dtypes)
