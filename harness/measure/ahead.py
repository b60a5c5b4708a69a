"""What both runners' `ahead.py` have in common: a Request comes in on stdin, a ProgramFacts goes out on stdout for each
of its measurements as soon as it is known, in a line of JSON, and everything else is said on stderr.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.errors import ProjectError, Refused
from harness.measure.process import explain, make_session, require_whole_batch
from harness.measure.program import D, Device, Session
from harness.plan import Frozen, Measurement
from harness.results.program_facts import ProgramFacts
from harness.work.cards import Card

Tell = Callable[[str], None]


class Request(Frozen):
    card: str
    """A name of harness/work/cards.py."""
    measurements: list[Measurement]
    lower_only: bool = False
    """JAX: build and lower the programs, which finds what cannot be built; nothing is compiled."""


def facts(measurement: Measurement, card: Card, **found: Any) -> ProgramFacts:
    """Of the measurement's program on this card; `found`: the fields that say what was found."""
    return ProgramFacts(
        framework=measurement.framework,
        card=card.name,
        benchmark=measurement.cell.benchmark,
        use_case=measurement.cell.use_case,
        variant=measurement.variant,
        **found,
    )


def session_of(measurement: Measurement, device: D) -> Session[D]:
    """As the job would make it. Raises what keeps it from being made."""
    if measurement.cell.devices > 1:
        raise Refused(f"{measurement.cell.short_name} takes several GPUs, and programs are compiled ahead for one")
    device.set_up(measurement.variant.precision)
    session = make_session(measurement, device)
    require_whole_batch(session)
    return session


def facts_or_reason(
    measurement: Measurement, card: Card, device: Device, find: Callable[[], dict[str, Any]]
) -> ProgramFacts:
    """`find`: what `facts` takes of a program. Raises nothing: what goes wrong is a fact."""
    try:
        found = {"outcome": "ok", **find()}
    except Exception as error:
        traceback.print_exc()
        outcome, reason = explain(error, device)
        found = {"outcome": outcome, "reason": reason}
    return facts(measurement, card, **found)


def serve(answer: Callable[[Request, Tell], int]) -> int:
    """The exit status: that of `answer`, or 2 with words where nothing can be answered."""
    with stdout_to_ourselves() as tell:
        try:
            return answer(Request.model_validate_json(sys.stdin.read()), tell)
        except ProjectError as error:
            print(error, file=sys.stderr)
            return 2


@contextmanager
def stdout_to_ourselves() -> Iterator[Tell]:
    """Whatever else writes to stdout, C++ or not, writes to stderr meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with open(kept, "w", encoding="utf-8") as lines:  # noqa: PTH123

        def tell(line: str) -> None:
            lines.write(line + "\n")
            lines.flush()

        try:
            yield tell
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
