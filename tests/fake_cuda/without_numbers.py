"""Replaces harness/measure/fake_cuda_guard.py in a copy of the repository, so that the copy measures on the fake CUDA.

What kernels would compute is left out: outputs count as finite, checks and parity are skipped, losses, metrics and
labels are 0. All else is done, by the calls that a real GPU would get.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.errors import ProjectError
from harness.measure.program import Answers, Build, Infers, Means, Program, Session, Trains
from harness.plan import Measurement


def require_real_cuda() -> None:
    """Prepare this process, which is about to build its program, for kernels that compute nothing."""
    from harness.measure import process  # which imports this module

    process.builder = without_numbers(process.builder)
    process.leave_parity_numbers = no_parity_numbers


def without_numbers(builder: Callable[[Measurement], Build]) -> Callable[[Measurement], Build]:
    return lambda measurement: without_numbers_of(builder(measurement))


def without_numbers_of(build: Build) -> Build:
    def built(session: Session[Any], *, joined: bool = True) -> Program:
        session.device.is_finite = lambda outputs: True
        program = build(session, joined=joined)
        changed: Any = program
        changed.check = lambda: []
        if isinstance(program, Trains):
            losses, evaluate = program.losses, program.evaluate
            changed.losses = lambda kept: np.zeros_like(losses(kept))
            changed.evaluate = lambda: zeros(evaluate())
        if isinstance(program, Infers):
            answers = program.answers
            changed.answers = lambda: no_answers(answers())
        return program

    return built


def zeros(means: Means) -> Means:
    return Means(loss=0.0, score=0.0, further_scores=dict.fromkeys(means.further_scores, 0.0))


def no_answers(answers: Answers | None) -> Answers | None:
    return answers and Answers(np.zeros_like(answers.labels), None, "the fake CUDA has computed nothing")


def no_parity_numbers(*_: Any) -> None:
    raise ProjectError("the fake CUDA computes no numbers")
