"""One rank of several on the fake: steps of use cases 2 and 4 over the fake NCCL, and what each of them called.

    python -m tests.fake_cuda.rank WORLD

WORLD is a World as JSON; the answer is a line of JSON.
"""

import json
import os
import sys
from typing import Any

from harness.measure.clock import COLD_CALLS
from harness.measure.world import World
from tests.fake_cuda.calls import Call, launches, of_kind
from tests.fake_cuda.facts import facts_of
from tests.made.sessions import make_session
from tests.made.stdout import reserved_stdout
from torch_runner.device import Device

CLIPPED = {"output": "clipped_sum"}
PROGRAMS: dict[str, tuple[str, str, dict[str, str]]] = {
    "DistributedDataParallel": ("train", "step.eager", {}),
    "one vector": ("train", "flat.eager", {}),
    "one vector in a graph": ("train", "flat.eager_graph", {}),
    "clipped sum": ("per_sample_gradients", "vmap.eager", CLIPPED),
    "clipped sum in a graph": ("per_sample_gradients", "ghost.eager_graph", CLIPPED),
}
"""Of mnist's cnn in float32, with 16 samples on both devices together."""
WARM_UP = 10
"""Besides the cold calls. DistributedDataParallel looks at its own times in its first ten steps and each hundredth."""
STEPS = 100


def main(world: World) -> dict[str, Any]:
    device = Device()
    device.join(world)
    found: dict[str, Any] = {}
    for name, (use_case, mode, options) in PROGRAMS.items():
        of = {"execution_mode": mode, "options": options}
        session = make_session("torch", use_case, batch_size=16, device=device, world=world, **of)
        found[name] = facts_of(session, COLD_CALLS + WARM_UP, STEPS)
        executed = [Call(*call) for call in found[name].pop("executed")]
        nccl = [str(call).partition(" stream=")[0] for call in of_kind(executed, "nccl")]
        found[name] |= {"nccl": nccl, "launches": len(launches(executed))}
    found["agreed"] = device.agree(0.25)
    device.leave()
    return found


if __name__ == "__main__":
    with reserved_stdout() as tell:
        tell(json.dumps(main(World.model_validate_json(sys.argv[1]))))
    os._exit(0)  # a thread of autograd may still hold Python's objects, and would abort the process
