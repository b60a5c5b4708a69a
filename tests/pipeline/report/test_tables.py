"""The tables of modes and of phases, and the charts over the batch size and over a numeric option, from made-up records
whose every number can be worked out."""

from typing import Any

import pytest

from harness.plan import Cell, Framework
from harness.results.record import Energy, EpochPoint, Latency, Memory, Record
from pipeline.report.figures import section_charts
from pipeline.report.phases import all_times, phases_absent, phases_of
from pipeline.report.tables import modes_table, phases_table
from tests.made.report_records import CELL, CPU, record, section_of, with_result

CIFAR10 = CELL.model_copy(update={"benchmark": "cifar10"})


def full(framework: Framework, mode: str, speed: float, replicate: int = 0, **changes: Any) -> Record:
    """With all that a table or a chart can show. Of 400 calls 93 % take 1 ms, 5 % twice, 2 % three times that. 350 W,
    5,000 samples in 5 s; 2 s an epoch."""
    of_epoch: dict[str, Any] = {"train_time_s": 2.0, "train_loss": 1.0, "test_loss": 1.0, "input_time_s": 2.5}
    of_epoch["further_metrics"] = {"top_5_accuracy": 0.99}
    epochs = [EpochPoint(epoch=epoch, test_metric=1 - 0.5**epoch, **of_epoch) for epoch in (1, 2)]
    fields: dict[str, Any] = {"model": "resnet18", "cell": CIFAR10, "epochs": epochs}
    return with_result(
        record(framework, mode, speed, replicate=replicate, **fields | changes),
        latency=Latency(steps_per_call=1, call_times_s=[0.001] * 372 + [0.002] * 20 + [0.003] * 8),
        memory=Memory(step_peak_bytes=2**29, pool_peak_bytes=2**31, process_bytes=3 * 2**30, host_peak_bytes=1),
        energy=Energy(gross_joules=1750.0, window_s=5.0, busy_s=5.0, samples=5000, idle_watts=100),
        compile_time_warm_s=None if replicate else 4.0,
    )


def test_a_table_has_all_numbers_of_each_mode() -> None:
    """Three forward passes of 2 * 0.5554 G for each of 1,000 images/s are 3.33 TFLOP/s. 350 W: 350 mJ for a sample, and
    700 J in an epoch of 2 s."""
    sides: tuple[tuple[Framework, str, float], ...] = (("jax", "step.jit", 1000), ("jax", "scan.jit", 900))
    made = [full(*side, replicate) for side in (*sides, ("torch", "step.eager", 500.0)) for replicate in range(4)]
    table = modes_table(section_of(made))
    modes = ["JAX step.jit", "JAX scan.jit", "PyTorch step.eager"]
    assert [line.cells[0] for line in table.lines] == ["resnet18-b100-fp32", *modes]
    shown = dict(zip((column.title for column in table.columns), table.lines[1].cells, strict=True))
    expected = {"samples/s": "1,000", "95 % interval": "1,000 to 1,000", "processes": "4", "flags": ""}
    expected |= {"in the ratio": "best of 2", "achieved, TFLOP/s": "3.33"}
    expected |= {"step p50, ms": "1", "step p95, ms": "2", "step p99, ms": "3", "energy gross, mJ/sample": "350"}
    expected |= {"compile, cold, s": "2.5", "compile, warm, s": "4 (1 of 4)", "input of an epoch, s": "2.5"}
    expected |= {"epoch, s": "2", "energy of an epoch, J": "700", "test accuracy": "75.0%"}
    expected |= {"test accuracy, top 5, %": "99"}
    assert {name: shown[name] for name in expected} == expected


def test_what_has_no_number_has_no_column_and_a_reason() -> None:
    """Of 200 calls and other sizes, on a CPU."""
    one = record("jax", "step.jit", model="resnet18", cell=CIFAR10, environment=CPU, sizes={"image_size": 64})
    absent = with_result(one, memory=Memory(absent="no GPU"), energy=Energy(absent="no driver"))
    table = modes_table(section_of([absent]))
    titles = {column.title for column in table.columns}
    assert not titles & {"step p99, ms", "energy gross, mJ/sample", "achieved, TFLOP/s"}
    assert any("Energy: no driver" in note for note in table.notes)


# Throughput by batch size.


def groups_over_batch_sizes(found: list[Record]) -> dict[str, list[tuple[int, float, bool]]]:
    """Of each the batch sizes, with the throughput and whether it is of the best mode there."""
    (chart,) = [one for one in section_charts(section_of(found)) if one.name == "throughput_over_batch_size"]
    groups: dict[str, list[tuple[int, float, bool]]] = {}
    for one in chart.points:
        groups.setdefault(one["group"], []).append((one["value"], one["throughput"], one["chosen"]))
    return groups


def test_a_group_for_each_model_precision_options_and_settings_without_what_is_worthless() -> None:
    options = {"batch_norm": "folded", "inputs": "on_device"}
    groups: list[tuple[str, Any]] = [("resnet50", "bf16"), ("resnet50", "fp32"), ("vit_b_16", "fp32")]
    found = [
        record("jax", "x", 10 * size, batch_size=size, model=model, precision=precision, options=options)
        for model, precision in groups
        for size in (1, 8)
    ]
    found.append(record("jax", "x", model="resnet50", precision="tf32"))  # one size makes no line
    found.append(record("jax", "worthless", batch_size=8, model="resnet50", options=options, flags={"recompiled": "1"}))
    labels = [f"{model} | {precision}, folded, on_device" for model, precision in groups]
    assert groups_over_batch_sizes(found) == {label: [(1, 10, True), (8, 80, True)] for label in labels}
    sizes_and_epochs = [(size, epochs) for size in (100, 200) for epochs in (2, 3)]
    found = [record("jax", "x", batch_size=b, settings={"epochs": e}) for b, e in sizes_and_epochs]
    of_settings = groups_over_batch_sizes(found)
    assert len(of_settings) == 2 and all(label.startswith("cnn | fp32 (settings ") for label in of_settings)


# Over an option's numbers.


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
    section = section_of(records)
    found = all_times(section)
    # What the longest list lacks stands behind what it follows.
    assert phases_of(found) == ["data_generation", "compile", "zero_gradients", "forward", "backward"]
    (of_torch,) = [one.phases for one in found if one.phases and one.mode.framework == "torch"]
    # Medians of the replicates: 9, 2 and 4; 5, 4 and 5.
    medians = {"data_generation": 1.0, "zero_gradients": 4.0, "forward": 5.0, "backward": 2.0}
    assert {phase: summary["p50"] for phase, summary in of_torch.items()} == medians
    # In ms; of the whole step the median latency, 50 ms. What a mode has not is left free.
    (cells,) = [line.cells for line in phases_table(section).lines if line.cells[0] == "PyTorch loop.eager"]
    assert cells[1:] == ["1,000", "", "4,000", "5,000", "2,000", "50"]
    assert phases_absent(found) == ["PyTorch cnn-b100-fp32-different-8 vmap.eager: out of memory: 9 GiB"]


def test_calls_of_many_steps_have_a_mean_and_a_median_only() -> None:
    one = record("jax", "scan.jit")
    latency = one.result.latency.model_copy(update={"steps_per_call": 10})
    (times,) = all_times(section_of([with_result(one, latency=latency)]))
    assert times.whole_step == pytest.approx({"mean": 0.003195, "p50": 0.005})
    assert phases_table(section_of([one])).lines == []
