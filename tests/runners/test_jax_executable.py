"""jax_runner/executable.py, and what tests/gpu_compile counts of it, over small texts, written as XLA writes its own.

All numbers are worked out by hand.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from jax_runner.executable import Thunk, classes_of, digest_of, module_of, thunks_of
from tests.gpu_compile.counted_executable import CountedExecutable, size_bytes

HLO = """\
HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%fused_product (param_0: bf16[8,4], param_1: bf16[4,2]) -> f32[8,2] {
  %param_0 = bf16[8,4]{1,0} parameter(0)
  %param_1 = bf16[4,2]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,2]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/dot" stack_frame_id=7}
}

%fused_turn (param_0.1: f32[8,2]) -> f32[2,8] {
  %param_0.1 = f32[8,2]{1,0} parameter(0)
  ROOT %transpose.1 = f32[2,8]{1,0} transpose(%param_0.1), dimensions={1,0}
}

%fused_less (param_0.2: s32[]) -> pred[] {
  %param_0.2 = s32[] parameter(0)
  %constant.1 = s32[] constant(5)
  ROOT %less.1 = pred[] compare(%param_0.2, %constant.1), direction=LT
}

%condition.1 (carried: (s32[], f32[8,2])) -> pred[] {
  %carried = (s32[], f32[8,2]{1,0}) parameter(0)
  %round = s32[] get-tuple-element(%carried), index=0
  ROOT %loop_compare_fusion = pred[] fusion(%round), kind=kLoop, calls=%fused_less
}

%body.1 (carried.1: (s32[], f32[8,2])) -> (s32[], f32[8,2]) {
  %carried.1 = (s32[], f32[8,2]{1,0}) parameter(0)
  %left = bf16[8,4]{1,0} constant({...})
  %right = bf16[4,2]{1,0} constant({...})
  %gemm_fusion = f32[8,2]{1,0} fusion(%left, %right), kind=kCustom, calls=%fused_product
  %wrapped_transpose.3 = f32[2,8]{1,0} fusion(%gemm_fusion), kind=kInput, calls=%fused_turn
  ROOT %tuple.1 = (s32[], f32[8,2]{1,0}) tuple(%round, %gemm_fusion)
}

ENTRY %main.1 (images: f32[2,6,6,3], kernel: f32[4,3,3,3]) -> (s32[], f32[8,2]) {
  %images = f32[2,6,6,3]{3,2,1,0} parameter(0)
  %kernel = f32[4,3,3,3]{3,2,1,0} parameter(1), metadata={op_name="weights" scheduling_name="kernel"}
  %copy.1 = f32[2,6,6,3]{3,2,1,0} copy(%images)
  %cudnn-conv.1 = (f32[2,4,4,4]{3,2,1,0}, u8[0]{0}) custom-call(%copy.1, %kernel), window={size=3x3}, \
dim_labels=b01f_o01i->b01f, operand_precision={highest,highest}, custom_call_target="__cudnn$convForward", \
metadata={op_name="jit(step)/conv"}, backend_config={"cudnn_conv_backend_config":{"activation_mode":"kNone"}}
  %first = s32[] constant(0)
  %start = (s32[], f32[8,2]{1,0}) tuple(%first, %cudnn-conv.1)
  ROOT %while.1 = (s32[], f32[8,2]{1,0}) while(%start), condition=%condition.1, body=%body.1, \
metadata={op_name="loop"}, backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}
}
"""
THUNKS = """\
001: kCopy         [source       | next=002 (1)] kCopy
002: kConvolution  [prev=001 (1) | next=003 (1)] kConvolution
003: kWhile        [prev=002 (1) | sink        ]   
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
  body:
    000: kCommandBuffer [source       | next=007 (1)]
        005: kCustomKernel [source | sink] gemm_fusion_1 grid: [4, 1, 1] threads: [64, 1, 1]  shared_memory: 0 bytes
    006: kAsyncStart    [prev=005 (1) | sink        ] stream=computation_stream[0], async_id=6
        007: kCustomKernel [source | sink] wrapped_transpose grid: [1, 1, 1] threads: [16, 1, 1]  shared_memory: 0 bytes
    008: kAsyncDone     [source       | sink        ] async_id=6
"""
NAMES = {
    1: "copy.1",
    2: "cudnn-conv.1",
    3: "while.1",
    4: "loop_compare_fusion",
    5: "gemm_fusion",
    7: "wrapped_transpose.3",
}
METADATA = "".join(
    f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n    thunk_id: {number}\n  }}\n}}\n'
    for number, name in NAMES.items()
)


def executable(hlo: str = HLO, thunks: str = THUNKS) -> CountedExecutable:
    return CountedExecutable(module=module_of(hlo), thunks=thunks_of(thunks, METADATA))


def test_what_a_call_starts_is_counted_with_the_rounds_of_loops() -> None:
    """Five rounds: the condition is asked six times, and there is a graph in each round."""
    made = executable()
    assert [(one.thunk.kind, one.thunk.instruction, one.times, one.in_graph) for one in made.started] == [
        ("kCopy", "copy.1", 1, False),
        ("kConvolution", "cudnn-conv.1", 1, False),
        ("kCustomKernel", "loop_compare_fusion", 6, False),
        ("kCommandBuffer", "", 5, False),
        ("kCustomKernel", "gemm_fusion", 5, True),
        ("kCustomKernel", "wrapped_transpose.3", 5, False),
    ]
    assert sum(one.times for one in made.kernels) == 1 + 6 + 5 + 5
    assert (made.graphs, made.outside_of_graphs) == (5, 1 + 1 + 6 + 5)
    assert made.classes == {"product": 1 + 5, "traffic": 6, "layout": 5}
    assert made.library_calls == {"convolution": 1}
    assert made.layout_bytes == 5 * 2 * 8 * 4
    assert made.products == {"f32 x f32 -> f32 (highest)": 1, "bf16 x bf16 -> f32": 5}
    assert (made.unknown_loops, made.unknown_kernels) == (0, [])


def test_a_whole_step_in_one_graph() -> None:
    """A loop in it costs no further start."""
    lines = THUNKS.splitlines()
    inside = "\n".join(["000: kCommandBuffer [source | sink]", *(f"    {line}" for line in lines)])
    made = executable(thunks=inside)
    assert (made.graphs, made.outside_of_graphs, sum(one.times for one in made.kernels)) == (1, 0, 17)


def test_a_loop_of_unknown_length_counts_as_one_round() -> None:
    made = executable(HLO.replace('"known_trip_count":{"n":"5"},', ""))
    assert (made.unknown_loops, sum(one.times for one in made.kernels)) == (1, 1 + 2 + 1 + 1)


MORE = """\
%fused_addition (param_0.3: f32[2,8]) -> f32[2,8] {
  %param_0.3 = f32[2,8]{1,0} parameter(0)
  %copy.9 = f32[2,8]{1,0} copy(%param_0.3)
  ROOT %add.1 = f32[2,8]{1,0} add(%copy.9, %copy.9)
}

ENTRY %main (a: f32[2,8]) -> f32[2,8] {
  %a = f32[2,8]{1,0} parameter(0)
  %loop_add_fusion.2 = f32[2,8]{1,0} fusion(%a), kind=kLoop, calls=%fused_addition
  %cublas-gemm.1 = (f32[2,8]{1,0}, s8[4]{0}) custom-call(%loop_add_fusion.2), custom_call_target="__cublas$gemm"
  %custom-call.7 = f32[2,8]{1,0} custom-call(%loop_add_fusion.2), custom_call_target="TopK"
  %custom-call.8 = f32[2,8]{1,0} custom-call(%loop_add_fusion.2), custom_call_target="xla_ffi_python_cpu_callback"
  %all-reduce-start.2 = ((f32[2,8]{1,0}), f32[2,8]{1,0}) all-reduce-start(%a), to_apply=%region
  %while.2 = (s32[], f32[2]{0}, f32[2]{0}, f32[2]{0}, f32[2]{0}, /*index=5*/f32[2]{0}) while(%six), body=%body
  %many = (f32[2,3]{1,0}, pred[4]{0}, s32[], bf16[8]{0}, u8[0]{0}, /*index=5*/f64[1]{0}) fusion(%a, /*index=1*/%b)
}
"""


def test_the_program_says_what_a_kernel_does() -> None:
    """As a GPU's kernels are called, too. A callback is not guessed. XLA counts the parts of long tuples in comments; a
    pred takes a byte."""
    classes, containers = classes_of([HLO, MORE])
    wanted = {
        **{"gemm_fusion": "product", "cudnn-conv.1": "product", "cublas_gemm_1": "product"},
        **{"wrapped_transpose.3": "layout", "copy_1": "layout"},
        **{"loop_compare_fusion": "traffic", "loop_add_fusion_2": "traffic", "custom-call.7": "traffic"},
        "all-reduce-start.2": "communication",
    }
    assert {name: classes[name] for name in wanted} == wanted
    assert "custom-call.8" not in classes
    assert containers == {"while.1", "while.2"}
    many = module_of(MORE).by_name["many"]
    assert (many.opcode, many.operands, size_bytes(many)) == ("fusion", ("a", "b"), 24 + 4 + 4 + 16 + 0 + 8)


def outline(thunks: Sequence[Thunk]) -> list[Any]:
    return [
        {label: outline(part) for label, part in one.parts.items()} if one.parts else one.kernel or one.kind
        for one in thunks
    ]


def test_a_loop_within_a_loop_and_all_branches_of_a_conditional_are_counted() -> None:
    """The inner loop's headings end its own parts, not the outer one's. Nobody knows the call, which is named."""
    text = """\
001: kWhile [source | sink]
condition:
    002: kCustomKernel loop_and_fusion grid: [1, 1, 1]
  body:
    003: kWhile [source | sink]
condition:
        004: kCustomKernel loop_or_fusion grid: [1, 1, 1]
      body:
        005: kCustomKernel loop_add_fusion grid: [1, 1, 1]
    006: kCustomKernel loop_multiply_fusion grid: [1, 1, 1]
007: kConditional [source | sink]
  false_branch:
    008: kCustomKernel [source | sink] loop_exp_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  true_branch:
    009: kCustomCall [source | sink] kCustomCall
    010: kCopy       [source | sink] kCopy
"""
    made = CountedExecutable(module=module_of(""), thunks=thunks_of(text))
    inner = {"condition": ["loop_or_fusion"], "body": ["loop_add_fusion"]}
    assert outline(made.thunks) == [
        {"condition": ["loop_and_fusion"], "body": [inner, "loop_multiply_fusion"]},
        {"false_branch": ["loop_exp_fusion"], "true_branch": ["kCustomCall", "kCopy"]},
    ]
    assert [one.times for one in made.started] == [2, 2, 1, 1, 1, 1, 1]
    assert (made.classes, made.unknown_kernels) == ({"traffic": 7, "other": 1}, ["kCustomCall"])


def test_names_make_no_other_program() -> None:
    """As another trace of the same program would have them, and where in the source it comes from."""
    changed = HLO
    for before, after in (
        *(("gemm_fusion", "gemm_fusion.77"), ("%param_0.1", "%param_0.9"), ("body.1", "region_4")),
        ("stack_frame_id=7", "stack_frame_id=8"),
    ):
        assert before in changed
        changed = changed.replace(before, after)
    assert digest_of(executable(changed).operations()) == digest_of(executable().operations())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f32[2,8]{1,0} transpose", "f32[2,8]{0,1} transpose"),
        ("dimensions={1,0}", "dimensions={0,1}"),
        ("constant(5)", "constant(6)"),
        ("fusion(%left, %right)", "fusion(%right, %left)"),
        ("window={size=3x3}", "window={size=3x3 pad=1_1x1_1}"),
        ("kNone", "kRelu"),
        ("operand_precision={highest,highest}", "operand_precision={high,high}"),
        ("    000: kCommandBuffer [source       | next=007 (1)]\n    ", ""),
    ],
)
def test_what_is_executed_makes_another_program(before: str, after: str) -> None:
    """Graphs among it."""
    assert (HLO + THUNKS).count(before) == 1
    other = executable(HLO.replace(before, after), THUNKS.replace(before, after))
    assert digest_of(other.operations()) != digest_of(executable().operations())


def test_what_an_autotuner_has_chosen_is_told_apart() -> None:
    made = CountedExecutable(module=module_of(HLO), thunks=[])
    assert [len(choice) > 0 and choice.startswith("{") for choice in made.choices()] == [True, True]
    assert '"activation_mode":"kNone"' in next(made.choices())
