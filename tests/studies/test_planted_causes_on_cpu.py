"""Causes in real steps: what counts as right, one step of each framework, and the published records."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from harness.paths import REPOSITORY
from harness.plan import FRAMEWORKS, Framework
from harness.results.kernel_names import class_of
from studies.planted_causes_on_cpu import (
    EXPECTED,
    REPETITIONS,
    SIZES,
    STRENGTHS,
    Pair,
    Study,
    case_of,
    cases_of,
    counts,
    table,
)
from tests.made.explained_records import explanation

RECORDS = REPOSITORY / "results" / "published" / "planted_causes"
SIZE = (32, 64)
ROWS = 40_000
"""10 MB, which takes far longer than the step."""


def published() -> list[dict[str, Any]]:
    """JAX's before PyTorch's."""
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]


def case(cause: str, named: str, strength: float = 0.5, doubts: Sequence[str] = ()) -> dict[str, Any]:
    return {"cause": cause, "named": named, "strength": strength, "doubts": doubts}


def test_what_is_right_wrong_and_unnamed() -> None:
    """An operator that nobody knows is right where nothing is named; a step without a cause, where nothing is there to
    explain."""
    cases = [
        case("a product", "product"),
        case("a product", "traffic"),
        case("a product", "traffic", doubts=["a doubt"]),
        case("a product", "product", doubts=["a doubt"]),
        case("a product", "refused"),
        case("a product", "nothing"),
        case("a product", "product of the step in which nothing is planted"),
        case("an unknown operator", "refused"),
        case("an unknown operator", "traffic"),
        case("nothing", "nothing"),
        case("nothing", "idle"),
    ]
    assert counts(cases) == (4, 4, 1, 2)


def test_table_by_hand() -> None:
    cases = [case("a product", "product"), case("a product", "nothing"), case("nothing", "nothing", 0.0)]
    lines = table([{"framework": "jax", "cases": cases}]).splitlines()
    assert lines[0] == "| planted | JAX, +25 % | JAX, +50 % | JAX, +100 % |"
    assert lines[2] == "| nothing | 1 of 1 (0, 0, 0) |  |  |"
    assert lines[3] == "| a product | 0 of 0 (0, 0, 0) | 1 of 2 (0, 0, 1) | 0 of 0 (0, 0, 0) |"


@pytest.mark.nightly  # tests/runners/test_trace.py has real traces in any run
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_planted_takes_most_of_a_real_step(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does: which class takes most of the busy time."""
    study = Study(framework)
    for cause, kind in (("a change of layout", "layout"), ("an elementwise pass", "traffic"), ("a product", "product")):
        window = study.explained(SIZE, cause, {"rows": ROWS}).windows[-1]
        of_class: Counter[str] = Counter()
        for kernel in window.kernels:
            of_class[class_of(kernel.name, kernel.content)] += round(kernel.busy_s * 1e9)
        assert of_class.most_common(1)[0][0] == kind, (cause, of_class)


def test_case_by_hand_and_with_its_sides_swapped() -> None:
    """2 ms without and 4 ms with 1.9 ms more of products."""
    fast = explanation({"aten::mm": (10, 1.9)}, step_ms=2.0, on_device=False, traced_ms=2.0)
    slow = explanation({"aten::mm": (10, 3.8)}, step_ms=4.0, on_device=False, traced_ms=4.0)
    found = case_of(Pair(SIZE, "a product", 1.0, 0, fast, slow))
    assert (found["named"], found["refusals"], found["doubts"]) == ("product", [], [])
    assert found["with"]["product"] == 3.8 and found["with"]["idle"] == pytest.approx(0.2)
    assert found["with"]["traced_step"] == pytest.approx(4 * 20 / 19, rel=1e-3)
    swapped = case_of(Pair(SIZE, "a product", 1.0, 0, slow, fast))
    assert swapped["named"] == "product of the step in which nothing is planted"


def test_a_step_that_is_off_the_others_is_doubted() -> None:
    """Of three repetitions the last took 6 ms for 4, and for the step without the cause always 2."""
    fast = explanation({"aten::mm": (10, 1.9)}, step_ms=2.0, on_device=False)
    slow = [explanation({"aten::mm": (10, ms)}, step_ms=ms, on_device=False) for ms in (4.0, 4.1, 6.0)]
    cases = cases_of([Pair(SIZE, "a product", 1.0, number, fast, one) for number, one in enumerate(slow)])
    doubts = [[], [], ["the explained process took 146% of the measured step time"]]
    assert [one["doubts"] for one in cases] == doubts


def test_published_records_have_nothing_wrong_without_a_doubt() -> None:
    """Of what became longer by twice the threshold or more; and 95 % of what has no doubt is right."""
    assert published()
    for record in published():
        planted = [one for one in record["cases"] if one["cause"] != "nothing"]
        assert len(planted) == len(SIZES) * REPETITIONS * (len(EXPECTED) - 1) * len(STRENGTHS)
        longer = [one for one in planted if one["with"]["step"] >= 1.2 * one["without"]["step"]]
        assert longer and counts(longer).wrong == 0
        undoubted = [one for one in longer if not one["doubts"]]
        assert counts(undoubted).right >= 0.95 * len(undoubted)


def test_the_docs_show_the_published_table() -> None:
    text = (REPOSITORY / "docs" / "studies" / "planted_causes_on_cpu.md").read_text()
    assert table(published()) in text
