"""Does the explanation name the cause that was planted in a real step? (docs/studies/planted_causes_on_cpu.md)

    python -m studies.planted_causes_on_cpu jax|torch [RECORD.json]

A small training step is explained as a measurement's is: by the clock, and by the framework's own profiler. So is the
same step with a cause planted, which makes it longer by about a known fraction: another product of matrices, another
elementwise pass over an array, a change of its layout, a host that waits between two calls of the device, or an
operator that sleeps and whose name says nothing. The report's code then explains the difference.

One thread computes, so that neither framework can hide what is planted behind the rest. What other processes have
disturbed so far that the report would explain nothing is explained again. RECORD.json stores what was named, the terms
of both sides, and what other processes took of the CPUs.
"""

import importlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bench.measurement import make_measurement
from harness.files import compact_json, write_atomically
from harness.measure import clock
from harness.measure.explain import explain
from harness.measure.process import make_session
from harness.measure.program import Program, Session
from harness.plan import FRAMEWORKS, Framework
from harness.results.environment import describe_environment
from harness.results.record import Explanation
from harness.results.statistics import median, step_time_s
from pipeline.markdown import markdown_table
from pipeline.report.compare import NAMES
from pipeline.report.why import TERMS, Why
from studies.planted_causes import named_cause, terms_of, why_of_explanations
from studies.published import RECORDED

NOTHING = "nothing"
EXPECTED = {
    NOTHING: "nothing",
    "a product": "product",
    "an elementwise pass": "traffic",
    "a change of layout": "layout",
    "the host waits": "idle",
    "an unknown operator": "refused",
}
"""What `named_cause` shall say. On a CPU nothing is said of launches: time in which no operator runs has that name and
no other. What an unknown operator does is not guessed."""
UNNAMED = ("nothing", "refused")
OF_ROWS = ("a product", "an elementwise pass", "a change of layout")
"""Causes that are as large as their array; the others last a number of seconds."""
STRENGTHS = (0.25, 0.5, 1.0)
"""By how much the slower step is to be longer."""
SIZES = ((256, 256),)
"""Batch and width of the dense layers."""
REPETITIONS = 3
BLOCKS = {"block_min_s": 0.03, "min_blocks": 10}
FIRST_ROWS, TRIALS = 4096, 3
LEAST_ADDED, MOST_CHANGE = 0.02, 4.0
"""Of the step; and of the rows from one trial to the next."""
TIMED_CALLS = 20
MOST_TRIES = 4
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"}
"""The last one is XLA's."""

MakeStep = Callable[..., Callable[[], Any]]


class Pair(NamedTuple):
    """A step as it is, and with a cause planted in it."""

    size: tuple[int, int]
    cause: str
    strength: float
    repetition: int
    fast: Explanation
    slow: Explanation

    @property
    def planted(self) -> tuple[Any, ...]:
        """What all repetitions share."""
        return self.size if self.cause == NOTHING else (self.size, self.cause, self.strength)


class Planted(Program):
    """Nothing but a step."""

    def __init__(self, step: Callable[[], Any], batch: int) -> None:
        self.samples_per_step = batch
        self.parameter_count = 0
        self.details: dict[str, Any] = {}
        self._step = step

    def step(self) -> Any:
        return self._step()


class Study:
    """Of one framework, in its process."""

    def __init__(self, framework: Framework) -> None:
        device = importlib.import_module(f"{framework}_runner.device").Device()
        device.set_up("fp32")
        mode = {"jax": "step.jit", "torch": "step.eager"}[framework]
        measurement = make_measurement(framework, "train", benchmark="mnist", batch_size=1, execution_mode=mode)
        protocol = measurement.protocol.model_copy(update=BLOCKS)
        self.session: Session[Any] = make_session(measurement.model_copy(update={"protocol": protocol}), device)
        self.others: list[float | None] = []
        """How many CPUs other processes took during each explanation."""
        self._make_step: MakeStep = importlib.import_module(f"studies.planted_steps_{framework}").make_step

    def explained(self, size: tuple[int, int], cause: str, amount: dict[str, Any]) -> Explanation:
        """Made again where clock and tracer disagree so far that nothing would be explained."""
        for _ in range(MOST_TRIES):
            found = self._explained(size, cause, amount)
            self.others.append(found.other_cpus)
            if not terms_of("jax", found).disturbances:
                break
        return found

    def _explained(self, size: tuple[int, int], cause: str, amount: dict[str, Any]) -> Explanation:
        """In a process a measurement has one program; the names of several would meet."""
        self.session.device.forget_programs()
        program = Planted(self._make_step(*size, cause, **amount), size[0])
        clock.measure_cold(program.step, self.session.device.wait)
        return explain(program, self.session)

    def amounts(self, size: tuple[int, int], cause: str) -> list[dict[str, Any]]:
        """For each of STRENGTHS, by the clock: what is planted is tried, and scaled by what came of it."""
        plain_s = self._step_s(size, NOTHING, {})
        if cause not in OF_ROWS:
            return [{"seconds": strength * plain_s} for strength in STRENGTHS]
        found, rows = [], FIRST_ROWS
        for strength in STRENGTHS:
            for _ in range(TRIALS):
                added_s = self._step_s(size, cause, {"rows": rows}) - plain_s
                rows = round(rows * min(MOST_CHANGE, strength * plain_s / max(added_s, LEAST_ADDED * plain_s)))
            found.append({"rows": rows})
        return found

    def _step_s(self, size: tuple[int, int], cause: str, amount: dict[str, Any]) -> float:
        """Of the fastest call."""
        self.session.device.forget_programs()
        step, wait = self._make_step(*size, cause, **amount), self.session.device.wait
        clock.measure_cold(step, wait)
        return min(clock.time_call(step, wait) for _ in range(TIMED_CALLS))

    def run(self, tell: Callable[[str], None]) -> list[dict[str, Any]]:
        """Each cause is explained right after the step without it. What the records of a step would say is the median
        over all that were explained of it."""
        causes = [cause for cause in EXPECTED if cause != NOTHING]
        amounts = {(size, cause): self.amounts(size, cause) for size in SIZES for cause in causes}
        pairs: list[Pair] = []
        for repetition, size in product(range(REPETITIONS), SIZES):
            before = self.explained(size, NOTHING, {})
            for cause in causes:
                plain = self.explained(size, NOTHING, {})
                if cause == causes[0]:
                    pairs.append(Pair(size, NOTHING, 0.0, repetition, before, plain))
                for strength, amount in zip(STRENGTHS, amounts[size, cause], strict=True):
                    slow = self.explained(size, cause, amount)
                    pairs.append(Pair(size, cause, strength, repetition, plain, slow))
            tell(f"repetition {repetition + 1} of {REPETITIONS}, batch {size[0]}, width {size[1]}")
        return cases_of(pairs)


def cases_of(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    times_s: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for pair in pairs:
        times_s[pair.size].append(step_time_s(pair.fast.blocks))
        times_s[pair.planted].append(step_time_s(pair.slow.blocks))
    return [case_of(pair, (median(times_s[pair.size]), median(times_s[pair.planted]))) for pair in pairs]


def case_of(pair: Pair, recorded_s: tuple[float | None, float | None] = (None, None)) -> dict[str, Any]:
    """What was named, and what it was named by."""
    why = why_of_explanations(pair.fast, pair.slow, recorded_s)
    named = named_cause(why)
    if named in TERMS and why.slow == "jax":
        named = f"{named} of the step in which nothing is planted"
    return {
        **{"batch": pair.size[0], "width": pair.size[1], "cause": pair.cause, "strength": pair.strength},
        **{"repetition": pair.repetition, "named": named},
        **{"doubts": [text for _, text in why.doubts], "refusals": [text for _, text in why.refusals]},
        **{"without": _ms(why, "jax"), "with": _ms(why, "torch")},
    }


def _ms(why: Why, side: Framework) -> dict[str, float]:
    """The step by the clock, its busy time and at most its time under the tracer, and its terms."""
    terms = why.terms[side]
    found = {"step": terms.step_s, "busy": terms.busy_s, "traced_step": terms.traced_step_s or 0.0, **terms.terms_s}
    return {name: float(f"{seconds * 1e3:.4g}") for name, seconds in found.items()}


class Counts(NamedTuple):
    right: int
    wrong: int
    wrong_with_doubt: int
    """Behind a doubt that the sentence begins with."""
    unnamed: int
    """Not explained, where something should have been."""


def counts(cases: Iterable[dict[str, Any]]) -> Counts:
    found: Counter[str] = Counter()
    for case in cases:
        if case["named"] == EXPECTED[case["cause"]]:
            found["right"] += 1
        elif case["named"] in UNNAMED:
            found["unnamed"] += 1
        else:
            found["wrong_with_doubt" if case["doubts"] else "wrong"] += 1
    return Counts(**{name: found[name] for name in Counts._fields})


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: of so many, how many are right; behind it the others, in the order of Counts."""
    heads = [f"{NAMES[record['framework']]}, +{strength * 100:.0f} %" for record in records for strength in STRENGTHS]
    rows = []
    for cause in EXPECTED:
        cells = []
        for record in records:
            for strength in STRENGTHS:
                wanted = 0.0 if cause == NOTHING else strength
                cases = [case for case in record["cases"] if (case["cause"], case["strength"]) == (cause, wanted)]
                is_shown = cause != NOTHING or strength == STRENGTHS[0]
                cells.append(_cell(counts(cases)) if is_shown else "")
        rows.append([cause, *cells])
    return markdown_table(["planted", *heads], rows)


def _cell(found: Counts) -> str:
    return f"{found.right} of {sum(found)} ({', '.join(map(str, found[1:]))})"


def main(framework: Framework, record: Path | None) -> int:
    study = Study(framework)
    cases = study.run(lambda text: print(f"{framework}: {text}", flush=True))
    whole = describe_environment()
    environment = {name: whole[name] for name in RECORDED} | {"framework": study.session.device.describe()}
    others = [None if one is None else round(one, 2) for one in study.others]
    told = {"framework": framework, "cases": cases, "others_cpus": others, "environment": environment}
    content = {"schema_version": 1} | told
    print(table([content]))
    if record:
        write_atomically(record, compact_json(content), replace=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in FRAMEWORKS:
        sys.exit("usage: python -m studies.planted_causes_on_cpu jax|torch [RECORD.json]")
    os.environ |= ONE_THREAD
    sys.exit(main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None))  # type: ignore[arg-type]
