"""What a device can do at most, as steps to be timed: a matrix product, and a triad for its memory."""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from jax_runner.device import Device, model_dtypes

SCALE = 3.0


def matrix_product(device: Device, precision: str, shape: tuple[int, int, int]) -> Callable[[], jax.Array]:
    """[m, k] by [k, n], `shape` being m, k, n: normal random numbers, into the same place each time. The device is set
    up for the precision; in bf16 and fp16 both operands and the result are stored so."""
    rows, inner, columns = shape
    dtypes = model_dtypes(precision)
    left, right = (
        _drawn(device, seed, size).astype(dtypes["dtype"])
        for seed, size in enumerate(((rows, inner), (inner, columns)))
    )

    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.matmul(left, right, precision=dtypes.get("precision"))

    return _into_one_place(product, left, right)


def triad(device: Device, elements: int) -> Callable[[], jax.Array]:
    """a = b + SCALE * c in float32, into the same a each time."""
    return _into_one_place(
        lambda first, second: first + SCALE * second, *(_drawn(device, seed, (elements,)) for seed in range(2))
    )


def _into_one_place(
    compute: Callable[[jax.Array, jax.Array], jax.Array], first: jax.Array, second: jax.Array
) -> Callable[[], jax.Array]:
    """The result of a call is given to the next one as memory, so that each waits for the one before it."""
    into = jax.jit(lambda _place, first, second: compute(first, second), donate_argnums=0, keep_unused=True)
    place = jnp.zeros_like(compute(first, second), device=first.sharding)

    def step() -> jax.Array:
        nonlocal place
        place = into(place, first, second)
        return place

    return step


def _drawn(device: Device, seed: int, size: tuple[int, ...]) -> jax.Array:
    return jax.device_put(jax.random.normal(jax.random.key(seed), size, jnp.float32), device.device)
