"""Every eager mode of PyTorch in each precision: it is built, captured and warm, and a timed step does nothing but
start work on the device. The programs are those that tests/gpu tries on a real GPU."""

from collections import Counter
from typing import Any

import pytest

from harness.work.declared import use_case
from tests.fake_gpu.conftest import Steps
from tests.fake_gpu.rules import require_clean
from tests.fake_gpu.steps import EAGER_CASES, FURTHER, ON_HOST, SCHEDULED, Step, one, step_of
from tests.gpu.cases import Case

IDS = {"ids": lambda case: case.name}


@pytest.mark.parametrize("case", EAGER_CASES, **IDS)
def test_a_timed_step_only_starts_work(case: Case, by_day: dict[str, Any]) -> None:
    require_clean(by_day[step_of(case).name], case.declared)


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


def test_hopper_takes_attention_from_cudnn(steps: Steps) -> None:
    """PyTorch's own choice there in half precision; once for each of ViT's 12 layers, forward and backward."""
    step = one("train", "imagenet100/vit_b_16", "step.eager", "bf16")
    on_hopper = steps("h100", [step])[step.name]
    require_clean(on_hopper, use_case("train").mode("torch", "step.eager"))
    assert Counter(what for kind, what, _ in on_hopper["executed"] if kind == "cudnn" and "attention" in what) == {
        "attention": 12,
        "attention_gradient": 12,
    }
