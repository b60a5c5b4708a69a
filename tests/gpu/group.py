"""A process that tries cases of one framework on this machine's GPU, one after the other.

    python -m tests.gpu.group jax '["jax-train-fp32-step.jit"]'

Names of cases come in as a JSON list; a line of JSON goes out before each case and one after it. Whatever a framework
prints goes to stderr. A case that ends the process costs itself alone: `run_group` starts another for the rest.
"""

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from harness.errors import Refused
from harness.measure.clock import COLD_CALLS
from tests.gpu.cases import BATCH_SIZE, Case, all_cases, models_of, options_of
from tests.made.line_process import LineProcess
from tests.made.stdout import Tell, reserved_stdout

CASE_TIMEOUT_S = 120.0
"""From one line to the next; the first import from a cold file system takes a minute."""

Outcome = Literal["ok", "refused", "failed"]


class Answer(TypedDict):
    outcome: Outcome
    words: str
    """The checks and the witness of what works; else why it does not."""
    seconds: float


Answers = Callable[[Case], Answer]


def answer_each(names: Sequence[str], attempt: Callable[[str], tuple[Outcome, str]], tell: Tell) -> None:
    """`attempt`: gives the outcome and the words of the answer, or raises what it failed by."""
    for name in names:
        tell(json.dumps({"begun": name}))
        start = time.monotonic()
        try:
            outcome, words = attempt(name)
        except Exception as error:
            traceback.print_exc()
            outcome, words = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        answer = Answer(outcome=outcome, words=words, seconds=round(time.monotonic() - start, 1))
        tell(json.dumps({"ended": name, "answer": answer}))


def try_case(case: Case, device: Any) -> tuple[Outcome, str]:
    """As the harness drives a program, without its clock: cold calls, check, witness, and steps that stay finite.

    Raises CheckFailed, AssertionError or whatever the framework raises.
    """
    from tests.made.sessions import build, make_session

    refusals: dict[str, None] = {}
    """Each once, in their order."""
    for data, model in models_of(case):
        device.forget_programs()
        try:
            session = make_session(
                case.framework,
                case.use_case,
                benchmark=data,
                model=model,
                batch_size=BATCH_SIZE,
                precision=case.precision,
                execution_mode=case.mode,
                options=options_of(case),
                device=device,
            )
            program = build(session)
        except Refused as error:
            refusals[str(error)] = None
            continue
        device.wait(program.state())
        for _ in range(COLD_CALLS):
            device.wait(program.step())
        checks = program.check()
        assert all(check.passed for check in checks), checks
        witness = program.witness()
        program.settle()
        for _ in range(2):
            outputs = program.step()
            device.wait(outputs)
        assert device.is_finite(outputs), "the step's outputs are not finite"
        witness |= program.witness()
        found = [f"{check.name}: {check.error:.1e} of {check.tolerance:.1e}" for check in checks]
        return "ok", "; ".join([f"{data} {model}", *found, *(f"{name}: {value}" for name, value in witness.items())])
    return "refused", " | ".join(refusals)


# ---- the other end


def run_group(
    names: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    command: Sequence[str] = (),
    timeout_s: float = CASE_TIMEOUT_S,
) -> dict[str, Answer]:
    """Every case of one framework and its answer: also of those that end the process or never end.

    Args:
        command: instead of this module as a process.
    """
    framework = names[0].partition("-")[0]
    command = command or [sys.executable, "-m", "tests.gpu.group", framework]
    answers: dict[str, Answer] = {}
    with log.open("ab") as output:
        while left := [name for name in names if name not in answers]:
            at_hand = left[0]
            words = [*command, json.dumps(left)]
            said = LineProcess(words, log=output, timeout_s=timeout_s, environment=environment)
            for event in map(json.loads, said):
                at_hand = event.get("begun", at_hand)
                if "ended" in event:
                    answers[event["ended"]] = event["answer"]
            if at_hand not in answers:
                answers[at_hand] = Answer(outcome="failed", words=f"{said.ended}; log: {log}", seconds=0.0)
    return answers


if __name__ == "__main__":
    with reserved_stdout() as tell:
        cases = {case.name: case for case in all_cases()}
        device = importlib.import_module(f"{sys.argv[1]}_runner.device").Device()
        answer_each(json.loads(sys.argv[2]), lambda name: try_case(cases[name], device), tell)
