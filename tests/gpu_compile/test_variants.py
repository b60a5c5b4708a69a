"""Each declared variant is built and lowered for a GPU, which finds what no GPU could run."""

import pytest

from harness.plan import JobPlan
from harness.results.program_facts import ProgramFacts
from tests.gpu_compile.programs import ask, cell_of, each_variant, plans

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("plan", plans(), ids=cell_of)
def test_each_declared_variant_can_be_built(plan: JobPlan) -> None:
    """Or is refused in words."""
    lines = ask("jax_runner.ahead", "h100", each_variant(plan), lower_only=True)
    facts = [ProgramFacts.model_validate_json(line) for line in lines]
    assert {one.variant.key: one.reason for one in facts if one.outcome not in ("ok", "refused")} == {}
