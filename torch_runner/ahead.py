"""PyTorch's steps on a GPU that is not there: `python -m torch_runner.ahead`.

It needs PyTorch's CUDA build and g++, and no GPU. harness/measure/ahead.py has what comes in and goes out.

The programs are those that are timed, built in the same way by the same functions, and run on the fake CUDA
(docs/fake-gpu.md): Inductor, Triton and ptxas compile, CUDA graphs are captured, and no number is computed. What an
autotuner would find out by trying is its first choice here. Each program has a process of its own, forked from one that
has imported everything, so that its peak of memory is its own and its end costs nobody else anything.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from harness.errors import ConfigError
from harness.fake_gpu import calls as log
from harness.fake_gpu.build import build, folder
from harness.fake_gpu.calls import Call, Calls
from harness.fake_gpu.environment import CARD, card_words, environment
from harness.measure.ahead import Request, Tell, facts, facts_or_reason, serve, session_of
from harness.measure.clock import COLD_CALLS
from harness.measure.process import builder
from harness.plan import Measurement
from harness.results.kernel_names import base_of, class_of
from harness.results.program_facts import ProgramFacts, digest_of
from harness.results.record import KernelClass
from harness.work.cards import Card, card
from torch_runner.device import Device

OF_LIBRARIES = {
    "convolution": "convolution",
    "convolution_input_gradient": "convolution",
    "convolution_weight_gradient": "convolution",
    "attention": "attention",
    "attention_gradient": "attention",
    "batch_norm": "norm",
    "batch_norm_gradient": "norm",
    "batch_norm_inference": "norm",
}
"""cuDNN's operations, by what ProgramFacts.library_calls calls them."""
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Each program's process would start compilers of its own, which costs more than they bring."""


# A program


def facts_of(measurement: Measurement, card: Card) -> ProgramFacts:
    """In a process that has built nothing else. Raises nothing: what goes wrong is a fact."""
    device = Device()
    return facts_or_reason(measurement, card, device, partial(facts_of_step, measurement, device))


def facts_of_step(measurement: Measurement, device: Device) -> dict[str, Any]:
    """As the job would build and warm it. Raises what keeps it from being built."""
    calls = Calls()
    session = session_of(measurement, device)
    calls.reset()
    program = builder(measurement)(session)
    device.wait(program.state())
    cold_s = [_timed(program.step, device) for _ in range(COLD_CALLS)]
    program.settle()
    warm_s = _timed(program.step, device)
    graphs = log.captured_graphs(calls.events())
    device.begin_timing()
    calls.reset()
    outputs = program.step()
    called = calls.events()
    device.wait(outputs)
    device.end_timing()
    return {
        **facts_of_calls(called, graphs),
        "peak_bytes": device.memory().step_peak_bytes,
        "compile_s": round(max(0.0, sum(cold_s) - COLD_CALLS * warm_s), 2),
    }


def facts_of_calls(called: Sequence[Call], graphs: dict[int, list[Call]]) -> dict[str, Any]:
    """Of one step: what its host calls, and what CUDA graphs hold."""
    executed = log.executed(called, graphs)
    launches, launched = log.launches(executed), log.of_kind(called, "graph")
    products = [call for call in executed if log.is_product(call) or log.is_convolution(call)]
    return {
        "kernels": len(launches),
        "classes": dict(Counter(map(kernel_class, launches))),
        "library_calls": dict(Counter(library_call(call) for call in launches if call.kind in log.LIBRARIES)),
        "graphs": len(launched),
        "outside_of_graphs": len([call for call in called if call.kind in log.ON_DEVICE and call.graph is None]),
        "products": dict(Counter(map(log.arithmetic_of, products))),
        "program": digest_of([*log.in_words(executed), *(f"a graph of {call.fields['nodes']}" for call in launched)]),
        "notes": tuple(notes_on(called, launches)),
    }


def kernel_class(call: Call) -> KernelClass:
    """Of libraries by what was asked of them; their kernels have no names here."""
    if call.kind == "kernel":
        return class_of(call.what)
    by_library: dict[str, KernelClass] = {"norm": "traffic", "communication": "communication"}
    return by_library.get(library_call(call), "product")


def library_call(call: Call) -> str:
    if call.kind == "cudnn":
        return OF_LIBRARIES.get(call.what, call.what)
    return {"cublas": "product", "nccl": "communication"}[call.kind]


def notes_on(called: Sequence[Call], launches: Sequence[Call]) -> Iterator[str]:
    unknown = sorted({base_of(call.what) for call in launches if kernel_class(call) == "other"})
    yield from (f"the kernel {name} is of no known class" for name in unknown)
    waits = Counter(f"{call.kind} {call.what}" for call in log.of_kind(called, "sync", "malloc", "free"))
    yield from (f"the host waits or allocates in a step: {what}, {count} times" for what, count in waits.items())
    pageable = [call for call in log.of_kind(called, "copy") if "pageable" in call.what]
    if pageable:
        yield f"a step copies pageable memory, {len(pageable)} times"
    yield from log.faults(called)


def _timed(step: Callable[[], Any], device: Device) -> float:
    """Seconds of this machine's CPU."""
    start = time.monotonic()
    device.wait(step())
    return time.monotonic() - start


# The processes


def answer(request: Request, tell: Tell) -> int:
    """Raises ProjectError where the fake cannot be made here, or is one of another card."""
    if not log.is_loaded():
        return on_the_fake(request, tell)
    if os.environ.get(CARD) != card_words(card(request.card)):
        raise ConfigError(f"this process is on a fake of another card than {request.card}: start it without {CARD}")
    return of_forks(request, tell)


def of_forks(request: Request, tell: Tell) -> int:
    """On the fake, in a process that has nothing on the device itself, or a fork could have nothing."""
    import torch._inductor.compile_fx  # noqa: F401
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401

    absent = card(request.card)
    for measurement in request.measurements:
        text, status = in_a_fork(partial(_facts_as_text, measurement, absent))
        if status != 0:
            reason = f"its process ended with status {status}"
            text = facts(measurement, absent, outcome="failed", reason=reason).model_dump_json()
        tell(text)
    return 0


def _facts_as_text(measurement: Measurement, absent: Card) -> str:
    return facts_of(measurement, absent).model_dump_json()


def in_a_fork(work: Callable[[], str]) -> tuple[str, int]:
    """What it returns, and the status of its process: minus a signal, as of subprocess. Its end runs no destructors."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.close(reading)
            with open(writing, "w", encoding="utf-8") as pipe:  # noqa: PTH123
                pipe.write(work())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123
        text = pipe.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def on_the_fake(request: Request, tell: Tell) -> int:
    """The same module, started on the fake. Its compilers' caches are empty at first and gone at its end, so that
    `compile_s` is what compiling takes.

    Raises:
        ProjectError: the fake cannot be made here.
    """
    libraries = build(folder())
    with tempfile.TemporaryDirectory(prefix="compiled-ahead-") as caches:
        variables = environment(libraries, card(request.card))
        variables |= {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
        process = subprocess.Popen(
            [sys.executable, "-m", "torch_runner.ahead"],
            env=ONE_COMPILER | dict(os.environ) | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin and process.stdout
        with process:
            process.stdin.write(request.model_dump_json())
            process.stdin.close()
            for line in process.stdout:
                tell(line.rstrip("\n"))
        return process.returncode


if __name__ == "__main__":
    sys.exit(serve(answer))
