"""A process on the fake CUDA that builds programs of PyTorch and reports what a step of each calls.

    python -m tests.fake_cuda.facts NAMES

NAMES are those of Steps (tests/fake_cuda/steps.py), a JSON list; what goes out is that of tests/gpu/group.py.
"""

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.errors import Refused
from harness.measure.clock import COLD_CALLS
from harness.measure.program import Session
from tests.fake_cuda import calls as log
from tests.fake_cuda.steps import Step
from tests.gpu.group import Outcome, answer_each
from tests.made.sessions import build, make_session
from tests.made.stdout import reserved_stdout
from torch_runner.device import Device


def attempt(step: Step, device: Device) -> tuple[Outcome, str]:
    """Raises Refused where each of its models is."""
    refusals = []
    for model in step.models:
        device.forget_programs()
        gc.collect()
        torch.cuda.empty_cache()
        benchmark, _, name = model.partition("/")
        try:
            session = make_session(
                "torch",
                step.use_case,
                benchmark=benchmark,
                model=name,
                batch_size=step.batch_size,
                precision=step.precision,
                execution_mode=step.mode,
                options=step.options,
                device=device,
                **step.settings,
            )
            return "ok", json.dumps(facts_of(session))
        except Refused as error:
            refusals.append(f"{model}: {error}")
    raise Refused(" | ".join(refusals))


def facts_of(session: Session[Device], cold_calls: int = COLD_CALLS, steps: int = 1) -> dict[str, Any]:
    """Args: steps: that many are timed."""
    device, calls = session.device, log.Calls()
    calls.reset()
    program = build(session)
    device.wait(program.state())
    before = calls.events()
    operands: list[str] = []
    for number in range(cold_calls):
        calls.reset()
        # In the second call, which is captured in no mode, so that only what is eager is looked at.
        if number == 1 and session.mode.run_as == "eager":
            outputs, operands = watched(program.step)
        else:
            outputs = program.step()
        device.wait(outputs)
        before += calls.events()
    calls.reset()
    for _ in range(steps):
        outputs = program.step()
    timed = calls.events()
    device.wait(outputs)
    witness = program.witness()
    program.settle()
    device.wait(program.step())
    executed = log.executed(timed, log.captured_graphs(before + timed))
    return {
        "faults": log.faults(before),
        "hindrances": log.hindrances(timed),
        "cpu_operands": operands,
        "graph_launches": len(log.of_kind(timed, "graph")),
        "executed": [[call.kind, call.what, call.details] for call in executed],
        "witness": witness,
    }


def watched(step: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What it returns, and which operators are called with tensors of the device and with one that lies on the host."""
    found = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = (leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor))
            if len({tensor.device.type for tensor in tensors}) > 1 and "copy" not in function.__name__:
                found.add(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        outputs = step()
    return outputs, sorted(found)


if __name__ == "__main__":
    with reserved_stdout() as tell:
        device = Device()
        answer_each(json.loads(sys.argv[1]), lambda name: attempt(Step.model_validate_json(name), device), tell)
