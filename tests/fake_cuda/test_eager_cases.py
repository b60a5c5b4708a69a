"""What the steps of PyTorch really call: a program is built, captured and warm; a timed step does nothing but start
work on the device, in the precision and the layout of its name. The programs are those that tests/gpu tries on a real
GPU. None of it is computed, so numbers are not what is tested here.

By day: each formulation once, and a graph of each use case. By night: every eager mode in each precision; and what
PyTorch compiles, by Inductor, Triton and ptxas, every mode on an A100, and of each formulation one on other cards.
`max_autotune` is left out: its choice among kernels that take no time means nothing."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.plan import Precision
from harness.results.kernel_names import class_of
from harness.work.declared import Mode, use_case
from tests.fake_cuda.calls import (
    ON_DEVICE,
    Call,
    arithmetic_of,
    convolution_tensors,
    is_convolution,
    is_product,
    launches,
    of_kind,
)
from tests.fake_cuda.conftest import Environment
from tests.fake_cuda.steps import Step, cases, one, run_steps, step_of
from tests.gpu.cases import Case

Found = dict[str, dict[str, Any]]
Steps = Callable[[str, Sequence[Step]], Found]

# ---- the programs

EAGER_CASES = [case for case in cases(run_as="eager") if case.precision != "tf32" or case.declared.graph == "none"]
"""TF32 is chosen before a program is built, and what a graph captures is what is eager."""
EAGER_BY_DAY = [
    *{(case.use_case, case.declared.formulation): case for case in EAGER_CASES[::-1]}.values(),
    *{
        case.use_case: case for case in EAGER_CASES if (case.declared.graph, case.precision) == ("step", "bf16")
    }.values(),
]
MODELS_BY_DAY = ("imagenet100/mobilenet_v3_small", "imagenet100/vit_b_16", "molpcba/gcn")
"""The cases take the first model that they can, so these are tried in training besides."""
SCHEDULED = one("train", "mnist/cnn", "step.eager_graph", "bf16", settings={"schedule": "cosine"})
"""Its learning rate lies on the device."""
FURTHER = [*(one("train", model, "step.eager", "bf16") for model in MODELS_BY_DAY), SCHEDULED]
ATTENTION = [
    one("per_sample_gradients", "imagenet100/vit_b_16", "vmap.eager", "bf16", 2, options={"output": "norms"}),
    one("per_sample_gradients", "enwik8/gpt_nano", "vmap.eager", "bf16", 4, options={"output": "norms"}),
]
ADAMW = one("train", "mnist/cnn", "step.eager", "fp32", settings={"optimizer": "adamw", "schedule": "cosine"})
ON_HOST = [
    one("inference", "mnist/cnn", mode, "fp16", options={"inputs": "on_host", "batch_norm": "folded"})
    for mode in ("forward.eager", "forward.eager_graph")
]
INFERENCE = one("inference", "enwik8/gpt_nano", "forward.eager", "fp16", 8)
STREAMS = [
    one("many_models", "synthetic/mlp", mode, "fp32", options={"models": 3})
    for mode in ("streams.eager", "streams.compiled_graph")
]
GROWING = {
    f"{use_case} {model}": [one(use_case, model, "vmap.eager", "fp32", size, options=options) for size in (32, 64)]
    for use_case, options in (("per_sample_gradients", {"output": "norms"}), ("many_models", {"models": 3}))
    for model in ("mnist/cnn", "molpcba/gcn")
}
"""What is vmapped, of two batch sizes; gradients of embeddings are another kernel below 3,072 rows."""
OTHERS = [*FURTHER, ADAMW, INFERENCE]
"""Programs of the tests that have no parameters."""
COMPILED = cases(run_as="compiled")
OTHER_CARDS = {"rtx2080ti": ("fp32", "fp16"), "rtx3080": ("bf16",), "h100": ("bf16",), "b200": ("bf16",)}
"""Each of another compute capability, with precisions that it has."""
OF_EACH = 12


def for_card(card: str) -> list[Case]:
    """The first of each use case and formulation."""
    first: dict[tuple[str, str], Case] = {}
    for case in COMPILED:
        if case.precision in OTHER_CARDS[card]:
            first.setdefault((case.use_case, case.declared.formulation), case)
    return list(first.values())[:OF_EACH]


@pytest.fixture(scope="module")
def steps(on_card: Environment, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """What each program of a list did on a card, by its name; all in one process."""
    logs = tmp_path_factory.mktemp("steps")
    return lambda card, wanted: run_steps(wanted, logs / card, on_card(card))


@pytest.fixture(scope="module")
def by_day(steps: Steps, request: pytest.FixtureRequest) -> Found:
    """Of an A100: what is asked for here, in one process."""
    wanted: list[Step] = []
    for item in request.session.items:
        if "by_day" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec"):
            for value in item.callspec.params.values():
                wanted += value if isinstance(value, list) else [step_of(value) if isinstance(value, Case) else value]
    return steps("a100", [*{step.name: step for step in (*OTHERS, *wanted)}.values()])


@pytest.fixture(scope="module")
def compiled(steps: Steps, request: pytest.FixtureRequest) -> dict[str, Found]:
    """By card: the cases that are asked for here."""
    asked: dict[str, list[Step]] = {}
    for item in request.session.items:
        if "compiled" in getattr(item, "fixturenames", ()):
            of_item = item.callspec.params  # type: ignore[attr-defined]
            asked.setdefault(of_item["card"], []).append(step_of(of_item["case"]))
    return {card: steps(card, of_card) for card, of_card in asked.items()}


# ---- the rules of a timed step


PRODUCTS: dict[str, str] = {
    "fp32": "f32 x f32 -> f32",
    "tf32": "tf32 x tf32 -> f32",
    "bf16": "bf16 x bf16 -> f32",
    "fp16": "f16 x f16 -> f32",
}
CONVOLUTIONS = PRODUCTS | {"tf32": "f32 x f32 -> f32"}
"""Whether cuDNN takes TF32 for operands of float32 is not in its call."""
NCHW = {
    # Of one model or sample among many vmap makes a group, and grouped convolutions are slow in channels_last.
    *(("per_sample_gradients", name) for name in ("vmap", "chunked", "loop")),
    *(("many_models", name) for name in ("vmap", "batched")),
}
"""Use cases and formulations; all others are channels_last."""


def executed(found: dict[str, Any]) -> list[Call]:
    assert "failed" not in found, found
    return [Call(*call) for call in found["executed"]]


def require_clean(found: dict[str, Any], mode: Mode, allowed: Sequence[str] = ()) -> None:
    """It only starts work, as often as its mode says.

    Args:
        allowed: what it may wait for.
    """
    assert len(executed(found)) >= 3
    assert found["faults"] == []
    assert found["hindrances"] == list(allowed)
    assert found["cpu_operands"] == []
    if mode.graph == "parts":
        assert found["graph_launches"] >= 2
    else:
        assert found["graph_launches"] == (1 if mode.graph == "step" else 0)
    assert found["witness"]["graph_breaks"] == 0


def require_arithmetic(found: dict[str, Any], precision: Precision) -> None:
    """Of libraries' products: of its name's precision. A compiler's own kernels do not say theirs."""
    products, convolutions = (list(filter(kind, executed(found))) for kind in (is_product, is_convolution))
    assert {*map(arithmetic_of, products)} <= {PRODUCTS[precision]}
    assert {*map(arithmetic_of, convolutions)} <= {CONVOLUTIONS[precision]}


def layout_of(case: Case) -> str:
    if case.declared.layout != "own":
        return case.declared.layout
    return "nchw" if (case.use_case, case.declared.formulation) in NCHW else "nhwc"


def require_layout(found: dict[str, Any], case: Case) -> None:
    """That of the documents: in input, weight and output of every convolution, and in their gradients. What a layer of
    one channel writes, a compiler may choose: its kernels convert while they compute."""
    calls = [call for call in executed(found) if is_convolution(call)]
    if case.declared.run_as != "eager":
        calls = [call for call in calls if convolution_tensors(call)["x"].sizes[1] > 1]
    layouts = {tensor.layout for call in calls for tensor in convolution_tensors(call).values()}
    assert layouts <= {layout_of(case), "either"}, [str(call) for call in calls]


# ---- the tests

each_mode = {"ids": lambda step: f"{step.use_case}-{step.models[0]}-{step.precision}-{step.mode}"}


def names(found: dict[str, Any]) -> list[str]:
    return [call.what for call in of_kind(executed(found), "kernel")]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case in EAGER_BY_DAY else pytest.mark.nightly)
        for case in EAGER_CASES
    ],
)
def test_a_timed_step_only_starts_what_its_name_says(case: Case, by_day: Found) -> None:
    found = by_day[step_of(case).name]
    require_clean(found, case.declared)
    require_arithmetic(found, case.precision)
    require_layout(found, case)
    assert any(is_product(call) or is_convolution(call) for call in executed(found))


@pytest.mark.parametrize("step", FURTHER, **each_mode)
def test_so_does_that_of_other_models(step: Step, by_day: Found) -> None:
    require_clean(by_day[step.name], use_case(step.use_case).mode("torch", step.mode))
    require_arithmetic(by_day[step.name], step.precision)
    assert any(is_product(call) or is_convolution(call) for call in executed(by_day[step.name]))


@pytest.mark.parametrize("step", ATTENTION, **each_mode)
def test_attention_below_vmap_is_of_bf16(step: Step, by_day: Found) -> None:
    """It was of float32 once."""
    require_arithmetic(by_day[step.name], "bf16")
    assert any(is_product(call) for call in executed(by_day[step.name]))
    assert by_day[step.name]["faults"] == []


@pytest.mark.parametrize("step", ON_HOST, **each_mode)
def test_an_answer_on_the_host_is_waited_for_once(step: Step, by_day: Found) -> None:
    """The inputs come and the answer goes by one copy each, of pinned memory."""
    found = by_day[step.name]
    require_clean(found, use_case(step.use_case).mode("torch", step.mode), allowed=["sync cudaStreamSynchronize"])
    copies = [what for kind, what, _ in found["executed"] if kind == "copy" and "pinned" in what]
    assert sorted(copies) == ["device->pinned", "pinned->device"]


@pytest.mark.nightly
def test_hopper_takes_attention_from_cudnn(steps: Steps) -> None:
    """PyTorch's own choice there in half precision; once for each of ViT's 12 layers, forward and backward."""
    step = one("train", "imagenet100/vit_b_16", "step.eager", "bf16")
    on_hopper = steps("h100", [step])[step.name]
    require_clean(on_hopper, use_case("train").mode("torch", "step.eager"))
    assert Counter(what for kind, what, _ in on_hopper["executed"] if kind == "cudnn" and "attention" in what) == {
        "attention": 12,
        "attention_gradient": 12,
    }


def optimizer_kernels(found: dict[str, Any]) -> Counter[str]:
    functors = [re.search(r"multi_tensor_apply_kernel<.*?(\w+Functor)<", name) for name in names(found)]
    return Counter(match[1] for match in functors if match)


def test_an_optimizer_is_one_fused_kernel_for_each_group_of_parameters(by_day: Found) -> None:
    """SGD has one group, also with a rate on the device. AdamW has two, as weights decay and biases do not; each also
    counts its steps."""
    for step in FURTHER:
        assert optimizer_kernels(by_day[step.name]) == {"FusedSgdMathFunctor": 1}, step.name
    assert optimizer_kernels(by_day[ADAMW.name]) == {"FusedAdamMathFunctor": 2, "BinaryOpScalarFunctor": 2}


@pytest.mark.parametrize("pair", GROWING.values(), ids=GROWING)
def test_what_is_vmapped_is_no_loop_over_samples(pair: list[Step], by_day: Found) -> None:
    """A rule of batching that is one starts something for each sample. Only sorting takes a few passes more."""
    few, many = (len(of_kind(executed(by_day[step.name]), *ON_DEVICE)) for step in pair)
    assert few <= many < few + (pair[1].batch_size - pair[0].batch_size)


@pytest.mark.parametrize("step", [STREAMS[0], pytest.param(STREAMS[1], marks=pytest.mark.nightly)], **each_mode)
def test_each_of_three_models_has_a_stream_beside_the_main_one(step: Step, by_day: Found) -> None:
    """Joined at the end, or a capture has unjoined work."""
    assert len({call.fields["stream"] for call in launches(executed(by_day[step.name]))}) == 1 + 3
    assert by_day[step.name]["faults"] == []


def test_inference_in_half_precision_converts_nothing(by_day: Found) -> None:
    kernels = names(by_day[INFERENCE.name])
    assert kernels
    assert [name for name in kernels if class_of(name) == "layout"] == []


def test_no_kernel_is_of_an_unknown_class(by_day: Found) -> None:
    kernels = {name for found in by_day.values() if "failed" not in found for name in names(found)}
    assert len(kernels) > 50
    assert sorted(name for name in kernels if class_of(name) == "other") == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("card", "case"),
    [*(("a100", case) for case in COMPILED), *((card, case) for card in OTHER_CARDS for case in for_card(card))],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_is_compiled_is_clean(card: str, case: Case, compiled: dict[str, Found]) -> None:
    found = compiled[card][step_of(case).name]
    require_clean(found, case.declared)
    require_arithmetic(found, case.precision)
    require_layout(found, case)
    kernels = {call.what for call in executed(found) if call.kind == "kernel"}
    assert any(name.startswith("triton_") for name in kernels)
    assert sorted(name for name in kernels if class_of(name) == "other") == []
