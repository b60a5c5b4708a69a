"""What one call of a step does on a GPU, counted from XLA's texts: kernels, library calls, CUDA graphs and bytes.

Counts of a loop's body are multiplied by its rounds. Pure.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from harness.results.kernel_names import class_of
from harness.results.record import KernelClass
from jax_runner.executable import NO_WORK, Executable, Instruction, Thunk, classes_of

ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|f8\w+|c64|c128)\[([\d,]*)\]")
COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-all-to-all")
LIBRARIES = {r"fmha": "attention", r"conv": "convolution", r"norm": "norm", r"cublas|gemm|matmul": "product"}
"""Words of custom calls' targets."""
IS_PRODUCT = re.compile(r"conv|cublas|gemm|matmul")


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is started in a call, how often, and whether it is in a CUDA graph."""

    thunk: Thunk
    times: int
    in_graph: bool


@dataclass(frozen=True, kw_only=True)
class CountedExecutable(Executable):
    @cached_property
    def started(self) -> list[Started]:
        """Graphs themselves, and all that is in them or outside; of a conditional, all branches."""
        return list(self._started(self.thunks, 1, in_graph=False))

    def _started(self, thunks: Sequence[Thunk], times: int, *, in_graph: bool) -> Iterator[Started]:
        for thunk in thunks:
            if thunk.kind == "kWhile":
                rounds = self.rounds(thunk) or 1
                parts = thunk.parts
                yield from self._started(parts.get("condition", []), times * (rounds + 1), in_graph=in_graph)
                yield from self._started(parts.get("body", []), times * rounds, in_graph=in_graph)
            elif thunk.is_graph or thunk.parts:
                if thunk.is_graph and not in_graph:
                    yield Started(thunk=thunk, times=times, in_graph=False)
                for inner in thunk.parts.values():
                    yield from self._started(inner, times, in_graph=in_graph or thunk.is_graph)
            elif thunk.is_copy or not NO_WORK.match(thunk.kind):
                yield Started(thunk=thunk, times=times, in_graph=in_graph)

    def rounds(self, loop: Thunk) -> int | None:
        instruction = self.module.by_name.get(loop.instruction)
        return rounds_of(instruction) if instruction else None

    @cached_property
    def kernels(self) -> list[Started]:
        """Library calls among them."""
        return [one for one in self.started if not one.thunk.is_graph and not one.thunk.is_copy]

    @property
    def graphs(self) -> int:
        return sum(one.times for one in self.started if one.thunk.is_graph)

    @property
    def outside_of_graphs(self) -> int:
        return sum(one.times for one in self.started if not one.in_graph and not one.thunk.is_graph)

    @cached_property
    def _classes(self) -> dict[str, KernelClass]:
        return classes_of([self.module.text])[0]

    def class_of(self, thunk: Thunk) -> KernelClass:
        return class_of(thunk.kernel or thunk.kind, self._classes.get(thunk.instruction))

    @cached_property
    def classes(self) -> dict[KernelClass, int]:
        return dict(counted((self.class_of(one.thunk), one.times) for one in self.kernels))

    @property
    def unknown_kernels(self) -> list[str]:
        """Names of those whose class nobody knows."""
        unknown = [one for one in self.kernels if self.class_of(one.thunk) == "other"]
        return sorted({one.thunk.kernel or one.thunk.instruction or one.thunk.kind for one in unknown})

    def instruction(self, started: Started) -> Instruction | None:
        return self.module.by_name.get(started.thunk.instruction)

    @cached_property
    def library_calls(self) -> dict[str, int]:
        return dict(counted((self._library(one), one.times) for one in self.kernels))

    def _library(self, started: Started) -> str:
        """Empty of XLA's own kernels, and of libraries that are none of these."""
        instruction = self.instruction(started)
        if instruction is None:
            return ""
        if instruction.opcode.startswith(COLLECTIVES):
            return "communication"
        if started.thunk.kind == "kCuDnn" and instruction.opcode == "fusion":
            inner = {one.opcode for one in self.module.inside(instruction)}
            return "convolution" if "convolution" in inner else "product" if "dot" in inner else "norm"
        return next((name for words, name in LIBRARIES.items() if re.search(words, instruction.target)), "")

    @property
    def layout_bytes(self) -> int | None:
        """None where the HLO does not say of a kernel what it writes."""
        total = 0
        for one in self.kernels:
            if self.class_of(one.thunk) == "layout":
                instruction = self.instruction(one)
                if instruction is None:
                    return None
                total += one.times * size_bytes(instruction)
        return total

    @cached_property
    def products(self) -> dict[str, int]:
        return dict(
            counted(
                (product, one.times)
                for one in self.kernels
                if (instruction := self.instruction(one))
                for product in self._products(instruction)
            )
        )

    def _products(self, instruction: Instruction) -> Iterator[str]:
        for one in (instruction, *self.module.inside(instruction)):
            if one.opcode in ("dot", "ragged-dot", "convolution") or IS_PRODUCT.search(one.target):
                kinds = [(ARRAY.search(shape) or ["", "?"])[1] for shape in (*one.operand_shapes[:2], one.shape)]
                precision = re.search(r"operand_precision=\{(\w+)", one.attributes)
                yield f"{kinds[0]} x {kinds[1]} -> {kinds[2]}" + (f" ({precision[1]})" if precision else "")

    @property
    def unknown_loops(self) -> int:
        """Loops of which XLA does not know how many rounds they have."""
        return sum(one.opcode == "while" and rounds_of(one) is None for one in self.module.by_name.values())


def size_bytes(instruction: Instruction) -> int:
    """Return the size of an instruction's result."""
    arrays = ARRAY.findall(instruction.shape)
    return sum(prod(map(int, filter(None, sizes.split(",")))) * _bits(kind) // 8 for kind, sizes in arrays)


def _bits(kind: str) -> int:
    return 8 if kind == "pred" else int(re.sub(r"^\D+(\d+).*", r"\1", kind))


def rounds_of(loop: Instruction) -> int | None:
    """Return how often a loop's body runs; None where XLA does not state it."""
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    return int(found[1]) if found else None


def counted(pairs: Iterator[tuple[str, int]]) -> Counter:
    counts: Counter = Counter()
    for name, times in pairs:
        if name:
            counts[name] += times
    return counts
