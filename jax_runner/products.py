"""The matrix products of a model's forward pass, as they stand in its jaxpr."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import jax
from flax import nnx
from jax.extend import core

from harness.measure.program import Session
from harness.work.products import Product
from jax_runner.device import model_dtypes
from jax_runner.models import make_model
from jax_runner.weights import arrays_of


def forward_products(session: Session[Any], inputs: Any) -> list[Product]:
    """Of the variant's model for these inputs, of which only the shapes matter; nothing is computed."""
    model = make_model(session, model_dtypes("fp32"))
    graphdef, weights = nnx.graphdef(model), arrays_of(model)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (weights, inputs))

    def outputs(weights: Any, inputs: Any) -> jax.Array:
        merged: Any = nnx.merge(graphdef, weights)
        found: jax.Array = merged(inputs)
        return found

    traced = jax.make_jaxpr(outputs)(*shapes).jaxpr
    of_weights = len(jax.tree.leaves(weights))
    depends = [place < of_weights for place in range(len(traced.invars))]
    return _Counting().products_of(traced, depends)[0]


class _Counting:
    """Follows which values depend on a parameter."""

    def products_of(self, jaxpr: Any, depends: Sequence[bool]) -> tuple[list[Product], list[bool]]:
        """The products, and which of the outputs depend on a parameter.

        Args:
            depends: which of the inputs do.
        """
        known = dict(zip(jaxpr.invars, depends, strict=True))
        products: list[Product] = []
        for equation in jaxpr.eqns:
            of_operands = [_depends(variable, known) for variable in equation.invars]
            of_outputs = [any(of_operands)] * len(equation.outvars)
            name = equation.primitive.name
            if name in ("dot_general", "conv_general_dilated"):
                products.append(_product(equation, sum(of_operands)))
            elif inner := list(_inner(equation)):
                found, of_outputs = self._of_inner(equation, inner, of_operands)
                products += found
            known |= dict(zip(equation.outvars, of_outputs, strict=True))
        return products, [_depends(variable, known) for variable in jaxpr.outvars]

    def _of_inner(
        self, equation: Any, inner: Sequence[Any], of_operands: Sequence[bool]
    ) -> tuple[list[Product], list[bool]]:
        """Of a call, whose function has the same operands. Other equations with a function inside, such as a loop, may
        hold none: how often they do it is not known here."""
        (function, *others) = inner
        if not others and len(function.invars) == len(of_operands) and equation.primitive.name not in ("scan", "while"):
            return self.products_of(function, of_operands)
        if any(self.products_of(one, [True] * len(one.invars))[0] for one in inner):
            raise ValueError(f"the forward pass has products in a {equation.primitive.name}, which are not counted")
        return [], [any(of_operands)] * len(equation.outvars)


def _depends(variable: Any, known: dict[Any, bool]) -> bool:
    return not isinstance(variable, core.Literal) and known.get(variable, False)


def _inner(equation: Any) -> Iterator[Any]:
    """The functions inside an equation."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one


def _product(equation: Any, wanted_gradients: int) -> Product:
    left, right = (variable.aval for variable in equation.invars)
    (result,) = (variable.aval for variable in equation.outvars)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        inner = prod(left.shape[axis] for axis in contracted)
    else:
        inner = right.size // right.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return Product(result.size * inner, left.size + right.size + result.size, wanted_gradients)
