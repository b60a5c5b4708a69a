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

from harness.plan import Registration
from harness.results import flags, screening, statistics, thresholds
from harness.work.declared import use_case, use_case_names

WITH_THRESHOLDS = (flags, screening, statistics, thresholds)
"""All of their constants count, by their names: numbers, and tuples of numbers and words."""


def thresholds_by_name() -> dict[str, Any]:
    return {
        name: value
        for module in WITH_THRESHOLDS
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float | tuple)
    }


def headline_of(use_case_name: str) -> dict[str, str]:
    """The declared mode of each framework; empty where the use case declares none, or is not there any more."""
    if use_case_name not in use_case_names():
        return {}
    return {str(framework): mode for framework, mode in use_case(use_case_name).headline.items()}


def registration(use_case_name: str, exclusions: Iterable[Mapping[str, Any]]) -> Registration:
    """
    Args:
        exclusions: of experiments.yaml, those that concern the cell; in any order.
    """
    of_exclusions = _digest(sorted(json.dumps(one, sort_keys=True) for one in exclusions))
    return Registration(checksum=checksum(use_case_name, of_exclusions), exclusions=of_exclusions)


@cache
def checksum(use_case_name: str, exclusions: str) -> str:
    """By today's thresholds and declaration.

    Args:
        exclusions: `Registration.exclusions`.
    """
    return _digest([thresholds_by_name(), headline_of(use_case_name), exclusions])


def is_as_registered(found: Registration, use_case_name: str) -> bool:
    """Whether today's thresholds and headline pair are those of then."""
    return found.checksum == checksum(use_case_name, found.exclusions)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
