"""What the parity gate compares of use case 6: outputs, losses and gradients of the first step, and what a few steps of
the program that is timed have added to the weights; a first axis of models everywhere."""

import jax
from numpy.typing import NDArray

from harness.many_models import gate_numbers
from harness.session import Session
from jax_runner.use_cases import many_models


def parity_numbers(session: Session) -> dict[str, NDArray]:
    jax.clear_caches()
    return gate_numbers(many_models.parity_numbers(session), session.measurement.protocol.seed)
