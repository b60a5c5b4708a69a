"""What the parity gate compares of use cases 3 and 4: one batch through the model, and the output that is timed."""

import torch

from harness.gradient_check import PER_SAMPLE_OUTPUTS
from harness.measure import COLD_CALLS
from harness.parity import named_output
from harness.session import Session
from torch_runner.use_cases import per_sample_gradients
from torch_runner.weights import Neutral, to_neutral


def parity_numbers(session: Session) -> Neutral:
    """Logits and mean loss of the batch, and the output for it, of all devices together."""
    torch.compiler.reset()
    variant, settings, world = session.measurement.variant, session.measurement.settings, session.world
    output = str(variant.options["output"])
    problem = per_sample_gradients.Problem(session)
    rows = range(variant.batch_size)
    images, labels = problem.batch(rows[world.rows(variant.batch_size)])
    with torch.no_grad():
        logits = problem.apply(problem.params, images)
        loss = problem.losses(logits, labels, "mean")

    compute = per_sample_gradients.make_function(
        problem,
        variant.execution_mode,
        output,
        clip_norm=float(settings["clip_norm"]),
        chunk_size=int(settings["chunk_size"]),
    )
    batch = problem.own_batch(rows)
    for _ in range(COLD_CALLS):  # CUDA graphs are warmed up, recorded, replayed: the third call is what is timed
        outputs = compute(*batch)
    numbers = to_neutral(outputs)
    if output in PER_SAMPLE_OUTPUTS:
        numbers = {name: session.of_all_ranks(value) for name, value in numbers.items()}
    return {
        "logits": session.of_all_ranks(logits.cpu().numpy()),
        "loss": session.device.mean_over_ranks(loss.cpu().numpy()),
    } | named_output(output, numbers)
