"""fineweb: text in GPT-2's tokens."""

from typing import Any

from torch import nn

from harness.work.benchmarks.fineweb import size_of
from torch_runner.models.gpt import Gpt


def make_model(name: str, sizes: Any) -> nn.Module:
    return {"gpt2": Gpt}[name](size_of(sizes))
