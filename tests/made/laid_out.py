"""A CPU that stands for a GPU whose XLA lays arrays out in memory in another way than they are written."""

from typing import Any

import jax
from jax.experimental.layout import Format, Layout

from jax_runner.device import Device


class OnGpu(Device):
    on_gpu = True


def backwards(tree: Any) -> Any:
    """For FREE of jax_runner/compiler.py: of every array, the first axis is the innermost."""
    return jax.tree.map(lambda array: Format(Layout(tuple(reversed(range(array.ndim)))), array.sharding), tree)


def kernels_in_memory(tree: Any) -> set[tuple[int, ...]]:
    """The order of the axes of all convolutions' kernels, the outermost first."""
    return {leaf.format.layout.major_to_minor for leaf in jax.tree.leaves(tree) if leaf.ndim == 4}
