"""What PyTorch compiles for each kind of card, by Inductor, Triton and ptxas: every mode on an A100, and of each use
case and formulation one on the others. `max_autotune` is left out: its choice among kernels that take no time means
nothing."""

from typing import Any

import pytest

from harness.results.kernel_names import class_of
from harness.work.cards import CARDS
from tests.fake_gpu.conftest import Steps
from tests.fake_gpu.rules import executed, require_arithmetic, require_clean, require_layout
from tests.fake_gpu.steps import cases, step_of
from tests.gpu.cases import Case

COMPILED = cases(run_as="compiled")
OTHER_CARDS = {"rtx2080ti": ("fp32", "fp16"), "rtx3080": ("bf16",), "h100": ("bf16",), "b200": ("bf16",)}
"""Each of another compute capability, with precisions that it has."""
OF_EACH = 12

pytestmark = pytest.mark.nightly


def for_card(card: str) -> list[Case]:
    """The first of each use case and formulation."""
    first: dict[tuple[str, str], Case] = {}
    for case in COMPILED:
        if case.precision in OTHER_CARDS[card]:
            first.setdefault((case.use_case, case.declared.formulation), case)
    return list(first.values())[:OF_EACH]


ON_OTHERS = [(card, case) for card in OTHER_CARDS for case in for_card(card)]


@pytest.fixture(scope="module")
def on_a100(steps: Steps, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Of the cases that are asked for here."""
    return steps("a100", [step_of(case) for case in _asked(request, "a100")])


@pytest.fixture(scope="module")
def on_others(steps: Steps, request: pytest.FixtureRequest) -> dict[str, dict[str, dict[str, Any]]]:
    asked = {card: _asked(request, card) for card in OTHER_CARDS}
    return {card: steps(card, [step_of(case) for case in cases_]) for card, cases_ in asked.items() if cases_}


def _asked(request: pytest.FixtureRequest, card: str) -> list[Case]:
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]  # type: ignore[attr-defined]
    wanted = {params["case"].name for params in asked if params.get("card", "a100") == card and "case" in params}
    return [case for case in (COMPILED if card == "a100" else for_card(card)) if case.name in wanted]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_what_is_compiled_is_clean(case: Case, on_a100: dict[str, dict[str, Any]]) -> None:
    found = on_a100[step_of(case).name]
    require_clean(found, case.declared)
    require_arithmetic(found, case.precision)
    require_layout(found, case)
    kernels = {call.what for call in executed(found) if call.kind == "kernel"}
    assert any(name.startswith("triton_") for name in kernels)
    assert sorted(name for name in kernels if class_of(name) == "other") == []


@pytest.mark.parametrize(("card", "case"), ON_OTHERS, ids=lambda value: getattr(value, "name", value))
def test_so_it_is_on_other_cards(card: str, case: Case, on_others: dict[str, dict[str, dict[str, Any]]]) -> None:
    found = on_others[card][step_of(case).name]
    require_clean(found, case.declared)
    require_arithmetic(found, case.precision)


def test_every_capability_has_a_card() -> None:
    assert {CARDS[card].sm for card in (*OTHER_CARDS, "a100")} == {75, 80, 86, 90, 100}
