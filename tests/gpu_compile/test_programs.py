"""Rules over what XLA makes of a handful of steps, on each compute capability; and that each rule can fail."""

import warnings
from collections.abc import Callable
from importlib.metadata import version

import pytest

from harness.work.cards import card
from tests.gpu_compile.programs import (
    BY_DAY,
    CARDS,
    COMPARE_AND_SWAP,
    KNOWN_TO_BREAK,
    SCATTER_ADD,
    Asked,
    Examined,
    examine,
    name_of,
)

ByDay = Callable[[str], dict[str, Examined]]

pytestmark = pytest.mark.filterwarnings("default::UserWarning")


def require_rules(found: Examined) -> None:
    """Raises AssertionError with what breaks them. What this jaxlib is known for is a warning."""
    jaxlib = version("jaxlib")
    known = KNOWN_TO_BREAK.get(jaxlib, ())
    for rule in set(found.broken) & set(known):
        warnings.warn(f"{found.name}: {rule}, as jaxlib {jaxlib} is known for", stacklevel=2)
    assert (found.outcome, found.reason) == ("ok", None)
    assert {rule: words for rule, words in found.broken.items() if rule not in known} == {}


@pytest.mark.parametrize(
    ("name", "asked"),
    [(name, asked) for name in CARDS for asked in BY_DAY if asked.can_run_on(card(name))],
    ids=lambda value: value.name if isinstance(value, Asked) else value,
)
def test_no_rule_is_broken(name: str, asked: Asked, by_day: ByDay) -> None:
    require_rules(by_day(name)[name_of(asked.measurement())])


@pytest.mark.parametrize("name", CARDS)
def test_a_float32_scatter_add_is_an_atomic_addition(name: str, by_day: ByDay) -> None:
    require_rules(by_day(name)[SCATTER_ADD])


def test_each_rule_fires_alone() -> None:
    """On an RTX 2080 Ti, over a planted program that breaks it and no other."""
    from tests.gpu_compile.rules import RULES

    found = examine("rtx2080ti", (), "planted")
    assert [(one.name, list(one.broken)) for one in found] == [
        (one.name, [one.name] if one.name else []) for one in found
    ]
    assert {one.name for one in found} == {*RULES, COMPARE_AND_SWAP, ""}
