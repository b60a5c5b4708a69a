"""What `torch_runner.ahead` is asked, and what it says, in tests."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.plan import Measurement, Precision
from harness.results.program_facts import ProgramFacts
from harness.work.declared import benchmark
from tests.made.processes import output_of
from tests.made.sessions import make_measurement


def measurement(use_case: str, model: str, mode: str, precision: Precision, **further: Any) -> Measurement:
    """Of a model's full size, with sample data. `model`: its benchmark and its name, `mnist/cnn`."""
    name, _, model = model.partition("/")
    sizes = benchmark(name).sizes().model_dump()
    own = {"benchmark": name, "model": model, "execution_mode": mode, "precision": precision, "sizes": sizes}
    return make_measurement("torch", use_case, **({"batch_size": 64} | own | further))


def facts(card: str, measurements: Sequence[Measurement], variables: Mapping[str, str]) -> list[ProgramFacts]:
    """Args: variables: those of this test's process, which is not on the fake."""
    request = {"card": card, "measurements": [one.model_dump(mode="json") for one in measurements]}
    output = output_of("-m", "torch_runner.ahead", env=variables, input=json.dumps(request), quiet_s=900)
    return [ProgramFacts.model_validate_json(line) for line in output.splitlines()]
