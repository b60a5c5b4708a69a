"""What PyTorch calls."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """While it is entered: each operator that is called, with its arguments, as autograd and vmap leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, operator: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.calls.append((operator, arguments))
        return operator(*arguments, **(options or {}))
