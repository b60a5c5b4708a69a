"""The work of a step: the matrix products of a model's forward pass, and from them operations and bytes. Pure.

Each runner finds the products by itself, from shapes alone (products.py of each), and both must find the same numbers
to the last digit (tests/runners/test_products.py).

What counts: convolutions, dense layers and the two products of attention; two operations for each multiply-add. Padded
positions and what a causal mask hides count, as both frameworks' forward passes have them. A gradient is wanted of an
operand that depends on a parameter, and costs the product once more; so a first layer on the data itself has one of the
two. What a formulation computes again (rematerialisation, ghost norms) does not count. Look-ups of an embedding,
sums over neighbours, normalisation, activations, losses and optimizers are no products and have no operations here.
Source: "model FLOPs" of Chowdhery et al., "PaLM", 2022, appendix B; torch/utils/flop_counter.py counts a training step
of a convolutional network the same.
"""

from collections.abc import Iterable
from typing import NamedTuple

from harness.plan import Precision
from harness.results.record import Work

BYTES_OF_PARAMETER = 4
"""Weights and the state of an optimizer are float32 in every precision but fp64."""


class Product(NamedTuple):
    """One product of the forward pass, of a matrix or of a convolution."""

    multiply_adds: int
    elements: int
    """Of both operands and of the result."""
    wanted_gradients: int
    """How many of the two operands depend on a parameter."""


def element_bytes(precision: Precision) -> int:
    """In which the products' operands are stored."""
    return {"fp64": 8, "bf16": 2, "fp16": 2}.get(precision, 4)


def work_of(
    products: Iterable[Product],
    *,
    precision: Precision,
    with_gradients: bool,
    models: int = 1,
    parameter_count: int = 0,
    parameter_passes: int = 0,
) -> Work:
    """Of one step.

    Args:
        products: of one model's forward pass over its batch.
        with_gradients: the step has a backward pass.
        models: how many do the same.
        parameter_count: of all models.
        parameter_passes: how often a step reads or writes each parameter, its gradient and its optimizer's state.
    """
    of_model = list(products)
    passes = [1 + with_gradients * product.wanted_gradients for product in of_model]
    width = element_bytes(precision)
    of_parameter = 8 if precision == "fp64" else BYTES_OF_PARAMETER
    moved = sum(product.elements * count for product, count in zip(of_model, passes, strict=True))
    done = sum(product.multiply_adds * count for product, count in zip(of_model, passes, strict=True))
    return Work(
        products=models * len(of_model),
        forward_operations=2 * models * sum(product.multiply_adds for product in of_model),
        operations=2 * models * done,
        least_bytes=models * moved * width + parameter_count * parameter_passes * of_parameter,
    )
