"""What tests/runners/one_rank.py does with PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from torch import distributed, nn

from harness.session import Session
from harness.weights import batch_order
from tests.runners.one_rank import Numbers
from torch_runner.benchmarks import cifar10, mnist
from torch_runner.use_cases import per_sample_gradients, train
from torch_runner.weights import to_neutral

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "send",
    "recv",
)


@contextmanager
def in_float64() -> Iterator[None]:
    def precise(make_model: Callable[[str], nn.Module]) -> Callable[[str], nn.Module]:
        return lambda name: make_model(name).double()

    with (
        mock.patch.object(mnist, "make_model", precise(mnist.make_model)),
        mock.patch.object(cifar10, "make_model", precise(cifar10.make_model)),
    ):
        yield


def training_steps(session: Session, *, steps: int) -> Numbers:
    """Losses (means over the ranks) and the weights after the steps."""
    training = train.Training(session)
    measurement = session.measurement
    count, batch_size = len(session.dataset.train_labels), measurement.variant.batch_size
    order = train.place_order(
        batch_order(measurement.protocol.seed, count, batch_size, 1), session.world, training.device
    )
    train_step = train.make_train_step(training, measurement.variant.execution_mode)
    training.reset()
    losses = [train_step(order[step]).item() for step in range(steps)]
    state = training.objective.model.state_dict()
    weights = to_neutral({name: value for name, value in state.items() if "num_batches" not in name})
    return {
        "losses": session.device.mean_over_ranks(np.array(losses)),
        **{f"weights/{name}": value for name, value in weights.items()},
    }


def gradients(session: Session, *, mode: str, output: str, clip_norm: float) -> Numbers:
    """What the timed function gives: this rank's part where the output is per sample."""
    problem = per_sample_gradients.Problem(session)
    compute = per_sample_gradients.make_function(problem, mode, output, clip_norm=clip_norm, chunk_size=3)
    batch = problem.own_batch(range(session.measurement.variant.batch_size))
    with counted_collectives() as called:
        outputs = compute(*batch)
    reduced = called.count("all_reduce")
    return {
        "collectives": np.array([reduced, len(called) - reduced]),
        **{f"gradients/{name}": value for name, value in to_neutral(outputs).items()},
    }


def agreements(session: Session) -> Numbers:
    """What the ranks agree on."""
    device, rank = session.device, session.world.rank
    values = [device.agree(0.1 + rank), *device.mean_over_ranks(np.array([rank, 1 / 3]))]
    values.append(device.agree(2.0**40 + 1 / 3 - rank))
    return {"values": np.array(values), "compiled": np.array(device.compilations())}


@contextmanager
def counted_collectives() -> Iterator[list[str]]:
    """The names of the collectives that are called meanwhile."""
    called: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            called.append(name)
            return function(*arguments, **keywords)

        return call

    replaced = {name: counted(name, getattr(distributed, name)) for name in COLLECTIVES}
    with mock.patch.multiple(distributed, **replaced):
        yield called
