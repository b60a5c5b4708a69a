"""One rank of several on the fake: steps of use cases 2 and 4 over the fake NCCL, and what each of them called.

    python -m tests.fake_gpu.rank WORLD

WORLD is a World as JSON; the answer is a line of JSON.
"""

import json
import os
import sys
from typing import Any

from harness.fake_gpu import calls as log
from harness.measure.clock import COLD_CALLS
from harness.measure.world import World
from tests.made.sessions import build, make_session
from torch_runner.device import Device

PROGRAMS: dict[str, dict[str, Any]] = {
    "DistributedDataParallel": {"use_case": "train", "execution_mode": "step.eager"},
    "one vector": {"use_case": "train", "execution_mode": "flat.eager"},
    "one vector in a graph": {"use_case": "train", "execution_mode": "flat.eager_graph"},
    "clipped sum": {
        "use_case": "per_sample_gradients",
        "execution_mode": "vmap.eager",
        "options": {"output": "clipped_sum"},
    },
    "clipped sum in a graph": {
        "use_case": "per_sample_gradients",
        "execution_mode": "ghost.eager_graph",
        "options": {"output": "clipped_sum"},
    },
}
"""Of mnist's cnn in float32, with 16 samples on both devices together."""
WARM_UP = 10
"""Besides the cold calls. DistributedDataParallel looks at its own times in its first ten steps and each hundredth."""
STEPS = 100


def facts_of(world: World, device: Device, program: dict[str, Any]) -> dict[str, Any]:
    session = make_session("torch", batch_size=16, device=device, world=world, **program)
    calls = log.Calls()
    calls.reset()
    made = build(session)
    device.wait(made.state())
    for _ in range(COLD_CALLS + WARM_UP):
        device.wait(made.step())
    before = calls.events()
    calls.reset()
    for _ in range(STEPS):
        outputs = made.step()
    timed = calls.events()
    device.wait(outputs)
    executed = log.executed(timed, log.captured_graphs(before + timed))
    return {
        "faults": log.faults(before),
        "hindrances": log.hindrances(timed),
        "graph_launches": len(log.of_kind(timed, "graph")),
        "nccl": [str(call).partition(" stream=")[0] for call in executed if call.kind == "nccl"],
        "launches": len(log.launches(executed)),
    }


def main(world: World) -> dict[str, Any]:
    device = Device()
    device.join(world)
    found = {name: facts_of(world, device, program) for name, program in PROGRAMS.items()}
    found["agreed"] = device.agree(0.25)
    device.leave()
    return found


if __name__ == "__main__":
    to_parent = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps(main(World.model_validate_json(sys.argv[1]))), file=to_parent, flush=True)
    os._exit(0)  # a thread of autograd may still hold Python's objects, and would abort the process
