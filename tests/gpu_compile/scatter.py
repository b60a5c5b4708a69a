"""A scatter-add, as the gradient of an embedding has it, by its PTX."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax import numpy as jnp

from jax_runner.ahead import AbsentGpu
from tests.gpu_compile.programs import COMPARE_AND_SWAP, SCATTER_ADD, Examined
from tests.gpu_compile.rules import compares_and_swaps


def examined_scatter(device: AbsentGpu, dtype: Any = jnp.float32) -> Examined:
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
    return Examined(
        name=SCATTER_ADD,
        jaxlib=jaxlib.version.__version__,
        outcome="ok",
        broken={COMPARE_AND_SWAP: words} if words else {},
    )
