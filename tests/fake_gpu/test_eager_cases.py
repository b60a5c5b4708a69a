"""Every eager mode of PyTorch in each precision: it is built, captured and warm, and a timed step does nothing but
start work on the device. The programs are those that tests/gpu tries on a real GPU."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.work.declared import Mode, use_case
from tests.fake_gpu.steps import EAGER_CASES, FURTHER, ON_HOST, SCHEDULED, Step, step_of
from tests.gpu.cases import Case

IDS = {"ids": lambda case: case.name}


def require_clean(found: dict[str, Any], mode: Mode, allowed: Sequence[str] = ()) -> None:
    assert found["outcome"] == "ok", found
    assert found["faults"] == []
    assert found["hindrances"] == list(allowed)
    assert found["cpu_operands"] == []
    assert found["graph_launches"] == (1 if mode.graph == "step" else 0)
    assert len(found["executed"]) >= 3


@pytest.mark.parametrize("case", EAGER_CASES, **IDS)
def test_a_timed_step_only_starts_work(case: Case, by_day: dict[str, Any]) -> None:
    found = by_day[step_of(case).name]
    if case.mode.startswith("flat_"):
        assert found["outcome"] == "refused"
        assert "is for several devices" in found["reason"]
        return
    require_clean(found, case.declared)


@pytest.mark.parametrize("step", [*FURTHER, SCHEDULED], ids=lambda step: step.name)
def test_so_does_that_of_other_models(step: Step, by_day: dict[str, Any]) -> None:
    require_clean(by_day[step.name], use_case(step.use_case).mode("torch", step.mode))


@pytest.mark.parametrize("step", ON_HOST, ids=lambda step: step.mode)
def test_an_answer_on_the_host_is_waited_for_once(step: Step, by_day: dict[str, Any]) -> None:
    """The inputs come and the answer goes by one copy each, of pinned memory."""
    found = by_day[step.name]
    require_clean(found, use_case(step.use_case).mode("torch", step.mode), allowed=["sync cudaStreamSynchronize"])
    copies = [what for kind, what, _ in found["executed"] if kind == "copy" and "pinned" in what]
    assert sorted(copies) == ["device->pinned", "pinned->device"]
