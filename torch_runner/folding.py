"""A model without BatchNorm, whose convolutions have a bias instead; harness/work/folding.py has its weights."""

import torch
from torch import nn

from harness.work.folding import convolution_before


def without_batch_norm(model: nn.Module) -> list[str]:
    """Take every BatchNorm out of the model and give the convolution before it a bias; the names of what was taken."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    for name in names:
        convolution = model.get_submodule(convolution_before(name))
        assert isinstance(convolution, nn.Conv2d) and convolution.bias is None, name
        convolution.bias = nn.Parameter(torch.zeros_like(convolution.weight[:, 0, 0, 0]))
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Identity())
    return names
