"""One rank's process, for test_several_devices.py: `python -m tests.runners.one_rank FRAMEWORK WORLD FOLDER`.

WORLD is a World as JSON. FOLDER/tasks.json says what to do, one task after the other by name; what this rank found for
each lies in FOLDER/<name>.<rank>.npz afterwards, under names and in layouts that both frameworks share.
"""

import importlib
import json
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from harness.errors import CheckFailed
from harness.measure.program import Session
from harness.measure.world import World
from harness.results.parity import condense, gate_measurement
from harness.work import chunks
from tests.made.numbers import Numbers
from tests.made.sessions import build, make_session, measure, with_first, with_small_images
from tests.made.shallow import shallow_resnet, shallow_vit
from tests.made.small_gpt import use_small_gpt

FEW_SAMPLES = 80


def main(framework: Any, world_json: str, folder: str) -> None:
    world = World.model_validate_json(world_json)
    device = importlib.import_module(f"{framework}_runner.device").Device()
    device.join(world)
    for name, task in json.loads(Path(folder, "tasks.json").read_text()).items():
        print(name, flush=True)
        np.savez(Path(folder, f"{name}.{world.rank}.npz"), **do(framework, task, device=device, world=world))
    if world.size > 1:
        device.leave()


def do(framework: Any, task: dict[str, Any], **of_session: Any) -> Numbers:
    """By the function of this module that the task names; in float64, unless the task says otherwise."""
    with shallow_resnet(framework), pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if task["session"].get("model") == "vit_b_16":
            stack.enter_context(shallow_vit(framework))
        if task["session"].get("model") == "gpt_nano":
            use_small_gpt(patch)
        session = make_session(framework, **of_session, **{"precision": "fp64"} | task["session"])
        session = with_small_images(session)
        if task.get("in_chunks"):
            stack.enter_context(in_chunks(session))
        if framework == "torch" and session.mode.run_as == "compiled":
            from tests.made.captures import only_trace

            only_trace(patch)
        found: Numbers = globals()[task["what"]](session)
        return found


def parity(session: Session[Any]) -> Numbers:
    """What the parity gate compares: of training, all that five steps did."""
    return dict(build(session).parity())


def parity_apart(session: Session[Any]) -> Numbers:
    """The same of the control without communication."""
    return dict(build(session, joined=False).parity())


def gate(session: Session[Any]) -> Numbers:
    """What a job's child leaves for the parity gate, the shapes, and the bytes that this rank holds of parameters and
    moments."""
    program = build(replace(session, measurement=gate_measurement(session.measurement)))
    kept, shapes = condense(program.parity())
    return kept | {"shapes": np.array(json.dumps(shapes)), "held_bytes": np.array(held_bytes(program))}


def gate_without_a_sum(session: Session[Any]) -> Numbers:
    """The same of a wrong sharding: each device goes by the gradients of its own part of the batch."""
    with {"jax": own_part_as_the_batch, "torch": scattered_unreduced}[session.measurement.framework]():
        return gate(session)


def held_bytes(program: Any) -> int:
    if program.session.measurement.framework == "jax":
        import jax

        leaves = jax.tree.leaves((program.current.params, program.current.opt_state))
        return sum(int(shard.data.nbytes) for leaf in leaves for shard in leaf.addressable_shards)
    tensors = [tensor for kept in program.optimizer.state.values() for tensor in kept.values()]
    local = [getattr(one, "_local_tensor", one) for one in (*program.model.parameters(), *tensors)]
    return sum(int(tensor.nbytes) for tensor in local)


def own_part_as_the_batch() -> AbstractContextManager[Any]:
    """JAX is given each device's part as if all of them had the same."""
    from jax_runner.use_cases import train

    return mock.patch.object(train, "SPLIT", train.REPLICATED)


def scattered_unreduced() -> AbstractContextManager[Any]:
    """PyTorch scatters each device's own gradients as if they were the sums."""
    from torch import distributed
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    def scatter(_self: Any, output_tensor: Any, input_tensor: Any, *_: Any, **__: Any) -> None:
        output_tensor.copy_(input_tensor.chunk(distributed.get_world_size())[distributed.get_rank()])

    return mock.patch.object(DefaultReduceScatter, "__call__", scatter)


def check_of_the_control(session: Session[Any]) -> Numbers:
    """What the check says of a step whose gradients nobody averages."""
    with pytest.raises(CheckFailed) as found:
        build(session, joined=False).check()
    return {"failed": np.array(str(found.value))}


def losses(session: Session[Any]) -> Numbers:
    """Of the first 14 steps."""
    program: Any = build(session)
    kept: list[Any] = []
    while len(kept) < 14:
        loaded = program.load(len(kept))
        kept += [program.kept(program.step()) for _ in range(min(loaded, 14 - len(kept)))]
    return {"losses": session.device.mean_over_ranks(program.losses(kept))}


def in_chunks(session: Session[Any]) -> AbstractContextManager[Any]:
    """The training set comes to the devices in chunks of six steps."""
    own_batch = session.measurement.variant.batch_size // session.world.size
    six_steps = 6 * own_batch * chunks.sample_bytes(session.dataset.train)
    return mock.patch.object(chunks, "CHUNK_BYTES", six_steps)


def collectives(session: Session[Any]) -> Numbers:
    """All-reduces, and any other collectives, of JAX's step, with communication and without."""
    return {name: np.array(collectives_of(build(session, joined=name == "joined"))) for name in ("joined", "apart")}


def collectives_of(program: Any) -> list[int]:
    """As XLA has compiled it."""
    placed = [program.current, program.data] if hasattr(program, "data") else []
    hlo = program.compute.lower(*(placed or [program.count, program.params, *program.batch])).compile().as_text()
    others = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
    operations = [line.partition(" = ")[2] for line in hlo.splitlines()]
    counts = {
        name: sum(f" {name}(" in operation or f" {name}-start(" in operation for operation in operations)
        for name in ("all-reduce", *others)
    }
    return [counts["all-reduce"], sum(counts[name] for name in others)]


def graphs_in_step(session: Session[Any]) -> Numbers:
    """How many graphs PyTorch's compiler is given for a step with communication, and then for one without."""
    from torch_runner import compiler

    given: list[Any] = []

    def take(graph: Any, _inputs: Any) -> Any:
        given.append(graph)
        return graph.forward

    counts = {}
    with mock.patch.object(compiler, "compile_options", lambda _mode: {"fullgraph": True, "backend": take}):
        for name in ("joined", "apart"):
            program = build(session, joined=name == "joined")
            program.step()
            counts[name] = np.array(len(given))
            given.clear()
    return counts


def agreements(session: Session[Any]) -> Numbers:
    """What the ranks agree on, and how many programs that compiles once it has been done."""
    device, rank = session.device, session.world.rank
    values = [device.agree(0.1 + rank), *device.mean_over_ranks(np.array([rank, 1 / 3]))]
    compiled_before = device.compilations()
    values.append(device.agree(2.0**40 + 1 / 3 - rank))
    return {"values": np.array(values), "compiled": np.array(device.compilations() - compiled_before)}


def whole(session: Session[Any]) -> Numbers:
    """The use case as a measurement runs it, on few samples."""
    result = measure(with_first(session, FEW_SAMPLES, FEW_SAMPLES))
    return {
        "train_loss": np.array([point.train_loss for point in result.epochs]),
        "test_loss": np.array([point.test_loss for point in result.epochs]),
        "errors": np.array([check.error for check in result.checks]),
        "details": np.array(json.dumps({name: result.details[name] for name in result.details if name != "witness"})),
        "calls": np.array([result.blocks.calls_per_block, len(result.blocks.block_times_s)]),
        "recompiles": np.array(result.recompiles),
        "blocks_alone": np.array([] if result.blocks_alone is None else result.blocks_alone.block_times_s),
        "samples_per_step": np.array(result.blocks.samples_per_step),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
