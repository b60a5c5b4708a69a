"""Modes of a GPU, and of a compiler, without either.

CUDA graphs: the step runs again in each replay, and all that a capture is seen by from outside is as it is there.
torch.compile: traced, differentiated and run as it is, without the minutes that Inductor takes.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from harness.work.declared import Mode
from torch_runner import compiler
from torch_runner.use_cases import inference, many_models, per_sample_gradients, train


class GraphOnCpu:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.step = step
        self.outputs: Any = None

    def replay(self) -> None:
        """Writes the outputs over those of the replay before."""
        outputs = compiler.without_autograd(self.step())
        if self.outputs is None:
            self.outputs = tree_map_only(torch.Tensor, torch.clone, outputs)
        for new, old in zip(tree_leaves(outputs), tree_leaves(self.outputs), strict=True):
            old.copy_(new)


def captured_on_cpu(step: Callable[[], Any], _forget_gradients: Callable[[], None] = lambda: None) -> Callable[[], Any]:
    """Stands for torch_runner.compiler.captured."""
    graph = GraphOnCpu(step)

    def call() -> Any:
        graph.replay()
        return graph.outputs

    return call


def allow_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the modes that need a GPU; what Inductor does for a GPU alone is left out."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", GraphOnCpu)
    monkeypatch.setattr(compiler, "require_ability", lambda *_: None)
    for module in (train, per_sample_gradients, inference, many_models):
        monkeypatch.setattr(module, "captured", captured_on_cpu)


def only_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile without Inductor."""
    options = {"fullgraph": True, "dynamic": False, "backend": "aot_eager"}

    def compile_options(mode: Mode) -> dict[str, Any]:
        assert mode.run_as in ("compiled", "max_autotune") and mode.graph in ("none", "parts", "step")
        return options

    monkeypatch.setattr(compiler, "compile_options", compile_options)
    torch.compiler.reset()
