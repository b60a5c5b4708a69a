"""The work of a program's step, counted by its runner from the shapes of the forward pass."""

import importlib
from typing import Any

from harness.measure.program import Program, Session
from harness.results.record import Work
from harness.work.products import Product, work_of

NOT_KNOWN = "the use case does not tell what its model takes"


def work_of_step(program: Program, session: Session[Any]) -> Work | None:
    """None where the program does not tell its inputs. Nothing is computed."""
    inputs = program.model_inputs()
    if inputs is None:
        return None
    measurement, use_case = session.measurement, session.use_case
    products: list[Product] = importlib.import_module(f"{measurement.framework}_runner.products").forward_products(
        session, inputs
    )
    return work_of(
        products,
        precision=measurement.variant.precision,
        with_gradients=use_case.has_gradients,
        models=program.model_count,
        parameter_count=program.parameter_count,
        parameter_passes=use_case.parameter_passes(measurement.settings),
    )
