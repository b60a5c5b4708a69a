"""What the report shows of a numeric option, and of phases, from hand-made records."""

from typing import Any

import pytest

from harness.plan import Cell, Framework
from harness.results.record import Record
from pipeline.report.figures import section_charts
from pipeline.report.phases import all_times, phases_absent, phases_of
from pipeline.report.tables import phases_table
from tests.made.report_records import record, section_of, with_result
from tests.pipeline.report.shown import page_of

MANY = Cell(gpu="any", benchmark="synthetic", use_case=6, use_case_name="many_models")


def of(framework: Framework, mode: str, models: int, throughput: float = 1000.0, **changes: Any) -> Record:
    options = {"models": models, "batches": "different"}
    return record(framework, mode, throughput, cell=MANY, options=options, **changes)


def sweep(**changes: Any) -> list[Record]:
    """Throughputs at 1, 8 and 64 models; the loops have 1000 samples/s at each."""
    speeds: dict[tuple[Framework, str], tuple[float, ...]] = {
        ("torch", "loop.eager"): (1000, 1000, 1000),
        ("torch", "loop.compiled"): (1200, 1300, 1400),
        ("torch", "batched.eager"): (800, 2000, 4000),
        ("torch", "vmap.eager"): (500, 900, 1005),
        ("torch", "streams.eager"): (1500, 900, 1500),
        ("jax", "unrolled.jit"): (1000, 1000),
        ("jax", "vmap.jit"): (900, 1100, 3000),
    }
    found = [
        of(framework, mode, models, speed, replicate=replicate, **changes)
        for (framework, mode), of_mode in speeds.items()
        for models, speed in zip((1, 8, 64), of_mode, strict=False)
        for replicate in range(4)
    ]
    failed = {"outcome": "out_of_memory", "reason": "out of memory", "result": None} | changes
    return [*found, *(of("jax", mode, 64, **failed) for mode in ("unrolled.jit", "map.jit"))]


def test_the_chart_over_the_number_of_models() -> None:
    charts = {chart.name: chart for chart in section_charts(section_of(sweep()))}
    assert "throughput_over_batch_size" not in charts
    points = charts["throughput_over_models"].points
    assert {point["group"] for point in points} == {"cnn | batch 100, fp32, different"}
    found = {(one["framework"], one["mode"], one["value"]): (one["throughput"], one["chosen"]) for one in points}
    assert len(found) == 5 * 3 + 2 + 3
    assert found["PyTorch", "batched.eager", 64] == (4000, True)
    assert [found["PyTorch", "streams.eager", models][1] for models in (1, 8, 64)] == [True, False, False]
    assert charts["throughput_over_models"].title == "Throughput by number of models"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([{"models": 8}, {"models": 8}], []),  # one value makes no line
        ([{"models": 0}, {"models": 8}], []),  # no place on a logarithmic axis
        ([{"flag": True, "kind": "a"}, {"flag": False, "kind": "b"}], []),
        ([{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 2}], ["a", "b"]),
        ([{}, {"rate": 0.5}, {"rate": 1}], ["rate"]),  # a record from before the option
    ],
)
def test_any_number_with_several_values_is_an_axis(options: list[dict[str, Any]], names: list[str]) -> None:
    found = [record("jax", "step.jit", options=one, replicate=number) for number, one in enumerate(options)]
    shown = [chart.name for chart in section_charts(section_of(found)) if "_over_" in chart.name]
    assert shown == [f"throughput_over_{name}" for name in names]


# Phases.


def timed(framework: Framework, mode: str, replicate: int = 0, **times_s: list[float]) -> Record:
    return of(framework, mode, 8, replicate=replicate, details={"phases": times_s})


def test_phases_are_medians_of_medians_in_the_order_of_the_step() -> None:
    records = [
        timed("jax", "vmap.jit", data_generation=[1.0], compile=[1.0], forward=[0.5]),
        timed("torch", "loop.eager", data_generation=[1.0], zero_gradients=[9.0], forward=[1.0, 9.0], backward=[2.0]),
        timed("torch", "loop.eager", 1, zero_gradients=[1.0, 3.0], forward=[4.0], backward=[2.0]),
        timed("torch", "loop.eager", 2, zero_gradients=[4.0], forward=[5.0], backward=[2.0]),
        of("torch", "vmap.eager", 8, details={"phases": {}, "phases_absent": "out of memory: 9 GiB"}),
    ]
    found = all_times(section_of(records))
    # What the longest list lacks stands behind what it follows.
    assert phases_of(found) == ["data_generation", "compile", "zero_gradients", "forward", "backward"]
    (of_torch,) = [one.phases for one in found if one.phases and one.mode.framework == "torch"]
    # Medians of the replicates: 9, 2 and 4; 5, 4 and 5.
    medians = {"data_generation": 1.0, "zero_gradients": 4.0, "forward": 5.0, "backward": 2.0}
    assert {phase: summary["p50"] for phase, summary in of_torch.items()} == medians
    assert phases_absent(found) == ["PyTorch cnn-b100-fp32-different-8 vmap.eager: out of memory: 9 GiB"]


def test_calls_of_many_steps_have_a_mean_and_a_median_only() -> None:
    one = record("jax", "scan.jit")
    latency = one.result.latency.model_copy(update={"steps_per_call": 10})
    (times,) = all_times(section_of([with_result(one, latency=latency)]))
    assert times.whole_step == pytest.approx({"mean": 0.003195, "p50": 0.005})
    assert phases_table(section_of([one])).lines == []


def test_the_page_has_the_phases() -> None:
    html = page_of([timed("torch", "grouped_conv1d.eager", forward=[0.0125], backward=[0.25])])
    # Of the whole step the median latency, 50 ms.
    row = '<th scope="row" class="label torch">PyTorch grouped_conv1d.eager</th>'
    assert f'{row}<td class="n">12.5</td><td class="n">250</td><td class="n">50</td>' in html
    assert "their sum is not the step" in html
