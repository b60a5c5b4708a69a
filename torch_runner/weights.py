"""Between PyTorch's parameters and the neutral layout of harness/work/weights.py, which is PyTorch's own."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from harness.work.weights import Draw, WeightOf, initial_weight

Neutral = dict[str, NDArray[np.float64]]


def load_initial_weights(model: nn.Module, seed: int, draw: Draw = initial_weight) -> None:
    """Those that training begins with."""
    load_weights(model, partial(draw, seed))


def load_weights(model: nn.Module, weight_of: WeightOf) -> None:
    """Overwrite all parameters and buffers in place, so that compiled code and optimizers keep pointing at them."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                tensor.zero_()
            else:
                value = torch.from_numpy(weight_of(name, tuple(tensor.shape)))
                if hasattr(tensor, "device_mesh"):  # sharded, and every rank has drawn all of it
                    from torch.distributed.tensor import distribute_tensor  # takes half a second

                    placed = value.to(tensor.device)
                    value = distribute_tensor(placed, tensor.device_mesh, tensor.placements, src_data_rank=None)
                tensor.copy_(value)


def store_as(model: nn.Module, dtype: torch.dtype) -> None:
    """Round all weights to `dtype`, but those and the statistics of BatchNorm, which computes in float32."""
    for module in model.modules():
        if not isinstance(module, nn.BatchNorm2d):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)


def to_neutral(tensors: Mapping[str, torch.Tensor], *, in_place: bool = False) -> Neutral:
    """Parameters or gradients by neutral name, with or without axes before the parameter's own (samples, models).

    `in_place`: in their own precision, without a copy where they are on the host; else in float64. Sharded ones are
    gathered, which every rank must do.
    """
    whole = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in tensors.items()}
    on_host = {name: tensor.detach().cpu() for name, tensor in whole.items()}
    return {name: (tensor if in_place else tensor.double()).numpy() for name, tensor in on_host.items()}


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
