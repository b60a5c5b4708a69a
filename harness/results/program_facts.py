"""What one call of a timed step is made of, found out without a GPU: kernels, library calls, CUDA graphs, bytes. None
of this is a time of a GPU, or a result.

Each runner's `ahead.py` makes these, for one card (harness/work/cards.py) and one variant; tests and `main.py compile`
read them.
"""

import hashlib
from collections.abc import Iterable

from harness.plan import Framework, Frozen, Variant
from harness.results.record import KernelClass, Outcome


class ProgramFacts(Frozen):
    """Of one variant, compiled for one card. Counts are of one call, the rounds of loops multiplied."""

    framework: Framework
    card: str
    benchmark: str
    use_case: int
    variant: Variant
    outcome: Outcome
    reason: str | None = None
    """Why the outcome is not `ok`."""
    kernels: int = 0
    """All that is started on the device, library calls included, memory copies not."""
    classes: dict[KernelClass, int] = {}
    """`kernels`, by what they do (harness/results/kernel_names.py)."""
    library_calls: dict[str, int] = {}
    """Of `convolution`, `product`, `attention`, `norm`, `communication`: those that cuDNN, cuBLAS and NCCL do."""
    layout_bytes: int | None = None
    """Written by the kernels of the class `layout`; None where it is not known."""
    graphs: int = 0
    """CUDA graphs that the host launches in a call."""
    outside_of_graphs: int = 0
    """What else the host starts in a call: kernels, library calls, copies."""
    products: dict[str, int] = {}
    """Matrix products and convolutions by the types of operands, accumulation and result: `bf16 x bf16 -> f32`."""
    peak_bytes: int | None = None
    """A lower bound of what a step takes on the card: no workspace of cuDNN, no context, no kernels' code."""
    compile_s: float = 0.0
    """On this machine's CPU."""
    program: str | None = None
    """A digest of what is executed: two variants with the same one are one program under two names."""
    notes: tuple[str, ...] = ()
    """What a reader should know beside the numbers, such as an operation that could not be told."""


def digest_of(executed: Iterable[str]) -> str:
    """Of the operations in their order, each with whatever makes it another one: shapes, types, layouts."""
    digest = hashlib.sha256()
    for operation in executed:
        digest.update(operation.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:12]
