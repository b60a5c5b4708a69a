"""A small training step in PyTorch, run eagerly, with one cause of a longer step planted in it."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LAYERS = 3
LEARNING_RATE = 1e-3


@torch.library.custom_op("planted::wait", mutates_args=())
def unknown_operator(values: Tensor, seconds: float) -> Tensor:
    """Sleeps; its name says nothing."""
    time.sleep(seconds)
    return values.clone()


def make_step(batch: int, width: int, cause: str, *, rows: int = 1, seconds: float = 0.0) -> Callable[[], Any]:
    """Dense layers, forward, backward and SGD; its outputs can be waited for.

    Args:
        rows: of the array [rows, width] in which work is planted.
        seconds: in which nothing computes.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator)

    inputs, rotation = drawn(batch), torch.linalg.qr(drawn(width))[0]
    weights = [(drawn(width) / width**0.5).requires_grad_() for _ in range(LAYERS)]
    extra = drawn(rows)

    def step() -> Tensor:
        nonlocal extra
        hidden = inputs
        for weight in weights:
            hidden = torch.tanh(hidden @ weight)
        loss = hidden.square().mean()
        gradients = torch.autograd.grad(loss, weights)
        if cause == "the host waits":
            time.sleep(seconds)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=LEARNING_RATE)
            if cause == "a product":
                extra = extra @ rotation
            elif cause == "an elementwise pass":
                extra.mul_(0.999).add_(0.001)
            elif cause == "a change of layout":
                extra = extra.t().contiguous().view(extra.shape)
            elif cause == "an unknown operator":
                extra = unknown_operator(extra, seconds)
        return loss.detach()

    return step
