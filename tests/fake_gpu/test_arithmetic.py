"""What precision, layout and number of kernels the eager modes really have, from the calls of cuBLAS, cuDNN and the
names of kernels. None of it is computed, so numbers are not what is tested here."""

import re
from collections import Counter
from typing import Any

import pytest

from harness.fake_gpu.calls import ON_DEVICE, is_convolution, is_product, of_kind
from tests.fake_gpu.rules import executed, require_arithmetic, require_layout
from tests.fake_gpu.steps import ADAMW, EAGER_CASES, FURTHER, GROWING, SCHEDULED, Step, step_of
from tests.gpu.cases import Case

IDS = {"ids": lambda value: getattr(value, "name", None)}


def steps() -> list[Step]:
    return [*map(step_of, EAGER_CASES), *FURTHER]


@pytest.mark.parametrize("step", steps(), **IDS)
def test_products_have_the_precision_of_their_name(step: Step, by_day: dict[str, Any]) -> None:
    require_arithmetic(by_day[step.name], step.precision)
    assert any(is_product(call) or is_convolution(call) for call in executed(by_day[step.name]))


@pytest.mark.parametrize("case", EAGER_CASES, **IDS)
def test_convolutions_have_the_layout_that_is_documented(case: Case, by_day: dict[str, Any]) -> None:
    require_layout(by_day[step_of(case).name], case)


def names(found: dict[str, Any]) -> list[str]:
    return [call.what for call in of_kind(executed(found), "kernel")]


def optimizer_kernels(found: dict[str, Any]) -> dict[str, int]:
    functors = [re.search(r"multi_tensor_apply_kernel<.*?(\w+Functor)<", name) for name in names(found)]
    return dict(Counter(match[1] for match in functors if match))


def test_sgd_is_one_fused_kernel(by_day: dict[str, Any]) -> None:
    """Also with a rate on the device."""
    steps = [step_of(case) for case in EAGER_CASES if case.use_case == "train" and case.declared.formulation == "step"]
    assert len(steps) == 5
    for step in (*steps, SCHEDULED):
        assert optimizer_kernels(by_day[step.name]) == {"FusedSgdMathFunctor": 1}, step.name


def test_adamw_is_a_fused_kernel_for_each_of_its_two_groups(by_day: dict[str, Any]) -> None:
    """Weights decay and biases do not; each group also counts its steps."""
    found = optimizer_kernels(by_day[ADAMW.name])
    assert found == {"FusedAdamMathFunctor": 2, "BinaryOpScalarFunctor": 2}


@pytest.mark.parametrize("pair", GROWING.values(), ids=GROWING)
def test_what_is_vmapped_is_no_loop_over_samples(pair: tuple[Step, Step], by_day: dict[str, Any]) -> None:
    """A rule of batching that is one starts something for each sample. Only sorting takes a few passes more."""
    smaller, larger = pair
    few, many = (len(of_kind(executed(by_day[step.name]), *ON_DEVICE)) for step in pair)
    assert few <= many < few + (larger.batch_size - smaller.batch_size)


def test_training_has_three_convolutions_a_layer(by_day: dict[str, Any]) -> None:
    """Of mnist's two layers: forward, and the gradients of weight and input, of which the images need none."""
    calls = executed(by_day[one_of("train", "step.eager", "fp32")])
    assert Counter(call.what for call in calls if is_convolution(call)) == {
        "convolution": 2,
        "convolution_weight_gradient": 2,
        "convolution_input_gradient": 1,
    }


def one_of(use_case: str, mode: str, precision: str) -> str:
    return next(
        step_of(case).name
        for case in EAGER_CASES
        if (case.use_case, case.mode, case.precision) == (use_case, mode, precision)
    )


def test_streams_are_as_many_as_models(by_day: dict[str, Any]) -> None:
    """And the main one: three models' work beside each other."""
    calls = executed(by_day[one_of("many_models", "streams.eager", "fp32")])
    assert len({call.fields["stream"] for call in calls}) == 1 + 3
