"""What `torch_runner.ahead` says of programs on a GPU that is not there, as a process of its own."""

from collections.abc import Mapping

import pytest

from harness.results.program_facts import ProgramFacts
from tests.fake_gpu.ahead import facts, measurement

MODES = ("step.eager", "step.eager_graph", "step.compiled_graph")
ASKED = [
    *(measurement("train", "mnist/cnn", mode, "bf16") for mode in MODES),
    measurement("train", "mnist/cnn", "step.eager", "bf16"),
    measurement("train", "mnist/cnn", "step.eager", "bf16", batch_size=32),
    measurement("train", "mnist/cnn", "flat.eager", "bf16"),
    measurement("train", "mnist/cnn", "step.eager", "bf16", batch_size=10**6),
]
EAGER, GRAPH, COMPILED, AGAIN, SMALLER, FLAT, TOO_LARGE = range(len(ASKED))


@pytest.fixture(scope="module")
def found(own_variables: Mapping[str, str]) -> list[ProgramFacts]:
    return facts("a100", ASKED, own_variables)


def test_there_is_an_answer_for_each_program(found: list[ProgramFacts]) -> None:
    assert [one.variant for one in found] == [one.variant for one in ASKED]
    assert [one.outcome for one in found] == ["ok"] * 5 + ["refused", "failed"]
    assert all((one.framework, one.card, one.benchmark, one.use_case) == ("torch", "a100", "mnist", 1) for one in found)


@pytest.mark.parametrize("which", [EAGER, GRAPH, COMPILED])
def test_products_are_counted(which: int, found: list[ProgramFacts]) -> None:
    """Of two convolutions and two linear layers: forward, gradient of the weight, gradient of the input, which of the
    first convolution nobody needs."""
    assert found[which].library_calls == {"convolution": 5, "product": 6}
    assert found[which].products == {"bf16 x bf16 -> f32": 11}
    assert found[which].classes["product"] == 11
    assert sum(found[which].classes.values()) == found[which].kernels


def test_a_graph_is_all_that_the_host_launches(found: list[ProgramFacts]) -> None:
    assert (found[EAGER].graphs, found[GRAPH].graphs, found[COMPILED].graphs) == (0, 1, 1)
    assert (found[GRAPH].outside_of_graphs, found[COMPILED].outside_of_graphs) == (0, 0)
    assert found[EAGER].outside_of_graphs >= found[EAGER].kernels > 0


def test_compiling_takes_time_and_makes_fewer_kernels(found: list[ProgramFacts]) -> None:
    assert found[COMPILED].kernels < found[EAGER].kernels
    assert found[COMPILED].compile_s > 1 > found[EAGER].compile_s


def test_memory_holds_what_a_step_needs(found: list[ProgramFacts]) -> None:
    """At least 26,010 weights, their gradients and their momentum in float32; less for fewer samples."""
    needed = 3 * 4 * 26_010
    assert all(one.peak_bytes and one.peak_bytes > needed for one in found[:FLAT])
    assert (found[SMALLER].peak_bytes or 0) < (found[EAGER].peak_bytes or 0)


def test_the_same_program_has_the_same_digest(found: list[ProgramFacts]) -> None:
    """Also the one before which others were built."""
    assert found[EAGER] == found[AGAIN].model_copy(update={"compile_s": found[EAGER].compile_s})
    assert len({one.program for one in found[:FLAT]}) == 4


def test_what_cannot_be_built_says_why(found: list[ProgramFacts]) -> None:
    assert "is for several devices" in (found[FLAT].reason or "")
    assert "batch size 1000000 is larger than the training set" in (found[TOO_LARGE].reason or "")
    assert found[FLAT].program is None
