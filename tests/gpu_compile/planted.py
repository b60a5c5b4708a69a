"""Small jitted functions, each of which breaks one rule: they show that it fires."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jaxlib.version
from jax import numpy as jnp

from harness.plan import Precision
from jax_runner.ahead import AbsentGpu, compiled
from tests.gpu_compile.programs import COMPARE_AND_SWAP, NOT_ONE_GRAPH, Examined
from tests.gpu_compile.rules import Subject, broken
from tests.gpu_compile.scatter import examined_scatter


@dataclass(frozen=True, kw_only=True)
class Planted:
    breaks: str
    """The name of the one rule."""
    step: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    precision: Precision = "fp32"
    is_one_graph: bool = False
    keeps_state: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """Of jax.jit."""


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


WITHOUT_CONVOLUTIONS = {
    "compiler_options": {"xla_gpu_enable_command_buffer": "FUSION", "xla_gpu_graph_min_graph_size": 1}
}
IMAGES_AND_KERNEL = (floats(4, 8, 8, 8), floats(3, 3, 8, 16))
PLANTED = (
    Planted(
        breaks=NOT_ONE_GRAPH,
        step=between_two,
        arguments=IMAGES_AND_KERNEL,
        is_one_graph=True,
        options=WITHOUT_CONVOLUTIONS,
    ),
    Planted(
        breaks="float64",
        step=lambda values: values.astype(jnp.float64).sum().astype(jnp.float32),
        arguments=(floats(64),),
    ),
    Planted(
        breaks="products of float32 in half precision",
        step=lambda left, right: (left @ right).astype(jnp.bfloat16),
        arguments=(floats(64, 64), floats(64, 64)),
        precision="bf16",
    ),
    Planted(
        breaks="transfers to or from the host",
        step=lambda values: jax.device_put(2 * values, jax.memory.Space.Host),
        arguments=(floats(64),),
    ),
    Planted(
        breaks="donated state that is not overwritten",  # the result has half its size
        step=lambda values: values.astype(jnp.bfloat16),
        arguments=(floats(64),),
        options={"donate_argnums": 0},
    ),
    Planted(
        breaks="donated state that is not overwritten",  # nothing is donated
        step=lambda values: values + 1,
        arguments=(floats(64),),
        keeps_state=True,
    ),
    Planted(
        breaks="more memory than the card has",  # 12 GB, and an RTX 2080 Ti has 11.5
        step=lambda values: values.sum(),
        arguments=(floats(3_000_000_000),),
    ),
    Planted(breaks="a loop of unknown length", step=until_it_is_large, arguments=(floats(64),)),
    Planted(
        breaks="a convolution that is no library call",  # cuDNN has three axes at most
        step=over_four_axes,
        arguments=(floats(2, 3, 6, 6, 6, 6), floats(4, 3, 3, 3, 3, 3)),
    ),
    Planted(breaks="a kernel whose class nobody knows", step=jnp.linalg.cholesky, arguments=(floats(64, 64),)),
    Planted(  # a step as it should be
        breaks="",
        step=lambda values: values + 1,
        arguments=(floats(64),),
        is_one_graph=True,
        keeps_state=True,
        options={"donate_argnums": 0, "compiler_options": {"xla_gpu_graph_min_graph_size": 1}},
    ),
)


def examined_planted(device: AbsentGpu) -> Iterator[Examined]:
    """By the names of the rules that they break. A bfloat16 scatter-add is of compare-and-swap before Hopper."""
    for planted in PLANTED:
        device.set_up("fp32")
        jax.config.update("jax_enable_x64", planted.breaks == "float64")
        made = compiled(device.for_target(jax.jit(planted.step, **planted.options)).lower(*planted.arguments))
        subject = Subject(
            made=made,
            card=device.card,
            precision=planted.precision,
            is_one_graph=planted.is_one_graph,
            keeps_state=planted.keeps_state,
        )
        yield Examined(name=planted.breaks, jaxlib=jaxlib.version.__version__, outcome="ok", broken=broken(subject))
    yield examined_scatter(device, jnp.bfloat16).model_copy(update={"name": COMPARE_AND_SWAP})
