"""The rules of tests/gpu_compile/, without JAX's CUDA plugin: over programs that are written down."""

from typing import Any

import pytest

from harness.work.cards import card
from jax_runner.ahead import Compiled
from jax_runner.executable import Executable, module_of, thunks_of
from tests.gpu_compile.examine import examined
from tests.gpu_compile.programs import NOT_ONE_GRAPH
from tests.gpu_compile.rules import Subject, broken, compares_and_swaps
from tests.made.sessions import make_session
from tests.runners.test_jax_ahead import OnThisCpu

HLO = """\
%fused (p: f32[4,4], q: f32[4,4]) -> f32[4,4] {
  %p = f32[4,4]{1,0} parameter(0)
  %q = f32[4,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,4]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: f32[4,4], b: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %b = f32[4,4]{1,0} parameter(1)
  ROOT %gemm_fusion = f32[4,4]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused
}
"""
NAMES = 'profile_annotation: "gemm_fusion"\n  thunk_id: 1\n'
KERNEL = "001: kCustomKernel [source | sink] gemm_fusion grid: [1, 1, 1] threads: [32, 1, 1]\n"
IN_A_GRAPH = f"000: kCommandBuffer [source | sink]\n    {KERNEL}"


def rules_broken_by(hlo: str = HLO, thunks: str = IN_A_GRAPH, **given: Any) -> list[str]:
    """A step that donates 64 bytes, needs 1,000, and is one graph in float32, but for what is given."""
    of_compiled = {"peak_bytes": 1_000, "donated_bytes": 64, "aliased_bytes": 64, "compile_s": 0.0}
    of_subject = {"precision": "fp32", "is_one_graph": True, "keeps_state": True}
    made = Compiled(
        executable=Executable(module=module_of(hlo), thunks=thunks_of(thunks, NAMES)),
        **{name: given.get(name, value) for name, value in of_compiled.items()},
    )
    more = {name: given.get(name, value) for name, value in of_subject.items()}
    return list(broken(Subject(made=made, card=card("rtx2080ti"), **more)))


def test_a_step_as_it_should_be() -> None:
    assert rules_broken_by() == []


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"thunks": KERNEL}, NOT_ONE_GRAPH),
        ({"thunks": IN_A_GRAPH + "002: kCopy\n" + IN_A_GRAPH}, NOT_ONE_GRAPH),
        ({"precision": "bf16"}, "products of float32 in half precision"),
        ({"hlo": HLO.replace("f32[4,4]{1,0} parameter(1)", "f64[4,4]{1,0} parameter(1)")}, "float64"),
        ({"hlo": HLO.replace("%b = f32[4,4]{1,0}", "%b = f32[4,4]{1,0:S(5)}")}, "transfers to or from the host"),
        ({"aliased_bytes": 60}, "donated state that is not overwritten"),
        ({"donated_bytes": 0, "aliased_bytes": 0}, "donated state that is not overwritten"),
        # An RTX 2080 Ti has 11,538,923,520 bytes; nine tenths of these are 10,385,031,168.
        ({"peak_bytes": 10_385_031_169}, "more memory than the card has"),
        ({"hlo": HLO.replace("dot(%p, %q)", "convolution(%p, %q)")}, "a convolution that is no library call"),
    ],
)
def test_one_rule_is_broken(given: dict[str, Any], rule: str) -> None:
    assert rules_broken_by(**given) == [rule]


@pytest.mark.parametrize(
    "given",
    [
        {"thunks": KERNEL, "is_one_graph": False},
        {"thunks": IN_A_GRAPH + "002: kCopy\n"},
        {"donated_bytes": 0, "aliased_bytes": 0, "keeps_state": False},
        {"peak_bytes": 10_385_031_168},
        {"precision": "fp64", "hlo": HLO.replace("f32", "f64")},
    ],
)
def test_what_breaks_none(given: dict[str, Any]) -> None:
    assert rules_broken_by(**given) == []


@pytest.mark.parametrize(
    ("ptx", "words"),
    [
        ("red.global.add.f32 [%rd1], %f1;", None),
        ("atom.relaxed.sys.global.cas.b32 %r1, [%rd1], %r2, %r3;", "atom.relaxed.sys.global.cas.b32"),
        ("st.global.f32 [%rd1], %f1;", "no atomic addition in its PTX"),
    ],
)
def test_atomics_of_a_scatter_add(ptx: str, words: str | None) -> None:
    assert compares_and_swaps(ptx) == words


def test_what_cannot_be_built_is_told() -> None:
    device = OnThisCpu(card("h100"))
    session = make_session("jax", "train", device=device, batch_size=100_000)
    found = examined(session.measurement, device)
    assert found.outcome == "failed" and "batch size 100000" in str(found.reason)
