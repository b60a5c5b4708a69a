"""The matrix products of a model's forward pass, as PyTorch dispatches them for tensors without memory."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from harness.measure.program import Session
from harness.work.products import Product
from torch_runner.models import make_model

_aten = torch.ops.aten
_MATRICES = {_aten.mm: (0, 1), _aten.addmm: (1, 2), _aten.bmm: (0, 1), _aten.baddbmm: (1, 2)}
"""Where the two operands stand among the arguments."""


def forward_products(session: Session[Any], inputs: Any) -> list[Product]:
    """Of the variant's model for these inputs, of which only the shapes matter; nothing is computed."""
    with torch.device("meta"):
        model = make_model(session, torch.float32)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    counting = _Counting()
    with FakeTensorMode():  # of a CPU, as autocast and attention know no device `meta`
        shapes = {name: _like(tensor).requires_grad_(tensor.requires_grad) for name, tensor in own.items()}
        with counting:
            functional_call(model, shapes, (tree_map(_like, inputs),))
    return counting.products


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operation = function.overloadpacket
        if operation in _MATRICES:
            left, right = (args[place] for place in _MATRICES[operation])
            self._add(result.numel() * left.shape[-1], left, right, result.numel())
        elif operation is _aten.convolution:
            images, kernel = args[:2]
            self._add(result.numel() * (kernel.numel() // kernel.shape[0]), images, kernel, result.numel())
        elif operation.__name__.startswith("_scaled_dot_product"):
            queries, keys, values = args[:3]
            self._add_attention(queries, keys, values)
        return result

    def _add_attention(self, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        """Queries by keys, and the scores by values: each [batch, heads, positions, features]."""
        scores = queries[..., 0].numel() * keys.shape[-2]
        self._add(scores * queries.shape[-1], queries, keys, scores)
        outputs = queries[..., 0].numel() * values.shape[-1]
        wanted = values.requires_grad + (queries.requires_grad or keys.requires_grad)
        self.products.append(Product(outputs * keys.shape[-2], scores + values.numel() + outputs, wanted))

    def _add(self, multiply_adds: int, left: Tensor, right: Tensor, outputs: int) -> None:
        wanted = left.requires_grad + right.requires_grad
        self.products.append(Product(multiply_adds, left.numel() + right.numel() + outputs, wanted))
