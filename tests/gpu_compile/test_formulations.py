"""All that is declared: the same rules over each formulation of each model on two cards, and each variant is built."""

import re

import pytest

from harness.plan import JobPlan
from tests.gpu_compile.programs import each_formulation, each_variant, examine, plans
from tests.gpu_compile.test_programs import require_rules
from tests.made.gpu_specs import GPU_SPECS

TOO_LARGE = "more memory than the card has"
FLOAT32_PRODUCTS = "products of float32 in half precision"
TABLES_IN_FLOAT32 = r"molpcba_3-.*-(ghost|outer_product)\."
"""In both frameworks a table of codes adds its rows up in float32 (models/molpcba.py), so the norm of its gradient is
made of products of float32."""
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("default::UserWarning")]


each_plan = pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.cell.short_name)


@pytest.mark.parametrize("name", ["h100", "rtx2080ti"])
@each_plan
def test_no_rule_is_broken_by_any_formulation(plan: JobPlan, name: str) -> None:
    """What an RTX 2080 Ti has no memory for is no fault of the program."""
    wrong = {}
    measurements = list(each_formulation(plan, GPU_SPECS[name]))
    if not measurements:
        pytest.skip(f"in fp32 and in what {name} has of half precision, nothing is declared")
    for found in examine(name, measurements):
        meant = {TOO_LARGE} if name == "rtx2080ti" else set()
        meant |= {FLOAT32_PRODUCTS} if re.match(TABLES_IN_FLOAT32, found.name) else set()
        left = {rule: words for rule, words in found.broken.items() if rule not in meant}
        try:
            if found.outcome != "refused":
                require_rules(found.model_copy(update={"broken": left}))
        except AssertionError:
            wrong[found.name] = found.reason or left
    assert wrong == {}


@each_plan
def test_each_declared_variant_can_be_built_for_a_gpu(plan: JobPlan) -> None:
    """Or is refused in words; which finds what no GPU could run."""
    found = examine("h100", each_variant(plan), "lower_only")
    assert {one.name: one.reason for one in found if one.outcome not in ("ok", "refused")} == {}
