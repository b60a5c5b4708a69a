"""What XLA has made of a program for a GPU, read from XLA's own texts. Pure.

The optimized HLO says what is computed, with types, shapes and layouts. The thunks say what is started, in order:
kernels, library calls, copies, loops, and command buffers, which become CUDA graphs. A list beside them says which
instruction of the HLO each thunk is, and the HLO says how many rounds a loop has.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from harness.results.kernel_names import class_of
from harness.results.record import KernelClass

# HLO


@dataclass(frozen=True, kw_only=True)
class Instruction:
    name: str
    opcode: str
    shape: str
    """Type, dimensions and layout: `f32[256,10]{1,0}`, or a tuple of such."""
    operands: tuple[str, ...]
    """Names in the same computation; of a constant its value, of a parameter its number."""
    operand_shapes: tuple[str, ...]
    attributes: str
    """All that stands behind the operands."""

    @property
    def size_bytes(self) -> int:
        return sum(
            prod(map(int, filter(None, sizes.split(",")))) * _bits(kind) // 8
            for kind, sizes in _ARRAY.findall(self.shape)
        )

    @property
    def target(self) -> str:
        """Of a custom call; else empty."""
        return _found(r'custom_call_target="([^"]*)"', self.attributes)

    @property
    def called(self) -> list[str]:
        """The computations that it calls: what is fused, a loop's condition and body, how to reduce."""
        return [name for one in _CALLS.findall(self.attributes) for name in re.findall(r"[\w.-]+", one)]

    @property
    def rounds(self) -> int | None:
        """Of a loop; None where XLA does not know."""
        found = _found(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found) if found else None


_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|f8\w+|c64|c128)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?=\S)")
_OPCODE = re.compile(r" (?P<opcode>[a-z][\w-]*)\(")
_CALLS = re.compile(r"\b(?:calls|to_apply|condition|body|\w+_computations?|select|scatter)=(%[\w.-]+|\{[^}]*\})")
_CHOICE = re.compile(r", backend_config=(.*)")
_BESIDE_THE_MATTER = re.compile(
    r", (?:metadata|backend_config|frontend_attributes|sharding|control-predecessors|origin|statistics)=.*"
)
"""Where in the source it comes from, and what steered the compiler. They stand last."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A program, by its text."""

    text: str
    computations: Mapping[str, Sequence[Instruction]]
    entry: str

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {one.name: one for instructions in self.computations.values() for one in instructions}

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """What it calls, and so on."""
        for name in instruction.called:
            for one in self.computations.get(name, ()):
                yield one
                yield from self.inside(one)

    def described(self, instruction: Instruction, places: Mapping[str, int]) -> str:
        """All that makes it another instruction, without names.

        Args:
            places: the operands' places in their computation.
        """
        operands = ",".join(str(places.get(name, name)) for name in instruction.operands)
        attributes = _CALLS.sub("", _BESIDE_THE_MATTER.sub("", instruction.attributes))
        if instruction.target:
            attributes += _found(r"backend_config=(.*)", instruction.attributes)
        inner = "".join(self.described_computation(name) for name in instruction.called)
        return f"{instruction.opcode} {instruction.shape} ({operands}){attributes}{inner}"

    def described_computation(self, name: str) -> str:
        instructions = self.computations.get(name, ())
        places = {one.name: place for place, one in enumerate(instructions)}
        return "{" + ";".join(self.described(one, places) for one in instructions) + "}"

    def class_of(self, instruction: Instruction) -> KernelClass | None:
        """None of what is no work, and of a library or a callback that nobody knows."""
        opcode = instruction.opcode
        if opcode == "fusion":
            inside = (one for name in instruction.called for one in self.computations.get(name, ()))
            found = {self.class_of(one) for one in inside}
            return next((kind for kind in _STRONGEST_FIRST if kind in found), "traffic")
        if opcode == "custom-call":
            found_by_name = "product" if _PRODUCT_TARGETS.search(instruction.target) else class_of(instruction.target)
            return None if found_by_name == "other" else found_by_name
        if opcode in ("dot", "convolution", "ragged-dot"):
            return "product"
        if opcode.startswith((*_COLLECTIVES, "send", "recv")):
            return "communication"
        if opcode in _FREE or opcode in _CONTAINERS:
            return None
        return "layout" if opcode in _MOVES else "traffic"


_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-all-to-all")
_PRODUCT_TARGETS = re.compile(r"(?i)gemm|matmul|conv|dot|fmha|cublas|cudnn|onednn")
_MOVES = frozenset({"copy", "transpose", "slice", "concatenate", "pad", "reverse", "dynamic-slice", "copy-start"}) | {
    "dynamic-update-slice",
    "copy-done",
}
_FREE = frozenset({"parameter", "constant", "bitcast", "reshape", "tuple", "get-tuple-element"})
_CONTAINERS = frozenset({"while", "call", "conditional", "async-start", "async-done", "async-update"})
_STRONGEST_FIRST: tuple[KernelClass, ...] = ("product", "communication", "traffic", "layout")
"""A fusion is what the first of these in it is."""


def classes_of(programs: Iterable[str]) -> tuple[dict[str, KernelClass], set[str]]:
    """Of all operations of these programs, by the names that the profiler gives them: on a GPU with `_` for each point;
    and the names of those that only hold others."""
    classes: dict[str, KernelClass] = {}
    containers: set[str] = set()
    for module in map(module_of, programs):
        for name, instruction in module.by_name.items():
            found = module.class_of(instruction)
            if instruction.opcode in _CONTAINERS:
                containers.add(name)
            elif found is not None:
                classes[name] = classes[re.sub(r"[.-]", "_", name)] = found
    return classes, containers


def module_of(text: str) -> Module:
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    instructions: list[Instruction] = []
    shapes: dict[str, str] = {}
    for line in text.splitlines():
        if computation := _COMPUTATION.match(line):
            instructions = computations.setdefault(computation["name"], [])
            shapes = {}
            entry = computation["name"] if computation["entry"] else entry
        elif (start := _INSTRUCTION.match(line)) and (
            found := _instruction(start["name"], line[start.end() :], shapes)
        ):
            instructions.append(found)
            shapes[found.name] = found.shape
    return Module(text=text, computations=computations, entry=entry)


def _instruction(name: str, rest: str, shapes: Mapping[str, str]) -> Instruction | None:
    """`rest`: what stands behind `name = `."""
    shape = rest[: _closing(rest, 0)] if rest.startswith("(") else rest.partition(" ")[0]
    opcode = _OPCODE.match(rest, len(shape))
    if opcode is None:
        return None
    end = _closing(rest, opcode.end() - 1)
    inner = rest[opcode.end() : end - 1]
    operands = re.findall(r"%([\w.-]+)", inner) or ([inner] if inner else [])
    return Instruction(
        name=name,
        opcode=opcode["opcode"],
        shape=re.sub(r"/\*index=\d+\*/", "", shape),
        operands=tuple(operands),
        operand_shapes=tuple(shapes.get(operand, "") for operand in operands),
        attributes=rest[end:],
    )


def _closing(text: str, start: int) -> int:
    """Behind the parenthesis that closes the one at `start`."""
    depth = 0
    for place in re.finditer(r"[()]", text[start:]):
        depth += 1 if place[0] == "(" else -1
        if depth == 0:
            return start + place.end()
    return len(text)


def _bits(kind: str) -> int:
    return 8 if kind == "pred" else int(_found(r"(\d+)", kind))


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


# Thunks

COPIES = r"k(Copy|Mem|DeviceToDevice|HostToDevice|DeviceToHost|ReplicaId|PartitionId)"
"""Kinds that copy, or fill with one value."""
NO_WORK = re.compile(rf"{COPIES}|k(Sequential|AsyncStart|DynamicSlice|\w*Done$|Wait|Event)")
"""Kinds that a mode of CUDA graphs may leave outside: copies, and what only holds others or waits for them. A loop is
none of these: the host would start its rounds."""


@dataclass(kw_only=True)
class Thunk:
    kind: str
    """By XLA's name, such as kCustomKernel."""
    number: int
    kernel: str = ""
    launch: str = ""
    """Grid, threads and shared memory."""
    instruction: str = ""
    """Its name in the HLO."""
    parts: dict[str, list["Thunk"]] = field(default_factory=dict)
    """What is inside: of a loop its `condition` and its `body`, of a conditional its branches."""

    @property
    def is_copy(self) -> bool:
        return re.match(COPIES, self.kind) is not None

    @property
    def is_graph(self) -> bool:
        return self.kind == "kCommandBuffer"


_THUNK = re.compile(
    r"(?P<indent> *)(?:(?P<number>\d+): +)?(?P<kind>k[A-Z]\w*)\b *(?:\[[^\]]*\])? *"  # in brackets: what depends on it
    r"(?P<name>[\w.-]*) *(?P<launch>grid: .*)?"
)
_PART = re.compile(r"(?P<indent> *)(?P<label>condition|body|\w*branch\w*):\s*$")
_OF_THUNK = re.compile(r'profile_annotation: "(?P<instruction>[^"]*)"\s+thunk_id: (?P<number>\d+)')


def thunks_of(text: str, metadata: str = "") -> list[Thunk]:
    """From XLA's two dumps. What is inside a thunk is indented below it; the branches of a conditional, and the two
    parts of a loop, have a heading. That of a condition is not indented in all releases."""
    instructions = {int(one["number"]): one["instruction"] for one in _OF_THUNK.finditer(metadata)}
    root = Thunk(kind="kSequential", number=0)
    stack: list[tuple[int, Thunk, str]] = [(-1, root, "")]
    for line in text.splitlines():
        if heading := _PART.match(line):
            owner = "kWhile" if heading["label"] in ("condition", "body") else "kConditional"
            before = {"condition": "", "body": "condition"}.get(heading["label"])
            while stack[-1][1].kind != owner or (before is not None and stack[-1][2] != before):
                stack.pop()
            indent, thunk, _ = stack.pop()
            stack.append((indent, thunk, heading["label"]))
        elif found := _THUNK.match(line):
            indent, number = len(found["indent"]), int(found["number"] or 0)
            while stack[-1][0] >= indent:
                stack.pop()
            thunk = Thunk(kind=found["kind"], number=number)
            if found["launch"]:
                thunk.kernel, thunk.launch = found["name"], found["launch"].strip()
            if not thunk.is_graph:
                thunk.instruction = instructions.get(number, "")
            stack[-1][1].parts.setdefault(stack[-1][2], []).append(thunk)
            stack.append((indent, thunk, ""))
    return root.parts.get("", [])


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is started in a call, how often, and whether it is in a CUDA graph."""

    thunk: Thunk
    times: int
    in_graph: bool


# Both


@dataclass(frozen=True, kw_only=True)
class Executable:
    module: Module
    thunks: Sequence[Thunk]

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

    def all_thunks(self) -> Iterator[Thunk]:
        """Each once, with what is inside."""
        waiting = list(self.thunks)
        while waiting:
            thunk = waiting.pop()
            yield thunk
            waiting += [inner for part in thunk.parts.values() for inner in part]

    def rounds(self, loop: Thunk) -> int | None:
        instruction = self.module.by_name.get(loop.instruction)
        return instruction.rounds if instruction else None

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
        return dict(_counted((self.class_of(one.thunk), one.times) for one in self.kernels))

    @property
    def unknown_kernels(self) -> list[str]:
        """Names of those whose class nobody knows."""
        unknown = [one for one in self.kernels if self.class_of(one.thunk) == "other"]
        return sorted({one.thunk.kernel or one.thunk.instruction or one.thunk.kind for one in unknown})

    def instruction(self, started: Started) -> Instruction | None:
        return self.module.by_name.get(started.thunk.instruction)

    @cached_property
    def library_calls(self) -> dict[str, int]:
        return dict(_counted((self._library(one), one.times) for one in self.kernels))

    def _library(self, started: Started) -> str:
        """Empty of XLA's own kernels, and of libraries that are none of these."""
        instruction = self.instruction(started)
        if instruction is None:
            return ""
        if instruction.opcode.startswith(_COLLECTIVES):
            return "communication"
        if started.thunk.kind == "kCuDnn" and instruction.opcode == "fusion":
            inner = {one.opcode for one in self.module.inside(instruction)}
            return "convolution" if "convolution" in inner else "product" if "dot" in inner else "norm"
        return next((name for words, name in _LIBRARIES.items() if re.search(words, instruction.target)), "")

    @property
    def layout_bytes(self) -> int | None:
        """None where the HLO does not say of a kernel what it writes."""
        total = 0
        for one in self.kernels:
            if self.class_of(one.thunk) == "layout":
                instruction = self.instruction(one)
                if instruction is None:
                    return None
                total += one.times * instruction.size_bytes
        return total

    @cached_property
    def products(self) -> dict[str, int]:
        return dict(
            _counted(
                (product, one.times)
                for one in self.kernels
                if (instruction := self.instruction(one))
                for product in self._products(instruction)
            )
        )

    def _products(self, instruction: Instruction) -> Iterator[str]:
        for one in (instruction, *self.module.inside(instruction)):
            if one.opcode in ("dot", "ragged-dot", "convolution") or _IS_PRODUCT.search(one.target):
                kinds = [(_ARRAY.search(shape) or ["", "?"])[1] for shape in (*one.operand_shapes[:2], one.shape)]
                precision = _found(r"operand_precision=\{(\w+)", one.attributes)
                yield f"{kinds[0]} x {kinds[1]} -> {kinds[2]}" + (f" ({precision})" if precision else "")

    @property
    def unknown_loops(self) -> int:
        """Loops of which XLA does not know how many rounds they have."""
        return sum(one.opcode == "while" and one.rounds is None for one in self.module.by_name.values())

    def operations(self) -> Iterator[str]:
        """For harness.results.program_facts.digest_of: the program, then what is in graphs."""
        yield self.module.described_computation(self.module.entry)
        yield from _outline(self.thunks, 0)

    def choices(self) -> Iterator[str]:
        """What an autotuner or a heuristic has chosen for each operation, such as an algorithm or a tiling: programs
        that differ in it are two on a GPU, though they compute the same."""
        yield from _CHOICE.findall(self.module.text)


_LIBRARIES = {r"fmha": "attention", r"conv": "convolution", r"norm": "norm", r"cublas|gemm|matmul": "product"}
"""Words of custom calls' targets."""
_IS_PRODUCT = re.compile(r"conv|cublas|gemm|matmul")


def _counted(pairs: Iterator[tuple[str, int]]) -> Counter:
    counts: Counter = Counter()
    for name, times in pairs:
        if name:
            counts[name] += times
    return counts


def _outline(thunks: Sequence[Thunk], depth: int) -> Iterator[str]:
    for thunk in thunks:
        yield f"{' ' * depth}{thunk.kind} {thunk.launch}"
        for label, inner in thunk.parts.items():
            yield f"{' ' * depth}{label}"
            yield from _outline(inner, depth + 1)
