"""One rank's process, for test_several_devices.py: `python -m tests.runners.one_rank FRAMEWORK WORLD FOLDER`.

WORLD is a World as JSON. FOLDER/tasks.json says what to do, one task after the other by name; what this rank found for
each lies in FOLDER/<name>.<rank>.npz afterwards. Weights and gradients are in the neutral layout, so that both
frameworks' files have the same names and shapes.
"""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.session import Session
from harness.world import World
from tests.runners.sessions import make_session

Numbers = dict[str, np.ndarray]


def main(framework: Any, world_json: str, folder: str) -> None:
    world = World.model_validate_json(world_json)
    device = importlib.import_module(f"{framework}_runner.device").Device()
    if world.device_count > 1:
        device.join(world)
    functions = importlib.import_module(f"tests.runners.{framework}_rank")
    for name, task in json.loads(Path(folder, "tasks.json").read_text()).items():
        print(name, flush=True)
        session = make_session(framework, task["use_case"], device=device, world=world, **task["session"])
        of_both = {"whole_use_case": whole_use_case, "parity_numbers": parity_numbers}
        function = of_both.get(task["function"]) or getattr(functions, task["function"])
        if task["float64"]:
            with functions.in_float64():
                numbers: Numbers = function(normalising_in_float64(session), **task["arguments"])
        else:
            numbers = function(session, **task["arguments"])
        np.savez(Path(folder, f"{name}.{world.rank}.npz"), **numbers)
    if world.size > 1:
        device.leave()


def normalising_in_float64(session: Session) -> Session:
    """Images are normalised in the type of their mean."""
    dataset = session.dataset
    precise = dataclasses.replace(dataset, mean=dataset.mean.astype(np.float64), std=dataset.std.astype(np.float64))
    return dataclasses.replace(session, dataset=precise)


def whole_use_case(session: Session) -> Numbers:
    """The use case as a measurement runs it."""
    cell = session.measurement.cell
    module: Any = importlib.import_module(f"{session.measurement.framework}_runner.use_cases.{cell.use_case_name}")
    result = module.run(session)
    return {
        "train_loss": np.array([point.train_loss for point in result.epochs]),
        "test_loss": np.array([point.test_loss for point in result.epochs]),
        "errors": np.array([check.error for check in result.checks]),
        "details": np.array(json.dumps(result.details)),
        "calls": np.array([result.blocks.calls_per_block, len(result.blocks.block_times_s)]),
        "recompiles": np.array(result.recompiles),
        "blocks_alone": np.array([] if result.blocks_alone is None else result.blocks_alone.block_times_s),
        "samples_per_step": np.array(result.blocks.samples_per_step),
    }


def parity_numbers(session: Session) -> Numbers:
    """What the parity gate compares."""
    cell = session.measurement.cell
    module: Any = importlib.import_module(f"{session.measurement.framework}_runner.parity.{cell.use_case_name}")
    return module.parity_numbers(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
