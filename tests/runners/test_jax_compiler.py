"""jax_runner/compiler.py without a GPU: what a mode tells XLA, what is refused, and how XLA's dump is read.

XLA for a CPU takes the options of XLA for GPUs and does nothing with them, so that their names and values are tried.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from harness.errors import CheckFailed, Refused
from harness.work.declared import JIT, Formulation, Mode, Run, use_case, use_case_names
from jax_runner import compiler
from jax_runner.compiler import compiler_options, jitted, witness_of_graphs
from jax_runner.device import Device
from tests.made.laid_out import OnGpu
from tests.made.sessions import build, make_session

MODES = {(name, mode.name): mode for name in use_case_names() for mode in use_case(name).modes["jax"]}
GRAPH = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,DYNAMIC_SLICE_FUSION,"
    "CONVOLUTION,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
}
TUNED = {"xla_gpu_exhaustive_tiling_search": True, "xla_gpu_cudnn_gemm_fusion_level": 2}
OVERLAP = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_all_reduce_combine_threshold_bytes": 1_048_576,
}


def mode_of(run: Run) -> Mode:
    return Mode(written=Formulation(name="step", runs=(run,)), run=run)


class OnCpu(Device):
    on_gpu = False  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("train", "step.jit", {}),
        ("train", "step.jit_graph", GRAPH),
        ("train", "step.tuned_graph", GRAPH | TUNED),
        ("train", "step.nchw", {"xla_gpu_force_conv_nchw": True}),
        ("train", "step.nhwc", {"xla_gpu_force_conv_nhwc": True}),
        ("train", "step.overlap", OVERLAP),
        ("many_models", "unrolled.jit_graph", GRAPH | {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}),
    ],
)
def test_options_of_a_mode(name: str, mode: str, options: dict[str, Any]) -> None:
    assert compiler_options(MODES[name, mode], OnGpu()) == options


@pytest.mark.parametrize("mode", MODES.values(), ids=map("-".join, MODES))
def test_this_jaxlib_knows_every_option(mode: Mode) -> None:
    """And without a GPU they are refused, not ignored."""
    if not compiler_options(mode, OnGpu()):
        assert compiler_options(mode, OnCpu()) == {}
        return
    with pytest.raises(Refused, match=f"execution mode {mode.name} needs an NVIDIA GPU"):
        compiler_options(mode, OnCpu())


@pytest.mark.parametrize(
    ("values", "layout", "reason"),
    [
        ("FUSION,OF_ANOTHER_RELEASE", "own", "'OF_ANOTHER_RELEASE' is not a valid enum value"),
        ("FUSION", "of_another_release", "No such compile option: 'xla_gpu_force_conv_of_another_release'"),
    ],
)
def test_what_this_jaxlib_does_not_know_is_refused(
    values: str, layout: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is timed, and with XLA's own words."""
    monkeypatch.setattr(compiler, "IN_GRAPHS", values)
    mode = mode_of(Run(name="new", graph="step", layout=layout))
    with pytest.raises(Refused, match=f"execution mode step.new: jaxlib .* does not know it: .*{reason}"):
        jitted(lambda values: values, mode, OnGpu())


def test_options_reach_xla(tmp_path: Path) -> None:
    """By what it dumps of the options that it was given."""
    step = jitted(lambda values: 2 * values, MODES["train", "step.tuned_graph"], OnGpu(), donate_argnums=0)
    step.lower(jnp.ones(3)).compile(compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_emitter_re": "none"})
    (dump,) = tmp_path.glob("*.debug_options")
    options = dump.read_text()
    assert "xla_gpu_graph_min_graph_size: 1\n" in options
    assert "xla_gpu_enable_command_buffer: CONVOLUTION\n" in options
    assert "xla_gpu_enable_command_buffer: WHILE\n" in options
    assert "xla_gpu_exhaustive_tiling_search: true\n" in options


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("train", "step.tuned_graph", {}),
        ("per_sample_gradients", "grouped.jit_graph", {"output": "norms"}),
        ("many_models", "unrolled.jit_graph", {"models": 2}),
    ],
)
def test_programs_are_compiled_with_them(
    name: str, mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And have them in their record, with the reason why a CPU's dump has no thunks."""
    session = make_session("jax", name, execution_mode=mode, options=options)
    monkeypatch.setattr(Device, "on_gpu", True)
    program = build(session)
    assert program.details["compiler_options"] == compiler_options(MODES[name, mode], OnGpu())
    witness = program.witness()
    assert witness["command_buffers"] is None
    assert "XLA does not tell" in witness["command_buffers_absent"]
    assert program.witness() is witness


@pytest.mark.parametrize(("kind", "options"), [(OnGpu, {"xla_gpu_autotune_level": 0}), (OnCpu, {})])
def test_nothing_is_tried_in_the_parity_gate(kind: type[Device], options: dict[str, Any]) -> None:
    device = kind()
    device.tries_algorithms = False
    assert compiler_options(mode_of(JIT), device) == options


# XLA's dump

DUMP = """\
000: kCommandBuffer      \tcommand_buffer
  000: kKernel           \tloop_add_fusion
  001: kConvolution      \tcudnn-conv.1
  002: kCommandBuffer    \tnested
001: kConvolution        \tcudnn-conv-bw-filter
002: kWhile              \twhile.1
condition:
  000: kKernel           \tcompare
body:
  000: kCommandBuffer    \tcommand_buffer.1
    000: kKernel         \tloop_multiply_fusion
  001: kGemm             \tcublas-gemm
003: kCopy               \tcopy
"""
"""As XLA writes thunks: an index, the kind, and what is inside below it. The rest of a line is free."""


@pytest.fixture
def lowered() -> jax.stages.Lowered:
    return jax.jit(lambda values: 3 * values).lower(np.ones(3, np.float32))


def test_what_is_outside_of_graphs_is_counted_in_the_last_dump(
    lowered: jax.stages.Lowered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thunks are dumped before and after the pass that makes command buffers of them. A program of the cache is
    compiled again, or there would be no dump: the tests' cache on disk is on."""
    right, hlo_was_dumped = compiler.dumped_thunks, []

    def with_dumps(folder: Path) -> str | None:
        hlo_was_dumped.append(any("after_optimizations" in path.name for path in folder.iterdir()))
        (folder / "module_1.jit_f.thunk_sequence.txt").write_text("000: kKernel\tx\n" * 100)
        (folder / "module_1.jit_f.thunk_sequence_after_thunk_passes.txt").write_text(DUMP)
        return right(folder)

    monkeypatch.setattr(compiler, "dumped_thunks", with_dumps)
    for _ in range(2):
        witness = witness_of_graphs(lowered, MODES["train", "step.jit"])
    assert hlo_was_dumped == [True, True]
    assert witness["command_buffers"] == 2
    outside = {"kConvolution": 1, "kWhile": 1, "kKernel": 1, "kGemm": 1, "kCopy": 1}
    assert witness["outside_of_command_buffers"] == outside


NOTHING = "XLA has put nothing of the step into CUDA graphs"


@pytest.mark.parametrize(
    ("dump", "count", "reason"),
    [
        ("000: kKernel\tx\n001: kConvolution\ty\n", 0, NOTHING),
        ("000: kCommandBuffer\n  001: kKernel\tx\n002: kConvolution\ty\n003: kCopy\tz\n", 1, "1 kConvolution"),
        # The host starts each round.
        (
            "000: kWhile\ncondition:\n    001: kCommandBuffer\n      002: kKernel\n  body:\n    003: kCopy\n",
            1,
            "1 kWhile",
        ),
        ("000: kCommandBuffer\n  001: kKernel\n002: kCustomKernel\n003: kCustomKernel\n", 1, "2 kCustomKernel"),
        ("000: kAsyncStart\n    001: kCustomKernel\n002: kCommandBuffer\n003: kAsyncDone\n", 1, "1 kCustomKernel"),
        # Copies may be outside.
        ("000: kCommandBuffer\n002: kAsyncStart\n    004: kDynamicSliceFusion\n        003: kCopy\n", 1, None),
        ("000: kCommandBuffer\n005: kMemzero\n006: kAsyncDone\n", 1, None),
    ],
)
def test_a_graph_mode_that_leaves_work_outside_is_never_timed(
    dump: str, count: int, reason: str | None, lowered: jax.stages.Lowered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jaxlib 0.10.2 does with convolutions. A plain mode may."""
    monkeypatch.setattr(compiler, "dumped_thunks", lambda _: dump)
    plain = witness_of_graphs(lowered, MODES["train", "step.jit"])
    assert plain["command_buffers"] == count
    if reason is None:
        assert witness_of_graphs(lowered, MODES["train", "step.jit_graph"]) == plain  # one program, one digest
    else:
        left = reason if reason == NOTHING else rf"XLA has left work outside .* graphs \({reason}\).*Python 3.12"
        with pytest.raises(CheckFailed, match=f"execution mode step.jit_graph: {left}"):
            witness_of_graphs(lowered, MODES["train", "step.jit_graph"])
