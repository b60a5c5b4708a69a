"""A process that compiles programs for a card and holds the rules over them: `python -m tests.gpu_compile.examine`.

On stdin stands a request as jax_runner/ahead.py takes it; with the word `planted`, it is the planted programs that are
examined. On stdout a line of JSON follows for each program, an Examined.
"""

import sys
import traceback
from functools import partial

import jax
import jaxlib.version

from harness.measure.ahead import Request, Tell, serve
from harness.measure.process import explain
from harness.plan import Measurement
from harness.work.cards import card
from harness.work.declared import use_case
from jax_runner.ahead import AbsentGpu, compiled, lowered
from tests.gpu_compile.planted import examined_planted
from tests.gpu_compile.programs import Examined, name_of
from tests.gpu_compile.rules import Subject, broken
from tests.gpu_compile.scatter import examined_scatter


def examined(measurement: Measurement, device: AbsentGpu) -> Examined:
    variant, cell = measurement.variant, measurement.cell
    mode = use_case(cell.use_case_name).mode("jax", variant.execution_mode)
    tell = partial(Examined, name=name_of(measurement), jaxlib=jaxlib.version.__version__)
    try:
        made = compiled(lowered(measurement, device))
    except Exception as error:
        traceback.print_exc()
        outcome, reason = explain(error, device)
        return tell(outcome=outcome, reason=reason)
    subject = Subject(
        made=made,
        card=device.card,
        precision=variant.precision,
        is_one_graph=mode.graph == "step",
        keeps_state=cell.use_case_name == "train",
    )
    return tell(outcome="ok", broken=broken(subject), compile_s=made.compile_s)


def answer(request: Request, tell: Tell) -> int:
    device = AbsentGpu(card(request.card))
    if sys.argv[1:] == ["planted"]:
        for found in examined_planted(device):
            tell(found.model_dump_json())
        return 0
    tell(examined_scatter(device).model_dump_json())
    for measurement in request.measurements:
        tell(examined(measurement, device).model_dump_json())
        device.forget_programs()
    return 0


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(serve(answer))
