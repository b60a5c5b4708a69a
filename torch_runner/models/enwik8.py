"""enwik8: text, byte by byte."""

from typing import Any

from torch import nn

from harness.work.benchmarks.enwik8 import SIZES
from torch_runner.models.gpt import Gpt


def make_model(name: str, _sizes: Any) -> nn.Module:
    return Gpt(SIZES[name])
