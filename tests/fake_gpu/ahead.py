"""What `torch_runner.ahead` is asked, and what it says, in tests."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.paths import REPOSITORY
from harness.plan import Cell, Measurement, Precision, Variant
from harness.results.program_facts import ProgramFacts
from harness.work.declared import benchmark
from harness.work.declared import use_case as declared_use_case
from tests.made.patience import patience
from tests.made.sessions import NUMBERS, PROTOCOL, SETTINGS, made_up


def measurement(
    use_case: str,
    model: str,
    mode: str,
    precision: Precision,
    *,
    batch_size: int = 64,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Measurement:
    """Of a model's full size, with sample data. `model`: its benchmark and its name, `mnist/cnn`."""
    declared = declared_use_case(use_case)
    name, _, model = model.partition("/")
    return Measurement(
        framework="torch",
        cell=Cell(gpu="any", benchmark=name, use_case=NUMBERS[use_case], use_case_name=use_case),
        variant=Variant(
            model=model,
            batch_size=batch_size,
            precision=precision,
            execution_mode=mode,
            options=made_up(declared.options) | dict(options or {}),
        ),
        replicate=0,
        settings=made_up(declared.settings) | SETTINGS.get(use_case, {}) | settings,
        sizes=benchmark(name).sizes().model_dump(),
        protocol=PROTOCOL,
        data="sample",
        quick=True,
    )


def facts(card: str, measurements: Sequence[Measurement], variables: Mapping[str, str]) -> list[ProgramFacts]:
    """Args: variables: those of this test's process, which is not on the fake."""
    request = {"card": card, "measurements": [one.model_dump(mode="json") for one in measurements]}
    done = subprocess.run(
        [sys.executable, "-m", "torch_runner.ahead"],
        cwd=REPOSITORY,
        env=dict(variables),
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=patience(900),
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [ProgramFacts.model_validate_json(line) for line in done.stdout.splitlines()]
