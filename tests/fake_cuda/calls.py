"""What a process on the fake CUDA has called: the log, and what its lines mean."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from harness.errors import ProjectError

LAUNCHES = ("kernel", "cublas", "cudnn", "nccl")
"""Of these kinds is what computes on the device, or communicates."""
ON_DEVICE = (*LAUNCHES, "copy", "fill")


@dataclass(frozen=True)
class Call:
    kind: str
    """kernel, cublas, cudnn, nccl, copy, fill: what a stream runs; graph: a launch of one; capture: its recording;
    sync, malloc, free, handle: what the host waits for, allocates and opens; fault: what a real GPU refuses or does
    wrong; stub: what is not faked."""
    what: str
    """The function, the kernel's name, `pinned->device` of a copy."""
    details: str
    """`name=value` with blanks between."""

    @cached_property
    def fields(self) -> dict[str, str]:
        """The last of those that stand more than once."""
        return dict(part.split("=", 1) for part in self.details.split() if "=" in part)

    @property
    def graph(self) -> int | None:
        """In whose capture it was called, so that it has not run."""
        return int(self.fields["graph"]) if "graph" in self.fields else None

    def __str__(self) -> str:
        return f"{self.kind} {self.what} {self.details}".strip()


class Calls:
    """The log of this process. Raises ProjectError where no fake CUDA is loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        if not is_loaded():
            raise ProjectError("no fake CUDA is loaded here: set the variables of tests/fake_cuda/environment.py")
        self._library.fake_cuda_log.restype = ctypes.c_void_p

    def reset(self) -> None:
        self._library.fake_cuda_reset()

    def events(self) -> list[Call]:
        """Since the last `reset`."""
        length = ctypes.c_size_t()
        address = self._library.fake_cuda_log(ctypes.byref(length))
        text = ctypes.string_at(address, length.value).decode(errors="replace")
        return [Call(*line.split("\t", 2)) for line in text.splitlines()]


def is_loaded() -> bool:
    """Into this process."""
    return hasattr(ctypes.CDLL(None), "fake_cuda_card")


# ---- what a list of calls means


def captured_graphs(calls: Iterable[Call]) -> dict[int, list[Call]]:
    """What each graph holds, by the number that its launches name."""
    graphs: dict[int, list[Call]] = {}
    for call in calls:
        if call.kind != "capture" and (number := call.graph) is not None:
            graphs.setdefault(number, []).append(call)
    return graphs


def executed(calls: Iterable[Call], graphs: dict[int, list[Call]]) -> list[Call]:
    """What the device runs: graphs opened, captured calls left out.

    Args:
        graphs: also those that were captured before.
    """
    found: list[Call] = []
    for call in calls:
        if call.kind == "graph":
            found += graphs.get(int(call.fields["launched"]), [])
        elif call.kind in ON_DEVICE and call.graph is None:
            found.append(call)
    return found


def launches(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.kind in LAUNCHES]


def of_kind(calls: Iterable[Call], *kinds: str) -> list[Call]:
    return [call for call in calls if call.kind in kinds]


def faults(calls: Iterable[Call]) -> list[str]:
    """What a real GPU refuses or does wrong, and what the fake does not know."""
    return [str(call) for call in of_kind(calls, "fault", "stub")]


def hindrances(calls: Iterable[Call]) -> list[str]:
    """What a timed step must not have: waiting, allocating, pageable copies, and all faults."""
    return [
        str(call)
        for call in calls
        if call.kind in ("sync", "malloc", "free", "handle", "capture", "fault", "stub")
        or (call.kind == "copy" and "pageable" in call.what)
    ]


# ---- products and convolutions


@dataclass(frozen=True, kw_only=True)
class Tensor:
    type: str
    layout: str
    """nhwc, nchw, strided; `either` where they are one, `any` where there are not four sizes."""
    sizes: tuple[int, ...]


def tensor_of(words: str) -> Tensor:
    """Of cuDNN: `bf16/nhwc/[16,32,8,8]`."""
    type_, layout, sizes = words.split("/", 2)
    return Tensor(type=type_, layout=layout, sizes=tuple(map(int, filter(None, sizes.strip("[]").split(",")))))


def is_convolution(call: Call) -> bool:
    return call.kind == "cudnn" and "convolution" in call.what


def convolution_tensors(call: Call) -> dict[str, Tensor]:
    """x, w and y: input, weight and output, or their gradients."""
    return {name: tensor_of(call.fields[name]) for name in "xwy"}


def is_product(call: Call) -> bool:
    """Of matrices or vectors, by a library."""
    return call.kind == "cublas"


def arithmetic_of(call: Call) -> str:
    """`bf16 x bf16 -> f32`: operands and what is added up in; of float32 operands, TF32 where the library may use it.

    cuDNN's convolutions of float32 may be TF32 too, which their call does not say (CUDNN_NUMERICAL_NOTE_TENSOR_CORE).
    """
    if is_convolution(call):
        tensors = convolution_tensors(call)
        return f"{tensors['x'].type} x {tensors['w'].type} -> {call.fields['compute']}"
    fields = call.fields
    a, b, compute = fields["a"], fields["b"], fields["compute"]
    if compute == "tf32" or (fields.get("math") == "tf32" and a == b == "f32"):
        return "tf32 x tf32 -> f32"
    return f"{a} x {b} -> {compute}"
