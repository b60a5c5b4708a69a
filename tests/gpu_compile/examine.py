"""A process that compiles programs for a card and holds the rules over them: `python -m tests.gpu_compile.examine`.

A Request comes in on stdin, and an Examined goes out on stdout for each program, in a line of JSON. Arguments:
`planted` examines the planted programs instead; `lower_only` builds and lowers the programs without compiling them.
"""

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax import numpy as jnp

from harness.measure.process import explain
from harness.plan import Measurement, Precision
from harness.work.declared import use_case
from tests.gpu_compile.absent_gpu import AbsentGpu, Compiled, compiled, lowered
from tests.gpu_compile.programs import COMPARE_AND_SWAP, NOT_ONE_GRAPH, SCATTER_ADD, Examined, Request, name_of
from tests.gpu_compile.rules import Subject, broken, compares_and_swaps
from tests.made.gpu_specs import GPU_SPECS
from tests.made.stdout import Tell, reserved_stdout


def examined(measurement: Measurement, device: AbsentGpu, *, lower_only: bool = False) -> Examined:
    name = name_of(measurement)
    try:
        step = lowered(measurement, device)
        return Examined(name=name, outcome="ok") if lower_only else described(name, measurement, compiled(step), device)
    except Exception as error:
        traceback.print_exc()
        outcome, reason = explain(error, device)
        return Examined(name=name, outcome=outcome, reason=reason)


def described(name: str, measurement: Measurement, made: Compiled, device: AbsentGpu) -> Examined:
    """Apply the rules to a compiled step, and count what it is made of."""
    variant, cell = measurement.variant, measurement.cell
    subject = Subject(
        made=made,
        gpu=device.spec,
        precision=variant.precision,
        is_one_graph=use_case(cell.use_case_name).mode("jax", variant.execution_mode).graph == "step",
        keeps_state=cell.use_case_name == "train",
    )
    executable = made.executable
    return Examined(
        name=name,
        outcome="ok",
        broken=broken(subject),
        library_calls=executable.library_calls,
        layout_kernels=executable.classes.get("layout", 0),
        layout_bytes=executable.layout_bytes,
        peak_bytes=made.peak_bytes,
    )


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


# ---- small jitted functions, each of which breaks one rule: they show that it fires


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


def examined_planted(device: AbsentGpu) -> Iterator[Examined]:
    """By the names of the rules that they break."""

    def planted(
        breaks: str,
        step: Callable[..., Any],
        *arguments: jax.ShapeDtypeStruct,
        precision: Precision = "fp32",
        is_one_graph: bool = False,
        keeps_state: bool = False,
        **options: Any,
    ) -> Examined:
        """Args: options: of jax.jit."""
        device.set_up("fp32")
        jax.config.update("jax_enable_x64", breaks == "float64")
        made = compiled(device.for_target(jax.jit(step, **options)).lower(*arguments))
        subject = Subject(
            made=made, gpu=device.spec, precision=precision, is_one_graph=is_one_graph, keeps_state=keeps_state
        )
        return Examined(name=breaks, outcome="ok", broken=broken(subject))

    values, matrix = floats(64), floats(64, 64)
    graphs = {"xla_gpu_graph_min_graph_size": 1}
    without_convolutions = graphs | {"xla_gpu_enable_command_buffer": "FUSION"}
    yield planted(
        NOT_ONE_GRAPH,
        between_two,
        floats(4, 8, 8, 8),
        floats(3, 3, 8, 16),
        is_one_graph=True,
        compiler_options=without_convolutions,
    )
    yield planted("float64", lambda values: values.astype(jnp.float64).sum().astype(jnp.float32), values)
    yield planted(
        "products of float32 in half precision",
        lambda left, right: (left @ right).astype(jnp.bfloat16),
        matrix,
        matrix,
        precision="bf16",
    )
    to_host = jax.memory.Space.Host
    yield planted("transfers to or from the host", lambda values: jax.device_put(2 * values, to_host), values)
    not_overwritten = "donated state that is not overwritten"
    # The result has half its size; and nothing is donated.
    yield planted(not_overwritten, lambda values: values.astype(jnp.bfloat16), values, donate_argnums=0)
    yield planted(not_overwritten, lambda values: values + 1, values, keeps_state=True)
    # 12 GB, and an RTX 2080 Ti has 11.5.
    yield planted("more memory than the card has", lambda values: values.sum(), floats(3_000_000_000))
    yield planted("a loop of unknown length", until_it_is_large, values)
    # cuDNN has three axes at most.
    yield planted(
        "a convolution that is no library call", over_four_axes, floats(2, 3, 6, 6, 6, 6), floats(4, 3, 3, 3, 3, 3)
    )
    yield planted("a kernel whose class nobody knows", jnp.linalg.cholesky, matrix)
    # A step as it should be.
    yield planted(
        "",
        lambda values: values + 1,
        values,
        is_one_graph=True,
        keeps_state=True,
        donate_argnums=0,
        compiler_options=graphs,
    )


def answer(request: Request, tell: Tell) -> None:
    device = AbsentGpu(GPU_SPECS[request.gpu])
    if "planted" in sys.argv:
        for found in examined_planted(device):
            tell(found.model_dump_json())
        # Before Hopper, one of bfloat16 is made of compare-and-swap.
        tell(examined_scatter(device, COMPARE_AND_SWAP, jnp.bfloat16).model_dump_json())
        return
    lower_only = "lower_only" in sys.argv
    if not lower_only:
        tell(examined_scatter(device, SCATTER_ADD, jnp.float32).model_dump_json())
    for measurement in request.measurements:
        tell(examined(measurement, device, lower_only=lower_only).model_dump_json())
        device.forget_programs()


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # where arrays are; the plugin only compiles
    with reserved_stdout() as tell:
        answer(Request.model_validate_json(sys.stdin.read()), tell)
