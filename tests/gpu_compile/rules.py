"""What must hold of a step that XLA has compiled for a card. Pure: a rule says in words what breaks it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.plan import Precision
from tests.gpu_compile.absent_gpu import Compiled
from tests.gpu_compile.programs import NOT_ONE_GRAPH
from tests.made.gpu_specs import GpuSpec

MOST_OF_THE_MEMORY = 0.9
"""XLA's peak is a lower bound: workspaces, handles and kernels' code come on top."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    made: Compiled
    gpu: GpuSpec
    precision: Precision
    is_one_graph: bool
    """Whether its mode is one of CUDA graphs."""
    keeps_state: bool
    """Whether it trains: then it overwrites the state that it is given."""


def one_graph(subject: Subject) -> str | None:
    executable = subject.made.executable
    outside = {one.thunk.kind for one in executable.kernels if not one.in_graph}
    if not subject.is_one_graph or (executable.graphs == 1 and not outside):
        return None
    return f"{executable.graphs} graphs, and outside of them: {', '.join(sorted(outside)) or 'nothing'}"


def no_float64(subject: Subject) -> str | None:
    found = {one.opcode for one in subject.made.executable.module.by_name.values() if "f64[" in one.shape}
    return ", ".join(sorted(found)) if found and subject.precision != "fp64" else None


def half_precision_products(subject: Subject) -> str | None:
    """Of a step in half precision none has operands in float32."""
    found = {name: count for name, count in subject.made.executable.products.items() if name.startswith("f32 x f32")}
    return str(found) if found and subject.precision in ("bf16", "fp16") else None


def no_host_transfers(subject: Subject) -> str | None:
    module = subject.made.executable.module
    found = {one.opcode for one in module.by_name.values() if one.opcode in TRANSFERS or "S(5)" in one.shape}
    return ", ".join(sorted(found)) or None


TRANSFERS = ("infeed", "outfeed", "send", "recv")


def state_is_overwritten(subject: Subject) -> str | None:
    """All that is donated gets a result, and a step that trains donates its state."""
    made = subject.made
    if made.aliased_bytes == made.donated_bytes and (made.donated_bytes or not subject.keeps_state):
        return None
    return f"{made.donated_bytes:,} bytes may be overwritten, and {made.aliased_bytes:,} are"


def fits(subject: Subject) -> str | None:
    peak, memory = subject.made.peak_bytes or 0, subject.gpu.memory_bytes
    return f"{peak:,} bytes of {memory:,}" if peak > MOST_OF_THE_MEMORY * memory else None


def known_loops(subject: Subject) -> str | None:
    count = subject.made.executable.unknown_loops
    return f"{count} of them" if count else None


def library_convolutions(subject: Subject) -> str | None:
    count = sum(one.opcode == "convolution" for one in subject.made.executable.module.by_name.values())
    return f"{count} of them" if count else None


def known_kernels(subject: Subject) -> str | None:
    return ", ".join(subject.made.executable.unknown_kernels) or None


RULES: dict[str, Callable[[Subject], str | None]] = {
    NOT_ONE_GRAPH: one_graph,
    "float64": no_float64,
    "products of float32 in half precision": half_precision_products,
    "transfers to or from the host": no_host_transfers,
    "donated state that is not overwritten": state_is_overwritten,
    "more memory than the card has": fits,
    "a loop of unknown length": known_loops,
    "a convolution that is no library call": library_convolutions,
    "a kernel whose class nobody knows": known_kernels,
}
"""By what is wrong where a rule is broken."""


def broken(subject: Subject) -> dict[str, str]:
    """By the name of the rule: what breaks it."""
    return {name: words for name, rule in RULES.items() if (words := rule(subject)) is not None}


def compares_and_swaps(ptx: str) -> str | None:
    """Of a scatter-add's PTX (openxla/xla issue 46225)."""
    found = sorted(set(re.findall(r"atom\.[\w.]*\bcas[\w.]*", ptx)))
    if found:
        return ", ".join(found)
    return None if re.search(r"\b(?:atom|red)\.[\w.]*add", ptx) else "no atomic addition in its PTX"
