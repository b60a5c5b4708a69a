"""What one call of a timed step is made of, found out without a GPU: kernels, library calls, CUDA graphs, bytes. None
of this is a time of a GPU, or a result.

Each runner's `ahead.py` makes these, for one card (harness/work/cards.py) and one variant; tests and `main.py compile`
read them.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from harness.errors import RecordError
from harness.files import in_words, read_json
from harness.plan import Framework, Frozen, Measurement, Variant
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
    made_by: dict[str, str] = {}
    """Packages and their versions, and this project's commit where nothing had been edited."""


def digest_of(executed: Iterable[str]) -> str:
    """Of the operations in their order, each with whatever makes it another one: shapes, types, layouts."""
    digest = hashlib.sha256()
    for operation in executed:
        digest.update(operation.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:12]


def program_key(measurement: Measurement) -> str:
    """Readable, a file name, and the same for all measurements that time the same program: whatever the card is called
    in experiments.yaml, the protocol and the replicate."""
    cell, content = measurement.cell, measurement.model_dump(mode="json", include={"variant", "settings", "sizes"})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return f"{measurement.framework}_{cell.benchmark}_{cell.use_case}-{measurement.variant.key}-{digest}"


def read_program_facts(path: Path) -> ProgramFacts:
    """Raises RecordError that names the file and what is wrong with it."""
    try:
        return ProgramFacts.model_validate_json(read_json(path))
    except ValidationError as error:
        raise RecordError(f"{path}: not what main.py compile leaves: {in_words(error)}") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
