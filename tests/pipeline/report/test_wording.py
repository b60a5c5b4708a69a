"""Numbers and verdicts in words: what is rounded away must not hide what the verdict turned on."""

from typing import Any

import pytest

from harness.results.sequential import RatioEstimate
from harness.results.statistics import Interval
from pipeline.report.declared import task_of
from pipeline.report.wording import absent_lines, pays_after, quantity_lines, times, verdict
from tests.made.report_records import record, row_of, section_of, with_result
from tests.pipeline.report.shown import answers_of


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.1, "1.10"),
        (0.0123, "0.0123"),
        (1.0199, "1.020"),
        (0.95, "0.950"),
        # 1 / 1.01 is 0.990099, and 1.01 the other end of what counts as the same.
        (1.00046, "1.0005"),
        (0.99996, "0.99996"),
        (1.0101, "1.0101"),
        (0.9901, "0.9901"),
        (0.99, "0.990"),
        (1 + 1e-12, "1.000"),  # rounding of the machine's own
    ],
)
def test_a_ratio_has_the_decimals_that_its_verdict_needs(ratio: float, text: str) -> None:
    assert times(ratio) == text


OPEN = RatioEstimate(1.02, Interval(0.993, 1.047), 6, "undecided", p=0.2, at_most=12)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"verdict": "JAX faster", "replicates": 4}, "JAX faster: after 4 of at most 12 pairs"),
        # 1 / 0.993 is 1.00705.
        ({}, "not decided after 6 of at most 12 pairs: between JAX 4.7 % and PyTorch 0.7 % faster"),
        (
            {"interval": Interval(0.25, 3.0), "replicates": 20, "at_most": 20, "is_extended": True},
            "not decided after 20 pairs, extended after a look: between JAX 200 % and PyTorch 300 % faster",
        ),
        ({"p": None, "replicates": 3}, "so far: 3 of at most 12 pairs, no verdict before 4"),
        ({"p": None, "replicates": 1, "at_most": 0}, "so far: 1 replicate, no verdict before 4"),
        ({"doubt": "identical pairs: copied records?"}, "no verdict: identical pairs: copied records?"),
    ],
)
def test_a_verdict_says_after_how_many_pairs(changes: dict[str, Any], text: str) -> None:
    assert verdict(OPEN._replace(**changes)) == text


def test_what_is_missing_beside_a_throughput_is_said_once_for_all_modes_of_the_same_reason() -> None:
    records = [
        with_result(record("jax", mode, replicate=replicate), blocks_alone_absent="failed: rank 1 on n2: killed")
        for mode in ("step.jit", "scan.jit")
        for replicate in range(2)
    ]
    records.append(with_result(record("torch", "step.eager"), compile_time_warm_absent="timeout: not done after 9 s"))
    section = section_of(records)
    about_communication = "Communication: failed: rank 1 on n2: killed; JAX cnn-b100-fp32 step.jit (and 1 more)"
    about_warm = "Compile time with warm caches: timeout: not done after 9 s; PyTorch cnn-b100-fp32 step.eager"
    nowhere = "not measured; JAX cnn-b100-fp32 step.jit (and 2 more)"
    about_device = f"Memory, Energy: {nowhere}"
    assert absent_lines(section.rows) == [about_communication, about_warm, about_device]
    assert f"No number for {about_communication}" in answers_of([section], details=True)


def test_a_lead_pays_for_the_longer_compilation_by_hand() -> None:
    """PyTorch compiles 10 s longer, and saves 1/1000 - 1/2000 s of a sample: 20,000 samples, which take it 10 s."""
    sides = [("jax", "step.jit", 1000, 2.0), ("torch", "step.eager", 2000, 12.0)]
    found = [
        with_result(record(framework, mode, speed, replicate=number), compile_time_s=seconds)
        for number in range(4)
        for framework, mode, speed, seconds in sides
    ]
    row = row_of(found)
    assert pays_after(row) == "PyTorch's lead has paid for its compilation, 10 s longer, after 20,000 samples (10 s)"
    alike = row_of([with_result(one, compile_time_s=2.0) for one in found])
    assert pays_after(alike) == ""
    # The same 12 s in every replicate have no spread, so their p is 0; p50 is alike on both sides but for the blocks.
    lines = {line[1]: line[2:] for line in quantity_lines([row], task_of("mnist").metric)}
    assert lines["compile, cold, s"] == ["2", "12", "0.17 [0.17, 0.17]", "JAX", "4"]
