"""What XLA has made of a program for a GPU, read from XLA's own texts. Pure.

The optimized HLO says what is computed, with types, shapes and layouts. The thunks say what is started, in order:
kernels, library calls, copies, loops, and command buffers, which become CUDA graphs. A list beside them says which
instruction of the HLO each thunk is, and the HLO says how many rounds a loop has.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
    def target(self) -> str:
        """Of a custom call; else empty."""
        return _found(r'custom_call_target="([^"]*)"', self.attributes)

    @property
    def called(self) -> list[str]:
        """The computations that it calls: what is fused, a loop's condition and body, how to reduce."""
        return [name for one in _CALLS.findall(self.attributes) for name in re.findall(r"[\w.-]+", one)]


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


# Both


@dataclass(frozen=True, kw_only=True)
class Executable:
    module: Module
    thunks: Sequence[Thunk]

    def operations(self) -> Iterator[str]:
        """Yield the program, then what is in graphs; for `digest_of`."""
        yield self.module.described_computation(self.module.entry)
        yield from _outline(self.thunks, 0)

    def choices(self) -> Iterator[str]:
        """What an autotuner or a heuristic has chosen for each operation, such as an algorithm or a tiling: programs
        that differ in it are two on a GPU, though they compute the same."""
        yield from _CHOICE.findall(self.module.text)


def digest_of(executed: Iterable[str]) -> str:
    """Return a digest of operations in their order, each described by shapes, types and layouts."""
    digest = hashlib.sha256()
    for operation in executed:
        digest.update(operation.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:12]


def _outline(thunks: Sequence[Thunk], depth: int) -> Iterator[str]:
    for thunk in thunks:
        yield f"{' ' * depth}{thunk.kind} {thunk.launch}"
        for label, inner in thunk.parts.items():
            yield f"{' ' * depth}{label}"
            yield from _outline(inner, depth + 1)
