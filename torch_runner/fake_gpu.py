"""What a measurement on a fake GPU leaves out, for tests of this project: kernels that do nothing compute no numbers.

harness/results/fake_gpu.py says in each record what is here. All else is done, by the calls that a real GPU would get.
"""

from typing import Any

import numpy as np
import torch.distributed as distributed
from numpy.typing import NDArray

from harness.measure.program import Answers, Build, Infers, Means, Program, Session, Trains
from torch_runner.device import Device


def without_numbers(build: Build, device: Device) -> Build:
    """Builds the same programs; what they or the device compute is replaced when it comes to the host."""
    changed: Any = device
    changed.is_finite = lambda outputs: True
    changed._of_all_ranks = Gather()

    def built(session: Session[Any], *, joined: bool = True) -> Program:
        program = build(session, joined=joined)
        changed: Any = program
        changed.check = lambda: []
        if isinstance(program, Trains):
            losses, evaluate = program.losses, program.evaluate
            changed.losses = lambda kept: np.zeros_like(losses(kept))
            changed.evaluate = lambda: _zeros(evaluate())
        if isinstance(program, Infers):
            answers = program.answers
            changed.answers = lambda: _no_answers(answers())
        return program

    return built


def _zeros(means: Means) -> Means:
    return Means(loss=0.0, score=0.0, further_scores=dict.fromkeys(means.further_scores, 0.0))


def _no_answers(answers: Answers | None) -> Answers | None:
    return answers and Answers(np.zeros_like(answers.labels), None, "a fake GPU has computed nothing")


class Gather:
    """In the place of Device._of_all_ranks: [ranks, *values]"""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        own = np.asarray(values, np.float64)
        if not distributed.is_initialized():
            return own[None]
        self._calls += 1
        store, key = distributed.distributed_c10d._get_default_store(), f"fake_gpu/{self._calls}"
        store.set(f"{key}/{distributed.get_rank()}", own.tobytes().hex())
        of_all = [store.get(f"{key}/{rank}") for rank in range(distributed.get_world_size())]
        return np.stack([np.frombuffer(bytes.fromhex(one.decode())).reshape(own.shape) for one in of_all])
