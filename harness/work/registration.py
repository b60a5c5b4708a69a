"""What is fixed before anything is measured, as one checksum in every plan and record. Pure.

Thresholds of flags, verdicts, screening and explanations; the modes that the use case declares as its headline; and
what is excluded: flags that keep a mode out of every ratio, and `exclude` in experiments.yaml. Whoever changes one of
them after a look at the numbers can get another answer, so the report says whether records were made under today's.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from harness.plan import JobPlan, Registration, Variant
from harness.results import flags, ratios, screening, sequential, statistics, thresholds
from harness.results.thresholds import NEWEST
from harness.work.declared import use_case, use_case_names

WITH_THRESHOLDS = (flags, ratios, screening, sequential, statistics, thresholds)
"""All of their constants count, by their names: numbers, and tuples, sets and dicts of numbers and words."""
RULES: Mapping[int, str] = {
    3: "looks at 4, 6, 8 and 12 pairs, with an interval that knows which process was started first",
}
"""By version. Only the newest judge; what was registered under others is not pre-registered."""


def thresholds_by_name() -> dict[str, Any]:
    """As JSON has them. A change of one is a new version: a new NEWEST, with its line in RULES."""
    return {
        name: _as_json(value)
        for module in WITH_THRESHOLDS
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float | tuple | frozenset | Mapping)
    }


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(one) for key, one in value.items()}
    return sorted(value) if isinstance(value, set | frozenset) else value


def headline_of(use_case_name: str) -> dict[str, str]:
    """The declared mode of each framework; empty where the use case declares none, or is not there any more."""
    if use_case_name not in use_case_names():
        return {}
    return {str(framework): mode for framework, mode in use_case(use_case_name).headline.items()}


FIRST_REPLICATES = 2
"""So many give an interval, and a steady drift cancels over two."""


def first_variant(plan: JobPlan) -> Variant | None:
    """What is measured before everything else, so that there soon is a ratio: the plan's first variant in the declared
    headline mode. None where the plan has none, or nothing that could come before it."""
    if len(plan.variants) < 2 or plan.protocol.replicates < FIRST_REPLICATES or plan.cell.is_calibration:
        return None
    mode = headline_of(plan.cell.use_case_name).get(plan.framework)
    return next((one for one in plan.variants if one.execution_mode == mode), None)


def first_replicates(plan: JobPlan) -> range:
    """Of `first_variant`: the second and third, as the first of all has the warm start after it."""
    first = min(1, plan.protocol.replicates - FIRST_REPLICATES)
    return range(first, first + FIRST_REPLICATES)


def registration(use_case_name: str, exclusions: Iterable[Mapping[str, Any]]) -> Registration:
    """
    Args:
        exclusions: of experiments.yaml, those that concern the cell; in any order.
    """
    of_exclusions = _digest(sorted(json.dumps(one, sort_keys=True) for one in exclusions))
    return Registration(checksum=checksum(use_case_name, of_exclusions), exclusions=of_exclusions, rules_version=NEWEST)


@cache
def checksum(use_case_name: str, exclusions: str) -> str:
    """By today's thresholds and declaration.

    Args:
        exclusions: `Registration.exclusions`.
    """
    return _digest([thresholds_by_name(), headline_of(use_case_name), exclusions])


def is_as_registered(found: Registration, use_case_name: str) -> bool:
    """Whether the thresholds and the headline pair are those of then."""
    return found.checksum == checksum(use_case_name, found.exclusions)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
