"""`python main.py check`: whether both frameworks' models of one name are the same, by the parity gate alone."""

import tempfile
from collections import Counter
from pathlib import Path

from harness.errors import ConfigError
from harness.experiments.expand import Selection, expand
from harness.experiments.model import Config
from harness.experiments.narrow import Narrowing
from harness.job.job import Job
from harness.job.model_gate import Verdict
from harness.paths import Results
from harness.plan import FRAMEWORKS
from harness.results.parity import QUANTITIES, ParityNumbers, quantity_of

QUICKEST = ("jit", "eager")
"""Of JAX and of PyTorch: nothing is compiled that the gate does not need."""


def check_model(config: Config, benchmark: str, use_case: int, model: str) -> int:
    """Prints what agrees, or the cause; nothing is timed, and nothing is left behind. Exit status: 0, or 1 where the
    models differ or one of them cannot be run here.

    Raises:
        ConfigError: a name that nothing declares.
    """
    narrowing = Narrowing(models=(model,), precisions=("fp32",), runs=QUICKEST)
    selection = Selection(
        benchmarks=(benchmark,),
        use_cases=(use_case,),
        frameworks=FRAMEWORKS,
        data="sample",
        quick=True,
        narrowing=narrowing,
    )
    pair = expand(config, selection)[0]
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        results = Results(root=Path(folder))
        job = Job(pair, results.new_job_folder(pair), results, data=None, weights={}, is_by_hand=True)
        verdicts = job.check()
    if not verdicts:
        raise ConfigError(f"{benchmark}, use case {use_case}: both frameworks have nothing in common to be compared")
    for verdict in verdicts.values():
        print(in_words(verdict))
    return int(any(verdict.judgement.state != "passed" for verdict in verdicts.values()))


def in_words(verdict: Verdict) -> str:
    one = next(iter(verdict.measurements.values()))
    options = "".join(f", {name} {value}" for name, value in one.variant.options.items())
    what = f"{one.cell.benchmark}/{one.variant.model}, {one.cell.use_case_name}{options}"
    numbers = verdict.numbers["jax"]
    if verdict.judgement.state == "passed" and numbers is not None:
        return f"{what}: JAX and PyTorch agree: {what_was_compared(numbers)}"
    state = {"failed": "not the same in JAX and PyTorch"}.get(verdict.judgement.state, "could not be compared")
    return f"{what}: {state}: {verdict.judgement.sentence}"


def what_was_compared(numbers: ParityNumbers) -> str:
    """`outputs, loss, gradient of 87 tensors, sum of 5 updates of 87 tensors`"""
    counts = Counter(quantity_of(name) for name in numbers.kept)
    return ", ".join(
        f"{quantity.words} of {counts[name]} tensors" if counts[name] > 1 else quantity.words
        for name, quantity in QUANTITIES.items()
        if name in counts
    )
