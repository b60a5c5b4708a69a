"""Small jitted functions, each of which breaks one rule: they show that it fires."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import numpy as jnp

from harness.plan import Precision
from jax_runner.ahead import AbsentGpu, compiled
from tests.gpu_compile.programs import NOT_ONE_GRAPH, Examined
from tests.gpu_compile.rules import Subject, broken


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def between_two(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution between two other kernels."""
    numbers = ("NHWC", "HWIO", "NHWC")
    convolved = jax.lax.conv_general_dilated(jnp.cos(images), kernel, (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.sin(convolved)


def over_four_axes(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(images, kernel, (1, 1, 1, 1), "SAME")


def until_it_is_large(values: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda values: values.sum() < 10, lambda values: jnp.sin(values) + 1, values)


def examined_planted(device: AbsentGpu) -> Iterator[Examined]:
    """By the names of the rules that they break."""

    def planted(
        breaks: str,
        step: Callable[..., Any],
        *arguments: jax.ShapeDtypeStruct,
        precision: Precision = "fp32",
        is_one_graph: bool = False,
        keeps_state: bool = False,
        **options: Any,
    ) -> Examined:
        """Args: options: of jax.jit."""
        device.set_up("fp32")
        jax.config.update("jax_enable_x64", breaks == "float64")
        made = compiled(device.for_target(jax.jit(step, **options)).lower(*arguments))
        subject = Subject(
            made=made, card=device.card, precision=precision, is_one_graph=is_one_graph, keeps_state=keeps_state
        )
        return Examined(name=breaks, outcome="ok", broken=broken(subject))

    values, matrix = floats(64), floats(64, 64)
    graphs = {"xla_gpu_graph_min_graph_size": 1}
    without_convolutions = graphs | {"xla_gpu_enable_command_buffer": "FUSION"}
    yield planted(
        NOT_ONE_GRAPH,
        between_two,
        floats(4, 8, 8, 8),
        floats(3, 3, 8, 16),
        is_one_graph=True,
        compiler_options=without_convolutions,
    )
    yield planted("float64", lambda values: values.astype(jnp.float64).sum().astype(jnp.float32), values)
    yield planted(
        "products of float32 in half precision",
        lambda left, right: (left @ right).astype(jnp.bfloat16),
        matrix,
        matrix,
        precision="bf16",
    )
    to_host = jax.memory.Space.Host
    yield planted("transfers to or from the host", lambda values: jax.device_put(2 * values, to_host), values)
    not_overwritten = "donated state that is not overwritten"
    # The result has half its size; and nothing is donated.
    yield planted(not_overwritten, lambda values: values.astype(jnp.bfloat16), values, donate_argnums=0)
    yield planted(not_overwritten, lambda values: values + 1, values, keeps_state=True)
    # 12 GB, and an RTX 2080 Ti has 11.5.
    yield planted("more memory than the card has", lambda values: values.sum(), floats(3_000_000_000))
    yield planted("a loop of unknown length", until_it_is_large, values)
    # cuDNN has three axes at most.
    yield planted(
        "a convolution that is no library call", over_four_axes, floats(2, 3, 6, 6, 6, 6), floats(4, 3, 3, 3, 3, 3)
    )
    yield planted("a kernel whose class nobody knows", jnp.linalg.cholesky, matrix)
    # A step as it should be.
    yield planted(
        "",
        lambda values: values + 1,
        values,
        is_one_graph=True,
        keeps_state=True,
        donate_argnums=0,
        compiler_options=graphs,
    )
