"""A process that compiles programs for a card and holds the rules over them: `python -m tests.gpu_compile.examine`.

On stdin stands a request as jax_runner/ahead.py takes it; with the word `planted`, it is the planted programs that are
examined. On stdout a line of JSON follows for each program, an Examined.
"""

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import jax
from jax import numpy as jnp

from harness.measure.ahead import Request, Tell, serve
from harness.measure.process import explain
from harness.plan import Measurement
from harness.work.cards import card
from harness.work.declared import use_case
from jax_runner.ahead import AbsentGpu, compiled, lowered
from tests.gpu_compile.planted import examined_planted
from tests.gpu_compile.programs import COMPARE_AND_SWAP, SCATTER_ADD, Examined, name_of
from tests.gpu_compile.rules import Subject, broken, compares_and_swaps


def examined(measurement: Measurement, device: AbsentGpu) -> Examined:
    variant, cell = measurement.variant, measurement.cell
    mode = use_case(cell.use_case_name).mode("jax", variant.execution_mode)
    try:
        made = compiled(lowered(measurement, device))
    except Exception as error:
        traceback.print_exc()
        outcome, reason = explain(error, device)
        return Examined(name=name_of(measurement), outcome=outcome, reason=reason)
    subject = Subject(
        made=made,
        card=device.card,
        precision=variant.precision,
        is_one_graph=mode.graph == "step",
        keeps_state=cell.use_case_name == "train",
    )
    return Examined(name=name_of(measurement), outcome="ok", broken=broken(subject))


def examined_scatter(device: AbsentGpu, name: str, dtype: Any) -> Examined:
    """As the gradient of an embedding has it. PTX is dumped of this alone: it makes compiling ten times slower."""
    device.set_up("fp32")
    step = device.for_target(jax.jit(lambda table, rows, values: table.at[rows].add(values, mode="promise_in_bounds")))
    with tempfile.TemporaryDirectory() as folder:
        step.lower(
            jax.ShapeDtypeStruct((5000, 64), dtype),
            jax.ShapeDtypeStruct((4096,), jnp.int32),
            jax.ShapeDtypeStruct((4096, 64), dtype),
        ).compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_module_re": ".*", "xla_dump_emitter_re": ".*"})
        words = compares_and_swaps("".join(path.read_text(errors="replace") for path in Path(folder).glob("*.ptx")))
    return Examined(name=name, outcome="ok", broken={COMPARE_AND_SWAP: words} if words else {})


def answer(request: Request, tell: Tell) -> int:
    device = AbsentGpu(card(request.card))
    if sys.argv[1:] == ["planted"]:
        for found in examined_planted(device):
            tell(found.model_dump_json())
        # One of bfloat16 is of compare-and-swap before Hopper.
        tell(examined_scatter(device, COMPARE_AND_SWAP, jnp.bfloat16).model_dump_json())
        return 0
    tell(examined_scatter(device, SCATTER_ADD, jnp.float32).model_dump_json())
    for measurement in request.measurements:
        tell(examined(measurement, device).model_dump_json())
        device.forget_programs()
    return 0


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(serve(answer))
