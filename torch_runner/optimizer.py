"""The optimizers of training: PyTorch's fused ones, a few kernels for all parameters, and clipping in front of them.

harness/work/optimizers.py has the formulas.
"""

from typing import Any

import torch
from torch import Tensor, nn

from harness.work.optimizers import weight_decay_of
from harness.work.use_cases.train import Settings


def make_optimizer(
    settings: Settings, model: nn.Module, rate: float | Tensor, *, in_graph: bool, fused: bool = True
) -> torch.optim.Optimizer:
    """
    Args:
        rate: the learning rate, or float32 [1] on the model's device.
        in_graph: a CUDA graph captures its step; AdamW has to know.
        fused: of SGD.
    """
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused
        )
    by_decay: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        by_decay.setdefault(weight_decay_of(settings, parameter.ndim), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay} for decay, parameters in by_decay.items()
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
        capturable=in_graph,
    )
    # Else it warns that the steps before the capture (torch_runner/compiler.py) are no capture.
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


@torch.no_grad()
def clip_gradients(model: nn.Module, max_norm: float) -> None:
    """In place, over all parameters together. Nothing is read on the host."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, max_norm / norm.clamp(min=max_norm))


def reset_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """As if it had seen nothing, in place: CUDA graphs keep pointing at what it keeps. A momentum of zero is as good as
    none: v = momentum * 0 + g. AdamW counts its steps on the device, from zero."""
    for state in optimizer.state.values():
        for kept in state.values():
            kept.zero_()


def moments(settings: Settings, optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """AdamW's, by the names that the parity gate has for them."""
    if settings.optimizer == "sgd":
        return {}
    kept = {"first_moments": "exp_avg", "second_moments": "exp_avg_sq"}
    parameters = dict(model.named_parameters())
    return {
        quantity: {name: optimizer.state[parameter][key] for name, parameter in parameters.items()}
        for quantity, key in kept.items()
    }


def first_gradients(settings: Settings, optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """After one step: the gradients that it took, by what it keeps of them (harness/work/optimizers.py, Reference)."""
    if settings.optimizer == "sgd":
        return {name: optimizer.state[one]["momentum_buffer"] for name, one in model.named_parameters()}
    share = 1 - settings.beta1
    first_moments = moments(settings, optimizer, model)["first_moments"]
    return {name: moment / share for name, moment in first_moments.items()}
