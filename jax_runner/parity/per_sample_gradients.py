"""What the parity gate compares of use cases 3 and 4: one batch through the model, and the output that is timed."""

import jax
import numpy as np

from harness.gradient_check import PER_SAMPLE_OUTPUTS
from harness.measure import COLD_CALLS
from harness.parity import named_output
from harness.session import Session
from jax_runner.several_devices import own_part
from jax_runner.use_cases import per_sample_gradients
from jax_runner.weights import Neutral


def parity_numbers(session: Session) -> Neutral:
    """Logits and mean loss of the batch, and the output for it, of all devices together."""
    jax.clear_caches()
    variant, settings, world = session.measurement.variant, session.measurement.settings, session.world
    output = str(variant.options["output"])
    problem = per_sample_gradients.Problem(session)
    rows = range(variant.batch_size)
    images, labels = problem.batch(rows[world.rows(variant.batch_size)])
    logits = jax.jit(problem.apply)(problem.params, images)
    loss = problem.losses(logits, labels).mean()

    compute = jax.jit(
        per_sample_gradients.make_function(
            problem,
            variant.execution_mode,
            output,
            clip_norm=float(settings["clip_norm"]),
            chunk_size=int(settings["chunk_size"]),
        )
    )
    params, batch = problem.replicated(problem.params), problem.own_batch(rows)
    for _ in range(COLD_CALLS):
        outputs = compute(params, *batch)
    numbers = problem.to_neutral(own_part(outputs), output)
    if output in PER_SAMPLE_OUTPUTS:
        numbers = {name: session.of_all_ranks(value) for name, value in numbers.items()}
    return {
        "logits": session.of_all_ranks(np.asarray(logits)),
        "loss": session.device.mean_over_ranks(np.asarray(loss)),
    } | named_output(output, numbers)
