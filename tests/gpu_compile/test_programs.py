"""Rules over what XLA makes of a handful of steps, on each compute capability; and that each rule can fail."""

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version

import pytest

from tests.gpu_compile.programs import (
    BY_DAY,
    COMPARE_AND_SWAP,
    GPUS,
    KNOWN_TO_BREAK,
    SCATTER_ADD,
    Asked,
    Examined,
    examine,
    name_of,
)
from tests.made.gpu_specs import GPU_SPECS

ByDay = Callable[[str], dict[str, Examined]]

pytestmark = pytest.mark.filterwarnings("default::UserWarning")


@pytest.fixture(scope="module")
def examined_by_day(request: pytest.FixtureRequest) -> Iterator[ByDay]:
    """Of a card, by name: the scatter-add, and all of BY_DAY that run on it. A process for each card that is asked for,
    two at a time."""
    asking = [item for item in request.session.items if "examined_by_day" in getattr(item, "fixturenames", ())]
    asked = {item.callspec.params["name"] for item in asking}  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        started: dict[str, Future[list[Examined]]] = {
            name: pool.submit(examine, name, [one.measurement() for one in BY_DAY if one.can_run_on(GPU_SPECS[name])])
            for name in GPUS
            if name in asked
        }
        yield lambda name: {one.name: one for one in started[name].result()}


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
    [(name, asked) for name in GPUS for asked in BY_DAY if asked.can_run_on(GPU_SPECS[name])],
    ids=lambda value: value.name if isinstance(value, Asked) else value,
)
def test_no_rule_is_broken(name: str, asked: Asked, examined_by_day: ByDay) -> None:
    require_rules(examined_by_day(name)[name_of(asked.measurement())])


@pytest.mark.parametrize("name", GPUS)
def test_a_float32_scatter_add_is_an_atomic_addition(name: str, examined_by_day: ByDay) -> None:
    require_rules(examined_by_day(name)[SCATTER_ADD])


def test_each_rule_fires_alone() -> None:
    """On an RTX 2080 Ti, over a planted program that breaks it and no other."""
    from tests.gpu_compile.rules import RULES

    found = examine("rtx2080ti", (), "planted")
    assert [(one.name, list(one.broken)) for one in found] == [
        (one.name, [one.name] if one.name else []) for one in found
    ]
    assert {one.name for one in found} == {*RULES, COMPARE_AND_SWAP, ""}
