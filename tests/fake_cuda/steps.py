"""Which programs of PyTorch take a step on the fake CUDA, and the process that finds what the step calls."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.plan import Frozen, Precision
from tests.gpu.cases import BATCH_SIZE, Case, all_cases, left_out, models_of, options_of
from tests.gpu.group import run_group
from tests.made.patience import patience


class Step(Frozen):
    """A program by its names, smaller than in experiments.yaml (tests/made/sessions.py)."""

    use_case: str
    models: tuple[str, ...]
    """Each with its benchmark, `mnist/cnn`; the first that the runner does not refuse."""
    mode: str
    precision: Precision
    batch_size: int = BATCH_SIZE
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.model_dump_json()


def step_of(case: Case) -> Step:
    return Step(
        use_case=case.use_case,
        models=tuple(f"{benchmark}/{model}" for benchmark, model in models_of(case)),
        mode=case.mode,
        precision=case.precision,
        options=options_of(case),
    )


def cases(*, run_as: str) -> list[Case]:
    """PyTorch's of tests/gpu: `eager`, `compiled`."""
    return [
        case
        for case in all_cases()
        if case.framework == "torch" and case.declared.run_as == run_as and left_out(case) is None
    ]


def one(use_case: str, model: str, mode: str, precision: Precision, batch_size: int = BATCH_SIZE, **more: Any) -> Step:
    return Step(use_case=use_case, models=(model,), mode=mode, precision=precision, batch_size=batch_size, **more)


def run_steps(wanted: Sequence[Step], log: Path, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What tests/fake_cuda/facts.py found of each, by its name; also of those that end the process or never end."""
    command = [sys.executable, "-m", "tests.fake_cuda.facts"]
    answers = run_group([step.name for step in wanted], log, variables, command=command, timeout_s=patience(300))
    return {
        name: json.loads(answer["words"]) if answer["outcome"] == "ok" else {"failed": answer["words"]}
        for name, answer in answers.items()
    }
