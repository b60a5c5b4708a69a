"""N models of one kind at once, in each of the ways that JAX has for it (use case 6).

A formulation turns a function of one model into one of N. What it takes and returns is laid out as the formulation
wants it, so that a step moves no data:

    vmap, patches,  arrays [models, ...]
    map, unrolled
    side_by_side    the same, but images [batch, height, width, models, channels] and kernels of convolutions
                    [height, width, channels in, models, channels out], as XLA's grouped convolutions want them
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


TOGETHER = {"grad_of_vmap": "vmap", "grad_of_side_by_side": "side_by_side"}
"""Formulations that take the gradient of all models' losses together, and their layouts. As the models do not depend on
each other, the gradient of the losses' sum is each model's own. Of the gradient of a vmapped convolution XLA sees a
grouped weight gradient (`batch_group_count`), which a GPU has from cuDNN; of a vmapped gradient, a forward convolution
whose window is the whole output (`feature_group_count`), which it has not. On a CPU the former is the one that XLA is
slow at, by a factor of ten and more."""


LAYOUTS = {**TOGETHER, "patches": "vmap"}
"""By formulation, the one that its arrays are laid out as. In `patches` the model itself is written down in another way
(layers.py)."""


def over_models(function: OfOneModel, formulation: str, axes: Axes, count: int) -> Callable[..., Arrays]:
    """`function` for `count` models; still to be jitted."""
    return OVER_MODELS[formulation](function, axes, count)


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


def unrolled(function: OfOneModel, axes: Axes, count: int) -> Callable[..., Arrays]:
    """XLA sees `count` independent models in one program, each with its slice of the arrays. A call takes and returns
    as many arrays as one of vmap: N times as many would cost the host more time than small models cost the device."""

    def of_all(*arguments: Arrays) -> Arrays:
        return stack([function(*own_arguments(arguments, axes, index)) for index in range(count)])

    return of_all


def own_arguments(arguments: Sequence[Arrays], axes: Axes, index: int) -> list[Arrays]:
    """Of one model."""
    return [
        value if axis is FOR_ALL else jax.tree.map(lambda leaf: leaf[index], value)
        for value, axis in zip(arguments, axes, strict=True)
    ]


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


def forward_and_pullback(
    loss: OfOneModel, formulation: str, axes: Axes, count: int, *, together: bool
) -> Callable[..., Arrays]:
    """From the models' parameters and batches to their losses [models] and what `gradients_of` takes; `loss` and `axes`
    as in `over_models`, the parameters first. Still to be jitted.

    Args:
        together: see TOGETHER.
    """

    def of_one(params: Arrays, *batch: Arrays) -> Arrays:
        return jax.vjp(lambda params: loss(params, *batch), params)

    def of_the_sum(params: Arrays, *batch: Arrays) -> Arrays:
        return jax.vjp(lambda params: over_models(loss, formulation, axes, count)(params, *batch), params)

    def of_slices(params: Arrays, *batch: Arrays) -> Arrays:
        # They were taken before: the gradient by the whole would be N arrays of zeros around the slices.
        params_of_models, batches = [], []
        for index in range(count):
            own_params, *own_batch = own_arguments((params, *batch), axes, index)
            params_of_models.append(own_params)
            batches.append(own_batch)

        def losses(params_of_models: list[Arrays]) -> jax.Array:
            return jnp.stack([loss(own, *batch) for own, batch in zip(params_of_models, batches, strict=True)])

        return jax.vjp(losses, params_of_models)

    if formulation == "unrolled":
        return of_slices
    return of_the_sum if together else over_models(of_one, formulation, axes, count)


def gradients_of(pullback: Any, formulation: str, count: int, dtype: Any, *, together: bool) -> Arrays:
    """Of each model's loss by its parameters, in the formulation's layout; `together` as `forward_and_pullback` had it.

    Args:
        dtype: of the losses.
    """
    if formulation == "unrolled" or together:
        (gradients,) = pullback(jnp.ones(count, dtype))
        return stack(gradients) if formulation == "unrolled" else gradients
    of_one = lambda pullback: pullback(jnp.ones((), dtype))[0]  # noqa: E731
    return over_models(of_one, formulation, (PER_MODEL,), count)(pullback)


def laid_out(of_models: Sequence[Arrays], formulation: str) -> Arrays:
    return beside(stack(of_models)) if formulation == "side_by_side" else stack(of_models)


def stacked(arrays: Arrays, formulation: str) -> Arrays:
    """What a formulation returned, as arrays [models, ...]."""
    if formulation == "side_by_side":
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis_of_models(leaf), 0), arrays)
    return arrays


def place(inputs: jax.Array, targets: jax.Array, formulation: str, *, shared: bool) -> tuple[Arrays, Arrays]:
    """A batch [models, batch, ...], or [batch, ...] for all, in the formulation's layout."""
    return (beside(inputs), targets) if formulation == "side_by_side" and not shared else (inputs, targets)


def draw(
    key: jax.Array, lead: tuple[int, ...], shape: tuple[int, ...], classes: int, formulation: str, *, shared: bool
) -> tuple[Arrays, Arrays]:
    """A random batch in the formulation's layout: normal inputs [*lead, *shape] and targets [*lead]."""
    of_inputs, of_labels = jax.random.split(key)
    inputs = jax.random.normal(of_inputs, (*lead, *shape), jnp.float32)
    targets = jax.random.randint(of_labels, lead, 0, classes, jnp.int32)
    return place(inputs, targets, formulation, shared=shared)


OVER_MODELS: dict[str, Callable[[OfOneModel, Axes, int], Callable[..., Arrays]]] = {
    "vmap": vmapped,
    "side_by_side": side_by_side,
    "unrolled": unrolled,
    "map": mapped,
}
"""By formulation."""
