"""What programs of both frameworks find, by names that both share: compared, left for the parity gate, and by plain
autograd, one sample after another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.measure.process import gate_session
from harness.measure.program import Program, Session
from harness.results.parity import ParityMetadata, ParityNumbers, condense, gate_measurement, key_of
from harness.work.closeness import relative_error
from tests.made.sessions import build

Numbers = dict[str, np.ndarray]

TOLERANCE = 1e-9
"""Of float64, which rounds at 1e-16."""


def error_of(name: str, ours: Numbers, theirs: Numbers) -> float:
    """The relative error of one tensor."""
    return relative_error({name: ours[name]}, {name: theirs[name]})


def require_same(ours: Numbers, theirs: Numbers, tolerance: float = TOLERANCE) -> None:
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert error_of(name, ours, theirs) < tolerance, name


def losses_of(program: Any, calls: int) -> Any:
    """Of the next calls of a program that trains."""
    return program.losses([program.kept(program.step()) for _ in range(calls)])


def gated(session: Session[Any], make: Callable[[Session[Any]], Program] = build) -> ParityNumbers:
    """As a job's child leaves them for the gate."""
    session = gate_session(session, gate_measurement(session.measurement))
    kept, shapes = condense(make(session).parity())
    metadata = ParityMetadata(key=key_of(session.measurement), outcome="ok", shapes=shapes, created_at="now")
    return ParityNumbers(metadata=metadata, kept=kept)


@dataclass(frozen=True)
class OneByOne:
    """The gradient of each sample's loss: the reference of per-sample gradients."""

    full: Numbers
    """[samples, ...] of each parameter."""
    norms: np.ndarray
    """[samples]."""

    def output(self, name: str, clip_norm: float = 0.0) -> Numbers:
        """As the option `output` names it."""
        match name:
            case "norms":
                return {"norms": self.norms}
            case "full":
                return self.full
            case "batch_gradient":
                return {parameter: value.mean(0) for parameter, value in self.full.items()}
        assert name == "clipped_sum"
        factors = np.minimum(1, clip_norm / self.norms)
        assert factors.min() < 1 == factors.max(), self.norms  # some are clipped, some are not
        return {parameter: np.tensordot(factors, value, 1) for parameter, value in self.full.items()}


def one_by_one(problem: Any, samples: int, loss: Callable[[Any, Any], Any] | None = None) -> OneByOne:
    """By plain autograd on the plain model of a problem of PyTorch, each of the first samples in a batch of its own.

    Args:
        loss: instead of the task's, of the outputs and the targets of one sample.
    """
    gradients = []
    for row in range(samples):
        inputs, targets = problem.batch(np.array([row]))
        problem.model.zero_grad()
        (loss or problem.task.mean_loss)(problem.model(inputs), targets).backward()
        gradients.append({name: p.grad.cpu().numpy().copy() for name, p in problem.model.named_parameters()})
    full = {name: np.stack([gradient[name] for gradient in gradients]) for name in gradients[0]}
    return OneByOne(full, np.sqrt(sum((value.reshape(samples, -1) ** 2).sum(1) for value in full.values())))
