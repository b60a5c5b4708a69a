"""N models of one kind at once, in each of the ways that JAX has for it (use case 6).

A formulation turns a function of one model into one of N. What it takes and returns is laid out as the formulation
wants it, so that a step moves no data:

    vmap, map       arrays [models, ...]
    side_by_side    the same, but images [batch, height, width, models, channels] and kernels of convolutions
                    [height, width, channels in, models, channels out], as XLA's grouped convolutions want them
    unrolled        a tuple of N, one for each model
    one for all     what all models share has no such axis
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

Arrays = Any
"""A pytree."""
OfOneModel = Callable[..., Arrays]
PER_MODEL = 0
FOR_ALL = None
Axes = Sequence[int | None]
"""For each argument: PER_MODEL or FOR_ALL."""


def over_models(function: OfOneModel, formulation: str, axes: Axes, count: int) -> Callable[..., Arrays]:
    """`function` for `count` models; still to be jitted."""
    makers = {"vmap": vmapped, "side_by_side": side_by_side, "unrolled": unrolled, "map": mapped}
    return makers[formulation](function, axes, count)


def vmapped(function: OfOneModel, axes: Axes, count: int) -> Callable[..., Arrays]:
    """XLA sees batched products, and convolutions with `count` groups."""
    return jax.vmap(function, tuple(axes), axis_size=count)


def side_by_side(function: OfOneModel, axes: Axes, count: int) -> Callable[..., Arrays]:
    """vmap, without moving images and kernels around each convolution."""

    def of_all(*arguments: Arrays) -> Arrays:
        in_axes = tuple(
            axis if axis is FOR_ALL else jax.tree.map(axis_of_models, value)
            for value, axis in zip(arguments, axes, strict=True)
        )
        return beside(jax.vmap(function, in_axes, axis_size=count)(*arguments))

    return of_all


def axis_of_models(leaf: jax.Array) -> int:
    """Where side_by_side has it: in front of the last axis of images and of kernels of convolutions, else first."""
    return 3 if leaf.ndim == 5 else 0


def beside(arrays: Arrays) -> Arrays:
    """From [models, ...] to the layout of side_by_side. XLA cancels this against vmap's own move."""
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis_of_models(leaf)), arrays)


def unrolled(function: OfOneModel, axes: Axes, count: int) -> Callable[..., tuple[Arrays, ...]]:
    """XLA sees `count` independent models in one program."""

    def of_all(*arguments: Arrays) -> tuple[Arrays, ...]:
        return tuple(
            function(*(value if axis is FOR_ALL else value[index] for value, axis in zip(arguments, axes, strict=True)))
            for index in range(count)
        )

    return of_all


def mapped(function: OfOneModel, axes: Axes, count: int) -> Callable[..., Arrays]:
    """XLA sees a loop over the models: one after the other, in the memory of one."""

    def of_all(*arguments: Arrays) -> Arrays:
        per_model = tuple(value for value, axis in zip(arguments, axes, strict=True) if axis == PER_MODEL)

        def of_one(own: tuple[Arrays, ...]) -> Arrays:
            left = iter(own)
            return function(
                *(value if axis is FOR_ALL else next(left) for value, axis in zip(arguments, axes, strict=True))
            )

        return jax.lax.map(of_one, per_model)

    return of_all


def stack(of_models: Sequence[Arrays]) -> Arrays:
    """One pytree of arrays [models, ...] from one pytree for each model."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_models)


def laid_out(of_models: Sequence[Arrays], formulation: str) -> Arrays:
    if formulation == "unrolled":
        return tuple(of_models)
    return beside(stack(of_models)) if formulation == "side_by_side" else stack(of_models)


def stacked(arrays: Arrays, formulation: str) -> Arrays:
    """What a formulation returned, as arrays [models, ...]."""
    if formulation == "side_by_side":
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis_of_models(leaf), 0), arrays)
    return stack(arrays) if formulation == "unrolled" else arrays


def place(inputs: jax.Array, targets: jax.Array, formulation: str, *, shared: bool) -> tuple[Arrays, Arrays]:
    """A batch [models, batch, ...], or [batch, ...] for all, in the formulation's layout."""
    if shared:
        return inputs, targets
    if formulation == "unrolled":
        return tuple(inputs), tuple(targets)
    return (beside(inputs), targets) if formulation == "side_by_side" else (inputs, targets)


def draw(
    key: jax.Array, lead: tuple[int, ...], shape: tuple[int, ...], classes: int, formulation: str, *, shared: bool
) -> tuple[Arrays, Arrays]:
    """A random batch in the formulation's layout: normal inputs [*lead, *shape] and targets [*lead]."""
    of_inputs, of_labels = jax.random.split(key)
    inputs = jax.random.normal(of_inputs, (*lead, *shape), jnp.float32)
    targets = jax.random.randint(of_labels, lead, 0, classes, jnp.int32)
    return place(inputs, targets, formulation, shared=shared)
